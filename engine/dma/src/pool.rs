//! Pools: a region cut into equal slots, taken and put back without locks.
//!
//! A clear free bit means that the bytes of its slot belong to leases and loans made from it (the
//! crate's invariant); whoever set it last is done with them.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::lease::{Holding, Lease};
use crate::region::{Region, RegionInner};
use crate::registry::{PoolGauge, RegionId};
use crate::serial::Serial;

/// Slots whose free bits share a word; the bit above them is `CLOSED`.
const WORD_SLOTS: usize = u64::BITS as usize - 1;
/// Set in every word once the last handle is gone: nobody takes slots any more, and giving one
/// back is counted.
const CLOSED: u64 = 1 << WORD_SLOTS;
/// More than there can be slots: what `PoolInner::outstanding` begins with.
const OPEN: u64 = 1 << 32;

/// How a pool cuts its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Each slot's address is a multiple of this power of two. Default 4096, which O_DIRECT wants.
    pub alignment: usize,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions { alignment: 4096 }
    }
}

/// Why a region was not made a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Slots of no bytes.
    #[error("slots of 0 bytes were refused; give them at least 1")]
    EmptySlots,
    /// An alignment that is not a power of two.
    #[error("an alignment of {alignment} was refused; it must be a power of two")]
    Alignment {
        /// The alignment asked for.
        alignment: usize,
    },
    /// Not one aligned slot fits.
    #[error(
        "no slot of {slot_bytes} bytes at an alignment of {alignment} fits a region of \
         {region_bytes} \
         bytes; make slots smaller or the region larger"
    )]
    SlotsTooLarge {
        /// The slot size asked for.
        slot_bytes: usize,
        /// The alignment asked for.
        alignment: usize,
        /// The region's logical length.
        region_bytes: usize,
    },
    /// More slots than can be numbered.
    #[error("{slots} slots were refused, the limit is {slots_max}; make slots larger")]
    TooManySlots {
        /// The slots there would be.
        slots: usize,
        /// The most there can be.
        slots_max: usize,
    },
    /// Another pool, or a lease of one, still holds the region.
    #[error(
        "region {}.{} belongs to another pool or whole lease; drop that and its leases first",
        region.slot, region.generation
    )]
    RegionInUse {
        /// The region.
        region: RegionId,
    },
}

/// Equal slots of a region, each out as a [`Lease`] or free. A cheap handle: clones share the
/// slots, from any thread. The region has no other pool until every handle and lease is gone.
#[derive(Debug, Clone)]
pub struct Pool {
    handle: Arc<Handle>,
}

/// What the clones of a pool share; dropping it closes the pool.
#[derive(Debug)]
struct Handle {
    pool: PoolRef,
}

/// The address of a pool. A lease or loan has one without a count of its own: the pool lives
/// until it is closed *and* all slots are back, so for as long as a handle, or anything that
/// holds bytes of a slot, exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolRef(NonNull<PoolInner>);

// SAFETY: the pool behind the address is Send and Sync.
unsafe impl Send for PoolRef {}
// SAFETY: as above.
unsafe impl Sync for PoolRef {}

#[derive(Debug)]
pub(crate) struct PoolInner {
    /// A set bit is a free slot. Shared with the registry, which counts them.
    free_words: Arc<[AtomicU64]>,
    /// The word where the last slot was found; only a hint.
    hint: AtomicUsize,
    slots: Box<[Slot]>,
    first: NonNull<u8>,
    stride_bytes: usize,
    slot_bytes: usize,
    /// Slots that are still taken, once the pool is closed; counted down from `OPEN` before it is
    /// known how many those are.
    outstanding: AtomicU64,
    region: Arc<RegionInner>,
}

#[derive(Debug)]
struct Slot {
    /// The leases, lent ones too, that hold bytes of the slot while it is taken; 1 while it is
    /// free.
    holders: AtomicU64,
    /// At least every serial that a byte of the slot was lent under, once its holder is gone.
    serial: AtomicU64,
}

