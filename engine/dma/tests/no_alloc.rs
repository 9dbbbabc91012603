//! Lending and getting back does not touch the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use railring_dma::{Pool, PoolOptions, RegionConfig, Regions};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

#[test]
fn a_lease_goes_out_in_parts_and_comes_back_without_the_heap() {
    let regions = Regions::new(1);
    let region = regions.allocate(RegionConfig::new(1 << 20)).expect("1 MiB");
    let pool = Pool::new(&region, 4096, PoolOptions::default()).expect("256 slots");
    let before = ALLOCATIONS.with(Cell::get);
    // More lendings of a slot than one epoch of serials covers.
    for round in 0..200_000_usize {
        let lease = pool.take().expect("all others are back");
        let (first, second) = lease.split_at(round % 4096).expect("within");
        let (mut loan, part) = first.join(second).expect("neighbours").lend();
        let (head, tail) = part.split_at(round % 64);
        let receipt = loan.repay(tail).expect("its own part");
        assert!(loan.bytes(&receipt).is_some());
        loan.repay(head).expect("its own part");
        drop(loan.settle().expect("all is back"));
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}
