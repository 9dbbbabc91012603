//! The short way: a read of one stripe that is one direct piece on a rail with room.
//!
//! Most reads of latency-sensitive callers are that. Such a read is one entry instead of three,
//! goes to its rail in the turn that admits it, and ends in the turn that reaps it. Whatever else
//! can happen to it (a cancel, a failure, a mismatch, a ring that is dropped) first *promotes* it
//! to the read, stripe and piece it stands for, which then know what to do: there is one set of
//! rules.

use railring_dma::Part;
use railring_transport::Nanos;
use sq_cq::{Cqe, CqeFields, Opcode, Permit, Sqe, SqeFlags, Status};

use super::{
    Attached, Courier, Home, Piece, PieceKind, PieceState, Read, Stripe, Verify, proof_of,
};
use crate::health::Standing;
use crate::mail::{Done, Hash, News, Order};
use crate::memory::{Memory, Returned};
use crate::plan::{CutRules, PieceShape, Way};
use crate::schedule::{Policy, RailMask};
use crate::slab::{Id, NONE};
use crate::stages::ClassCounters;

/// In a ring's table of reads, marks the slot of a solo.
pub(super) const SOLO: u32 = 1 << 31;

/// One read in flight as one piece.
#[derive(Debug)]
pub(crate) struct Solo {
    permit: Option<Permit>,
    user_data: u64,
    object: u32,
    ring: u16,
    stripe: u16,
    from: u64,
    to: u64,
    verify: Verify,
    pushed_at: Nanos,
    begun_at: Nanos,
    flags: SqeFlags,
    rail: u8,
    /// The piece it was promoted to.
    promoted: u32,
}

/// What the short way needs to know of a read before it takes it.
struct Cut {
    stripe: u32,
    from: u64,
    to: u64,
    verify: Verify,
}

impl Home {
    /// Takes an SQE the short way, or gives everything back for the long one.
    #[inline]
    pub(super) fn begin_solo(
        &mut self,
        ring: usize,
        sqe: &Sqe,
        permit: Permit,
        attached: Attached,
        courier: &mut impl Courier,
    ) -> Result<(), (Permit, Attached)> {
        let plain = sqe.opcode() == Opcode::ReadRange
            && sqe.get_deadline_ns() == 0
            && attached.token.is_none()
            && !permit.is_cancelled()
            && !self.stopping
            && !self.corks(ring)
            && !self.caller_is_gone(ring);
        let (true, Memory::One(part)) = (plain, &attached.memory) else {
            return Err((permit, attached));
        };
        let Some(way) = self.solo_way(sqe, part) else { return Err((permit, attached)) };
        let Some(rail) = self.solo_rail(sqe.object().slot, way.stripe, part.len() as u64) else {
            return Err((permit, attached));
        };
        let Attached { memory, token, pushed_at } = attached;
        let Memory::One(part) = memory else { unreachable!("seen above") };
        let read = permit.read_id();
        let solo = Solo {
            permit: Some(permit),
            user_data: sqe.get_user_data(),
            object: sqe.object().slot,
            ring: ring as u16,
            stripe: way.stripe as u16,
            from: way.from,
            to: way.to,
            verify: way.verify,
            pushed_at,
            begun_at: self.now,
            flags: sqe.get_flags(),
            rail: rail as u8,
            promoted: NONE,
        };
        let bytes = part.len() as u64;
        match self.solos.insert(solo) {
            Ok(id) => {
                if let Some(seat) = &mut self.seats[ring] {
                    seat.reads[read.slot as usize] = id.slot | SOLO;
                }
                self.order_solo(id, way, part, courier);
                Ok(())
            }
            Err(solo) => {
                self.shared.give_back_room(1, bytes);
                let memory = Memory::One(part);
                let permit = solo.permit.expect("put there above");
                Err((permit, Attached { memory, token, pushed_at }))
            }
        }
    }

    /// Which stripe, and by what it is verified; `None` if it would not be one direct piece.
    #[inline]
    fn solo_way(&self, sqe: &Sqe, part: &Part) -> Option<Cut> {
        let object = self.objects.get(sqe.object().slot as usize)?.as_ref()?;
        let inner = &object.inner;
        if inner.handle != sqe.object() {
            return None;
        }
        let (offset, bytes) = (sqe.offset(), sqe.len());
        let layout = &inner.layout;
        if bytes == 0 || bytes > self.rules.whole_bytes_max() || bytes > layout.stripe_bytes {
            return None;
        }
        let stripe = (offset / layout.stripe_bytes) as u32;
        if bytes > self.rules.shared_bytes_max && inner.rails(stripe).count() > 1 {
            return None;
        }
        let from = offset - u64::from(stripe) * layout.stripe_bytes;
        let to = from + bytes;
        let align = self.rules.alignment;
        let grain = CutRules::grain_of(1, align);
        let address = part.address().as_ptr() as u64;
        if to > layout.stripe_bytes || (from | address) & (grain - 1) != 0 {
            return None;
        }
        let stripe_len = layout.stripe_len(stripe);
        let ends = if to == stripe_len { u64::from(align.length_bytes) } else { grain };
        if to & (ends - 1) != 0 {
            return None;
        }
        let verify = match inner.placement.checksum(stripe) {
            None => Verify::Nothing,
            Some(_) if sqe.get_flags().contains(SqeFlags::SKIP_VERIFY) => Verify::Nothing,
            Some(sum) if from == 0 && to == stripe_len => Verify::Whole(sum),
            Some(_) => return None,
        };
        Some(Cut { stripe, from, to, verify })
    }

