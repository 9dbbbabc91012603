//! A piece came back: it is checked, copied if it was staged, retried if it failed, and joined to
//! its neighbours.

use railring_dma::Part;
use railring_transport::Nanos;
use sq_cq::{SqeFlags, Status};

use super::{Courier, Home, Piece, PieceKind, PieceState, Verify};
use crate::health::Standing;
use crate::mail::{Done, News};
use crate::schedule::RailMask;
use crate::slab::{Id, NONE};
use crate::tables::{Ticket, first_bad_block, is_vouched_for};

impl Home {
    #[inline]
    pub(super) fn land(&mut self, done: Done, now: Nanos, courier: &mut impl Courier) {
        let Done { rail, piece: id, part, news } = done;
        if self.pieces.get_mut(id).is_none() {
            debug_assert!(false, "a piece is kept until its rail is done with it");
            return;
        }
        let rail = usize::from(rail);
        self.unorder(id, rail);
        if self.feeds[rail].staged.front().is_some() || self.feeds[rail].waiters.len() > 0 {
            self.busy = self.busy.with(RailMask::of(rail));
        }
        let slot = id.slot;
        let stripe_slot = self.pieces.peek(slot).stripe;
        let stripe = self.stripes.at(stripe_slot);
        stripe.rail = u8::try_from(rail).expect("at most 64 rails");
        let read = self.reads.at(stripe.read);
        read.laps.landed(stripe.rail, now);
        stripe.attempts = stripe.attempts.max(self.pieces.peek(slot).attempts + 1);
        if read.is_traced() {
            self.trace_land(slot, &news, now);
        }
        match (news, part) {
            (News::Landed { hash }, Some(part)) => self.landed(slot, part, hash, now, courier),
            (News::Failed { status: Status::ENGINE_FAILED }, Some(part)) => {
                // The rail's poller has failed, which is no fault of the piece.
                self.take_back(slot, part);
                self.again(slot, Cost::Free, Status::ENGINE_FAILED, now, courier);
            }
            (News::Failed { status }, Some(part)) => {
                self.take_back(slot, part);
                self.failed(slot, status, now, courier);
            }
            (News::Flushed, Some(part)) => {
                self.take_back(slot, part);
                self.again(slot, Cost::Free, Status::RAIL_DOWN, now, courier);
            }
            (News::Stuck { cause }, None) => self.stuck(slot, cause, now, courier),
            (news, part) => debug_assert!(false, "{news:?} with {part:?}"),
        }
    }

    /// The bytes are here.
    fn landed(&mut self, slot: u32, part: Part, hash: u64, now: Nanos, courier: &mut impl Courier) {
        let piece = self.pieces.peek(slot);
        let stripe = self.stripes.peek(piece.stripe);
        if !stripe.status.is_ok() {
            // Its stripe has failed meanwhile: the bytes are of no use, whatever they are.
            let (kind, stripe_slot) = (piece.kind, piece.stripe);
            self.take_back(slot, part);
            if kind == PieceKind::Table {
                self.end_table_fetch(stripe_slot);
                self.end_if_complete(stripe_slot, now, courier);
            } else {
                self.settle(slot, now, courier);
            }
            return;
        }
        match (piece.kind, stripe.verify) {
            (PieceKind::Table, _) => self.table_landed(slot, part, now, courier),
            (PieceKind::Direct, Verify::Whole(expected)) if self.is_whole(slot) => {
                self.pieces.at(slot).part = Some(part);
                let stripe = self.stripes.at(self.pieces.peek(slot).stripe);
                stripe.actual = hash;
                if hash == expected {
                    self.settle(slot, now, courier);
                } else if !self.diagnose(slot, now, courier) {
                    self.mismatched(slot, None, now, courier);
                }
            }
            (_, Verify::Blocks(_)) => {
                let piece = self.pieces.at(slot);
                if piece.kind == PieceKind::Direct {
                    piece.part = Some(part);
                } else {
                    piece.landed = Some(part);
                }
                self.check_blocks(slot, now, courier);
            }
            (PieceKind::Staged, _) => {
                self.pieces.at(slot).landed = Some(part);
                self.unstage_bytes(slot);
                self.settle(slot, now, courier);
            }
            (PieceKind::Direct, _) => {
                self.pieces.at(slot).part = Some(part);
                self.settle(slot, now, courier);
            }
        }
    }

