//! `railring demo`: a real file over two directories and back over two rails, with a table.

use std::fs::{self, File};
use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use railring::store::{PutError, PutOptions};
use railring::{ObjectKey, Placement, RailStats, Store};
use serde::Serialize;
use tempfile::TempDir;

use crate::args::DemoArgs;
use crate::output::{Align, Format, Out, Table, progress};
use crate::reader::{Flight, Reader, Tally, Tracing};
use crate::signals::{Interrupted, Stop};
use crate::units::{Bytes, Count, Rate, Time, plural, rate};
use crate::{Context, UsageError};

/// Below this a demonstration says nothing about rates.
const FILE_BYTES_MIN: u64 = 100_000_000;
const STRIPE_BYTES: u64 = 1 << 20;
/// 32 reads of two stripes, one from each directory: 64 MiB in flight.
const FLIGHT: Flight = Flight { reads: 32, read_bytes: 2 << 20 };

/// One rail, as the table shows it.
#[derive(Debug, Serialize)]
struct RailReport {
    rail: String,
    backend: String,
    pieces: u64,
    bytes: u64,
    bytes_per_s: f64,
    latency_p50_ns: u64,
    latency_p99_ns: u64,
    verified_bytes: u64,
    retries: u64,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    file: PathBuf,
    bytes: u64,
    stripes: usize,
    put_seconds: f64,
    read_seconds: f64,
    rails: Vec<RailReport>,
    equal: bool,
}

pub(crate) fn run(args: &DemoArgs, context: &mut Context) -> Result<()> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => toolchain_file()?,
    };
    let bytes = fs::metadata(&file).with_context(|| format!("cannot open {}", file.display()))?;
    if !bytes.is_file() || bytes.len() == 0 {
        let problem = format!("{} is not a file with something in it", file.display());
        return Err(UsageError(problem).into());
    }
    let place = place(args)?;
    let result = demonstrate(args, context, &file, place.path());
    let path = place.path().to_owned();
    place.close().with_context(|| format!("cannot remove {}", path.display()))?;
    result?;
    if args.format.format() == Format::Text {
        context.out.line(format_args!("   Removed {}.", path.display()))?;
    }
    Ok(())
}

/// The largest library of the Rust toolchain, the compiler itself: over 100 MB.
fn toolchain_file() -> Result<PathBuf> {
    let advice = "give a FILE of at least 100 MB";
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).args(["--print", "sysroot"]).output();
    let said = said.with_context(|| format!("cannot ask rustc where its files are; {advice}"))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    let largest = ["lib", "bin"]
        .into_iter()
        .flat_map(|folder| fs::read_dir(sysroot.join(folder)).into_iter().flatten().flatten())
        .filter_map(|entry| {
            Some((entry.metadata().ok().filter(|m| m.is_file())?.len(), entry.path()))
        })
        .max();
    match largest {
        Some((bytes, path)) if bytes >= FILE_BYTES_MIN => Ok(path),
        _ => bail!("no file of 100 MB in {}; {advice}", sysroot.display()),
    }
}

/// A directory of its own: where asked, else in $TMPDIR, else beside the program, which is on a
/// disk when /tmp may be memory.
fn place(args: &DemoArgs) -> Result<TempDir> {
    let make = |parent: &Path| tempfile::Builder::new().prefix("railring-demo-").tempdir_in(parent);
    if let Some(parent) = &args.dir {
        return make(parent).with_context(|| format!("cannot use {}", parent.display()));
    }
    if std::env::var_os("TMPDIR").is_none() {
        let program = std::env::current_exe().ok();
        if let Some(made) = program.as_deref().and_then(Path::parent).and_then(|p| make(p).ok()) {
            return Ok(made);
        }
    }
    let parent = std::env::temp_dir();
    make(&parent).with_context(|| format!("cannot use {}; give --dir", parent.display()))
}

fn demonstrate(args: &DemoArgs, context: &mut Context, file: &Path, place: &Path) -> Result<()> {
    let Context { out, stop } = context;
    let is_text = args.format.format() == Format::Text;
    let directories = [place.join("disk0"), place.join("disk1")];
    let store = Store::create(&directories)?;
    let begun = Instant::now();
    let placement = put(&store, file, stop)?;
    let put_time = begun.elapsed();
    if is_text {
        tell_put(out, file, &placement, &store, put_time)?;
    }
    let present = crate::stores::present(&store);
    let mut reader = Reader::open(&present, FLIGHT, &args.place, Tracing::Off)?;
    let object = reader.engine.open(&placement)?;
    // Timed without the comparison, which would wait for a second disk's worth of reading.
    let begun = Instant::now();
    let tally = reader.stream(&object, 0..object.len(), stop, &mut |_| Ok(()))?;
    let read_time = begun.elapsed();
    let rails = rails(&reader, &tally, read_time);
    if is_text {
        tell_read(out, &rails, &tally, read_time)?;
    }
    compare(&mut reader, &object, file, stop)?;
    if is_text {
        let bytes = Count(placement.size_bytes);
        out.line(format_args!("3. Compared with the file: all {bytes} bytes are equal."))?;
        return Ok(());
    }
    out.json(&Report {
        file: file.to_owned(),
        bytes: placement.size_bytes,
        stripes: placement.stripes.len(),
        put_seconds: put_time.as_secs_f64(),
        read_seconds: read_time.as_secs_f64(),
        rails,
        equal: true,
    })
}