    /// A rail that can take the piece at once, with its room taken.
    #[inline]
    fn solo_rail(&mut self, object: u32, stripe: u32, bytes: u64) -> Option<usize> {
        if self.pieces_are_full() || self.stripes_are_full() {
            return None;
        }
        let inner = &self.object(object).inner;
        let reach = inner.rails(stripe);
        let rail = if reach.count() == 1 {
            reach.0.trailing_zeros() as usize
        } else if self.scheduler.policy() == Policy::LeastLoaded {
            let usable = self.usable(reach);
            if usable.is_empty() {
                return None;
            }
            self.scheduler.choose(usable, RailMask::default(), bytes, &self.loads)
        } else {
            return None; // These policies count what they choose: the long way, once.
        };
        if self.shared.rails[rail].state.get() != Standing::Up {
            return None; // A probe, or nothing: the long way knows.
        }
        let feed = &self.feeds[rail];
        let room = feed.staged.len() == 0
            && feed.waiters.len() == 0
            && feed.ordered < feed.ordered_max
            && (feed.ordered == 0
                || feed.ordered_bytes.saturating_add(bytes) <= feed.ordered_bytes_max);
        let room = room && self.hungry.is_none();
        (room && self.shared.take_room(self.index, bytes)).then_some(rail)
    }

    #[inline]
    fn order_solo(&mut self, id: Id<Solo>, way: Cut, part: Part, courier: &mut impl Courier) {
        let solo = self.solos.at(id.slot);
        let (rail, object) = (usize::from(solo.rail), solo.object);
        let bytes = part.len() as u64;
        let feed = &mut self.feeds[rail];
        feed.ordered += 1;
        feed.ordered_bytes += bytes;
        self.loads[rail].outstanding_bytes += bytes;
        let piece = self.solo_piece_id(id);
        let object = self.objects[object as usize].as_mut().expect("seen above");
        object.reads += 1;
        let path = object.inner.path(way.stripe, rail, 0).expect("the rail reaches an owner");
        let hash = match way.verify {
            Verify::Whole(_) => Hash::Bytes(way.to),
            _ => Hash::None,
        };
        let (target, offset) = (path.target, path.offset + way.from);
        let order = Order { home: self.index, piece, target, offset, bytes_min: bytes, part, hash };
        courier.order(rail, order);
    }

    /// The id under which a solo's rail knows its piece.
    #[inline]
    fn solo_piece_id(&self, id: Id<Solo>) -> Id<Piece> {
        Id::new(self.pieces.capacity() + id.slot, id.generation)
    }

    /// Takes a solo's news: it ends here if all is well.
    #[inline]
    pub(super) fn receive_solo(&mut self, done: Done, now: Nanos, courier: &mut impl Courier) {
        let slot = done.piece.slot - self.pieces.capacity();
        let solo = self.solos.at(slot);
        if solo.promoted == NONE {
            let good = match (&done.news, solo.verify) {
                (News::Landed { hash }, Verify::Whole(sum)) => *hash == sum,
                (News::Landed { .. }, _) => true,
                _ => false,
            };
            if good {
                self.finish_solo(slot, done.part, now);
                return;
            }
            self.promote(slot);
        }
        let promoted = self.solos.remove_at(slot).promoted;
        self.pieces.at(promoted).alias = None;
        let piece = self.pieces.id_of(promoted);
        self.land(Done { piece, ..done }, now, courier);
    }

