//! The data path of a verbs rail: RDMA READs posted in chains, completions polled.

mod park;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railring_dma::Part;
use railring_transport::{
    Completion, Link, LinkLimits, LinkStats, Nanos, Outcome, Refused, WorkRequest, WrId,
};
use sq_cq::Status;

use self::park::Parked;
use crate::ffi::{Ended, PushRefused, Read, ReadQueue, Wc, WcBatch};
use crate::keeper::Keeper;
use crate::options::{ENDPOINTS_MAX, Waiting};
use crate::shared::Shared;
use crate::targets::Target;
use crate::wc::{self, FLUSHED};

/// Of this many bytes unsignalled at most, or so many work requests, so that what is done is known
/// soon: signalling is cheap beside 64 KiB and dear beside 4.
const UNSIGNALLED_BYTES_MAX: u64 = 64 << 10;
const UNSIGNALLED_WRS_MAX: u32 = 8;
/// A failed queue pair flushes at once; one that has not by then is destroyed for its memory.
const DRAIN_NS: u64 = 500_000_000;
/// How often a poller looks at queues that drain and reads that wait for a connection, when nothing
/// else wakes it.
const ROUND_NS: u64 = 1_000_000;

/// The data path of a verbs rail. It belongs to one poller.
pub struct VerbsLink {
    shared: Arc<Shared>,
    limits: LinkLimits,
    waiting: Waiting,
    #[cfg(feature = "fault")]
    quiesce_at_once: bool,
    conns: Box<[Conn]>,
    /// Connections with something pushed and not posted.
    dirty: Vec<usize>,
    /// Connections with a queue that drains.
    dying: Vec<usize>,
    /// By `WrId::slot`: what it is used for.
    uses: Box<[Use]>,
    /// Reads that wait for a connection that was lost.
    parked: Vec<Parked>,
    /// When to look at them again.
    unpark_at: Nanos,
    ready: VecDeque<Completion>,
    batch: WcBatch,
    /// A queue was given away with memory in it, which is to come back.
    awaits_returned: bool,
    /// An event was asked for and not taken yet.
    armed: bool,
    now: Nanos,
    doorbells: u64,
    syscalls: u64,
    stale: u64,
    requeued: u64,
    /// Queue of the device that failed for good.
    failed: bool,
    _keeper: Arc<Keeper>,
}

impl std::fmt::Debug for VerbsLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsLink")
            .field("shared", &self.shared)
            .field("limits", &self.limits)
            .field("dying", &self.dying)
            .finish_non_exhaustive()
    }
}

/// One endpoint as the link sees it.
#[derive(Debug, Default)]
struct Conn {
    /// The epoch that `live` is of, or was.
    epoch: u32,
    live: Option<ReadQueue>,
    /// A queue whose queue pair failed, until all its memory is back.
    dying: Option<ReadQueue>,
    dying_since: Nanos,
    is_dirty: bool,
    proved: bool,
    unsignalled_bytes: u64,
    unsignalled_wrs: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    generation: u32,
    connection: u32,
    in_flight: bool,
    /// Its memory is wanted back whatever it costs.
    quiesced: bool,
}

/// How a link is set up.
pub(crate) struct LinkSetup {
    pub(crate) limits: LinkLimits,
    pub(crate) waiting: Waiting,
    #[cfg(feature = "fault")]
    pub(crate) quiesce_at_once: bool,
}

impl VerbsLink {
    pub(crate) fn new(shared: Arc<Shared>, setup: LinkSetup, keeper: Arc<Keeper>) -> Self {
        let wrs = setup.limits.outstanding_wrs_max as usize;
        VerbsLink {
            shared,
            limits: setup.limits,
            waiting: setup.waiting,
            #[cfg(feature = "fault")]
            quiesce_at_once: setup.quiesce_at_once,
            conns: (0..ENDPOINTS_MAX).map(|_| Conn::default()).collect(),
            dirty: Vec::with_capacity(2 * ENDPOINTS_MAX),
            dying: Vec::with_capacity(ENDPOINTS_MAX),
            uses: vec![Use::default(); wrs].into(),
            parked: Vec::with_capacity(wrs),
            unpark_at: Nanos(0),
            ready: VecDeque::with_capacity(wrs),
            batch: WcBatch::default(),
            awaits_returned: false,
            armed: false,
            now: Nanos(0),
            doorbells: 0,
            syscalls: 0,
            stale: 0,
            requeued: 0,
            failed: false,
            _keeper: keeper,
        }
    }

