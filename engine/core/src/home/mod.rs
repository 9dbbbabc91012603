//! Reads as the poller of their ring sees them: admitted, cut, given to rails, collected, ended.
//!
//! A ring has one home poller, the only writer of its CQ. The home owns every read, stripe and
//! piece of that ring; rails (this poller's or another's) own a piece's memory while they transfer
//! it.

mod admit;
mod cut;
mod entries;
mod finish;
mod land;
mod make;
mod queue;
mod solo;
mod stage;
mod starve;
mod stop;
mod traced;

use std::collections::HashMap;
use std::sync::Arc;

use railring_catalog::checksum::StreamingChecksum;
use railring_transport::{Alignment, Nanos};
use sq_cq::{CallerEnd, Handle, PollerEnd, Proof, Status};

use crate::cancel::CancelToken;
use crate::health::Standing;
use crate::mail::{Done, Order};
use crate::memory::{Memory, Returned};
use crate::object::ObjectInner;
use crate::schedule::{Load, RailMask, Scheduler};
use crate::shared::Shared;
use crate::slab::{Id, List, NONE, Slab};
use crate::stages::Tally;
use crate::staging::Staging;
use crate::stats::HomeRailCounters;
use crate::tables::{TableCache, Ticket};
use crate::wheel::Wheel;

/// What the caller sends along with an SQE.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) memory: Memory,
    pub(crate) token: Option<CancelToken>,
    pub(crate) pushed_at: Nanos,
}

pub(crate) type RingEnd = PollerEnd<Attached, Returned>;
pub(crate) type CallerSide = CallerEnd<Attached, Returned>;

/// List tags: an entry is in at most one list of each.
pub(crate) const STAGED: usize = 2;
pub(crate) const WAITING: usize = 3;
pub(crate) const TOKEN: usize = 4;
pub(crate) const ACTIVE: usize = 5;
pub(crate) const HASHING: usize = 6;
pub(crate) const DRAINING: usize = 8;

/// Pieces that wait for one rail before reads that want more have to queue for it.
pub(crate) const STAGED_MAX: u32 = 128;
/// How long the scheduler goes by the same rates: half of what a measurement covers.
const RATES_NS: u64 = 100_000;
/// Pieces one read may plan before the next read that waits for the same rail has its turn.
const QUOTA: u32 = 16;

pub(crate) use entries::{Piece, Verify};
pub(crate) use make::RailFacts;

use entries::{CORKED, NOT_PARKED, PieceKind, PieceState, Read, Stripe, Stripes};
use queue::Queue;

/// What a home knows of one rail.
#[derive(Debug)]
pub(crate) struct Feed {
    staged: Queue,
    waiters: List<WAITING>,
    /// Pieces and bytes ordered and not back.
    ordered: u32,
    ordered_bytes: u64,
    /// Bytes that wait here.
    staged_bytes: u64,
    ordered_max: u32,
    ordered_bytes_max: u64,
    staging: Staging,
    /// It is a local disk.
    is_disk: bool,
    /// How the rail stood when its queue was last looked at.
    standing: Standing,
    /// Since when its oldest piece has found no staging memory; `NEVER` if it has not looked in
    /// vain.
    starves_since: Nanos,
}

/// One ring that this poller is home to.
#[derive(Debug)]
struct Seat {
    end: RingEnd,
    /// Reads taken from the ring that have not begun, because `reads_max` are being worked on.
    /// Their places in the ring are kept, so that the ring is as full as if they were in it.
    corked: List<WAITING>,
    sq_entries: u32,
    /// The read of each of the caller's read slots.
    reads: Box<[u32]>,
    in_progress: u32,
    closed: bool,
    /// The end of a caller that dropped its ring: what was on its way to it is taken out here.
    orphan: Option<Box<CallerSide>>,
}

