//! Cutting: the stripes of a read begin in order, and each becomes pieces as its rails have room.

use railring_transport::Nanos;
use sq_cq::{SqeFlags, Status};

use super::{
    Courier, Home, NOT_PARKED, Piece, PieceKind, QUOTA, RailFacts, STAGED_MAX, Stripe, Verify,
};
use crate::config::EngineConfig;
use crate::health::Standing;
use crate::plan::{CutRules, Landing, PieceShape, Way};
use crate::schedule::{Policy, RailMask};
use crate::slab::NONE;
use crate::staging::STAGED_BYTES;

/// A read over several rails is cut into about so many pieces per rail, so that a rail that
/// finishes last is late by less than a hundredth of the read.
const PIECES_PER_RAIL: u64 = 128;
pub(super) const PIECE_BYTES_MIN: u64 = 64 << 10;

/// What became of a read's planning.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Planned {
    /// Everything is cut, or the read is ending.
    All,
    /// It waits for this rail.
    Waits(usize),
}

impl Home {
    /// A read begins: it is cut finer if several rails can share it, so that they finish together.
    pub(super) fn size_pieces(&mut self, slot: u32) {
        let rails = self.feeds.len() as u64;
        let limit = self.rules.whole_bytes_max();
        let now = self.now;
        let read = self.reads.at(slot);
        read.laps.begin(read.pushed_at, now);
        let len = read.len;
        if let Some(trace) = read.trace() {
            trace.begun(len, now);
        }
        let shared = rails > 1 && self.scheduler.policy() != Policy::Fixed;
        read.piece_bytes = if shared {
            // Rounded down to a power of two, so that it is a multiple of every block size.
            let fine = 1 << (read.len / (rails * PIECES_PER_RAIL)).max(1).ilog2();
            u64::clamp(fine, PIECE_BYTES_MIN.min(limit), limit)
        } else {
            limit
        };
    }

    /// Cuts as much of a read as its rails have room for.
    pub(super) fn plan(&mut self, slot: u32, quota: u32, now: Nanos, courier: &mut impl Courier) {
        let id = self.reads.id_of(slot);
        for _ in 0..quota {
            // Failing a stripe can end the read.
            let Some(read) = self.reads.get_mut(id) else { return };
            if read.ending.is_some() {
                return;
            }
            if read.cutting == NONE {
                if read.stripes.peek().is_none() {
                    return;
                }
                if self.stripes_are_full() || !self.activate(slot, now, courier) {
                    let rail = self.next_rail(slot);
                    self.park(slot, rail);
                    return;
                }
                if self.reads.get_mut(id).is_none_or(|read| read.cutting == NONE) {
                    continue;
                }
            }
            if let Planned::Waits(rail) = self.cut(slot, now, courier) {
                self.park(slot, rail);
                return;
            }
        }
        let more = self.reads.get_mut(id).is_some_and(|read| {
            read.ending.is_none() && (read.cutting != NONE || read.stripes.peek().is_some())
        });
        if more {
            let rail = self.next_rail(slot);
            self.park(slot, rail);
        }
    }

    /// The rail that a read with its quota used up queues for.
    fn next_rail(&mut self, slot: u32) -> usize {
        let read = self.reads.peek(slot);
        let index = if read.cutting == NONE {
            read.stripes.peek().unwrap_or(0)
        } else {
            self.stripes.peek(read.cutting).index
        };
        let reach = self.object(read.object).inner.rails(index);
        // One that nobody reaches fails as soon as it is looked at, wherever it queued.
        if reach.is_empty() { 0 } else { reach.0.trailing_zeros() as usize }
    }

    fn park(&mut self, slot: u32, rail: usize) {
        let read = self.reads.at(slot);
        if read.parked != NOT_PARKED {
            return;
        }
        read.parked = u8::try_from(rail).expect("at most 64 rails");
        self.feeds[rail].waiters.push_back(&mut self.reads, slot);
        self.busy = self.busy.with(RailMask::of(rail));
    }

