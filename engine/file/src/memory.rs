//! Which regions are registered with the ring: written by control threads, read by the link without
//! a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use railring_dma::{Part, Region, RegionId};
use railring_uring::BufferSlot;

/// Regions that can be registered at once; one beyond it is used unregistered.
const REGIONS_MAX: usize = 1024;
/// Buffers a region can be split into: 64 GiB.
pub(crate) const BUFFERS_PER_REGION_MAX: usize = 64;
/// Length of each of a region's buffers but the last, as long as the kernel allows. A power of two.
pub(crate) const BUFFER_BYTES: usize = 1 << 30;

/// One region's buffers. Its buffers are consecutive entries of the index, which need not be
/// consecutive entries of the ring's table.
#[derive(Debug)]
struct Entry {
    /// Generation of the region, 0 if it is not registered.
    generation: AtomicU64,
    base: AtomicU64,
    /// Ring table entries of its buffers, packed by four.
    buffers: [AtomicU64; BUFFERS_PER_REGION_MAX / 4],
}

/// The index by region.
#[derive(Debug)]
pub(crate) struct Memory {
    entries: Box<[Entry]>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let empty = || Entry {
            generation: AtomicU64::new(0),
            base: AtomicU64::new(0),
            buffers: [const { AtomicU64::new(0) }; BUFFERS_PER_REGION_MAX / 4],
        };
        Memory { entries: (0..REGIONS_MAX).map(|_| empty()).collect() }
    }

    /// Whether a region of this id can be in the index.
    pub(crate) fn has_room_for(&self, region: RegionId) -> bool {
        (region.slot as usize) < self.entries.len()
    }

    /// Makes a region's buffers known to the link. At most [`BUFFERS_PER_REGION_MAX`].
    pub(crate) fn publish(&self, region: &Region, buffers: &[BufferSlot]) {
        let Some(entry) = self.entries.get(region.id().slot as usize) else { return };
        entry.base.store(region.base().as_ptr().addr() as u64, Ordering::Relaxed);
        for (word, four) in entry.buffers.iter().zip(buffers.chunks(4)) {
            let packed =
                four.iter().rev().fold(0, |word, slot| word << 16 | u64::from(slot.index()));
            word.store(packed, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `buffer_of`, which then sees base and buffers.
        entry.generation.store(u64::from(region.id().generation), Ordering::Release);
    }

    /// Forgets a region.
    pub(crate) fn withdraw(&self, region: RegionId) {
        if let Some(entry) = self.entries.get(region.slot as usize) {
            entry.generation.store(0, Ordering::Relaxed);
        }
    }

    /// The registered buffer that all of the part lies in, if there is one. A region that is
    /// registered or forgotten meanwhile may give a wrong one; the kernel then refuses the read with
    /// EFAULT and it is made unregistered.
    pub(crate) fn buffer_of(&self, part: &Part) -> Option<BufferSlot> {
        let region = part.region();
        let entry = self.entries.get(region.slot as usize)?;
        // Acquire: pairs with the Release in `publish`.
        if entry.generation.load(Ordering::Acquire) != u64::from(region.generation) {
            return None;
        }
        let base = usize::try_from(entry.base.load(Ordering::Relaxed)).ok()?;
        let first = part.address().as_ptr().addr().checked_sub(base)?;
        let last = first + part.len().saturating_sub(1);
        let index = first / BUFFER_BYTES;
        if index != last / BUFFER_BYTES {
            return None;
        }
        let word = entry.buffers.get(index / 4)?.load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "one of four packed 16-bit numbers")]
        Some(BufferSlot::from_index((word >> (index % 4 * 16)) as u16))
    }
}
