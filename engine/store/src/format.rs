//! Fixed-size records (identity, data header, floor), and the frame that all records share.

use railring_catalog::checksum::stripe_checksum;
use railring_catalog::{KeyError, PlacementError};
use std::fmt;

/// The only format version there is.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes of an identity file.
pub(crate) const IDENTITY_BYTES: usize = 64;
/// Bytes before the first stripe of a data file.
pub(crate) const DATA_HEADER_BYTES: usize = 4096;
/// Bytes of a floor file.
pub(crate) const FLOOR_BYTES: usize = 32;

const IDENTITY_MAGIC: [u8; 8] = *b"RRSTORE\n";
const DATA_MAGIC: [u8; 8] = *b"RRDATA\n\0";
const FLOOR_MAGIC: [u8; 8] = *b"RRFLOOR\n";

/// Why bytes on disk are not the record they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Fewer or more bytes than the record has.
    #[error("it has {bytes} bytes, which no such record has")]
    Length {
        /// Bytes found.
        bytes: u64,
    },
    /// Not this kind of record at all.
    #[error("it does not begin with the magic bytes of its kind")]
    Magic,
    /// Written by a version of the software that this one does not know.
    #[error("it has format version {version}, this software knows {FORMAT_VERSION}")]
    Version {
        /// Version found.
        version: u32,
    },
    /// The record's own checksum does not fit its bytes.
    #[error("its checksum is {found:016x}, its bytes have {actual:016x}")]
    Checksum {
        /// What the record says.
        found: u64,
        /// What its bytes have.
        actual: u64,
    },
    /// A field has a value it cannot have.
    #[error("its {field} cannot be right")]
    Field {
        /// Which one.
        field: &'static str,
    },
    /// It names another store.
    #[error("it belongs to store {found}, not to {expected}")]
    OtherStore {
        /// Store it names.
        found: StoreId,
        /// Store it was found in.
        expected: StoreId,
    },
    /// The object's name is not a legal one.
    #[error("its object name is refused: {0}")]
    Key(#[from] KeyError),
    /// The placement in it is not a legal one.
    #[error("its placement is refused: {0}")]
    Placement(#[from] PlacementError),
}

/// The random number that all directories of one store share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Builds a record.
#[derive(Debug)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Starts with magic and version.
    pub(crate) fn new(magic: [u8; 8], capacity: usize) -> Self {
        let mut writer = Self(Vec::with_capacity(capacity));
        writer.bytes(&magic).u32(FORMAT_VERSION);
        writer
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Zeros up to `len` bytes in all.
    pub(crate) fn zeros_to(&mut self, len: usize) -> &mut Self {
        self.0.resize(len, 0);
        self
    }

    /// Appends the checksum of everything before.
    pub(crate) fn seal(mut self) -> Vec<u8> {
        let sum = stripe_checksum(&self.0);
        self.u64(sum);
        self.0
    }
}

/// Takes a record apart; every step is bounded by the bytes there are.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Checks magic, version and checksum; leaves the reader behind the version.
    pub(crate) fn unseal(bytes: &'a [u8], magic: [u8; 8]) -> Result<Self, FormatError> {
        let length = FormatError::Length { bytes: bytes.len() as u64 };
        if bytes.len() < 20 {
            return Err(length);
        }
        let (body, sum) = bytes.split_last_chunk::<8>().ok_or(length)?;
        let mut reader = Self(body);
        if reader.array::<8>()? != magic {
            return Err(FormatError::Magic);
        }
        // Before the checksum: another version may keep it elsewhere.
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            return Err(FormatError::Version { version });
        }
        let (found, actual) = (u64::from_le_bytes(*sum), stripe_checksum(body));
        if found != actual {
            return Err(FormatError::Checksum { found, actual });
        }
        Ok(reader)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, rest)) = self.0.split_at_checked(len) else {
            return Err(FormatError::Field { field: "length" });
        };
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let Some((head, rest)) = self.0.split_first_chunk() else {
            return Err(FormatError::Field { field: "length" });
        };
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn store_id(&mut self) -> Result<StoreId, FormatError> {
        self.array().map(StoreId)
    }

    /// Skips `len` bytes that must be zero.
    pub(crate) fn zeros(&mut self, len: usize) -> Result<(), FormatError> {
        if self.take(len)?.iter().all(|&b| b == 0) {
            return Ok(());
        }
        Err(FormatError::Field { field: "reserved space" })
    }

    pub(crate) fn rest(&self) -> usize {
        self.0.len()
    }
}

fn exact(bytes: &[u8], len: usize) -> Result<(), FormatError> {
    if bytes.len() == len {
        return Ok(());
    }
    Err(FormatError::Length { bytes: bytes.len() as u64 })
}

