//! A placement as it is stored, sent and received: plain data, nothing checked yet.

use crate::ObjectKey;
use serde::{Deserialize, Serialize};

/// Most stripes one object can have; stripe numbers fit 16 bits with one to spare.
pub const STRIPES_MAX: u32 = 65_535;
/// Longest stripe: 4 GiB.
pub const STRIPE_BYTES_MAX: u64 = 4 << 30;
/// Smallest block: 4 KiB.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// Largest block: 1 MiB.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// The block size objects are written with when nothing else is asked for: 64 KiB.
pub const BLOCK_BYTES_DEFAULT: u32 = 64 << 10;
/// Most blocks in one stripe, so that a block table is at most 1 MiB.
pub const BLOCKS_PER_STRIPE_MAX: u64 = 131_072;
/// Most owners (copies) of one stripe.
pub const OWNERS_PER_STRIPE_MAX: usize = 255;
/// Past its end an owner's extent is readable up to the next multiple of this, or to the end of
/// the source: what lies there is padding of unspecified value, so that direct I/O can read whole
/// sectors. 4 KiB.
pub const EXTENT_ALIGN: u64 = 4096;
/// No extent may end past this offset, padding included: the largest file offset of the kernel.
pub const EXTENT_END_MAX: u64 = i64::MAX as u64;

/// Where one generation of an object lies and how to check its bytes.
///
/// All strings are opaque to the engine: they are compared and handed back, never taken apart.
/// Stripes may come in any order. Call [`Placement::validate`] before use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The object.
    pub key: ObjectKey,
    /// Which version of the object; never 0. An owner that has another one answers `Stale`.
    pub generation: u64,
    /// What the owner compares besides the generation; may be empty.
    pub etag: String,
    /// The owner's name of this generation; not empty.
    pub handle: String,
    /// Version of the layout rules; never 0.
    pub layout_version: u32,
    /// Length of the object. 0 is legal: such an object has no stripes.
    pub size_bytes: u64,
    /// Length of every stripe but the last: 1 to [`STRIPE_BYTES_MAX`], not necessarily a multiple
    /// of the block size (every stripe starts a new block, its last block may be short; a stripe
    /// smaller than a block has one block).
    pub stripe_bytes: u64,
    /// Block size, a power of two from [`BLOCK_BYTES_MIN`] to [`BLOCK_BYTES_MAX`].
    pub block_bytes: u32,
    /// The data files or remote handles that the owners of the stripes refer to.
    pub sources: Vec<Source>,
    /// One entry for each stripe.
    pub stripes: Vec<StripePlacement>,
}

/// One data file, or one remote handle, on one endpoint: a disk's directory or a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// What a rail must reach to read from it.
    pub endpoint: String,
    /// Its name there.
    pub handle: String,
}

/// One stripe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StripePlacement {
    /// Its number, from 0.
    pub index: u32,
    /// Its exact length, without padding.
    pub len_bytes: u64,
    /// Who has it, in order of preference; all hold the same bytes.
    pub owners: Vec<Owner>,
    /// XXH3-64 of its bytes. Either every stripe has one or none has.
    #[serde(with = "crate::checksum::serde_hex")]
    pub checksum: Option<u64>,
    /// XXH3-64 of its block table ([`crate::checksum`]). Either every stripe has one or none
    /// has, and never without [`StripePlacement::checksum`].
    #[serde(with = "crate::checksum::serde_hex")]
    pub table_checksum: Option<u64>,
}

/// One copy of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Index into [`Placement::sources`].
    pub source: u16,
    /// Where the stripe begins in the source. See [`EXTENT_ALIGN`] for what follows its end.
    pub offset: u64,
    /// Where its block table begins in the source; without meaning if the stripe has no
    /// [`StripePlacement::table_checksum`].
    pub table_offset: u64,
}
