//! Owns the completion queue entry: one stripe's outcome, 64 bytes of plain data.

use std::mem::{align_of, offset_of, size_of};

use crate::{ReadId, Status};

bitflags::bitflags! {
    /// What a CQE says about its place in the read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    pub struct CqeFlags: u8 {
        /// More CQEs of this read follow (io_uring's multishot meaning). Set by the ring.
        const MORE = 1;
        /// The entry belongs to a read that the engine made for itself; callers never see one.
        const INTERNAL = 1 << 1;
    }
}

/// What vouches for the bytes of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Proof {
    /// Nothing: the stripe failed, or verification was waived.
    #[default]
    None = 0,
    /// The stripe was hashed whole and matched the placement.
    Stripe = 1,
    /// Every block was hashed and matched a table that the placement vouches for.
    Blocks = 2,
    /// The server verified at rest, and a checksum of exactly these bytes was checked on arrival.
    Transport = 3,
}

/// What a poller says of a stripe; the ring adds which read it is, `MORE`, and the slots freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CqeFields {
    /// The caller's own number, from the SQE.
    pub user_data: u64,
    /// This stripe's outcome.
    pub status: Status,
    /// The read's outcome: its first real error, else ok. Of meaning on the last CQE only.
    pub read_status: Status,
    /// Which stripe of the object.
    pub stripe: u16,
    /// Which rail brought the stripe (the last attempt's), if any did.
    pub rail: Option<u8>,
    /// How many attempts it took.
    pub attempts: u8,
    /// The read is one of the engine's own.
    pub internal: bool,
    /// What vouches for the bytes.
    pub proof: Proof,
    /// Bytes of this stripe that the read brought.
    pub bytes: u64,
    /// The stripe's checksum when the read covered it, the actual value on a mismatch, else 0.
    pub checksum: u64,
    /// Bytes of the whole read. Of meaning on the last CQE only; 48 bits, saturating.
    pub total_bytes: u64,
    /// Stripes of the whole read that failed. Of meaning on the last CQE only.
    pub failed_stripes: u16,
    /// From push to completion, in nanoseconds; saturates at about 4.29 s.
    pub latency_ns: u64,
    /// The first bad block of the stripe, when a block table told.
    pub bad_block: Option<u32>,
}

/// A completion queue entry.
///
/// ```text
///  0        8        16     20     24     26   27       28    29    30    32
///  +--------+--------+------+------+------+----+--------+-----+-----+-----+
///  |user    |read    |status|read  |stripe|rail|attempts|flags|proof|frees|
///  |data    |        |      |status|      |    |        |     |     |     |
///  +--------+--------+------+------+------+----+--------+-----+-----+-----+
///  32       40       48                               56      60          64
///  +--------+--------+--------------------------------+-------+-----------+
///  |bytes   |checksum|total bytes:48, failed:16 (high)|latency|bad block  |
///  +--------+--------+--------------------------------+-------+-----------+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Cqe {
    user_data: u64,
    read: ReadId,
    status: Status,
    read_status: Status,
    stripe: u16,
    rail: u8,
    attempts: u8,
    flags: CqeFlags,
    proof: Proof,
    frees: u16,
    bytes: u64,
    checksum: u64,
    totals: u64,
    latency_ns: u32,
    bad_block: u32,
}

const _: () = {
    assert!(size_of::<Cqe>() == 64 && align_of::<Cqe>() == 64);
    assert!(offset_of!(Cqe, user_data) == 0);
    assert!(offset_of!(Cqe, read) == 8);
    assert!(offset_of!(Cqe, status) == 16);
    assert!(offset_of!(Cqe, read_status) == 20);
    assert!(offset_of!(Cqe, stripe) == 24);
    assert!(offset_of!(Cqe, rail) == 26);
    assert!(offset_of!(Cqe, attempts) == 27);
    assert!(offset_of!(Cqe, flags) == 28);
    assert!(offset_of!(Cqe, proof) == 29);
    assert!(offset_of!(Cqe, frees) == 30);
    assert!(offset_of!(Cqe, bytes) == 32);
    assert!(offset_of!(Cqe, checksum) == 40);
    assert!(offset_of!(Cqe, totals) == 48);
    assert!(offset_of!(Cqe, latency_ns) == 56);
    assert!(offset_of!(Cqe, bad_block) == 60);
};

const NO_RAIL: u8 = 0xff;
const NO_BLOCK: u32 = u32::MAX;
const TOTAL_BYTES_MAX: u64 = (1 << 48) - 1;

