//! Runs simulations of the engine: one seed, so many seeds, or for so many minutes.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use railring_tests::simulate::{Coverage, Outcome, Scenario, simulate};

const USAGE: &str =
    "usage: simulate [SEED] [--seeds N] [--minutes M] [--threads T] [--stop] [--verbose]

With SEED alone, runs that one. With --seeds, runs N of them from SEED on (from 0 if none is named);
with --minutes, as many as there is time for; with --stop, until one fails. Prints what failed and
what was reached.";

struct Options {
    first: u64,
    seeds: Option<u64>,
    limit: Option<Duration>,
    threads: usize,
    stop: bool,
    verbose: bool,
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut arguments = arguments;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (stop, verbose) = (false, false);
    let mut options = Options { first: 0, seeds: None, limit: None, threads, stop, verbose };
    let mut named = false;
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64, String> {
            let value = arguments.next().ok_or(format!("{argument} wants a number"))?;
            value.parse().map_err(|_| format!("{argument} wants a number, not {value:?}"))
        };
        match argument.as_str() {
            "--seeds" => options.seeds = Some(number()?),
            "--minutes" => options.limit = Some(Duration::from_secs(60 * number()?)),
            "--threads" => options.threads = usize::try_from(number()?.clamp(1, 256)).unwrap_or(1),
            "--stop" => options.stop = true,
            "--verbose" => options.verbose = true,
            "--help" | "-h" => return Err(USAGE.to_owned()),
            seed => {
                options.first =
                    seed.parse().map_err(|_| format!("{seed:?} is no seed\n{USAGE}"))?;
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
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    if options.seeds == Some(1) {
        return one(&options);
    }
    many(&options)
}

fn one(options: &Options) -> ExitCode {
    if options.verbose {
        println!("{:#?}", Scenario::draw(options.first));
    }
    let outcome = simulate(options.first);
    println!("{outcome}\nfaults: {}", outcome.fired);
    if outcome.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn many(options: &Options) -> ExitCode {
    let start = Instant::now();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let results: Mutex<(Coverage, u64)> = Mutex::default();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let over = options.limit.is_some_and(|limit| start.elapsed() >= limit);
            if over || options.seeds.is_some_and(|seeds| number >= seeds) {
                return;
            }
            let outcome = simulate(options.first.wrapping_add(number));
            if outcome.failure.is_some() && options.stop {
                stop.store(true, Ordering::Relaxed);
            }
            report(&outcome, options, &results);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(work);
        }
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (coverage, failed) = results;
    println!("{coverage}");
    println!("{failed} failed; {:.1} s", start.elapsed().as_secs_f64());
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn report(outcome: &Outcome, options: &Options, results: &Mutex<(Coverage, u64)>) {
    let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.0.add(outcome);
    if let Some(failure) = &outcome.failure {
        results.1 += 1;
        if options.verbose {
            println!("{outcome}");
        } else {
            println!("seed {}: FAILED: {}", outcome.seed, failure.what);
        }
    }
}
