//! Stopping: a stripe that failed for good, and reads that are cancelled, late, or whose ring is
//! gone. Nothing ends before it is quiet.

use railring_dma::Part;
use railring_transport::Nanos;
use sq_cq::{SqeFlags, Status};

use super::{
    CORKED, Courier, Home, NOT_PARKED, Piece, PieceKind, PieceState, Read, Seat, Stripe, Verify,
};
use crate::memory::{Memory, PartList, Returned};
use crate::plan::{CutRules, Landing, Way};
use crate::schedule::RailMask;
use crate::slab::NONE;
use crate::staging::STAGED_BYTES;

/// Ends what is left of one read as failed, with as many CQEs as it still owes, each of its own
/// stripe.
fn fail_read(seat: &mut Seat, mut read: Read, stripes: &[u32]) {
    let Some(mut permit) = read.permit.take() else { return };
    let status = Status::ENGINE_FAILED;
    // What it was being ended for is no stripe's status before one has ended by it.
    let read_status = if read.told_error.is_ok() { status } else { read.told_error };
    let failed_stripes = read.failed_stripes + read.stripes_left;
    let fields = |stripe: u32| sq_cq::CqeFields {
        user_data: read.user_data,
        status,
        read_status,
        stripe: u16::try_from(stripe).unwrap_or(u16::MAX),
        total_bytes: read.total_bytes,
        failed_stripes: u16::try_from(failed_stripes).unwrap_or(u16::MAX),
        ..sq_cq::CqeFields::default()
    };
    let quiet = read.flags.contains(SqeFlags::QUIET);
    let shown = if quiet { 1 } else { read.stripes_left.min(permit.slots_left()) };
    let mut left = stripes.iter().copied();
    for _ in 1..shown {
        let cqe = sq_cq::Cqe::new(&fields(left.next().unwrap_or(0)));
        seat.end.complete(&mut permit, cqe, Returned::default());
    }
    let cqe = sq_cq::Cqe::new(&fields(left.next().unwrap_or(0)));
    seat.end.finish(permit, cqe, Returned::default());
}

impl Stripe {
    /// Keeps memory that no piece has. It goes back with the stripe, behind its pieces: each border
    /// of leases has one CQ slot, so nothing may go ahead of what lies before it.
    fn keep_rest(&mut self, part: Part) {
        match self.rest {
            None => self.rest = Some(part),
            Some(_) => self.more.push(part),
        }
    }
}

/// A stripe that is read again is cut into at most about so many pieces.
const RECUT_PIECES: u64 = 64;

impl Home {
    /// A stripe has failed for good: its other pieces are called back, and without allow-partial
    /// the rest of its read stops with the same cause.
    pub(super) fn fail_stripe(
        &mut self,
        stripe_slot: u32,
        status: Status,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let stripe = self.stripes.at(stripe_slot);
        if stripe.ended {
            return;
        }
        let first = stripe.status.is_ok();
        if first || status == Status::STUCK {
            stripe.status = status;
        }
        let read_slot = stripe.read;
        let read = self.reads.at(read_slot);
        if first && read.first_error.is_ok() {
            read.first_error = status;
        }
        let id = self.stripes.id_of(stripe_slot);
        self.call_back(stripe_slot, courier);
        let read = self.reads.at(read_slot);
        let partial = read.flags.contains(SqeFlags::ALLOW_PARTIAL);
        if read.ending.is_none() && !partial {
            self.stop(read_slot, status, now, courier);
        }
        if self.stripes.get_mut(id).is_some() {
            self.end_if_complete(stripe_slot, now, courier);
        }
    }

    /// Calls back everything of a stripe that has not landed, and carves what was never begun.
    fn call_back(&mut self, stripe_slot: u32, courier: &mut impl Courier) {
        let stripe = self.stripes.peek(stripe_slot);
        let (read_slot, fetch, head) = (stripe.read, stripe.table_fetch, stripe.head);
        if stripe.hashing_links.is_linked() {
            if self.hashing.front() == Some(stripe_slot) {
                self.hash.piece = NONE;
            }
            self.hashing.remove(&mut self.stripes, stripe_slot);
            self.reads.at(read_slot).laps.hashed(self.now);
        }
        if fetch != NONE && self.call_back_piece(fetch, courier) {
            self.end_table_fetch(stripe_slot);
        }
        let mut at = head;
        while at != NONE {
            let next = self.pieces.peek(at).next;
            if self.call_back_piece(at, courier) {
                self.mark_landed_only(at);
            }
            at = next;
        }
        self.drop_waiting(stripe_slot);
        if self.reads.peek(read_slot).cutting == stripe_slot {
            self.reads.at(read_slot).cutting = NONE;
            self.carve_rest(stripe_slot, read_slot);
        }
    }

