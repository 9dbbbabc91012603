//! Reading allocates nothing once the ring is made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsRawFd;

use railring_uring::{FileRef, ReadAt, RingOptions, Uring};

struct Counting;

thread_local! {
    /// Of this thread: the test harness has others.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: it is the system's allocator, which counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same, and `alloc` gave out the system's memory.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn ten_thousand_reads_and_cancels_allocate_nothing() {
    let mut ring =
        match Uring::<Vec<u8>, ()>::new(&RingOptions { entries: 8, ..Default::default() }) {
            Ok(ring) => ring,
            Err(error) => return println!("SKIP allocations: {error}"),
        };
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), vec![7; 4096]).expect("it is writable");
    let descriptor = FileRef::Descriptor(file.as_file().as_raw_fd());
    let read = ReadAt { file: descriptor, offset: 0, start: 0, bytes: 4096, registered: None };
    let mut idle: Vec<(u64, Vec<u8>)> = (0..8).map(|row| (row, vec![0; 4096])).collect();
    let before = ALLOCATIONS.get();
    let mut came = 0;
    while came < 10_000 {
        while let Some((key, buffer)) = idle.pop() {
            ring.push_read(key, read, buffer, ()).expect("each row is used once");
            if key % 3 == 0 {
                ring.cancel(key);
            }
        }
        ring.commit();
        while let Some(finished) = ring.pop() {
            came += 1;
            idle.push((finished.key + (1 << 32), finished.buffer));
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