impl Seat {
    /// Whether the caller's end is gone, even if that was not acted on yet.
    #[inline]
    fn is_gone(&self) -> bool {
        self.closed || self.orphan.is_some() || self.end.is_closed()
    }
}

#[derive(Debug)]
struct ObjectSeat {
    inner: Arc<ObjectInner>,
    reads: u32,
    closing: bool,
    /// Where each stripe's block table is kept; made when the first is.
    tickets: Vec<Ticket>,
}

/// How a home's orders reach the rails' pollers.
pub(crate) trait Courier {
    fn order(&mut self, rail: usize, order: Order);
    fn cancel(&mut self, rail: usize, piece: Id<Piece>);
}

/// Settings a home looks at per piece.
#[derive(Clone, Copy, Debug)]
struct Rules {
    alignment: Alignment,
    piece_bytes_max: u64,
    request_bytes_max: u64,
    /// Longest read of a stripe that several rails reach which goes the short way: it would not be
    /// cut for them to share.
    shared_bytes_max: u64,
    attempts_max: u8,
    /// How long a piece may find no staging memory.
    patience_ns: u64,
    /// What edges of direct pieces lie on, where no block must be whole for its proof.
    grain: u64,
    /// Longest piece that is not cut for rails to share it.
    solo_bytes_max: u64,
}

impl Rules {
    /// Longest piece that is not cut for rails to share it.
    fn whole_bytes_max(&self) -> u64 {
        self.piece_bytes_max.min(self.request_bytes_max)
    }
}

#[derive(Debug)]
pub(crate) struct Home {
    index: u16,
    shared: Arc<Shared>,
    rules: Rules,
    seats: Vec<Option<Seat>>,
    /// Rings with SQEs or cancels to look at.
    ready: Vec<u64>,
    /// Rings with CQEs to publish.
    unpublished: Vec<u64>,
    objects: Vec<Option<ObjectSeat>>,
    /// Reads being worked on, and those that are corked.
    reads: Slab<Read>,
    corked: u32,
    reads_max: u32,
    stripes: Slab<Stripe>,
    pieces: Slab<Piece>,
    solos: Slab<solo::Solo>,
    feeds: Vec<Feed>,
    loads: Vec<Load>,
    /// Rails with pieces or reads waiting for them.
    busy: RailMask,
    /// When the loads' rates are to be looked at again.
    rates_until: Nanos,
    scheduler: Scheduler,
    tables: TableCache,
    wheel: Wheel,
    /// Scratch of the wheel.
    fired: Vec<u32>,
    tokens: HashMap<u64, List<TOKEN>>,
    hashing: List<HASHING>,
    hash: HashCursor,
    /// The rail whose oldest piece found no room in the engine's budgets: no other rail takes any
    /// before it.
    hungry: Option<usize>,
    /// Nobody else takes room, for the sake of that piece.
    claims: bool,
    /// A piece found something used up that other pollers hold, for the first time.
    starved: bool,
    draining: List<DRAINING>,
    /// The engine shuts down: reads that are still on a ring end as soon as they are admitted.
    stopping: bool,
    /// What solos have brought in this turn.
    tally: Tally,
    /// Bytes hashed since the turn began.
    pub(crate) hashed_bytes: u64,
    /// The time of the present turn.
    pub(crate) now: Nanos,
}

/// How far the stripe at the front of the hashing list has been hashed.
struct HashCursor {
    state: Box<StreamingChecksum>,
    piece: u32,
    at: usize,
}

impl std::fmt::Debug for HashCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashCursor").field("piece", &self.piece).finish_non_exhaustive()
    }
}

