//! Whole runs of the real engine on simulated rails in virtual time, each from one seed, each
//! checked.
//!
//! ```text
//!   seed ─► Scenario ─► Run ──┬─► turn one poller ──┐   the seed picks who is next
//!                             ├─► let one caller act ├─► check ─► pass time when all rest
//!                             └──────────────────────┘
//! ```
//!
//! The same seed gives the same run, bit for bit: [`Outcome::trace_hash`] covers everything that
//! callers and rails did, and when.

mod caller;
mod check;
mod coverage;
mod dice;
mod extras;
mod foreign;
mod logged;
mod memory;
mod run;
mod scenario;
mod sleep;
mod source;
mod trace;
mod traced;
mod tracked;
mod whims;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use railring_sim::FiredFaults;

pub use coverage::Coverage;
pub use extras::Extras;
pub use scenario::{Mood, Scenario};
pub use sleep::SleepPlan;

use crate::virtual_engine::START;
use logged::SharedLog;
use run::{Marks, Run, Wrong};

/// What went wrong in a run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was seen.
    pub what: String,
    /// The read it was seen at, by its user data.
    pub read: Option<u64>,
    /// What happened to that read, line by line.
    pub timeline: String,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it was drawn from.
    pub seed: u64,
    /// Of everything that happened.
    pub trace_hash: u64,
    /// Turns that pollers made.
    pub turns: u64,
    /// Reads that were accepted.
    pub reads: u64,
    /// CQEs of stripes that were checked.
    pub stripes: u64,
    /// Which faults struck, how often.
    pub fired: FiredFaults,
    /// Writes into memory that had been given back, by devices that lie.
    pub late_writes: u64,
    /// Why the run is no good, if it is not.
    pub failure: Option<Failure>,
    /// How many rails, pollers, rings and copies there were.
    pub sizes: Sizes,
    marks: Marks,
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Rails.
    pub rails: usize,
    /// Pollers.
    pub pollers: usize,
    /// Rings.
    pub rings: usize,
    /// Most copies of a stripe.
    pub copies: usize,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { seed, turns, reads, stripes, .. } = self;
        match &self.failure {
            None => write!(
                f,
                "seed {seed}: ok, {reads} reads, {stripes} stripes, {turns} turns, trace {:016x}",
                self.trace_hash
            ),
            Some(failure) => {
                writeln!(f, "seed {seed}: FAILED: {}", failure.what)?;
                if let Some(read) = failure.read {
                    writeln!(f, "read {read}:")?;
                }
                f.write_str(&failure.timeline)?;
                write!(f, "again: cargo xtask simulate {seed}")
            }
        }
    }
}

/// Runs what `seed` draws.
#[must_use]
pub fn simulate(seed: u64) -> Outcome {
    simulate_scenario(Scenario::draw(seed))
}

/// Runs a scenario that was drawn, and perhaps changed.
#[must_use]
pub fn simulate_scenario(scenario: Scenario) -> Outcome {
    let log = SharedLog::default();
    let mut outcome = Outcome {
        seed: scenario.seed,
        trace_hash: 0,
        turns: 0,
        reads: 0,
        stripes: 0,
        fired: FiredFaults::default(),
        late_writes: 0,
        failure: None,
        sizes: Sizes {
            rails: scenario.rails.len(),
            pollers: scenario.poller_count(),
            rings: scenario.rings.len(),
            copies: scenario.copies(),
        },
        marks: Marks::default(),
    };
    let body = AssertUnwindSafe(|| run(scenario, log.clone(), &mut outcome));
    let wrong = match catch_unwind(body) {
        Ok(result) => result.err(),
        Err(panic) => Some(Wrong::run(format!("panicked: {}", words_of(&*panic)))),
    };
    let log = log.lock();
    outcome.trace_hash = log.trace.hash();
    outcome.failure = wrong.map(|Wrong { read, what }| {
        let timeline = log.trace.timeline(read);
        Failure { what, read, timeline }
    });
    outcome
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn run(scenario: Scenario, log: SharedLog, outcome: &mut Outcome) -> Result<(), Wrong> {
    let mut run = Run::new(scenario, log)?;
    let result = run.run();
    (outcome.turns, outcome.reads, outcome.stripes) = (run.turns, run.pushed, run.stripes);
    outcome.marks = run.marks;
    for control in &run.controls {
        let stats = control.stats();
        outcome.fired.add(&stats.fired);
        outcome.late_writes += stats.late_writes;
    }
    if result.is_err() {
        // Half-way through, there is nothing to be put in order.
        std::mem::forget(run);
    }
    result
}
