//! XXH3-64: checksums of stripes and block tables, their byte order, the format of a table.
//!
//! The algorithm is XXH3 with 64 bits, seed 0 and the default secret, as fixed by xxHash 0.8.0
//! (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>); it is not XXH64. It finds
//! accidents, not forgery.
//!
//! * As text a checksum is 16 lower-case hexadecimal digits, most significant first: what
//!   `xxhsum -H3` prints.
//! * A *block table* is the checksums of a stripe's blocks in order, 8 bytes each, little-endian,
//!   nothing else. It proves nothing by itself: its own XXH3-64 must be the one in the placement.

use std::fmt;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of one entry of a block table.
pub const TABLE_ENTRY_BYTES: u64 = 8;

/// XXH3-64 of a stripe's exact bytes, without padding.
pub fn stripe_checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// XXH3-64 of one block's exact bytes; the last block of a stripe may be short.
pub fn block_checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// XXH3-64 of an encoded block table.
pub fn table_checksum(table: &[u8]) -> u64 {
    xxh3_64(table)
}

/// Blocks in a stripe (or any run of bytes that starts a block) of `len_bytes`.
///
/// # Panics
/// If `block_bytes` is 0.
pub fn block_count(len_bytes: u64, block_bytes: u32) -> u64 {
    len_bytes.div_ceil(u64::from(block_bytes))
}

/// Length of the block table of a stripe of `len_bytes`.
///
/// # Panics
/// If `block_bytes` is 0.
pub fn table_bytes(len_bytes: u64, block_bytes: u32) -> u64 {
    block_count(len_bytes, block_bytes) * TABLE_ENTRY_BYTES
}

/// Computes the block table of a whole stripe.
///
/// # Panics
/// If `block_bytes` is 0.
pub fn encode_table(stripe: &[u8], block_bytes: u32) -> Vec<u8> {
    stripe.chunks(block_bytes as usize).flat_map(|b| block_checksum(b).to_le_bytes()).collect()
}

/// Reads entry `block` of an encoded table; nothing if the table is too short to have it.
pub fn table_entry(table: &[u8], block: usize) -> Option<u64> {
    let start = block.checked_mul(TABLE_ENTRY_BYTES as usize)?;
    let entry = table.get(start..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*entry))
}

/// An encoded block table that was checked against the placement's checksum of it.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable<'a> {
    bytes: &'a [u8],
    block_bytes: u32,
}

/// Why a block table must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table has not the length that the stripe's length asks for.
    #[error("block table has {bytes} bytes, the stripe's length asks for {expected_bytes}")]
    Length {
        /// Bytes given.
        bytes: u64,
        /// Bytes needed.
        expected_bytes: u64,
    },
    /// The placement vouches for another table.
    #[error("block table has checksum {actual:016x}, the placement says {expected:016x}")]
    Checksum {
        /// What the placement says.
        expected: u64,
        /// What the table has.
        actual: u64,
    },
}

impl<'a> BlockTable<'a> {
    /// Checks `bytes` as the table of a stripe of `stripe_len_bytes`.
    ///
    /// # Errors
    /// A wrong length or checksum.
    ///
    /// # Panics
    /// If `block_bytes` is 0.
    pub fn verify(
        bytes: &'a [u8],
        stripe_len_bytes: u64,
        block_bytes: u32,
        expected: u64,
    ) -> Result<Self, TableError> {
        let expected_bytes = table_bytes(stripe_len_bytes, block_bytes);
        if bytes.len() as u64 != expected_bytes {
            return Err(TableError::Length { bytes: bytes.len() as u64, expected_bytes });
        }
        let actual = table_checksum(bytes);
        if actual != expected {
            return Err(TableError::Checksum { expected, actual });
        }
        Ok(Self { bytes, block_bytes })
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.bytes.len() / TABLE_ENTRY_BYTES as usize
    }

    /// Checksum of block `block`, if there is such a block.
    pub fn entry(&self, block: usize) -> Option<u64> {
        table_entry(self.bytes, block)
    }

    /// Checks bytes of the stripe that begin with block `first_block`; gives the first block that
    /// differs. Bytes past the table's last block differ.
    pub fn first_bad_block(&self, first_block: usize, bytes: &[u8]) -> Option<usize> {
        bytes
            .chunks(self.block_bytes as usize)
            .zip(first_block..)
            .find(|(b, block)| self.entry(*block) != Some(block_checksum(b)))
            .map(|(_, block)| block)
    }
}

/// XXH3-64 of bytes that arrive in pieces, in order. Never allocates; about 600 bytes in place.
#[derive(Clone)]
pub struct StreamingChecksum {
    state: Xxh3,
}

impl StreamingChecksum {
    /// Starts with no bytes.
    pub fn new() -> Self {
        Self { state: Xxh3::new() }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    /// The checksum of everything added so far; more may be added after it.
    pub fn finish(&self) -> u64 {
        self.state.digest()
    }

    /// Forgets all bytes.
    pub fn reset(&mut self) {
        self.state.reset();
    }
}

impl Default for StreamingChecksum {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for StreamingChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamingChecksum").field("digest", &Hex(self.finish())).finish()
    }
}

/// Shows a checksum as its 16 lower-case hexadecimal digits, most significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Reads 16 hexadecimal digits of either case; nothing else, no sign, no prefix.
pub fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { u64::from_str_radix(text, 16).ok() } else { None }
}

/// Optional checksums as hexadecimal text, because JSON readers round 64-bit numbers.
pub(crate) mod serde_hex {
    use super::{Hex, parse_hex};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(sum: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match sum {
            Some(sum) => to.collect_str(&Hex(*sum)),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        // A placement checksum is short; a foreign one of any length is refused by parse_hex.
        let text = Option::<String>::deserialize(from)?;
        text.map(|t| parse_hex(&t).ok_or_else(|| D::Error::custom("a checksum is 16 hex digits")))
            .transpose()
    }
}