    /// `true`: it was staged and is taken out. Otherwise its rail was told, or it has landed.
    fn call_back_piece(&mut self, slot: u32, courier: &mut impl Courier) -> bool {
        let piece = self.pieces.peek(slot);
        match piece.state {
            PieceState::Staged => {
                self.unstage(slot);
                true
            }
            PieceState::Ordered => {
                courier.cancel(usize::from(piece.rail), self.piece_id(slot));
                // Once: a rail's inbox has room for one cancel of each of its pieces.
                self.pieces.at(slot).state = PieceState::CalledBack;
                false
            }
            PieceState::CalledBack | PieceState::AwaitsTable | PieceState::Landed => false,
        }
    }

    fn carve_rest(&mut self, stripe_slot: u32, read_slot: u32) {
        let stripe = self.stripes.peek(stripe_slot);
        let gap = if stripe.at == stripe.from { stripe.lead_bytes } else { 0 };
        let bytes = gap + (stripe.to - stripe.at);
        let mut left = bytes;
        while left > 0 {
            let read = self.reads.at(read_slot);
            let Some(part) = read.memory.carve(left) else { break };
            read.carved_to += part.len() as u64;
            left -= part.len() as u64;
            self.stripes.at(stripe_slot).keep_rest(part);
        }
        let stripe = self.stripes.at(stripe_slot);
        stripe.at = stripe.to;
    }

    /// Starts nothing more of a read and calls back what is under way. It ends when all of it is
    /// quiet.
    pub(super) fn stop(
        &mut self,
        read_slot: u32,
        cause: Status,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let read = self.reads.at(read_slot);
        if read.ending.is_some() {
            return;
        }
        read.ending = Some(cause);
        if read.first_error.is_ok() {
            read.first_error = cause;
        }
        self.wheel.disarm(&mut self.reads, read_slot);
        self.unpark(read_slot);
        let id = self.reads.id_of(read_slot);
        self.begin_draining(read_slot);
        let mut at = self.reads.peek(read_slot).active.front();
        while let Some(stripe_slot) = at {
            let next = self.stripes.peek(stripe_slot).links.next();
            let next = (next != NONE).then(|| self.stripes.id_of(next));
            self.fail_stripe(stripe_slot, cause, now, courier);
            if self.reads.get_mut(id).is_none() {
                return;
            }
            // Of a quiet read, stripes that had ended and waited for this one are gone with it.
            at = match next {
                Some(next) if self.stripes.get_mut(next).is_some() => Some(next.slot),
                Some(_) => self.reads.peek(read_slot).active.front(),
                None => None,
            };
        }
    }

    /// Stripes that never began end too. Those of a quiet read wait for the ones that did, so that
    /// its memory goes back in order.
    pub(super) fn begin_draining(&mut self, read_slot: u32) {
        let read = self.reads.at(read_slot);
        let waits = read.flags.contains(SqeFlags::QUIET) && read.active.front().is_some();
        let none = read.ending.is_none() || read.stripes.peek().is_none();
        if !waits && !none && !read.draining_links.is_linked() {
            self.draining.push_back(&mut self.reads, read_slot);
        }
    }

    pub(super) fn unpark(&mut self, read_slot: u32) {
        let read = self.reads.at(read_slot);
        let rail = std::mem::replace(&mut read.parked, NOT_PARKED);
        if rail == CORKED {
            let ring = usize::from(read.ring);
            if let Some(seat) = &mut self.seats[ring] {
                seat.corked.remove(&mut self.reads, read_slot);
                self.corked -= 1;
            }
        } else if rail != NOT_PARKED {
            self.feeds[usize::from(rail)].waiters.remove(&mut self.reads, read_slot);
        }
    }