    /// How many bytes of the target the request is for; less than the part where it ends early.
    fn bytes_of(request: &WorkRequest, target: &Target) -> Result<u64, Status> {
        if !target.status.is_ok() {
            return Err(target.status);
        }
        let there = target.bytes.saturating_sub(request.offset);
        let bytes = there.min(request.part.len() as u64);
        if bytes < request.bytes_min { Err(Status::SHORT_READ) } else { Ok(bytes) }
    }

    /// Everything but pushing: what is read, or why nothing is.
    fn examine(&self, request: &WorkRequest) -> Result<(Target, u64), Status> {
        let sound = (request.part.len() as u64) <= self.limits.request_bytes_max
            && request.bytes_min <= request.part.len() as u64
            && request.wr.slot < self.limits.outstanding_wrs_max;
        if !sound {
            return Err(Status::INVALID_ARGUMENT);
        }
        if self.failed {
            return Err(NO_DEVICE);
        }
        // Also while the connection is made anew.
        let target = self.shared.targets.find(request.target).ok_or(NOT_CONNECTED)?;
        let bytes = Self::bytes_of(request, &target)?;
        Ok((target, bytes))
    }

    /// Follows the control side: drops a queue that was cut, takes one that was handed over.
    /// Returns whether there is one to post to.
    fn follow(&mut self, connection: usize) -> bool {
        // Acquire: pairs with the Release of `establish`, so that its queue is there.
        let epoch = self.shared.connections[connection].epoch.load(Ordering::Acquire);
        if self.conns[connection].epoch == epoch {
            return self.conns[connection].live.is_some();
        }
        self.end_live(connection);
        // Nobody reaps a link that has nothing in flight, so an empty queue goes here.
        self.watch_dying();
        if epoch == 0 || self.conns[connection].dying.is_some() {
            return false;
        }
        let slot = &self.shared.connections[connection];
        let Ok(mut handed) = slot.hand_over.try_lock() else { return false };
        let Some((epoch, queue)) = handed.take() else { return false };
        let conn = &mut self.conns[connection];
        *conn = Conn { epoch, live: Some(queue), is_dirty: conn.is_dirty, ..Conn::default() };
        true
    }

    /// The living queue of a connection dies: what was not posted comes back, the rest drains.
    fn end_live(&mut self, connection: usize) {
        let Some(mut queue) = self.conns[connection].live.take() else { return };
        let (ready, uses) = (&mut self.ready, &mut self.uses);
        queue.take_unposted(&mut |wr, part, ended| finish(ready, uses, wr, part, ended));
        let conn = &mut self.conns[connection];
        debug_assert!(conn.dying.is_none(), "a queue lives only beside none that dies");
        conn.dying = Some(queue);
        conn.dying_since = self.now;
        self.dying.push(connection);
    }

    /// Posts what a connection has, with one call; again where the device stopped at a request that
    /// it will never take.
    fn post(&mut self, connection: usize) {
        loop {
            let Some(queue) = &mut self.conns[connection].live else { return };
            let unposted = queue.unposted();
            if unposted == 0 {
                return;
            }
            self.doorbells += 1;
            self.syscalls += u64::from(self.shared.device.is_software());
            let Err((taken, error)) = queue.post() else { return };
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let is_full = errno == libc::ENOMEM && queue.has_posted();
            if is_full {
                // Completions make room.
                self.mark_dirty(connection);
                return;
            }
            let (ready, uses) = (&mut self.ready, &mut self.uses);
            if taken < unposted {
                queue.give_up_unposted(errno, &mut |wr, part, ended| {
                    finish(ready, uses, wr, part, ended);
                });
            }
            if taken == unposted || queue.is_within_a_read_now() {
                // Its doorbell failed, or half a read is in the device's hands.
                self.break_off(connection, (0, 0));
                return;
            }
        }
    }

