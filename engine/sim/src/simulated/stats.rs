//! What a simulated rail has done: which faults struck, and how its requests ended.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::simulated::fault::FaultKind;

const KINDS: usize = FaultKind::ALL.len();

/// Counters of one rail, written by its link and read by anyone. Relaxed: they order nothing.
#[derive(Debug, Default)]
pub(crate) struct SimCounters {
    fired: [AtomicU64; KINDS],
    pub(crate) posted: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) flushed: AtomicU64,
    pub(crate) delivered_bytes: AtomicU64,
    pub(crate) teardowns: AtomicU64,
    pub(crate) lies: AtomicU64,
    pub(crate) late_writes: AtomicU64,
    pub(crate) landed_unwanted: AtomicU64,
    pub(crate) registrations_refused: AtomicU64,
    pub(crate) outstanding: AtomicU64,
    pub(crate) outstanding_peak: AtomicU64,
}

impl SimCounters {
    /// Counts one effect of a fault of `kind`.
    pub(crate) fn fire(&self, kind: FaultKind) {
        bump(&self.fired[kind as usize], 1);
    }

    /// What is counted so far.
    pub(crate) fn snapshot(&self) -> SimStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SimStats {
            fired: FiredFaults(std::array::from_fn(|kind| get(&self.fired[kind]))),
            posted: get(&self.posted),
            completed: get(&self.completed),
            failed: get(&self.failed),
            flushed: get(&self.flushed),
            delivered_bytes: get(&self.delivered_bytes),
            teardowns: get(&self.teardowns),
            lies: get(&self.lies),
            late_writes: get(&self.late_writes),
            landed_unwanted: get(&self.landed_unwanted),
            registrations_refused: get(&self.registrations_refused),
            outstanding: get(&self.outstanding),
            outstanding_peak: get(&self.outstanding_peak),
        }
    }
}

/// Adds to a counter that only its link writes.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// What one simulated rail has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimStats {
    /// How often each kind of fault had its effect.
    pub fired: FiredFaults,
    /// Requests that the device took.
    pub posted: u64,
    /// Requests given back with their bytes.
    pub completed: u64,
    /// Requests given back as failed or cancelled.
    pub failed: u64,
    /// Requests given back as flushed.
    pub flushed: u64,
    /// Bytes that landed in parts of requests given back with their bytes.
    pub delivered_bytes: u64,
    /// Connections torn down to make a request quiet.
    pub teardowns: u64,
    /// Requests given back though their bytes were still to be written.
    pub lies: u64,
    /// Writes into memory that had been given back.
    pub late_writes: u64,
    /// Requests whose bytes, or some of them, landed after they had been given up and before they
    /// came back.
    pub landed_unwanted: u64,
    /// Regions that it had no room for.
    pub registrations_refused: u64,
    /// Requests in the link's hands now.
    pub outstanding: u64,
    /// The most there ever were.
    pub outstanding_peak: u64,
}

/// How often each kind of fault had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiredFaults([u64; KINDS]);

impl Default for FiredFaults {
    fn default() -> Self {
        FiredFaults([0; KINDS])
    }
}

impl FiredFaults {
    /// Of this kind.
    #[must_use]
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// Each kind with its count, in the order of [`FaultKind::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        FaultKind::ALL.iter().map(|kind| (*kind, self.of(*kind)))
    }

    /// Of all kinds together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the counts of another rail or run.
    pub fn add(&mut self, other: &FiredFaults) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// The kinds that fired, as `lost 3, stall 1`; `none` if nothing did.
impl fmt::Display for FiredFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, count) in self.iter().filter(|(_, count)| *count > 0) {
            write!(f, "{separator}{} {count}", kind.name())?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}
