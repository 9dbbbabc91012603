//! Where the time of reads goes: stage times per read class that add up to the time from push to
//! end, and what they say is the bottleneck.

use std::fmt;

use railring_transport::Nanos;

use crate::stats::{Counter, HomeCounters};
use crate::trace::TraceStages;

/// Reads of about one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadClass {
    /// At most 64 KiB.
    Small,
    /// At most 4 MiB.
    Medium,
    /// More than that.
    Large,
}

/// How many classes there are.
pub(crate) const CLASSES: usize = 3;

impl ReadClass {
    /// All of them, in the order of [`EngineStats::classes`](crate::EngineStats::classes).
    pub const ALL: [ReadClass; CLASSES] = [ReadClass::Small, ReadClass::Medium, ReadClass::Large];

    #[inline]
    fn index(bytes: u64) -> usize {
        usize::from(bytes > 64 << 10) + usize::from(bytes > 4 << 20)
    }
}

impl fmt::Display for ReadClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReadClass::Small => "to 64 KiB",
            ReadClass::Medium => "to 4 MiB",
            ReadClass::Large => "larger",
        })
    }
}

/// What the reads of a class mostly wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bottleneck {
    /// Pieces on their way over the rails, or waiting for a rail that is busy.
    Network,
    /// One rail that is not done when all others are.
    SlowRail,
    /// Local disks.
    Storage,
    /// Hashing what has arrived.
    Verification,
    /// Waiting to be begun: a poller that is late, or `reads_max` others.
    Scheduling,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bottleneck::Network => "network",
            Bottleneck::SlowRail => "slow rail",
            Bottleneck::Storage => "storage",
            Bottleneck::Verification => "verification",
            Bottleneck::Scheduling => "scheduling",
        })
    }
}

/// What one home poller counts of one class; times in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct ClassCounters {
    reads: Counter,
    bytes: Counter,
    wall: Counter,
    scheduling: Counter,
    queue: Counter,
    wire: Counter,
    disk: Counter,
    verify: Counter,
    lone: Counter,
}

/// The time of one read so far. At each moment it is in one stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laps {
    /// When the present stage was last looked at; `NEVER` before the read begins.
    since: Nanos,
    scheduling_ns: u64,
    queue_ns: u64,
    transfer_ns: u64,
    verify_ns: u64,
    /// Pieces that rails have.
    out: u32,
    /// Stripes that are being hashed.
    hashing: u32,
    last_rail: u8,
    /// How much transfer time there was when a piece last landed.
    landed_ns: u64,
    /// How much when one last landed from another rail than that; `None` if none did.
    other_landed_ns: Option<u64>,
}

impl Default for Laps {
    fn default() -> Self {
        Laps {
            since: Nanos::NEVER,
            scheduling_ns: 0,
            queue_ns: 0,
            transfer_ns: 0,
            verify_ns: 0,
            out: 0,
            hashing: 0,
            last_rail: u8::MAX,
            landed_ns: 0,
            other_landed_ns: None,
        }
    }
}

impl Laps {
    /// The read begins: what was before is scheduling.
    pub(crate) fn begin(&mut self, pushed_at: Nanos, now: Nanos) {
        self.scheduling_ns = now.since(pushed_at);
        self.since = now;
    }

    fn lap(&mut self, now: Nanos) {
        if self.since == Nanos::NEVER {
            return;
        }
        let elapsed = now.since(self.since);
        self.since = now;
        let stage = match (self.out, self.hashing) {
            (0, 0) => &mut self.queue_ns,
            (0, _) => &mut self.verify_ns,
            _ => &mut self.transfer_ns,
        };
        *stage += elapsed;
    }

    pub(crate) fn ordered(&mut self, now: Nanos) {
        self.lap(now);
        self.out += 1;
    }

    pub(crate) fn landed(&mut self, rail: u8, now: Nanos) {
        self.lap(now);
        self.out = self.out.saturating_sub(1);
        if self.last_rail != rail {
            self.other_landed_ns = (self.last_rail != u8::MAX).then_some(self.landed_ns);
            self.last_rail = rail;
        }
        self.landed_ns = self.transfer_ns;
    }

    pub(crate) fn hashes(&mut self, now: Nanos) {
        self.lap(now);
        self.hashing += 1;
    }

    pub(crate) fn hashed(&mut self, now: Nanos) {
        self.lap(now);
        self.hashing = self.hashing.saturating_sub(1);
    }

    /// The read ends: how its time since its push is divided.
    pub(crate) fn end(mut self, [pushed, now]: [Nanos; 2], on_disk: bool) -> TraceStages {
        if self.since == Nanos::NEVER {
            self.begin(pushed, now);
        }
        let waited = self.queue_ns;
        self.lap(now);
        let (wire_ns, disk_ns) =
            if on_disk { (0, self.transfer_ns) } else { (self.transfer_ns, 0) };
        TraceStages {
            plan_ns: self.scheduling_ns,
            queue_ns: waited,
            wire_ns,
            disk_ns,
            verify_ns: self.verify_ns,
            publish_ns: self.queue_ns - waited,
            lone_ns: self.other_landed_ns.map_or(0, |other| self.landed_ns - other),
        }
    }

    /// The rail that was last heard of.
    pub(crate) fn last_rail(&self) -> usize {
        self.last_rail.into()
    }
}

