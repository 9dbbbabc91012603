//! What a home keeps in its tables: reads, their stripes, and the pieces of those.

use railring_dma::{Loan, Part};
use railring_transport::Nanos;
use sq_cq::{Permit, ReadId, SqeFlags, Status};

use super::{ACTIVE, DRAINING, HASHING, STAGED, TOKEN, WAITING};
use crate::cancel::CancelToken;
use crate::memory::Memory;
use crate::plan::PieceShape;
use crate::schedule::RailMask;
use crate::slab::{Id, Linked, Links, List, NONE};
use crate::stages::Laps;
use crate::wheel::{Timed, WHEEL};

/// One read in progress.
#[derive(Debug)]
pub(crate) struct Read {
    pub(super) ring: u16,
    pub(super) permit: Option<Permit>,
    pub(super) id: ReadId,
    pub(super) user_data: u64,
    pub(super) object: u32,
    pub(super) flags: sq_cq::SqeFlags,
    pub(super) memory: Memory,
    /// The byte range; or for a set of stripes, from the first stripe's start to the last's end.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The next stripe to begin, and those after it.
    pub(super) stripes: Stripes,
    /// The stripe being cut into pieces, if one is.
    pub(super) cutting: u32,
    /// Stripes that have not ended.
    pub(super) stripes_left: u32,
    /// CQ slots kept for parts of stripes that straddle leases.
    pub(super) extra_slots: u32,
    /// Where the caller's memory begins, in bytes of the object, and how far it has been carved.
    pub(super) carved_to: u64,
    pub(super) piece_bytes: u64,
    pub(super) pushed_at: Nanos,
    pub(super) laps: Laps,
    pub(super) deadline: Nanos,
    pub(super) first_error: Status,
    /// That of the first stripe that ended as failed; what a stop is for may come to none.
    pub(super) told_error: Status,
    pub(super) total_bytes: u64,
    pub(super) failed_stripes: u32,
    /// Set once nothing more is to be started.
    pub(super) ending: Option<Status>,
    /// Memory of a quiet read whose stripes have ended.
    pub(super) retired: Option<Part>,
    pub(super) active: List<ACTIVE>,
    pub(super) token: Option<CancelToken>,
    /// The rail it waits for, if it does; or `CORKED`.
    pub(super) parked: u8,
    pub(super) wheel_links: Links,
    pub(super) waiting_links: Links,
    pub(super) token_links: Links,
    pub(super) draining_links: Links,
}

pub(super) const NOT_PARKED: u8 = u8::MAX;
/// Waits in its ring's cork for another read to end.
pub(super) const CORKED: u8 = NOT_PARKED - 1;

/// Stripes of a read that have not begun.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stripes {
    Range { next: u32, end: u32 },
    Set { first: u32, mask: u64 },
}

impl Stripes {
    pub(super) fn peek(self) -> Option<u32> {
        match self {
            Stripes::Range { next, end } => (next < end).then_some(next),
            Stripes::Set { first, mask } => (mask != 0).then(|| first + mask.trailing_zeros()),
        }
    }

    pub(super) fn advance(&mut self) {
        match self {
            Stripes::Range { next, .. } => *next += 1,
            Stripes::Set { mask, .. } => *mask &= mask.wrapping_sub(1),
        }
    }

