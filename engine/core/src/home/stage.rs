//! Giving pieces to rails: each rail takes what waits for it as its window frees up, and an idle
//! rail takes what waits for another.

use railring_transport::Nanos;

use super::{Courier, Home, Piece, PieceKind, PieceState, Verify};
use crate::health::Standing;
use crate::mail::{Hash, Order};
use crate::schedule::RailMask;
use crate::slab::Id;
use crate::staging::StagedFor;

/// A rail whose pieces others could take has about so many nanoseconds of work in flight, and at
/// least `WINDOW_PIECES_MIN` pieces: enough to keep it busy, not enough to make its peers wait.
const WINDOW_NS: u64 = 2_000_000;
const WINDOW_PIECES_MIN: u32 = 2;

impl Home {
    /// Puts a piece into the queue of its rail.
    pub(super) fn stage_piece(&mut self, slot: u32, rail: usize) {
        let piece = self.pieces.at(slot);
        piece.state = PieceState::Staged;
        piece.since = self.now;
        piece.rail = u8::try_from(rail).expect("at most 64 rails");
        let bytes = piece.shape.read_bytes;
        let feed = &mut self.feeds[rail];
        feed.staged.push(&mut self.pieces, slot);
        feed.staged_bytes += bytes;
        self.loads[rail].outstanding_bytes += bytes;
        self.busy = self.busy.with(RailMask::of(rail));
    }

    /// Takes a piece out of the queue of its rail.
    pub(super) fn unstage(&mut self, slot: u32) {
        let piece = self.pieces.peek(slot);
        let (rail, bytes) = (usize::from(piece.rail), piece.shape.read_bytes);
        let feed = &mut self.feeds[rail];
        feed.staged.remove(&mut self.pieces, slot);
        feed.staged_bytes -= bytes;
        self.loads[rail].outstanding_bytes -= bytes;
    }

    /// Orders what the rails have room for. Touches busy rails only.
    pub(crate) fn stage(&mut self, now: Nanos, courier: &mut impl Courier) -> bool {
        if self.busy.is_empty() {
            self.hungry = None;
            self.settle_claim();
            return false;
        }
        let mut any = false;
        let reads = self.reads.len();
        let first = self.feed_hungry(courier);
        for rail in self.busy.iter_from(first) {
            any |= self.follow(rail, now, courier);
            any |= self.feed_rail(rail, courier);
            if self.feeds[rail].waiters.len() > 0 {
                self.resume(rail, now, courier);
                any |= self.feed_rail(rail, courier);
            }
            let feed = &self.feeds[rail];
            if feed.staged.len() == 0 && feed.waiters.len() == 0 {
                self.feeds[rail].starves_since = Nanos::NEVER;
                self.busy = self.busy.without(RailMask::of(rail));
            }
        }
        self.settle_claim();
        if self.feeds.len() > 1 && !self.busy.is_empty() && self.scheduler.may_steal() {
            any |= self.steal(courier);
        }
        // What goes on cutting may find that no rail is left, and end its read.
        any | (self.reads.len() != reads)
    }

    /// Nothing of this home wants room any more: others may have it.
    #[inline]
    fn settle_claim(&mut self) {
        if self.claims && self.hungry.is_none() {
            self.claims = false;
            self.shared.release_claim(self.index);
        }
    }

    /// A rail stands otherwise than when its queue was last looked at: what waits for it in vain,
    /// or need not wait, is taken back and given to others.
    fn follow(&mut self, rail: usize, now: Nanos, courier: &mut impl Courier) -> bool {
        let standing = self.shared.rails[rail].state.get();
        if std::mem::replace(&mut self.feeds[rail].standing, standing) == standing {
            return false;
        }
        if matches!(standing, Standing::Up | Standing::Offered) {
            return true;
        }
        for _ in 0..self.feeds[rail].staged.len() {
            let Some(slot) = self.feeds[rail].staged.front() else { break };
            self.unstage(slot);
            self.move_on(slot, now, courier);
        }
        true
    }

    /// The piece that found no room before goes first. Says at which rail to go on, so that each
    /// has its turn.
    fn feed_hungry(&mut self, courier: &mut impl Courier) -> usize {
        let Some(rail) = self.hungry.take() else { return 0 };
        if let Some(slot) = self.feeds[rail].staged.front() {
            self.order(slot, rail, courier);
        }
        self.settle_claim();
        if self.hungry.is_some() { rail } else { rail + 1 }
    }

    fn feed_rail(&mut self, rail: usize, courier: &mut impl Courier) -> bool {
        let mut any = false;
        while let Some(slot) = self.feeds[rail].staged.front() {
            if !self.order(slot, rail, courier) {
                break;
            }
            any = true;
        }
        any
    }

