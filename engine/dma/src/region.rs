//! Regions: memory that rails register, allocated here or the caller's own.
//!
//! Unsafe here rests on this: a region only knows its address and never reads or writes behind it.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::MmapRaw;

use crate::map::{self, HugePages, PageKind, Pages, Populate};
use crate::placement::{self, Placement};
use crate::registry::{RegionId, RegistryInner};
use crate::serial::Serial;

/// What a region to be allocated should be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionConfig {
    /// Logical length. The mapping is rounded up to whole pages, huge ones if those are used.
    pub bytes: usize,
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
    /// The NUMA node to place the memory on; none: on the node of the thread that touches a page
    /// first.
    pub node: Option<u32>,
    /// Whether pages are touched now or when they are first used.
    pub populate: Populate,
}

impl RegionConfig {
    /// `bytes` on huge pages where there are any, anywhere, touched when first used.
    pub fn new(bytes: usize) -> RegionConfig {
        RegionConfig { bytes, ..RegionConfig::default() }
    }
}

impl Default for RegionConfig {
    /// No bytes yet (which is refused), huge pages tried, no node, populated when used.
    fn default() -> RegionConfig {
        RegionConfig { bytes: 0, huge_pages: HugePages::Try, node: None, populate: Populate::OnUse }
    }
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A region of no bytes was asked for.
    #[error("a region of 0 bytes was refused; ask for at least 1")]
    Empty,
    /// Rounded up to pages, the length does not fit the address space; or a foreign range runs
    /// past its end.
    #[error("a region of {bytes} bytes does not fit the address space; ask for less")]
    TooLarge {
        /// The length asked for.
        bytes: usize,
    },
    /// The registry is full.
    #[error(
        "the registry holds {regions_max} regions, its limit; unregister one or raise the limit"
    )]
    TooManyRegions {
        /// The registry's limit.
        regions_max: u32,
    },
    /// Foreign memory that is a region already, whole or in part.
    #[error(
        "the memory overlaps region {}.{}; unregister that first", region.slot, region.generation
    )]
    Overlaps {
        /// The region that holds some of the bytes.
        region: RegionId,
    },
    /// A NUMA node number above what can be named to the kernel.
    #[error("node {node} is out of range; nodes are numbered from 0 to {node_max}")]
    NodeOutOfRange {
        /// The node asked for.
        node: u32,
        /// The highest that can be named.
        node_max: u32,
    },
    /// Huge pages were required and could not be had.
    #[error(
        "no {page_bytes}-byte huge pages for {bytes} bytes: {source}; reserve some \
         (vm.nr_hugepages) or do not require them"
    )]
    HugePages {
        /// The length, rounded up to huge pages.
        bytes: usize,
        /// The size of a huge page.
        page_bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused the mapping.
    #[error("mapping {bytes} bytes failed: {source}; ask for less or free memory")]
    Map {
        /// The length, rounded up to pages.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The pages could not be provided now.
    #[error("providing {bytes} bytes of pages failed: {source}; ask for less or populate on use")]
    Populate {
        /// The length, rounded up to pages.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Memory that rails register: mapped by the engine, or foreign. A cheap handle; the memory is
/// unmapped when the last handle, pool, lease and loan of it is gone. `Send + Sync`.
#[derive(Debug, Clone)]
pub struct Region {
    pub(crate) inner: Arc<RegionInner>,
}

#[derive(Debug)]
pub(crate) struct RegionInner {
    registry: Arc<RegistryInner>,
    id: RegionId,
    base: NonNull<u8>,
    bytes: usize,
    memory: Memory,
    pages: Pages,
    placement: Placement,
    /// Whether a pool cuts this region up; two would lease the same bytes.
    claimed: AtomicBool,
    /// At least every serial that any byte of the region was lent under.
    serial_floor: AtomicU64,
}

#[derive(Debug)]
enum Memory {
    Mapped(MmapRaw),
    Foreign,
}

// SAFETY: `base` is an address of memory that this value, or the caller of `foreign`, keeps
// mapped; nothing here reads or writes through it, and the owners that do are bound by the
// crate's invariant, not by threads.
unsafe impl Send for RegionInner {}
// SAFETY: as above; the changing fields are atomics.
unsafe impl Sync for RegionInner {}

impl Region {
    pub(crate) fn from_inner(inner: Arc<RegionInner>) -> Region {
        Region { inner }
    }

    pub(crate) fn allocate(
        registry: &Arc<RegistryInner>,
        config: RegionConfig,
    ) -> Result<Region, RegionError> {
        if config.bytes == 0 {
            return Err(RegionError::Empty);
        }
        if let Some(node) = config.node.filter(|node| *node > placement::NODE_MAX) {
            return Err(RegionError::NodeOutOfRange { node, node_max: placement::NODE_MAX });
        }
        let mapping = map::map(&config)?;
        let base = NonNull::new(mapping.memory.as_mut_ptr()).ok_or(RegionError::Map {
            bytes: mapping.memory.len(),
            source: io::ErrorKind::AddrNotAvailable.into(),
        })?;
        let mapped_bytes = mapping.memory.len();
        let inner = registry.insert(base.as_ptr() as usize, mapped_bytes, |id| RegionInner {
            registry: Arc::clone(registry),
            id,
            base,
            bytes: config.bytes,
            memory: Memory::Mapped(mapping.memory),
            pages: mapping.pages,
            placement: mapping.placement,
            claimed: AtomicBool::new(false),
            serial_floor: AtomicU64::new(Serial::fresh().get()),
        })?;
        registry.allocated_bytes.fetch_add(mapped_bytes as u64, Ordering::Relaxed);
        Ok(Region { inner })
    }

    /// # Safety
    /// The contract of [`crate::Regions::foreign`].
    pub(crate) unsafe fn foreign(
        registry: &Arc<RegistryInner>,
        base: NonNull<u8>,
        bytes: usize,
    ) -> Result<Region, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let address = base.as_ptr() as usize;
        if bytes > isize::MAX as usize || address.checked_add(bytes).is_none() {
            return Err(RegionError::TooLarge { bytes });
        }
        let inner = registry.insert(address, bytes, |id| RegionInner {
            registry: Arc::clone(registry),
            id,
            base,
            bytes,
            memory: Memory::Foreign,
            pages: Pages::foreign(),
            placement: Placement::Foreign,
            claimed: AtomicBool::new(false),
            serial_floor: AtomicU64::new(Serial::fresh().get()),
        })?;
        registry.foreign_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(Region { inner })
    }

    /// The region's name in its registry.
    #[inline]
    pub fn id(&self) -> RegionId {
        self.inner.id
    }

    /// Logical length in bytes, as asked for.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.inner.bytes
    }

    /// Length of the mapping in bytes: whole pages. Registrations that want whole pages use this.
    /// Equal to `bytes` for foreign memory.
    pub fn mapped_bytes(&self) -> usize {
        match &self.inner.memory {
            Memory::Mapped(memory) => memory.len(),
            Memory::Foreign => self.inner.bytes,
        }
    }

    /// Address of the first byte; what lies there is not this handle's to touch.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.inner.base
    }

    /// Whether the memory is the caller's own.
    pub fn is_foreign(&self) -> bool {
        matches!(self.inner.memory, Memory::Foreign)
    }

    /// The kind of pages got.
    pub fn pages(&self) -> PageKind {
        self.inner.pages.got
    }

    /// The kind of pages asked for, got, and why they differ.
    pub fn page_report(&self) -> &Pages {
        &self.inner.pages
    }

    /// On which node the memory was placed.
    pub fn placement(&self) -> Placement {
        self.inner.placement
    }

    /// Whether anything but this handle keeps the region: another handle, a pool, a lease, a loan,
    /// impounded memory. Once `false`, it stays so unless this handle is used.
    pub fn has_other_owners(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    /// Ends the region if this is its last handle and no pool, lease, loan or impounded memory of
    /// it is left: foreign memory is the caller's again, other memory is unmapped. Dropping the
    /// last handle does the same, but does not say whether it was the last.
    ///
    /// # Errors
    /// The region is in use; it comes back, to try again later.
    pub fn unregister(self) -> Result<(), Region> {
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => {
                drop(inner);
                Ok(())
            }
            Err(inner) => Err(Region { inner }),
        }
    }
}