    /// Cancels of a ring's reads; stale ones find nothing.
    pub(super) fn serve_cancels(
        &mut self,
        ring: usize,
        now: Nanos,
        courier: &mut impl Courier,
    ) -> bool {
        let mut any = false;
        while let Some(id) = self.seats[ring].as_mut().and_then(|seat| seat.end.pop_cancel()) {
            any = true;
            let entry = self.seats[ring].as_ref().map_or(NONE, |seat| seat.reads[id.slot as usize]);
            if entry == NONE {
                continue;
            }
            let slot = self.resolve(entry);
            if self.reads.peek(slot).id == id {
                self.stop(slot, Status::CANCELLED, now, courier);
            }
        }
        any
    }

    /// A token was cancelled: so are its reads here.
    pub(crate) fn cancel_token(&mut self, token: u64, now: Nanos, courier: &mut impl Courier) {
        let Some(list) = self.tokens.get(&token) else { return };
        let mut at = list.front();
        while let Some(slot) = at {
            let next = self.reads.peek(slot).token_links.next();
            self.stop(slot, Status::CANCELLED, now, courier);
            at = (next != NONE).then_some(next);
        }
    }

    /// The caller dropped its ring: its reads are cancelled, and their memory goes to where the
    /// ring left its loans.
    pub(super) fn close_ring(&mut self, ring: usize, now: Nanos, courier: &mut impl Courier) {
        let Some(seat) = &mut self.seats[ring] else { return };
        if !seat.closed {
            seat.closed = true;
            let taken = seat.reads.iter().copied().filter(|&slot| slot != NONE);
            let taken: Vec<u32> = taken.collect();
            let slots: Vec<u32> = taken.into_iter().map(|entry| self.resolve(entry)).collect();
            for id in slots.into_iter().map(|slot| self.reads.id_of(slot)).collect::<Vec<_>>() {
                if self.reads.get_mut(id).is_some() {
                    self.stop(id.slot, Status::CANCELLED, now, courier);
                }
            }
        }
        if self.seats[ring].as_ref().is_some_and(|seat| seat.in_progress == 0) {
            self.unseat(ring);
        }
    }

    /// Forgets a ring that has no reads left.
    pub(super) fn unseat(&mut self, ring: usize) {
        if let Some(Seat { mut end, orphan: Some(mut orphan), .. }) = self.seats[ring].take() {
            end.publish();
            while let Some((_, returned)) = orphan.pop() {
                if let Some(part) = returned.part {
                    self.shared.impound.repay(part);
                }
            }
        }
        self.ready[ring / 64] &= !(1 << (ring % 64));
        self.shared.free_seat(usize::from(self.index), ring);
    }

    /// The engine shuts down: every read is cancelled.
    pub(crate) fn stop_all(&mut self, cause: Status, now: Nanos, courier: &mut impl Courier) {
        self.stopping = true;
        for solo in self.solos.taken() {
            self.promote(solo);
        }
        for slot in self.reads.taken() {
            let id = self.reads.id_of(slot);
            if self.reads.get_mut(id).is_some() {
                self.stop(slot, cause, now, courier);
            }
        }
    }

    /// The poller has panicked: every read of its rings ends as `ENGINE_FAILED`. Nothing is known
    /// about their memory, so none of it is given back. State may be half-changed, so this uses as
    /// little of it as it can.
    pub(crate) fn fail_all(&mut self) {
        self.shared.release_claim(self.index);
        for feed in &mut self.feeds {
            self.shared.give_back_room(feed.ordered, feed.ordered_bytes);
            (feed.ordered, feed.ordered_bytes) = (0, 0);
        }
        for solo in self.solos.taken() {
            self.promote(solo);
        }
        for slot in self.reads.taken() {
            let read = self.reads.remove_at(slot);
            self.fail_one(read);
        }
    }

    /// Shows what was completed in the turn that panicked, of reads that need not fail.
    pub(crate) fn publish_all(&mut self) {
        self.seats.iter_mut().flatten().for_each(|seat| seat.end.publish());
    }

    pub(super) fn fail_one(&mut self, read: Read) {
        let owed = self.owed_by(&read);
        let Some(seat) = &mut self.seats[usize::from(read.ring)] else {
            read.permit.into_iter().for_each(sq_cq::Permit::abandon);
            return;
        };
        fail_read(seat, read, &owed);
        seat.end.hold_back(0);
        seat.end.publish();
        let counters = &self.shared.desks[usize::from(self.index)].counters;
        counters.reads.add(1);
        counters.reads_failed.add(1);
    }

