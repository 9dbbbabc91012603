//! Finding the newest generation of an object among the manifests of all directories.

use crate::error::{FileError, LookupError, StoreWarning};
use crate::format::FormatError;
use crate::manifest::Manifest;
use crate::names::{KeyHash, LeafEntry, Name};
use crate::store::Store;
use railring_catalog::{ObjectKey, Placement};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// No manifest is longer than one of 65,535 stripes with an owner in every directory.
const MANIFEST_BYTES_MAX: u64 = 512 << 20;
/// How often a look-up that writers disturb begins again.
const ATTEMPTS: usize = 16;

/// The newest generation of an object.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it lies. Owners in lost directories are left out where a stripe has others.
    pub placement: Placement,
    /// When it was put, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Directories that have each stripe, lost ones included.
    pub copies: u16,
    /// What is wrong with some of its manifests.
    pub warnings: Vec<StoreWarning>,
}

/// What the directories have under one manifest name.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: Name,
    pub(crate) state: GroupState,
    /// Present directories that have no such file.
    pub(crate) missing: Vec<u16>,
    /// Present directories whose file is damaged.
    pub(crate) damaged: Vec<(u16, FormatError)>,
}

/// What the valid ones among them say.
#[derive(Debug)]
pub(crate) enum GroupState {
    /// They agree.
    Valid(Box<Manifest>),
    /// They differ; the directories that have a valid one.
    Conflict(ObjectKey, Vec<u16>),
    /// There is none.
    Damaged,
    /// The files were listed and then gone.
    Vanished,
}

impl Group {
    /// The object it speaks of, if it can be told.
    pub(crate) fn key(&self) -> Option<&ObjectKey> {
        match &self.state {
            GroupState::Valid(manifest) => Some(&manifest.key),
            GroupState::Conflict(key, _) => Some(key),
            GroupState::Damaged | GroupState::Vanished => None,
        }
    }
}

impl Store {
    /// The placement of the newest generation of `key`; nothing if there is none.
    ///
    /// Reads one leaf directory and one manifest per disk, however many objects there are. The
    /// data is not looked at, and may be removed when a newer generation comes: see
    /// [`Store::pin`].
    ///
    /// # Errors
    /// Manifests that disagree, or are damaged in all directories.
    pub fn lookup(&self, key: &ObjectKey) -> Result<Option<Placement>, LookupError> {
        Ok(self.find(key)?.map(|found| found.placement))
    }