    /// Whether the piece is all of a stripe, so that its rail's poller hashed it.
    fn is_whole(&self, slot: u32) -> bool {
        let piece = self.pieces.peek(slot);
        let stripe = self.stripes.peek(piece.stripe);
        piece.shape.read_from == 0 && stripe.from == 0 && piece.shape.want_to == stripe.to
    }

    /// Copies what was wanted out of staging memory, which is free again.
    fn unstage_bytes(&mut self, slot: u32) {
        let piece = self.pieces.at(slot);
        let shape = piece.shape;
        if let (Some(landed), Some(part)) = (&piece.landed, &mut piece.part) {
            let at = usize::try_from(shape.want_from - shape.read_from).expect("in the piece");
            let wanted = part.as_mut_slice();
            wanted.copy_from_slice(&landed.as_slice()[at..at + wanted.len()]);
        }
        self.free_staging(slot);
    }

    fn free_staging(&mut self, slot: u32) {
        let piece = self.pieces.at(slot);
        if let (Some(part), Some(mut loan)) = (piece.landed.take(), piece.loan.take()) {
            let repaid = loan.repay(part);
            debug_assert!(repaid.is_ok(), "staging memory goes back to its own loan");
            drop(loan.settle());
            // Others may wait for just this.
            self.shared.feed_starving();
        }
    }

    /// The part of a piece that failed, back to where it is kept between attempts.
    fn take_back(&mut self, slot: u32, part: Part) {
        let piece = self.pieces.at(slot);
        if piece.kind == PieceKind::Direct {
            piece.part = Some(part);
        } else {
            piece.landed = Some(part);
            self.free_staging(slot);
        }
    }

    /// Checks a piece of whole blocks against the stripe's table, or waits for the table.
    fn check_blocks(&mut self, slot: u32, now: Nanos, courier: &mut impl Courier) {
        let piece = self.pieces.peek(slot);
        let stripe_slot = piece.stripe;
        let stripe = self.stripes.peek(stripe_slot);
        let object = self.object(self.reads.peek(stripe.read).object);
        let block_bytes = object.inner.layout.block_bytes;
        let ticket = object.tickets.get(stripe.index as usize).copied().unwrap_or(Ticket::NONE);
        let Some(table) = self.tables.get(ticket) else {
            let fetching = stripe.table_fetch != NONE;
            self.pieces.at(slot).state = PieceState::AwaitsTable;
            if !fetching {
                self.refetch(slot, stripe_slot, now, courier);
            }
            return;
        };
        let (part, bytes) = match piece.kind {
            _ if stripe.diagnosing => (&piece.part, stripe.to),
            PieceKind::Direct => (&piece.part, piece.shape.read_bytes),
            _ => (&piece.landed, piece.shape.bytes_min),
        };
        let bytes = usize::try_from(bytes).expect("in memory");
        let landed = part.as_ref().expect("landed pieces have their part");
        let first = piece.shape.read_from / block_bytes;
        let bad = first_bad_block(table, block_bytes, first, &landed.as_slice()[..bytes]);
        self.hashed_bytes += bytes as u64;
        match bad {
            // Every block is what its table says and the stripe is not: the placement contradicts
            // itself, so nothing vouches for the bytes.
            None if self.stripes.peek(stripe_slot).diagnosing => {
                self.mismatched(slot, None, now, courier);
            }
            None => {
                if self.pieces.peek(slot).kind == PieceKind::Staged {
                    self.unstage_bytes(slot);
                }
                self.settle(slot, now, courier);
            }
            Some((block, actual)) => {
                let stripe = self.stripes.at(stripe_slot);
                if !stripe.diagnosing {
                    stripe.actual = actual;
                }
                self.free_staging(slot);
                self.mismatched(slot, Some(block), now, courier);
            }
        }
    }

    /// The table was overwritten in the cache before this piece came: once more.
    fn refetch(&mut self, slot: u32, stripe_slot: u32, now: Nanos, courier: &mut impl Courier) {
        if self.pieces_are_full() {
            self.free_staging(slot);
            self.failed(slot, Status::LIMIT_EXCEEDED, now, courier);
        } else {
            self.fetch_table(stripe_slot, now, courier);
        }
    }

