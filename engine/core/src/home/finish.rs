//! Ends: a stripe whose pieces are all quiet becomes one CQE, and the last one ends its read.

use railring_dma::Part;
use railring_transport::Nanos;
use sq_cq::{Cqe, CqeFields, Proof, SqeFlags, Status};

use super::{Courier, Home, PieceKind, Stripe, TOKEN, Verify, proof_of};
use crate::memory::{Memory, Returned};
use crate::slab::{List, NONE};
use crate::stages::ClassCounters;

/// Stripes of ending reads that never began, ended per turn.
const DRAIN_PER_TURN: u32 = 256;

impl Home {
    /// Ends a stripe when all its pieces are quiet and checked.
    pub(super) fn end_if_complete(
        &mut self,
        stripe_slot: u32,
        now: Nanos,
        courier: &mut impl Courier,
    ) {
        let stripe = self.stripes.peek(stripe_slot);
        if stripe.pieces_out > 0 || stripe.ended {
            return;
        }
        if stripe.status.is_ok() {
            if stripe.at < stripe.to {
                return;
            }
            if matches!(stripe.verify, Verify::Whole(_)) && !self.was_hashed(stripe) {
                let (read, index, bytes) = (stripe.read, stripe.index, stripe.to - stripe.from);
                let read = self.reads.at(read);
                read.laps.hashes(now);
                if let Some(trace) = read.trace() {
                    trace.hashes(index, bytes, now);
                }
                self.hashing.push_back(&mut self.stripes, stripe_slot);
                return;
            }
        }
        self.finish_stripe(stripe_slot, now, courier);
    }

    /// One direct piece that is the whole stripe was hashed by its rail's poller.
    fn was_hashed(&self, stripe: &Stripe) -> bool {
        if stripe.head != stripe.tail || stripe.head == NONE {
            return false;
        }
        let piece = self.pieces.peek(stripe.head);
        piece.kind == PieceKind::Direct
            && piece.shape.read_from == 0
            && piece.shape.want_to == stripe.to
    }

    /// Hashes complete stripes of several pieces, at most about `budget` bytes.
    pub(crate) fn hash(&mut self, budget: u64, now: Nanos, courier: &mut impl Courier) -> bool {
        let mut any = false;
        while self.hashed_bytes < budget {
            let Some(stripe_slot) = self.hashing.front() else { return any };
            any = true;
            if self.hash.piece == NONE {
                self.hash.state.reset();
                self.hash.piece = self.stripes.peek(stripe_slot).head;
                self.hash.at = 0;
            }
            let piece = self.pieces.peek(self.hash.piece);
            let bytes = piece.part.as_ref().map_or(&[][..], |part| part.as_slice());
            let left = usize::try_from(budget - self.hashed_bytes).unwrap_or(usize::MAX);
            let end = bytes.len().min(self.hash.at.saturating_add(left));
            self.hash.state.update(&bytes[self.hash.at..end]);
            self.hashed_bytes += (end - self.hash.at) as u64;
            self.hash.at = end;
            if end < bytes.len() {
                return true;
            }
            (self.hash.piece, self.hash.at) = (piece.next, 0);
            if self.hash.piece == NONE {
                self.hashing.remove(&mut self.stripes, stripe_slot);
                let actual = self.hash.state.finish();
                self.hashed(stripe_slot, actual, now, courier);
            }
        }
        any
    }

    fn hashed(&mut self, stripe_slot: u32, actual: u64, now: Nanos, courier: &mut impl Courier) {
        let stripe = self.stripes.at(stripe_slot);
        stripe.actual = actual;
        let read = self.reads.at(stripe.read);
        read.laps.hashed(now);
        if let Some(trace) = read.trace() {
            trace.hashed(stripe.index, now);
        }
        if stripe.verify == Verify::Whole(actual) || !stripe.status.is_ok() {
            self.finish_stripe(stripe_slot, now, courier);
            return;
        }
        let rail = usize::from(self.stripes.peek(stripe_slot).rail);
        self.counters_of(rail).mismatches.add(1);
        let stripe = self.stripes.peek(stripe_slot);
        let read = self.reads.peek(stripe.read);
        let retry = read.ending.is_none()
            && !read.flags.contains(SqeFlags::FAIL_FAST)
            && stripe.attempts < self.rules.attempts_max;
        let goes_on = (retry && self.recut(stripe_slot, courier))
            || self.diagnose_pieces(stripe_slot, now, courier);
        if !goes_on {
            self.fail_stripe(stripe_slot, Status::CHECKSUM_MISMATCH, now, courier);
        }
    }

