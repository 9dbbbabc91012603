//! A peer: raw io_uring, which does nothing, in batches, on one thread.
//!
//! The invariant of the `unsafe` here: the only entries pushed are NOPs, which refer to no memory.

use std::time::{Duration, Instant};

use anyhow::Result;
use io_uring::{IoUring, opcode};

use super::rig::{BATCH, per_second};

/// NOPs per second in batches of 32; an error where io_uring is refused.
pub(super) fn rate(time: Duration) -> Result<f64> {
    let entries = u32::try_from(BATCH)?;
    let mut ring = IoUring::new(entries)?;
    let (begun, mut done) = (Instant::now(), 0);
    loop {
        for _ in 0..64 {
            batch(&mut ring)?;
            done += BATCH;
        }
        let elapsed = begun.elapsed();
        if elapsed >= time {
            return Ok(per_second(done, elapsed));
        }
    }
}

fn batch(ring: &mut IoUring) -> Result<()> {
    let mut queue = ring.submission();
    for _ in 0..BATCH {
        let entry = opcode::Nop::new().build();
        // SAFETY: a NOP refers to no memory that would have to outlive it.
        unsafe { queue.push(&entry) }?;
    }
    drop(queue);
    ring.submit_and_wait(BATCH)?;
    let mut done = 0;
    while done < BATCH {
        done += ring.completion().count();
    }
    Ok(())
}
