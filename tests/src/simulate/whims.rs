//! Rare things: pollers that panic and what is refused since, rings and objects that are forgotten,
//! deadlines that leave no time; and which settings a run had.

use std::time::Duration;

use railring_core::{Limits, Object, Policy, RailHealth, Read, Ring};
use railring_sim::FaultKind;
use railring_transport::Nanos;

use super::run::Run;
use super::trace::{About, What};

/// What callers neither use nor drop any more, until the run is over.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    pub(crate) rings: Vec<Ring>,
    pub(crate) objects: Vec<Object>,
}

impl Run {
    /// Whether some poller has panicked: the engine takes nothing new.
    pub(crate) fn panicked(&self) -> bool {
        self.failed != 0
    }

    /// Whether the poller of a caller's ring has panicked.
    pub(crate) fn is_ghosts(&self, caller: usize) -> bool {
        let poller = self.scenario.rings[caller].poller.unwrap_or(0);
        self.failed >> poller & 1 == 1
    }

    /// A poller had a turn that can have been its last.
    pub(crate) fn look_for_panic(&mut self, poller: usize) {
        let possible = self.scenario.has_fault(&[FaultKind::Panic]);
        if !possible || self.engine.stats().failed_pollers == u64::from(self.failed.count_ones()) {
            return;
        }
        self.failed |= 1 << poller;
        // Its budgets came back at once, and devices still have its requests.
        let mut log = self.log.lock();
        (log.limits.pieces_max, log.limits.bytes_max) = (u32::MAX, u64::MAX);
        drop(log);
        self.marks.set("poller panicked");
        self.note(About::Run, What::Panicked, poller as u64, 0);
    }

    /// The engine has failed, and refuses: nothing more can be asked of it.
    pub(crate) fn give_up_pushing(&mut self) {
        self.left = 0;
    }

    /// A caller forgets its ring: what it asked for goes on, and nobody looks.
    pub(crate) fn forget_ring(&mut self, caller: usize) {
        let state = std::mem::take(&mut self.callers[caller]);
        let mut log = self.log.lock();
        for read in &state.reads {
            log.reads.retain(|(_, _, name)| *name != read.name);
        }
        drop(log);
        if let Some(mut ring) = state.ring {
            ring.submit();
            self.forgotten.rings.push(ring);
            self.ring_dropped = true;
            self.marks.set("ring forgotten");
            self.note(About::Run, What::RingForgotten, caller as u64, 0);
            self.stir();
        }
    }

    /// Memory is short: somebody remembers a ring.
    pub(crate) fn remember_ring(&mut self) {
        if self.forgotten.rings.pop().is_some() {
            self.stir();
        }
    }

    /// A deadline that leaves no time, for a read that had none.
    pub(crate) fn hurry<'o>(&mut self, read: Read<'o>, stamp: Nanos) -> (Read<'o>, Nanos) {
        if !self.scenario.extras.at_once || !self.sleep.one_in(12) {
            return (read, Nanos::NEVER);
        }
        if self.sleep.one_in(2) {
            self.marks.set("deadline of 0");
            (read.deadline(Nanos(0)), Nanos(1))
        } else {
            self.marks.set("no time at all");
            (read.timeout(Duration::ZERO), stamp)
        }
    }

    /// Which settings the run had, and what they led to.
    pub(crate) fn mark_settings(&mut self) {
        let Run { scenario, engine, marks, .. } = self;
        marks.set(match scenario.engine.policy {
            Policy::EndpointAffinity => "endpoint affinity",
            Policy::WeightedRoundRobin => "weighted round robin",
            Policy::Fixed => "fixed rails",
            _ => "least loaded",
        });
        let (stats, rails) = (engine.stats(), engine.rail_stats());
        let came_back =
            |rail: &&railring_core::RailStats| rail.cooldowns > 0 && rail.health == RailHealth::Up;
        let happened = [
            ("huge weight", scenario.rails.iter().any(|rail| rail.weight == 1_000_000)),
            ("pinned endpoint", !scenario.pinned.is_empty()),
            ("engine's limits", scenario.engine.limits != Limits::default()),
            ("staged", stats.staged_pieces > 0),
            ("block table fetched", stats.table_fetches > 0),
            ("piece stolen", stats.steals > 0),
            ("stripe read again", stats.mismatches > 0),
            ("rail cooled down", rails.iter().any(|rail| rail.cooldowns > 0)),
            ("rail back by a probe", rails.iter().find(came_back).is_some()),
        ];
        for (name, happened) in happened {
            if happened {
                marks.set(name);
            }
        }
    }
}
