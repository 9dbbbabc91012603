//! Counters: one writer each, on cache lines of their own, read by anyone at any time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use railring_transport::{LinkStats, RailInfo};
use sq_cq::Status;

use crate::health::RailHealth;
use crate::rail_errors::{RailErrorCounters, RailErrors};
use crate::stages::{Bottleneck, CLASSES, ClassCounters, ClassStats, ReadClass};

/// A counter with one writer. Monotone; readers may see it a moment late.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Only the one writer adds: a load and a store, no read-modify-write.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn raise_to(&self, value: u64) {
        if value > self.0.load(Ordering::Relaxed) {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Buckets per power of two: values are told apart to within an eighth.
const STEPS_LOG2: u32 = 3;
const STEPS: usize = 1 << STEPS_LOG2;
const BUCKETS: usize = STEPS * 38;

/// Latencies of pieces in log-linear buckets; one writer.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [Counter; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: std::array::from_fn(|_| Counter::default()) }
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    if value < STEPS as u64 {
        return usize::try_from(value).expect("below 8");
    }
    let log2 = value.ilog2();
    let step = usize::try_from(value >> (log2 - STEPS_LOG2)).expect("below 16") - STEPS;
    let octave = (log2 - STEPS_LOG2) as usize + 1;
    (octave * STEPS + step).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn bucket_top(bucket: usize) -> u64 {
    let (octave, step) = (bucket / STEPS, bucket % STEPS);
    if octave == 0 {
        return step as u64;
    }
    (((STEPS + step + 1) as u64) << (octave - 1)) - 1
}

impl Histogram {
    #[inline]
    pub(crate) fn record(&self, nanoseconds: u64) {
        self.buckets[bucket_of(nanoseconds)].add(1);
    }

    fn snapshot(&self) -> Latencies {
        Latencies { counts: self.buckets.iter().map(Counter::get).collect() }
    }
}

/// A snapshot of a latency histogram, in nanoseconds, exact to within an eighth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
}

impl Latencies {
    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value that `quantile` (0 to 1) of the recorded ones do not exceed; `None` before any.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank among counts"
        )]
        let rank = ((count as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(bucket, &n)| {
            seen += n;
            (seen >= rank).then(|| bucket_top(bucket))
        })
    }
}

/// What the rail's poller counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RailCounters {
    pub(crate) pieces: Counter,
    pub(crate) bytes: Counter,
    pub(crate) failed: Counter,
    pub(crate) errors: RailErrorCounters,
    pub(crate) rail_faults: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) flushed: Counter,
    pub(crate) stuck: Counter,
    pub(crate) strays: Counter,
    pub(crate) cooldowns: Counter,
    pub(crate) hashed_bytes: Counter,
    pub(crate) in_flight: Counter,
    pub(crate) in_flight_peak: Counter,
    pub(crate) in_flight_bytes: Counter,
    pub(crate) in_flight_bytes_peak: Counter,
    /// Bytes per millisecond.
    pub(crate) rate: Counter,
    pub(crate) latency: Histogram,
}

impl RailCounters {
    /// A piece has failed.
    pub(crate) fn fail(&self, status: Status) {
        self.failed.add(1);
        self.errors.count(status);
    }
}

/// What one home poller counts of one rail.
#[derive(Debug, Default)]
pub(crate) struct HomeRailCounters {
    /// Pieces that it got after they had failed, there or elsewhere.
    pub(crate) retries: Counter,
    /// Pieces that it took over from a busier rail.
    pub(crate) steals: Counter,
    /// Checksum mismatches of what it brought.
    pub(crate) mismatches: Counter,
}

/// What one home poller counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct HomeCounters {
    pub(crate) turns: Counter,
    pub(crate) turns_with_work: Counter,
    pub(crate) sleeps: Counter,
    pub(crate) reads: Counter,
    pub(crate) reads_failed: Counter,
    pub(crate) stripes: Counter,
    pub(crate) rails: Box<[HomeRailCounters]>,
    pub(crate) table_fetches: Counter,
    pub(crate) staged_pieces: Counter,
    pub(crate) reads_in_progress: Counter,
    /// Nanoseconds with something under way, and of turns that hashed much.
    pub(crate) busy: Counter,
    pub(crate) hashing: Counter,
    pub(crate) classes: [ClassCounters; CLASSES],
}

impl HomeCounters {
    pub(crate) fn new(rails: usize) -> Self {
        let rails = (0..rails).map(|_| HomeRailCounters::default()).collect();
        HomeCounters { rails, ..HomeCounters::default() }
    }
}

