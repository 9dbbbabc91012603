//! `railring bench gate`: exactly so many idle turns, or reads, for counting instructions.
//!
//! An inline engine over a null rail, times that are counted instead of read: two runs with the
//! same number execute the same instructions.

use anyhow::Result;
use railring::transport::Nanos;

use super::rig::{BATCH, Inline};
use crate::args::GateArgs;

/// Time between two turns.
const STEP_NS: u64 = 1000;

pub(super) fn run(args: &GateArgs) -> Result<()> {
    let mut rig = Inline::anywhere(BATCH)?;
    let mut now = 1_000_000_000;
    let mut turn = |rig: &mut Inline| {
        now += STEP_NS;
        rig.engine.turn_at(Nanos(now));
    };
    // What only happens once is behind it.
    for _ in 0..BATCH {
        turn(&mut rig);
    }
    for _ in 0..args.idle_turns.unwrap_or(0) {
        turn(&mut rig);
    }
    let mut left = args.reads.unwrap_or(0);
    while left > 0 {
        let batch = left.min(BATCH as u64);
        left -= batch;
        let count = usize::try_from(batch)?;
        let Inline { object, seats, .. } = &mut rig;
        seats[0].push(object, count)?;
        let mut done = 0;
        while done < count {
            turn(&mut rig);
            done += rig.seats[0].pop();
        }
    }
    Ok(())
}
