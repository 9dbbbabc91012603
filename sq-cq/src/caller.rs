//! Owns the caller's end of a ring pair: push, submit, wait, pop, cancel.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::pair::{Control, Gauges, IndexAddresses, OneThreadAtATime, SLOTS_PER_READ_MAX};
use crate::reads::{CancelOutcome, LiveReads};
use crate::ring::{Consumer, Producer};
use crate::sync::Arc;
use crate::{Cqe, ReadId, Sqe};

/// How often a spinning wait looks at the ring between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 32;

/// The caller's end of a ring pair. It belongs to one thread at a time: `Send`, not `Sync`, and
/// not `Clone`.
///
/// Dropping it publishes nothing more; what was pushed and not submitted is dropped with it, and
/// the poller learns that the ring is closed.
pub struct CallerEnd<A, B> {
    pub(crate) sq: Producer<Sqe, A>,
    pub(crate) cq: Consumer<Cqe, B>,
    pub(crate) cancels: Producer<ReadId, ()>,
    pub(crate) reads: LiveReads,
    /// CQ slots that no accepted read holds. Plain arithmetic: pushes take, pops give back, and
    /// both happen here.
    pub(crate) slots_free: u32,
    pub(crate) cq_entries: u32,
    pub(crate) control: Arc<Control>,
    pub(crate) one_thread_at_a_time: OneThreadAtATime,
}

/// Wakes a ring's caller out of [`CallerEnd::wait_unless`], from any thread, so that it asks its
/// `stop` again. Wakes nobody from [`CallerEnd::wait`]. `Send + Sync`.
#[derive(Debug, Clone)]
pub struct CallerWaker {
    control: Arc<Control>,
}

impl CallerWaker {
    /// Wakes. One system call. A caller that is not waiting is woken from its next sleep at once,
    /// and goes back to it; the ring's descriptor becomes readable until it is cleared.
    pub fn wake(&self) {
        self.control.event.raise();
    }
}

/// Why a push was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// No room now: pop completions, or submit and let the poller take submissions; then push
    /// again.
    #[error("the ring is full: pop completions and push again")]
    Full,
    /// The read needs more completion slots than this ring has: it would never fit.
    #[error(
        "the read needs {slots} completion slots and the ring gives a read {capacity} at most: \
         split it or make a larger ring"
    )]
    TooManyStripes {
        /// Slots the read needs.
        slots: u32,
        /// Slots a read can have in this ring.
        capacity: u32,
    },
    /// The poller is gone and takes nothing more.
    #[error("the ring's poller is gone: make a ring with a running engine")]
    Closed,
}

/// A refused push, with everything that was pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct PushRefused<A> {
    /// Why.
    pub why: PushError,
    /// The entry, unchanged.
    pub sqe: Sqe,
    /// What would have travelled with it.
    pub attachment: A,
}

impl<A, B> CallerEnd<A, B> {
    /// Accepts a read, reserves `slots` CQ slots for it, and gives it a name. The poller does not
    /// see it before [`submit`](CallerEnd::submit). A read ends with one CQE at least, so 0 slots
    /// reserve 1.
    ///
    /// # Errors
    /// Gives back the entry and the attachment with the reason. Nothing happened then.
    #[inline]
    pub fn push(
        &mut self,
        mut sqe: Sqe,
        slots: u32,
        attachment: A,
    ) -> Result<ReadId, PushRefused<A>> {
        let slots = slots.max(1);
        let refused =
            self.slots_free < slots || slots > SLOTS_PER_READ_MAX || self.control.is_poller_gone();
        let vacant = if refused { None } else { self.sq.vacant() };
        let Some(vacant) = vacant else {
            return Err(PushRefused { why: self.refuse(slots), sqe, attachment });
        };
        self.slots_free -= slots;
        let read = self.reads.begin();
        sqe.accept(read, slots);
        vacant.fill(sqe, attachment);
        Ok(read)
    }

    #[cold]
    fn refuse(&mut self, slots: u32) -> PushError {
        if self.control.is_poller_gone() {
            PushError::Closed
        } else if slots > self.slots_per_read_max() {
            PushError::TooManyStripes { slots, capacity: self.slots_per_read_max() }
        } else {
            self.control.count_full_answer();
            PushError::Full
        }
    }

