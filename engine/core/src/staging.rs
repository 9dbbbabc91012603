//! Staging memory: engine-owned, registered buffers that edges and block tables are read into.
//!
//! Each rail has its own, so that a rail that hangs with its staging full delays no other. Three
//! sizes: a small block, the default block, and the largest block or table. One buffer more is for
//! block tables only: edges wait for their tables with their buffers taken, so that tables must not
//! wait for those.

use railring_dma::{
    Lease, Placement, Pool, PoolError, PoolOptions, Region, RegionConfig, RegionError, Regions,
};

use crate::places::Places;

/// Slot sizes, in bytes: two 4 KiB blocks, a default block, the largest block or table; each with
/// room for a device's alignment.
const CLASS_BYTES: [usize; 3] = [8 << 10, 64 << 10, 1 << 20];

/// Regions that one rail's staging takes.
pub(crate) const REGIONS_PER_RAIL: usize = CLASS_BYTES.len() + 1;

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

/// What a buffer is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagedFor {
    /// Bytes of a stripe, which may wait for its table.
    Bytes,
    /// A block table, which waits for nothing.
    Table,
}

/// The staging pools of one rail; shared by all pollers.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    classes: [Pool; CLASS_BYTES.len()],
    tables: Pool,
}

impl Staging {
    /// `bytes` for each size class, on `node` where one is named. The buffer for tables is one of
    /// the largest class.
    pub(crate) fn new(
        regions: &Regions,
        places: &Places,
        bytes: usize,
        node: Option<u32>,
    ) -> Result<(Self, Vec<Region>), StagingError> {
        let mut made = Vec::with_capacity(REGIONS_PER_RAIL);
        let mut pool = |slot_bytes: usize, bytes: usize| -> Result<Pool, StagingError> {
            let mut config = RegionConfig::new(bytes.max(slot_bytes));
            config.node = node;
            let region = places.allocate(regions, config)?;
            let pool = Pool::new(&region, slot_bytes, PoolOptions::default())?;
            made.push(region);
            Ok(pool)
        };
        let [small, middle, large] = CLASS_BYTES;
        let classes =
            [pool(small, bytes)?, pool(middle, bytes)?, pool(large, bytes.saturating_sub(large))?];
        let tables = pool(large, large)?;
        Ok((Staging { classes, tables }, made))
    }

    /// A buffer of at least `bytes`; `None` when all that are large enough are in use.
    pub(crate) fn take(&self, bytes: u64, wanted_for: StagedFor) -> Option<Lease> {
        let kept = (wanted_for == StagedFor::Table).then_some(&self.tables);
        let fits = |pool: &&Pool| pool.slot_bytes() as u64 >= bytes;
        self.classes.iter().chain(kept).filter(fits).find_map(Pool::take)
    }

    /// Where the memory lies.
    pub(crate) fn placement(&self) -> Placement {
        self.classes[0].region().placement()
    }

    /// Bytes in use and in all.
    pub(crate) fn gauge(&self) -> (u64, u64) {
        self.classes.iter().chain([&self.tables]).fold((0, 0), |(used, all), pool| {
            let slot = pool.slot_bytes() as u64;
            let slots = pool.slots() as u64;
            (used + (slots - (pool.free() as u64).min(slots)) * slot, all + slots * slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What waits for tables can have everything but what tables need.
    #[test]
    fn a_table_finds_a_buffer_when_edges_have_all_of_theirs() {
        let regions = Regions::new(8);
        let (staging, _made) =
            Staging::new(&regions, &Places::default(), 2 << 20, None).expect("memory");
        let taken: Vec<Lease> = std::iter::from_fn(|| staging.take(1, StagedFor::Bytes)).collect();
        assert_eq!(taken.len(), 256 + 32 + 1);
        let table = staging.take(1 << 20, StagedFor::Table).expect("it is kept for tables");
        assert!(staging.take(1, StagedFor::Table).is_none());
        drop((taken, table));
        assert_eq!(staging.gauge().0, 0);
        assert!(staging.take(1 << 20, StagedFor::Bytes).is_some(), "blocks can be as large");
    }
}
