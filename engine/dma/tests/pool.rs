//! Pools: what they refuse, in which order things end, and that threads never share a slot.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::HeapRegion;
use railring_dma::{Lease, Pool, PoolError, PoolOptions, Receipt, Regions};

fn options(alignment: usize) -> PoolOptions {
    PoolOptions { alignment }
}

#[test]
fn a_pool_refuses_what_cannot_be_cut_and_says_why() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 4096);
    let refused = |slot_bytes, alignment| {
        Pool::new(&heap.region, slot_bytes, options(alignment)).expect_err("must be refused")
    };
    let too_large = |slot_bytes, alignment| PoolError::SlotsTooLarge {
        slot_bytes,
        alignment,
        region_bytes: 4096,
    };
    assert_eq!(refused(0, 64), PoolError::EmptySlots);
    assert_eq!(refused(1, 0), PoolError::Alignment { alignment: 0 });
    assert_eq!(refused(1, 96), PoolError::Alignment { alignment: 96 });
    assert_eq!(refused(4097, 1), too_large(4097, 1));
    assert_eq!(refused(usize::MAX, 64), too_large(usize::MAX, 64));
    assert_eq!(refused(1, 1 << 63), too_large(1, 1 << 63));
    let pool = Pool::new(&heap.region, 4096, options(1)).expect("exactly one slot");
    assert_eq!((pool.slots(), pool.free(), pool.slot_bytes()), (1, 1, 4096));
    let in_use = PoolError::RegionInUse { region: heap.region.id() };
    assert_eq!(refused(64, 64), in_use, "two pools would lease the same bytes");
    assert_eq!(Lease::whole(&heap.region).map(drop).expect_err("in use"), in_use);
    drop(pool);
    assert!(heap.free());
}

#[test]
fn slots_lie_apart_aligned_and_inside_for_every_odd_size() {
    for (start, bytes, slot_bytes, alignment) in
        [(1, 1000, 7, 1), (3, 1000, 64, 64), (0, 1000, 65, 64), (63, 1000, 936, 8), (5, 9000, 3, 1)]
    {
        let regions = Regions::new(1);
        let heap = HeapRegion::new(&regions, start, bytes);
        let pool = Pool::new(&heap.region, slot_bytes, options(alignment)).expect("fits");
        let leases: Vec<Lease> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(leases.len(), pool.slots());
        assert_eq!(pool.free(), 0);
        let mut offsets: Vec<usize> = leases.iter().map(Lease::region_offset).collect();
        offsets.sort_unstable();
        assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] >= slot_bytes));
        assert!(offsets.last().is_some_and(|last| last + slot_bytes <= bytes));
        let aligned = |lease: &Lease| (lease.address().as_ptr() as usize).is_multiple_of(alignment);
        assert!(leases.iter().all(aligned));
        // One more slot would not have fitted.
        let stride_bytes = slot_bytes.next_multiple_of(alignment);
        assert!(offsets.last().is_some_and(|last| last + stride_bytes + slot_bytes > bytes));
        drop((leases, pool));
        assert!(heap.free());
    }
}

#[test]
fn a_whole_region_is_leased_and_comes_back() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 3, 100);
    for round in 0..3_u8 {
        let mut lease = Lease::whole(&heap.region).expect("nobody holds the region");
        assert_eq!((lease.len(), lease.region_offset()), (100, 0));
        assert_eq!(lease.as_slice()[99], round);
        lease.as_mut_slice().fill(round + 1);
        assert!(Lease::whole(&heap.region).is_err());
    }
    assert!(heap.free());
}

#[test]
fn a_receipt_does_not_open_a_loan_of_a_later_pool_of_the_region() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 64);
    let (mut loan, part) = Lease::whole(&heap.region).expect("free").lend();
    let old = loan.repay(part).expect("its own part");
    assert!(loan.bytes(&old).is_some());
    drop(loan);
    let (mut loan, part) = Lease::whole(&heap.region).expect("free again").lend();
    assert!(loan.bytes(&old).is_none(), "the bytes are in flight again");
    loan.repay(part).expect("its own part");
    assert!(loan.bytes(&old).is_none());
    drop(loan);
    assert!(heap.free());
}

/// Lends the lease and takes it all back.
fn lend_once(lease: Lease) -> (Lease, Receipt) {
    let (mut loan, part) = lease.lend();
    let receipt = loan.repay(part).expect("its own part");
    (loan.settle().expect("everything is back"), receipt)
}