impl Cqe {
    /// An entry that says `fields`.
    #[inline]
    pub const fn new(fields: &CqeFields) -> Self {
        let total_bytes =
            if fields.total_bytes > TOTAL_BYTES_MAX { TOTAL_BYTES_MAX } else { fields.total_bytes };
        let latency = fields.latency_ns;
        Self {
            user_data: fields.user_data,
            read: ReadId { slot: 0, generation: 0 },
            status: fields.status,
            read_status: fields.read_status,
            stripe: fields.stripe,
            rail: match fields.rail {
                Some(rail) => rail,
                None => NO_RAIL,
            },
            attempts: fields.attempts,
            flags: if fields.internal { CqeFlags::INTERNAL } else { CqeFlags::empty() },
            proof: fields.proof,
            frees: 0,
            bytes: fields.bytes,
            checksum: fields.checksum,
            totals: total_bytes | (fields.failed_stripes as u64) << 48,
            latency_ns: if latency > u32::MAX as u64 { u32::MAX } else { latency as u32 },
            bad_block: match fields.bad_block {
                Some(block) => block,
                None => NO_BLOCK,
            },
        }
    }

    /// The caller's own number, from the SQE.
    #[inline]
    pub const fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Which read this belongs to, as its push said.
    #[inline]
    pub const fn read_id(&self) -> ReadId {
        self.read
    }

    /// This stripe's outcome.
    #[inline]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// The read's outcome; `None` while more CQEs of it follow.
    #[inline]
    pub const fn read_status(&self) -> Option<Status> {
        if self.has_more() { None } else { Some(self.read_status) }
    }

    /// Whether more CQEs of this read follow.
    #[inline]
    pub const fn has_more(&self) -> bool {
        self.flags.contains(CqeFlags::MORE)
    }

    /// Which stripe of the object.
    #[inline]
    pub const fn stripe(&self) -> u16 {
        self.stripe
    }

    /// Which rail brought the stripe (the last attempt's), if any did.
    #[inline]
    pub const fn rail(&self) -> Option<u8> {
        if self.rail == NO_RAIL { None } else { Some(self.rail) }
    }

    /// How many attempts it took.
    #[inline]
    pub const fn attempts(&self) -> u8 {
        self.attempts
    }

    /// Its place in the read.
    #[inline]
    pub const fn flags(&self) -> CqeFlags {
        self.flags
    }

    /// What vouches for the bytes.
    #[inline]
    pub const fn proof(&self) -> Proof {
        self.proof
    }

    /// CQ slots that popping this entry gives back.
    #[inline]
    pub const fn frees(&self) -> u16 {
        self.frees
    }

    /// Bytes of this stripe that the read brought.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The stripe's checksum when the read covered it, the actual value on a mismatch, else 0.
    #[inline]
    pub const fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Bytes of the whole read; of meaning on its last CQE. Saturates at 2^48 - 1.
    #[inline]
    pub const fn total_bytes(&self) -> u64 {
        self.totals & TOTAL_BYTES_MAX
    }

    /// Stripes of the whole read that failed; of meaning on its last CQE.
    #[inline]
    pub const fn failed_stripes(&self) -> u16 {
        (self.totals >> 48) as u16
    }

    /// From push to completion, in nanoseconds; saturates at about 4.29 s.
    #[inline]
    pub const fn latency_ns(&self) -> u32 {
        self.latency_ns
    }

    /// The first bad block of the stripe, when a block table told.
    #[inline]
    pub const fn bad_block(&self) -> Option<u32> {
        if self.bad_block == NO_BLOCK { None } else { Some(self.bad_block) }
    }

    #[inline]
    pub(crate) fn stamp_more(&mut self, read: ReadId) {
        self.read = read;
        self.frees = 1;
        self.flags.insert(CqeFlags::MORE);
    }

    #[inline]
    pub(crate) fn stamp_last(&mut self, read: ReadId, frees: u16) {
        self.read = read;
        self.frees = frees;
        self.flags.remove(CqeFlags::MORE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_limits_saturate() {
        let fields = CqeFields {
            user_data: u64::MAX,
            status: Status::CANCELLED,
            read_status: Status::from_errno(5),
            stripe: u16::MAX,
            rail: Some(3),
            attempts: 2,
            internal: true,
            proof: Proof::Transport,
            bytes: u64::MAX,
            checksum: 0x1234,
            total_bytes: u64::MAX,
            failed_stripes: 0xabcd,
            latency_ns: u64::from(u32::MAX) + 1,
            bad_block: Some(0),
        };
        let cqe = Cqe::new(&fields);
        assert_eq!(cqe.total_bytes(), 0x0000_ffff_ffff_ffff);
        assert_eq!(cqe.failed_stripes(), 0xabcd);
        assert_eq!(cqe.latency_ns(), u32::MAX);
        assert_eq!((cqe.rail(), cqe.bad_block()), (Some(3), Some(0)));
        assert_eq!(cqe.flags(), CqeFlags::INTERNAL);
        assert_eq!(cqe.proof(), Proof::Transport);
    }

    #[test]
    fn nothing_known_is_said_as_none() {
        let cqe = Cqe::new(&CqeFields::default());
        assert_eq!((cqe.rail(), cqe.bad_block()), (None, None));
        assert!(cqe.status().is_ok());
        assert_eq!(cqe.read_status(), Some(Status::OK));
    }
}