    /// The most CQ slots one read can reserve in this ring: its capacity, 65,535 at most.
    pub fn slots_per_read_max(&self) -> u32 {
        self.cq_entries.min(SLOTS_PER_READ_MAX)
    }

    /// Makes everything pushed visible to the poller and wakes it if it sleeps. Returns how many
    /// reads that were; costs next to nothing when there were none.
    #[inline]
    pub fn submit(&mut self) -> u32 {
        if self.sq.unpublished() == 0 {
            return 0;
        }
        // First the CQ's head, then the SQ's tail: whoever sees these reads also sees that the CQ
        // slots they may use were emptied. See `PollerEnd::complete`.
        self.cq.publish();
        let count = self.sq.publish();
        self.control.bell.mark(self.control.source);
        count
    }

    /// Takes the oldest CQE and what travels with it. Gives back the CQ slots it frees; a CQE
    /// without `MORE` ends its read.
    #[inline]
    pub fn pop(&mut self) -> Option<(Cqe, B)> {
        let (cqe, attachment) = self.cq.pop()?;
        self.slots_free += u32::from(cqe.frees());
        debug_assert!(self.slots_free <= self.cq_entries);
        if !cqe.has_more() {
            self.reads.end(cqe.read_id());
        }
        Some((cqe, attachment))
    }

    /// Asks for a read to end now. Takes no CQ slot, is visible to the poller at once (and so
    /// submits what was pushed), and is O(1). The read still gives its CQEs.
    pub fn cancel(&mut self, read: ReadId) -> CancelOutcome {
        let outcome = self.reads.cancel(read);
        if outcome == CancelOutcome::Sent {
            // The CQ's head first, as in `submit`: pushed reads become visible here too.
            self.cq.publish();
            self.sq.publish();
            let vacant = self.cancels.vacant();
            vacant.expect("two cancels per read slot fit: see PollerEnd::publish").fill(read, ());
            self.cancels.publish();
            self.control.bell.mark(self.control.source);
        }
        outcome
    }

    /// Waits until `min` CQEs can be popped, spinning for at most `spin` and then sleeping, for at
    /// most `timeout` in all (`None`: for ever). Returns how many can be popped. Submits first what
    /// was pushed.
    ///
    /// Returns early when the poller is gone. `min` counts for no more than the slots that are
    /// reserved, since no more can come; quiet reads may use fewer of theirs, so with them ask for
    /// no more than the reads in flight. Signals do not end the wait.
    pub fn wait(&mut self, min: u32, timeout: Option<Duration>, spin: Duration) -> usize {
        let goal = min.min(self.reserved());
        self.wait_for(goal, timeout, spin, || false)
    }

    /// As [`wait`](CallerEnd::wait), and returns early once `stop` says so. It is asked before the
    /// caller sleeps, after each CQE batch, and after each [`CallerWaker::wake`]: whoever makes it
    /// true wakes. Here `min` counts as it is, so that more than can come waits for `stop`.
    pub fn wait_unless(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        spin: Duration,
        stop: impl Fn() -> bool,
    ) -> usize {
        self.wait_for(min, timeout, spin, stop)
    }

    /// A handle to wake this caller with, from any thread.
    pub fn waker(&self) -> CallerWaker {
        CallerWaker { control: Arc::clone(&self.control) }
    }

