//! A borrowed slice as a region: written through leases, and not given back before it is quiet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use railring_dma::{Lease, RegionError, Regions};

const WHILE: Duration = Duration::from_millis(30);

#[test]
fn what_is_written_into_the_region_is_in_the_slice() {
    let regions = Regions::new(2);
    let mut bytes = vec![1_u8; 10_000];
    for round in 0..100 {
        let seen = regions.with_borrowed(&mut bytes[1..9_999], |region| {
            assert!(region.is_foreign());
            assert_eq!(region.bytes(), 9_998);
            assert!(!region.has_other_owners());
            let lease = Lease::whole(region).expect("nobody else knows the region");
            assert!(region.has_other_owners());
            let (mut loan, part) = lease.lend();
            let (mut head, tail) = part.split_at(100);
            head.as_mut_slice().fill(round);
            loan.repay(tail).expect("its own part");
            loan.repay(head).expect("its own part");
            loan.settle().expect("all is back").as_slice()[0]
        });
        assert_eq!(seen.expect("the slice is free"), round);
        assert!(bytes[1..101].iter().all(|&byte| byte == round));
        assert!(bytes[0] == 1 && bytes[101..].iter().all(|&byte| byte == 1));
    }
    assert_eq!(regions.stats().foreign_bytes, 0);
    assert!(regions.is_empty());
}

#[test]
fn it_comes_back_only_when_the_last_part_has() {
    let regions = Regions::new(2);
    let mut bytes = vec![0_u8; 4096];
    let is_quiet = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let is_quiet = &is_quiet;
        // A device that writes for a while after the body has ended.
        scope.spawn(move || {
            let (mut loan, mut part): (railring_dma::Loan, railring_dma::Part) =
                receive.recv().expect("it is sent");
            for round in 0..=30 {
                std::thread::sleep(WHILE / 30);
                part.as_mut_slice().fill(round);
            }
            loan.repay(part).expect("its own part");
            is_quiet.store(true, Ordering::Release);
            drop(loan.settle().expect("all is back"));
        });
        let borrowed = regions.with_borrowed(&mut bytes, |region| {
            let lease = Lease::whole(region).expect("nobody else knows the region");
            send.send(lease.lend()).expect("the thread waits");
        });
        borrowed.expect("the slice is free");
        assert!(is_quiet.load(Ordering::Acquire), "it came back while the bytes were written");
    });
    assert!(bytes.iter().all(|&byte| byte == 30));
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_panic_waits_too() {
    let regions = Regions::new(2);
    let mut bytes = vec![0_u8; 64];
    let is_quiet = AtomicBool::new(false);
    let unwinds = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_quiet, unwinds) = (&is_quiet, &unwinds);
        let regions = &regions;
        let bytes = &mut bytes;
        let call = std::panic::AssertUnwindSafe(move || {
            regions.with_borrowed(bytes, |region| {
                let lease = Lease::whole(region).expect("nobody else knows the region");
                scope.spawn(move || {
                    // Telling of a panic can take long; the wait begins after that.
                    while !unwinds.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(WHILE);
                    is_quiet.store(true, Ordering::Release);
                    drop(lease);
                });
                let _unwinding = SetOnDrop(unwinds);
                panic!("on purpose");
            })
        });
        assert!(std::panic::catch_unwind(call).is_err());
        assert!(is_quiet.load(Ordering::Acquire), "unwinding gave the bytes back too early");
    });
}

#[test]
fn what_cannot_be_a_region_is_refused_and_the_body_not_run() {
    let regions = Regions::new(1);
    let ran = |_: &railring_dma::Region| panic!("it must not run");
    assert!(matches!(regions.with_borrowed(&mut [], ran), Err(RegionError::Empty)));
    let mut bytes = [0; 64];
    let (first, second) = bytes.split_at_mut(32);
    let inner = regions.with_borrowed(first, |_| regions.with_borrowed(second, ran));
    let refused = inner.expect("the first is free").expect_err("the registry is full");
    assert!(matches!(refused, RegionError::TooManyRegions { regions_max: 1 }));
}
