//! Removing: old generations, objects on request, and what unfinished operations left behind.

use crate::backend::FileLock;
use crate::directory::{Directory, DirectoryFile};
use crate::error::{FileError, RemoveError, StoreWarning};
use crate::format::{FLOOR_BYTES, FormatError, decode_floor, encode_floor};
use crate::lookup::{Group, GroupState, keys};
use crate::manifest::Manifest;
use crate::names::{FLOOR, KeyHash, LeafEntry, Name, TMP, TmpEntry, staged_floor, staged_manifest};
use crate::store::{OpenMode, Store, StoreLock};
use railring_catalog::ObjectKey;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What was tidied up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TidyReport {
    /// Generations that were removed.
    pub removed: u64,
    /// Old generations that stay because a reader holds them.
    pub pinned: u64,
    /// Manifests that were written again where they were missing or damaged.
    pub repaired: u64,
    /// What was settled, and what was found that cannot be helped.
    pub warnings: Vec<StoreWarning>,
}

/// What removing an object did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// There was no such object.
    Absent,
    /// The object is gone, and its data.
    Gone,
    /// The object is gone; its data goes when the readers that hold it are done.
    DataPinned,
}

/// Whether a generation that a reader holds is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfPinned {
    /// Not at all: it is only old.
    Keep,
    /// Its manifests are, its data later: the removal was asked for.
    RemoveManifests,
}

type FloorResult = Result<(u64, Vec<StoreWarning>), (PathBuf, FormatError)>;

impl Store {
    /// Removes `key` with all its generations, also if its manifests are damaged.
    ///
    /// # Errors
    /// A store not open for writing, or the file system's; what was removed until then stays so.
    pub fn remove(&self, key: &ObjectKey) -> Result<Removed, RemoveError> {
        self.check_writable().map_err(|mode| RemoveError::NotWritable { mode })?;
        let lock = self.lock()?;
        let groups = self.groups(KeyHash::of(key))?;
        let others = groups.iter().any(|g| g.key().is_some_and(|other| other != key));
        // Without another object of this hash, what cannot be read is this one's.
        let is_ours = |g: &&Group| g.key().map_or(!others, |other| other == key);
        let mut names: Vec<Name> = groups.iter().filter(is_ours).map(|g| g.name).collect();
        let Some(highest) = names.iter().map(|n| n.generation).max() else {
            return Ok(Removed::Absent);
        };
        match self.floor()? {
            Err((directory, reason)) => {
                return Err(RemoveError::FloorDamaged { directory, reason });
            }
            Ok((floor, _)) if floor >= highest => {}
            Ok(_) => self.raise_floor(&lock, highest)?,
        }
        // Oldest first: cut short at any point, what is left has its newest generation.
        names.reverse();
        let mut removed = Removed::Gone;
        for name in &names {
            if !self.remove_generation(&lock, name, IfPinned::RemoveManifests)? {
                removed = Removed::DataPinned;
            }
        }
        Ok(removed)
    }

    /// Goes through the whole store: settles what unfinished operations left, removes old
    /// generations that no reader holds, writes manifests again where they are missing or
    /// damaged, reports data files without a manifest. Other writers wait while it works on one
    /// object, never longer.
    ///
    /// # Errors
    /// A store not open for writing, or the file system's.
    pub fn gc(&self) -> Result<TidyReport, RemoveError> {
        self.check_writable().map_err(|mode| RemoveError::NotWritable { mode })?;
        let mut report = TidyReport { warnings: self.settle_leftovers()?, ..Default::default() };
        for leaf in self.leaves()? {
            for hash in self.hashes(leaf)? {
                let lock = self.lock()?;
                let one = self.tidy_hash(&lock, hash)?;
                report.removed += one.removed;
                report.pinned += one.pinned;
                report.repaired += one.repaired;
                report.warnings.extend(one.warnings);
            }
            let lock = self.lock()?;
            self.report_orphans(&lock, &leaf.path(), &mut report)?;
        }
        Ok(report)
    }

    fn check_writable(&self) -> Result<(), OpenMode> {
        if self.mode == OpenMode::ReadWrite { Ok(()) } else { Err(self.mode) }
    }