/// What reads of one piece that ended in a turn have taken; told to the counters once per turn.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    classes: [ClassStats; CLASSES],
}

impl Tally {
    /// A read of one piece has ended.
    #[inline]
    pub(crate) fn record(&mut self, bytes: u64, [pushed, begun, now]: [Nanos; 3], on_disk: bool) {
        let class = &mut self.classes[ReadClass::index(bytes)];
        class.reads += 1;
        class.bytes += bytes;
        class.wall_ns += now.since(pushed);
        class.scheduling_ns += begun.since(pushed);
        let transfer = if on_disk { &mut class.disk_ns } else { &mut class.wire_ns };
        *transfer += now.since(begun);
    }

    /// Before their CQEs are published, so that whoever has seen all of those sees all of this.
    #[inline]
    pub(crate) fn settle(&mut self, poller: &HomeCounters) {
        for (tally, counters) in self.classes.iter_mut().zip(&poller.classes) {
            if tally.reads > 0 {
                let ended = std::mem::take(tally);
                poller.reads.add(ended.reads);
                poller.stripes.add(ended.reads);
                counters.add(&ended);
            }
        }
    }
}

impl ClassCounters {
    fn add(&self, ended: &ClassStats) {
        self.reads.add(ended.reads);
        self.bytes.add(ended.bytes);
        self.wall.add(ended.wall_ns);
        self.scheduling.add(ended.scheduling_ns);
        self.wire.add(ended.wire_ns);
        self.disk.add(ended.disk_ns);
    }

    /// A read has ended.
    pub(crate) fn record(
        classes: &[ClassCounters; CLASSES],
        bytes: u64,
        stages: &TraceStages,
        wall_ns: u64,
    ) {
        let class = &classes[ReadClass::index(bytes)];
        class.reads.add(1);
        class.bytes.add(bytes);
        class.wall.add(wall_ns);
        class.scheduling.add(stages.plan_ns);
        class.queue.add(stages.queue_ns + stages.publish_ns);
        class.wire.add(stages.wire_ns);
        class.disk.add(stages.disk_ns);
        class.verify.add(stages.verify_ns);
        class.lone.add(stages.lone_ns);
    }
}

/// Stage times of the reads of one class, in nanoseconds: `scheduling_ns`, `queue_ns`, `wire_ns`,
/// `disk_ns` and `verify_ns` add up to `wall_ns`. All monotone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Reads ended.
    pub reads: u64,
    /// Bytes they were of.
    pub bytes: u64,
    /// From push to end, of all of them.
    pub wall_ns: u64,
    /// From push until they were begun.
    pub scheduling_ns: u64,
    /// Begun, with nothing on any rail: rails were busy, or a limit was reached.
    pub queue_ns: u64,
    /// With pieces on network rails.
    pub wire_ns: u64,
    /// With pieces on local disks.
    pub disk_ns: u64,
    /// With everything there and being hashed. Pieces that are hashed as they land count where they
    /// came from.
    pub verify_ns: u64,
    /// Of `wire_ns` and `disk_ns`: when all rails but one had brought what they were given.
    pub lone_ns: u64,
}

impl ClassStats {
    pub(crate) fn add(&mut self, counters: &ClassCounters) {
        let pairs = [
            (&mut self.reads, &counters.reads),
            (&mut self.bytes, &counters.bytes),
            (&mut self.wall_ns, &counters.wall),
            (&mut self.scheduling_ns, &counters.scheduling),
            (&mut self.queue_ns, &counters.queue),
            (&mut self.wire_ns, &counters.wire),
            (&mut self.disk_ns, &counters.disk),
            (&mut self.verify_ns, &counters.verify),
            (&mut self.lone_ns, &counters.lone),
        ];
        pairs.into_iter().for_each(|(sum, counter)| *sum += counter.get());
    }

    /// What was added since `earlier`, a snapshot of the same class of the same engine.
    #[must_use]
    pub fn since(&self, earlier: &ClassStats) -> ClassStats {
        ClassStats {
            reads: self.reads.wrapping_sub(earlier.reads),
            bytes: self.bytes.wrapping_sub(earlier.bytes),
            wall_ns: self.wall_ns.wrapping_sub(earlier.wall_ns),
            scheduling_ns: self.scheduling_ns.wrapping_sub(earlier.scheduling_ns),
            queue_ns: self.queue_ns.wrapping_sub(earlier.queue_ns),
            wire_ns: self.wire_ns.wrapping_sub(earlier.wire_ns),
            disk_ns: self.disk_ns.wrapping_sub(earlier.disk_ns),
            verify_ns: self.verify_ns.wrapping_sub(earlier.verify_ns),
            lone_ns: self.lone_ns.wrapping_sub(earlier.lone_ns),
        }
    }

    /// What its reads mostly wait for; `None` before any has ended.
    #[must_use]
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        let half = self.wall_ns / 2;
        Some(match self {
            _ if self.reads == 0 || self.wall_ns == 0 => return None,
            _ if self.verify_ns > half => Bottleneck::Verification,
            _ if self.scheduling_ns > half => Bottleneck::Scheduling,
            _ if self.lone_ns > half / 2 => Bottleneck::SlowRail,
            _ if self.disk_ns > self.wire_ns => Bottleneck::Storage,
            _ => Bottleneck::Network,
        })
    }
}
