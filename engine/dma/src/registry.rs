//! The registry of an engine's regions: slots with generations, and how many bytes are where.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::pool;
use crate::region::{Region, RegionConfig, RegionError, RegionInner};

/// Names one region of one [`Regions`] for as long as it exists; never an address, so memory that
/// is mapped again at an old address is a new region. A slot is used again under another
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId {
    /// Index into the registry, below its `regions_max`; an index for per-region tables.
    pub slot: u32,
    /// Distinguishes the regions that used the slot; starts at 1.
    pub generation: u32,
}

/// How many bytes of an engine's regions are where, at about one instant.
///
/// `leased`, `impounded` and `leaked` do not overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionsStats {
    /// Bytes mapped by [`Regions::allocate`] and not unmapped yet, rounding included.
    pub allocated_bytes: u64,
    /// Logical bytes of the foreign regions that are registered now.
    pub foreign_bytes: u64,
    /// Bytes of pool slots that are taken: leases, and loans whose parts are on their way.
    pub leased_bytes: u64,
    /// Bytes of loans that were impounded and may still come back.
    pub impounded_bytes: u64,
    /// Bytes of loans that were dropped with parts still out; they never come back.
    pub leaked_bytes: u64,
}

/// The regions of one engine. A cheap handle: clones share the registry. `Send + Sync`; the
/// methods take a lock and are for set-up, not for the data path.
#[derive(Debug, Clone)]
pub struct Regions {
    inner: Arc<RegistryInner>,
}

#[derive(Debug)]
pub(crate) struct RegistryInner {
    table: Mutex<Table>,
    regions_max: u32,
    pub(crate) allocated_bytes: AtomicU64,
    pub(crate) foreign_bytes: AtomicU64,
    pub(crate) impounded_bytes: AtomicU64,
    pub(crate) leaked_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    used: Option<Used>,
}

#[derive(Debug)]
struct Used {
    address: usize,
    bytes: usize,
    region: Weak<RegionInner>,
    taken: Option<PoolGauge>,
}

/// What the registry needs to count the taken slots of a pool without keeping the pool alive.
#[derive(Debug, Clone)]
pub(crate) struct PoolGauge {
    pub(crate) free_words: Arc<[AtomicU64]>,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: usize,
}

impl PoolGauge {
    pub(crate) fn free(&self) -> u32 {
        pool::count_free(&self.free_words)
    }
}

impl Regions {
    /// A registry for at most `regions_max` regions at a time.
    pub fn new(regions_max: u32) -> Regions {
        Regions {
            inner: Arc::new(RegistryInner {
                table: Mutex::default(),
                regions_max,
                allocated_bytes: AtomicU64::new(0),
                foreign_bytes: AtomicU64::new(0),
                impounded_bytes: AtomicU64::new(0),
                leaked_bytes: AtomicU64::new(0),
            }),
        }
    }

    /// Maps zeroed, page-aligned memory. Its pages are shown by [`Region::pages`], its node by
    /// [`Region::placement`].
    ///
    /// # Errors
    /// No bytes, more than the address space, no free registry slot, huge pages required and not
    /// to be had, or a mapping that the kernel refused. Nothing stays behind.
    pub fn allocate(&self, config: RegionConfig) -> Result<Region, RegionError> {
        Region::allocate(&self.inner, config)
    }

    /// Registers memory of the caller's. An address range can be in one region at a time.
    ///
    /// # Errors
    /// No bytes, a range past the end of the address space, one that overlaps a region of this
    /// registry, or no free slot.
    ///
    /// # Safety
    /// `ptr` must be valid for reads and writes of `bytes` initialised bytes, in one allocation,
    /// and stay so, with nothing else reading, writing or unmapping them, until
    /// [`Region::unregister`] of this region has returned `Ok`. Dropping every handle instead is
    /// no such statement: a leaked loan keeps the region, and then the memory must stay mapped
    /// for ever.
    pub unsafe fn foreign(&self, ptr: NonNull<u8>, bytes: usize) -> Result<Region, RegionError> {
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { Region::foreign(&self.inner, ptr, bytes) }
    }

    /// The region that `id` names, or nothing if it is gone or was never of this registry.
    pub fn get(&self, id: RegionId) -> Option<Region> {
        let table = self.inner.lock();
        let entry = table.entries.get(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        entry.used.as_ref()?.region.upgrade().map(Region::from_inner)
    }

    /// Regions that exist now.
    pub fn len(&self) -> usize {
        self.inner.lock().entries.iter().filter(|entry| entry.used.is_some()).count()
    }

    /// Whether there are no regions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most regions at a time; every [`RegionId::slot`] is below it.
    pub fn regions_max(&self) -> u32 {
        self.inner.regions_max
    }

    /// How many bytes are where. Counted while others go on, so about one instant.
    pub fn stats(&self) -> RegionsStats {
        let taken_bytes: u64 = {
            let table = self.inner.lock();
            let used = table.entries.iter().filter_map(|entry| entry.used.as_ref());
            used.filter_map(|used| used.taken.as_ref())
                .map(|pool| u64::from(pool.slots - pool.free()) * pool.slot_bytes as u64)
                .sum()
        };
        let impounded_bytes = self.inner.impounded_bytes.load(Ordering::Relaxed);
        let leaked_bytes = self.inner.leaked_bytes.load(Ordering::Relaxed);
        RegionsStats {
            allocated_bytes: self.inner.allocated_bytes.load(Ordering::Relaxed),
            foreign_bytes: self.inner.foreign_bytes.load(Ordering::Relaxed),
            leased_bytes: taken_bytes.saturating_sub(impounded_bytes + leaked_bytes),
            impounded_bytes,
            leaked_bytes,
        }
    }
}

impl RegistryInner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code that can panic half-way through a change runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a slot to the region at `address`; `make` builds it around its id.
    pub(crate) fn insert(
        &self,
        address: usize,
        bytes: usize,
        make: impl FnOnce(RegionId) -> RegionInner,
    ) -> Result<Arc<RegionInner>, RegionError> {
        let mut table = self.lock();
        let overlaps =
            |used: &Used| address < used.address + used.bytes && used.address < address + bytes;
        for (slot, entry) in table.entries.iter().enumerate() {
            if entry.used.as_ref().is_some_and(overlaps) {
                let id = RegionId { slot: slot as u32, generation: entry.generation };
                return Err(RegionError::Overlaps { region: id });
            }
        }
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if table.entries.len() < self.regions_max as usize => {
                table.entries.push(Entry { generation: 1, used: None });
                table.entries.len() as u32 - 1
            }
            None => return Err(RegionError::TooManyRegions { regions_max: self.regions_max }),
        };
        let entry = &mut table.entries[slot as usize];
        let region = Arc::new(make(RegionId { slot, generation: entry.generation }));
        entry.used = Some(Used { address, bytes, region: Arc::downgrade(&region), taken: None });
        Ok(region)
    }

    /// Takes a region out. Before its memory is unmapped, or the address could be found here twice.
    pub(crate) fn remove(&self, id: RegionId) {
        let mut table = self.lock();
        let entry = &mut table.entries[id.slot as usize];
        entry.used = None;
        // A slot whose generations are used up is retired: an id must not come back.
        if let Some(generation) = entry.generation.checked_add(1) {
            entry.generation = generation;
            table.free.push(id.slot);
        }
    }

    /// Shows the pool of a region to the statistics, or takes it away.
    pub(crate) fn set_pool(&self, id: RegionId, gauge: Option<PoolGauge>) {
        let mut table = self.lock();
        if let Some(used) = &mut table.entries[id.slot as usize].used {
            used.taken = gauge;
        }
    }
}
