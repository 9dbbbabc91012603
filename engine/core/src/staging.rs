//! Staging memory: engine-owned, registered buffers that edges and block tables are read into.
//!
//! Each rail has its own, so that a rail that hangs with its staging full delays no other. Three
//! sizes: a small block, the default block, and the largest block or table.

use railring_dma::{
    Lease, Placement, Pool, PoolError, PoolOptions, Region, RegionConfig, RegionError, Regions,
};

use crate::places::Places;

/// Slot sizes, in bytes: two 4 KiB blocks, a default block, the largest block or table; each with
/// room for a device's alignment.
const CLASS_BYTES: [usize; 3] = [8 << 10, 64 << 10, 1 << 20];

/// Longest staged read that is not forced longer by the block size: the middle class.
pub(crate) const STAGED_BYTES: u64 = 64 << 10;

/// Why staging memory could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// The memory could not be mapped.
    #[error("no staging memory: {0}")]
    Region(#[from] RegionError),
    /// The memory could not be cut.
    #[error("no staging memory: {0}")]
    Pool(#[from] PoolError),
}

/// The staging pools of one rail; shared by all pollers.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    classes: [Pool; CLASS_BYTES.len()],
}

impl Staging {
    /// `bytes` for each size class, on `node` where one is named.
    pub(crate) fn new(
        regions: &Regions,
        places: &Places,
        bytes: usize,
        node: Option<u32>,
    ) -> Result<(Self, Vec<Region>), StagingError> {
        let mut made = Vec::with_capacity(CLASS_BYTES.len());
        let mut class = |slot_bytes: usize| -> Result<Pool, StagingError> {
            let mut config = RegionConfig::new(bytes.max(slot_bytes));
            config.node = node;
            let region = places.allocate(regions, config)?;
            let pool = Pool::new(&region, slot_bytes, PoolOptions::default())?;
            made.push(region);
            Ok(pool)
        };
        let classes = [class(CLASS_BYTES[0])?, class(CLASS_BYTES[1])?, class(CLASS_BYTES[2])?];
        Ok((Staging { classes }, made))
    }

    /// A buffer of at least `bytes`; `None` when all that are large enough are in use.
    pub(crate) fn take(&self, bytes: u64) -> Option<Lease> {
        self.classes.iter().filter(|pool| pool.slot_bytes() as u64 >= bytes).find_map(Pool::take)
    }

    /// Where the memory lies.
    pub(crate) fn placement(&self) -> Placement {
        self.classes[0].region().placement()
    }

    /// Bytes in use and in all.
    pub(crate) fn gauge(&self) -> (u64, u64) {
        self.classes.iter().fold((0, 0), |(used, all), pool| {
            let slot = pool.slot_bytes() as u64;
            let slots = pool.slots() as u64;
            (used + (slots - (pool.free() as u64).min(slots)) * slot, all + slots * slot)
        })
    }
}
