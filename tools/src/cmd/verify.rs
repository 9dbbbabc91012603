//! `railring verify`: reads every copy of every stripe, and names what does not match.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, anyhow};
use indicatif::ProgressBar;
use railring::catalog::Source;
use railring::catalog::checksum::{Hex, StreamingChecksum, table_bytes, table_checksum};
use railring::store::{DataFileStat, ListEntry, ObjectSummary, StoreWarning};
use railring::{Completion, Object, ObjectKey, Placement, Read, Status, Store};
use serde::Serialize;

use crate::args::VerifyArgs;
use crate::output::{Format, progress};
use crate::rail_table::{self, RailReport};
use crate::reader::{Cuts, Flight, Reader, Tracing};
use crate::units::{Bytes, plural, rate};
use crate::{Context, Reported, stores};

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Bytes, or what vouches for them, are wrong or gone: the command fails.
    Problem,
    /// All copies of all stripes are there and right; the next writer mends the rest.
    Warning,
}

/// Something that is wrong, as it is printed.
#[derive(Debug, Serialize)]
struct Problem {
    level: Level,
    kind: &'static str,
    key: Option<String>,
    generation: Option<u64>,
    stripe: Option<u32>,
    directory: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    bad_block: Option<u32>,
    message: String,
}

impl Problem {
    fn new(kind: &'static str, message: String) -> Self {
        Problem {
            level: Level::Problem,
            kind,
            key: None,
            generation: None,
            stripe: None,
            directory: None,
            expected: None,
            found: None,
            bad_block: None,
            message,
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    objects: u64,
    stripe_copies: u64,
    bytes: u64,
    retries: u64,
    problems: u64,
    warnings: u64,
    seconds: f64,
}

/// One verification: what it reads with, what it found so far.
struct Work<'a> {
    args: &'a VerifyArgs,
    context: &'a mut Context,
    store: &'a Store,
    reader: Reader,
    bar: ProgressBar,
    summary: Summary,
}

pub(crate) fn run(args: &VerifyArgs, context: &mut Context) -> Result<()> {
    let store = stores::open_to_read(&args.store)?;
    let present = stores::present(&store);
    let reader = Reader::open(&present, Flight::STREAMING, &args.place, Tracing::Off)?;
    let bar = progress("verifying", None);
    let mut work = Work { args, context, store: &store, reader, bar, summary: Summary::default() };
    for entry in store.list(&args.prefix) {
        work.context.stop.check()?;
        match entry {
            Ok(ListEntry::Object(summary)) => work.object(&summary)?,
            Ok(ListEntry::Damaged(error)) => {
                work.tell(Problem::new("manifest", error.to_string()))?;
            }
            Ok(_) => {}
            Err(error) => work.tell(Problem::new("store", error.to_string()))?,
        }
    }
    work.finish()
}

impl Work<'_> {
    fn finish(mut self) -> Result<()> {
        let time = self.bar.elapsed();
        self.bar.finish_and_clear();
        self.summary.seconds = time.as_secs_f64();
        let summary = &self.summary;
        if self.args.format.format() == Format::Json {
            self.context.out.json(&serde_json::json!({ "summary": summary }))?;
            if self.args.stats {
                let rails = self.reader.rails();
                let rails: Vec<RailReport> = rails.iter().map(RailReport::new).collect();
                self.context.out.json(&serde_json::json!({ "rails": rails }))?;
            }
        } else {
            let mut result = match summary.problems {
                0 => "all good".to_owned(),
                problems => plural(problems, "problem", "problems"),
            };
            if summary.warnings > 0 {
                result += &format!(", {}", plural(summary.warnings, "warning", "warnings"));
            }
            self.context.out.line(format_args!(
                "verified {} in {}, {} at {}: {result}",
                plural(summary.stripe_copies, "stripe", "stripes"),
                plural(summary.objects, "object", "objects"),
                Bytes(summary.bytes),
                rate(summary.bytes, time),
            ))?;
            if summary.retries > 0 {
                let retries = plural(summary.retries, "read", "reads");
                self.context.out.line(format_args!("{retries} needed more than one attempt"))?;
            }
            if self.args.stats {
                let lines = rail_table::lines(&self.reader.engine, &self.reader.rails());
                lines.iter().try_for_each(|line| self.context.out.line(line))?;
            }
        }
        if summary.problems > 0 { Err(Reported.into()) } else { Ok(()) }
    }

    fn tell(&mut self, problem: Problem) -> Result<()> {
        let (mark, count) = match problem.level {
            Level::Problem => ("BAD ", &mut self.summary.problems),
            Level::Warning => ("WARN", &mut self.summary.warnings),
        };
        *count += 1;
        let (out, format) = (&mut self.context.out, self.args.format.format());
        self.bar.suspend(|| match format {
            Format::Json => out.json(&problem),
            Format::Text => Ok(out.line(format_args!("{mark} {}", problem.message))?),
        })?;
        Ok(self.context.out.flush()?)
    }

