//! From SQE to read: what a ring has is looked at, and begun as there is room.

use railring_transport::Nanos;
use sq_cq::{Opcode, Permit, Sqe, Status};

use super::{Attached, CORKED, Courier, Home, NOT_PARKED, Read, STAGED_MAX, Stripes};
use crate::slab::NONE;

/// SQEs admitted from one ring before the next has its turn.
const ADMIT_PER_RING: u32 = 64;
impl Home {
    /// Looks at the rings that have something; says whether there was anything.
    pub(crate) fn admit(&mut self, now: Nanos, courier: &mut impl Courier) -> bool {
        let mut any = false;
        for word in 0..self.ready.len() {
            let mut bits = self.ready[word];
            while bits != 0 {
                let ring = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                any |= self.serve(ring, now, courier);
            }
        }
        any
    }

    fn serve(&mut self, ring: usize, now: Nanos, courier: &mut impl Courier) -> bool {
        let mut any = self.uncork(ring, now, courier);
        let mut drained = false;
        let mut solos = self.solos_max(ring);
        for _ in 0..ADMIT_PER_RING {
            if solos == 0 && self.reads_are_full() {
                break; // It stays ready.
            }
            let Some(seat) = &mut self.seats[ring] else {
                drained = true;
                break;
            };
            let Some((sqe, permit, attached)) = seat.end.pop() else {
                drained = true;
                break;
            };
            seat.in_progress += 1;
            any = true;
            if solos > 0
                && let Some(way) = self.solo_way(&sqe, &permit, &attached)
            {
                solos -= 1;
                self.begin_solo(ring, way, &sqe, permit, attached, courier);
            } else {
                self.begin(ring, &sqe, permit, attached, now, courier);
                solos = self.solos_max(ring);
            }
        }
        let corks = self.seats[ring].as_ref().is_some_and(|seat| seat.corked.len() > 0);
        if any {
            // Also when nothing completed: a caller whose submission ring is full waits for this.
            self.unpublished[ring / 64] |= 1 << (ring % 64);
        }
        any |= self.serve_cancels(ring, now, courier);
        if drained && !corks {
            self.ready[ring / 64] &= !(1 << (ring % 64));
            if self.seats[ring].as_ref().is_some_and(super::Seat::is_gone) {
                self.close_ring(ring, now, courier);
            }
        }
        any
    }

    /// Begins reads that waited for others to end, oldest first.
    fn uncork(&mut self, ring: usize, now: Nanos, courier: &mut impl Courier) -> bool {
        let mut any = false;
        for _ in 0..ADMIT_PER_RING {
            if self.is_full() {
                break;
            }
            let Some(seat) = &mut self.seats[ring] else { break };
            let Some(slot) = seat.corked.pop_front(&mut self.reads) else { break };
            self.corked -= 1;
            self.reads.at(slot).parked = NOT_PARKED;
            any = true;
            self.size_pieces(slot);
            self.plan(slot, STAGED_MAX, now, courier);
        }
        any
    }

    /// Whether the next read of a ring must wait for others to end.
    #[inline]
    pub(super) fn corks(&self, ring: usize) -> bool {
        self.is_full() || self.seats[ring].as_ref().is_some_and(|seat| seat.corked.len() > 0)
    }

    /// A read waits in its ring's cork. Its deadline and its cancel are looked at all the same.
    fn cork(&mut self, ring: usize, slot: u32) {
        let Some(seat) = &mut self.seats[ring] else { return };
        self.reads.at(slot).parked = CORKED;
        self.corked += 1;
        seat.corked.push_back(&mut self.reads, slot);
        seat.end.hold_back(seat.corked.len());
    }

    /// One SQE becomes a read, or ends at once.
    fn begin(
        &mut self,
        ring: usize,
        sqe: &Sqe,
        permit: Permit,
        attached: Attached,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let cancelled = permit.is_cancelled()
            || attached.token.as_ref().is_some_and(|t| t.is_cancelled())
            || self.caller_is_gone(ring);
        if sqe.opcode() != Opcode::Nop && !self.knows(sqe.object()) {
            self.learn_now();
        }
        let read = self.describe(ring, sqe, permit, attached);
        self.enter(read, cancelled, now, courier);
    }

