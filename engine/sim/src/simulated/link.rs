//! The data path of a simulated rail: admission to the device and back, by the contract of `Link`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railring_transport::{
    Completion, Link, LinkLimits, LinkStats, Nanos, Outcome, Refused, WorkRequest, WrId,
};
use sq_cq::Status;

use crate::simulated::config::Misuse;
use crate::simulated::control::RailShared;
use crate::simulated::device::Device;
use crate::simulated::dice::Opportunity;
use crate::simulated::fault::{Fault, FaultKind, FaultRule, Site};
use crate::simulated::flight::{Flight, Stage, Target};
use crate::simulated::stats::bump;
use crate::simulated::store::lock;

const EFAULT: i32 = 14;
/// The rail has lost all its connections, not one peer.
const ENETDOWN: i32 = 100;
/// When a caller does well to try again what found no room without a reason.
const RETRY_NS: u64 = 1_000;

/// The data path of one simulated rail. All its time comes from the `now` it is given, all its
/// randomness from the world's seed and the rail's name.
#[derive(Debug)]
pub struct SimLink {
    shared: Arc<RailShared>,
    limits: LinkLimits,
    device: Device,
    queued: VecDeque<WrId>,
    /// When to try again what the device did not take.
    retry_at: Option<Nanos>,
    doorbells: u64,
    /// Whether some rule makes calls panic.
    may_panic: bool,
}

/// What the device does with a batch.
#[derive(Clone, Copy, Debug)]
struct Doorbell {
    /// How many it takes, from the first on.
    accepted: usize,
    /// Why it refuses the next one, if it does.
    refused: Option<Status>,
}

impl SimLink {
    pub(crate) fn new(shared: Arc<RailShared>, seed: u64) -> Self {
        let limits = shared.config.limits();
        let panics = |rule: &FaultRule| rule.fault.kind() == FaultKind::Panic;
        SimLink {
            may_panic: shared.config.faults.rules.iter().any(panics),
            device: Device::new(Arc::clone(&shared), seed),
            queued: VecDeque::with_capacity(limits.outstanding_wrs_max as usize),
            retry_at: None,
            doorbells: 0,
            limits,
            shared,
        }
    }

    /// When to try again what the device did not take; no descriptor would tell.
    #[must_use]
    pub fn retries_at(&self) -> Option<Nanos> {
        self.retry_at
    }

    /// A call of the data path begins: here a driver with a bug panics.
    fn begin(&mut self) {
        if !self.may_panic {
            return;
        }
        let mut struck = false;
        let opportunity = Opportunity { site: Site::Call, now: self.device.now, endpoint: None };
        self.device.dice.roll(opportunity, |_, _| struck = true);
        if struck {
            self.shared.counters.fire(FaultKind::Panic);
            // Not by the hook that shows panics: this one is wanted.
            std::panic::resume_unwind(Box::new("a simulated link panics"));
        }
    }

    /// What keeps a request from being queued, faults aside.
    fn examine(&self, request: &WorkRequest) -> Result<Target, Status> {
        let WorkRequest { part, offset, .. } = request;
        let aligned = |value: u64, bytes: u32| value.is_multiple_of(u64::from(bytes));
        let alignment = self.limits.alignment;
        let address = part.address().addr().get() as u64;
        let bytes = part.len() as u64;
        let fits = bytes <= self.limits.request_bytes_max
            && aligned(*offset, alignment.offset_bytes)
            && aligned(bytes, alignment.length_bytes)
            && aligned(address, alignment.memory_bytes);
        if !fits {
            return Err(Status::INVALID_ARGUMENT);
        }
        if !lock(&self.shared.registered).contains_key(&part.region()) {
            return Err(Status::from_errno(EFAULT));
        }
        if self.device.now < self.device.down_until {
            return Err(Status::from_errno(ENETDOWN));
        }
        lock(&self.shared.targets).get(request.target).cloned().ok_or(Status::INVALID_ARGUMENT)
    }

    /// The fault of queueing that strikes, if one does.
    fn queue_fault(&mut self, endpoint: &str) -> Option<Fault> {
        let mut struck = None;
        let opportunity =
            Opportunity { site: Site::Queue, now: self.device.now, endpoint: Some(endpoint) };
        self.device.dice.roll(opportunity, |fault, _| struck = struck.or(Some(fault)));
        if let Some(fault) = struck {
            self.shared.counters.fire(fault.kind());
        }
        struck
    }

    /// Whether the caller kept the limits; if not, this panics or asks for the request to be
    /// refused.
    fn has_room(&self, wr: WrId) -> bool {
        let (held, max) = (self.device.parts.held(), self.limits.outstanding_wrs_max);
        let kept = held < max && wr.slot < max;
        assert!(
            kept || self.shared.config.misuse == Misuse::Refuse,
            "rail {} granted {max} requests; {wr:?} was queued with {held} outstanding",
            self.shared.config.name
        );
        kept
    }