    /// Like [`Home::diagnose`], for a stripe that came in several pieces and is whole again.
    fn diagnose_pieces(&mut self, stripe: u32, now: Nanos, courier: &mut impl Courier) -> bool {
        let head = self.stripes.peek(stripe).head;
        if head == NONE {
            return false;
        }
        self.pieces.at(head).attempts = self.rules.attempts_max.saturating_sub(1);
        self.stripes.at(stripe).pieces_out += 1;
        let diagnosing = self.diagnose(head, now, courier);
        if !diagnosing {
            self.stripes.at(stripe).pieces_out -= 1;
        }
        diagnosing
    }

    /// The stripe's memory, taken out of its pieces, in order; the pieces are gone. Parts that are
    /// stuck are missing.
    pub(super) fn collect(&mut self, stripe_slot: u32, mut each: impl FnMut(&mut Self, Part)) {
        let stripe = self.stripes.at(stripe_slot);
        let mut at = std::mem::replace(&mut stripe.head, NONE);
        (stripe.tail, stripe.base) = (NONE, NONE);
        let (lead, rest) = (stripe.lead.take(), stripe.rest.take());
        let more = std::mem::take(&mut stripe.more);
        if let Some(lead) = lead {
            each(self, lead);
        }
        while at != NONE {
            let piece = self.pieces.remove_at(at);
            at = piece.next;
            if let Some(part) = piece.part {
                each(self, part);
            }
        }
        for part in rest.into_iter().chain(more) {
            each(self, part);
        }
    }

    fn finish_stripe(&mut self, stripe_slot: u32, now: Nanos, courier: &mut impl Courier) {
        let stripe = self.stripes.at(stripe_slot);
        stripe.ended = true;
        let read_slot = stripe.read;
        let (ok, bytes) = (stripe.status.is_ok(), stripe.to - stripe.from);
        let status = stripe.status;
        let read = self.reads.at(read_slot);
        if ok {
            read.total_bytes += bytes;
        } else {
            read.failed_stripes += 1;
            if read.first_error.is_ok() {
                read.first_error = read.ending.unwrap_or(status);
            }
        }
        let fields = self.fields_of(stripe_slot, now);
        if self.reads.peek(read_slot).flags.contains(SqeFlags::QUIET) {
            self.finish_quietly(stripe_slot, fields, courier);
            return;
        }
        let returned = self.gather(stripe_slot);
        let read = self.reads.at(read_slot);
        read.active.remove(&mut self.stripes, stripe_slot);
        self.stripes.remove_at(stripe_slot);
        self.emit(read_slot, fields, returned);
    }

    /// The stripe's memory as it goes back with its CQE. What lies in other leases than its end
    /// goes ahead in entries of its own.
    fn gather(&mut self, stripe_slot: u32) -> Returned {
        let stripe = self.stripes.peek(stripe_slot);
        let (read_slot, lead_bytes) = (stripe.read, stripe.lead_bytes);
        let mut whole: Option<Part> = None;
        let mut lead_bytes = lead_bytes;
        self.collect(stripe_slot, |home, part| {
            whole = Some(match whole.take() {
                None => part,
                Some(before) => match before.join(part) {
                    Ok(both) => both,
                    Err((before, part)) => {
                        lead_bytes = 0;
                        home.send_ahead(read_slot, before);
                        part
                    }
                },
            });
        });
        Returned { part: whole, lead_bytes, list: None }
    }

    /// Gives memory back in a CQ entry that the caller's side swallows; its slot was reserved.
    pub(super) fn send_ahead(&mut self, read_slot: u32, part: Part) {
        let read = self.reads.at(read_slot);
        let ring = read.ring;
        if read.extra_slots == 0 {
            // A run ended where no lease does: the part before it is stuck, and the read's lease is
            // impounded with it.
            self.shared.impound.repay(part);
            return;
        }
        read.extra_slots -= 1;
        let Some(permit) = &mut read.permit else { return };
        let Some(seat) = &mut self.seats[usize::from(ring)] else { return };
        if seat.is_gone() {
            self.shared.impound.repay(part);
            return;
        }
        let fields = CqeFields { internal: true, ..CqeFields::default() };
        let returned = Returned { part: Some(part), lead_bytes: 0, list: None };
        seat.end.complete(permit, Cqe::new(&fields), returned);
        self.mark_unpublished(ring);
    }