    /// Removes what is older than the newest generation of every object of this hash. What
    /// cannot be told apart is left alone.
    pub(crate) fn tidy_hash(
        &self,
        lock: &StoreLock,
        hash: KeyHash,
    ) -> Result<TidyReport, FileError> {
        let groups = self.groups(hash)?;
        let keys = keys(&groups);
        let mut report = TidyReport::default();
        for key in keys.keys() {
            let Ok(Some((newest, manifest))) = self.pick(&groups, key) else { continue };
            let older = |g: &&Group| {
                let ours = g.key().map_or(keys.len() == 1, |other| other == key);
                ours && g.name.generation < newest.name.generation
            };
            let older: Vec<Name> = groups.iter().filter(older).map(|g| g.name).collect();
            report.repaired += self.repair(lock, newest, manifest)?;
            if older.is_empty() {
                continue;
            }
            // It may be visible without being durable, if its writer was killed in between.
            self.sync_leaves(&newest.name)?;
            for name in older.iter().rev() {
                match self.remove_generation(lock, name, IfPinned::Keep)? {
                    true => report.removed += 1,
                    false => report.pinned += 1,
                }
            }
        }
        Ok(report)
    }

    /// Writes a manifest where it is missing or damaged.
    fn repair(&self, _: &StoreLock, group: &Group, manifest: &Manifest) -> Result<u64, FileError> {
        let damaged = group.damaged.iter().map(|(index, _)| index);
        let mut repaired = 0;
        for directory in group.missing.iter().chain(damaged).filter_map(|&i| self.directory(i)) {
            directory.ensure_leaf(group.name.hash.leaf())?;
            // Not the put's own staged name: it may be alive, just about to rename that file.
            let staged = staged_manifest(self.nonce()?);
            directory.replace(&staged, &group.name.manifest(), &manifest.encode())?;
            repaired += 1;
        }
        Ok(repaired)
    }

