//! Counters put together: what the engine and each of its rails are told to look like.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::poller::Control;
use crate::shared::{Shared, lock};
use crate::stages::{CLASSES, ClassStats};
use crate::stats::{
    Counter, EngineStats, HomeCounters, HomeRailCounters, PollerStats, RailStats, latencies,
};

impl Shared {
    pub(crate) fn engine_stats(&self) -> EngineStats {
        let sum = |counter: fn(&HomeCounters) -> &Counter| {
            self.desks.iter().map(|desk| counter(&desk.counters).get()).sum()
        };
        EngineStats {
            turns: sum(|c| &c.turns),
            turns_with_work: sum(|c| &c.turns_with_work),
            sleeps: sum(|c| &c.sleeps),
            reads: sum(|c| &c.reads),
            reads_failed: sum(|c| &c.reads_failed),
            stripes: sum(|c| &c.stripes),
            retries: self.of_rails(|c| &c.retries),
            steals: self.of_rails(|c| &c.steals),
            mismatches: self.of_rails(|c| &c.mismatches),
            table_fetches: sum(|c| &c.table_fetches),
            staged_pieces: sum(|c| &c.staged_pieces),
            reads_in_progress: sum(|c| &c.reads_in_progress),
            rings: self.rings.load(Ordering::Relaxed),
            registered_bytes: self.registered_bytes.load(Ordering::Relaxed),
            impounded_bytes: self.regions.stats().impounded_bytes,
            regions_misplaced: self.places.misplaced(),
            failed_pollers: self.failed_pollers.load(Ordering::Relaxed).into(),
            classes: self.classes(),
            pollers: self.desks.iter().map(|desk| PollerStats::of(&desk.counters)).collect(),
        }
    }

    /// What homes count of all rails together.
    fn of_rails(&self, counter: fn(&HomeRailCounters) -> &Counter) -> u64 {
        (0..self.rails.len()).map(|rail| self.of_rail(rail, counter)).sum()
    }

    /// What homes count of one rail.
    fn of_rail(&self, rail: usize, counter: fn(&HomeRailCounters) -> &Counter) -> u64 {
        self.desks.iter().map(|desk| counter(&desk.counters.rails[rail]).get()).sum()
    }

    fn classes(&self) -> [ClassStats; CLASSES] {
        std::array::from_fn(|class| {
            let mut stats = ClassStats::default();
            self.desks.iter().for_each(|desk| stats.add(&desk.counters.classes[class]));
            stats
        })
    }

    /// Asks the pollers for their links' counters, for the next snapshot.
    pub(crate) fn ask_link_stats(&self) {
        self.desks.iter().for_each(|desk| desk.tell(Control::ShareStats));
    }

    pub(crate) fn rail_stats(&self) -> Vec<RailStats> {
        (0..self.rails.len()).map(|rail| self.stats_of(rail)).collect()
    }

    pub(crate) fn rail_infos(&self) -> Vec<railring_transport::RailInfo> {
        self.controls.iter().map(|control| control.info()).collect()
    }

    fn stats_of(&self, rail: usize) -> RailStats {
        let (shared, counters) = (&self.rails[rail], &self.rails[rail].counters);
        let (staging_used_bytes, staging_bytes) = self.staging[rail].gauge();
        let poller = self.route[rail];
        let desk = &self.desks[usize::from(poller)];
        let cpu = |plus_one: &AtomicU32| plus_one.load(Ordering::Relaxed).checked_sub(1);
        let (info, place) = (self.controls[rail].info(), self.places.of_rail(rail));
        let control = self.controls[rail].stats();
        RailStats {
            node: place.node.or(info.node),
            memory_node: place.memory_node,
            memory: self.staging[rail].placement(),
            device: place.device.or_else(|| info.device.clone()),
            pci: place.pci,
            info,
            health: shared.state.health(),
            cooldown_left: Duration::from_nanos(
                shared.state.cooling_until().since(self.clock.now()),
            ),
            rate_bytes_per_s: counters.rate.get().saturating_mul(1000),
            pieces: counters.pieces.get(),
            bytes: counters.bytes.get(),
            failed: counters.failed.get(),
            errors: counters.errors.snapshot(),
            retries: self.of_rail(rail, |c| &c.retries),
            steals: self.of_rail(rail, |c| &c.steals),
            mismatches: self.of_rail(rail, |c| &c.mismatches),
            rail_faults: counters.rail_faults.get(),
            timeouts: counters.timeouts.get(),
            cancelled: counters.cancelled.get(),
            flushed: counters.flushed.get(),
            stuck: counters.stuck.get(),
            strays: counters.strays.get(),
            cooldowns: counters.cooldowns.get(),
            hashed_bytes: counters.hashed_bytes.get(),
            in_flight: counters.in_flight.get(),
            in_flight_peak: counters.in_flight_peak.get(),
            in_flight_bytes: counters.in_flight_bytes.get(),
            in_flight_bytes_peak: counters.in_flight_bytes_peak.get(),
            staging_used_bytes,
            staging_bytes,
            registered_bytes: control.registered_bytes,
            connections_made: control.connections_made,
            connections_retired: control.connections_retired,
            latency: latencies(counters),
            link: lock(&shared.link).clone(),
            poller: poller.into(),
            asked_cpu: cpu(&desk.asked),
            pinned_cpu: cpu(&desk.pinned),
        }
    }
}