    fn mark_dirty(&mut self, connection: usize) {
        let conn = &mut self.conns[connection];
        if !conn.is_dirty {
            conn.is_dirty = true;
            self.dirty.push(connection);
        }
    }

    /// Gives a living connection up, with its cause if it failed by itself.
    fn break_off(&mut self, connection: usize, cause: (u32, u32)) {
        let epoch = self.conns[connection].epoch;
        self.end_live(connection);
        self.shared.give_up(connection, epoch, cause);
    }

    /// Polls once; says whether anything came.
    fn fetch(&mut self) -> bool {
        match self.shared.cq.poll(&mut self.batch) {
            Ok(0) => false,
            Ok(_) => {
                while let Some(wc) = self.batch.take() {
                    self.settle(wc);
                }
                true
            }
            Err(error) => {
                if !self.failed {
                    self.failed = true;
                    self.shared.say(format!("the completion queue cannot be polled: {error}"));
                }
                false
            }
        }
    }

    /// One completion of the device: its read ends, and those it proves to be over.
    fn settle(&mut self, wc: Wc) {
        let wr = WrId::from_bits(wc.wr_id());
        let used = self.uses.get(wr.slot as usize).filter(|u| u.generation == wr.generation);
        let Some(used) = used.copied() else {
            self.stale += 1;
            return;
        };
        let connection = used.connection as usize;
        let (code, cause) = (wc.code(), (wc.code(), wc.vendor()));
        let conn = &mut self.conns[connection];
        let is_of =
            |queue: &Option<ReadQueue>| queue.as_ref().is_some_and(|queue| queue.qpn() == wc.qpn());
        let lives = is_of(&conn.live);
        let queue = if lives { &mut conn.live } else { &mut conn.dying };
        let Some(queue) = queue.as_mut().filter(|queue| queue.qpn() == wc.qpn()) else {
            self.stale += 1;
            return;
        };
        let (ready, uses) = (&mut self.ready, &mut self.uses);
        let known = queue.complete(wc, &mut |wr, part, ended| finish(ready, uses, wr, part, ended));
        self.stale += u64::from(!known);
        if code == 0 {
            if lives && !conn.proved {
                conn.proved = true;
                self.shared.connections[connection].proved.store(true, Ordering::Relaxed);
            }
        } else if lives {
            // The first failure is the cause; what is flushed after it is not.
            self.break_off(connection, if code == FLUSHED { (0, 0) } else { cause });
        } else if code != FLUSHED {
            self.shared.say(wc::explain(cause.0, cause.1));
        }
    }

