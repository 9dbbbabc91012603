//! Runs simulations of the engine: one seed, so many seeds, or for so many minutes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use railring_tests::simulate::{Coverage, Outcome, Scenario, simulate};

const USAGE: &str = "\
usage: cargo xtask simulate [SEED] [--seeds N] [--minutes M] [--threads T] [--stop] [--verbose]
                            [--checkpoint FILE] [--record FILE]

With SEED alone, runs that one; with --verbose, also prints what it is made of. With --seeds, runs N
of them from SEED on (from 0 if none is named); with --minutes, as many as there is time for; with
--stop, until one fails. Prints the timeline of what failed (of the first three, or with --verbose
of all), and what was reached; fails, too, if something was reached in less than 1 % of 2,000 runs
or more. --checkpoint goes on where a run that was stopped had come to;
--record writes the result as a page for docs/results.";

/// Seeds that one thread takes at a time.
const BLOCK: u64 = 250;
/// Between two lines that say how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// Runs after which what happened in less than one of a hundred is a fault of the scenarios.
const ENOUGH: u64 = 2_000;
/// Failures that are shown whole.
const SHOWN: u64 = 3;

#[derive(Debug)]
struct Options {
    first: u64,
    seeds: Option<u64>,
    limit: Option<Duration>,
    threads: usize,
    stop: bool,
    verbose: bool,
    checkpoint: Option<PathBuf>,
    record: Option<PathBuf>,
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut arguments = arguments;
    let mut options = Options {
        first: 0,
        seeds: None,
        limit: None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        stop: false,
        verbose: false,
        checkpoint: None,
        record: None,
    };
    let mut named = false;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value\n{USAGE}"));
        let number = |value: String| -> Result<u64, String> {
            value.parse().map_err(|_| format!("{argument} wants a number, not {value:?}"))
        };
        match argument.as_str() {
            "--seeds" => options.seeds = Some(number(value()?)?),
            "--minutes" => options.limit = Some(Duration::from_secs(60 * number(value()?)?)),
            "--threads" => {
                options.threads = usize::try_from(number(value()?)?.clamp(1, 256)).unwrap_or(1);
            }
            "--checkpoint" => options.checkpoint = Some(value()?.into()),
            "--record" => options.record = Some(value()?.into()),
            "--stop" => options.stop = true,
            "--verbose" => options.verbose = true,
            "--help" | "-h" => return Err(USAGE.to_owned()),
            seed => {
                let error = |_| format!("{seed:?} is no seed\n{USAGE}");
                options.first = seed.parse().map_err(error)?;
                named = true;
            }
        }
    }
    if options.seeds.is_none() && options.limit.is_none() {
        options.seeds = Some(if named { 1 } else { 1000 });
    }
    Ok(options)
}