    /// The read that an SQE stands for, none of it begun.
    fn describe(&self, ring: usize, sqe: &Sqe, permit: Permit, attached: Attached) -> Read {
        let mut read = self.read_of(ring, sqe, permit, attached);
        let slot = read.object;
        let known = self.objects.get(slot as usize).and_then(Option::as_ref);
        let object = known.filter(|object| object.inner.handle == sqe.object());
        let status = match sqe.opcode() {
            Opcode::Nop => Some(Status::OK),
            Opcode::ReadRange | Opcode::ReadStripes if object.is_some() => None,
            _ => Some(Status::INVALID_ARGUMENT),
        };
        if let Some(status) = status {
            read.object = NONE;
            read.first_error = status;
        } else if let Some(object) = object {
            let layout = object.inner.layout;
            if sqe.opcode() == Opcode::ReadRange {
                (read.offset, read.len) = (sqe.offset(), sqe.len());
                let (first, count) = layout.stripes(read.offset, read.len.max(1));
                let end = if read.len == 0 { first } else { first + count };
                read.stripes = Stripes::Range { next: first, end };
            } else {
                let first = u32::try_from(sqe.first()).unwrap_or(u32::MAX);
                let mask = sqe.mask();
                read.offset = u64::from(first) * layout.stripe_bytes;
                let last = first + (63 - mask.leading_zeros().min(63));
                let end = u64::from(last) * layout.stripe_bytes + layout.stripe_len(last);
                read.len = end - read.offset;
                read.stripes = Stripes::Set { first, mask };
            }
            read.carved_to = read.offset;
        }
        read.stripes_left = read.stripes.count();
        read
    }

    /// Ends what callers of a failed poller had pushed before they could know. Its memory was in
    /// nobody's hands.
    pub(crate) fn fail_pushed(&mut self) {
        for ring in 0..self.seats.len() {
            while let Some(seat) = &mut self.seats[ring]
                && let Some((sqe, permit, attached)) = seat.end.pop()
            {
                let mut read = self.describe(ring, &sqe, permit, attached);
                while let Some(part) = read.memory.carve(u64::MAX) {
                    self.shared.impound.repay(part);
                }
                self.fail_one(read);
            }
        }
    }

    fn read_of(&self, ring: usize, sqe: &Sqe, permit: Permit, attached: Attached) -> Read {
        let extra_slots = match &attached.memory {
            crate::memory::Memory::Many(parts) => {
                u32::try_from(parts.parts.len()).unwrap_or(u32::MAX).saturating_sub(1)
            }
            _ => 0,
        };
        let ring = u16::try_from(ring).expect("at most 4,096 rings");
        let (object, flags) = (sqe.object().slot, sqe.get_flags());
        let user_data = sqe.get_user_data();
        let mut read = Read::new(ring, permit, user_data, object, flags, attached.pushed_at);
        read.memory = attached.memory;
        read.extra_slots = extra_slots;
        read.token = attached.token;
        read.piece_bytes = self.rules.piece_bytes_max;
        read.deadline = match sqe.get_deadline_ns() {
            0 => Nanos::NEVER,
            at => Nanos(at),
        };
        read
    }

    fn enter(&mut self, read: Read, cancelled: bool, now: Nanos, courier: &mut impl Courier) {
        let (ring, caller_slot) = (usize::from(read.ring), read.id.slot as usize);
        let (object, deadline) = (read.object, read.deadline);
        let token = read.token.as_ref().map(|token| token.id());
        let empty = read.stripes_left == 0;
        let corks = self.corks(ring);
        let slot = match self.reads.insert(read) {
            Ok(id) => id.slot,
            Err(_) => unreachable!("the slab had room before the SQE was taken"),
        };
        if let Some(seat) = &mut self.seats[ring] {
            seat.reads[caller_slot] = slot;
        }
        if object != NONE
            && let Some(object) = &mut self.objects[object as usize]
        {
            object.reads += 1;
        }
        if empty {
            self.finish_empty(slot, now);
            return;
        }
        if let Some(token) = token {
            let list = self.tokens.entry(token).or_default();
            list.push_back(&mut self.reads, slot);
        }
        if cancelled || self.stopping {
            self.stop(slot, Status::CANCELLED, now, courier);
        } else if deadline != Nanos::NEVER
            && (deadline <= now || !self.wheel.arm(&mut self.reads, slot))
        {
            self.stop(slot, Status::TIMED_OUT, now, courier);
        } else if corks {
            self.cork(ring, slot);
        } else {
            self.size_pieces(slot);
            self.plan(slot, STAGED_MAX, now, courier);
        }
    }
}
