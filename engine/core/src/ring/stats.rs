//! A ring's gauges and counts, for people and programs.

use std::fmt;

use super::Ring;

/// One ring, as its caller sees it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// Reads pushed that no poller has taken yet.
    pub waiting: u32,
    /// Reads accepted whose last CQE was not popped: its depth.
    pub in_flight: u32,
    /// CQEs that can be popped.
    pub ready: u32,
    /// CQ slots that accepted reads hold.
    pub reserved: u32,
    /// CQ slots in all.
    pub cq_entries: u32,
    /// Pushes refused as full so far.
    pub full_answers: u64,
    /// Reads that were to be traced and found no room for it, so far.
    pub traces_dropped: u64,
}

impl fmt::Display for RingStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reads in flight, {} of them waiting; {} CQEs ready, {} of {} slots held; full {} \
             times",
            self.in_flight,
            self.waiting,
            self.ready,
            self.reserved,
            self.cq_entries,
            self.full_answers,
        )
    }
}

impl Ring {
    /// How full it is and was.
    #[must_use]
    pub fn stats(&self) -> RingStats {
        RingStats {
            waiting: self.end.sq_len(),
            in_flight: self.end.in_flight(),
            ready: self.end.cq_len(),
            reserved: self.end.reserved(),
            cq_entries: self.end.cq_capacity(),
            full_answers: self.end.full_answers(),
            traces_dropped: self.traces_dropped(),
        }
    }
}