/// One rail, as it was a moment ago. Counts are monotone, gauges are of now.
#[derive(Clone, Debug)]
pub struct RailStats {
    /// What the rail is.
    pub info: RailInfo,
    /// Whether it is in use.
    pub health: RailHealth,
    /// How long it cools down yet; zero if it does not.
    pub cooldown_left: Duration,
    /// Measured rate in bytes per second; 0 before there is a measurement.
    pub rate_bytes_per_s: u64,
    /// Pieces that landed.
    pub pieces: u64,
    /// Bytes that landed.
    pub bytes: u64,
    /// Pieces that failed, for whatever cause.
    pub failed: u64,
    /// The same by kind.
    pub errors: RailErrors,
    /// Pieces that it got after they had failed, there or elsewhere.
    pub retries: u64,
    /// Pieces that it took over from a busier rail.
    pub steals: u64,
    /// Checksum mismatches of what it brought, tried again or not.
    pub mismatches: u64,
    /// Failures that were the rail's own.
    pub rail_faults: u64,
    /// Attempts given up because they took too long.
    pub timeouts: u64,
    /// Pieces cancelled because their read was.
    pub cancelled: u64,
    /// Pieces thrown back by another's quiescence.
    pub flushed: u64,
    /// Pieces that did not become quiet within the bound.
    pub stuck: u64,
    /// Parts that the link brought under no name it was given: a bug of the transport.
    pub strays: u64,
    /// Cooldowns begun.
    pub cooldowns: u64,
    /// Bytes hashed on this rail's poller.
    pub hashed_bytes: u64,
    /// Pieces in flight.
    pub in_flight: u64,
    /// Most pieces in flight so far.
    pub in_flight_peak: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Most bytes in flight so far.
    pub in_flight_bytes_peak: u64,
    /// Bytes of staging memory in use.
    pub staging_used_bytes: u64,
    /// Bytes of staging memory in all.
    pub staging_bytes: u64,
    /// Bytes registered with it.
    pub registered_bytes: u64,
    /// Connections made: files opened, queue pairs brought up.
    pub connections_made: u64,
    /// Connections that ended, for whatever cause. Those made and not ended live.
    pub connections_retired: u64,
    /// Post-to-completion latencies of pieces.
    pub latency: Latencies,
    /// The link's own counters.
    pub link: LinkStats,
    /// The device it goes through, by the plan or by its transport, where known.
    pub device: Option<String>,
    /// The PCI function of that, by the plan.
    pub pci: Option<String>,
    /// The memory node it is nearest to, by the plan or by its transport.
    pub node: Option<u32>,
    /// The node that its buffers were to lie on, by the plan.
    pub memory_node: Option<u32>,
    /// Where its staging memory lies: the node, or the kernel's refusal.
    pub memory: railring_dma::Placement,
    /// The poller that drives it.
    pub poller: u32,
    /// The CPU that poller was to be pinned to; `None` if to no single one.
    pub asked_cpu: Option<u32>,
    /// The CPU that poller is pinned to, as read back; `None` if it is not pinned.
    pub pinned_cpu: Option<u32>,
}

impl RailStats {
    /// Connections that live.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections_made.saturating_sub(self.connections_retired)
    }

    /// Whether its poller is pinned to one CPU.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned_cpu.is_some()
    }
}

impl fmt::Display for RailStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantile = |q| self.latency.quantile_ns(q).unwrap_or(0) / 1000;
        write!(
            f,
            "{} {} {}: {} B in {} pieces, {} MB/s, p50 {} us, p99 {} us, {} failed, {} retried, \
             {} stolen, {} in flight (most {}), {} B registered, {} of {} connections live",
            self.info.kind,
            self.info.name,
            self.health,
            self.bytes,
            self.pieces,
            self.rate_bytes_per_s / 1_000_000,
            quantile(0.5),
            quantile(0.99),
            self.failed,
            self.retries,
            self.steals,
            self.in_flight,
            self.in_flight_peak,
            self.registered_bytes,
            self.connections(),
            self.connections_made,
        )?;
        if self.errors.total() > 0 {
            write!(f, ", errors: {}", self.errors)?;
        }
        if !self.cooldown_left.is_zero() {
            write!(f, ", {} ms of cooldown left", self.cooldown_left.as_millis())?;
        }
        if let Some(node) = self.node {
            write!(f, ", node {node}")?;
        }
        write!(f, ", poller {}", self.poller)?;
        match (self.pinned_cpu, self.asked_cpu) {
            (Some(cpu), _) => write!(f, " on cpu {cpu}"),
            (None, Some(asked)) => write!(f, " not pinned (cpu {asked} was asked for)"),
            (None, None) => Ok(()),
        }
    }
}