    fn sync_leaves(&self, name: &Name) -> Result<(), FileError> {
        let leaf = name.hash.leaf().path();
        for directory in self.present() {
            match directory.sync_dir(&leaf) {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// False if its data stays because a reader holds it.
    fn remove_generation(
        &self,
        _: &StoreLock,
        name: &Name,
        if_pinned: IfPinned,
    ) -> Result<bool, FileError> {
        // Held until the data is gone, so that no reader gets hold of it in between.
        let early = match if_pinned {
            IfPinned::RemoveManifests => None,
            IfPinned::Keep => match self.lock_data(name)? {
                None => return Ok(false),
                held => held,
            },
        };
        let first = self.first();
        match first.create(&name.deletion()) {
            Err(e) if e.source.kind() == std::io::ErrorKind::AlreadyExists => {}
            created => drop(created?),
        }
        first.sync_dir(TMP)?;
        for directory in self.present() {
            directory.unlink(&name.manifest())?;
        }
        self.sync_leaves(name)?;
        let Some(_held) = (if early.is_some() { early } else { self.lock_data(name)? }) else {
            return Ok(false);
        };
        self.remove_data(name)?;
        first.unlink(&name.deletion())?;
        Ok(true)
    }

    fn remove_data(&self, name: &Name) -> Result<(), FileError> {
        for directory in self.present() {
            directory.unlink(&name.data())?;
        }
        self.sync_leaves(name)
    }

    /// Locks every data file of a generation; nothing if a reader holds one.
    fn lock_data(&self, name: &Name) -> Result<Option<Vec<DirectoryFile>>, FileError> {
        let mut held = Vec::new();
        for directory in self.present() {
            let Some(file) = directory.open_if_there(&name.data())? else { continue };
            if !file.try_lock(FileLock::Exclusive)? {
                return Ok(None);
            }
            held.push(file);
        }
        Ok(Some(held))
    }

    /// The highest removed generation, and which floors are damaged; an error if all are.
    pub(crate) fn floor(&self) -> Result<FloorResult, FileError> {
        let (mut highest, mut good, mut damaged) = (0, false, Vec::new());
        for directory in self.present() {
            let floor = match directory.open_if_there(FLOOR)? {
                None => Ok(0),
                Some(file) => decode_floor(&file.read_all(FLOOR_BYTES as u64)?),
            };
            match floor {
                Ok(floor) => (highest, good) = (highest.max(floor), true),
                Err(reason) => damaged.push((directory.path.clone(), reason)),
            }
        }
        match damaged.pop() {
            Some(last) if !good => Ok(Err(last)),
            last => {
                let warning =
                    |(directory, reason)| StoreWarning::FloorDamaged { directory, reason };
                Ok(Ok((highest, damaged.into_iter().chain(last).map(warning).collect())))
            }
        }
    }

    fn raise_floor(&self, _: &StoreLock, floor: u64) -> Result<(), FileError> {
        let staged = staged_floor(self.nonce()?);
        let bytes = encode_floor(floor);
        self.present().try_for_each(|directory| directory.replace(&staged, FLOOR, &bytes))
    }

    /// Settles everything in `tmp` whose owner is dead; says what it did.
    pub(crate) fn settle_leftovers(&self) -> Result<Vec<StoreWarning>, FileError> {
        let lock = self.lock()?;
        let first = self.first();
        let mut warnings = Vec::new();
        let mut alive = BTreeSet::new();
        for file in first.read_dir(TMP)? {
            let path = format!("{TMP}/{file}");
            let settled = match TmpEntry::parse(&file) {
                Some(TmpEntry::Deletion(name)) => {
                    self.remove_generation(&lock, &name, IfPinned::RemoveManifests)?
                }
                Some(TmpEntry::Lease(nonce)) => match dead(first, &path)? {
                    Some(_held) => first.unlink(&path).map(|()| true)?,
                    None => {
                        alive.insert(nonce);
                        false
                    }
                },
                Some(TmpEntry::Claim(name)) => match dead(first, &path)? {
                    Some(_held) => self.settle_claim(&lock, &name).map(|()| true)?,
                    None => {
                        alive.insert(name.nonce);
                        false
                    }
                },
                Some(TmpEntry::Staged(_)) | None => continue,
            };
            if settled {
                let directory = first.path.clone();
                warnings.push(StoreWarning::LeftoverSettled { directory, file: path });
            }
        }
        for directory in self.present() {
            settle_staged(directory, &alive, &mut warnings)?;
        }
        Ok(warnings)
    }

    /// A put that died after it chose its generation: completes it if it had published, else
    /// removes it.
    fn settle_claim(&self, lock: &StoreLock, name: &Name) -> Result<(), FileError> {
        let group = self.group(*name)?;
        match &group.state {
            GroupState::Valid(manifest) => {
                self.repair(lock, &group, manifest)?;
                self.sync_leaves(name)?;
                self.tidy_hash(lock, name.hash)?;
            }
            // Someone must look at it; lookups say so.
            GroupState::Conflict(..) | GroupState::Damaged => {}
            GroupState::Vanished => self.remove_data(name)?,
        }
        self.first().unlink(&name.claim())
    }

    fn report_orphans(
        &self,
        _: &StoreLock,
        leaf: &str,
        report: &mut TidyReport,
    ) -> Result<(), FileError> {
        let (mut manifests, mut data) = (BTreeSet::new(), Vec::new());
        for directory in self.present() {
            for file in directory.read_dir(leaf)? {
                match LeafEntry::parse(&file) {
                    Some(LeafEntry::Manifest(name)) => drop(manifests.insert(name)),
                    Some(LeafEntry::Data(name)) => data.push((directory.path.clone(), name)),
                    None => report.warnings.push(StoreWarning::UnknownFile {
                        directory: directory.path.clone(),
                        file: format!("{leaf}/{file}"),
                    }),
                }
            }
        }
        // A put that is about to publish, or a removal that waits for a reader.
        for file in self.first().read_dir(TMP)? {
            if let Some(TmpEntry::Claim(name) | TmpEntry::Deletion(name)) = TmpEntry::parse(&file) {
                manifests.insert(name);
            }
        }
        let orphans = data.into_iter().filter(|(_, name)| !manifests.contains(name));
        report.warnings.extend(
            orphans
                .map(|(directory, name)| StoreWarning::OrphanData { directory, file: name.data() }),
        );
        Ok(())
    }
}

/// The locked lease or claim of a put that is dead; nothing if it lives.
fn dead(directory: &Directory, path: &str) -> Result<Option<DirectoryFile>, FileError> {
    let Some(file) = directory.open_if_there(path)? else { return Ok(None) };
    Ok(file.try_lock(FileLock::Exclusive)?.then_some(file))
}

/// Removes what dead puts staged in one directory.
fn settle_staged(
    directory: &Directory,
    alive: &BTreeSet<u64>,
    warnings: &mut Vec<StoreWarning>,
) -> Result<(), FileError> {
    for file in directory.read_dir(TMP)? {
        let path = format!("{TMP}/{file}");
        let there = directory.path.clone();
        match TmpEntry::parse(&file) {
            Some(TmpEntry::Staged(nonce)) if !alive.contains(&nonce) => {
                directory.unlink(&path)?;
                warnings.push(StoreWarning::LeftoverSettled { directory: there, file: path });
            }
            Some(TmpEntry::Lease(_) | TmpEntry::Claim(_) | TmpEntry::Deletion(_))
                if directory.index != 0 =>
            {
                warnings.push(StoreWarning::UnknownFile { directory: there, file: path });
            }
            Some(_) => {}
            None => warnings.push(StoreWarning::UnknownFile { directory: there, file: path }),
        }
    }
    Ok(())
}
