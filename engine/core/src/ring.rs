//! The caller's ring: reads go in with their leases, completions come out with them.

mod stats;
mod traced;

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use railring_dma::{Lease, Receipt, RegionId};
use railring_transport::Nanos;
use sq_cq::{CallerEnd, CallerWaker, CancelOutcome, Cqe, CqeFlags, ReadId, SqeFlags, Status};

use crate::home::Attached;
use crate::loans::{Loans, lend, repay, take_back};
use crate::mail::SOURCE_CONTROL;
use crate::memory::{PartList, Returned};
use crate::object::{Object, Opened};
use crate::poller::Control;
use crate::push::{self, PushError, Refused};
use crate::read::{Destination, Read, Scatter};
use crate::shared::{Desk, Shared};
use crate::slab::NONE;
use crate::trace::{TraceConfig, Traces};

pub use stats::RingStats;

/// Who turns the pollers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// Threads of the engine.
    Threads,
    /// The caller, with `InlineEngine::turn`.
    Caller,
}

/// How large a ring is and how its caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Reads pushed and not yet taken by the poller. A power of two. Default 256.
    pub sq_entries: u32,
    /// CQEs of all accepted reads. A power of two. Default 1,024.
    pub cq_entries: u32,
    /// How long `wait` spins before it sleeps. Default 20 us.
    pub spin: Duration,
    /// The poller that is to be the ring's home; by default the one with the fewest rings.
    pub poller: Option<u32>,
    /// Room for traces of reads that ask for one. Default: none.
    pub trace: TraceConfig,
}

impl Default for RingConfig {
    fn default() -> Self {
        let spin = Duration::from_micros(20);
        let trace = TraceConfig::default();
        RingConfig { sq_entries: 256, cq_entries: 1024, spin, poller: None, trace }
    }
}

/// Why waiting made no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// An inline engine has no threads that could complete anything meanwhile.
    #[error("this ring's engine is inline: wait with InlineEngine::wait, which makes its turns")]
    Inline,
    /// The ring's poller is gone; what was completed before can still be popped.
    #[error("the engine is gone; what it completed before can still be popped")]
    EngineGone,
}

struct Held {
    _opened: Arc<Opened>,
    reads: u32,
}

/// One end of a ring pair, of one caller. `Send`, not `Sync`: one thread at a time.
///
/// Dropping it cancels its reads. Their memory goes back to its pool when it is quiet.
pub struct Ring {
    end: CallerEnd<Attached, Returned>,
    open: Box<[Option<Loans>]>,
    /// Objects that accepted reads are of, by slot of their handle: they stay open until the last
    /// of their reads was popped, whatever becomes of the caller's handles.
    objects: Vec<Option<Held>>,
    /// The object of each accepted read, by slot of its handle.
    object_of: Box<[u32]>,
    shared: Arc<Shared>,
    place: RingPlace,
    /// The region that the last lease was of: most are.
    region: Option<KnownRegion>,
    /// When the present batch was begun; stamped once per batch.
    batch_at: Option<Nanos>,
    traces: Option<Box<Traces>>,
    spin: Duration,
    driver: Driver,
}

#[derive(Clone, Copy, Debug)]
struct KnownRegion {
    id: RegionId,
    start: usize,
    end: usize,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.end.in_flight())
            .field("cq_capacity", &self.end.cq_capacity())
            .finish_non_exhaustive()
    }
}

/// One CQE, with what it brought back. Derefs to the [`Cqe`].
#[derive(Debug)]
pub struct Completion {
    cqe: Cqe,
    receipt: Option<Receipt>,
    lead_bytes: u64,
    back: Option<Destination>,
}

impl Deref for Completion {
    type Target = Cqe;
    #[inline]
    fn deref(&self) -> &Cqe {
        &self.cqe
    }
}

impl Completion {
    /// The read's lease. Only the last CQE of a read has it, and that of a read that ended as
    /// `Stuck` has not.
    #[must_use]
    #[inline]
    pub fn into_lease(self) -> Option<Lease> {
        match self.back {
            Some(Destination::Lease(lease)) => Some(lease),
            _ => None,
        }
    }