#[test]
fn a_receipt_of_a_half_opens_no_later_loan_of_the_whole() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 64);
    let pool = Pool::new(&heap.region, 64, options(64)).expect("one slot");
    // Joined again: each half in turn is the one that was lent more often.
    for rounds in [(0, 3), (3, 0)] {
        let (mut first, mut second) = pool.take().expect("free").split_at(32).expect("within");
        let mut receipts = Vec::new();
        for _ in 0..rounds.0 {
            let receipt;
            (first, receipt) = lend_once(first);
            receipts.push(receipt);
        }
        for _ in 0..rounds.1 {
            let receipt;
            (second, receipt) = lend_once(second);
            receipts.push(receipt);
        }
        opens_none(first.join(second).expect("neighbours"), &receipts);
    }
    // Given back one by one, the half that was lent more often first, and taken again as a whole.
    let (mut first, second) = pool.take().expect("free").split_at(32).expect("within");
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let receipt;
        (first, receipt) = lend_once(first);
        receipts.push(receipt);
    }
    drop(first);
    drop(second);
    opens_none(pool.take().expect("both halves are back"), &receipts);
    drop(pool);
    assert!(heap.free());
}

/// None of the old receipts opens any of the lease's next loans.
fn opens_none(mut lease: Lease, receipts: &[Receipt]) {
    for _ in 0..receipts.len() + 1 {
        let (mut loan, part) = lease.lend();
        assert!(receipts.iter().all(|old| loan.bytes(old).is_none()), "bytes in flight were shown");
        loan.repay(part).expect("its own part");
        lease = loan.settle().expect("everything is back");
    }
}

#[test]
fn parts_of_two_lendings_do_not_join() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 64);
    let (first, second) = Lease::whole(&heap.region).expect("free").split_at(32).expect("within");
    let (second, _) = lend_once(second);
    let (mut one, head) = first.lend();
    let (mut two, tail) = second.lend();
    let (head, tail) = head.join(tail).expect_err("no loan would take the two as one");
    let head = two.repay(head).expect_err("the other loan's");
    one.repay(head).expect("its own part");
    two.repay(tail).expect("its own part");
    drop((one, two));
    assert!(heap.free());
}

#[test]
fn leases_outlive_the_handles_they_came_from() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 256);
    let pool = Pool::new(&heap.region, 64, options(64)).expect("four slots");
    let (first, second) = pool.take().expect("free").split_at(10).expect("within");
    let (mut loan, part) = second.lend();
    drop(pool);
    let region = heap.region.clone();
    let region = region.unregister().expect_err("a lease, a loan and another handle hold it");
    drop(region);
    drop(first);
    loan.repay(part).expect("its own part");
    drop(loan);
    assert!(heap.free());
}

#[test]
fn a_lost_part_keeps_the_region_for_ever_and_is_counted() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 256);
    let pool = Pool::new(&heap.region, 64, options(64)).expect("four slots");
    let (loan, part) = pool.take().expect("free").lend();
    let address = part.address();
    part.forget();
    drop(loan);
    assert_eq!((pool.free(), regions.stats().leaked_bytes), (3, 64));
    let others: Vec<Lease> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(others.len(), 3);
    assert!(others.iter().all(|lease| lease.address() != address));
    drop((others, pool));
    assert!(!heap.free());
    assert_eq!(regions.len(), 1);
}

#[test]
fn memory_impounded_comes_back_with_its_last_part() {
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 64);
    let (loan, part) = Lease::whole(&heap.region).expect("free").lend();
    let mut impounded = loan.impound();
    let (one, two) = part.split_at(9);
    assert_eq!(regions.stats().impounded_bytes, 64);
    assert!(impounded.repay(two).expect("its own part").is_none());
    assert_eq!((impounded.bytes(), impounded.outstanding_bytes()), (64, 9));
    let mut impounded = impounded.settle().expect_err("nine bytes are out");
    let lease = impounded.repay(one).expect("its own part").expect("the last one");
    assert_eq!((lease.len(), impounded.bytes()), (64, 0));
    assert_eq!(regions.stats().impounded_bytes, 0);
    assert_eq!(regions.stats().leased_bytes, 64);
    drop(impounded.settle().expect_err("it was handed out"));
    drop(lease);
    assert!(heap.free());
}

