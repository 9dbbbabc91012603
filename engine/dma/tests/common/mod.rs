//! Foreign memory for tests: it works where nothing can be mapped, and shows that it was given
//! back.

use std::ptr::NonNull;

use railring_dma::{Region, Regions};

/// So that addresses are what the test says.
#[repr(align(64))]
#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "reached through the region only")]
struct Line([u8; 64]);

/// A region over bytes of the heap, and what is needed to free them.
#[derive(Debug)]
pub(crate) struct HeapRegion {
    /// The region.
    pub(crate) region: Region,
    memory: *mut [Line],
}

impl HeapRegion {
    /// `bytes` bytes that begin `start` bytes after a multiple of 64.
    pub(crate) fn new(regions: &Regions, start: usize, bytes: usize) -> HeapRegion {
        let lines = (start + bytes).div_ceil(64);
        let memory = Box::into_raw(vec![Line([0; 64]); lines].into_boxed_slice());
        // SAFETY: there are at least `start + bytes` bytes.
        let first = unsafe { memory.cast::<u8>().add(start) };
        let base = NonNull::new(first).expect("a box is not null");
        // SAFETY: the memory is initialised, only used through the region, and freed after
        // `unregister` said so (`free`), or never.
        let region = unsafe { regions.foreign(base, bytes) }.expect("the registry has room");
        HeapRegion { region, memory }
    }

    /// Unregisters and frees; false, and the memory stays, if something still holds it.
    pub(crate) fn free(self) -> bool {
        let freed = self.region.unregister().is_ok();
        if freed {
            // SAFETY: `unregister` said that the region is over; the memory came from a box of
            // this type.
            drop(unsafe { Box::from_raw(self.memory) });
        }
        freed
    }
}