    /// Rails with nothing to do take the newest pieces of those that have too much.
    fn steal(&mut self, courier: &mut impl Courier) -> bool {
        let mut any = false;
        for thief in 0..self.feeds.len() {
            let idle = self.feeds[thief].staged.len() == 0
                && self.shared.rails[thief].state.get() == Standing::Up;
            if !idle {
                continue;
            }
            while let Some(slot) = self.stealable(thief) {
                let victim = usize::from(self.pieces.peek(slot).rail);
                if !self.takes(thief, self.pieces.peek(slot)) {
                    break;
                }
                self.unstage(slot);
                self.stage_piece(slot, thief);
                self.counters_of(thief).steals.add(1);
                self.trace_steal(slot, thief);
                if !self.order(slot, thief, courier) {
                    if self.hungry == Some(thief) {
                        break; // There is no room anywhere: here it waits best.
                    }
                    // No staging memory here now: back where it was.
                    self.unstage(slot);
                    self.stage_piece(slot, victim);
                    break;
                }
                any = true;
            }
        }
        any
    }

    /// The newest piece of the longest queue that `thief` could serve sooner than its own rail.
    fn stealable(&self, thief: usize) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        for victim in self.busy.iter().filter(|&rail| rail != thief) {
            let Some(slot) = self.feeds[victim].staged.back() else { continue };
            let piece = self.pieces.peek(slot);
            // Not back to where it failed: a rail that fails at once is always idle.
            if !piece.alternatives
                || piece.tried.contains(thief)
                || !self.reach_of(piece).contains(thief)
            {
                continue;
            }
            let waiting = self.loads[victim].outstanding_bytes / self.loads[victim].rate.max(1);
            if best.is_none_or(|(most, _)| waiting > most) {
                best = Some((waiting, slot));
            }
        }
        let (waiting, slot) = best?;
        let load = &self.loads[thief];
        let here =
            (load.outstanding_bytes + self.pieces.peek(slot).shape.read_bytes) / load.rate.max(1);
        (here <= waiting).then_some(slot)
    }

    pub(super) fn reach_of(&self, piece: &Piece) -> RailMask {
        let stripe = self.stripes.peek(piece.stripe);
        let object = self.reads.peek(stripe.read).object;
        self.object(object).inner.rails(stripe.index)
    }

    /// Whether a rail's window has room for one more piece.
    fn takes(&self, rail: usize, piece: &Piece) -> bool {
        let feed = &self.feeds[rail];
        if feed.ordered >= feed.ordered_max {
            return false;
        }
        let bytes = piece.shape.read_bytes;
        if feed.ordered > 0 && feed.ordered_bytes.saturating_add(bytes) > feed.ordered_bytes_max {
            return false;
        }
        if !piece.alternatives || feed.ordered < WINDOW_PIECES_MIN || !self.scheduler.may_steal() {
            return true;
        }
        let window = self.loads[rail].rate.saturating_mul(WINDOW_NS / 1_000_000);
        feed.ordered_bytes + bytes <= window
    }

    /// Orders the staged piece `slot` from `rail`. `false`: no room now, it stays staged.
    #[inline]
    pub(super) fn order(&mut self, slot: u32, rail: usize, courier: &mut impl Courier) -> bool {
        let piece = self.pieces.peek(slot);
        let bytes = piece.shape.read_bytes;
        if !self.takes(rail, piece) || self.hungry.is_some_and(|hungry| hungry != rail) {
            return false;
        }
        let state = &self.shared.rails[rail].state;
        let probes = match state.get() {
            Standing::Up => false,
            Standing::Offered if state.take_probe() => true,
            _ => return false, // It waits for what comes of the probe, or is taken back.
        };
        // Looked at first: room that is taken and given back feeds those who starve for it, this
        // poller among them, which would look again at once and for ever.
        let order = if self.lacks(slot) {
            self.note_starving(rail);
            None
        } else if self.shared.take_room(self.index, bytes) {
            let order = self.order_of(slot, rail);
            if order.is_none() {
                self.shared.give_back_room(1, bytes);
                self.note_starving(rail);
            }
            order
        } else {
            self.hungry = Some(rail);
            self.claims = true;
            self.shared.claim_room(self.index);
            None
        };
        let Some(order) = order else {
            if probes {
                self.shared.rails[rail].state.return_probe();
            }
            self.starved |= self.shared.starve(self.index);
            return false;
        };
        let feed = &mut self.feeds[rail];
        feed.staged.remove(&mut self.pieces, slot);
        feed.staged_bytes -= bytes;
        feed.ordered += 1;
        feed.ordered_bytes += bytes;
        let read = self.stripes.peek(self.pieces.peek(slot).stripe).read;
        let read = self.reads.at(read);
        read.laps.ordered(self.now);
        if read.is_traced() {
            self.trace_order(slot);
        }
        courier.order(rail, order);
        true
    }

    /// `None` when a staged piece finds no staging memory.
    fn order_of(&mut self, slot: u32, rail: usize) -> Option<crate::mail::Order> {
        let piece = self.pieces.peek(slot);
        let stripe = self.stripes.peek(piece.stripe);
        let object = self.reads.peek(stripe.read).object;
        let (kind, shape, attempts) = (piece.kind, piece.shape, piece.attempts);
        let path = self.object(object).inner.path(stripe.index, rail, attempts)?;
        let single = shape.read_from == 0 && shape.want_to == stripe.to && stripe.from == 0;
        let hash = match stripe.verify {
            Verify::Whole(_) if single && kind == PieceKind::Direct => Hash::Bytes(stripe.to),
            _ => Hash::None,
        };
        let base = if kind == PieceKind::Table { path.table_offset } else { path.offset };
        let part = match kind {
            PieceKind::Direct => self.pieces.at(slot).part.take()?,
            PieceKind::Staged | PieceKind::Table => self.staging_part(slot, rail)?,
        };
        let piece = self.pieces.at(slot);
        piece.state = PieceState::Ordered;
        Some(Order {
            home: self.index,
            piece: self.pieces.id_of(slot),
            target: path.target,
            offset: base + shape.read_from,
            bytes_min: shape.bytes_min,
            part,
            hash,
        })
    }

    /// Staging memory of exactly the piece's length; the rest of the buffer waits in the loan.
    fn staging_part(&mut self, slot: u32, rail: usize) -> Option<railring_dma::Part> {
        let piece = self.pieces.peek(slot);
        let bytes = piece.shape.read_bytes;
        let wanted_for = match piece.kind {
            PieceKind::Table => StagedFor::Table,
            _ => StagedFor::Bytes,
        };
        let lease = self.feeds[rail].staging.take(bytes, wanted_for)?;
        let (mut loan, part) = lease.lend();
        let (part, rest) = part.split_at(usize::try_from(bytes).ok()?);
        if loan.repay(rest).is_err() {
            unreachable!("a part goes back to the loan it was split from");
        }
        if wanted_for == StagedFor::Bytes {
            self.feeds[rail].starves_since = Nanos::NEVER;
        }
        self.pieces.at(slot).loan = Some(loan);
        self.shared.desks[usize::from(self.index)].counters.staged_pieces.add(1);
        Some(part)
    }

    /// Begins to fetch the block table of a stripe.
    pub(super) fn fetch_table(&mut self, stripe_slot: u32, now: Nanos, courier: &mut impl Courier) {
        let stripe = self.stripes.peek(stripe_slot);
        let object = &self.object(self.reads.peek(stripe.read).object).inner;
        let bytes = u64::from(object.placement.blocks(stripe.index)) * 8;
        let reach = object.rails(stripe.index);
        let align = u64::from(self.rules.alignment.length_bytes);
        let usable = self.usable(reach);
        let shape = crate::plan::PieceShape {
            way: crate::plan::Way::Staged,
            read_from: 0,
            read_bytes: bytes.next_multiple_of(align),
            bytes_min: bytes,
            want_from: 0,
            want_to: 0,
        };
        let Some(rail) = self.choose(usable, RailMask::default(), shape.read_bytes) else {
            let none = reach.is_empty();
            let status = if none { sq_cq::Status::NO_RAIL } else { sq_cq::Status::RAIL_DOWN };
            self.fail_stripe(stripe_slot, status, now, courier);
            return;
        };
        let mut piece = Piece::new(stripe_slot, PieceKind::Table, shape, None);
        piece.alternatives = reach.count() > 1;
        let Ok(id) = self.pieces.insert(piece) else { unreachable!("the caller saw room") };
        let stripe = self.stripes.at(stripe_slot);
        stripe.table_fetch = id.slot;
        stripe.pieces_out += 1;
        self.shared.desks[usize::from(self.index)].counters.table_fetches.add(1);
        self.stage_piece(id.slot, rail);
    }

    /// A piece came back from its rail: its place in the window is free.
    pub(super) fn unorder(&mut self, id: Id<Piece>, rail: usize) {
        let bytes = self.pieces.peek(id.slot).shape.read_bytes;
        let feed = &mut self.feeds[rail];
        feed.ordered -= 1;
        feed.ordered_bytes -= bytes;
        self.loads[rail].outstanding_bytes -= bytes;
        self.shared.give_back_room(1, bytes);
    }
}