    /// Lets reads that wait for `rail` go on, the longest-waiting first.
    pub(super) fn resume(&mut self, rail: usize, now: Nanos, courier: &mut impl Courier) {
        for _ in 0..self.feeds[rail].waiters.len() {
            if self.feeds[rail].staged.len() >= STAGED_MAX || self.pieces_are_full() {
                return;
            }
            let Some(slot) = self.feeds[rail].waiters.pop_front(&mut self.reads) else { return };
            self.reads.at(slot).parked = NOT_PARKED;
            self.plan(slot, QUOTA, now, courier);
        }
    }

    /// Begins the next stripe of a read. `false`: not now.
    fn activate(&mut self, slot: u32, now: Nanos, courier: &mut impl Courier) -> bool {
        let read = self.reads.at(slot);
        let Some(index) = read.stripes.peek() else { return true };
        let (object, offset, len) = (read.object, read.offset, read.len);
        let skip_verify = read.flags.contains(SqeFlags::SKIP_VERIFY);
        let seat = self.objects[object as usize].as_ref().expect("a read keeps its object");
        let inner = &seat.inner;
        let cut = inner.layout.cut(index, offset, len);
        let whole = cut.from == 0 && cut.to == inner.layout.stripe_len(index);
        let verify = match (inner.placement.checksum(index), skip_verify) {
            (Some(sum), false) if whole => Verify::Whole(sum),
            (Some(_), false) => {
                inner.placement.table_checksum(index).map_or(Verify::Nothing, Verify::Blocks)
            }
            _ => Verify::Nothing,
        };
        let start = u64::from(index) * inner.layout.stripe_bytes + cut.from;
        let needs_table = matches!(verify, Verify::Blocks(_)) && !self.has_table(object, index);
        if needs_table && self.pieces_are_full() {
            return false;
        }
        let read = self.reads.at(slot);
        read.stripes.advance();
        let lead_bytes = start - read.carved_to;
        let stripe = Stripe::new(slot, index, (cut.from, cut.to), verify, lead_bytes);
        let Ok(id) = self.stripes.insert(stripe) else { unreachable!("checked by the caller") };
        let read = self.reads.at(slot);
        read.cutting = id.slot;
        read.active.push_back(&mut self.stripes, id.slot);
        if needs_table {
            self.fetch_table(id.slot, now, courier);
        }
        true
    }

    /// Cuts the next piece of the stripe that a read has begun.
    fn cut(&mut self, slot: u32, now: Nanos, courier: &mut impl Courier) -> Planned {
        let (stripe_slot, object) = {
            let read = self.reads.peek(slot);
            (read.cutting, read.object)
        };
        let index = self.stripes.peek(stripe_slot).index;
        let reach = self.object(object).inner.rails(index);
        let usable = self.usable(reach);
        if usable.is_empty() {
            let status = if reach.is_empty() { Status::NO_RAIL } else { Status::RAIL_DOWN };
            self.fail_stripe(stripe_slot, status, now, courier);
            return Planned::All;
        }
        let shape = self.shape(slot, stripe_slot);
        let bytes = shape.want_to - shape.want_from;
        let preferred = if self.scheduler.policy() == Policy::EndpointAffinity {
            self.object(object).inner.preferred(index)
        } else {
            RailMask::default()
        };
        let candidates = self.with_room(usable);
        if candidates.is_empty() || self.pieces_are_full() {
            return Planned::Waits(usable.0.trailing_zeros() as usize);
        }
        let Some(rail) = self.choose(candidates, preferred, bytes) else {
            self.fail_stripe(stripe_slot, Status::RAIL_DOWN, now, courier);
            return Planned::All;
        };
        let kind = match shape.way {
            Way::Direct => PieceKind::Direct,
            Way::Staged => PieceKind::Staged,
        };
        let part = self.carve(slot, stripe_slot, bytes);
        let mut piece = Piece::new(stripe_slot, kind, shape, part);
        piece.alternatives = reach.count() > 1;
        let Ok(id) = self.pieces.insert(piece) else { unreachable!("checked above") };
        self.append(stripe_slot, id.slot);
        let stripe = self.stripes.at(stripe_slot);
        stripe.at = shape.want_to;
        if stripe.at == stripe.to {
            self.reads.at(slot).cutting = NONE;
        }
        self.stage_piece(id.slot, rail);
        Planned::All
    }