    #[inline]
    fn finish_solo(&mut self, slot: u32, part: Option<Part>, now: Nanos) {
        let solo = self.solos.remove_at(slot);
        let bytes = solo.to - solo.from;
        let rail = usize::from(solo.rail);
        let feed = &mut self.feeds[rail];
        feed.ordered -= 1;
        feed.ordered_bytes -= bytes;
        let on_disk = feed.is_disk;
        self.loads[rail].outstanding_bytes -= bytes;
        self.shared.give_back_room(1, bytes);
        let counters = &self.shared.desks[usize::from(self.index)].counters;
        counters.stripes.add(1);
        counters.reads.add(1);
        let times = [solo.pushed_at, solo.begun_at, now];
        ClassCounters::record_one(&counters.classes, bytes, times, on_disk);
        let object = self.objects[solo.object as usize].as_mut().expect("kept by its reads");
        object.reads -= 1;
        let closing = object.closing;
        let checksum = match solo.verify {
            Verify::Whole(sum) => sum,
            _ if solo.from == 0 => {
                let inner = &object.inner;
                let whole = solo.to == inner.layout.stripe_len(solo.stripe.into());
                let sum = inner.placement.checksum(solo.stripe.into());
                if whole { sum.unwrap_or(0) } else { 0 }
            }
            _ => 0,
        };
        if closing {
            self.let_go(solo.object);
        }
        let fields = CqeFields {
            user_data: solo.user_data,
            status: Status::OK,
            read_status: Status::OK,
            stripe: solo.stripe,
            rail: Some(solo.rail),
            attempts: 1,
            internal: false,
            proof: proof_of(solo.verify),
            bytes,
            checksum,
            total_bytes: bytes,
            failed_stripes: 0,
            latency_ns: now.since(solo.pushed_at),
            bad_block: None,
        };
        let Some(permit) = solo.permit else { return };
        let Some(seat) = &mut self.seats[usize::from(solo.ring)] else {
            permit.abandon();
            return;
        };
        seat.reads[permit.read_id().slot as usize] = NONE;
        seat.in_progress -= 1;
        if seat.is_gone() {
            permit.abandon();
            if let Some(part) = part {
                self.shared.impound.repay(part);
            }
            return;
        }
        seat.end.finish(permit, Cqe::new(&fields), Returned { part, lead_bytes: 0, list: None });
        self.mark_unpublished(solo.ring);
    }

    /// Turns a solo into the read, stripe and piece it stands for. Room for them was kept.
    pub(super) fn promote(&mut self, slot: u32) -> u32 {
        let id = self.solos.id_of(slot);
        let alias = self.solo_piece_id(id);
        let solo = self.solos.at(slot);
        let (from, to, stripe, rail) = (solo.from, solo.to, solo.stripe, solo.rail);
        let (verify, object, ring) = (solo.verify, solo.object, solo.ring);
        let Some(permit) = solo.permit.take() else {
            return self.stripes.peek(self.pieces.peek(solo.promoted).stripe).read;
        };
        let caller_slot = permit.read_id().slot as usize;
        let (pushed_at, begun_at) = (solo.pushed_at, solo.begun_at);
        let mut read = Read::new(ring, permit, solo.user_data, object, solo.flags, pushed_at);
        read.laps.begin(pushed_at, begun_at);
        read.laps.ordered(begun_at);
        let reach = self.object(object).inner.rails(stripe.into());
        read.offset = u64::from(stripe) * self.object(object).inner.layout.stripe_bytes + from;
        read.len = to - from;
        read.carved_to = read.offset + read.len;
        read.stripes_left = 1;
        read.piece_bytes = self.rules.piece_bytes_max;
        let room = "room was kept when the solo began";
        let read_slot = self.reads.insert(read).map_err(|_| ()).expect(room).slot;
        let mut entry = Stripe::new(read_slot, stripe.into(), (from, to), verify, 0);
        entry.at = to;
        let stripe_slot = self.stripes.insert(entry).map_err(|_| ()).expect(room).slot;
        self.reads.at(read_slot).active.push_back(&mut self.stripes, stripe_slot);
        let bytes = to - from;
        let shape = PieceShape {
            way: Way::Direct,
            read_from: from,
            read_bytes: bytes,
            bytes_min: bytes,
            want_from: from,
            want_to: to,
        };
        let mut piece = Piece::new(stripe_slot, PieceKind::Direct, shape, None);
        piece.state = PieceState::Ordered;
        piece.rail = rail;
        piece.alternatives = reach.count() > 1;
        piece.tried = RailMask::default();
        piece.alias = Some(alias);
        let piece_slot = self.pieces.insert(piece).map_err(|_| ()).expect(room).slot;
        self.append(stripe_slot, piece_slot);
        self.solos.at(slot).promoted = piece_slot;
        if let Some(seat) = &mut self.seats[usize::from(ring)] {
            seat.reads[caller_slot] = read_slot;
        }
        read_slot
    }

    /// The read behind an entry of a ring's table, promoted if it is a solo.
    pub(super) fn resolve(&mut self, entry: u32) -> u32 {
        if entry & SOLO == 0 { entry } else { self.promote(entry & !SOLO) }
    }
}
