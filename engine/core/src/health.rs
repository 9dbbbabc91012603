//! Whether a rail is in use: written by its poller, read by everyone who chooses rails.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use railring_transport::Nanos;

use crate::schedule::RailMask;

/// Up, cooling down, or waiting for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailHealth {
    /// In use.
    Up,
    /// Not used until its cooldown is over.
    Cooling,
    /// One piece at a time may try it.
    Probing,
    /// Switched off by the caller.
    Disabled,
    /// Its poller has panicked: it is not used any more.
    Failed,
}

impl fmt::Display for RailHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RailHealth::Up => "up",
            RailHealth::Cooling => "cooling",
            RailHealth::Probing => "probing",
            RailHealth::Disabled => "disabled",
            RailHealth::Failed => "failed",
        })
    }
}

/// What a home may do with a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Up,
    /// It takes nothing until its cooldown is over.
    Cooling,
    /// Its cooldown is over, and one piece may try it.
    Offered,
    /// A piece tries it; what has no other rail waits for what comes of that.
    Probed,
    Disabled,
    Failed,
}

impl Standing {
    /// Whether a piece may wait for the rail.
    #[inline]
    pub(crate) fn takes_pieces(self) -> bool {
        matches!(self, Standing::Up | Standing::Offered | Standing::Probed)
    }

    /// Whether it is out for good, or until the caller says otherwise.
    pub(crate) fn is_out(self) -> bool {
        matches!(self, Standing::Disabled | Standing::Failed)
    }
}

/// What pollers tell each other about a rail; written by the rail's poller, but for the probe.
#[derive(Debug)]
pub(crate) struct RailState {
    standing: AtomicU32,
    /// When its cooldown is over; 0 when there is none.
    cooling_until: AtomicU64,
    rail: usize,
    marks: Arc<RailMarks>,
}

/// What all rails' states say of being chosen, in one word each, so that choosing one of many
/// looks at no rail that is out.
#[derive(Debug, Default)]
pub(crate) struct RailMarks {
    up: AtomicU64,
    open: AtomicU64,
}

impl RailMarks {
    /// Rails that are up.
    #[inline]
    pub(crate) fn up(&self) -> RailMask {
        RailMask(self.up.load(Ordering::Relaxed))
    }

    /// Rails that a piece may wait for.
    #[inline]
    pub(crate) fn open(&self) -> RailMask {
        RailMask(self.open.load(Ordering::Relaxed))
    }

    fn set(&self, rail: usize, standing: Standing) {
        let bit = RailMask::of(rail).0;
        let marks = [(&self.up, standing == Standing::Up), (&self.open, standing.takes_pieces())];
        for (word, marked) in marks {
            if marked {
                word.fetch_or(bit, Ordering::Relaxed);
            } else {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }
}

impl RailState {
    /// A rail that is up.
    pub(crate) fn new(rail: usize, marks: &Arc<RailMarks>) -> Self {
        marks.set(rail, Standing::Up);
        RailState {
            standing: AtomicU32::new(Standing::Up as u32),
            cooling_until: AtomicU64::new(0),
            rail,
            marks: Arc::clone(marks),
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> Standing {
        match self.standing.load(Ordering::Relaxed) {
            0 => Standing::Up,
            1 => Standing::Cooling,
            2 => Standing::Offered,
            3 => Standing::Probed,
            4 => Standing::Disabled,
            _ => Standing::Failed,
        }
    }

    pub(crate) fn set(&self, standing: Standing) {
        self.standing.store(standing as u32, Ordering::Relaxed);
        // The ticket of a probe, which others take, changes neither of them.
        self.marks.set(self.rail, standing);
    }

    pub(crate) fn cool_until(&self, until: Nanos) {
        self.cooling_until.store(until.0, Ordering::Relaxed);
    }

    /// When its cooldown is over; time 0 if it does not cool down.
    pub(crate) fn cooling_until(&self) -> Nanos {
        Nanos(self.cooling_until.load(Ordering::Relaxed))
    }

    pub(crate) fn health(&self) -> RailHealth {
        match self.get() {
            Standing::Up => RailHealth::Up,
            Standing::Cooling => RailHealth::Cooling,
            Standing::Offered | Standing::Probed => RailHealth::Probing,
            Standing::Disabled => RailHealth::Disabled,
            Standing::Failed => RailHealth::Failed,
        }
    }

    /// Takes the one ticket of a rail that waits for a probe.
    pub(crate) fn take_probe(&self) -> bool {
        self.swap(Standing::Offered, Standing::Probed)
    }

    /// Gives the ticket back: the piece that took it does not go.
    pub(crate) fn return_probe(&self) {
        self.swap(Standing::Probed, Standing::Offered);
    }

    fn swap(&self, from: Standing, to: Standing) -> bool {
        let (from, to) = (from as u32, to as u32);
        // Relaxed: it orders nothing but itself.
        self.standing.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standings_are_read_as_they_were_written() {
        let marks = Arc::default();
        let state = RailState::new(3, &marks);
        let all = [
            Standing::Up,
            Standing::Cooling,
            Standing::Offered,
            Standing::Probed,
            Standing::Disabled,
            Standing::Failed,
        ];
        for standing in all {
            state.set(standing);
            assert_eq!(state.get(), standing);
            assert_eq!(marks.up().contains(3), standing == Standing::Up);
            assert_eq!(marks.open().contains(3), standing.takes_pieces());
        }
    }

    #[test]
    fn a_probe_is_taken_once() {
        let marks = Arc::default();
        let state = RailState::new(3, &marks);
        assert!(!state.take_probe(), "none is offered");
        state.set(Standing::Offered);
        assert!(state.take_probe() && !state.take_probe());
        state.return_probe();
        assert!(state.take_probe());
    }
}