#[test]
fn threads_never_share_a_slot_and_lose_none() {
    const THREADS: usize = 4;
    let rounds = if cfg!(miri) { 60 } else { 20_000 };
    let seed = 0x5eed;
    println!("seed {seed:#x}");
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 70 * 64);
    // Two words of the bitmap, the second not full; sometimes fewer slots than the threads want.
    for slot_bytes in [64, 70 * 64 / 5] {
        let pool = Pool::new(&heap.region, slot_bytes, options(1)).expect("fits");
        let starved = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, starved) = (&pool, &starved);
                scope.spawn(move || churn(pool, starved, rounds, seed + thread as u64));
            }
        });
        assert_eq!(pool.free(), pool.slots());
        println!("{} slots: {} refused", pool.slots(), starved.into_inner());
    }
    assert_eq!(regions.stats().leased_bytes, 0);
    assert!(heap.free());
}

#[test]
fn halves_given_back_by_two_threads_are_a_whole_again() {
    let rounds = if cfg!(miri) { 20 } else { 300 };
    let regions = Regions::new(1);
    let heap = HeapRegion::new(&regions, 0, 64);
    let pool = Pool::new(&heap.region, 64, options(64)).expect("one slot");
    let turn = AtomicUsize::new(0);
    // Relaxed throughout: it says who goes on, and leaves it to the pool to order the writes.
    let wait = |wanted| {
        while turn.load(Ordering::Relaxed) != wanted {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        for round in 0..rounds {
            let mut lease = take_soon(&pool);
            lease.as_mut_slice().fill(round as u8);
            let (mut first, second) = lease.split_at(32).expect("within");
            let (mut second, third) = second.split_at(16).expect("within");
            let (pool, turn) = (&pool, &turn);
            scope.spawn(move || {
                first.as_mut_slice().fill(1);
                if round % 2 == 0 {
                    drop(first);
                } else {
                    // The last to give back, and the next to take.
                    wait(round * 4 + 1);
                    drop(first);
                    take_soon(pool).as_mut_slice().fill(3);
                }
                turn.store(round * 4 + 2, Ordering::Relaxed);
            });
            second.as_mut_slice().fill(2);
            if round % 2 == 0 {
                wait(round * 4 + 2);
            }
            match round % 4 {
                0 | 1 => drop((second, third)),
                _ => drop(second.join(third)),
            }
            if round % 2 == 1 {
                turn.store(round * 4 + 1, Ordering::Relaxed);
                wait(round * 4 + 2);
            }
        }
    });
    assert_eq!(pool.free(), 1);
    drop(pool);
    assert!(heap.free());
}

#[test]
fn a_pool_ends_with_its_last_handle_and_lease_whichever_is_later() {
    const SLOTS: usize = 65;
    let rounds = if cfg!(miri) { 6 } else { 200 };
    for round in 0..rounds {
        let regions = Regions::new(1);
        let heap = HeapRegion::new(&regions, 0, SLOTS * 8);
        let pool = Pool::new(&heap.region, 8, options(8)).expect("fits");
        let mut leases: Vec<Lease> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(leases.len(), SLOTS);
        leases.truncate(2 + round % 63);
        let others = leases.split_off(leases.len() / 2);
        let clone = pool.clone();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(leases));
            scope.spawn(move || {
                drop(others);
                drop(clone);
            });
            drop(pool);
        });
        assert_eq!(regions.stats().leased_bytes, 0);
        drop(Lease::whole(&heap.region).expect("the pool is gone"));
        assert!(heap.free(), "the pool still holds the region");
    }
}

/// A slot that another thread has given back, as soon as this one can see it.
fn take_soon(pool: &Pool) -> Lease {
    loop {
        match pool.take() {
            Some(lease) => return lease,
            None => std::thread::yield_now(),
        }
    }
}

/// Takes, stamps, splits and gives back leases; a stamp that changed had a second writer.
fn churn(pool: &Pool, starved: &AtomicUsize, rounds: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut held: Vec<(Lease, u8)> = Vec::new();
    for _ in 0..rounds {
        if held.len() < 3 && random.bool() {
            let Some(mut lease) = pool.take() else {
                starved.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let stamp = random.u8(..);
            lease.as_mut_slice()[..24].fill(stamp);
            held.push((lease, stamp));
        } else if !held.is_empty() {
            let (lease, stamp) = held.swap_remove(random.usize(..held.len()));
            assert!(lease.as_slice()[..24].iter().all(|byte| *byte == stamp));
            let (first, second) = lease.split_at(random.usize(..24)).expect("within");
            std::thread::scope(|scope| {
                // Now and then the halves are given back by two threads at once.
                if random.u8(..) == 0 {
                    scope.spawn(move || drop(first));
                } else if random.bool() {
                    drop(first);
                } else {
                    drop(first.join(second).expect("neighbours"));
                }
            });
        }
    }
}
