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
    /// registered or forgotten meanwhile may give a wrong one; the kernel then refuses the read
    /// with EFAULT and it is made unregistered.
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

#[cfg(test)]
mod tests {
    use railring_dma::{HugePages, Pool, PoolOptions, RegionConfig, Regions};

    use super::*;

    #[test]
    fn a_part_is_in_a_buffer_only_whole_and_only_while_its_region_is_published() {
        // Never touched, so that the length costs address space only.
        let config = RegionConfig {
            huge_pages: HugePages::Never,
            ..RegionConfig::new(5 * BUFFER_BYTES / 2)
        };
        let regions = Regions::new(2);
        let Ok(region) = regions.allocate(config) else {
            return println!("SKIP a_part_is_in_a_buffer: no address space for 2.5 GiB");
        };
        let pool = Pool::new(&region, config.bytes, PoolOptions::default()).expect("one slot");
        let memory = Memory::new();
        let slots = [7, 900, 65_535].map(BufferSlot::from_index);
        let (_loan, whole) = pool.take().expect("one slot").lend();
        assert_eq!(memory.buffer_of(&whole), None);
        memory.publish(&region, &slots);
        assert_eq!(memory.buffer_of(&whole), None);
        let (first, rest) = whole.split_at(BUFFER_BYTES);
        let (second, rest) = rest.split_at(BUFFER_BYTES - 1);
        let (across, third) = rest.split_at(2);
        let found = [first, second, across, third].map(|part| memory.buffer_of(&part));
        assert_eq!(found, [Some(slots[0]), Some(slots[1]), None, Some(slots[2])]);
    }

    #[test]
    fn a_region_that_was_withdrawn_or_is_another_is_not_found() {
        let regions = Regions::new(2);
        let region = regions.allocate(RegionConfig::new(4096)).expect("a page");
        let pool = Pool::new(&region, 4096, PoolOptions::default()).expect("one slot");
        let memory = Memory::new();
        let (_loan, part) = pool.take().expect("one slot").lend();
        memory.publish(&region, &[BufferSlot::from_index(3)]);
        assert_eq!(memory.buffer_of(&part), Some(BufferSlot::from_index(3)));
        let other = regions.allocate(RegionConfig::new(4096)).expect("a page");
        memory.withdraw(other.id());
        assert!(memory.buffer_of(&part).is_some());
        memory.withdraw(region.id());
        assert_eq!(memory.buffer_of(&part), None);
    }
}
