//! `railring get`: reads an object, or a range of it, to a file or to standard output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::args::GetArgs;
use crate::output::{Format, Out, progress, say};
use crate::placed::{self, PlacedRail};
use crate::rail_table::{self, RailReport};
use crate::reader::{Flight, Reader, Tally, Tracing};
use crate::traced::{Traced, TracedReport};
use crate::units::{ByteRange, Bytes, Count, plural, rate};
use crate::{Context, UsageError, stores};

#[derive(Debug, Serialize)]
struct Report {
    key: String,
    generation: u64,
    offset: u64,
    bytes: u64,
    stripes_verified_whole: u64,
    stripes_verified_by_blocks: u64,
    retries: u64,
    seconds: f64,
    placement: Vec<PlacedRail>,
    /// With `--trace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<TracedReport>,
    /// With `--stats`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rails: Option<Vec<RailReport>>,
}

pub(crate) fn run(args: &GetArgs, context: &mut Context) -> Result<()> {
    let to_stdout = match &args.output {
        Some(path) => path == Path::new("-"),
        None if io::stdout().is_terminal() => {
            let problem = "standard output is a terminal: give -o FILE, or -o - if you mean it";
            return Err(UsageError(problem.to_owned()).into());
        }
        None => true,
    };
    let store = stores::open_to_read(&args.store)?;
    let Some(pin) = store.pin(&args.key)? else { bail!("there is no object {}", args.key) };
    stores::pass_on(&pin.found().warnings);
    let placement = pin.placement();
    let range = resolve(args.range, placement.size_bytes)?;
    let tracing = if args.trace { Tracing::On } else { Tracing::Off };
    let present = stores::present(&store);
    let mut reader = Reader::open(&present, Flight::STREAMING, &args.place, tracing)?;
    let object = reader.engine.open(placement)?;
    let mut target = match (&args.output, to_stdout) {
        (Some(path), false) => Target::create(path)?,
        _ => Target::Stdout,
    };
    let begun = Instant::now();
    let bar = progress(&args.key.to_string(), Some(range.end - range.start));
    let out = &mut context.out;
    let mut sink = |bytes: &[u8]| {
        target.write(bytes, out)?;
        bar.inc(bytes.len() as u64);
        Ok(())
    };
    let tally = reader.stream(&object, range.clone(), &context.stop, &mut sink);
    bar.finish_and_clear();
    let tally = tally?;
    target.finish(&mut context.out)?;
    let rails = args.stats.then(|| reader.rails());
    let report = Report {
        key: args.key.to_string(),
        generation: placement.generation,
        offset: range.start,
        bytes: range.end - range.start,
        stripes_verified_whole: tally.by_stripe,
        stripes_verified_by_blocks: tally.by_blocks,
        retries: tally.retries_total(),
        seconds: begun.elapsed().as_secs_f64(),
        placement: placed::rails(&reader.engine),
        trace: reader.traced.as_ref().map(Traced::report),
        rails: rails.as_ref().map(|rails| rails.iter().map(RailReport::new).collect()),
    };
    tell(args, context, to_stdout, &report, &tally, &bar)?;
    if args.format.format() == Format::Text {
        let traced = reader.traced.iter().map(ToString::to_string);
        let rails = rails.iter().flat_map(|rails| rail_table::lines(&reader.engine, rails));
        traced.chain(rails).try_for_each(|line| tell_more(context, to_stdout, &line))?;
    }
    Ok(())
}

/// On standard error if the object went to standard output.
fn tell_more(context: &mut Context, to_stdout: bool, text: &str) -> Result<()> {
    if to_stdout {
        let _ = writeln!(io::stderr(), "{text}");
        return Ok(());
    }
    Ok(context.out.line(text)?)
}

/// The range that was asked for, within an object of `size` bytes.
fn resolve(asked: Option<ByteRange>, size: u64) -> Result<Range<u64>> {
    let Some(ByteRange { start, end }) = asked else { return Ok(0..size) };
    let end = end.unwrap_or(size.max(start));
    if end > size {
        let size = Count(size);
        bail!("bytes {start}..{end} are not within the object, which has {size} bytes");
    }
    Ok(start..end)
}

