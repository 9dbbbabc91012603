//! Runs of the whole engine from seeds: two thousand of them, the same twice, and a device that
//! lies.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use railring_sim::{Cancelling, Fault, FaultPlan, Quiescing, When};
use railring_tests::simulate::{Coverage, Mood, Outcome, Scenario, simulate, simulate_scenario};

/// Seeds that every run of the tests goes through, and seeds that are new with each commit.
const FIXED: u64 = 1_500;
const FRESH: u64 = 500;

fn run_all(first: u64, count: u64, coverage: &Mutex<Coverage>) -> Vec<Outcome> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let outcome = simulate(first.wrapping_add(number));
                    coverage.lock().expect("no panic while counting").add(&outcome);
                    if outcome.failure.is_some() {
                        failed.lock().expect("no panic while counting").push(outcome);
                    }
                }
            });
        }
    });
    failed.into_inner().expect("no panic while counting")
}

/// Where the fresh seeds begin: a number that the checked-out commit says, so that a run can be
/// repeated; a fixed one outside of a clone.
fn base_of_commit() -> u64 {
    let commit = Command::new("git").args(["rev-parse", "--short=11", "HEAD"]).output();
    let hex = commit.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(1 << 40)
}

#[test]
fn two_thousand_runs_keep_every_promise() {
    let base = base_of_commit();
    println!("seeds 0..{FIXED} and {base}..{}", base + FRESH);
    let coverage = Mutex::default();
    let mut failed = run_all(0, FIXED, &coverage);
    failed.extend(run_all(base, FRESH, &coverage));
    let coverage = coverage.into_inner().expect("no panic while counting");
    println!("{coverage}");
    let texts: Vec<String> = failed.iter().take(3).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} runs failed:\n{}", failed.len(), texts.join("\n"));
    let rare = coverage.rare(10);
    assert!(rare.is_empty(), "struck in less than one run of a hundred: {rare:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 7_000..7_025 {
        let (one, two) = (simulate(seed), simulate(seed));
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed}");
        assert_eq!((one.turns, one.stripes), (two.turns, two.stripes), "seed {seed}");
    }
    assert_ne!(simulate(1).trace_hash, simulate(2).trace_hash);
}

/// Requests get lost, are given up, and the device says that they are quiet.
fn loses_requests(seed: u64, quiesce: Quiescing) -> Outcome {
    let mut scenario = Scenario::draw(seed);
    scenario.mood = Mood::Usual;
    scenario.engine.io_timeout = Duration::from_millis(1);
    scenario.engine.cancel_grace = Duration::from_millis(1);
    scenario.engine.quiet_bound = Duration::from_millis(20);
    for rail in &mut scenario.rails {
        rail.cancel = Cancelling::Ignored;
        rail.quiesce = quiesce;
        let lost = When::Chance { per_million: 300_000 };
        rail.faults = FaultPlan::none().with(Fault::Lost, lost);
    }
    simulate_scenario(scenario)
}

/// The test of the test: memory that a device writes after it gave it back is seen, and a device
/// that does not do that is not accused.
#[test]
fn a_device_that_writes_late_is_caught_and_an_honest_one_is_not() {
    let (mut caught, mut written) = (0, 0);
    for seed in 100..160 {
        let liar = loses_requests(seed, Quiescing::Lie { writes_after_ns: 300_000 });
        written += u64::from(liar.late_writes > 0);
        caught += u64::from(liar.failure.is_some());
        let honest = loses_requests(seed, Quiescing::WireCancel { after_ns: 300_000 });
        assert!(honest.failure.is_none(), "{honest}");
    }
    println!("late writes in {written} of 60 runs, caught in {caught}");
    assert!(caught > 10, "late writes in {written} runs, caught in only {caught}");
}
