//! Listing objects, and looking at one object's files.

use crate::error::{FileError, LookupError, StoreWarning};
use crate::format::{DATA_HEADER_BYTES, DataHeader, FormatError};
use crate::lookup::{Found, Group, GroupState, keys};
use crate::names::{KeyHash, Leaf, LeafEntry, OBJECTS};
use crate::store::Store;
use railring_catalog::{ObjectKey, Placement};
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

/// One entry of a listing.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListEntry {
    /// An object that can be looked up.
    Object(ObjectSummary),
    /// One that cannot; the error says why and which.
    Damaged(LookupError),
}

/// What a listing says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The object.
    pub key: ObjectKey,
    /// Its newest generation.
    pub generation: u64,
    /// Its length.
    pub size_bytes: u64,
    /// Its number of stripes.
    pub stripes: u32,
    /// Directories that have each stripe.
    pub copies: u16,
    /// When it was put, in nanoseconds since 1970.
    pub created_ns: u64,
    /// What is wrong with some of its manifests.
    pub warnings: Vec<StoreWarning>,
}

/// An object and its files.
#[derive(Clone, Debug)]
pub struct ObjectStat {
    /// Where the newest generation lies.
    pub placement: Placement,
    /// When it was put, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Directories that have each stripe.
    pub copies: u16,
    /// Its data files, one for each directory that owns a stripe.
    pub files: Vec<DataFileStat>,
    /// Older generations that are still there, because a reader holds them or a clean-up failed.
    pub older_generations: Vec<u64>,
    /// What is wrong with some of its manifests.
    pub warnings: Vec<StoreWarning>,
}

/// A data file as it is found. Stripes are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFileStat {
    /// The store's directory, or what placements name for it if it is lost.
    pub directory: PathBuf,
    /// The file, relative to the directory.
    pub file: String,
    /// Length it has, if it is there.
    pub file_bytes: Option<u64>,
    /// Length the manifest asks for.
    pub expected_bytes: u64,
    /// What is wrong with its header, if it is there.
    pub header: Result<(), FormatError>,
}

impl DataFileStat {
    /// True if the file is there, long enough, and begins with its header.
    pub fn is_good(&self) -> bool {
        self.header.is_ok() && self.file_bytes.is_some_and(|bytes| bytes >= self.expected_bytes)
    }
}

impl Store {
    /// All objects whose name, written `NAMESPACE/KEY`, begins with `prefix`; in no order.
    ///
    /// Goes through the store leaf by leaf, so it starts at once and holds little; what is put or
    /// removed meanwhile may be in it or not.
    pub fn list(&self, prefix: &str) -> List<'_> {
        List {
            store: self,
            prefix: prefix.to_owned(),
            leaves: None,
            hashes: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// The newest generation of `key` and its files; nothing if there is none.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn stat(&self, key: &ObjectKey) -> Result<Option<ObjectStat>, LookupError> {
        let Some(Found { placement, created_ns, copies, warnings }) = self.find(key)? else {
            return Ok(None);
        };
        let groups = self.groups(KeyHash::of(key))?;
        let is_ours = |g: &&Group| g.key() == Some(key);
        let generations = groups.iter().filter(is_ours).map(|g| g.name.generation);
        let older_generations = generations.filter(|&g| g < placement.generation).collect();
        let mut files = Vec::new();
        if let Some((group, manifest)) = self.pick(&groups, key)? {
            for index in manifest.data_directories() {
                files.push(self.data_file_stat(group, index, manifest.data_file_bytes(index))?);
            }
        }
        Ok(Some(ObjectStat { placement, created_ns, copies, files, older_generations, warnings }))
    }

    fn data_file_stat(
        &self,
        group: &Group,
        index: u16,
        expected_bytes: u64,
    ) -> Result<DataFileStat, FileError> {
        let name = group.name;
        let mut stat = DataFileStat {
            directory: PathBuf::from(self.endpoint(index)),
            file: name.data(),
            file_bytes: None,
            expected_bytes,
            header: Ok(()),
        };
        let Some(directory) = self.directory(index) else { return Ok(stat) };
        let Some(file) = directory.open_if_there(&stat.file)? else { return Ok(stat) };
        stat.file_bytes = Some(file.len()?);
        let expected = DataHeader {
            store_id: self.id,
            index,
            count: self.directory_count(),
            generation: name.generation,
            nonce: name.nonce,
            key_hash: name.hash.0,
            file_bytes: expected_bytes,
        };
        stat.header = match DataHeader::decode(&file.read_start(DATA_HEADER_BYTES)?) {
            Ok(header) if header == expected => Ok(()),
            Ok(_) => Err(FormatError::Field { field: "header, which is another file's," }),
            Err(e) => Err(e),
        };
        Ok(stat)
    }

