//! Owns the submission queue entry: one read as its caller wrote it, 64 bytes of plain data.

use std::mem::{align_of, offset_of, size_of};

use crate::{Handle, ReadId};

/// What an SQE asks for. A code that this version does not know survives as itself; the poller
/// ends such a read as [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Opcode {
    /// Completes with one CQE and reads nothing.
    Nop,
    /// Reads a byte range of an object.
    ReadRange,
    /// Reads a set of an object's stripes: the first and a 64-bit mask.
    ReadStripes,
    /// A code from another version.
    Unknown(u8),
}

impl Opcode {
    /// The opcode with this code.
    #[inline]
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Nop,
            1 => Self::ReadRange,
            2 => Self::ReadStripes,
            other => Self::Unknown(other),
        }
    }

    /// The code on the ring.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Nop => 0,
            Self::ReadRange => 1,
            Self::ReadStripes => 2,
            Self::Unknown(code) => code,
        }
    }
}

bitflags::bitflags! {
    /// How one read is to be done. Unknown bits are kept, for the poller to refuse.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    pub struct SqeFlags: u8 {
        /// Do not verify checksums; the CQEs' proof is `None` unless one was to be had for nothing.
        const SKIP_VERIFY = 1;
        /// No CQE for a stripe that succeeded, except the read's last.
        const QUIET = 1 << 1;
        /// A stripe that finally fails does not stop the others.
        const ALLOW_PARTIAL = 1 << 2;
        /// A piece that fails is not retried on another rail.
        const FAIL_FAST = 1 << 3;
        /// Write down where the read's time goes, where there is room for that.
        const TRACE = 1 << 4;
    }
}

/// A submission queue entry.
///
/// ```text
///  0        8        16       24       32       40       48       56 57 58   60
///  +--------+--------+--------+--------+--------+--------+--------+--+--+----+-----+
///  |user    |object  |buffer  |offset  |len     |deadline|read    |op|fl|zero|slots|
///  |data    |        |        |or mask |or first|ns      |        |  |  |    |     |
///  +--------+--------+--------+--------+--------+--------+--------+--+--+----+-----+
/// ```
///
/// ```
/// use sq_cq::{Handle, Opcode, Sqe, SqeFlags};
///
/// let object = Handle { slot: 3, generation: 1 };
/// let buffer = Handle { slot: 0, generation: 9 };
/// let sqe = Sqe::read(object, buffer, 4096, 1 << 20).user_data(7).flags(SqeFlags::QUIET);
/// assert_eq!(sqe.opcode(), Opcode::ReadRange);
/// assert_eq!((sqe.offset(), sqe.len(), sqe.get_user_data()), (4096, 1 << 20, 7));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Sqe {
    user_data: u64,
    object: Handle,
    buffer: Handle,
    offset: u64,
    len: u64,
    deadline_ns: u64,
    read: ReadId,
    opcode: u8,
    flags: SqeFlags,
    reserved: u16,
    slots: u32,
}

const _: () = {
    assert!(size_of::<Sqe>() == 64 && align_of::<Sqe>() == 64);
    assert!(offset_of!(Sqe, user_data) == 0);
    assert!(offset_of!(Sqe, object) == 8);
    assert!(offset_of!(Sqe, buffer) == 16);
    assert!(offset_of!(Sqe, offset) == 24);
    assert!(offset_of!(Sqe, len) == 32);
    assert!(offset_of!(Sqe, deadline_ns) == 40);
    assert!(offset_of!(Sqe, read) == 48);
    assert!(offset_of!(Sqe, opcode) == 56);
    assert!(offset_of!(Sqe, flags) == 57);
    assert!(offset_of!(Sqe, reserved) == 58);
    assert!(offset_of!(Sqe, slots) == 60);
};

impl Sqe {
    /// An entry with this opcode and everything else zero, for callers that fill in the operands of
    /// an opcode this version has no constructor for.
    #[inline]
    pub const fn new(opcode: Opcode) -> Self {
        Self {
            user_data: 0,
            object: Handle::NONE,
            buffer: Handle::NONE,
            offset: 0,
            len: 0,
            deadline_ns: 0,
            read: ReadId { slot: 0, generation: 0 },
            opcode: opcode.code(),
            flags: SqeFlags::empty(),
            reserved: 0,
            slots: 0,
        }
    }

