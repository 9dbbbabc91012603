//! Reads as the poller of their ring sees them: admitted, cut, given to rails, collected, ended.
//!
//! A ring has one home poller, the only writer of its CQ. The home owns every read, stripe and
//! piece of that ring; rails (this poller's or another's) own a piece's memory while they transfer
//! it.

mod admit;
mod finish;
mod land;
mod make;
mod solo;
mod stage;
mod stop;

use std::collections::HashMap;
use std::sync::Arc;

use railring_catalog::checksum::StreamingChecksum;
use railring_dma::{Loan, Part};
use railring_transport::{Alignment, Nanos};
use sq_cq::{CallerEnd, Handle, Permit, PollerEnd, Proof, ReadId, Status};

use crate::cancel::CancelToken;
use crate::mail::{Done, Order};
use crate::memory::{Memory, Returned};
use crate::object::ObjectInner;
use crate::plan::PieceShape;
use crate::schedule::{Load, RailMask, Scheduler};
use crate::shared::Shared;
use crate::slab::{Id, Linked, Links, List, NONE, Slab};
use crate::staging::Staging;
use crate::tables::{TableCache, Ticket};
use crate::wheel::{Timed, WHEEL, Wheel};

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

pub(crate) use make::RailFacts;

/// One read in progress.
#[derive(Debug)]
pub(crate) struct Read {
    ring: u16,
    permit: Option<Permit>,
    id: ReadId,
    user_data: u64,
    object: u32,
    flags: sq_cq::SqeFlags,
    memory: Memory,
    /// The byte range; or for a set of stripes, from the first stripe's start to the last's end.
    offset: u64,
    len: u64,
    /// The next stripe to begin, and those after it.
    stripes: Stripes,
    /// The stripe being cut into pieces, if one is.
    cutting: u32,
    /// Stripes that have not ended.
    stripes_left: u32,
    /// CQ slots kept for parts of stripes that straddle leases.
    extra_slots: u32,
    /// Where the caller's memory begins, in bytes of the object, and how far it has been carved.
    carved_to: u64,
    piece_bytes: u64,
    pushed_at: Nanos,
    deadline: Nanos,
    first_error: Status,
    total_bytes: u64,
    failed_stripes: u32,
    /// Set once nothing more is to be started.
    ending: Option<Status>,
    /// Memory of a quiet read whose stripes have ended.
    retired: Option<Part>,
    active: List<ACTIVE>,
    token: Option<CancelToken>,
    /// The rail it waits for, if it does.
    parked: u8,
    wheel_links: Links,
    waiting_links: Links,
    token_links: Links,
    draining_links: Links,
}

const NOT_PARKED: u8 = u8::MAX;

/// Stripes of a read that have not begun.
#[derive(Clone, Copy, Debug)]
enum Stripes {
    Range { next: u32, end: u32 },
    Set { first: u32, mask: u64 },
}

impl Stripes {
    fn peek(self) -> Option<u32> {
        match self {
            Stripes::Range { next, end } => (next < end).then_some(next),
            Stripes::Set { first, mask } => (mask != 0).then(|| first + mask.trailing_zeros()),
        }
    }

    fn advance(&mut self) {
        match self {
            Stripes::Range { next, .. } => *next += 1,
            Stripes::Set { mask, .. } => *mask &= mask.wrapping_sub(1),
        }
    }

    fn count(self) -> u32 {
        match self {
            Stripes::Range { next, end } => end - next,
            Stripes::Set { mask, .. } => mask.count_ones(),
        }
    }
}

macro_rules! linked {
    ($type:ty, $($tag:ident => $field:ident),+) => {
        $(impl Linked<$tag> for $type {
            #[inline]
            fn links(&mut self) -> &mut Links {
                &mut self.$field
            }
        })+
    };
}
linked!(Read, WHEEL => wheel_links, WAITING => waiting_links, TOKEN => token_links,
        DRAINING => draining_links);

impl Timed for Read {
    fn fires_at(&self) -> Nanos {
        self.deadline
    }
}

/// What proves the bytes of a stripe that a read touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    Nothing,
    /// The whole stripe is read: its own checksum.
    Whole(u64),
    /// Part of it is: every block against the table, which has this checksum.
    Blocks(u64),
}

