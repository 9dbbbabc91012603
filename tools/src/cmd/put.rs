//! `railring put`: files become objects, striped over the store's directories.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use railring::store::{PutError, PutOptions, PutReport};
use railring::{ObjectKey, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::args::PutArgs;
use crate::output::{Format, progress, say};
use crate::signals::{Interrupted, Stop};
use crate::units::{Bytes, plural, rate};
use crate::{Context, Reported, UsageError, chain, stores};

/// One file and the object it becomes.
#[derive(Debug)]
struct Job {
    path: PathBuf,
    key: ObjectKey,
}

#[derive(Debug, Serialize)]
struct Report {
    key: String,
    generation: u64,
    size_bytes: u64,
    stripes: usize,
    stripe_bytes: u64,
    block_bytes: u32,
    copies: u16,
    bytes_written: u64,
    seconds: f64,
    warnings: Vec<String>,
}

pub(crate) fn run(args: &PutArgs, context: &mut Context) -> Result<()> {
    let jobs = jobs(args)?;
    let directories = args.store.directories.len();
    if usize::from(args.copies) > directories {
        return Err(UsageError(format!(
            "--copies {} needs as many directories, --store names {directories}",
            args.copies
        ))
        .into());
    }
    let store = stores::open_or_create(&args.store)?;
    let options = PutOptions {
        stripe_bytes: args.stripe.0,
        block_bytes: args.block,
        copies: args.copies,
        expected_size: None,
    };
    let mut failed = false;
    for job in &jobs {
        context.stop.check()?;
        let begun = Instant::now();
        match put(&store, job, &options, &context.stop) {
            Ok(done) => tell(context, args, &store, &done, begun)?,
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                say(format_args!("error: {}: {}", job.path.display(), chain(&error)));
                failed = true;
            }
        }
    }
    if failed { Err(Reported.into()) } else { Ok(()) }
}

/// Which file becomes which object.
fn jobs(args: &PutArgs) -> Result<Vec<Job>> {
    let prefix = match &args.key {
        None => "files/",
        Some(key) if key.ends_with('/') => key,
        Some(key) if args.files.len() == 1 => {
            let key = parse(key, &format!("--key {}", short(key)))?;
            return Ok(vec![Job { path: args.files[0].clone(), key }]);
        }
        Some(_) => {
            let problem = "one --key for several files must end in '/': their names are added";
            return Err(UsageError(problem.to_owned()).into());
        }
    };
    let job = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|_| path != Path::new("-")) else {
            let problem = format!("'{}' gives no name to its object: use --key", path.display());
            return Err(UsageError(problem).into());
        };
        let key = parse(&format!("{prefix}{name}"), &format!("the name of {}", path.display()))?;
        Ok(Job { path: path.clone(), key })
    };
    args.files.iter().map(job).collect()
}

fn parse(key: &str, what: &str) -> Result<ObjectKey> {
    key.parse().map_err(|error| UsageError(format!("{what}: {error}")).into())
}

/// A typed name that may be absurdly long or hold control characters, for a message.
fn short(key: &str) -> String {
    let escaped: String = key.chars().take(60).flat_map(char::escape_default).collect();
    if key.chars().nth(60).is_some() { format!("{escaped}...") } else { escaped }
}

fn put(store: &Store, job: &Job, options: &PutOptions, stop: &Stop) -> Result<PutReport> {
    let label = job.key.to_string();
    let mut bar = ProgressBar::hidden();
    let mut step = |now: railring::store::PutProgress| {
        if bar.is_hidden() && now.bytes_done > 0 {
            bar = progress(&label, now.bytes_total);
        }
        bar.set_position(now.bytes_done);
        if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let result = match stream(&job.path, stop)? {
        Some(mut source) => store.put(&job.key, &mut source, options, &mut step),
        None => store.put_file(&job.key, &job.path, options, &mut step),
    };
    bar.finish_and_clear();
    match result {
        Ok(report) => Ok(report),
        Err(PutError::Cancelled) => Err(Interrupted.into()),
        Err(PutError::Source(_)) if stop.is_set() => Err(Interrupted.into()),
        Err(error) => Err(error.into()),
    }
}

/// What is not a regular file has no length to check; nothing for a regular one.
fn stream(path: &Path, stop: &Stop) -> Result<Option<Stream>> {
    let file = if path == Path::new("-") {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        File::from(stdin.context("cannot use standard input")?)
    } else {
        let kind = fs::metadata(path).context("cannot open it")?.file_type();
        if kind.is_dir() {
            bail!("it is a directory; put the files in it, or an archive of it");
        }
        if !kind.is_fifo() && !kind.is_char_device() {
            return Ok(None);
        }
        File::open(path).context("cannot open it")?
    };
    Ok(Some(Stream { file, stop: stop.clone() }))
}

/// A pipe or a device: reading may wait for ever, so it looks for the stop in between.
struct Stream {
    file: File,
    stop: Stop,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let often = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            if self.stop.is_set() {
                return Err(io::Error::other(Interrupted));
            }
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&often)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return self.file.read(buffer),
            }
        }
    }
}

fn tell(
    context: &mut Context,
    args: &PutArgs,
    store: &Store,
    done: &PutReport,
    begun: Instant,
) -> Result<()> {
    stores::pass_on(&done.warnings);
    let placement = &done.placement;
    let time = begun.elapsed();
    if args.format.format() == Format::Json {
        return context.out.json(&Report {
            key: placement.key.to_string(),
            generation: placement.generation,
            size_bytes: placement.size_bytes,
            stripes: placement.stripes.len(),
            stripe_bytes: placement.stripe_bytes,
            block_bytes: placement.block_bytes,
            copies: args.copies,
            bytes_written: done.bytes_written,
            seconds: time.as_secs_f64(),
            warnings: done.warnings.iter().map(ToString::to_string).collect(),
        });
    }
    let copies = match args.copies {
        1 => String::new(),
        copies => format!(", {copies} copies"),
    };
    let line = format!(
        "put {}: {} in {} of {} over {}{copies}, generation {}, {}",
        placement.key,
        Bytes(placement.size_bytes),
        plural(placement.stripes.len() as u64, "stripe", "stripes"),
        Bytes(placement.stripe_bytes),
        plural(store.directory_count().into(), "directory", "directories"),
        placement.generation,
        rate(placement.size_bytes, time),
    );
    context.out.line(line)?;
    // Each object is told of as soon as it is durable.
    Ok(context.out.flush()?)
}
