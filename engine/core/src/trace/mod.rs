//! What a traced read writes down: its stages, what each rail did for it, and a bounded list of
//! what happened when. Made before it is needed: nothing is allocated per read.

mod kept;
mod show;

use std::ops::AddAssign;
use std::sync::Arc;

use railring_transport::{Nanos, RailKind};
use sq_cq::{ReadId, Status};

use crate::stages::{Bottleneck, ClassStats};

pub(crate) use kept::Traces;
pub use kept::{TraceConfig, TraceTooLarge};

/// How the time of one read, from its push to its end, is divided: all but `lone_ns` add up to it.
/// Nanoseconds, by the clock of the poller's turns, as in [`ClassStats`], whose `scheduling_ns` is
/// `plan_ns`, and whose `queue_ns` has `publish_ns` in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceStages {
    /// From the push until it was begun: its poller was late, or `reads_max` others were before it.
    pub plan_ns: u64,
    /// Begun, with nothing on any rail: rails were busy, or a limit was reached.
    pub queue_ns: u64,
    /// With pieces on network rails.
    pub wire_ns: u64,
    /// With pieces on local disks.
    pub disk_ns: u64,
    /// With everything there and being hashed. Pieces that are hashed as they land count where they
    /// came from.
    pub verify_ns: u64,
    /// Everything there and proved (or given up), and its end not written yet.
    pub publish_ns: u64,
    /// Of `wire_ns` and `disk_ns`: when all rails but one had brought what they were given.
    pub lone_ns: u64,
}

impl TraceStages {
    /// From push to end.
    #[must_use]
    pub fn wall_ns(&self) -> u64 {
        self.plan_ns + self.queue_ns + self.transfer_ns() + self.verify_ns + self.publish_ns
    }

    /// With pieces on rails.
    #[must_use]
    pub fn transfer_ns(&self) -> u64 {
        self.wire_ns + self.disk_ns
    }

    /// What a read, or all that were added up, mostly waited for, by the rule of
    /// [`ClassStats::bottleneck`]; `None` if it took no time.
    #[must_use]
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        let class = ClassStats {
            reads: 1,
            bytes: 0,
            wall_ns: self.wall_ns(),
            scheduling_ns: self.plan_ns,
            queue_ns: self.queue_ns + self.publish_ns,
            wire_ns: self.wire_ns,
            disk_ns: self.disk_ns,
            verify_ns: self.verify_ns,
            lone_ns: self.lone_ns,
        };
        class.bottleneck()
    }
}

impl AddAssign for TraceStages {
    fn add_assign(&mut self, other: TraceStages) {
        self.plan_ns += other.plan_ns;
        self.queue_ns += other.queue_ns;
        self.wire_ns += other.wire_ns;
        self.disk_ns += other.disk_ns;
        self.verify_ns += other.verify_ns;
        self.publish_ns += other.publish_ns;
        self.lone_ns += other.lone_ns;
    }
}

/// What took the time of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceKind {
    /// From the push until the read was begun.
    Plan,
    /// A piece waited for its rail.
    Queue,
    /// A network rail had a piece.
    Wire,
    /// A local disk had a piece.
    Disk,
    /// Landed bytes waited for their block table, or a stripe was hashed.
    Verify,
    /// The end of a stripe was written: a moment.
    Publish,
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceOf {
    /// The read.
    Read,
    /// One stripe.
    Stripe,
    /// One piece of a stripe.
    Piece,
    /// The fetch of a stripe's block table.
    Table,
}

/// One thing that happened to a traced read. Times are nanoseconds since its push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// What took the time.
    pub kind: TraceKind,
    /// What it was about.
    pub of: TraceOf,
    /// The stripe; of no meaning for the read.
    pub stripe: u32,
    /// The piece's first byte within its stripe.
    pub offset: u64,
    /// Bytes that the rail was asked for, whole blocks and all; of a stripe, those of its CQE.
    pub bytes: u64,
    /// The rail, where there is one.
    pub rail: Option<u8>,
    /// Which attempt of the piece, from 1; 0 where there is none.
    pub attempt: u8,
    /// How it ended.
    pub status: Status,
    /// When it began.
    pub from_ns: u64,
    /// When it was over.
    pub to_ns: u64,
}