    fn fields_of(&self, stripe_slot: u32, now: Nanos) -> CqeFields {
        let stripe = self.stripes.peek(stripe_slot);
        let read = self.reads.peek(stripe.read);
        let object = &self.object(read.object).inner;
        let ok = stripe.status.is_ok();
        let whole = stripe.from == 0 && stripe.to == object.layout.stripe_len(stripe.index);
        let checksum = if stripe.status == Status::CHECKSUM_MISMATCH {
            stripe.actual
        } else if whole {
            object.placement.checksum(stripe.index).unwrap_or(0)
        } else {
            0
        };
        CqeFields {
            user_data: read.user_data,
            status: stripe.status,
            read_status: read.first_error,
            stripe: u16::try_from(stripe.index).expect("at most 65,535 stripes"),
            rail: (stripe.rail != u8::MAX).then_some(stripe.rail),
            attempts: stripe.attempts,
            internal: false,
            proof: if ok { proof_of(stripe.verify) } else { Proof::None },
            bytes: if ok { stripe.to - stripe.from } else { 0 },
            checksum,
            total_bytes: read.total_bytes,
            failed_stripes: u16::try_from(read.failed_stripes).unwrap_or(u16::MAX),
            latency_ns: now.since(read.pushed_at),
            bad_block: stripe.bad_block,
        }
    }

    /// Publishes one stripe's end; the last one ends the read.
    fn emit(&mut self, read_slot: u32, fields: CqeFields, returned: Returned) {
        self.shared.desks[usize::from(self.index)].counters.stripes.add(1);
        let read = self.reads.at(read_slot);
        read.stripes_left -= 1;
        if !fields.status.is_ok() && read.told_error.is_ok() {
            read.told_error = fields.status;
        }
        if read.is_traced() {
            read.trace_published(&fields, self.now);
        }
        if read.stripes_left == 0 {
            self.finish_read(read_slot, fields, returned);
            return;
        }
        let ring = read.ring;
        let Some(permit) = &mut read.permit else { return };
        let Some(seat) = &mut self.seats[usize::from(ring)] else { return };
        if seat.is_gone() {
            if let Some(part) = returned.part {
                self.shared.impound.repay(part);
            }
            return;
        }
        seat.end.complete(permit, Cqe::new(&fields), returned);
        self.mark_unpublished(ring);
    }

    fn finish_read(&mut self, read_slot: u32, fields: CqeFields, mut returned: Returned) {
        self.unlink(read_slot);
        let mut read = self.reads.remove_at(read_slot);
        let counters = &self.shared.desks[usize::from(self.index)].counters;
        counters.reads.add(1);
        if !read.first_error.is_ok() {
            counters.reads_failed.add(1);
        }
        let on_disk = self.feeds.get(read.laps.last_rail()).is_some_and(|feed| feed.is_disk);
        let stages = read.laps.end([read.pushed_at, self.now], on_disk);
        let wall_ns = self.now.since(read.pushed_at);
        ClassCounters::record(&counters.classes, read.len, &stages, wall_ns);
        if let Some(trace) = read.trace() {
            trace.ended(stages, &fields, self.now);
        }
        if read.object != NONE
            && let Some(object) = &mut self.objects[read.object as usize]
        {
            object.reads -= 1;
            if object.closing {
                self.let_go(read.object);
            }
        }
        returned.list = std::mem::replace(&mut read.memory, Memory::None).into_list();
        let Some(permit) = read.permit.take() else { return };
        let Some(seat) = &mut self.seats[usize::from(read.ring)] else {
            permit.abandon();
            return;
        };
        seat.reads[read.id.slot as usize] = NONE;
        seat.in_progress -= 1;
        if seat.is_gone() {
            permit.abandon();
            if let Some(part) = returned.part {
                self.shared.impound.repay(part);
            }
            if seat.closed && seat.in_progress == 0 {
                self.unseat(usize::from(read.ring));
            }
            return;
        }
        seat.end.finish(permit, Cqe::new(&fields), returned);
        self.mark_unpublished(read.ring);
    }

