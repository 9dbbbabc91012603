//! The short way: a read of one stripe that is one direct piece on a rail with room.
//!
//! Most reads of latency-sensitive callers are that. Such a read is one entry instead of three,
//! goes to its rail in the turn that admits it, and ends in the turn that reaps it. Whatever else
//! can happen to it (a cancel, a failure, a mismatch, a ring that is dropped) first *promotes* it
//! to the read, stripe and piece it stands for, which then know what to do: there is one set of
//! rules.

use railring_dma::Part;
use railring_transport::Nanos;
use sq_cq::{Cqe, CqeFields, Opcode, Permit, Proof, Sqe, SqeFlags, Status};

use super::{Attached, Courier, Home, Piece, PieceKind, PieceState, Read, Stripe, Verify};
use crate::mail::{Done, Hash, News, Order};
use crate::memory::{Memory, Returned};
use crate::object::{ObjectInner, Path};
use crate::plan::{PieceShape, Way};
use crate::schedule::{Policy, RailMask, least_loaded};
use crate::slab::{Id, NONE};

/// In a ring's table of reads, marks the slot of a solo.
pub(super) const SOLO: u32 = 1 << 31;

/// One read in flight as one piece.
#[derive(Debug)]
pub(crate) struct Solo {
    permit: Option<Permit>,
    user_data: u64,
    /// The wanted bytes begin here in the stripe.
    from: u64,
    bytes: u64,
    /// Of the stripe, if all of it is wanted and it has one.
    checksum: u64,
    pushed_at: Nanos,
    begun_at: Nanos,
    object: u32,
    /// The piece it was promoted to.
    promoted: u32,
    ring: u16,
    stripe: u16,
    flags: SqeFlags,
    rail: u8,
    /// By its checksum.
    verified: bool,
}

/// What the short way needs to know of a read before it takes it.
pub(super) struct SoloWay {
    stripe: u32,
    from: u64,
    checksum: u64,
    verified: bool,
    rail: usize,
    path: Path,
}

impl Solo {
    fn verify(&self) -> Verify {
        if self.verified { Verify::Whole(self.checksum) } else { Verify::Nothing }
    }
}

impl Home {
    /// How many reads of a ring may go the short way before anything else is looked at. A solo
    /// keeps the room it would be promoted to.
    pub(super) fn solos_max(&self, ring: usize) -> u32 {
        let waits = self.stopping || self.hungry.is_some() || self.corks(ring);
        if waits || self.caller_is_gone(ring) {
            return 0;
        }
        let solos = self.solos.len();
        let free = |used: u32, of: u32| of.saturating_sub(used + solos);
        free(self.reads.len() - self.corked, self.reads_max)
            .min(free(self.reads.len(), self.reads.capacity()))
            .min(free(self.stripes.len(), self.stripes.capacity()))
            .min(free(self.pieces.len(), self.pieces.capacity()))
    }

    /// The short way of a read, if it has one, with its room taken.
    #[inline(always)]
    pub(super) fn solo_way(
        &mut self,
        sqe: &Sqe,
        permit: &Permit,
        attached: &Attached,
    ) -> Option<SoloWay> {
        let Memory::One(part) = &attached.memory else { return None };
        let plain = sqe.opcode() == Opcode::ReadRange
            && sqe.get_deadline_ns() == 0
            && attached.token.is_none()
            && !permit.is_cancelled();
        if !plain {
            return None;
        }
        let object = self.objects.get(sqe.object().slot as usize)?.as_ref()?;
        let inner = &object.inner;
        let (offset, bytes) = (sqe.offset(), sqe.len());
        let layout = &inner.layout;
        if inner.handle != sqe.object() || bytes == 0 || bytes > self.rules.solo_bytes_max {
            return None;
        }
        let (stripe, from) = layout.place(offset);
        let to = from + bytes;
        // The range was found to be within the object when it was pushed.
        let to_end = to == layout.stripe_bytes || offset + bytes == layout.size_bytes;
        let address = part.address().as_ptr() as u64;
        let align = u64::from(self.rules.alignment.length_bytes);
        let ends = if to_end { align } else { self.rules.grain };
        let uneven = (from | address) & (self.rules.grain - 1) | to & (ends - 1);
        if to > layout.stripe_bytes || uneven != 0 {
            return None;
        }
        let whole = from == 0 && to_end;
        let sum = inner.placement.checksum(stripe);
        let verified = sum.is_some() && !sqe.get_flags().contains(SqeFlags::SKIP_VERIFY);
        if verified && !whole {
            return None;
        }
        let (rail, path) = match inner.only_path(stripe) {
            Some(only) => only,
            None => self.solo_choice(inner, stripe, bytes)?,
        };
        let feed = &self.feeds[rail];
        let room = self.shared.marks.up().contains(rail)
            && feed.staged.len() == 0
            && feed.waiters.len() == 0
            && feed.ordered < feed.ordered_max
            && (feed.ordered == 0
                || feed.ordered_bytes.saturating_add(bytes) <= feed.ordered_bytes_max);
        if !room || !self.shared.take_room(self.index, bytes) {
            return None;
        }
        let checksum = if whole { sum.unwrap_or(0) } else { 0 };
        Some(SoloWay { stripe, from, checksum, verified, rail, path })
    }