fn put(store: &Store, file: &Path, stop: &Stop) -> Result<Placement> {
    let key: ObjectKey = "demo/file".parse()?;
    let options = PutOptions { stripe_bytes: STRIPE_BYTES, ..PutOptions::default() };
    let bar = progress("storing", Some(fs::metadata(file)?.len()));
    let put = store.put_file(&key, file, &options, &mut |now| {
        bar.set_position(now.bytes_done);
        if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    match put {
        Ok(report) => Ok(report.placement),
        Err(PutError::Cancelled) => Err(Interrupted.into()),
        Err(error) => Err(error.into()),
    }
}

fn tell_put(
    out: &mut Out,
    file: &Path,
    placement: &Placement,
    store: &Store,
    time: Duration,
) -> Result<()> {
    let stripes = plural(placement.stripes.len() as u64, "stripe", "stripes");
    out.line(format_args!("1. Stored {} ({})", file.display(), Bytes(placement.size_bytes)))?;
    out.line(format_args!(
        "   as {stripes} of {}, in turn over two directories that stand for two disks:",
        Bytes(placement.stripe_bytes)
    ))?;
    for directory in crate::stores::present(store) {
        out.line(format_args!("   {}", directory.display()))?;
    }
    let (took, rate) = (Time(time), rate(placement.size_bytes, time));
    out.line(format_args!("   It took {took} ({rate}), and is safe on disk.\n"))?;
    Ok(out.flush()?)
}

fn rails(reader: &Reader, tally: &Tally, time: Duration) -> Vec<RailReport> {
    let stats = reader.rails().into_iter().enumerate();
    let report = |(index, rail): (usize, RailStats)| {
        let name = Path::new(&rail.info.name).file_name();
        let quantile = |q| rail.latency.quantile_ns(q).unwrap_or(0);
        RailReport {
            rail: name.map_or(rail.info.name.clone(), |name| name.to_string_lossy().into_owned()),
            backend: rail.link.backend.clone(),
            pieces: rail.pieces,
            bytes: rail.bytes,
            bytes_per_s: rate(rail.bytes, time).0,
            latency_p50_ns: quantile(0.5),
            latency_p99_ns: quantile(0.99),
            verified_bytes: tally.verified_bytes.get(index).copied().unwrap_or(0),
            retries: tally.retries.get(index).copied().unwrap_or(0),
            notes: rail.info.notes,
        }
    };
    stats.map(report).collect()
}

fn tell_read(out: &mut Out, rails: &[RailReport], tally: &Tally, time: Duration) -> Result<()> {
    let stripes = FLIGHT.read_bytes as u64 / STRIPE_BYTES;
    out.line(format_args!(
        "2. Read it back over two rails, one per directory: {} reads of {stripes} stripes in \
         flight,",
        FLIGHT.reads
    ))?;
    out.line("   each stripe checked against its checksum (xxh3-64) as it arrived:\n")?;
    let mut table = Table::new(&[
        ("   rail", Align::Left),
        ("pieces", Align::Right),
        ("bytes", Align::Right),
        ("rate", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("verified", Align::Right),
        ("retries", Align::Right),
    ]);
    for rail in rails {
        table.row(vec![
            format!("   {}", rail.rail),
            rail.pieces.to_string(),
            Bytes(rail.bytes).to_string(),
            Rate(rail.bytes_per_s).to_string(),
            latency(rail.latency_p50_ns),
            latency(rail.latency_p99_ns),
            Bytes(rail.verified_bytes).to_string(),
            rail.retries.to_string(),
        ]);
    }
    let sum = |of: fn(&RailReport) -> u64| rails.iter().map(of).sum::<u64>();
    table.row(vec![
        "   both".to_owned(),
        sum(|rail| rail.pieces).to_string(),
        Bytes(sum(|rail| rail.bytes)).to_string(),
        rate(tally.bytes, time).to_string(),
        String::new(),
        String::new(),
        Bytes(sum(|rail| rail.verified_bytes)).to_string(),
        sum(|rail| rail.retries).to_string(),
    ]);
    table.print(out)?;
    let mut backends: Vec<&str> = rails.iter().map(|rail| &*rail.backend).collect();
    backends.dedup();
    out.line(format_args!("\n   How the bytes moved: {}.", backends.join("; ")))?;
    let mut notes: Vec<&String> = rails.iter().flat_map(|rail| &rail.notes).collect();
    notes.dedup();
    for note in notes {
        out.line(format_args!("   Note: {note}."))?;
    }
    out.line("   p50 and p99 are latencies of pieces, from queued on the rail to arrived.")?;
    out.line("   Both directories are on one disk here; on two disks the rates add up.\n")?;
    Ok(out.flush()?)
}

/// A rail that brought nothing has none.
fn latency(nanoseconds: u64) -> String {
    if nanoseconds == 0 { "-".to_owned() } else { Time::from_ns(nanoseconds).to_string() }
}

fn compare(reader: &mut Reader, object: &railring::Object, file: &Path, stop: &Stop) -> Result<()> {
    let mut source = File::open(file)?;
    let mut expected = vec![0; FLIGHT.read_bytes];
    let mut at = 0_u64;
    reader.stream(object, 0..object.len(), stop, &mut |bytes| {
        let expected = &mut expected[..bytes.len()];
        source.read_exact(expected)?;
        if expected != bytes {
            bail!("what was read differs from {} behind byte {at}", file.display());
        }
        at += bytes.len() as u64;
        Ok(())
    })?;
    Ok(())
}