    /// Takes a read out of every list it may be in.
    fn unlink(&mut self, read_slot: u32) {
        self.wheel.disarm(&mut self.reads, read_slot);
        self.unpark(read_slot);
        let read = self.reads.at(read_slot);
        if read.draining_links.is_linked() {
            self.draining.remove(&mut self.reads, read_slot);
        }
        let read = self.reads.at(read_slot);
        if !read.token_links.is_linked() {
            return;
        }
        let Some(id) = read.token.as_ref().map(|token| token.id()) else { return };
        if let Some(list) = self.tokens.get_mut(&id) {
            List::<TOKEN>::remove(list, &mut self.reads, read_slot);
            if list.len() == 0 {
                self.tokens.remove(&id);
            }
        }
    }

    /// A read of no stripes: a no-op, a length of zero, or an SQE that makes no sense.
    pub(super) fn finish_empty(&mut self, read_slot: u32, now: Nanos) {
        let read = self.reads.at(read_slot);
        let status = read.first_error;
        let fields = CqeFields {
            user_data: read.user_data,
            status,
            read_status: status,
            latency_ns: now.since(read.pushed_at),
            ..CqeFields::default()
        };
        let part = std::mem::replace(&mut read.memory, Memory::None);
        let (part, list) = match part {
            Memory::One(part) => (Some(part), None),
            Memory::None => (None, None),
            Memory::Many(mut parts) => {
                while parts.parts.len() > 1 {
                    if let Some(part) = parts.parts.pop() {
                        self.send_ahead(read_slot, part);
                    }
                }
                (parts.parts.pop(), Some(parts))
            }
        };
        if let Some(list) = list {
            self.reads.at(read_slot).memory = Memory::Many(list);
        }
        self.finish_read(read_slot, fields, Returned { part, lead_bytes: 0, list: None });
    }

    /// A quiet read shows only what failed, and its end. Its memory goes back with the end, so
    /// stripes that end early wait for those before them.
    fn finish_quietly(&mut self, stripe_slot: u32, fields: CqeFields, _courier: &mut impl Courier) {
        let read_slot = self.stripes.peek(stripe_slot).read;
        let read = self.reads.at(read_slot);
        let last = read.stripes_left == 1;
        if last {
            let start = self.start_of(stripe_slot);
            self.retire(read_slot);
            let read = self.reads.at(read_slot);
            let (part, memory_bytes) = (read.retired.take(), read.len);
            // The last stripe to end need not be the last in memory.
            let whole = part.as_ref().is_some_and(|part| part.len() as u64 == memory_bytes);
            let lead_bytes = if whole { start } else { u64::MAX };
            self.emit(read_slot, fields, Returned { part, lead_bytes, list: None });
            return;
        }
        let ring = usize::from(read.ring);
        let reserved = read.extra_slots + 1;
        let shown = !fields.status.is_ok()
            && read.permit.as_ref().is_some_and(|permit| permit.slots_left() > reserved);
        if shown {
            self.emit(read_slot, fields, Returned::default());
        } else {
            self.shared.desks[usize::from(self.index)].counters.stripes.add(1);
            self.reads.at(read_slot).stripes_left -= 1;
        }
        debug_assert!(self.seats[ring].is_some());
        self.retire(read_slot);
    }

    /// Where the wanted bytes of a stripe lie in its read's memory.
    fn start_of(&self, stripe_slot: u32) -> u64 {
        let stripe = self.stripes.peek(stripe_slot);
        let read = self.reads.peek(stripe.read);
        let stripe_bytes = self.object(read.object).inner.layout.stripe_bytes;
        u64::from(stripe.index) * stripe_bytes + stripe.from - read.offset
    }

    /// Frees the ended stripes at the front of a quiet read, joining their memory.
    fn retire(&mut self, read_slot: u32) {
        while let Some(front) = self.reads.peek(read_slot).active.front() {
            if !self.stripes.peek(front).ended {
                return;
            }
            self.collect(front, |home, part| home.retire_part(read_slot, part));
            let read = self.reads.at(read_slot);
            read.active.remove(&mut self.stripes, front);
            self.stripes.remove_at(front);
        }
        self.begin_draining(read_slot);
    }