/// What one rail did for a traced read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRail {
    /// Its name.
    pub name: Arc<str>,
    /// What kind of path it is.
    pub kind: RailKind,
    /// Bytes of the read that landed from it. Those of all rails add up to the bytes of the read,
    /// unless some did not match their checksum, or their stripe failed otherwise.
    pub bytes: u64,
    /// Bytes it was asked for and that landed, with block tables and the rest of blocks.
    pub moved_bytes: u64,
    /// Pieces that landed.
    pub pieces: u32,
    /// Pieces it was given, again or for the first time.
    pub attempts: u32,
    /// Pieces that did not land.
    pub failures: u32,
    /// Pieces it took over from a busier rail.
    pub steals: u32,
    /// Time with pieces of this read on it.
    pub busy_ns: u64,
    /// When it got its first piece and when its last came back, in nanoseconds since the push;
    /// `None` if it got none.
    pub span_ns: Option<(u64, u64)>,
    out: u32,
    busy_since: Nanos,
}

/// Where the time of one read went: plain data, kept by its ring until room is needed for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadTrace {
    /// Which read.
    pub read: ReadId,
    /// The caller's own number.
    pub user_data: u64,
    /// How it ended.
    pub status: Status,
    /// Bytes it was of.
    pub len_bytes: u64,
    /// Bytes it brought.
    pub bytes: u64,
    /// How its time is divided.
    pub stages: TraceStages,
    /// From its end until its last CQE was popped, in nanoseconds; not part of the stages.
    pub delivery_ns: u64,
    /// Pieces that were tried again.
    pub retries: u32,
    /// One entry per rail of the engine, in its order.
    pub rails: Vec<TraceRail>,
    /// What happened, in the order of its end, as far as there was room.
    pub records: Vec<TraceRecord>,
    /// Records that found no room.
    pub records_dropped: u64,
    pushed_at: Nanos,
    ended_at: Nanos,
    records_max: usize,
}

/// A piece on its way, as the home writes it down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceMark {
    pub(crate) of: TraceOf,
    pub(crate) stripe: u32,
    pub(crate) offset: u64,
    /// Bytes of the read that it brings.
    pub(crate) wanted_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) rail: u8,
    pub(crate) attempt: u8,
    pub(crate) since: Nanos,
}