    pub(super) fn has_table(&self, object: u32, stripe: u32) -> bool {
        let object = self.object(object);
        let ticket = object.tickets.get(stripe as usize).copied().unwrap_or(Ticket::NONE);
        self.tables.get(ticket).is_some()
    }

    /// A block table is here: it is kept if the placement vouches for it, and the pieces that
    /// waited are checked.
    fn table_landed(&mut self, slot: u32, part: Part, now: Nanos, courier: &mut impl Courier) {
        let piece = self.pieces.peek(slot);
        let stripe_slot = piece.stripe;
        let stripe = self.stripes.peek(stripe_slot);
        let (index, object) = (stripe.index, self.reads.peek(stripe.read).object);
        let bytes = usize::try_from(piece.shape.bytes_min).expect("at most 1 MiB");
        let expected = match stripe.verify {
            Verify::Blocks(expected) => expected,
            _ => {
                let placement = &self.object(object).inner.placement;
                placement.table_checksum(index).unwrap_or(0)
            }
        };
        let layout = self.object(object).inner.layout;
        let table = &part.as_slice()[..bytes];
        self.hashed_bytes += bytes as u64;
        if !is_vouched_for(table, layout.stripe_len(index), layout.block_bytes, expected) {
            let actual = railring_catalog::checksum::table_checksum(table);
            self.stripes.at(stripe_slot).actual = actual;
            self.take_back(slot, part);
            self.mismatched(slot, None, now, courier);
            return;
        }
        let ticket = self.tables.keep(table);
        let stripes = self.object(object).inner.placement.stripe_count() as usize;
        if let Some(object) = &mut self.objects[object as usize] {
            if object.tickets.is_empty() {
                object.tickets = vec![Ticket::NONE; stripes];
            }
            object.tickets[index as usize] = ticket;
        }
        self.take_back(slot, part);
        self.end_table_fetch(stripe_slot);
        self.check_waiting(stripe_slot, now, courier);
    }

    /// The fetch is over, well or not; its piece is not one of the stripe's bytes.
    pub(super) fn end_table_fetch(&mut self, stripe_slot: u32) {
        let stripe = self.stripes.at(stripe_slot);
        let fetch = std::mem::replace(&mut stripe.table_fetch, NONE);
        if fetch != NONE {
            stripe.pieces_out -= 1;
            self.pieces.remove_at(fetch);
        }
    }

    /// Checks the pieces of a stripe that waited for its table.
    fn check_waiting(&mut self, stripe_slot: u32, now: Nanos, courier: &mut impl Courier) {
        let id = self.stripes.id_of(stripe_slot);
        let mut at = self.stripes.peek(stripe_slot).head;
        while at != NONE {
            let piece = self.pieces.peek(at);
            let next = piece.next;
            if piece.state == PieceState::AwaitsTable {
                self.check_blocks(at, now, courier);
                // A check can end the stripe, or join pieces: start over from what is left.
                if self.stripes.get_mut(id).is_none() {
                    return;
                }
                at = self.stripes.peek(stripe_slot).base;
                if at != NONE && self.pieces.peek(at).state != PieceState::AwaitsTable {
                    at = self.pieces.peek(at).next;
                }
                continue;
            }
            at = next;
        }
        self.end_if_complete(stripe_slot, now, courier);
    }

    /// The last attempt at a whole stripe did not match: before it fails, its block table tells
    /// which block is bad. `false`: this was not the last attempt, or there is no table to be had.
    pub(super) fn diagnose(&mut self, slot: u32, now: Nanos, courier: &mut impl Courier) -> bool {
        let piece = self.pieces.peek(slot);
        let stripe_slot = piece.stripe;
        let stripe = self.stripes.peek(stripe_slot);
        let read = self.reads.peek(stripe.read);
        let last = piece.attempts + 1 >= self.rules.attempts_max
            || read.flags.contains(SqeFlags::FAIL_FAST);
        let inner = &self.object(read.object).inner;
        let whole = piece.part.as_ref().is_some_and(|part| part.len() as u64 == stripe.to);
        let possible = last
            && whole
            && read.ending.is_none()
            && !stripe.diagnosing
            && inner.placement.has_tables()
            && !self.usable(inner.rails(stripe.index)).is_empty()
            && !self.pieces_are_full();
        if !possible {
            return false;
        }
        self.stripes.at(stripe_slot).diagnosing = true;
        self.check_blocks(slot, now, courier);
        true
    }

