//! The caller's side of traces: room for them, made with the ring, and the last ones to have come
//! back.

use std::collections::VecDeque;
use std::sync::Arc;

use railring_transport::{Nanos, RailInfo};
use sq_cq::{ReadId, Status};

use super::{ReadTrace, TraceRail, TraceRecord, TraceStages};
use crate::loans::Loans;
use crate::memory::{Memory, PartList};

/// Room that a ring has for traces, allocated when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// Reads that can be traced at once; as many of the last traces are kept. A read beyond is not
    /// traced, and counted. Default 0: no traces, no memory, and a traced read is refused.
    pub reads: u32,
    /// Records of one read; those beyond are only counted. Default 256, of 48 B each.
    pub records: u32,
}

impl Default for TraceConfig {
    fn default() -> Self {
        TraceConfig { reads: 0, records: 256 }
    }
}

/// Most bytes of a ring's traces.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// More room for traces than a ring may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{reads} traces of {records} records each take {bytes} B, over the limit of {TRACE_BYTES_MAX} \
     B; ask for fewer (RingConfig::trace)"
)]
pub struct TraceTooLarge {
    reads: u32,
    records: u32,
    bytes: u64,
}

impl TraceConfig {
    pub(crate) fn check(&self, rails: usize) -> Result<(), TraceTooLarge> {
        let TraceConfig { reads, records } = *self;
        let record = u64::from(records).saturating_mul(size_of::<TraceRecord>() as u64);
        let rails = (rails * size_of::<TraceRail>()) as u64;
        let each = record + rails + (size_of::<ReadTrace>() + size_of::<PartList>()) as u64;
        let bytes = u64::from(reads).saturating_mul(each);
        if bytes > TRACE_BYTES_MAX {
            return Err(TraceTooLarge { reads, records, bytes });
        }
        Ok(())
    }
}

/// A ring's traces that are not under way.
#[expect(clippy::vec_box, reason = "they travel in their boxes")]
#[derive(Debug)]
pub(crate) struct Traces {
    /// Ended ones, the oldest first: the next to be overwritten.
    kept: VecDeque<Box<ReadTrace>>,
    free: Vec<Box<ReadTrace>>,
    /// Lists for reads into one lease, one for each trace.
    lists: Vec<Box<PartList>>,
    dropped: u64,
}

impl ReadTrace {
    fn empty(rails: &[RailInfo], records: u32) -> Self {
        let rail = |info: &RailInfo| TraceRail {
            name: Arc::from(info.name.as_str()),
            kind: info.kind,
            bytes: 0,
            moved_bytes: 0,
            pieces: 0,
            attempts: 0,
            failures: 0,
            steals: 0,
            busy_ns: 0,
            span_ns: None,
            out: 0,
            busy_since: Nanos(0),
        };
        ReadTrace {
            read: ReadId { slot: 0, generation: 0 },
            user_data: 0,
            status: Status::OK,
            len_bytes: 0,
            bytes: 0,
            stages: TraceStages::default(),
            delivery_ns: 0,
            retries: 0,
            rails: rails.iter().map(rail).collect(),
            records: Vec::with_capacity(records as usize),
            records_dropped: 0,
            pushed_at: Nanos(0),
            ended_at: Nanos(0),
            records_max: records as usize,
        }
    }

    fn clear(&mut self, pushed_at: Nanos) {
        let ReadTrace { rails, records, pushed_at: at, .. } = self;
        *at = pushed_at;
        records.clear();
        for rail in rails {
            (rail.bytes, rail.moved_bytes, rail.busy_ns) = (0, 0, 0);
            (rail.pieces, rail.attempts, rail.failures, rail.steals) = (0, 0, 0, 0);
            (rail.span_ns, rail.out, rail.busy_since) = (None, 0, Nanos(0));
        }
        (self.len_bytes, self.bytes, self.retries) = (0, 0, 0);
        (self.records_dropped, self.delivery_ns) = (0, 0);
    }
}

impl Traces {
    /// `None` if there are to be none.
    pub(crate) fn new(
        config: TraceConfig,
        rails: impl FnOnce() -> Vec<RailInfo>,
    ) -> Option<Box<Self>> {
        if config.reads == 0 {
            return None;
        }
        let rails = rails();
        let trace = |_| Box::new(ReadTrace::empty(&rails, config.records));
        let list = |_| Box::new(PartList { parts: Vec::with_capacity(1), trace: None });
        Some(Box::new(Traces {
            kept: VecDeque::with_capacity(config.reads as usize),
            free: (0..config.reads).map(trace).collect(),
            lists: (0..config.reads).map(list).collect(),
            dropped: 0,
        }))
    }

    /// Sends a trace along with a read's memory, if there is one: else the oldest of those that
    /// were kept. If all are under way, the read goes without.
    pub(crate) fn attach(&mut self, memory: Memory, pushed_at: Nanos) -> Memory {
        let Some(mut trace) = self.free.pop().or_else(|| self.kept.pop_front()) else {
            self.dropped += 1;
            return memory;
        };
        trace.clear(pushed_at);
        let mut list = match memory {
            Memory::Many(list) => list,
            Memory::One(part) => {
                let mut list = self.list();
                list.parts.push(part);
                list
            }
            Memory::None => self.list(),
        };
        list.trace = Some(trace);
        Memory::Many(list)
    }

    /// There is one for each trace that is not under way.
    fn list(&mut self) -> Box<PartList> {
        self.lists.pop().unwrap_or_default()
    }

    /// The memory of a push that was refused, as it was before a trace was sent along with it.
    pub(crate) fn detach(&mut self, memory: Memory, loans: Option<&Loans>) -> Memory {
        let Memory::Many(mut list) = memory else { return memory };
        self.free.extend(list.trace.take());
        if matches!(loans, Some(Loans::Many(_))) {
            return Memory::Many(list);
        }
        let part = list.parts.pop();
        self.keep_list(list);
        part.map_or(Memory::None, Memory::One)
    }

    /// The last CQE of a read was popped, and its trace came with it.
    pub(crate) fn keep(&mut self, read: ReadId, mut trace: Box<ReadTrace>, now: Nanos) {
        trace.read = read;
        trace.delivery_ns = now.since(trace.ended_at);
        self.kept.push_back(trace);
    }

    /// The list of a read into one lease came back.
    pub(crate) fn keep_list(&mut self, list: Box<PartList>) {
        if self.lists.len() < self.lists.capacity() {
            self.lists.push(list);
        }
    }

    pub(crate) fn find(&self, read: ReadId) -> Option<&ReadTrace> {
        self.kept.iter().rev().find(|trace| trace.read == read).map(|trace| &**trace)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &ReadTrace> {
        self.kept.iter().map(|trace| &**trace)
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}
