//! Owns the poller's end of a ring pair: pop an SQE with its permit, complete, finish, publish.

use std::fmt;

use crate::pair::Control;
use crate::reads::RunningReads;
use crate::ring::{Consumer, Producer};
use crate::sync::Arc;
use crate::{Cqe, Permit, ReadId, Sqe};

/// The poller's end of a ring pair: `Send`, and used by one thread at a time.
///
/// Dropping it publishes what was completed (the entries are whole) and tells the caller that the
/// poller is gone. Permits still held are not ended by that; end them first.
pub struct PollerEnd<A, B> {
    pub(crate) sq: Consumer<Sqe, A>,
    pub(crate) cq: Producer<Cqe, B>,
    pub(crate) cancels: Consumer<ReadId, ()>,
    pub(crate) reads: RunningReads,
    pub(crate) control: Arc<Control>,
}

impl<A, B> PollerEnd<A, B> {
    /// Takes the oldest submitted SQE (copied out of its slot once), the permit for its CQEs, and
    /// what travels with it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Sqe, Permit, A)> {
        let (sqe, attachment) = self.sq.pop()?;
        let read = sqe.read_id();
        let cancelled = self.reads.begin(read);
        let permit = Permit::new(read, sqe.slots(), self.control.source as u32, cancelled);
        Some((sqe, permit, attachment))
    }

    /// The next read that its caller cancelled, of those popped and not finished. A cancel that
    /// came too late for its read is never told of, and one that came before its read was popped is
    /// told of by [`Permit::is_cancelled`].
    #[inline]
    pub fn pop_cancel(&mut self) -> Option<ReadId> {
        self.drain_cancels();
        self.reads.next_cancel()
    }

    /// Writes a CQE that is not its read's last: spends one slot, sets `MORE`. The caller does not
    /// see it before [`publish`](PollerEnd::publish).
    ///
    /// # Panics
    /// When the permit has one slot left (which is for `finish`), or is of another ring.
    #[inline]
    pub fn complete(&mut self, permit: &mut Permit, mut cqe: Cqe, attachment: B) {
        self.check_permit(permit);
        permit.spend_one();
        cqe.stamp_more(permit.read_id());
        self.write(cqe, attachment);
    }

    /// Writes a read's last CQE: spends the rest of the permit, clears `MORE`. The caller does not
    /// see it before [`publish`](PollerEnd::publish).
    ///
    /// # Panics
    /// When the permit is of another ring.
    #[inline]
    pub fn finish(&mut self, permit: Permit, mut cqe: Cqe, attachment: B) {
        self.check_permit(&permit);
        let read = permit.read_id();
        // A push reserves SLOTS_PER_READ_MAX slots at most, which is u16::MAX.
        cqe.stamp_last(read, permit.spend_rest() as u16);
        self.reads.end(read);
        self.write(cqe, attachment);
    }

    #[inline]
    fn check_permit(&self, permit: &Permit) {
        assert!(
            permit.source() == self.control.source as u32,
            "a permit is spent on the ring that gave it out"
        );
    }

    /// There is always room. A CQE is written against a slot that its read reserved, and the caller
    /// frees slots only by popping CQEs:
    ///
    /// * When read R was pushed, slots reserved and not freed, R's included, were at most
    ///   `entries`.
    /// * Each CQE written for a read up to R and not popped by then holds at least one of them.
    /// * So the `entries`-th CQE before any that R's permit pays for was popped before R's push,
    ///   which came before the Release store of the SQ's tail, which came before the Acquire load
    ///   that showed this poller R. The slot is empty, and this thread knows it.
    ///
    /// The caller stores the CQ's head before the SQ's tail, so the ring's own check, which keeps
    /// its memory safe without this argument, loads a head that is new enough.
    #[inline]
    fn write(&mut self, cqe: Cqe, attachment: B) {
        let vacant = self.cq.vacant();
        vacant.expect("a permit's slots are reserved in the completion ring").fill(cqe, attachment);
    }

    /// Makes everything completed visible to the caller and wakes it if it waits. Lets the caller
    /// push as many SQEs as were popped. Costs next to nothing when nothing was completed.
    ///
    /// Cancels are taken out of their ring first. That bounds the ring: between two publishes a
    /// read slot can end one read (by a CQE published before) and begin another (which cannot end
    /// before the next publish), and each of the two is cancelled at most once. And a second read
    /// that did end was pushed after the first one's cancel, so that its cancel was seen here.
    #[inline]
    pub fn publish(&mut self) {
        self.sq.publish();
        if self.cq.unpublished() == 0 {
            return;
        }
        self.drain_cancels();
        self.cq.publish();
        self.control.wake_caller();
    }

    /// Lets the caller push `reads` SQEs fewer than were popped, from the next
    /// [`publish`](PollerEnd::publish) on: for a poller that takes SQEs to look at them and does
    /// not begin them yet. What the caller was let push before stays pushed.
    #[inline]
    pub fn hold_back(&mut self, reads: u32) {
        self.sq.hold_back(reads);
    }

    #[inline]
    fn drain_cancels(&mut self) {
        while let Some((read, ())) = self.cancels.pop() {
            self.reads.cancel(read);
        }
    }

    /// Whether the caller's end is gone. SQEs that it submitted before can still be popped, and
    /// their reads must still be finished.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.control.is_caller_gone()
    }

    /// Which source of the bell this ring is.
    #[inline]
    pub fn source(&self) -> usize {
        self.control.source
    }
}

impl<A, B> Drop for PollerEnd<A, B> {
    fn drop(&mut self) {
        self.publish();
        self.control.poller_leaves();
    }
}

impl<A, B> fmt::Debug for PollerEnd<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollerEnd")
            .field("source", &self.control.source)
            .field("sq_len", &self.sq.len())
            .field("unpublished", &self.cq.unpublished())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
