//! Memory of the caller's own that a run reads into, instead of memory of the engine's.

use railring_core::{InlineEngine, MemoryError};
use railring_dma::{HugePages, Pool, PoolOptions, Region, RegionConfig, Regions};

use super::logged::LoggedLink;
use super::run::{Run, Wrong};

/// The caller's memory and the region it is to the engine.
#[derive(Debug)]
pub(crate) struct Own {
    /// Of a registry of its own, of which the engine knows nothing.
    memory: Region,
    /// The same bytes, as the engine knows them.
    region: Option<Region>,
}

/// A pool of so many slots in memory that the engine was only told of.
pub(crate) fn pool(
    engine: &InlineEngine<LoggedLink>,
    slots: usize,
    slot_bytes: usize,
) -> Result<(Pool, Own), MemoryError> {
    let mut config = RegionConfig::new(slots * slot_bytes);
    config.huge_pages = HugePages::Never;
    let memory = Regions::new(1).allocate(config)?;
    // SAFETY: nothing else reads or writes these bytes. They are unmapped when the run is dropped,
    // after its engine and its devices; a run that went wrong is never dropped.
    let region = unsafe { engine.regions().foreign(memory.base(), memory.bytes()) }?;
    let pool = Pool::new(&region, slot_bytes, PoolOptions::default())?;
    engine.register(&region)?;
    Ok((pool, Own { memory, region: Some(region) }))
}

impl Run {
    /// When everything has come back, the engine gives memory up that is not its own.
    pub(crate) fn take_back_own(&mut self) -> Result<(), Wrong> {
        let Some(own) = &mut self.own else { return Ok(()) };
        let bytes = own.memory.bytes();
        self.memories.close();
        let Some(region) = own.region.take() else { return Ok(()) };
        self.marks.set("foreign memory");
        let kept = |error| Wrong::run(format!("{bytes} B of the caller's are kept: {error}"));
        self.engine.unregister(region).map_err(kept)
    }
}