    fn object(&mut self, listed: &ObjectSummary) -> Result<()> {
        let key = &listed.key;
        let pin = match self.store.pin(key) {
            Ok(Some(pin)) => pin,
            // Removed since it was listed.
            Ok(None) => return Ok(()),
            Err(error) => {
                return self.tell(about(key, Problem::new("manifest", error.to_string())));
            }
        };
        self.summary.objects += 1;
        self.bar.set_message(format!("verifying {key}"));
        for warning in &pin.found().warnings {
            let mut problem = Problem::new("manifest", format!("{key}: {warning}"));
            if matches!(warning, StoreWarning::ManifestMissing { .. }) {
                // A put that is ending, or died while it ended. It had synced all data before it
                // wrote the first manifest, and one manifest is as good as all.
                problem.level = Level::Warning;
            }
            self.tell(about(key, problem))?;
        }
        let files = self.store.stat(key).ok().flatten().map_or(Vec::new(), |stat| stat.files);
        let placement = pin.placement();
        let mut copies = Vec::new();
        for index in 0..placement.sources.len() {
            if let Some(copy) = Copy::of(placement, index) {
                self.open(copy, &files, &mut copies)?;
            }
        }
        self.read(&mut copies)?;
        copies.iter().try_for_each(|copy| self.tables(copy))
    }

    /// Opens one data file over its rail; one that is not there is a problem of its own.
    fn open(&mut self, copy: Copy, files: &[DataFileStat], into: &mut Vec<Opened>) -> Result<()> {
        let Source { endpoint, handle } = &copy.source;
        let is_file = |f: &&DataFileStat| f.file == *handle && f.directory == Path::new(endpoint);
        let header = files.iter().find(is_file).map(|file| (file.file_bytes, &file.header));
        if let Some((Some(_), Err(reason))) = header {
            let message = format!("{}: header of {}: {reason}", copy.key(), copy.directory());
            self.tell(copy.about(Problem::new("header", message)))?;
        }
        match self.reader.engine.open(&copy.placement) {
            Ok(object) => {
                let bytes = self.reader.flight.read_bytes as u64;
                let cuts = Cuts::new(&object, 0..object.len(), bytes);
                into.push(Opened { copy, object, cuts, bad: Vec::new() });
                Ok(())
            }
            Err(error) => {
                let stripes = plural(copy.stripes.len() as u64, "stripe", "stripes");
                let why = match header {
                    Some((None, _)) => "the file is missing".to_owned(),
                    _ => error.to_string(),
                };
                let message = format!("{}: {stripes} in {}: {why}", copy.key(), copy.directory());
                self.tell(copy.about(Problem::new("file", message)))
            }
        }
    }

    /// Reads all copies at once, a read of each in turn, so that every rail is busy.
    fn read(&mut self, copies: &mut [Opened]) -> Result<()> {
        let mut turn: VecDeque<usize> = (0..copies.len()).collect();
        let mut in_flight = 0_usize;
        loop {
            self.context.stop.check()?;
            while let Some(&next) = turn.front() {
                let Opened { object, cuts, .. } = &mut copies[next];
                let Some(range) = cuts.clone().next() else {
                    turn.pop_front();
                    continue;
                };
                let Some(lease) = self.reader.pool.take() else { break };
                cuts.next();
                let read = Read::new(object, range, lease).user_data(next as u64).allow_partial();
                self.reader.ring.push(read).map_err(|refused| anyhow!(refused.why))?;
                in_flight += 1;
                turn.rotate_left(1);
            }
            if in_flight == 0 {
                return Ok(());
            }
            self.reader.ring.wait(1, std::time::Duration::from_millis(100))?;
            while let Some(completion) = self.reader.ring.pop() {
                let at = usize::try_from(completion.user_data())?;
                let ended = completion.ended().is_some();
                self.stripe(&mut copies[at], &completion)?;
                drop(completion.into_lease());
                in_flight -= usize::from(ended);
            }
        }
    }

    fn stripe(&mut self, opened: &mut Opened, completion: &Completion) -> Result<()> {
        let position = usize::from(completion.stripe());
        let Some(&stripe) = opened.copy.stripes.get(position) else { return Ok(()) };
        self.summary.retries += u64::from(completion.attempts() > 1 && completion.status().is_ok());
        if completion.status().is_ok() {
            self.summary.bytes += completion.bytes();
            self.bar.set_position(self.summary.bytes);
            return Ok(());
        }
        // A stripe longer than a read fails in several; once is enough.
        if opened.bad.contains(&stripe) {
            return Ok(());
        }
        opened.bad.push(stripe);
        let copy = &opened.copy;
        let mut problem = Problem::new("stripe", String::new());
        problem.stripe = Some(stripe);
        problem.bad_block = completion.bad_block();
        let mut text = format!(
            "{}: stripe {stripe} in {}: {}",
            copy.key(),
            copy.directory(),
            completion.status()
        );
        if completion.status() == Status::CHECKSUM_MISMATCH {
            let entry = &copy.placement.stripes[position];
            let expected = Hex(entry.checksum.unwrap_or(0)).to_string();
            let whole = completion.checksum() != 0;
            let found = if whole { Ok(completion.checksum()) } else { hash_stripe(copy, position) };
            let found = found.map_or_else(|e| format!("unknown ({e})"), |sum| Hex(sum).to_string());
            text += &format!(", checksum {expected} expected, {found} found");
            if let Some(block) = completion.bad_block() {
                text += &format!(", first bad block {block}");
            }
            (problem.expected, problem.found) = (Some(expected), Some(found));
        }
        problem.message = text;
        self.tell(opened.copy.about(problem))
    }

