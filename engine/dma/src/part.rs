//! Parts: disjoint pieces of a lent lease, each owned by whoever may write its bytes.
//!
//! Unsafe here rests on the crate's invariant: a part is the one owner of its bytes, and they stay
//! mapped while its loan has not got it back.

use std::ptr::NonNull;

use crate::registry::RegionId;
use crate::serial::Serial;

/// The right to read and write a range of a lent lease: a plain value of 32 bytes that a caller
/// gives to a transport and the transport gives back when nothing can write the bytes any more.
///
/// A part does nothing when it is dropped: its bytes never come back, so its loan never settles and
/// the memory stays mapped for ever. That is a leak on purpose. A transport that is dropped with
/// transfers in flight cannot know that they are over, and so must leak their parts.
///
/// A part may be used from any thread. A zero-length part is valid, owns nothing, and is owed to
/// nobody.
#[must_use = "the bytes of a dropped part never come back; repay it"]
pub struct Part {
    base: NonNull<u8>,
    bytes: usize,
    region: RegionId,
    serial: Serial,
}

const _: () = assert!(size_of::<Option<Part>>() == 32);

// SAFETY: the bytes at `base` belong to this value, not to a thread.
unsafe impl Send for Part {}
// SAFETY: a shared reference only reads them.
unsafe impl Sync for Part {}

impl Part {
    #[inline]
    pub(crate) fn new(base: NonNull<u8>, bytes: usize, region: RegionId, serial: Serial) -> Part {
        Part { base, bytes, region, serial }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the part has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Address of the first byte. Less [`crate::Region::base`], it is the offset in the region.
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// The region the bytes are of.
    #[inline]
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the part owns the bytes (crate invariant), and they stay mapped because its
        // loan does not settle without it; of a zero-length part only the address is used, which
        // is not null.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }

    /// The bytes, to write.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the part is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }

    /// Two parts: the first `at` bytes, or all if there are fewer, and the rest.
    #[inline]
    pub fn split_at(self, at: usize) -> (Part, Part) {
        let at = at.min(self.bytes);
        // SAFETY: `at` is at most the length of the range, so the address is in it or just behind.
        let base = unsafe { self.base.add(at) };
        let rest = Part { base, bytes: self.bytes - at, ..self };
        (Part { bytes: at, ..self }, rest)
    }

    /// One part of both, where `next` begins where this one ends and is of the same lending.
    ///
    /// # Errors
    /// They are not neighbours in that order; both come back.
    #[inline]
    pub fn join(self, next: Part) -> Result<Part, (Part, Part)> {
        let adjacent = self.end_address() == next.start_address();
        if !adjacent || self.serial != next.serial || self.region != next.region {
            return Err((self, next));
        }
        Ok(Part { bytes: self.bytes + next.bytes, ..self })
    }

    /// Gives the bytes up for good, as dropping does: nobody can own them again.
    #[inline]
    pub fn forget(self) {}

    #[inline]
    pub(crate) fn start_address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    #[inline]
    pub(crate) fn end_address(&self) -> usize {
        self.start_address() + self.bytes
    }

    #[inline]
    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("region", &self.region)
            .field("address", &self.base)
            .field("bytes", &self.bytes)
            .finish()
    }
}