    #[inline]
    fn wait_for(
        &mut self,
        goal: u32,
        timeout: Option<Duration>,
        spin: Duration,
        stop: impl Fn() -> bool,
    ) -> usize {
        self.submit();
        if !self.is_waiting_for(goal) {
            return self.cq.visible() as usize;
        }
        let start = Instant::now();
        // A timeout beyond what the clock can say is for ever.
        let end = timeout.and_then(|timeout| start.checked_add(timeout));
        let spin = timeout.map_or(spin, |timeout| spin.min(timeout));
        while self.is_waiting_for(goal) && !stop() && start.elapsed() < spin {
            for _ in 0..LOOKS_PER_CLOCK {
                if !self.is_waiting_for(goal) {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        self.park(goal, end, stop);
        self.cq.visible() as usize
    }

    fn park(&mut self, goal: u32, end: Option<Instant>, stop: impl Fn() -> bool) {
        // `stop` is asked after the event was cleared: whoever made it true before raising the
        // event is seen here, or has left the event raised for the poll(2) below.
        while self.is_waiting_for(goal) && !stop() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            self.control.arm();
            if self.is_waiting_for(goal) {
                self.control.event.wait(left);
            }
            self.control.disarm();
            self.control.event.clear();
        }
    }

    #[inline]
    fn is_waiting_for(&mut self, goal: u32) -> bool {
        self.cq.visible() < goal && self.cq.refill() < goal && !self.control.is_poller_gone()
    }

    /// Arms the descriptor of [`as_fd`](AsFd::as_fd) for an event loop. If this says `true`, there
    /// is something to do now (CQEs to pop, or the poller is gone) and the descriptor is not armed;
    /// if `false`, the descriptor becomes readable once there is. After it did:
    /// [`clear_event`](CallerEnd::clear_event), pop everything, arm again.
    pub fn arm(&mut self) -> bool {
        self.submit();
        self.control.arm();
        let ready = self.cq.refill() != 0 || self.control.is_poller_gone();
        if ready {
            self.control.disarm();
        }
        ready
    }

    /// Takes [`arm`](CallerEnd::arm) back. A wake that was under way makes the descriptor readable
    /// all the same, until [`clear_event`](CallerEnd::clear_event).
    pub fn disarm(&mut self) {
        self.control.disarm();
    }

    /// Makes the descriptor unreadable again. One system call.
    pub fn clear_event(&mut self) {
        self.control.event.clear();
    }

    /// Whether the read was accepted and its last CQE was not popped.
    pub fn live(&self, read: ReadId) -> bool {
        self.reads.is_live(read)
    }

    /// Whether the poller is gone. CQEs that it published before can still be popped.
    pub fn is_closed(&self) -> bool {
        self.control.is_poller_gone()
    }

    /// Reads pushed and not yet taken by the poller.
    pub fn sq_len(&self) -> u32 {
        self.sq.len()
    }

    /// CQEs that can be popped.
    pub fn cq_len(&self) -> u32 {
        self.cq.len()
    }

    /// Reads accepted whose last CQE was not popped.
    pub fn in_flight(&self) -> u32 {
        self.reads.len()
    }

    /// CQ slots that accepted reads hold.
    pub fn reserved(&self) -> u32 {
        self.cq_entries - self.slots_free
    }

    /// CQ slots in all.
    pub fn cq_capacity(&self) -> u32 {
        self.cq_entries
    }

    /// Pushes refused as full since the ring was made. Only ever grows.
    pub fn full_answers(&self) -> u64 {
        self.control.full_answers()
    }

    /// A view for statistics that any thread may keep.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            sq: Arc::clone(self.sq.indices()),
            cq: Arc::clone(self.cq.indices()),
            control: Arc::clone(&self.control),
            sq_entries: self.sq.entries(),
            cq_entries: self.cq_entries,
        }
    }

    /// Where the indices lie in memory.
    pub fn index_addresses(&self) -> IndexAddresses {
        let (sq_head, sq_tail) = self.sq.indices().addresses();
        let (cq_head, cq_tail) = self.cq.indices().addresses();
        IndexAddresses { sq_head, sq_tail, cq_head, cq_tail }
    }
}

impl<A, B> AsFd for CallerEnd<A, B> {
    /// The eventfd that becomes readable when the poller publishes while the ring is armed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.event.as_fd()
    }
}

impl<A, B> Drop for CallerEnd<A, B> {
    fn drop(&mut self) {
        self.control.caller_leaves();
    }
}

impl<A, B> fmt::Debug for CallerEnd<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerEnd")
            .field("source", &self.control.source)
            .field("sq_len", &self.sq_len())
            .field("cq_len", &self.cq_len())
            .field("in_flight", &self.in_flight())
            .field("reserved", &self.reserved())
            .field("cq_capacity", &self.cq_entries)
            .finish_non_exhaustive()
    }
}