// SAFETY: `first` is only an address within the region that `region` keeps mapped; the bytes
// behind it are reached through leases, of which the bitmap gives out one at a time for each
// slot.
unsafe impl Send for PoolInner {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for PoolInner {}

impl Pool {
    /// Cuts `region` into slots of `slot_bytes`, each on a multiple of `options.alignment`; what
    /// is left over at the end is unused.
    ///
    /// # Errors
    /// Empty or unaligned slots, a region too small for one or with too many, or one that is in
    /// use.
    pub fn new(
        region: &Region,
        slot_bytes: usize,
        options: PoolOptions,
    ) -> Result<Pool, PoolError> {
        let cut = Cut::plan(region, slot_bytes, options)?;
        let inner = Arc::clone(&region.inner);
        let serial = inner.claim().ok_or(PoolError::RegionInUse { region: region.id() })?;
        let free_words: Arc<[AtomicU64]> = (0..cut.slots.div_ceil(WORD_SLOTS))
            .map(|word| AtomicU64::new(word_mask(cut.slots - word * WORD_SLOTS)))
            .collect();
        let slot = || Slot { holders: AtomicU64::new(1), serial: AtomicU64::new(serial.get()) };
        let slots: Box<[Slot]> = (0..cut.slots).map(|_| slot()).collect();
        let gauge =
            PoolGauge { free_words: Arc::clone(&free_words), slots: cut.slots as u32, slot_bytes };
        inner.registry().set_pool(inner.id(), Some(gauge));
        // SAFETY: `Cut::plan` keeps the first slot inside the region.
        let first = unsafe { region.base().add(cut.first_offset) };
        let hint = AtomicUsize::new(0);
        let stride_bytes = cut.stride_bytes;
        let outstanding = AtomicU64::new(OPEN);
        let pool = PoolRef::new(PoolInner {
            free_words,
            hint,
            slots,
            first,
            stride_bytes,
            slot_bytes,
            outstanding,
            region: inner,
        });
        Ok(Pool { handle: Arc::new(Handle { pool }) })
    }

    /// A free slot, which is the taker's alone until the lease (and all split from it) is dropped;
    /// nothing if there is none. One uncontended atomic operation, as is giving it back; no
    /// allocation.
    #[inline]
    pub fn take(&self) -> Option<Lease> {
        let pool = self.handle.pool;
        let slot = pool.claim_slot()?;
        Some(pool.lease(slot))
    }

    /// Slots there are, free or taken.
    #[inline]
    pub fn slots(&self) -> usize {
        self.handle.pool.slots.len()
    }

    /// Slots that are free, at about one instant.
    pub fn free(&self) -> usize {
        count_free(&self.handle.pool.free_words) as usize
    }

    /// Length of a slot in bytes.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.handle.pool.slot_bytes
    }

    /// The region the slots are cut from.
    pub fn region(&self) -> Region {
        Region::from_inner(Arc::clone(&self.handle.pool.region))
    }
}

impl PoolInner {
    /// Clears one free bit; the slot is the caller's.
    #[inline]
    fn claim_slot(&self) -> Option<usize> {
        let words = &*self.free_words;
        let start = self.hint.load(Ordering::Relaxed);
        for word in (start..words.len()).chain(0..start.min(words.len())) {
            let mut free = words[word].load(Ordering::Relaxed);
            while free != 0 {
                let bit = free & free.wrapping_neg();
                // Acquire: pairs with the Release in `PoolRef::free_slot`, so the last holder is
                // done with the bytes.
                let before = words[word].fetch_and(!bit, Ordering::Acquire);
                if before & bit != 0 {
                    if word != start {
                        self.hint.store(word, Ordering::Relaxed);
                    }
                    return Some(word * WORD_SLOTS + bit.trailing_zeros() as usize);
                }
                free = before;
            }
        }
        None
    }

    /// One more lease holds bytes of the slot.
    pub(crate) fn add_holder(&self, slot: u32) {
        // Relaxed: the caller is a holder, so the count cannot reach zero meanwhile.
        self.slots[slot as usize].holders.fetch_add(1, Ordering::Relaxed);
    }

    /// Two leases of the slot became one, that of the caller.
    pub(crate) fn merge_holder(&self, slot: u32) {
        // Relaxed: the caller stays a holder, and what other holders released goes on through a
        // read-modify-write.
        self.slots[slot as usize].holders.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn region(&self) -> &RegionInner {
        &self.region
    }
}

impl std::ops::Deref for PoolRef {
    type Target = PoolInner;

    #[inline]
    fn deref(&self) -> &PoolInner {
        // SAFETY: whoever has a `PoolRef` keeps the pool alive (see there) and does not use it
        // after giving that up.
        unsafe { self.0.as_ref() }
    }
}

// These take the pool by its address, not by reference: it may be gone before they return.
impl PoolRef {
    fn new(pool: PoolInner) -> PoolRef {
        PoolRef(NonNull::from(Box::leak(Box::new(pool))))
    }

    /// The lease of a slot whose free bit the caller has cleared.
    #[inline]
    fn lease(self, slot: usize) -> Lease {
        let serial = Serial::from_stored(self.slots[slot].serial.load(Ordering::Relaxed));
        // SAFETY: the offset of a slot is inside the region (`Cut::plan`).
        let base = unsafe { self.first.add(slot * self.stride_bytes) };
        let bytes = self.slot_bytes;
        Lease::new(Holding { pool: self, base, bytes, slot: slot as u32, serial })
    }