fn tell(
    args: &GetArgs,
    context: &mut Context,
    to_stdout: bool,
    report: &Report,
    tally: &Tally,
    bar: &ProgressBar,
) -> Result<()> {
    if args.format.format() == Format::Json {
        if to_stdout {
            let _ = writeln!(io::stderr(), "{}", serde_json::to_string(report)?);
            return Ok(());
        }
        return context.out.json(report);
    }
    if to_stdout {
        return Ok(());
    }
    let proof = match (tally.by_stripe, tally.by_blocks) {
        (0, 0) => "nothing to verify".to_owned(),
        (whole, 0) => format!("{} verified", plural(whole, "stripe", "stripes")),
        (0, parts) => format!("{} of stripes verified by blocks", plural(parts, "part", "parts")),
        (whole, parts) => format!(
            "{} verified whole, {} by blocks",
            plural(whole, "stripe", "stripes"),
            plural(parts, "part", "parts")
        ),
    };
    let retries = match report.retries {
        0 => String::new(),
        retries => format!(", {}", plural(retries, "retry", "retries")),
    };
    let line = format!(
        "got {}: {}, {proof}{retries}, {}",
        args.key,
        Bytes(report.bytes),
        rate(report.bytes, bar.elapsed()),
    );
    Ok(context.out.line(line)?)
}

/// Where the bytes go.
#[derive(Debug)]
enum Target {
    Stdout,
    /// A device or a pipe: written as it is.
    Direct(File),
    /// A file that gets its name when it is complete.
    Staged(Staged),
}

/// A file under a temporary name beside its own. Dropped before it is finished, it is removed.
#[derive(Debug)]
struct Staged {
    file: File,
    staged: PathBuf,
    path: PathBuf,
    is_named: bool,
}

impl Target {
    fn create(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                bail!("{} is a directory: name a file", path.display());
            }
            Ok(found) if !found.is_file() => {
                let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
                Ok(Target::Direct(file))
            }
            Ok(_) => {
                // Through a symbolic link, what it points to is replaced, not the link.
                let real = fs::canonicalize(path).with_context(cannot)?;
                Ok(Target::Staged(Staged::create(&real).with_context(cannot)?))
            }
            Err(_) => Ok(Target::Staged(Staged::create(path).with_context(cannot)?)),
        }
    }

    fn write(&mut self, bytes: &[u8], out: &mut Out) -> Result<()> {
        match self {
            Target::Stdout => Ok(out.bytes(bytes)?),
            Target::Direct(file) => file.write_all(bytes).context("cannot write the output"),
            Target::Staged(staged) => {
                let written = staged.file.write_all(bytes);
                written.with_context(|| format!("cannot write {}", staged.path.display()))
            }
        }
    }

    fn finish(self, out: &mut Out) -> Result<()> {
        match self {
            Target::Stdout => Ok(out.flush()?),
            Target::Direct(_) => Ok(()),
            Target::Staged(mut staged) => {
                let cannot = || format!("cannot write {}", staged.path.display());
                // A name that survives a power cut while its bytes do not would be a half file.
                staged.file.sync_all().with_context(cannot)?;
                fs::rename(&staged.staged, &staged.path).with_context(cannot)?;
                staged.is_named = true;
                Ok(())
            }
        }
    }
}

impl Staged {
    fn create(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".railring-{}", std::process::id()));
        let staged = path.with_file_name(hidden);
        let file = OpenOptions::new().write(true).create_new(true).open(&staged)?;
        if let Ok(found) = fs::metadata(path) {
            fs::set_permissions(&staged, found.permissions())?;
        }
        Ok(Staged { file, staged, path: path.to_owned(), is_named: false })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_named
            && let Err(error) = fs::remove_file(&self.staged)
        {
            say(format_args!("cannot remove {}: {error}", self.staged.display()));
        }
    }
}
