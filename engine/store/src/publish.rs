//! The second half of a put: from staged files to a generation that exists, or back to nothing.

use crate::directory::Directory;
use crate::error::{FileError, PutError, StoreWarning};
use crate::format::DataHeader;
use crate::names::{KeyHash, LeafEntry, Name, TMP, TmpEntry, lease, staged_data, staged_manifest};
use crate::put::{PutJob, PutReport, PutState};
use crate::store::{Store, StoreLock};

impl PutJob<'_> {
    /// Steps 3 to 7 of "When a generation exists" in `docs/store.md`.
    pub(crate) fn publish(mut self) -> Result<PutReport, PutError> {
        let mut warnings = Vec::new();
        let name = self.claim(&mut warnings)?;
        self.place_data(&name)?;
        self.place_manifests(&name, &mut warnings)?;
        let tidied = self.store.lock().and_then(|lock| {
            warnings.extend(self.store.tidy_hash(&lock, name.hash)?.warnings);
            self.store.first().unlink(&name.claim())
        });
        if let Err(e) = tidied {
            warnings.push(StoreWarning::CleanupFailed { reason: e.to_string() });
        }
        let placement = self.manifest.placement(|index| self.store.endpoint(index));
        Ok(PutReport { placement, bytes_written: self.bytes_written, warnings })
    }

    /// Chooses the generation and says so, durably, before any file gets a name with it.
    fn claim(&mut self, warnings: &mut Vec<StoreWarning>) -> Result<Name, PutError> {
        let hash = KeyHash::of(&self.manifest.key);
        let lock = self.store.lock()?;
        let generation = self.store.next_generation(&lock, hash, warnings)?;
        let name = Name { hash, generation, nonce: self.manifest.nonce };
        let first = self.store.first();
        first.rename(&lease(name.nonce), &name.claim())?;
        self.manifest.generation = generation;
        self.name = Some(name);
        drop(lock);
        first.sync_dir(TMP)?;
        Ok(name)
    }

    /// Completes, syncs and names every data file, and makes the leaves that manifests need.
    fn place_data(&mut self, name: &Name) -> Result<(), PutError> {
        let leaf = name.hash.leaf();
        for directory in self.store.present() {
            directory.ensure_leaf(leaf)?;
            let Some(staged) = &self.staged[usize::from(directory.index)] else { continue };
            let header = DataHeader {
                store_id: self.store.id,
                index: directory.index,
                count: self.manifest.directories,
                generation: name.generation,
                nonce: name.nonce,
                key_hash: name.hash.0,
                file_bytes: staged.end,
            };
            let header = header.encode();
            staged.file.write_all_at(&header, 0)?;
            staged.file.sync()?;
            self.bytes_written += header.len() as u64;
            directory.rename(&staged_data(name.nonce), &name.data())?;
            directory.sync_dir(&leaf.path())?;
        }
        Ok(())
    }

    /// Publishes. With an error nothing is published, except `Indeterminate`.
    fn place_manifests(
        &mut self,
        name: &Name,
        warnings: &mut Vec<StoreWarning>,
    ) -> Result<(), PutError> {
        let bytes = self.manifest.encode();
        let staged = staged_manifest(name.nonce);
        for directory in self.store.present() {
            directory.write_new(&staged, &bytes)?;
            self.bytes_written += bytes.len() as u64;
        }
        // From the first rename on, the drop must not touch data.
        self.state = PutState::Published;
        let mut failures = Vec::new();
        let (mut visible, mut durable) = (false, false);
        for directory in self.store.present() {
            let placed = directory.rename(&staged, &name.manifest()).and_then(|()| {
                visible = true;
                directory.sync_dir(&name.hash.leaf().path())
            });
            match placed {
                Ok(()) => durable = true,
                Err(e) => failures.push((directory.path.clone(), e)),
            }
        }
        if durable {
            warnings.extend(failures.into_iter().map(|(directory, e)| {
                let (file, reason) = (name.manifest(), e.to_string());
                StoreWarning::ManifestNotWritten { directory, file, reason }
            }));
            return Ok(());
        }
        let Some((_, cause)) = failures.into_iter().next() else { return Ok(()) };
        if visible && self.take_back(name).is_err() {
            return Err(PutError::Indeterminate { generation: name.generation, cause });
        }
        self.state = PutState::Private;
        Err(cause.into())
    }

    /// Removes all manifests, durably, so that the data may go.
    fn take_back(&self, name: &Name) -> Result<(), FileError> {
        for directory in self.store.present() {
            directory.unlink(&name.manifest())?;
        }
        self.store.present().try_for_each(|d| d.sync_dir(&name.hash.leaf().path()))
    }
}

impl Drop for PutJob<'_> {
    /// Takes back a put that did not publish. What cannot be removed now is settled later,
    /// which is why the lease or claim goes last.
    fn drop(&mut self) {
        if self.state == PutState::Published {
            return;
        }
        let nonce = self.manifest.nonce;
        let mut removed = Ok(());
        for directory in self.store.present() {
            removed = removed.and(self.remove_files(directory, nonce));
        }
        if removed.is_ok() {
            let name = self.name.map_or_else(|| lease(nonce), |name| name.claim());
            let _ = self.store.first().unlink(&name);
        }
    }
}

impl PutJob<'_> {
    fn remove_files(&self, directory: &Directory, nonce: u64) -> Result<(), FileError> {
        directory.unlink(&staged_manifest(nonce))?;
        if self.staged[usize::from(directory.index)].is_none() {
            return Ok(());
        }
        directory.unlink(&staged_data(nonce))?;
        if let Some(name) = self.name {
            directory.unlink(&name.data())?;
            // The claim may go only when the data is gone for good.
            directory.sync_dir(&name.hash.leaf().path())?;
        }
        Ok(())
    }
}

impl Store {
    /// One more than every generation this hash ever had.
    fn next_generation(
        &self,
        _lock: &StoreLock,
        hash: KeyHash,
        warnings: &mut Vec<StoreWarning>,
    ) -> Result<u64, PutError> {
        let mut highest = match self.floor()? {
            Ok((floor, damaged)) => {
                warnings.extend(damaged);
                floor
            }
            Err((directory, reason)) => return Err(PutError::FloorDamaged { directory, reason }),
        };
        for directory in self.present() {
            for file in directory.read_dir(&hash.leaf().path())? {
                let name = LeafEntry::parse(&file).map(LeafEntry::name);
                let ours = name.filter(|n| n.hash == hash);
                highest = highest.max(ours.map_or(0, |n| n.generation));
            }
        }
        for file in self.first().read_dir(TMP)? {
            if let Some(TmpEntry::Claim(name) | TmpEntry::Deletion(name)) = TmpEntry::parse(&file)
                && name.hash == hash
            {
                highest = highest.max(name.generation);
            }
        }
        highest.checked_add(1).ok_or(PutError::GenerationsExhausted)
    }
}
