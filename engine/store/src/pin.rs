//! Pins: how a reader keeps a generation's files from being removed.

use crate::backend::FileLock;
use crate::directory::DirectoryFile;
use crate::error::LookupError;
use crate::lookup::Found;
use crate::names::KeyHash;
use crate::store::Store;
use railring_catalog::{ObjectKey, Placement};

/// How often taking a pin begins again because writers were faster.
const ATTEMPTS: usize = 64;

/// Keeps one generation's files where they are until it is dropped, or the process ends.
///
/// It needs nothing of the store it came from and may go to any thread.
#[derive(Debug)]
pub struct Pin {
    found: Found,
    /// Nothing if there is no file to hold: the object is empty, or its data files are lost.
    _file: Option<DirectoryFile>,
}

impl Pin {
    /// The generation that is held.
    pub fn placement(&self) -> &Placement {
        &self.found.placement
    }

    /// The generation that is held, and what was wrong with its manifests.
    pub fn found(&self) -> &Found {
        &self.found
    }
}

impl Store {
    /// Looks `key` up and holds the files of what it finds; nothing if there is no such object.
    ///
    /// # Errors
    /// As [`Store::lookup`].
    pub fn pin(&self, key: &ObjectKey) -> Result<Option<Pin>, LookupError> {
        let hash = KeyHash::of(key);
        for _ in 0..ATTEMPTS {
            let Some(found) = self.find(key)? else { return Ok(None) };
            let (locked, file) = self.hold(&found)?;
            if !locked {
                std::thread::yield_now();
                continue;
            }
            // Only now does a remover see the pin; if it was faster, the manifest is gone.
            let generation = found.placement.generation;
            let groups = self.groups(hash)?;
            let there =
                |g: &crate::lookup::Group| g.name.generation == generation && g.key() == Some(key);
            if groups.iter().any(there) {
                return Ok(Some(Pin { found, _file: file }));
            }
        }
        Err(LookupError::Busy { key: key.clone() })
    }

    /// Locks the first data file that is there. False if a remover has it.
    fn hold(&self, found: &Found) -> Result<(bool, Option<DirectoryFile>), LookupError> {
        for source in &found.placement.sources {
            let is_source = |index: &u16| self.endpoint(*index) == source.endpoint;
            let index = (0..self.directory_count()).find(is_source);
            let Some(directory) = index.and_then(|index| self.directory(index)) else { continue };
            let Some(file) = directory.open_if_there(&source.handle)? else { continue };
            let locked = file.try_lock(FileLock::Shared)?;
            return Ok((locked, Some(file)));
        }
        Ok((true, None))
    }
}