    pub(super) fn retire_part(&mut self, read_slot: u32, part: Part) {
        let before = self.reads.at(read_slot).retired.take();
        let joined = match before {
            None => part,
            Some(before) => match before.join(part) {
                Ok(both) => both,
                Err((before, part)) => {
                    self.send_ahead(read_slot, before);
                    part
                }
            },
        };
        self.reads.at(read_slot).retired = Some(joined);
    }

    /// Ends stripes of stopped reads that never began, some per turn.
    pub(crate) fn drain(&mut self, now: Nanos) -> bool {
        let mut budget = DRAIN_PER_TURN;
        while let Some(read_slot) = self.draining.front() {
            if budget == 0 {
                return true;
            }
            budget -= 1;
            self.end_unbegun(read_slot, now);
        }
        budget < DRAIN_PER_TURN
    }

    /// Ends the next stripe of a stopped read that never began.
    fn end_unbegun(&mut self, read_slot: u32, now: Nanos) {
        let read = self.reads.at(read_slot);
        let Some(index) = read.stripes.peek() else {
            self.draining.remove(&mut self.reads, read_slot);
            return;
        };
        read.stripes.advance();
        if read.stripes.peek().is_none() {
            self.draining.remove(&mut self.reads, read_slot);
        }
        let read = self.reads.peek(read_slot);
        let status = read.ending.unwrap_or(Status::CANCELLED);
        let cut = self.object(read.object).inner.layout.cut(index, read.offset, read.len);
        let stripe_bytes = self.object(read.object).inner.layout.stripe_bytes;
        let start = u64::from(index) * stripe_bytes + cut.from;
        let gap = start - read.carved_to;
        let wanted = gap + (cut.to - cut.from);
        let quiet = read.flags.contains(SqeFlags::QUIET);
        let part = self.carve_all(read_slot, wanted, quiet);
        let read = self.reads.at(read_slot);
        read.failed_stripes += 1;
        if read.first_error.is_ok() {
            read.first_error = status;
        }
        let fields = CqeFields {
            user_data: read.user_data,
            status,
            read_status: read.first_error,
            stripe: u16::try_from(index).expect("at most 65,535 stripes"),
            total_bytes: read.total_bytes,
            failed_stripes: u16::try_from(read.failed_stripes).unwrap_or(u16::MAX),
            latency_ns: now.since(read.pushed_at),
            ..CqeFields::default()
        };
        self.end_unbegun_cqe(read_slot, fields, part, quiet);
    }

    fn end_unbegun_cqe(
        &mut self,
        read_slot: u32,
        fields: CqeFields,
        part: Option<Part>,
        quiet: bool,
    ) {
        let read = self.reads.at(read_slot);
        let last = read.stripes_left == 1;
        if !quiet {
            self.emit(read_slot, fields, Returned { part, lead_bytes: 0, list: None });
            return;
        }
        debug_assert!(part.is_none(), "a quiet read's memory is retired");
        let shown =
            last || read.permit.as_ref().is_some_and(|p| p.slots_left() > read.extra_slots + 1);
        let part = if last { self.reads.at(read_slot).retired.take() } else { None };
        if shown {
            self.emit(read_slot, fields, Returned { part, lead_bytes: 0, list: None });
        } else {
            self.reads.at(read_slot).stripes_left -= 1;
        }
    }

    /// Carves `bytes` that will not be read. All but what lies in the last lease goes ahead; of a
    /// quiet read all is retired.
    pub(super) fn carve_all(&mut self, read_slot: u32, bytes: u64, retire: bool) -> Option<Part> {
        let mut left = bytes;
        let mut last = None;
        while left > 0 {
            let read = self.reads.at(read_slot);
            let Some(part) = read.memory.carve(left) else { break };
            read.carved_to += part.len() as u64;
            left -= part.len() as u64;
            if retire {
                self.retire_part(read_slot, part);
            } else if let Some(before) = last.replace(part) {
                self.send_ahead(read_slot, before);
            }
        }
        last
    }
}