impl RegionInner {
    #[inline]
    pub(crate) fn id(&self) -> RegionId {
        self.id
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn registry(&self) -> &RegistryInner {
        &self.registry
    }

    /// Makes the caller the one who cuts the region up, unless somebody is. Gives the serials to
    /// count on from.
    pub(crate) fn claim(&self) -> Option<Serial> {
        // Acquire: pairs with the Release in `unclaim`, so the last pool's owners are done with
        // the bytes.
        self.claimed
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| Serial::from_stored(self.serial_floor.load(Ordering::Relaxed)))
    }

    /// Ends a claim under which no byte was lent beyond `serial_max`.
    pub(crate) fn unclaim(&self, serial_max: Serial) {
        self.serial_floor.fetch_max(serial_max.get(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `claim`.
        self.claimed.store(false, Ordering::Release);
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        self.registry.remove(self.id);
        match &self.memory {
            Memory::Mapped(memory) => {
                self.registry.allocated_bytes.fetch_sub(memory.len() as u64, Ordering::Relaxed);
            }
            Memory::Foreign => {
                self.registry.foreign_bytes.fetch_sub(self.bytes as u64, Ordering::Relaxed);
            }
        }
        // The mapping, if there is one, goes with the field, after the registry has forgotten its
        // address.
    }
}