    /// The rail for a piece that several rails could take.
    #[inline]
    fn solo_choice(&self, inner: &ObjectInner, stripe: u32, bytes: u64) -> Option<(usize, Path)> {
        let reach = inner.rails(stripe);
        // The other policies count what they choose: the long way, once.
        let chooses = self.scheduler.policy() != Policy::LeastLoaded;
        if reach.count() > 1 && (chooses || bytes > self.rules.shared_bytes_max) {
            return None;
        }
        let up = reach.and(self.shared.marks.up());
        // A probe may be due, or nothing is left: the long way knows.
        if up.is_empty() || (up != reach && self.usable(reach) != up) {
            return None;
        }
        let rail = least_loaded(up, bytes, &self.loads);
        Some((rail, inner.path(stripe, rail, 0)?))
    }

    /// Gives a read to its rail.
    #[inline]
    pub(super) fn begin_solo(
        &mut self,
        ring: usize,
        way: SoloWay,
        sqe: &Sqe,
        permit: Permit,
        attached: Attached,
        courier: &mut impl Courier,
    ) {
        let Attached { memory, token, pushed_at } = attached;
        let Memory::One(part) = memory else { unreachable!("only such reads have a short way") };
        debug_assert!(token.is_none());
        std::mem::forget(token);
        let SoloWay { stripe, from, checksum, verified, rail, path } = way;
        let (read, bytes, object) = (permit.read_id(), sqe.len(), sqe.object().slot);
        let id = self.solos.put(Solo {
            permit: Some(permit),
            user_data: sqe.get_user_data(),
            from,
            bytes,
            checksum,
            pushed_at,
            begun_at: self.now,
            object,
            promoted: NONE,
            ring: ring as u16,
            stripe: stripe as u16,
            flags: sqe.get_flags(),
            rail: rail as u8,
            verified,
        });
        if let Some(seat) = &mut self.seats[ring] {
            seat.reads[read.slot as usize] = id.slot | SOLO;
        }
        if let Some(object) = &mut self.objects[object as usize] {
            object.reads += 1;
        }
        let feed = &mut self.feeds[rail];
        feed.ordered += 1;
        feed.ordered_bytes += bytes;
        self.loads[rail].outstanding_bytes += bytes;
        let hash = if verified { Hash::Bytes(bytes) } else { Hash::None };
        let (home, piece) = (self.index, self.solo_piece_id(id));
        let (target, offset) = (path.target, path.offset + from);
        courier.order(rail, Order { home, piece, target, offset, bytes_min: bytes, part, hash });
    }

    /// The id under which a solo's rail knows its piece.
    #[inline]
    fn solo_piece_id(&self, id: Id<Solo>) -> Id<Piece> {
        Id::new(self.pieces.capacity() + id.slot, id.generation)
    }

    /// Ends a solo of which all is well; `false` leaves any other news as it is.
    #[inline(always)]
    pub(crate) fn end_solo(&mut self, done: &mut Done, now: Nanos) -> bool {
        let pieces = self.pieces.capacity();
        let News::Landed { hash } = done.news else { return false };
        if done.piece.slot < pieces {
            return false;
        }
        let slot = done.piece.slot - pieces;
        let solo = self.solos.at(slot);
        if solo.promoted != NONE || (solo.verified && solo.checksum != hash) {
            return false;
        }
        self.finish_solo(slot, done.part.take(), now);
        true
    }

    /// Takes a solo's news: it ends here if all is well.
    pub(super) fn receive_solo(&mut self, mut done: Done, now: Nanos, courier: &mut impl Courier) {
        if self.end_solo(&mut done, now) {
            return;
        }
        let slot = done.piece.slot - self.pieces.capacity();
        if self.solos.at(slot).promoted == NONE {
            self.promote(slot);
        }
        let promoted = self.solos.remove_at(slot).promoted;
        self.pieces.at(promoted).alias = None;
        let piece = self.pieces.id_of(promoted);
        self.land(Done { piece, ..done }, now, courier);
    }

    #[inline]
    fn finish_solo(&mut self, slot: u32, part: Option<Part>, now: Nanos) {
        let solo = self.solos.at(slot);
        let permit = solo.permit.take();
        let (ring, rail, bytes, object) = (solo.ring, solo.rail, solo.bytes, solo.object);
        let fields = CqeFields {
            user_data: solo.user_data,
            status: Status::OK,
            read_status: Status::OK,
            stripe: solo.stripe,
            rail: Some(rail),
            attempts: 1,
            internal: false,
            proof: if solo.verified { Proof::Stripe } else { Proof::None },
            bytes,
            checksum: solo.checksum,
            total_bytes: bytes,
            failed_stripes: 0,
            latency_ns: now.since(solo.pushed_at),
            bad_block: None,
        };
        let times = [solo.pushed_at, solo.begun_at, now];
        self.solos.free_at(slot);
        let feed = &mut self.feeds[usize::from(rail)];
        feed.ordered -= 1;
        feed.ordered_bytes -= bytes;
        self.tally.record(bytes, times, feed.is_disk);
        self.loads[usize::from(rail)].outstanding_bytes -= bytes;
        self.shared.give_back_room(1, bytes);
        if let Some(seat) = &mut self.objects[object as usize] {
            seat.reads -= 1;
            if seat.closing {
                self.let_go(object);
            }
        }
        let Some(permit) = permit else { return };
        let Some(seat) = &mut self.seats[usize::from(ring)] else {
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
        self.mark_unpublished(ring);
    }

    /// Turns a solo into the read, stripe and piece it stands for. Room for them was kept.
    pub(super) fn promote(&mut self, slot: u32) -> u32 {
        let id = self.solos.id_of(slot);
        let alias = self.solo_piece_id(id);
        let solo = self.solos.at(slot);
        let (from, to, stripe, rail) = (solo.from, solo.from + solo.bytes, solo.stripe, solo.rail);
        let (verify, object, ring) = (solo.verify(), solo.object, solo.ring);
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
