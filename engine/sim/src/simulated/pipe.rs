//! The bandwidth of one rail: loads that share a pipe one after the other, in virtual time.
//!
//! A load is served at the rate in force, which may change at any time; a stalled pipe serves
//! nothing. Work is counted in bytes times 1e9, so that `nanoseconds * bytes_per_second` is exact,
//! and the fraction of a nanosecond that a finished load leaves over is credited to the next one:
//! a busy pipe drifts by less than 1 ns, however many loads it served.

use std::collections::VecDeque;

use railring_transport::{Nanos, WrId};

const WORK_PER_BYTE: u128 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Load {
    wr: WrId,
    work: u128,
}

/// A serial pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    bytes_per_second: u64,
    stalled_until: Nanos,
    at: Nanos,
    loads: VecDeque<Load>,
    credit: u128,
}

impl Pipe {
    /// An empty pipe that takes `loads` loads without allocating.
    pub(crate) fn new(bytes_per_second: u64, loads: u32) -> Self {
        debug_assert!(bytes_per_second > 0, "a pipe without bandwidth never finishes");
        Pipe {
            bytes_per_second,
            stalled_until: Nanos(0),
            at: Nanos(0),
            loads: VecDeque::with_capacity(loads as usize),
            credit: 0,
        }
    }

    /// Puts a load behind those that are waiting. The pipe has been advanced to `now`.
    pub(crate) fn push(&mut self, now: Nanos, wr: WrId, bytes: u64) {
        self.consume(now);
        self.loads.push_back(Load { wr, work: u128::from(bytes) * WORK_PER_BYTE });
    }

    /// Takes a load out, wherever it is. Returns whether it was there.
    pub(crate) fn remove(&mut self, now: Nanos, wr: WrId) -> bool {
        self.consume(now);
        let Some(index) = self.loads.iter().position(|load| load.wr == wr) else { return false };
        self.loads.remove(index);
        if index == 0 {
            // What it was served is lost, not a gift to the next one.
            self.credit = 0;
        }
        true
    }

    /// Takes all loads out.
    pub(crate) fn clear(&mut self, now: Nanos) {
        self.consume(now);
        self.loads.clear();
        self.credit = 0;
    }

    /// Serves nothing from `now` until `until`.
    pub(crate) fn stall(&mut self, now: Nanos, until: Nanos) {
        self.consume(now);
        self.stalled_until = self.stalled_until.max(until);
    }

    /// Serves `bytes_per_second` from `now` on.
    pub(crate) fn set_rate(&mut self, now: Nanos, bytes_per_second: u64) {
        debug_assert!(bytes_per_second > 0, "a pipe without bandwidth never finishes");
        self.consume(now);
        self.bytes_per_second = bytes_per_second;
    }

    /// When the first load will be through, if nothing changes until then.
    pub(crate) fn next_finish(&self) -> Option<Nanos> {
        let work = self.loads.front()?.work.saturating_sub(self.credit);
        let left_ns = work.div_ceil(u128::from(self.bytes_per_second));
        let start = self.at.max(self.stalled_until);
        Some(start.after(u64::try_from(left_ns).unwrap_or(u64::MAX)))
    }

    /// Takes out the first load if it is through by `now`, with the time it was.
    pub(crate) fn finish(&mut self, now: Nanos) -> Option<(Nanos, WrId)> {
        let at = self.next_finish().filter(|at| *at <= now)?;
        self.consume(at);
        let load = self.loads.pop_front()?;
        debug_assert!(load.work <= self.credit, "a load left the pipe before it was through");
        self.credit = self.credit.saturating_sub(load.work);
        if self.loads.is_empty() {
            self.credit = 0;
        }
        Some((at, load.wr))
    }

    /// Serves until `until`, which is not later than the first load's finish.
    fn consume(&mut self, until: Nanos) {
        if self.loads.is_empty() {
            self.credit = 0;
        } else {
            let served_ns = until.since(self.at.max(self.stalled_until));
            self.credit += u128::from(served_ns) * u128::from(self.bytes_per_second);
        }
        self.at = self.at.max(until);
    }
}