/// One stripe in progress.
#[derive(Debug)]
pub(crate) struct Stripe {
    read: u32,
    index: u32,
    /// The wanted bytes of the stripe are `from..to`; cutting has come to `at`.
    from: u64,
    at: u64,
    to: u64,
    verify: Verify,
    /// Bytes of the caller's memory before the first wanted byte that travel with it.
    lead_bytes: u64,
    /// Pieces in the stripe's order. The head holds what has landed from the start of a lease.
    head: u32,
    tail: u32,
    /// The piece that landed neighbours are joined into.
    base: u32,
    /// Pieces that have not landed.
    pieces_out: u32,
    /// The fetch of its block table, if one is under way.
    table_fetch: u32,
    status: Status,
    actual: u64,
    bad_block: Option<u32>,
    attempts: u8,
    rail: u8,
    /// The gap before the first wanted byte.
    lead: Option<Part>,
    /// Wanted bytes that were never carved into pieces: the stripe failed first.
    rest: Option<Part>,
    /// The same in the leases behind that one, for a scattered read.
    more: Vec<Part>,
    /// Its end was told, or waits for those before it.
    ended: bool,
    /// It failed its checksum for good; its block table is fetched to say where.
    diagnosing: bool,
    links: Links,
    hashing_links: Links,
}
linked!(Stripe, ACTIVE => links, HASHING => hashing_links);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    Direct,
    Staged,
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceState {
    /// Waits for its rail.
    Staged,
    /// The rail has it.
    Ordered,
    /// The rail has it and was told that it is not wanted any more.
    CalledBack,
    /// Its bytes are there; the table they are checked against is not.
    AwaitsTable,
    /// Quiet; its part is kept until the stripe ends.
    Landed,
}

/// One transfer of a stripe's bytes, or of its block table.
#[derive(Debug)]
pub(crate) struct Piece {
    stripe: u32,
    /// The next piece of the stripe.
    next: u32,
    kind: PieceKind,
    state: PieceState,
    rail: u8,
    attempts: u8,
    /// Whether another rail could take it.
    alternatives: bool,
    tried: RailMask,
    /// The id under which its rail knows it, if that is not its own: that of a solo.
    alias: Option<Id<Piece>>,
    shape: PieceShape,
    /// The caller's memory for the wanted bytes, unless a rail has it.
    part: Option<Part>,
    /// Landed staging memory that waits for the table.
    landed: Option<Part>,
    /// The lease that the staging memory is of.
    loan: Option<Loan>,
    links: Links,
}
linked!(Piece, STAGED => links);

/// What a home knows of one rail.
#[derive(Debug)]
pub(crate) struct Feed {
    staged: List<STAGED>,
    waiters: List<WAITING>,
    /// Pieces and bytes ordered and not back.
    ordered: u32,
    ordered_bytes: u64,
    /// Bytes that wait here.
    staged_bytes: u64,
    ordered_max: u32,
    ordered_bytes_max: u64,
    staging: Staging,
}

/// One ring that this poller is home to.
#[derive(Debug)]
struct Seat {
    end: RingEnd,
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
    reads: Slab<Read>,
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
    /// A piece found something used up that other pollers hold, for the first time.
    starved: bool,
    draining: List<DRAINING>,
    /// The engine shuts down: reads that are still on a ring end as soon as they are admitted.
    stopping: bool,
    /// Bytes hashed since the turn began.
    pub(crate) hashed_bytes: u64,
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
    pub(crate) fn reads_in_progress(&self) -> u32 {
        self.reads.len() + self.solos.len()
    }

    /// Whether no further read can be worked on. A solo keeps the room it would be promoted to.
    fn is_full(&self) -> bool {
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
    pub(crate) fn seat(&mut self, seat: usize, end: RingEnd, cq_entries: u32) {
        let reads = vec![NONE; cq_entries as usize].into();
        self.seats[seat] = Some(Seat { end, reads, in_progress: 0, closed: false, orphan: None });
        self.mark_ready(seat);
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
            self.loads[rail].rate = rate.max(1);
        }
    }

    /// Passes what was ended to the callers: one publication per ring and turn.
    pub(crate) fn publish(&mut self) {
        for word in 0..self.unpublished.len() {
            let mut bits = std::mem::take(&mut self.unpublished[word]);
            while bits != 0 {
                let ring = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Some(seat) = &mut self.seats[ring] {
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
        any
    }

    /// When a deadline may next fire.
    pub(crate) fn next_deadline(&self) -> Nanos {
        self.wheel.next().unwrap_or(Nanos::NEVER)
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
