//! The compiled form of a placement: checked, sorted, flat, and cheap to ask.

use crate::checksum::block_count;
use crate::{ObjectKey, Owner, Source};

/// A placement that kept every rule; made by [`crate::Placement::validate`] only.
///
/// Stripes are in order and stored flat, so 65,535 of them cost four allocations and every
/// question below is one or two array accesses. Stripe numbers given to it must be below
/// [`ValidPlacement::stripe_count`]; like a slice, it panics on others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidPlacement {
    pub(crate) key: ObjectKey,
    pub(crate) generation: u64,
    pub(crate) etag: String,
    pub(crate) handle: String,
    pub(crate) layout_version: u32,
    pub(crate) size_bytes: u64,
    pub(crate) stripe_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) sources: Vec<Source>,
    pub(crate) stripe_count: u32,
    /// `owners[owner_ends[i - 1]..owner_ends[i]]` belong to stripe `i`.
    pub(crate) owner_ends: Vec<u32>,
    pub(crate) owners: Vec<Owner>,
    /// One per stripe, or empty.
    pub(crate) checksums: Vec<u64>,
    /// One per stripe, or empty.
    pub(crate) table_checksums: Vec<u64>,
}

impl ValidPlacement {
    /// The object.
    #[inline]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Which version of the object; not 0.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The owner's etag; may be empty.
    #[inline]
    pub fn etag(&self) -> &str {
        &self.etag
    }

    /// The owner's name of this generation.
    #[inline]
    pub fn handle(&self) -> &str {
        &self.handle
    }

    /// Version of the layout rules; not 0.
    #[inline]
    pub fn layout_version(&self) -> u32 {
        self.layout_version
    }

    /// Length of the object.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Length of every stripe but the last.
    #[inline]
    pub fn stripe_bytes(&self) -> u64 {
        self.stripe_bytes
    }

    /// Block size, a power of two.
    #[inline]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// What the owners' `source` indexes point into.
    #[inline]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Number of stripes: `size / stripe` rounded up, 0 for an empty object.
    #[inline]
    pub fn stripe_count(&self) -> u32 {
        self.stripe_count
    }

    /// Where stripe `index` begins in the object.
    #[inline]
    pub fn stripe_offset(&self, index: u32) -> u64 {
        assert!(index < self.stripe_count, "stripe {index} of {}", self.stripe_count);
        u64::from(index) * self.stripe_bytes
    }

    /// Exact length of stripe `index`; only the last may be shorter than the others.
    #[inline]
    pub fn stripe_len(&self, index: u32) -> u64 {
        self.stripe_bytes.min(self.size_bytes - self.stripe_offset(index))
    }

    /// Which stripe holds the object's byte `offset`; nothing at or past the end.
    #[inline]
    pub fn stripe_at(&self, offset: u64) -> Option<u32> {
        // The quotient is below stripe_count, a u32.
        (offset < self.size_bytes).then(|| (offset / self.stripe_bytes) as u32)
    }

    /// Who has stripe `index`, in order of preference; never empty.
    #[inline]
    pub fn owners(&self, index: u32) -> &[Owner] {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.owner_ends[index - 1] as usize };
        &self.owners[start..self.owner_ends[index] as usize]
    }

    /// True if every stripe has a checksum; else none has.
    #[inline]
    pub fn has_checksums(&self) -> bool {
        !self.checksums.is_empty()
    }

    /// True if every stripe has a block table the placement vouches for; else none has.
    #[inline]
    pub fn has_tables(&self) -> bool {
        !self.table_checksums.is_empty()
    }

    /// XXH3-64 of stripe `index`, if the placement has checksums.
    #[inline]
    pub fn checksum(&self, index: u32) -> Option<u64> {
        assert!(index < self.stripe_count, "stripe {index} of {}", self.stripe_count);
        self.checksums.get(index as usize).copied()
    }

    /// XXH3-64 of the block table of stripe `index`, if the placement has tables.
    #[inline]
    pub fn table_checksum(&self, index: u32) -> Option<u64> {
        assert!(index < self.stripe_count, "stripe {index} of {}", self.stripe_count);
        self.table_checksums.get(index as usize).copied()
    }

    /// Number of blocks of stripe `index`; its block table has 8 bytes for each.
    #[inline]
    pub fn blocks(&self, index: u32) -> u32 {
        // validate() bounds it by BLOCKS_PER_STRIPE_MAX.
        block_count(self.stripe_len(index), self.block_bytes) as u32
    }

    /// Number of blocks of a full stripe: the stride of a flat array of all blocks.
    #[inline]
    pub fn blocks_per_stripe(&self) -> u32 {
        block_count(self.stripe_bytes, self.block_bytes) as u32
    }
}