    /// Hands queues that are empty, or will never be, over to be destroyed.
    fn watch_dying(&mut self) {
        let mut at = 0;
        while at < self.dying.len() {
            if self.bury(self.dying[at]) {
                self.dying.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn bury(&mut self, connection: usize) -> bool {
        let conn = &mut self.conns[connection];
        let Some(queue) = conn.dying.take() else { return true };
        let kept = if queue.is_empty() {
            self.shared.retire(queue)
        } else if self.now.since(conn.dying_since) >= DRAIN_NS {
            self.awaits_returned = true;
            self.shared.despair_of(queue)
        } else {
            Err(queue)
        };
        conn.dying = kept.err();
        conn.dying.is_none()
    }

    fn take_returned(&mut self) {
        let (ready, uses) = (&mut self.ready, &mut self.uses);
        let before = ready.len();
        self.shared.take_returned(&mut |wr, part| finish(ready, uses, wr, part, Ended::Flushed));
        self.awaits_returned &= self.ready.len() == before;
    }

    /// Takes a read that can be posted now, or that may wait until it can.
    fn admit(&mut self, request: WorkRequest, target: Target, bytes: u64) -> Result<(), Refused> {
        let connection = target.connection as usize;
        if self.follow(connection) {
            return self.push(request, target, bytes);
        }
        let refusal = self.refusal(connection);
        if !refusal.is_ok() {
            return Err(Refused::Failed { request, status: refusal });
        }
        if self.parked.len() == self.parked.capacity() {
            return Err(Refused::Failed { request, status: NOT_CONNECTED });
        }
        self.uses[request.wr.slot as usize] = Use {
            generation: request.wr.generation,
            connection: target.connection,
            in_flight: true,
            quiesced: false,
        };
        self.parked.push(Parked { request, since: self.now });
        Ok(())
    }

    /// Why reads over a connection that is down are refused; ok if they may wait.
    fn refusal(&self, connection: usize) -> Status {
        Status::from_raw(self.shared.connections[connection].refusal.load(Ordering::Relaxed))
    }

    fn push(&mut self, request: WorkRequest, target: Target, bytes: u64) -> Result<(), Refused> {
        let Some(keys) = self.shared.memory.keys_of(&request.part, bytes) else {
            return Err(Refused::Failed { request, status: NOT_REGISTERED });
        };
        let connection = target.connection as usize;
        let conn = &mut self.conns[connection];
        let Some(queue) = &mut conn.live else {
            return Err(Refused::Failed { request, status: NOT_CONNECTED });
        };
        let unsignalled_bytes = conn.unsignalled_bytes + bytes;
        let unsignalled_wrs = conn.unsignalled_wrs + 1;
        let signal =
            unsignalled_bytes >= UNSIGNALLED_BYTES_MAX || unsignalled_wrs >= UNSIGNALLED_WRS_MAX;
        let WorkRequest { wr, target: id, offset, bytes_min, part } = request;
        let length = u32::try_from(bytes).expect("at most `request_bytes_max`");
        let address = target.address + offset;
        let read = Read { wr, part, bytes: length, keys, address, rkey: target.rkey, signal };
        let refused = match queue.push(read) {
            Ok(()) => {
                conn.unsignalled_bytes = if signal { 0 } else { unsignalled_bytes };
                conn.unsignalled_wrs = if signal { 0 } else { unsignalled_wrs };
                self.uses[wr.slot as usize] = Use {
                    generation: wr.generation,
                    connection: target.connection,
                    in_flight: true,
                    quiesced: false,
                };
                self.mark_dirty(connection);
                return Ok(());
            }
            Err(refused) => refused,
        };
        let back = |part| WorkRequest { wr, target: id, offset, bytes_min, part };
        Err(match refused {
            PushRefused::Full(read) => Refused::Full(back(read.part)),
            PushRefused::Length(read) => {
                let request = back(read.part);
                Refused::Failed { request, status: Status::INVALID_ARGUMENT }
            }
        })
    }
}

/// ENOTCONN: there is no connection now; another rail, or a later attempt, may have one.
const NOT_CONNECTED: Status = Status::from_errno(libc::ENOTCONN);
/// EFAULT: the memory is not registered with this rail.
const NOT_REGISTERED: Status = Status::from_errno(libc::EFAULT);
/// ENODEV: the device failed.
const NO_DEVICE: Status = Status::from_errno(libc::ENODEV);

/// A read is over: its completion waits to be reaped.
fn finish(ready: &mut VecDeque<Completion>, uses: &mut [Use], wr: WrId, part: Part, ended: Ended) {
    let Some(used) = uses.get_mut(wr.slot as usize) else { return };
    let cancelled = Outcome::Failed { status: Status::CANCELLED, vendor: 0 };
    let outcome = match ended {
        Ended::Done { bytes } => Outcome::Done { bytes: bytes.into() },
        Ended::Failed { code, vendor } => Outcome::Failed { status: wc::status_of(code), vendor },
        Ended::Flushed if used.quiesced => cancelled,
        Ended::Flushed => Outcome::Flushed,
        Ended::Refused { errno } => {
            Outcome::Failed { status: Status::from_errno(errno), vendor: 0 }
        }
    };
    used.in_flight = false;
    ready.push_back(Completion { wr, part, outcome });
}

impl Link for VerbsLink {
    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        match self.examine(&request) {
            Err(status) => Err(Refused::Failed { request, status }),
            Ok((_, 0)) => {
                let WorkRequest { wr, part, .. } = request;
                let outcome = Outcome::Done { bytes: 0 };
                self.ready.push_back(Completion { wr, part, outcome });
                Ok(())
            }
            Ok((target, bytes)) => self.admit(request, target, bytes),
        }
    }

    /// One doorbell per connection that has something.
    fn commit(&mut self, now: Nanos) {
        self.now = now;
        for at in 0..self.dirty.len() {
            let connection = self.dirty[at];
            let conn = &mut self.conns[connection];
            conn.is_dirty = false;
            (conn.unsignalled_bytes, conn.unsignalled_wrs) = (0, 0);
        }
        // Those that the device takes only in part are put behind the others, for the next time.
        let count = self.dirty.len();
        for at in 0..count {
            self.post(self.dirty[at]);
        }
        self.dirty.drain(..count);
    }

    fn has_uncommitted(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        self.now = now;
        if self.awaits_returned {
            self.take_returned();
        }
        if !self.parked.is_empty() && now >= self.unpark_at {
            self.unpark();
        }
        let mut reaped = 0;
        loop {
            while reaped < budget {
                let Some(completion) = self.ready.pop_front() else { break };
                self.requeued += u64::from(completion.outcome == Outcome::Flushed);
                sink(completion);
                reaped += 1;
            }
            if reaped == budget || !self.fetch() {
                break;
            }
        }
        if !self.dying.is_empty() {
            self.watch_dying();
        }
        reaped
    }

    /// Ends a read that waits for its connection. Of others nothing: a device cannot drop one
    /// request of a queue pair.
    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.now = now;
        self.unpark_one(wr);
    }

    /// Makes the queue pair fail, unless the read is over by itself: what it flushes is quiet.
    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.now = now;
        if self.unpark_one(wr) {
            return;
        }
        let Some(used) = self.uses.get_mut(wr.slot as usize) else { return };
        if used.generation != wr.generation || !used.in_flight {
            return;
        }
        used.quiesced = true;
        let connection = used.connection as usize;
        #[cfg(feature = "fault")]
        if self.quiesce_at_once {
            let conn = &mut self.conns[connection];
            let queues = [&mut conn.live, &mut conn.dying];
            let taken = queues.into_iter().flatten().find_map(|q| q.take_though_not_over(wr));
            if let Some(part) = taken {
                finish(&mut self.ready, &mut self.uses, wr, part, Ended::Flushed);
            }
            return;
        }
        let holds = self.conns[connection].live.as_ref().is_some_and(|queue| queue.holds(wr));
        if holds {
            self.break_off(connection, (0, 0));
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match self.waiting {
            Waiting::Adaptive => self.shared.cq.event_fd(),
            Waiting::Polling => None,
        }
    }

    /// Asks for the event, then polls again: a completion that came before is not reported by it.
    fn arm(&mut self) -> bool {
        if !self.ready.is_empty() {
            return false;
        }
        let software = u64::from(self.shared.device.is_software());
        if self.armed {
            self.syscalls += 1;
            self.armed = self.shared.cq.take_event() == 0;
        }
        if !self.armed {
            self.syscalls += software;
            if self.shared.cq.arm().is_err() {
                return false;
            }
            self.armed = true;
        }
        self.fetch();
        self.ready.is_empty()
    }

    fn next_event(&self) -> Option<Nanos> {
        let waits = self.awaits_returned || !self.dying.is_empty() || !self.parked.is_empty();
        waits.then(|| self.now.after(ROUND_NS))
    }

    fn stats(&self) -> LinkStats {
        let device = &self.shared.device;
        let kind = if device.is_software() { "software RDMA" } else { "RDMA" };
        let waiting = match self.waiting {
            Waiting::Adaptive => "adaptive",
            Waiting::Polling => "polled",
        };
        let agreed = crate::shared::lock(&self.shared.agreed).clone();
        let backend = format!(
            "{kind} READ on {} from {}, {waiting}, completion queue of {}{}{agreed}",
            self.shared.name,
            self.shared.dial.from,
            self.shared.cq.entries(),
            if agreed.is_empty() { "" } else { ", " },
        );
        LinkStats {
            backend,
            stale_completions: self.stale,
            resubmissions: self.requeued,
            fixed_fallbacks: 0,
            syscalls: self.syscalls,
            doorbells: self.doorbells,
        }
    }
}