    /// [`Store::lookup`] with what it found wrong on the way.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn find(&self, key: &ObjectKey) -> Result<Option<Found>, LookupError> {
        let hash = KeyHash::of(key);
        for _ in 0..ATTEMPTS {
            let groups = self.groups(hash)?;
            // A name that was listed and then gone means that a newer one may have come.
            if groups.iter().any(|g| matches!(g.state, GroupState::Vanished)) {
                continue;
            }
            let found = self.pick(&groups, key)?;
            return Ok(found.map(|(group, manifest)| self.found(group, manifest)));
        }
        Err(LookupError::Busy { key: key.clone() })
    }

    pub(crate) fn found(&self, group: &Group, manifest: &Manifest) -> Found {
        let mut placement = manifest.placement(|index| self.endpoint(index));
        self.drop_lost_owners(&mut placement);
        Found {
            placement,
            created_ns: manifest.created_ns,
            copies: manifest.copies,
            warnings: self.replica_warnings(group),
        }
    }

    /// Leaves owners in lost directories out, unless a stripe has no other.
    fn drop_lost_owners(&self, placement: &mut Placement) {
        let there: BTreeSet<String> = self.present().map(|d| self.endpoint(d.index)).collect();
        let alive: Vec<bool> =
            placement.sources.iter().map(|s| there.contains(&s.endpoint)).collect();
        if alive.iter().all(|&a| a) {
            return;
        }
        for stripe in &mut placement.stripes {
            let is_alive = |source: u16| alive[usize::from(source)];
            if stripe.owners.iter().any(|o| is_alive(o.source)) {
                stripe.owners.retain(|o| is_alive(o.source));
            }
        }
    }

    pub(crate) fn replica_warnings(&self, group: &Group) -> Vec<StoreWarning> {
        let file = group.name.manifest();
        let path = |index: u16| PathBuf::from(self.endpoint(index));
        let damaged = group.damaged.iter().map(|(index, reason)| StoreWarning::ManifestDamaged {
            directory: path(*index),
            file: file.clone(),
            reason: reason.clone(),
        });
        let missing = group.missing.iter().map(|index| StoreWarning::ManifestMissing {
            directory: path(*index),
            file: file.clone(),
        });
        damaged.chain(missing).collect()
    }

    /// Everything the directories have for this hash, newest generation first.
    pub(crate) fn groups(&self, hash: KeyHash) -> Result<Vec<Group>, FileError> {
        let mut names = BTreeSet::new();
        for directory in self.present() {
            for file in directory.read_dir(&hash.leaf().path())? {
                match LeafEntry::parse(&file) {
                    Some(LeafEntry::Manifest(name)) if name.hash == hash => names.insert(name),
                    _ => continue,
                };
            }
        }
        let mut groups = Vec::new();
        for name in names.into_iter().rev() {
            groups.push(self.group(name)?);
        }
        groups.sort_by_key(|g| std::cmp::Reverse(g.name.generation));
        Ok(groups)
    }

    /// Reads one manifest from every directory.
    pub(crate) fn group(&self, name: Name) -> Result<Group, FileError> {
        let (mut missing, mut damaged, mut valid) = (Vec::new(), Vec::new(), Vec::new());
        for directory in self.present() {
            let Some(file) = directory.open_if_there(&name.manifest())? else {
                missing.push(directory.index);
                continue;
            };
            let bytes = file.read_all(MANIFEST_BYTES_MAX)?;
            match self.decode(name, &bytes) {
                Ok(manifest) => valid.push((directory.index, manifest)),
                Err(reason) => damaged.push((directory.index, reason)),
            }
        }
        let directories = || valid.iter().map(|(index, _)| *index).collect();
        let state = match valid.split_first() {
            Some(((_, first), rest)) if rest.iter().any(|(_, m)| m != first) => {
                GroupState::Conflict(first.key.clone(), directories())
            }
            Some(_) => GroupState::Valid(Box::new(valid.swap_remove(0).1)),
            None if damaged.is_empty() => GroupState::Vanished,
            None => GroupState::Damaged,
        };
        Ok(Group { name, state, missing, damaged })
    }

    fn decode(&self, name: Name, bytes: &[u8]) -> Result<Manifest, FormatError> {
        let manifest = Manifest::decode(bytes)?;
        if manifest.store_id != self.id {
            return Err(FormatError::OtherStore { found: manifest.store_id, expected: self.id });
        }
        if manifest.directories != self.directory_count() {
            return Err(FormatError::Field { field: "directory count" });
        }
        if manifest.name() != name {
            return Err(FormatError::Field { field: "generation, nonce or key hash" });
        }
        Ok(manifest)
    }

    pub(crate) fn damaged_error(&self, group: &Group) -> LookupError {
        let of = |(index, e): &(u16, FormatError)| (self.endpoint(*index).into(), e.clone());
        LookupError::Damaged {
            file: group.name.manifest(),
            generation: group.name.generation,
            replicas: group.damaged.iter().map(of).collect(),
        }
    }

    /// The newest generation of `key` among all groups of its hash.
    pub(crate) fn pick<'g>(
        &self,
        groups: &'g [Group],
        key: &ObjectKey,
    ) -> Result<Option<(&'g Group, &'g Manifest)>, LookupError> {
        let path = |index: &u16| PathBuf::from(self.endpoint(*index));
        let conflict = |generation, directories: &mut dyn Iterator<Item = PathBuf>| {
            let directories = directories.collect();
            Err(LookupError::Conflict { key: key.clone(), generation, directories })
        };
        for group in groups {
            let generation = group.name.generation;
            match &group.state {
                GroupState::Vanished => {}
                // It may be this object's newest: an older one must not be served for it.
                GroupState::Damaged => return Err(self.damaged_error(group)),
                GroupState::Conflict(other, directories) if other == key => {
                    return conflict(generation, &mut directories.iter().map(path));
                }
                GroupState::Valid(manifest) if manifest.key == *key => {
                    let twin = |g: &&Group| g.name.generation == generation && g.key() == Some(key);
                    if groups.iter().filter(twin).count() == 1 {
                        return Ok(Some((group, manifest)));
                    }
                    let all: BTreeSet<PathBuf> = groups
                        .iter()
                        .filter(twin)
                        .flat_map(|g| self.present().filter(|d| !g.missing.contains(&d.index)))
                        .map(|d| d.path.clone())
                        .collect();
                    return conflict(generation, &mut all.into_iter());
                }
                GroupState::Conflict(..) | GroupState::Valid(_) => {}
            }
        }
        Ok(None)
    }
}

