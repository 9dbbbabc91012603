//! What files in a store are called, and what a name found there means.

use railring_catalog::{ObjectKey, checksum};
use std::fmt;

/// The directory of unfinished work.
pub(crate) const TMP: &str = "tmp";
/// The directory of finished objects.
pub(crate) const OBJECTS: &str = "objects";
/// The file whose lock orders writers.
pub(crate) const LOCK: &str = "lock";
/// The file that identifies a directory.
pub(crate) const IDENTITY: &str = "railring-store";
/// The file that remembers the highest removed generation.
pub(crate) const FLOOR: &str = "floor";

/// Hash of an object's name; the first part of its files' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyHash(pub(crate) u64);

impl KeyHash {
    pub(crate) fn of(key: &ObjectKey) -> Self {
        Self(checksum::stripe_checksum(key.to_string().as_bytes()))
    }

    /// The leaf directory, by the hash's first two bytes.
    pub(crate) fn leaf(self) -> Leaf {
        Leaf((self.0 >> 48) as u16)
    }
}

/// One of the 65,536 leaf directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Leaf(pub(crate) u16);

impl Leaf {
    /// `objects/AB`.
    pub(crate) fn parent(self) -> String {
        format!("{OBJECTS}/{:02x}", self.0 >> 8)
    }

    /// `objects/AB/CD`.
    pub(crate) fn path(self) -> String {
        format!("{}/{:02x}", self.parent(), self.0 & 0xff)
    }
}

/// Identifies one generation's files: hash, generation, nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) hash: KeyHash,
    pub(crate) generation: u64,
    pub(crate) nonce: u64,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}-{:016x}", self.hash.0, self.generation, self.nonce)
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(hex);
        let (hash, generation, nonce) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(Self { hash: KeyHash(hash), generation, nonce })
    }

    pub(crate) fn manifest(&self) -> String {
        format!("{}/{self}.manifest", self.hash.leaf().path())
    }

    pub(crate) fn data(&self) -> String {
        format!("{}/{self}.data", self.hash.leaf().path())
    }

    pub(crate) fn claim(&self) -> String {
        format!("{TMP}/{self}.put")
    }

    pub(crate) fn deletion(&self) -> String {
        format!("{TMP}/{self}.del")
    }
}

/// Lower case only, so that every file has one spelling.
fn hex(text: &str) -> Option<u64> {
    let upper = text.bytes().any(|b| b.is_ascii_uppercase());
    if upper { None } else { checksum::parse_hex(text) }
}

pub(crate) fn lease(nonce: u64) -> String {
    format!("{TMP}/{nonce:016x}.put")
}

pub(crate) fn staged_data(nonce: u64) -> String {
    format!("{TMP}/{nonce:016x}.data")
}

pub(crate) fn staged_manifest(nonce: u64) -> String {
    format!("{TMP}/{nonce:016x}.manifest")
}

pub(crate) fn staged_floor(nonce: u64) -> String {
    format!("{TMP}/{nonce:016x}.floor")
}

pub(crate) fn staged_identity(nonce: u64) -> String {
    format!("{TMP}/{nonce:016x}.identity")
}

/// A file in a leaf directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafEntry {
    Manifest(Name),
    Data(Name),
}

impl LeafEntry {
    pub(crate) fn parse(file: &str) -> Option<Self> {
        let (stem, kind) = file.split_once('.')?;
        let name = Name::parse(stem)?;
        match kind {
            "manifest" => Some(Self::Manifest(name)),
            "data" => Some(Self::Data(name)),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> Name {
        match self {
            Self::Manifest(name) | Self::Data(name) => name,
        }
    }
}

/// A file in `tmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TmpEntry {
    /// A put that has no generation yet.
    Lease(u64),
    /// A put that has one.
    Claim(Name),
    /// A removal that was decided.
    Deletion(Name),
    /// Anything staged by the put (or the moment under the lock) with this nonce.
    Staged(u64),
}

impl TmpEntry {
    pub(crate) fn parse(file: &str) -> Option<Self> {
        let (stem, kind) = file.split_once('.')?;
        match (kind, hex(stem), Name::parse(stem)) {
            ("put", Some(nonce), _) => Some(Self::Lease(nonce)),
            ("put", _, Some(name)) => Some(Self::Claim(name)),
            ("del", _, Some(name)) => Some(Self::Deletion(name)),
            ("data" | "manifest" | "floor" | "identity", Some(nonce), _) => {
                Some(Self::Staged(nonce))
            }
            _ => None,
        }
    }
}