    /// A checksum did not match: retried as any failure, and told apart from it.
    fn mismatched(
        &mut self,
        slot: u32,
        block: Option<u32>,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let rail = usize::from(self.pieces.peek(slot).rail);
        self.counters_of(rail).mismatches.add(1);
        let stripe_slot = self.pieces.peek(slot).stripe;
        self.stripes.at(stripe_slot).bad_block = block;
        self.failed(slot, Status::CHECKSUM_MISMATCH, now, courier);
    }

    /// An attempt failed; its part is back and quiet.
    pub(super) fn failed(
        &mut self,
        slot: u32,
        status: Status,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        self.again(slot, Cost::Attempt, status, now, courier);
    }

    /// A piece could not be given to its rail: that was an attempt.
    pub(super) fn again_elsewhere(
        &mut self,
        slot: u32,
        status: Status,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        self.again(slot, Cost::Attempt, status, now, courier);
    }

    /// Tries a piece again, elsewhere if it can be, unless it has had its attempts.
    fn again(
        &mut self,
        slot: u32,
        cost: Cost,
        status: Status,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let piece = self.pieces.at(slot);
        let stripe_slot = piece.stripe;
        if cost == Cost::Attempt {
            piece.attempts = piece.attempts.saturating_add(1);
            piece.tried = piece.tried.with(RailMask::of(piece.rail.into()));
        }
        let (attempts, tried) = (piece.attempts, piece.tried);
        let stripe = self.stripes.peek(stripe_slot);
        let read = self.reads.peek(stripe.read);
        let over = read.ending.is_some() || !stripe.status.is_ok();
        let refused = cost == Cost::Attempt
            && (attempts >= self.rules.attempts_max
                || read.flags.contains(SqeFlags::FAIL_FAST)
                || !(status.is_retryable() || status == Status::TIMED_OUT));
        if over || refused {
            let cause = read.ending.unwrap_or(status);
            self.give_up(slot, cause, now, courier);
            return;
        }
        if self.choose_again(slot, tried) {
            let rail = usize::from(self.pieces.peek(slot).rail);
            self.counters_of(rail).retries.add(1);
            self.trace_retry(stripe_slot);
        } else {
            self.give_up(slot, status, now, courier);
        }
    }

    /// Stages a piece again, if it can be on a rail that it was not tried on. `false`: no rail
    /// takes it.
    fn choose_again(&mut self, slot: u32, tried: RailMask) -> bool {
        let reach = self.usable(self.reach_of(self.pieces.peek(slot)));
        let fresh = reach.without(tried);
        let candidates = if fresh.is_empty() { reach } else { fresh };
        let bytes = self.pieces.peek(slot).shape.read_bytes;
        match self.choose(candidates, RailMask::default(), bytes) {
            Some(rail) => {
                self.stage_piece(slot, rail);
                true
            }
            None => false,
        }
    }

    /// A piece that was taken back from the queue of a rail that will not take it goes to another.
    pub(super) fn move_on(&mut self, slot: u32, now: Nanos, courier: &mut impl Courier) {
        let piece = self.pieces.peek(slot);
        let (tried, rail) = (piece.tried, usize::from(piece.rail));
        if !self.choose_again(slot, tried) {
            let failed = self.shared.rails[rail].state.get() == Standing::Failed;
            let status = if failed { Status::ENGINE_FAILED } else { Status::RAIL_DOWN };
            self.give_up(slot, status, now, courier);
        }
    }

    /// A piece has failed for good, and with it its stripe.
    pub(super) fn give_up(
        &mut self,
        slot: u32,
        status: Status,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let stripe_slot = self.pieces.peek(slot).stripe;
        let diagnosing = self.stripes.peek(stripe_slot).diagnosing;
        let status = if diagnosing { Status::CHECKSUM_MISMATCH } else { status };
        if self.pieces.peek(slot).kind == PieceKind::Table {
            self.end_table_fetch(stripe_slot);
            self.drop_waiting(stripe_slot);
        } else {
            self.mark_landed(slot);
        }
        self.fail_stripe(stripe_slot, status, now, courier);
    }

