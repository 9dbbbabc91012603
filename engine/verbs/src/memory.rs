//! Which regions are registered, under which keys: written by control threads, read by the link
//! without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use railring_dma::{Part, Region, RegionId};

use crate::ffi::Keys;

/// Regions that can be registered at once.
pub(crate) const REGIONS_MAX: u32 = 1024;
/// Registrations that one region can be split into.
pub(crate) const SPLITS_MAX: usize = 64;

#[derive(Debug)]
struct Row {
    /// Generation of the region, 0 if it is not registered.
    generation: AtomicU32,
    base: AtomicU64,
    keys: [AtomicU32; SPLITS_MAX],
}

/// The index by region.
#[derive(Debug)]
pub(crate) struct Memory {
    rows: Box<[Row]>,
    /// Length of each of a region's registrations but the last.
    split_bytes: u64,
}

impl Memory {
    /// An index for registrations of at most `split_bytes` bytes, at least 1.
    pub(crate) fn new(split_bytes: u64) -> Self {
        let empty = || Row {
            generation: AtomicU32::new(0),
            base: AtomicU64::new(0),
            keys: [const { AtomicU32::new(0) }; SPLITS_MAX],
        };
        Memory { rows: (0..REGIONS_MAX).map(|_| empty()).collect(), split_bytes }
    }

    pub(crate) fn split_bytes(&self) -> u64 {
        self.split_bytes
    }

    /// Makes a region's keys known to the link; one per split, at most [`SPLITS_MAX`].
    pub(crate) fn publish(&self, region: &Region, keys: impl Iterator<Item = u32>) {
        let Some(row) = self.rows.get(region.id().slot as usize) else { return };
        row.base.store(region.base().as_ptr().addr() as u64, Ordering::Relaxed);
        for (to, key) in row.keys.iter().zip(keys) {
            to.store(key, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `keys_of`, which then sees base and keys.
        row.generation.store(region.id().generation, Ordering::Release);
    }

    /// Forgets a region.
    pub(crate) fn withdraw(&self, region: RegionId) {
        if let Some(row) = self.rows.get(region.slot as usize) {
            row.generation.store(0, Ordering::Relaxed);
        }
    }

    /// The keys of the part's first `bytes` bytes, which reach over one split at most: they are no
    /// longer than [`Memory::split_bytes`]. A region that is forgotten meanwhile may give keys that
    /// are none any more; the device then refuses the request.
    pub(crate) fn keys_of(&self, part: &Part, bytes: u64) -> Option<Keys> {
        let region = part.region();
        let row = self.rows.get(region.slot as usize)?;
        // Acquire: pairs with the Release in `publish`.
        if row.generation.load(Ordering::Acquire) != region.generation || region.generation == 0 {
            return None;
        }
        let base = row.base.load(Ordering::Relaxed);
        let first = (part.address().as_ptr().addr() as u64).checked_sub(base)?;
        let split = first / self.split_bytes;
        let left = self.split_bytes - first % self.split_bytes;
        let key = |split: u64| {
            let key = row.keys.get(usize::try_from(split).ok()?)?;
            Some(key.load(Ordering::Relaxed))
        };
        let rest = if left < bytes { key(split + 1)? } else { 0 };
        let first_bytes = usize::try_from(left.min(bytes)).ok()?;
        Some(Keys { first: key(split)?, first_bytes, rest })
    }
}

#[cfg(test)]
mod tests {
    use railring_dma::{Pool, PoolOptions, RegionConfig, Regions};

    use super::*;

    #[test]
    fn a_part_across_a_split_has_two_keys() {
        let regions = Regions::new(2);
        let region = regions.allocate(RegionConfig::new(5 << 20)).expect("memory");
        let pool = Pool::new(&region, 5 << 20, PoolOptions::default()).expect("one slot");
        let (_loan, whole) = pool.take().expect("one slot").lend();
        let memory = Memory::new(2 << 20);
        assert_eq!(memory.keys_of(&whole, 1), None, "not published");
        memory.publish(&region, [7, 8, 9].into_iter());
        let keys = |first, first_bytes, rest| Some(Keys { first, first_bytes, rest });
        assert_eq!(memory.keys_of(&whole, 1 << 20), keys(7, 1 << 20, 0));
        let (head, rest) = whole.split_at((2 << 20) - 1);
        assert_eq!(memory.keys_of(&head, head.len() as u64), keys(7, (2 << 20) - 1, 0));
        assert_eq!(memory.keys_of(&rest, 1), keys(7, 1, 0));
        assert_eq!(memory.keys_of(&rest, 10), keys(7, 1, 8));
        let (across, last) = rest.split_at((2 << 20) + 2);
        assert_eq!(memory.keys_of(&across, 2 << 20), keys(7, 1, 8));
        assert_eq!(memory.keys_of(&last, last.len() as u64), keys(9, last.len(), 0));
        memory.withdraw(region.id());
        assert_eq!(memory.keys_of(&last, 1), None);
    }
}