    /// The leases of a scattered read. Only its last CQE has them.
    #[must_use]
    pub fn into_scatter(self) -> Option<Scatter> {
        match self.back {
            Some(Destination::Scatter(scatter)) => Some(scatter),
            _ => None,
        }
    }

    /// The read's outcome, if this is its last CQE.
    #[must_use]
    #[inline]
    pub fn ended(&self) -> Option<Status> {
        self.cqe.read_status()
    }
}

impl Ring {
    pub(crate) fn new(
        end: CallerEnd<Attached, Returned>,
        shared: Arc<Shared>,
        place: RingPlace,
        RingConfig { spin, trace, .. }: RingConfig,
        driver: Driver,
    ) -> Self {
        let open = (0..end.cq_capacity()).map(|_| None).collect();
        let (objects, object_of) = (Vec::new(), vec![NONE; end.cq_capacity() as usize].into());
        let (region, batch_at) = (None, None);
        let traces = Traces::new(trace, || shared.rail_infos());
        Ring {
            end,
            open,
            objects,
            object_of,
            shared,
            place,
            region,
            batch_at,
            traces,
            spin,
            driver,
        }
    }

    /// Accepts a read, or gives it back. Not visible to the engine before [`Ring::submit`].
    ///
    /// # Errors
    /// [`PushError::Full`] means "pop and try again", and only that; every other cause is final.
    #[expect(clippy::result_large_err, reason = "a refused read comes back whole, lease and all")]
    #[inline]
    pub fn push<'o>(&mut self, mut read: Read<'o>) -> Result<ReadId, Refused<'o>> {
        if read.flags.contains(SqeFlags::TRACE) {
            return self.push_traced(read);
        }
        let checked = match push::check(&read, &self.shared, self.end.slots_per_read_max()) {
            Ok(checked) => checked,
            Err(why) => return Err(Refused { why, read }),
        };
        if let Err(why) = self.check_regions(&read) {
            return Err(Refused { why, read });
        }
        let pushed_at = match self.batch_at {
            Some(at) => at,
            None => *self.batch_at.insert(self.shared.clock.now()),
        };
        let object = read.object;
        let token = read.token.take();
        let (memory, loans) = lend(read.into.take(), checked.bytes);
        let attached = Attached { memory, token, pushed_at };
        let sqe = match read.deadline.at(pushed_at) {
            0 => checked.sqe,
            at => checked.sqe.deadline_ns(at),
        };
        match self.end.push(sqe, checked.slots, attached) {
            Ok(id) => {
                self.open[id.slot as usize] = loans;
                if let Some(object) = object {
                    self.hold_object(id.slot, object);
                }
                Ok(id)
            }
            Err(refused) => {
                let Attached { memory, token, .. } = refused.attachment;
                read.token = token;
                read.into = take_back(loans, memory);
                Err(Refused { why: refused.why.into(), read })
            }
        }
    }

    #[inline]
    fn hold_object(&mut self, slot: u32, object: &Object) {
        let at = object.handle().slot;
        if self.objects.len() <= at as usize {
            self.objects.resize_with(at as usize + 1, || None);
        }
        let held = self.objects[at as usize]
            .get_or_insert_with(|| Held { _opened: Arc::clone(&object.opened), reads: 0 });
        held.reads += 1;
        self.object_of[slot as usize] = at;
    }

    /// The last CQE of a read was popped.
    #[inline]
    fn release_object(&mut self, slot: usize) {
        let at = std::mem::replace(&mut self.object_of[slot], NONE);
        let Some(entry) = self.objects.get_mut(at as usize) else { return };
        if let Some(held) = entry {
            held.reads -= 1;
            if held.reads == 0 {
                *entry = None;
            }
        }
    }

    #[inline]
    fn check_regions(&mut self, read: &Read<'_>) -> Result<(), PushError> {
        match &read.into {
            None => Ok(()),
            Some(Destination::Lease(lease)) => self.check_region(lease),
            Some(Destination::Scatter(scatter)) => {
                scatter.leases.iter().try_for_each(|lease| self.check_region(lease))
            }
        }
    }

    /// Memory must be registered with this engine's rails.
    #[inline]
    fn check_region(&mut self, lease: &Lease) -> Result<(), PushError> {
        let (id, address) = (lease.region(), lease.address().as_ptr() as usize);
        let known = self.region.as_ref().is_some_and(|known| {
            known.id == id && known.start <= address && address + lease.len() <= known.end
        });
        if known { Ok(()) } else { self.look_up_region(lease) }
    }

    #[cold]
    fn look_up_region(&mut self, lease: &Lease) -> Result<(), PushError> {
        let id = lease.region();
        let (start, bytes) =
            self.shared.registered_region(id).ok_or(PushError::UnregisteredMemory)?;
        let known = KnownRegion { id, start, end: start + bytes };
        let address = lease.address().as_ptr() as usize;
        if address < start || address + lease.len() > known.end {
            return Err(PushError::UnregisteredMemory);
        }
        self.region = Some(known);
        Ok(())
    }

    /// Shows everything pushed to the engine and wakes it if it sleeps. Returns how many reads that
    /// were.
    #[inline]
    pub fn submit(&mut self) -> u32 {
        self.batch_at = None;
        self.end.submit()
    }

    /// The next CQE. Pushing between pops is fine.
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        loop {
            let (cqe, returned) = self.end.pop()?;
            let slot = cqe.read_id().slot as usize;
            let Returned { part, lead_bytes, mut list } = returned;
            let receipt = part.and_then(|part| repay(&mut self.open[slot], part));
            if cqe.flags().contains(CqeFlags::INTERNAL) {
                continue;
            }
            let back = if cqe.has_more() {
                None
            } else {
                self.release_object(slot);
                if list.is_some() {
                    list = self.keep_trace(cqe.read_id(), list);
                }
                self.settle(slot, list)
            };
            return Some(Completion { cqe, receipt, lead_bytes, back });
        }
    }

    #[inline]
    fn settle(&mut self, slot: usize, list: Option<Box<PartList>>) -> Option<Destination> {
        match self.open[slot].take()? {
            Loans::One(loan) => match loan.settle() {
                Ok(lease) => Some(Destination::Lease(lease)),
                Err(loan) => {
                    self.shared.impound.hold(loan);
                    None
                }
            },
            Loans::Many(mut scatter) => {
                for loan in scatter.loans.drain(..) {
                    match loan.settle() {
                        Ok(lease) => scatter.leases.push(lease),
                        Err(loan) => self.shared.impound.hold(loan),
                    }
                }
                scatter.parts = list.unwrap_or_default();
                Some(Destination::Scatter(scatter))
            }
        }
    }

    /// The bytes of a stripe that succeeded, readable now, before its read ends. `None` for a
    /// stripe that failed, one that lies in several leases, one of a quiet read of several (whose
    /// bytes are in its lease at its end), and when the read has ended since.
    #[must_use]
    pub fn bytes<'a>(&'a self, completion: &'a Completion) -> Option<&'a [u8]> {
        let (cqe, receipt) = (&completion.cqe, completion.receipt.as_ref()?);
        if !cqe.status().is_ok() {
            return None;
        }
        let stripe = usize::try_from(cqe.bytes()).ok()?;
        let lead = usize::try_from(completion.lead_bytes).ok()?;
        let returned = match &completion.back {
            Some(Destination::Lease(lease)) => {
                let at = receipt.address() - lease.address().as_ptr() as usize;
                lease.as_slice().get(at..at + receipt.len())?
            }
            Some(Destination::Scatter(_)) => return None,
            None => match self.open[cqe.read_id().slot as usize].as_ref()? {
                Loans::One(loan) => loan.bytes(receipt)?,
                Loans::Many(scatter) => {
                    scatter.loans.iter().find_map(|loan| loan.bytes(receipt))?
                }
            },
        };
        // Less than its bytes came with it if the stripe straddles leases.
        returned.get(lead..)?.get(..stripe)
    }

    /// Asks for the read to end. It ends as `Cancelled`, or as it would have if it was first.
    /// O(1), takes no CQ slot. Returns whether the engine was told.
    pub fn cancel(&mut self, id: ReadId) -> bool {
        self.batch_at = None;
        self.end.cancel(id) == CancelOutcome::Sent
    }

    /// Waits until at least `min` CQEs can be popped, or all that are outstanding, for at most
    /// `timeout`. Submits first. Returns how many can be popped.
    ///
    /// # Errors
    /// The engine is inline, or gone with nothing left to pop.
    pub fn wait(&mut self, min: u32, timeout: Duration) -> Result<usize, WaitError> {
        if self.driver == Driver::Caller {
            return Err(WaitError::Inline);
        }
        self.batch_at = None;
        let ready = self.end.wait(min, Some(timeout), self.spin);
        if ready == 0 && self.end.is_closed() && self.end.cq_len() == 0 {
            return Err(WaitError::EngineGone);
        }
        Ok(ready)
    }

    /// Waits for one CQE, for `stop` to say so, or for `timeout` to pass.
    pub(crate) fn wait_unless(&mut self, timeout: Duration, stop: &dyn Fn() -> bool) -> usize {
        self.batch_at = None;
        self.end.wait_unless(1, Some(timeout), self.spin, stop)
    }

    /// Makes this ring's descriptor readable, from any thread: for an event loop that is to look at
    /// something else than CQEs, too.
    #[must_use]
    pub fn waker(&self) -> CallerWaker {
        self.end.waker()
    }

    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// Reads pushed and not yet taken by the poller.
    pub(crate) fn sq_waiting(&self) -> u32 {
        self.end.sq_len()
    }

    /// For an event loop: asks that the descriptor become readable when there is something to pop.
    /// `true`: there is something already, do not wait. After the descriptor was readable, call
    /// [`Ring::clear_event`], pop everything, and arm again.
    pub fn arm(&mut self) -> bool {
        self.batch_at = None;
        self.end.arm()
    }

    /// Takes [`Ring::arm`] back.
    pub fn disarm(&mut self) {
        self.end.disarm();
    }

    /// Makes the descriptor unreadable again.
    pub fn clear_event(&mut self) {
        self.end.clear_event();
    }

    /// Reads accepted whose last CQE was not popped.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.end.in_flight()
    }

    /// CQEs that can be popped.
    #[must_use]
    pub fn ready(&self) -> u32 {
        self.end.cq_len()
    }

    /// CQ slots that accepted reads hold: at most so many CQEs can still come.
    pub(crate) fn outstanding(&self) -> u32 {
        self.end.reserved()
    }

    /// CQ slots not reserved by accepted reads.
    #[must_use]
    pub fn free_slots(&self) -> u32 {
        self.end.cq_capacity() - self.end.reserved()
    }

    /// The most stripes one read of this ring can have.
    #[must_use]
    pub fn stripes_max(&self) -> u32 {
        self.end.slots_per_read_max()
    }

    /// Pushes refused as full so far. Monotone.
    #[must_use]
    pub fn full_answers(&self) -> u64 {
        self.end.full_answers()
    }

    /// Whether a read's last CQE is still to be popped.
    #[must_use]
    pub fn is_live(&self, id: ReadId) -> bool {
        self.end.live(id)
    }

    /// Whether the poller of this ring is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.end.is_closed() || self.shared.failed.load(Ordering::Acquire)
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