impl Home {
    /// Whether reads of this home are in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.solos.is_empty()
    }

    /// Whether no read is in progress and no ring has anything: nothing can be due.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        self.is_idle() && self.busy.is_empty() && self.ready.iter().all(|&word| word == 0)
    }

    /// Reads being worked on.
    #[inline]
    pub(crate) fn reads_in_progress(&self) -> u32 {
        self.reads.len() - self.corked + self.solos.len()
    }

    /// Whether no further read can be worked on.
    #[inline]
    fn is_full(&self) -> bool {
        self.reads_in_progress() >= self.reads_max
    }

    /// Whether no further read can even be looked at. A solo keeps the room it would be promoted
    /// to.
    fn reads_are_full(&self) -> bool {
        self.reads.len() + self.solos.len() >= self.reads.capacity()
    }

    fn pieces_are_full(&self) -> bool {
        self.pieces.len() + self.solos.len() >= self.pieces.capacity()
    }

    fn stripes_are_full(&self) -> bool {
        self.stripes.len() + self.solos.len() >= self.stripes.capacity()
    }

    /// Whether a turn would find something to do without any completion or mail coming in.
    pub(crate) fn has_work(&self) -> bool {
        self.hashing.front().is_some()
            || self.draining.front().is_some()
            || (self.ready.iter().any(|&word| word != 0) && !self.is_full())
    }

    /// Takes over a ring.
    pub(crate) fn seat(&mut self, seat: usize, end: RingEnd, sq_entries: u32, cq_entries: u32) {
        let reads = vec![NONE; cq_entries as usize].into();
        let corked = List::default();
        let (in_progress, closed, orphan) = (0, false, None);
        self.seats[seat] =
            Some(Seat { end, corked, sq_entries, reads, in_progress, closed, orphan });
        self.make_room_for_corked();
        self.mark_ready(seat);
    }

    /// Every read that rings can hold can be looked at, whatever is being worked on.
    fn make_room_for_corked(&mut self) {
        let seats = self.seats.iter().flatten();
        let corked_max = seats.fold(0_u32, |sum, seat| sum.saturating_add(seat.sq_entries));
        let wanted = self.reads_max.saturating_add(corked_max);
        let more = wanted.saturating_sub(self.reads.capacity());
        if more > 0 {
            self.reads.grow(more);
            let reads = self.reads.capacity() as usize;
            self.fired.reserve(reads);
            self.tokens.reserve(reads.saturating_sub(self.tokens.len()));
        }
    }

    pub(crate) fn mark_ready(&mut self, seat: usize) {
        if let Some(word) = self.ready.get_mut(seat / 64) {
            *word |= 1 << (seat % 64);
        }
    }

    fn mark_unpublished(&mut self, ring: u16) {
        self.unpublished[usize::from(ring) / 64] |= 1 << (ring % 64);
    }

    /// The caller dropped its ring and left its end here.
    pub(crate) fn adopt(&mut self, ring: usize, orphan: Box<CallerSide>) {
        if let Some(seat) = &mut self.seats[ring] {
            seat.orphan = Some(orphan);
            self.mark_ready(ring);
        }
    }

    /// Learns of an object before any read of it can be admitted.
    pub(crate) fn learn(&mut self, inner: Arc<ObjectInner>) {
        let slot = inner.handle.slot as usize;
        if self.objects.len() <= slot {
            self.objects.resize_with(slot + 1, || None);
        }
        self.objects[slot] =
            Some(ObjectSeat { inner, reads: 0, closing: false, tickets: Vec::new() });
    }

    fn knows(&self, handle: Handle) -> bool {
        let seat = self.objects.get(handle.slot as usize).and_then(Option::as_ref);
        seat.is_some_and(|object| object.inner.handle == handle)
    }

    /// Learns what was opened since this turn began: its reads may have been pushed since, too, to
    /// a ring that is being looked at.
    #[cold]
    fn learn_now(&mut self) {
        let shared = Arc::clone(&self.shared);
        for inner in shared.desks[usize::from(self.index)].take_learned() {
            self.learn(inner);
        }
    }

    /// Lets go of an object, now or when its last read here has ended.
    pub(crate) fn close(&mut self, handle: Handle) {
        let Some(seat) = self.objects.get_mut(handle.slot as usize) else { return };
        if let Some(object) = seat.as_mut().filter(|object| object.inner.handle == handle) {
            object.closing = true;
            self.let_go(handle.slot);
        }
    }

    fn let_go(&mut self, slot: u32) {
        let seat = &mut self.objects[slot as usize];
        if seat.as_ref().is_some_and(|object| object.closing && object.reads == 0)
            && let Some(object) = seat.take()
        {
            self.shared.bury(object.inner);
        }
    }

    fn object(&self, slot: u32) -> &ObjectSeat {
        self.objects[slot as usize].as_ref().expect("a read keeps its object")
    }

    /// Refreshes what the scheduler knows of rails' speed, as often as a measurement can change.
    pub(crate) fn refresh_rates(&mut self, now: Nanos) {
        if self.loads.len() < 2 || now < self.rates_until {
            return;
        }
        self.rates_until = now.after(RATES_NS);
        let measured = |rail: usize| self.shared.rails[rail].counters.rate.get();
        // A rail that was never measured is assumed to be as fast, for its weight, as the fastest
        // that was.
        let unit = (0..self.loads.len())
            .map(|rail| measured(rail) / u64::from(self.loads[rail].weight))
            .max()
            .unwrap_or(0)
            .max(1);
        for rail in 0..self.loads.len() {
            let rate = match measured(rail) {
                0 => unit.saturating_mul(self.loads[rail].weight.into()),
                rate => rate,
            };
            self.loads[rail].set_rate(rate);
        }
    }

    /// What is counted here of a rail.
    #[cold]
    fn counters_of(&self, rail: usize) -> &HomeRailCounters {
        &self.shared.desks[usize::from(self.index)].counters.rails[rail]
    }

    /// Passes what was ended to the callers: one publication per ring and turn.
    pub(crate) fn publish(&mut self) {
        self.tally.settle(&self.shared.desks[usize::from(self.index)].counters);
        for word in 0..self.unpublished.len() {
            let mut bits = std::mem::take(&mut self.unpublished[word]);
            while bits != 0 {
                let ring = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(seat) = &mut self.seats[ring] {
                    seat.end.hold_back(seat.corked.len());
                    seat.end.publish();
                }
            }
        }
    }

    /// Whether a piece began to starve in this turn.
    pub(crate) fn has_starved(&mut self) -> bool {
        std::mem::take(&mut self.starved)
    }

    /// Whether nobody will pop what this ring completes.
    fn caller_is_gone(&self, ring: usize) -> bool {
        self.seats[ring].as_ref().is_none_or(Seat::is_gone)
    }

    /// Fires the deadlines that have passed; says whether there were any.
    pub(crate) fn deadlines(&mut self, now: Nanos, courier: &mut impl Courier) -> bool {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.advance(&mut self.reads, now, |read| fired.push(read));
        let any = !fired.is_empty();
        for read in fired.drain(..) {
            self.stop(read, Status::TIMED_OUT, now, courier);
        }
        self.fired = fired;
        any | self.end_starving(now, courier)
    }

    /// When a deadline may next fire.
    pub(crate) fn next_deadline(&self) -> Nanos {
        self.wheel.next().unwrap_or(Nanos::NEVER).min(self.starved_until())
    }

    /// Takes one piece's news. Completions of pieces that are gone have nowhere to come from.
    #[inline]
    pub(crate) fn receive(&mut self, done: Done, now: Nanos, courier: &mut impl Courier) {
        if done.piece.slot < self.pieces.capacity() {
            self.land(done, now, courier);
        } else {
            self.receive_solo(done, now, courier);
        }
    }
}

/// The proof that a stripe's status stands on.
fn proof_of(verify: Verify) -> Proof {
    match verify {
        Verify::Nothing => Proof::None,
        Verify::Whole(_) => Proof::Stripe,
        Verify::Blocks(_) => Proof::Blocks,
    }
}
