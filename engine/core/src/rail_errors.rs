//! Pieces that failed on a rail, by what failed.

use std::fmt;

use sq_cq::{Blame, Status};

use crate::stats::Counter;

/// Failed pieces of one rail, by kind: together [`RailStats::failed`](crate::RailStats::failed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailErrors {
    /// The path: device, link, connection, disk.
    pub path: u64,
    /// Given up because they took too long.
    pub timed_out: u64,
    /// The peer refused, or does not have it.
    pub peer: u64,
    /// The peer, or the disk, has another generation.
    pub stale: u64,
    /// What came was too short, or damaged, and the rail saw it.
    pub data: u64,
    /// Something was full.
    pub full: u64,
    /// What was asked for cannot be done.
    pub caller: u64,
    /// Nobody's: no connection at the moment, and what has no name.
    pub other: u64,
}

impl RailErrors {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Each kind with its name, for tables.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("path", self.path),
            ("timed out", self.timed_out),
            ("peer", self.peer),
            ("stale", self.stale),
            ("data", self.data),
            ("full", self.full),
            ("caller", self.caller),
            ("other", self.other),
        ]
    }
}

/// The kinds that occurred, as `path 3, stale 1`; `none` if nothing failed.
impl fmt::Display for RailErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let occurred = self.named().into_iter().filter(|(_, count)| *count > 0);
        let texts: Vec<String> = occurred.map(|(name, count)| format!("{name} {count}")).collect();
        f.pad(&if texts.is_empty() { "none".to_owned() } else { texts.join(", ") })
    }
}

/// The same as the rail's poller counts them.
#[derive(Debug, Default)]
pub(crate) struct RailErrorCounters {
    path: Counter,
    timed_out: Counter,
    peer: Counter,
    stale: Counter,
    data: Counter,
    full: Counter,
    caller: Counter,
    other: Counter,
}

impl RailErrorCounters {
    #[cold]
    pub(crate) fn count(&self, status: Status) {
        let kind = match status.blame() {
            _ if status == Status::TIMED_OUT => &self.timed_out,
            _ if status.is_stale() => &self.stale,
            _ if status.is_backpressure() => &self.full,
            Blame::Rail => &self.path,
            Blame::Peer => &self.peer,
            Blame::Data => &self.data,
            Blame::Caller => &self.caller,
            _ => &self.other,
        };
        kind.add(1);
    }

    pub(crate) fn snapshot(&self) -> RailErrors {
        RailErrors {
            path: self.path.get(),
            timed_out: self.timed_out.get(),
            peer: self.peer.get(),
            stale: self.stale.get(),
            data: self.data.get(),
            full: self.full.get(),
            caller: self.caller.get(),
            other: self.other.get(),
        }
    }
}