    /// The wanted bytes' memory. The gap before a stripe's first byte travels with its first
    /// piece's stripe, apart from the piece.
    fn carve(&mut self, slot: u32, stripe_slot: u32, bytes: u64) -> Option<railring_dma::Part> {
        let read = self.reads.at(slot);
        let stripe = self.stripes.at(stripe_slot);
        if stripe.at == stripe.from && stripe.lead_bytes > 0 {
            stripe.lead = read.memory.carve(stripe.lead_bytes);
            read.carved_to += stripe.lead_bytes;
        }
        read.carved_to += bytes;
        read.memory.carve(bytes)
    }

    /// The next piece's shape, which ends with the lease it lands in at the latest.
    fn shape(&self, slot: u32, stripe_slot: u32) -> PieceShape {
        let read = self.reads.peek(slot);
        let stripe = self.stripes.peek(stripe_slot);
        let inner = &self.object(read.object).inner;
        let layout = inner.layout;
        let block = if matches!(stripe.verify, Verify::Blocks(_)) { layout.block_bytes } else { 1 };
        let grain = CutRules::grain_of(block, self.rules.alignment);
        let rules = CutRules {
            stripe_len: layout.stripe_len(stripe.index),
            grain,
            length_align: self.rules.alignment.length_bytes.into(),
            // Finer than that helps only where another rail could take a piece.
            piece_bytes: match inner.rails(stripe.index).count() {
                0 | 1 => self.rules.whole_bytes_max(),
                _ => read.piece_bytes,
            },
            request_bytes_max: self.rules.request_bytes_max,
            staging_bytes: STAGED_BYTES.max(grain),
        };
        let gap = if stripe.at == stripe.from { stripe.lead_bytes } else { 0 };
        let (address, run) = read.memory.front().unwrap_or((0, 0));
        let address = address as u64 + gap;
        let to = stripe.to.min(stripe.at + run.saturating_sub(gap).max(1));
        // Where the stripe's first byte would lie decides for all of it.
        let origin = address.wrapping_sub(stripe.at);
        let landing = if origin & (u64::from(self.rules.alignment.memory_bytes) - 1) == 0 {
            Landing::Aligned
        } else {
            Landing::Misaligned
        };
        rules.piece(stripe.at, to, landing)
    }

    pub(super) fn append(&mut self, stripe_slot: u32, piece: u32) {
        let stripe = self.stripes.at(stripe_slot);
        stripe.pieces_out += 1;
        if stripe.head == NONE {
            stripe.head = piece;
            stripe.base = piece;
        } else {
            self.pieces.at(stripe.tail).next = piece;
        }
        stripe.tail = piece;
    }

    /// Those of `rails` that a piece may wait for: up, or about to be known again.
    #[inline]
    pub(super) fn usable(&self, rails: RailMask) -> RailMask {
        rails.and(self.shared.marks.open())
    }

    /// Picks a rail for `bytes`. One that waits for a probe is given one piece; what would have to
    /// wait for what comes of a probe goes there only if there is no other rail. `None`: there are
    /// no candidates.
    pub(super) fn choose(
        &mut self,
        candidates: RailMask,
        preferred: RailMask,
        bytes: u64,
    ) -> Option<usize> {
        let ready = candidates
            .iter()
            .filter(|&rail| match self.shared.rails[rail].state.get() {
                Standing::Up => true,
                Standing::Offered => self.feeds[rail].staged.len() == 0,
                _ => false,
            })
            .fold(RailMask::default(), |ready, rail| ready.with(RailMask::of(rail)));
        let from = if ready.is_empty() { candidates } else { ready };
        (!from.is_empty()).then(|| self.scheduler.choose(from, preferred, bytes, &self.loads))
    }

    fn with_room(&self, rails: RailMask) -> RailMask {
        let full = rails
            .iter()
            .filter(|&rail| self.feeds[rail].staged.len() >= STAGED_MAX)
            .fold(RailMask::default(), |full, rail| full.with(RailMask::of(rail)));
        rails.without(full)
    }
}

/// Longest piece of a stripe that several rails could share, if it is a whole read.
pub(super) fn shared_bytes_max(config: &EngineConfig, rails: &[RailFacts]) -> u64 {
    let shared = rails.len() > 1 && config.policy != Policy::Fixed;
    if shared { PIECE_BYTES_MIN } else { u64::MAX }
}