    /// Every leaf that any present directory has, ascending.
    pub(crate) fn leaves(&self) -> Result<Vec<Leaf>, FileError> {
        let mut leaves = BTreeSet::new();
        for directory in self.present() {
            for high in directory.read_dir(OBJECTS)? {
                let Some(high_byte) = hex_byte(&high) else { continue };
                let low = directory.read_dir(&format!("{OBJECTS}/{high}"))?;
                let bytes = low.iter().filter_map(|name| hex_byte(name));
                leaves.extend(bytes.map(|b| Leaf(u16::from(high_byte) << 8 | u16::from(b))));
            }
        }
        Ok(leaves.into_iter().collect())
    }

    /// Every hash with a manifest in `leaf`.
    pub(crate) fn hashes(&self, leaf: Leaf) -> Result<BTreeSet<KeyHash>, FileError> {
        let mut hashes = BTreeSet::new();
        for directory in self.present() {
            for file in directory.read_dir(&leaf.path())? {
                if let Some(LeafEntry::Manifest(name)) = LeafEntry::parse(&file) {
                    hashes.insert(name.hash);
                }
            }
        }
        Ok(hashes)
    }
}

fn hex_byte(name: &str) -> Option<u8> {
    let lower = name.len() == 2 && !name.bytes().any(|b| b.is_ascii_uppercase() || b == b'+');
    if lower { u8::from_str_radix(name, 16).ok() } else { None }
}

/// A listing under way; see [`Store::list`].
#[derive(Debug)]
pub struct List<'a> {
    store: &'a Store,
    prefix: String,
    /// Read at the first step.
    leaves: Option<VecDeque<Leaf>>,
    hashes: VecDeque<KeyHash>,
    ready: VecDeque<ListEntry>,
}

impl List<'_> {
    /// Moves on to the next hash; false at the end.
    fn advance(&mut self) -> Result<bool, FileError> {
        if let Some(hash) = self.hashes.pop_front() {
            self.read_hash(hash)?;
            return Ok(true);
        }
        let leaves = match &mut self.leaves {
            Some(leaves) => leaves,
            none => {
                // Empty first: after an error the listing ends rather than fails for ever.
                let empty = none.insert(VecDeque::new());
                *empty = self.store.leaves()?.into();
                empty
            }
        };
        let Some(leaf) = leaves.pop_front() else { return Ok(false) };
        self.hashes.extend(self.store.hashes(leaf)?);
        Ok(true)
    }

    fn read_hash(&mut self, hash: KeyHash) -> Result<(), FileError> {
        let groups = self.store.groups(hash)?;
        let vanished = groups.iter().any(|g| matches!(g.state, GroupState::Vanished));
        let keys = keys(&groups);
        for key in keys.keys().filter(|key| key.to_string().starts_with(&self.prefix)) {
            let found = if vanished {
                self.store.find(key)
            } else {
                let picked = self.store.pick(&groups, key);
                picked.map(|p| p.map(|(group, manifest)| self.store.found(group, manifest)))
            };
            match found {
                Ok(Some(found)) => self.ready.push_back(ListEntry::Object(summary(found))),
                Ok(None) => {}
                Err(e) => self.ready.push_back(ListEntry::Damaged(e)),
            }
        }
        // Whose it is cannot be told, so no prefix leaves it out.
        if let (true, Some(group)) = (keys.is_empty() && !vanished, groups.first()) {
            self.ready.push_back(ListEntry::Damaged(self.store.damaged_error(group)));
        }
        Ok(())
    }
}

fn summary(found: Found) -> ObjectSummary {
    let Found { placement, created_ns, copies, warnings } = found;
    ObjectSummary {
        generation: placement.generation,
        size_bytes: placement.size_bytes,
        stripes: placement.stripes.len() as u32,
        key: placement.key,
        copies,
        created_ns,
        warnings,
    }
}

impl Iterator for List<'_> {
    type Item = Result<ListEntry, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                // A disk that fails once fails often: skip what is left of this step.
                Err(e) => return Some(Err(e)),
            }
        }
    }
}