    /// Checks the block tables, which whole stripes are read without.
    fn tables(&mut self, opened: &Opened) -> Result<()> {
        let copy = &opened.copy;
        self.summary.stripe_copies += copy.stripes.len() as u64;
        let file = match File::open(copy.path()) {
            Ok(file) => file,
            Err(error) => {
                let message = format!("{}: cannot open {}: {error}", copy.key(), copy.directory());
                return self.tell(copy.about(Problem::new("file", message)));
            }
        };
        for (position, &stripe) in copy.stripes.iter().enumerate() {
            self.context.stop.check()?;
            let entry = &copy.placement.stripes[position];
            let Some(expected) = entry.table_checksum else { continue };
            let bytes = table_bytes(entry.len_bytes, copy.placement.block_bytes);
            let mut table = vec![0; usize::try_from(bytes)?];
            let read = file.read_exact_at(&mut table, entry.owners[0].table_offset);
            let found = read.map(|()| table_checksum(&table));
            if found.as_ref().is_ok_and(|&found| found == expected) {
                continue;
            }
            // A stripe that was cut off has lost its table, too.
            if found.is_err() && opened.bad.contains(&stripe) {
                continue;
            }
            let found = found.map_or_else(|e| e.to_string(), |sum| Hex(sum).to_string());
            let expected = Hex(expected).to_string();
            let mut problem = Problem::new(
                "table",
                format!(
                    "{}: block table of stripe {stripe} in {}: checksum {expected} expected, \
                     {found} found",
                    copy.key(),
                    copy.directory()
                ),
            );
            problem.stripe = Some(stripe);
            (problem.expected, problem.found) = (Some(expected), Some(found));
            self.tell(copy.about(problem))?;
        }
        Ok(())
    }
}

/// What one data file holds of an object, as an object of its own: each copy of each stripe is in
/// exactly one, so reading all of them reads everything once, and a copy that is bad cannot hide
/// behind one that is good.
struct Copy {
    placement: Placement,
    source: Source,
    /// The object's numbers of the stripes.
    stripes: Vec<u32>,
}

struct Opened {
    copy: Copy,
    object: Object,
    cuts: Cuts,
    /// Stripes already known to be bad.
    bad: Vec<u32>,
}

impl Copy {
    /// The stripes of source `index`; nothing if it has none.
    fn of(placement: &Placement, index: usize) -> Option<Copy> {
        let source = placement.sources.get(index)?.clone();
        let mut copy = Placement { stripes: Vec::new(), size_bytes: 0, ..placement.clone() };
        copy.sources = vec![source.clone()];
        let mut stripes = Vec::new();
        for stripe in &placement.stripes {
            let owner = stripe.owners.iter().find(|owner| usize::from(owner.source) == index);
            let Some(owner) = owner else { continue };
            let mut entry = stripe.clone();
            entry.index = u32::try_from(stripes.len()).ok()?;
            entry.owners = vec![railring::catalog::Owner { source: 0, ..*owner }];
            copy.size_bytes += entry.len_bytes;
            copy.stripes.push(entry);
            stripes.push(stripe.index);
        }
        (!stripes.is_empty()).then_some(Copy { placement: copy, source, stripes })
    }

    fn key(&self) -> &ObjectKey {
        &self.placement.key
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new(&self.source.endpoint).join(&self.source.handle)
    }

    fn directory(&self) -> std::path::Display<'_> {
        Path::new(&self.source.endpoint).display()
    }

    fn about(&self, problem: Problem) -> Problem {
        let directory = Some(self.source.endpoint.clone());
        let generation = Some(self.placement.generation);
        Problem { directory, generation, ..about(self.key(), problem) }
    }
}

fn about(key: &ObjectKey, problem: Problem) -> Problem {
    Problem { key: Some(key.to_string()), ..problem }
}

/// The checksum of what is really there, of a stripe that was read in parts.
fn hash_stripe(copy: &Copy, position: usize) -> std::io::Result<u64> {
    let (file, entry) = (File::open(copy.path())?, &copy.placement.stripes[position]);
    let mut hash = StreamingChecksum::new();
    let mut buffer = vec![0; 1 << 20];
    let (mut at, mut left) = (entry.owners[0].offset, entry.len_bytes);
    while left > 0 {
        let step = left.min(buffer.len() as u64);
        let part = &mut buffer[..usize::try_from(step).unwrap_or(0)];
        file.read_exact_at(part, at)?;
        hash.update(part);
        (at, left) = (at + step, left - step);
    }
    Ok(hash.finish())
}