fn main() -> ExitCode {
    let result = parse(std::env::args().skip(1)).and_then(|options| {
        if options.seeds == Some(1) && options.record.is_none() {
            Ok(one(&options))
        } else {
            many(&options)
        }
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}

fn one(options: &Options) -> bool {
    if options.verbose {
        println!("{:#?}", Scenario::draw(options.first));
    }
    let outcome = simulate(options.first);
    println!("{outcome}\nfaults: {}", outcome.fired);
    outcome.failure.is_none()
}

/// What came of a block of seeds.
#[derive(Debug, Default)]
struct Block {
    coverage: Coverage,
    failed: Vec<u64>,
    /// Not all of it was run.
    partial: bool,
}

/// What is known so far, in the order of the seeds.
#[derive(Debug, Default)]
struct Known {
    /// Blocks of which all is counted.
    blocks: u64,
    coverage: Coverage,
    failed: Vec<u64>,
    /// Blocks that others were slower than.
    ahead: BTreeMap<u64, Block>,
}

impl Known {
    fn take(&mut self, number: u64, block: Block) {
        self.ahead.insert(number, block);
        while self.ahead.get(&self.blocks).is_some_and(|block| !block.partial) {
            let Some(block) = self.ahead.remove(&self.blocks) else { return };
            self.coverage.merge(&block.coverage);
            self.failed.extend(block.failed);
            self.blocks += 1;
        }
    }

    /// All that was run, whole blocks or not.
    fn all(&self) -> (Coverage, Vec<u64>) {
        let (mut coverage, mut failed) = (self.coverage.clone(), self.failed.clone());
        for block in self.ahead.values() {
            coverage.merge(&block.coverage);
            failed.extend(&block.failed);
        }
        (coverage, failed)
    }

    /// As a checkpoint of runs of the program `of`.
    fn lines(&self, of: &str) -> String {
        let failed: Vec<String> = self.failed.iter().map(u64::to_string).collect();
        format!("{of}\n{}\n{}\n{}", self.blocks, failed.join(" "), self.coverage.lines())
    }

    fn parse(text: &str, of: &str) -> Option<Known> {
        let mut lines = text.splitn(4, '\n');
        if lines.next()? != of {
            return None;
        }
        let blocks = lines.next()?.parse().ok()?;
        let failed = lines.next()?.split_whitespace().map(|seed| seed.parse().ok());
        let failed: Option<Vec<u64>> = failed.collect();
        let coverage = Coverage::parse(lines.next()?)?;
        Some(Known { blocks, failed: failed?, coverage, ..Known::default() })
    }
}

/// A soak in progress.
struct Soak<'o> {
    options: &'o Options,
    /// Of which program the results are: those of another one are not added to these.
    of: String,
    start: Instant,
    next: AtomicU64,
    stop: AtomicBool,
    shown: AtomicU64,
    done: AtomicU64,
    known: Mutex<Known>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Soak<'_> {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
            || self.options.limit.is_some_and(|limit| self.start.elapsed() >= limit)
    }

    /// The seeds of a block.
    fn seeds(&self, block: u64) -> std::ops::Range<u64> {
        let end = self.options.seeds.unwrap_or(u64::MAX);
        (block * BLOCK).min(end)..(block + 1).saturating_mul(BLOCK).min(end)
    }

    /// Takes blocks until there are none, or it is over.
    fn work(&self) {
        while !self.is_over() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let seeds = self.seeds(number);
            if seeds.is_empty() {
                return;
            }
            let mut block = Block::default();
            for seed in seeds {
                if self.is_over() {
                    block.partial = true;
                    break;
                }
                let outcome = simulate(self.options.first.wrapping_add(seed));
                block.coverage.add(&outcome);
                self.done.fetch_add(1, Ordering::Relaxed);
                if outcome.failure.is_some() {
                    block.failed.push(outcome.seed);
                    self.show(&outcome);
                }
            }
            self.keep(number, block);
        }
    }

    fn keep(&self, number: u64, block: Block) {
        let mut known = lock(&self.known);
        known.take(number, block);
        if let Some(path) = &self.options.checkpoint
            && let Err(error) = write_whole(path, &known.lines(&self.of))
        {
            eprintln!("{}: {error}", path.display());
        }
    }

    fn show(&self, outcome: &Outcome) {
        if self.options.stop {
            self.stop.store(true, Ordering::Relaxed);
        }
        let shown = self.shown.fetch_add(1, Ordering::Relaxed);
        if let (Some(failure), true) = (&outcome.failure, shown >= SHOWN && !self.options.verbose) {
            println!("seed {}: FAILED: {}", outcome.seed, failure.what);
        } else {
            println!("{outcome}");
        }
    }

    /// How far it is, now and then, until the work is done.
    fn progress(&self, working: &AtomicBool) {
        let (already, mut last) = (lock(&self.known).coverage.runs(), Instant::now());
        while working.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
            if last.elapsed() < PROGRESS {
                continue;
            }
            last = Instant::now();
            let done = self.done.load(Ordering::Relaxed);
            let rate = done as f64 / self.start.elapsed().as_secs_f64();
            let failed = self.shown.load(Ordering::Relaxed);
            let left = self.options.seeds.map_or(String::new(), |seeds| {
                let left = seeds.saturating_sub(already + done) as f64 / rate.max(1e-9);
                format!(" of {seeds}, {left:.0} s left")
            });
            eprintln!("{} seeds{left}, {rate:.0} a second, {failed} failed", already + done);
        }
    }
}