/// The engine as a whole, as it was a moment ago.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// Turns of all pollers.
    pub turns: u64,
    /// Turns that found something to do.
    pub turns_with_work: u64,
    /// Times a poller went to sleep.
    pub sleeps: u64,
    /// Reads ended.
    pub reads: u64,
    /// Reads that ended with an error.
    pub reads_failed: u64,
    /// Stripes ended.
    pub stripes: u64,
    /// Pieces tried again.
    pub retries: u64,
    /// Pieces an idle rail took over.
    pub steals: u64,
    /// Checksum mismatches seen, retried or not.
    pub mismatches: u64,
    /// Block tables fetched.
    pub table_fetches: u64,
    /// Pieces that went through staging memory.
    pub staged_pieces: u64,
    /// Reads that pollers are working on.
    pub reads_in_progress: u64,
    /// Rings that exist.
    pub rings: u32,
    /// Bytes registered with rails.
    pub registered_bytes: u64,
    /// Bytes impounded because quiet could not be proved.
    pub impounded_bytes: u64,
    /// Memory regions that the kernel refused to place on their node; first touch decided.
    pub regions_misplaced: u64,
    /// Pollers that panicked. Their reads have failed, their rails are not used any more.
    pub failed_pollers: u64,
    /// Where the time of reads goes, for each of [`ReadClass::ALL`](crate::ReadClass::ALL).
    pub classes: [ClassStats; CLASSES],
    /// What each poller is busy with.
    pub pollers: Vec<PollerStats>,
}

/// One poller's time, in nanoseconds. Monotone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollerStats {
    /// With something under way, whether it slept or not.
    pub busy_ns: u64,
    /// In turns that hashed at least 64 KiB, which is then most of what they do.
    pub hash_ns: u64,
}

impl PollerStats {
    pub(crate) fn of(counters: &HomeCounters) -> Self {
        PollerStats { busy_ns: counters.busy.get(), hash_ns: counters.hashing.get() }
    }
}

impl EngineStats {
    /// What reads of this size mostly wait for; `None` before any has ended. As
    /// [`ClassStats::bottleneck`] says, unless a poller hashes more than half of the time in which
    /// it has something to do: what is on the rails then waits for that.
    #[must_use]
    pub fn bottleneck(&self, class: ReadClass) -> Option<Bottleneck> {
        let verdict = self.classes[class as usize].bottleneck()?;
        let hashes = |poller: &PollerStats| poller.hash_ns > poller.busy_ns / 2;
        Some(if self.pollers.iter().any(hashes) { Bottleneck::Verification } else { verdict })
    }

    /// What has passed since `earlier`, a snapshot of the same engine: its times and counts; what
    /// is not a count is as it is now.
    #[must_use]
    pub fn since(&self, earlier: &EngineStats) -> EngineStats {
        let past = |now: u64, then: u64| now.wrapping_sub(then);
        let mut pollers = self.pollers.clone();
        for (poller, before) in pollers.iter_mut().zip(&earlier.pollers) {
            poller.busy_ns = past(poller.busy_ns, before.busy_ns);
            poller.hash_ns = past(poller.hash_ns, before.hash_ns);
        }
        EngineStats {
            turns: past(self.turns, earlier.turns),
            turns_with_work: past(self.turns_with_work, earlier.turns_with_work),
            sleeps: past(self.sleeps, earlier.sleeps),
            reads: past(self.reads, earlier.reads),
            reads_failed: past(self.reads_failed, earlier.reads_failed),
            stripes: past(self.stripes, earlier.stripes),
            retries: past(self.retries, earlier.retries),
            steals: past(self.steals, earlier.steals),
            mismatches: past(self.mismatches, earlier.mismatches),
            table_fetches: past(self.table_fetches, earlier.table_fetches),
            staged_pieces: past(self.staged_pieces, earlier.staged_pieces),
            classes: std::array::from_fn(|at| self.classes[at].since(&earlier.classes[at])),
            pollers,
            ..*self
        }
    }
}

impl fmt::Display for EngineStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} reads of {} stripes, {} failed, {} in progress, {} rings; {} retries, {} steals, \
             {} mismatches, {} table fetches, {} staged pieces; {} B registered, {} B impounded; \
             {} of {} turns with work, {} sleeps",
            self.reads,
            self.stripes,
            self.reads_failed,
            self.reads_in_progress,
            self.rings,
            self.retries,
            self.steals,
            self.mismatches,
            self.table_fetches,
            self.staged_pieces,
            self.registered_bytes,
            self.impounded_bytes,
            self.turns_with_work,
            self.turns,
            self.sleeps,
        )?;
        if self.failed_pollers > 0 {
            write!(f, "; {} pollers have failed", self.failed_pollers)?;
        }
        Ok(())
    }
}

pub(crate) fn latencies(counters: &RailCounters) -> Latencies {
    counters.latency.snapshot()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_values(value in 0u64..1 << 37) {
            let bucket = bucket_of(value);
            prop_assert!(value <= bucket_top(bucket));
            prop_assert!(bucket == 0 || value > bucket_top(bucket - 1));
            prop_assert!(bucket_top(bucket) <= value + value / 8);
        }
    }

    #[test]
    fn quantiles_are_ranks() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile_ns(0.5), None);
        for value in 1..=7 {
            histogram.record(value);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.quantile_ns(0.0), Some(1));
        assert_eq!(snapshot.quantile_ns(0.5), Some(4));
        assert_eq!(snapshot.quantile_ns(1.0), Some(7));
        histogram.record(u64::MAX);
        assert!(histogram.snapshot().quantile_ns(1.0).expect("some") > 1 << 37);
    }
}