    fn admit(&mut self, request: WorkRequest, target: Target) -> Result<(), Refused> {
        let flight = Flight::new(target, &request);
        let WorkRequest { wr, target, offset, bytes_min, part } = request;
        if let Err((part, _)) = self.device.parts.insert(wr, part, flight) {
            let misuse = self.shared.config.misuse;
            assert!(misuse == Misuse::Refuse, "{wr:?} was queued while its slot is in flight");
            let request = WorkRequest { wr, target, offset, bytes_min, part };
            return Err(Refused::Failed { request, status: Status::INVALID_ARGUMENT });
        }
        self.device.enlist(wr);
        self.queued.push_back(wr);
        let held = u64::from(self.device.parts.held());
        self.shared.counters.outstanding.store(held, Ordering::Relaxed);
        self.shared.counters.outstanding_peak.fetch_max(held, Ordering::Relaxed);
        Ok(())
    }

    /// What becomes of the queued requests at this doorbell.
    fn doorbell(&mut self) -> Doorbell {
        let count = self.queued.len();
        let mut doorbell = Doorbell { accepted: count, refused: None };
        let opportunity =
            Opportunity { site: Site::Doorbell, now: self.device.now, endpoint: None };
        let mut strikes = Vec::new();
        self.device.dice.roll(opportunity, |fault, salt| strikes.push((fault, salt)));
        for (fault, salt) in strikes {
            let few = usize::try_from(salt % count as u64).expect("below a usize");
            let refused = match fault {
                Fault::PostRefused { status } => Some(status),
                _ => None,
            };
            if few < doorbell.accepted {
                doorbell = Doorbell { accepted: few, refused };
                self.shared.counters.fire(fault.kind());
            }
        }
        doorbell
    }

    /// Gives `wr` back if the device does not know of it yet; returns whether that was so.
    fn unqueue(&mut self, wr: WrId) -> bool {
        let Some((_, flight)) = self.device.parts.get_mut(wr) else { return false };
        if flight.stage != Stage::Queued {
            return false;
        }
        self.queued.retain(|queued| *queued != wr);
        self.device.return_queued(wr, Status::CANCELLED);
        true
    }

    fn count(&self, outcome: Outcome) {
        let counters = &self.shared.counters;
        match outcome {
            Outcome::Done { bytes } => {
                bump(&counters.completed, 1);
                bump(&counters.delivered_bytes, bytes);
            }
            Outcome::Failed { .. } => bump(&counters.failed, 1),
            Outcome::Flushed => bump(&counters.flushed, 1),
        }
        counters.outstanding.store(u64::from(self.device.parts.held()), Ordering::Relaxed);
    }
}

impl Link for SimLink {
    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        self.begin();
        if !self.has_room(request.wr) {
            return Err(Refused::Full(request));
        }
        let target = match self.examine(&request) {
            Ok(target) => target,
            Err(status) => return Err(Refused::Failed { request, status }),
        };
        match self.queue_fault(&target.source.endpoint) {
            Some(Fault::PostError { status }) => Err(Refused::Failed { request, status }),
            Some(_) => {
                self.retry_at = Some(self.device.now.after(RETRY_NS));
                Err(Refused::Full(request))
            }
            None => self.admit(request, target),
        }
    }

    fn commit(&mut self, now: Nanos) {
        self.begin();
        self.device.advance(now);
        self.retry_at = None;
        if self.queued.is_empty() {
            return;
        }
        if now < self.device.reconnecting_until {
            self.retry_at = Some(self.device.reconnecting_until);
            return;
        }
        self.doorbells += 1;
        let Doorbell { accepted, refused } = self.doorbell();
        for _ in 0..accepted {
            let Some(wr) = self.queued.pop_front() else { break };
            // Posting may break the connection, so this is asked for each.
            if now < self.device.down_until {
                self.device.return_queued(wr, Status::from_errno(ENETDOWN));
            } else {
                self.device.post(wr);
            }
        }
        if let Some((status, wr)) = refused.zip(self.queued.front().copied()) {
            self.queued.pop_front();
            self.device.return_queued(wr, status);
        }
        if !self.queued.is_empty() {
            self.retry_at = Some(now.after(RETRY_NS));
        }
    }

    fn has_uncommitted(&self) -> bool {
        !self.queued.is_empty()
    }

    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        self.begin();
        self.device.advance(now);
        if self.shared.lets_go.load(Ordering::Relaxed) {
            self.device.let_all_go();
        }
        self.retry_at = self.retry_at.filter(|at| *at > now);
        let mut count = 0;
        while count < budget {
            let Some(completion) = self.device.completed.pop_front() else { break };
            // A completion that belongs to nobody is counted by the table and brings nothing.
            let Some((part, _)) = self.device.parts.take(completion.wr) else { continue };
            self.device.discharge(completion.wr);
            self.count(completion.outcome);
            count += 1;
            sink(Completion { wr: completion.wr, part, outcome: completion.outcome });
        }
        count
    }

    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.device.advance(now);
        if !self.unqueue(wr) {
            self.device.cancel(wr);
        }
    }

    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.device.advance(now);
        if !self.unqueue(wr) {
            self.device.quiesce(wr);
        }
    }

    fn arm(&mut self) -> bool {
        self.device.completed.is_empty()
    }

    fn next_event(&self) -> Option<Nanos> {
        let hung = self.shared.lets_go.load(Ordering::Relaxed) && self.device.has_hung();
        let let_go = hung.then_some(self.device.now);
        [self.device.next_event(), self.retry_at, let_go].into_iter().flatten().min()
    }

    fn stats(&self) -> LinkStats {
        LinkStats {
            backend: "simulated".into(),
            stale_completions: self.device.parts.stale(),
            doorbells: self.doorbells,
            ..LinkStats::default()
        }
    }
}