impl ReadTrace {
    /// The time of the read that its last CQE calls its latency, in nanoseconds.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.stages.wall_ns()
    }

    /// What the read mostly waited for; `None` if it took no time.
    #[must_use]
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        self.stages.bottleneck()
    }

    /// The rail whose last piece came back last, if several had any.
    #[must_use]
    pub fn last_rail(&self) -> Option<usize> {
        let end = |rail: &TraceRail| rail.span_ns.map(|(_, last)| last);
        let used = self.rails.iter().filter(|rail| rail.span_ns.is_some()).count();
        let last = (0..self.rails.len()).max_by_key(|&rail| end(&self.rails[rail]));
        last.filter(|_| used > 1)
    }

    fn at(&self, now: Nanos) -> u64 {
        now.since(self.pushed_at)
    }

    fn write(&mut self, record: TraceRecord) {
        if self.records.len() < self.records_max {
            self.records.push(record);
        } else {
            self.records_dropped += 1;
        }
    }

    fn of_read(&self, kind: TraceKind, since: Nanos, now: Nanos) -> TraceRecord {
        TraceRecord {
            kind,
            of: TraceOf::Read,
            stripe: 0,
            offset: 0,
            bytes: self.len_bytes,
            rail: None,
            attempt: 0,
            status: Status::OK,
            from_ns: self.at(since),
            to_ns: self.at(now),
        }
    }

    fn of_piece(&self, kind: TraceKind, mark: &PieceMark, now: Nanos) -> TraceRecord {
        TraceRecord {
            kind,
            of: mark.of,
            stripe: mark.stripe,
            offset: mark.offset,
            bytes: mark.bytes,
            rail: Some(mark.rail),
            attempt: mark.attempt,
            status: Status::OK,
            from_ns: self.at(mark.since),
            to_ns: self.at(now),
        }
    }

    /// The read begins.
    pub(crate) fn begun(&mut self, len_bytes: u64, now: Nanos) {
        self.len_bytes = len_bytes;
        let record = self.of_read(TraceKind::Plan, self.pushed_at, now);
        self.write(record);
    }

    /// A rail is given a piece, which has waited since `mark.since`.
    pub(crate) fn ordered(&mut self, mark: &PieceMark, now: Nanos) {
        let at = self.at(now);
        let record = self.of_piece(TraceKind::Queue, mark, now);
        self.write(record);
        let Some(rail) = self.rails.get_mut(usize::from(mark.rail)) else { return };
        rail.attempts += 1;
        if rail.out == 0 {
            rail.busy_since = now;
        }
        rail.out += 1;
        let (first, last) = rail.span_ns.unwrap_or((at, at));
        rail.span_ns = Some((first, last.max(at)));
    }

    /// A rail gives a piece back that it has had since `mark.since`.
    pub(crate) fn landed(&mut self, mark: &PieceMark, status: Status, now: Nanos) {
        let at = self.at(now);
        let Some(rail) = self.rails.get_mut(usize::from(mark.rail)) else { return };
        rail.out = rail.out.saturating_sub(1);
        if rail.out == 0 {
            rail.busy_ns += now.since(rail.busy_since);
        }
        if let Some((_, last)) = &mut rail.span_ns {
            *last = at;
        }
        if status.is_ok() {
            rail.pieces += 1;
            rail.bytes += mark.wanted_bytes;
            rail.moved_bytes += mark.bytes;
        } else {
            rail.failures += 1;
        }
        let disk = rail.kind == RailKind::File;
        let kind = if disk { TraceKind::Disk } else { TraceKind::Wire };
        let record = TraceRecord { status, ..self.of_piece(kind, mark, now) };
        self.write(record);
    }

    /// A piece that landed at `mark.since` is proved.
    pub(crate) fn checked(&mut self, mark: &PieceMark, now: Nanos) {
        if now > mark.since {
            let record = self.of_piece(TraceKind::Verify, mark, now);
            self.write(record);
        }
    }

    pub(crate) fn stole(&mut self, rail: usize) {
        if let Some(rail) = self.rails.get_mut(rail) {
            rail.steals += 1;
        }
    }

    pub(crate) fn retried(&mut self) {
        self.retries += 1;
    }

    /// A stripe of several pieces begins to be hashed.
    pub(crate) fn hashes(&mut self, stripe: u32, bytes: u64, now: Nanos) {
        let record = self.of_read(TraceKind::Verify, now, now);
        self.write(TraceRecord { of: TraceOf::Stripe, stripe, bytes, ..record });
    }

    /// It is hashed: its record gets its end.
    pub(crate) fn hashed(&mut self, stripe: u32, now: Nanos) {
        let at = self.at(now);
        let hashing = self.records.iter_mut().rev().find(|record| {
            record.kind == TraceKind::Verify
                && record.of == TraceOf::Stripe
                && record.stripe == stripe
        });
        if let Some(record) = hashing {
            record.to_ns = at;
        }
    }

    /// The end of a stripe is written.
    pub(crate) fn published(&mut self, fields: &sq_cq::CqeFields, now: Nanos) {
        let record = self.of_read(TraceKind::Publish, now, now);
        self.write(TraceRecord {
            of: TraceOf::Stripe,
            stripe: fields.stripe.into(),
            bytes: fields.bytes,
            rail: fields.rail,
            attempt: fields.attempts,
            status: fields.status,
            ..record
        });
    }

    /// The read has ended.
    pub(crate) fn ended(&mut self, stages: TraceStages, fields: &sq_cq::CqeFields, now: Nanos) {
        self.stages = stages;
        self.user_data = fields.user_data;
        self.status = fields.read_status;
        self.bytes = fields.total_bytes;
        self.ended_at = now;
    }
}