    /// A holder, whose bytes were lent under serials up to `serial`, is done; the last one frees
    /// the slot.
    #[inline]
    pub(crate) fn release(self, slot_index: u32, serial: Serial) {
        let slot = &self.slots[slot_index as usize];
        // Acquire: pairs with the Release of the other holders. A sole holder cannot get company,
        // so no read-modify-write is needed.
        if slot.holders.load(Ordering::Acquire) == 1 {
            if slot.serial.load(Ordering::Relaxed) < serial.get() {
                slot.serial.store(serial.get(), Ordering::Relaxed);
            }
            self.free_slot(slot_index);
        } else {
            slot.serial.fetch_max(serial.get(), Ordering::Relaxed);
            // AcqRel: each holder's accesses come before the slot is free.
            if slot.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
                slot.holders.store(1, Ordering::Relaxed);
                self.free_slot(slot_index);
            }
        }
    }

    #[inline]
    fn free_slot(self, slot: u32) {
        let bit = 1 << (slot as usize % WORD_SLOTS);
        // Release: pairs with the Acquire in `claim_slot` and in `close`.
        let before = self.free_words[slot as usize / WORD_SLOTS].fetch_or(bit, Ordering::Release);
        // Unless the pool was closed with this slot taken, it may be gone by now.
        if before & CLOSED != 0 {
            self.count_down(1);
        }
    }

    /// The last handle is gone: the pool goes with the last slot, which may be now.
    #[cold]
    fn close(self) {
        let close = |word: &AtomicU64| {
            // Acquire: pairs with the Release in `free_slot`. What comes after this counts itself.
            u64::from(word.fetch_or(CLOSED, Ordering::Acquire).count_ones())
        };
        let free: u64 = self.free_words.iter().map(close).sum();
        let taken = self.slots.len() as u64 - free;
        self.count_down(OPEN - taken);
    }

    /// Frees the pool when the count reaches zero.
    #[cold]
    fn count_down(self, by: u64) {
        // AcqRel: what everyone did with the pool comes before its end.
        if self.outstanding.fetch_sub(by, Ordering::AcqRel) == by {
            // SAFETY: from a box (`new`); closed, and every slot that was taken then has been
            // counted, so nobody has its address any more.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// Free slots of a bitmap, closed or not.
pub(crate) fn count_free(words: &[AtomicU64]) -> u32 {
    words.iter().map(|word| (word.load(Ordering::Relaxed) & !CLOSED).count_ones()).sum()
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let serials = self.slots.iter_mut().map(|slot| *slot.serial.get_mut());
        let serial_max = serials.max().map_or(Serial::from_stored(0), Serial::from_stored);
        self.region.registry().set_pool(self.region.id(), None);
        self.region.unclaim(serial_max);
    }
}

/// Where the slots of a pool lie.
#[derive(Debug)]
struct Cut {
    first_offset: usize,
    stride_bytes: usize,
    slots: usize,
}

impl Cut {
    fn plan(region: &Region, slot_bytes: usize, options: PoolOptions) -> Result<Cut, PoolError> {
        let alignment = options.alignment;
        if slot_bytes == 0 {
            return Err(PoolError::EmptySlots);
        }
        if !alignment.is_power_of_two() {
            return Err(PoolError::Alignment { alignment });
        }
        let region_bytes = region.bytes();
        let too_large = PoolError::SlotsTooLarge { slot_bytes, alignment, region_bytes };
        let address = region.base().as_ptr() as usize;
        let first = address.checked_next_multiple_of(alignment).ok_or(too_large)?;
        let first_offset = first - address;
        let stride_bytes = slot_bytes.checked_next_multiple_of(alignment).ok_or(too_large)?;
        let room_bytes = region_bytes.checked_sub(first_offset).ok_or(too_large)?;
        let after_first = room_bytes.checked_sub(slot_bytes).ok_or(too_large)?;
        let slots = after_first / stride_bytes + 1;
        if slots > u32::MAX as usize {
            return Err(PoolError::TooManySlots { slots, slots_max: u32::MAX as usize });
        }
        Ok(Cut { first_offset, stride_bytes, slots })
    }
}

/// The free bits of a word when `slots_left` slots begin with it.
fn word_mask(slots_left: usize) -> u64 {
    if slots_left >= WORD_SLOTS { !CLOSED } else { (1 << slots_left) - 1 }
}
