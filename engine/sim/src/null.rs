//! The null rail: completes each request at the next reap and moves nothing, so that what is
//! measured over it is the engine alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railring_dma::{Part, Region, RegionId};
use railring_transport::{
    Alignment, Completion, ConnectError, ConnectionCounts, ControlStats, Link, LinkLimits,
    LinkStats, Nanos, Outcome, RailControl, RailInfo, RailKind, Refused, RegisterError, SourceRef,
    TargetId, WorkRequest, WrId,
};

use crate::refusal::RailConfigError;
use crate::targets::TargetTable;

const TARGETS_MAX: u32 = 1 << 20;

/// What a null rail pretends to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullConfig {
    /// Its name.
    pub name: String,
    /// Static weight, at least 1.
    pub weight: u32,
    /// Requests that may be queued or in flight at once, at least 1.
    pub outstanding_wrs_max: u32,
    /// Longest request in bytes, at least 1.
    pub request_bytes_max: u64,
    /// What it says requests must be aligned to, so that the work of alignment can be measured;
    /// it does not check. Each a power of two.
    pub alignment: Alignment,
}

impl NullConfig {
    /// A null rail with room for 4,096 requests of any length and alignment.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        NullConfig {
            name: name.into(),
            weight: 1,
            outstanding_wrs_max: 4096,
            request_bytes_max: u64::MAX,
            alignment: Alignment::NONE,
        }
    }
}

/// Makes null rails.
#[derive(Debug)]
pub struct NullRail;

impl NullRail {
    /// Both halves of a null rail.
    ///
    /// # Errors
    /// One [`RailConfigError`] per field that makes no sense.
    #[expect(clippy::new_ret_no_self, reason = "a rail is its two halves")]
    pub fn new(config: NullConfig) -> Result<(Arc<NullControl>, NullLink), RailConfigError> {
        RailConfigError::check_rail(&config.name, config.weight, config.alignment)?;
        RailConfigError::check_window(&config.name, config.outstanding_wrs_max)?;
        let limits = LinkLimits {
            outstanding_wrs_max: config.outstanding_wrs_max,
            request_bytes_max: config.request_bytes_max,
            alignment: config.alignment,
        };
        RailConfigError::check_request_bytes(&config.name, limits)?;
        let targets = Mutex::new(TargetTable::new(TARGETS_MAX));
        let control = NullControl { config, targets, connections: ConnectionCounts::default() };
        let slots = limits.outstanding_wrs_max.next_power_of_two();
        let slots = (0..slots).map(|_| None).collect();
        let link = NullLink { limits, slots, head: 0, committed: 0, tail: 0, doorbells: 0 };
        Ok((Arc::new(control), link))
    }
}

/// The control half of a null rail: reaches every endpoint and connects to anything.
#[derive(Debug)]
pub struct NullControl {
    config: NullConfig,
    targets: Mutex<TargetTable<()>>,
    connections: ConnectionCounts,
}

impl NullControl {
    fn targets(&self) -> MutexGuard<'_, TargetTable<()>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RailControl for NullControl {
    fn info(&self) -> RailInfo {
        RailInfo {
            kind: RailKind::Null,
            name: self.config.name.clone(),
            weight: self.config.weight,
            node: None,
            device: None,
            listeners: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn stats(&self) -> ControlStats {
        self.connections.with(0)
    }

    fn reaches(&self, _endpoint: &str) -> bool {
        true
    }

    fn register(&self, _region: &Region) -> Result<(), RegisterError> {
        Ok(())
    }

    fn unregister(&self, _region: RegionId) {}

    fn connect(&self, _source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        let mut targets = self.targets();
        let limit = targets.targets_max();
        let full = || ConnectError::TooManyTargets { rail: self.config.name.clone(), limit };
        let target = targets.insert(()).ok_or_else(full)?;
        self.connections.made();
        Ok(target)
    }

    fn disconnect(&self, target: TargetId) {
        if self.targets().remove(target).is_some() {
            self.connections.retired();
        }
    }
}

/// The data path of a null rail: a ring of requests, first in, first out. Nothing is checked that
/// costs an instruction, since every one is charged to the engine.
#[derive(Debug)]
pub struct NullLink {
    limits: LinkLimits,
    /// A power of two of them; a counter's low bits are its index.
    slots: Box<[Option<(WrId, Part)>]>,
    /// How many requests were ever given back, committed and queued; they wrap.
    head: u32,
    committed: u32,
    tail: u32,
    doorbells: u64,
}

/// Empties a run of slots in order.
#[inline]
fn give_back(slots: &mut [Option<(WrId, Part)>], sink: &mut dyn FnMut(Completion)) {
    for (wr, part) in slots.iter_mut().filter_map(Option::take) {
        let outcome = Outcome::Done { bytes: part.len() as u64 };
        sink(Completion { wr, part, outcome });
    }
}

impl Link for NullLink {
    fn limits(&self) -> LinkLimits {
        self.limits
    }

    #[inline]
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        if self.tail.wrapping_sub(self.head) >= self.limits.outstanding_wrs_max {
            return Err(Refused::Full(request));
        }
        let index = self.tail as usize & (self.slots.len() - 1);
        self.slots[index] = Some((request.wr, request.part));
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn commit(&mut self, _now: Nanos) {
        self.doorbells += u64::from(self.committed != self.tail);
        self.committed = self.tail;
    }

    #[inline]
    fn reap(&mut self, _now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let ready = self.committed.wrapping_sub(self.head) as usize;
        let count = ready.min(budget);
        let start = self.head as usize & (self.slots.len() - 1);
        let behind = self.slots.len() - start;
        // At most WINDOW_WRS_MAX, so nothing is cut off.
        self.head = self.head.wrapping_add(count as u32);
        give_back(&mut self.slots[start..][..count.min(behind)], sink);
        give_back(&mut self.slots[..count.saturating_sub(behind)], sink);
        count
    }

    fn cancel(&mut self, _wr: WrId, _now: Nanos) {
        // Completes at the next reap as it is.
    }

    fn quiesce(&mut self, _wr: WrId, now: Nanos) {
        self.commit(now);
    }

    fn arm(&mut self) -> bool {
        self.committed == self.head
    }

    fn next_event(&self) -> Option<Nanos> {
        (self.committed != self.head).then_some(Nanos(0))
    }

    fn stats(&self) -> LinkStats {
        LinkStats { backend: "null".into(), doorbells: self.doorbells, ..LinkStats::default() }
    }
}