    /// Completes with one CQE and reads nothing.
    #[inline]
    pub const fn nop() -> Self {
        Self::new(Opcode::Nop)
    }

    /// Reads `len` bytes from byte `offset` of `object` into `buffer`.
    #[inline]
    pub const fn read(object: Handle, buffer: Handle, offset: u64, len: u64) -> Self {
        Self { object, buffer, offset, len, ..Self::new(Opcode::ReadRange) }
    }

    /// Reads the stripes `first + i` of `object` for each bit `i` set in `mask`, each landing in
    /// `buffer` at its offset in the object less that of stripe `first`.
    #[inline]
    pub const fn stripes(object: Handle, buffer: Handle, first: u64, mask: u64) -> Self {
        Self { object, buffer, offset: mask, len: first, ..Self::new(Opcode::ReadStripes) }
    }

    /// Sets the caller's own number, which comes back in every CQE of the read.
    #[inline]
    #[must_use]
    pub const fn user_data(self, user_data: u64) -> Self {
        Self { user_data, ..self }
    }

    /// Sets when to give up, in nanoseconds of `CLOCK_MONOTONIC`; 0 is never.
    #[inline]
    #[must_use]
    pub const fn deadline_ns(self, deadline_ns: u64) -> Self {
        Self { deadline_ns, ..self }
    }

    /// Sets how the read is to be done.
    #[inline]
    #[must_use]
    pub const fn flags(self, flags: SqeFlags) -> Self {
        Self { flags, ..self }
    }

    /// What is asked for.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        Opcode::from_code(self.opcode)
    }

    /// The object to read.
    #[inline]
    pub const fn object(&self) -> Handle {
        self.object
    }

    /// Where the bytes go.
    #[inline]
    pub const fn buffer(&self) -> Handle {
        self.buffer
    }

    /// First byte of a range. For a stripe set see [`Sqe::mask`].
    #[inline]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of a range. For a stripe set see [`Sqe::first`].
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a length in bytes, not of a collection")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// First stripe of a stripe set.
    #[inline]
    pub const fn first(&self) -> u64 {
        self.len
    }

    /// Which stripes of a stripe set, from [`Sqe::first`] on.
    #[inline]
    pub const fn mask(&self) -> u64 {
        self.offset
    }

    /// The caller's own number.
    #[inline]
    pub const fn get_user_data(&self) -> u64 {
        self.user_data
    }

    /// When to give up, in nanoseconds of `CLOCK_MONOTONIC`; 0 is never.
    #[inline]
    pub const fn get_deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// How the read is to be done, unknown bits included.
    #[inline]
    pub const fn get_flags(&self) -> SqeFlags {
        self.flags
    }

    /// Which read this is: filled in by the push.
    #[inline]
    pub const fn read_id(&self) -> ReadId {
        self.read
    }

    /// How many CQ slots the read holds: filled in by the push.
    #[inline]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    #[inline]
    pub(crate) fn accept(&mut self, read: ReadId, slots: u32) {
        self.read = read;
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_code_survives() {
        for code in 0..=u8::MAX {
            assert_eq!(Opcode::from_code(code).code(), code);
            assert_eq!(Sqe::new(Opcode::Unknown(code)).opcode(), Opcode::from_code(code));
        }
    }

    #[test]
    fn unknown_flags_survive() {
        let flags = SqeFlags::from_bits_retain(0xff);
        assert_eq!(Sqe::nop().flags(flags).get_flags().bits(), 0xff);
    }

    #[test]
    fn a_stripe_set_keeps_first_and_mask_apart() {
        let sqe = Sqe::stripes(Handle::NONE, Handle::NONE, 64, 0b101);
        assert_eq!((sqe.first(), sqe.mask()), (64, 0b101));
        assert_eq!(sqe.opcode(), Opcode::ReadStripes);
    }
}