    pub(super) fn count(self) -> u32 {
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
    pub(super) read: u32,
    pub(super) index: u32,
    /// The wanted bytes of the stripe are `from..to`; cutting has come to `at`.
    pub(super) from: u64,
    pub(super) at: u64,
    pub(super) to: u64,
    pub(super) verify: Verify,
    /// Bytes of the caller's memory before the first wanted byte that travel with it.
    pub(super) lead_bytes: u64,
    /// Pieces in the stripe's order. The head holds what has landed from the start of a lease.
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The piece that landed neighbours are joined into.
    pub(super) base: u32,
    /// Pieces that have not landed.
    pub(super) pieces_out: u32,
    /// The fetch of its block table, if one is under way.
    pub(super) table_fetch: u32,
    pub(super) status: Status,
    pub(super) actual: u64,
    pub(super) bad_block: Option<u32>,
    pub(super) attempts: u8,
    pub(super) rail: u8,
    /// The gap before the first wanted byte.
    pub(super) lead: Option<Part>,
    /// Wanted bytes that were never carved into pieces: the stripe failed first.
    pub(super) rest: Option<Part>,
    /// The same in the leases behind that one, for a scattered read.
    pub(super) more: Vec<Part>,
    /// Its end was told, or waits for those before it.
    pub(super) ended: bool,
    /// It failed its checksum for good; its block table is fetched to say where.
    pub(super) diagnosing: bool,
    pub(super) links: Links,
    pub(super) hashing_links: Links,
}
linked!(Stripe, ACTIVE => links, HASHING => hashing_links);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Direct,
    Staged,
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceState {
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
    pub(super) stripe: u32,
    /// The next piece of the stripe.
    pub(super) next: u32,
    pub(super) kind: PieceKind,
    pub(super) state: PieceState,
    pub(super) rail: u8,
    pub(super) attempts: u8,
    /// Whether another rail could take it.
    pub(super) alternatives: bool,
    pub(super) tried: RailMask,
    /// The id under which its rail knows it, if that is not its own: that of a solo.
    pub(super) alias: Option<Id<Piece>>,
    pub(super) shape: PieceShape,
    /// The caller's memory for the wanted bytes, unless a rail has it.
    pub(super) part: Option<Part>,
    /// When it was staged, given to its rail or came back, whichever was last.
    pub(super) since: Nanos,
    /// Landed staging memory that waits for the table.
    pub(super) landed: Option<Part>,
    /// The lease that the staging memory is of.
    pub(super) loan: Option<Loan>,
    pub(super) links: Links,
}
linked!(Piece, STAGED => links);

impl Read {
    /// A read that has not begun: no range, no stripes, no memory.
    pub(super) fn new(
        ring: u16,
        permit: Permit,
        user_data: u64,
        object: u32,
        flags: SqeFlags,
        pushed_at: Nanos,
    ) -> Self {
        Read {
            ring,
            id: permit.read_id(),
            permit: Some(permit),
            user_data,
            object,
            flags,
            memory: Memory::None,
            offset: 0,
            len: 0,
            stripes: Stripes::Range { next: 0, end: 0 },
            cutting: NONE,
            stripes_left: 0,
            extra_slots: 0,
            carved_to: 0,
            piece_bytes: 0,
            pushed_at,
            laps: Laps::default(),
            deadline: Nanos::NEVER,
            first_error: Status::OK,
            told_error: Status::OK,
            total_bytes: 0,
            failed_stripes: 0,
            ending: None,
            retired: None,
            active: List::default(),
            token: None,
            parked: NOT_PARKED,
            wheel_links: Links::default(),
            waiting_links: Links::default(),
            token_links: Links::default(),
            draining_links: Links::default(),
        }
    }
}

impl Piece {
    /// A piece that no rail was chosen for yet.
    pub(super) fn new(stripe: u32, kind: PieceKind, shape: PieceShape, part: Option<Part>) -> Self {
        Piece {
            stripe,
            next: NONE,
            kind,
            state: PieceState::Staged,
            rail: 0,
            attempts: 0,
            alternatives: false,
            tried: RailMask::default(),
            alias: None,
            shape,
            part,
            since: Nanos(0),
            landed: None,
            loan: None,
            links: Links::default(),
        }
    }
}

impl Stripe {
    pub(super) fn new(
        read: u32,
        index: u32,
        (from, to): (u64, u64),
        verify: Verify,
        lead_bytes: u64,
    ) -> Self {
        Stripe {
            read,
            index,
            from,
            at: from,
            to,
            verify,
            lead_bytes,
            lead: None,
            head: NONE,
            tail: NONE,
            base: NONE,
            pieces_out: 0,
            table_fetch: NONE,
            status: Status::OK,
            actual: 0,
            bad_block: None,
            attempts: 0,
            rail: u8::MAX,
            rest: None,
            more: Vec::new(),
            ended: false,
            diagnosing: false,
            links: Links::default(),
            hashing_links: Links::default(),
        }
    }
}