    /// The stripes of a read that have not ended: those that began, then those that did not.
    fn owed_by(&self, read: &Read) -> Vec<u32> {
        let mut owed = Vec::new();
        let mut at = read.active.front().unwrap_or(NONE);
        // Bounded, and by slots that are looked at: the lists of a panicked poller may be broken.
        while owed.len() < read.stripes_left as usize
            && let Some(stripe) = self.stripes.get_at(at)
        {
            if !stripe.ended {
                owed.push(stripe.index);
            }
            at = stripe.links.next();
        }
        let mut unbegun = read.stripes;
        while let Some(index) = unbegun.peek() {
            owed.push(index);
            unbegun.advance();
        }
        owed
    }

    /// Reads a whole stripe again whose hash did not match, elsewhere if it can be. `false`: there
    /// is no room or no rail for that.
    pub(super) fn recut(&mut self, stripe_slot: u32, _courier: &mut impl Courier) -> bool {
        let stripe = self.stripes.peek(stripe_slot);
        let (read_slot, index, to) = (stripe.read, stripe.index, stripe.to);
        let attempts = stripe.attempts;
        let reach = self.object(self.reads.peek(read_slot).object).inner.rails(index);
        let usable = self.usable(reach);
        let fresh = usable.without(RailMask::of(stripe.rail.min(63).into()));
        let candidates = if fresh.is_empty() { usable } else { fresh };
        let room = self.pieces.capacity() - self.pieces.len() - self.solos.len();
        if candidates.is_empty() || u64::from(room) < 4 * RECUT_PIECES {
            return false;
        }
        let lead = self.stripes.at(stripe_slot).lead.take();
        let mut parts = Vec::new();
        self.collect(stripe_slot, |_, part| parts.push(part));
        parts.reverse();
        let mut memory = Memory::Many(Box::new(PartList { parts, trace: None }));
        let stripe = self.stripes.at(stripe_slot);
        stripe.lead = lead;
        let mut at = 0;
        while at < to {
            let Some((address, run)) = memory.front() else { break };
            let shape = self.recut_shape(stripe_slot, at, to.min(at + run), address);
            let bytes = shape.want_to - shape.want_from;
            let Some(part) = memory.carve(bytes) else { break };
            let kind = match shape.way {
                Way::Direct => PieceKind::Direct,
                Way::Staged => PieceKind::Staged,
            };
            let Some(rail) = self.choose(candidates, RailMask::default(), bytes) else { break };
            let mut piece = Piece::new(stripe_slot, kind, shape, Some(part));
            piece.attempts = attempts;
            piece.alternatives = reach.count() > 1;
            let Ok(id) = self.pieces.insert(piece) else { break };
            self.append(stripe_slot, id.slot);
            self.stage_piece(id.slot, rail);
            at = shape.want_to;
        }
        self.keep_unread(stripe_slot, memory);
        at == to
    }

    /// Memory that found no piece stays with the stripe.
    fn keep_unread(&mut self, stripe_slot: u32, mut memory: Memory) {
        while let Some(part) = memory.carve(u64::MAX) {
            self.stripes.at(stripe_slot).keep_rest(part);
        }
    }

    fn recut_shape(
        &self,
        stripe_slot: u32,
        at: u64,
        to: u64,
        address: usize,
    ) -> crate::plan::PieceShape {
        let stripe = self.stripes.peek(stripe_slot);
        debug_assert!(matches!(stripe.verify, Verify::Whole(_)), "only whole stripes are hashed");
        let grain = CutRules::grain_of(1, self.rules.alignment);
        let pieces = (stripe.to / RECUT_PIECES).next_multiple_of(grain);
        let rules = CutRules {
            stripe_len: stripe.to,
            grain,
            length_align: self.rules.alignment.length_bytes.into(),
            piece_bytes: self
                .reads
                .peek(stripe.read)
                .piece_bytes
                .max(pieces)
                .min(self.rules.request_bytes_max),
            request_bytes_max: self.rules.request_bytes_max,
            staging_bytes: STAGED_BYTES.max(grain),
        };
        let origin = (address as u64).wrapping_sub(at);
        let aligned = origin & (u64::from(self.rules.alignment.memory_bytes) - 1) == 0;
        rules.piece(at, to, if aligned { Landing::Aligned } else { Landing::Misaligned })
    }
}