/// Where a ring's other end is.
#[derive(Debug)]
pub(crate) struct RingPlace {
    pub(crate) desk: Arc<Desk>,
    pub(crate) seat: usize,
}

impl Ring {
    /// Leaves this end to the poller if reads are on their way to it: it takes their memory out.
    fn leave_end(&mut self) {
        if self.end.in_flight() == 0 || self.end.is_closed() {
            return;
        }
        // A stand-in of the smallest size; without descriptors for it, memory on its way leaks.
        let sizes = sq_cq::RingConfig { sq_entries: 1, cq_entries: 1, ..Default::default() };
        let bell = Arc::clone(&self.place.desk.bell);
        if let Ok((stand_in, _)) = sq_cq::pair(sizes, bell, SOURCE_CONTROL) {
            let end = Box::new(std::mem::replace(&mut self.end, stand_in));
            self.place.desk.tell(Control::Orphan { seat: self.place.seat, end });
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // What was pushed comes back by way of the engine only.
        self.submit();
        while self.pop().is_some() {}
        self.leave_end();
        for loans in &mut self.open {
            match loans.take() {
                None => {}
                Some(Loans::One(loan)) => self.shared.impound.hold(loan),
                Some(Loans::Many(scatter)) => {
                    scatter.loans.into_iter().for_each(|loan| self.shared.impound.hold(loan));
                }
            }
        }
    }
}