/// Groups by the object they speak of; those of which that cannot be told are left out.
pub(crate) fn keys(groups: &[Group]) -> BTreeMap<ObjectKey, Vec<&Group>> {
    let mut keys: BTreeMap<ObjectKey, Vec<&Group>> = BTreeMap::new();
    for group in groups {
        if let Some(key) = group.key() {
            keys.entry(key.clone()).or_default().push(group);
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::DiskBackend;
    use crate::format::StoreId;
    use crate::store::{OpenMode, Slot};
    use std::sync::Arc;

    fn store() -> Store {
        let slots = vec![Slot::Lost("elsewhere".to_owned())];
        Store::assemble(Arc::new(DiskBackend), StoreId([1; 16]), slots, OpenMode::Degraded)
    }

    fn group(generation: u64, key: Option<&str>) -> Group {
        // One hash for all, as if the keys collided.
        let name = Name { hash: KeyHash(5), generation, nonce: generation };
        let manifest = |key: &str| Manifest {
            store_id: StoreId([1; 16]),
            key: key.parse().expect("legal"),
            generation,
            nonce: generation,
            created_ns: 0,
            size_bytes: 0,
            stripe_bytes: 4096,
            block_bytes: 4096,
            directories: 1,
            copies: 1,
            stripes: Vec::new(),
            extents: Vec::new(),
        };
        let state = key.map_or(GroupState::Damaged, |k| GroupState::Valid(Box::new(manifest(k))));
        Group { name, state, missing: Vec::new(), damaged: Vec::new() }
    }

    #[test]
    fn keys_with_the_same_hash_do_not_hide_each_other() {
        let groups = [group(4, Some("n/b")), group(3, Some("n/a")), group(2, Some("n/b"))];
        let newest = |key: &str| {
            let picked = store().pick(&groups, &key.parse().expect("legal")).expect("no conflict");
            picked.map(|(group, _)| group.name.generation)
        };
        assert_eq!((newest("n/a"), newest("n/b"), newest("n/c")), (Some(3), Some(4), None));
        assert_eq!(keys(&groups).len(), 2);
    }

    #[test]
    fn damage_hides_what_is_older_and_nothing_newer() {
        let key = "n/a".parse().expect("legal");
        let groups = [group(3, Some("n/a")), group(2, None), group(1, Some("n/a"))];
        assert!(store().pick(&groups, &key).is_ok_and(|p| p.is_some()));
        let error = store().pick(&groups[1..], &key).map(|_| ()).expect_err("may be the newest");
        assert!(matches!(error, LookupError::Damaged { generation: 2, .. }));
    }

    #[test]
    fn two_manifests_of_one_generation_are_a_conflict() {
        let key = "n/a".parse().expect("legal");
        let mut twin = group(3, Some("n/a"));
        twin.name.nonce = 77;
        let error = store().pick(&[group(3, Some("n/a")), twin], &key).map(|_| ());
        assert!(matches!(error, Err(LookupError::Conflict { generation: 3, .. })));
    }
}