    /// Pieces that waited for a table that will not come are of no use.
    pub(super) fn drop_waiting(&mut self, stripe_slot: u32) {
        let mut at = self.stripes.peek(stripe_slot).head;
        while at != NONE {
            let piece = self.pieces.peek(at);
            let next = piece.next;
            if piece.state == PieceState::AwaitsTable {
                self.free_staging(at);
                self.mark_landed_only(at);
            }
            at = next;
        }
        self.coalesce(stripe_slot);
    }

    /// A piece did not become quiet. If it has the caller's memory, that is impounded and the read
    /// ends as stuck; if it has staging memory, only that is in doubt, and the piece is tried
    /// again.
    fn stuck(&mut self, slot: u32, cause: Status, now: Nanos, courier: &mut impl Courier) {
        let piece = self.pieces.at(slot);
        let stripe = piece.stripe;
        if let Some(loan) = piece.loan.take() {
            self.shared.impound.hold(loan);
            self.failed(slot, cause, now, courier);
            return;
        }
        let read = self.stripes.peek(stripe).read;
        self.reads.at(read).first_error = Status::STUCK;
        self.give_up(slot, Status::STUCK, now, courier);
    }

    /// The piece has landed and was checked.
    fn settle(&mut self, slot: u32, now: Nanos, courier: &mut impl Courier) {
        let stripe_slot = self.pieces.peek(slot).stripe;
        if self.pieces.peek(slot).state == PieceState::AwaitsTable {
            self.trace_check(slot, now);
        }
        self.mark_landed(slot);
        self.end_if_complete(stripe_slot, now, courier);
    }

    fn mark_landed(&mut self, slot: u32) {
        let stripe_slot = self.pieces.peek(slot).stripe;
        self.mark_landed_only(slot);
        let stripe = self.stripes.peek(stripe_slot);
        if stripe.head != stripe.tail {
            self.coalesce(stripe_slot);
        }
    }

    pub(super) fn mark_landed_only(&mut self, slot: u32) {
        let piece = self.pieces.at(slot);
        piece.state = PieceState::Landed;
        let stripe = piece.stripe;
        self.stripes.at(stripe).pieces_out -= 1;
    }

    /// Joins landed neighbours from the start of the stripe (or of a lease) on, so that a stripe of
    /// many pieces holds few slots.
    pub(super) fn coalesce(&mut self, stripe_slot: u32) {
        loop {
            let base = self.stripes.peek(stripe_slot).base;
            if base == NONE || self.pieces.peek(base).state != PieceState::Landed {
                return;
            }
            let next = self.pieces.peek(base).next;
            if next == NONE || self.pieces.peek(next).state != PieceState::Landed {
                return;
            }
            if self.join(base, next) {
                let gone = self.pieces.remove_at(next);
                self.pieces.at(base).next = gone.next;
                let stripe = self.stripes.at(stripe_slot);
                if stripe.tail == next {
                    stripe.tail = base;
                }
            } else {
                // The border of two leases, or a part that is stuck: a new run begins.
                self.stripes.at(stripe_slot).base = next;
            }
        }
    }

    /// Joins the part of `second` to that of `first`, if they are neighbours.
    fn join(&mut self, first: u32, second: u32) -> bool {
        let one = self.pieces.at(first).part.take();
        let two = self.pieces.at(second).part.take();
        let (one, two, joined) = match (one, two) {
            (Some(one), Some(two)) => match one.join(two) {
                Ok(both) => (Some(both), None, true),
                Err((one, two)) => (Some(one), Some(two), false),
            },
            (one, two) => (one, two, false),
        };
        self.pieces.at(first).part = one;
        self.pieces.at(second).part = two;
        joined
    }

    /// The id under which a rail knows a piece.
    pub(super) fn piece_id(&self, slot: u32) -> Id<Piece> {
        self.pieces.peek(slot).alias.unwrap_or_else(|| self.pieces.id_of(slot))
    }
}

/// Whether a retry counts against the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    Attempt,
    Free,
}
