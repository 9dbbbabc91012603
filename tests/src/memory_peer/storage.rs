//! What a peer holds: objects' bytes in memory that others may read.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use railring_dma::{Lease, Region, RegionConfig, Regions};
use railring_verbs::ffi::{Access, Mr, Pd};

use super::PeerError;

/// Regions of one peer.
const REGIONS_MAX: u32 = 4096;

/// Objects by their handles.
#[derive(Debug, Default)]
pub(super) struct Storage {
    regions: Option<Regions>,
    objects: HashMap<String, Held>,
    directories: Vec<PathBuf>,
}

/// One object's bytes, or those of them that one source has.
#[derive(Debug)]
pub(super) struct Held {
    /// None once it was revoked.
    mr: Option<Mr>,
    /// Nothing if any generation will do.
    pub(super) generation: Option<u64>,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) rkey: u32,
    /// Keeps the memory mapped, behind the registration.
    _region: Region,
}

impl Storage {
    pub(super) fn serve(&mut self, directory: &Path) {
        self.directories.push(directory.to_owned());
    }

    pub(super) fn put(
        &mut self,
        pd: &Pd,
        handle: &str,
        generation: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), PeerError> {
        let regions = self.regions.get_or_insert_with(|| Regions::new(REGIONS_MAX));
        let held = Held::new(regions, pd, generation, bytes)?;
        self.objects.insert(handle.to_owned(), held);
        Ok(())
    }

    /// What is held under `handle`, after loading it from a directory if it is not held yet.
    pub(super) fn find(&mut self, pd: &Pd, handle: &str) -> Result<Option<&Held>, PeerError> {
        if !self.objects.contains_key(handle) {
            let Some(file) = self.file(handle) else { return Ok(None) };
            let bytes = std::fs::read(file)?;
            self.put(pd, handle, None, &bytes)?;
        }
        Ok(self.objects.get(handle))
    }

    /// The file that a handle names, if it stays below its directory.
    fn file(&self, handle: &str) -> Option<PathBuf> {
        let path = Path::new(handle);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        self.directories.iter().map(|folder| folder.join(path)).find(|file| file.is_file())
    }

    pub(super) fn revoke(&mut self, handle: &str) -> Result<(), PeerError> {
        let held = self.objects.get_mut(handle);
        held.ok_or_else(|| PeerError::Nothing(format!("object {handle}")))?.mr = None;
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.objects.clear();
    }
}

impl Held {
    fn new(
        regions: &Regions,
        pd: &Pd,
        generation: Option<u64>,
        bytes: &[u8],
    ) -> Result<Held, PeerError> {
        let region =
            filled(regions, bytes).map_err(|why| PeerError::Memory { bytes: bytes.len(), why })?;
        let mr = Mr::register(pd, &region, 0..bytes.len(), Access::RemoteRead)?;
        Ok(Held {
            generation,
            address: mr.address(),
            bytes: bytes.len() as u64,
            rkey: mr.rkey(),
            mr: Some(mr),
            _region: region,
        })
    }
}

/// A region that holds `bytes`.
pub(super) fn filled(regions: &Regions, bytes: &[u8]) -> Result<Region, String> {
    let region =
        regions.allocate(RegionConfig::new(bytes.len())).map_err(|error| error.to_string())?;
    let mut lease = Lease::whole(&region).map_err(|error| error.to_string())?;
    lease.as_mut_slice().copy_from_slice(bytes);
    Ok(region)
}
