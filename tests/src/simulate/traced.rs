//! Reads that are traced: some of them in some runs, and what must hold of each trace.

use railring_core::{Completion, Read, ReadTrace, TraceConfig};
use sq_cq::Status;

use super::dice::Dice;
use super::run::{Run, Wrong};
use super::scenario::{Mood, Scenario};

/// One read of so many asks for a trace, on rings that have room for any.
const EVERY: u64 = 4;

/// Gives some rings room for traces: little, so that reads and records go without.
pub(crate) fn enrich(scenario: &mut Scenario) {
    let dice = &mut Dice::new(scenario.seed ^ 0x7ace_d4ea_d57a_ce00);
    for ring in &mut scenario.rings {
        if dice.one_in(2) {
            let reads = 1 + dice.below_u32(3);
            ring.trace = TraceConfig { reads, records: *dice.pick(&[0, 8, 1024]) };
        }
    }
}

impl Run {
    /// Whether a read asks for a trace. Not drawn, so that runs stay what they were.
    fn is_traced(&self, caller: usize, name: u64) -> bool {
        self.scenario.rings[caller].trace.reads > 0 && name % EVERY == 1
    }

    /// The next read, traced or not.
    pub(crate) fn with_trace<'o>(&self, caller: usize, read: Read<'o>) -> Read<'o> {
        if self.is_traced(caller, self.next_name) { read.traced() } else { read }
    }

    /// The last CQE of a read was popped: it has a trace if it asked for one and there was room.
    pub(crate) fn check_trace(&mut self, caller: usize, cqe: &Completion) -> Result<(), Wrong> {
        let name = cqe.user_data();
        let asked = self.is_traced(caller, name);
        let Some(ring) = &self.callers[caller].ring else { return Ok(()) };
        let wrong = |what: String| Wrong::of(name, what);
        match (ring.trace(cqe), asked) {
            // What a panicked poller had of it is lost.
            (None, true) if self.engine.stats().failed_pollers > 0 => Ok(()),
            (Some(trace), true) => {
                check(trace, cqe, self.scenario.mood == Mood::Calm).map_err(wrong)?;
                self.marks.set("traced");
                Ok(())
            }
            (None, true) if ring.traces_dropped() == 0 => Err(wrong("its trace is lost".into())),
            (Some(_), false) => Err(wrong("it was traced and did not ask for it".into())),
            (None, _) => Ok(()),
        }
    }
}

fn check(trace: &ReadTrace, cqe: &Completion, calm: bool) -> Result<(), String> {
    let stages = trace.stages;
    let landed: u64 = trace.rails.iter().map(|rail| rail.bytes).sum();
    let whole = calm && cqe.ended() == Some(Status::OK);
    let late = trace
        .records
        .iter()
        .any(|record| record.from_ns > record.to_ns || record.to_ns > trace.latency_ns());
    let facts = [
        ("stages", trace.latency_ns().min(u32::MAX.into()) == u64::from(cqe.latency_ns())),
        ("status", Some(trace.status) == cqe.ended()),
        ("read", trace.read == cqe.read_id() && trace.user_data == cqe.user_data()),
        ("bytes", trace.bytes == cqe.total_bytes()),
        ("bytes of its rails", landed >= trace.bytes && (landed == trace.bytes || !whole)),
        ("time alone", stages.lone_ns <= stages.transfer_ns()),
        ("records", !late),
    ];
    let rails = trace.rails.iter().all(|rail| {
        rail.attempts == rail.pieces + rail.failures && rail.busy_ns <= stages.transfer_ns()
    });
    let facts = facts.into_iter().chain([("rails", rails)]);
    let broken: Vec<&str> = facts.filter(|(_, holds)| !holds).map(|(name, _)| name).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(format!("its trace contradicts its CQE in {}: {trace}", broken.join(", ")))
}