/// What a directory says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) store_id: StoreId,
    pub(crate) index: u16,
    pub(crate) count: u16,
    pub(crate) created_ns: u64,
}

impl Identity {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(IDENTITY_MAGIC, IDENTITY_BYTES);
        w.u16(self.index).u16(self.count).bytes(&self.store_id.0).u64(self.created_ns);
        w.zeros_to(IDENTITY_BYTES - 8);
        w.seal()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::unseal(bytes, IDENTITY_MAGIC)?;
        exact(bytes, IDENTITY_BYTES)?;
        let (index, count) = (r.u16()?, r.u16()?);
        let (store_id, created_ns) = (r.store_id()?, r.u64()?);
        r.zeros(16)?;
        if index >= count {
            return Err(FormatError::Field { field: "directory index" });
        }
        Ok(Self { store_id, index, count, created_ns })
    }
}

/// The first 4,096 bytes of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataHeader {
    pub(crate) store_id: StoreId,
    pub(crate) index: u16,
    pub(crate) count: u16,
    pub(crate) generation: u64,
    pub(crate) nonce: u64,
    pub(crate) key_hash: u64,
    pub(crate) file_bytes: u64,
}

impl DataHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(DATA_MAGIC, DATA_HEADER_BYTES);
        w.u16(self.index).u16(self.count).bytes(&self.store_id.0).u64(self.generation);
        w.u64(self.nonce).u64(self.key_hash).u64(self.file_bytes);
        w.zeros_to(DATA_HEADER_BYTES - 8);
        w.seal()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::unseal(bytes, DATA_MAGIC)?;
        exact(bytes, DATA_HEADER_BYTES)?;
        let (index, count, store_id) = (r.u16()?, r.u16()?, r.store_id()?);
        let (generation, nonce) = (r.u64()?, r.u64()?);
        let (key_hash, file_bytes) = (r.u64()?, r.u64()?);
        r.zeros(r.rest())?;
        Ok(Self { store_id, index, count, generation, nonce, key_hash, file_bytes })
    }
}

pub(crate) fn encode_floor(floor: u64) -> Vec<u8> {
    let mut w = Writer::new(FLOOR_MAGIC, FLOOR_BYTES);
    w.u32(0).u64(floor);
    w.seal()
}

pub(crate) fn decode_floor(bytes: &[u8]) -> Result<u64, FormatError> {
    let mut r = Reader::unseal(bytes, FLOOR_MAGIC)?;
    exact(bytes, FLOOR_BYTES)?;
    r.zeros(4)?;
    r.u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { store_id: StoreId([7; 16]), index: 1, count: 3, created_ns: 99 }
    }

    fn header() -> DataHeader {
        DataHeader {
            store_id: StoreId([7; 16]),
            index: 2,
            count: 3,
            generation: 4,
            nonce: 5,
            key_hash: 6,
            file_bytes: 8192,
        }
    }

    /// A flipped bit anywhere and every shorter or longer length must be refused.
    fn refuses_every_change<T>(good: &[u8], decode: impl Fn(&[u8]) -> Result<T, FormatError>) {
        assert!(decode(good).is_ok());
        // Every bit of what has fields, one bit of every byte of long padding.
        for bit in (0..good.len() * 8).filter(|bit| bit / 8 < 72 || bit % 8 == bit / 8 % 8) {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad).is_err(), "flipped bit {bit}");
        }
        for len in 0..good.len() {
            assert!(decode(&good[..len]).is_err(), "cut to {len}");
        }
        assert!(decode(&[good, &[0]].concat()).is_err(), "one byte more");
    }

    #[test]
    fn records_come_back_and_no_flipped_bit_passes() {
        assert_eq!(Identity::decode(&identity().encode()), Ok(identity()));
        assert_eq!(DataHeader::decode(&header().encode()), Ok(header()));
        assert_eq!(decode_floor(&encode_floor(77)), Ok(77));
        refuses_every_change(&identity().encode(), Identity::decode);
        refuses_every_change(&header().encode(), DataHeader::decode);
        refuses_every_change(&encode_floor(77), decode_floor);
    }

    #[test]
    fn layout_is_as_documented() {
        let bytes = identity().encode();
        assert_eq!(bytes[..16], *b"RRSTORE\n\x01\0\0\0\x01\0\x03\0");
        assert_eq!((&bytes[16..32], bytes[32]), (&[7u8; 16][..], 99));
        let bytes = header().encode();
        assert_eq!(bytes[..16], *b"RRDATA\n\0\x01\0\0\0\x02\0\x03\0");
        assert_eq!((bytes[32], bytes[40], bytes[48], bytes[57], bytes.len()), (4, 5, 6, 32, 4096));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = identity().encode();
        bytes[8] = 2;
        assert_eq!(Identity::decode(&bytes), Err(FormatError::Version { version: 2 }));
    }
}