/// Writes a file so that it is the old one or the new one whenever this is stopped.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text)?;
    std::fs::rename(beside, path)
}

fn many(options: &Options) -> Result<bool, String> {
    let of = format!("{} {BLOCK} from {}", commit(), options.first);
    let before = match &options.checkpoint {
        Some(path) => resume(path, &of)?,
        None => Known::default(),
    };
    let (shown, next) = (before.failed.len() as u64, before.blocks);
    let soak = Soak {
        options,
        of,
        start: Instant::now(),
        next: AtomicU64::new(next),
        stop: AtomicBool::new(false),
        shown: AtomicU64::new(shown),
        done: AtomicU64::new(0),
        known: Mutex::new(before),
    };
    let working = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| soak.progress(&working));
        let workers: Vec<_> = (0..options.threads).map(|_| scope.spawn(|| soak.work())).collect();
        let _: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        working.store(false, Ordering::Relaxed);
    });
    let (coverage, failed) = lock(&soak.known).all();
    println!("{coverage}");
    println!("{} failed; {:.1} s", failed.len(), soak.start.elapsed().as_secs_f64());
    let rare = if coverage.runs() < ENOUGH { Vec::new() } else { coverage.rare(10) };
    if !rare.is_empty() {
        println!("TOO RARE, in less than 1 % of runs: {}", rare.join(", "));
    }
    if let Some(path) = &options.record {
        let page = page(&coverage, &failed, options, soak.start.elapsed());
        write_whole(path, &page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(failed.is_empty() && rare.is_empty())
}

/// What was known when a run with this checkpoint was stopped; nothing if there was none.
fn resume(path: &Path, of: &str) -> Result<Known, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Known::default()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let known = Known::parse(&text, of);
    let known = known.ok_or(format!(
        "{} is of other runs than \"{of}\"; remove it or name another",
        path.display()
    ))?;
    eprintln!("going on after {} seeds", known.coverage.runs());
    Ok(known)
}

/// The checked-out commit, marked if the tree is not quite it.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or("unknown".to_owned());
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_some_and(|changed| !changed.is_empty()) {
        commit + " with changes"
    } else {
        commit
    }
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cores} cores, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

/// The result as a page.
fn page(coverage: &Coverage, failed: &[u64], options: &Options, time: Duration) -> String {
    let seeds = options.seeds.map_or(String::new(), |seeds| format!(" --seeds {seeds}"));
    let minutes =
        options.limit.map_or(String::new(), |limit| format!(" --minutes {}", limit.as_secs() / 60));
    let arguments = format!("{}{seeds}{minutes}", options.first);
    let mut page = format!(
        "# Simulated runs of the whole engine\n\nCommand: `cargo xtask simulate {arguments}`,\n\
         commit {}, on {},\n{} threads, {:.0} s since it was last started.\n\n\
         All rails are simulated and all time is virtual; the engine is the shipped code. Every \
         bug that runs\nfound is a named seed in `tests/tests/regressions.rs`, or a test.\n\n",
        commit(),
        machine(),
        options.threads,
        time.as_secs_f64()
    );
    let _ = write!(page, "{coverage}");
    let rare = coverage.rare(10);
    let rare = if rare.is_empty() { "nothing".to_owned() } else { rare.join(", ") };
    let seeds: Vec<String> = failed.iter().map(u64::to_string).collect();
    let seeds = if seeds.is_empty() { String::new() } else { format!(": {}", seeds.join(", ")) };
    let _ =
        writeln!(page, "\nIn less than 1 % of runs: {rare}.\n\n{} failed{seeds}.", failed.len());
    page
}
