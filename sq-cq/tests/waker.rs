//! Waking a caller for another reason than a CQE.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sq_cq::{Bell, CallerEnd, CallerWaker, PollerEnd, RingConfig, pair};

const PATIENCE: Duration = Duration::from_secs(30);

fn rings() -> (CallerEnd<(), ()>, PollerEnd<(), ()>) {
    let bell = Arc::new(Bell::new(1).expect("a descriptor"));
    pair(RingConfig::default(), bell, 0).expect("a valid config")
}

#[test]
fn a_wake_ends_the_wait_once_there_is_a_reason() {
    let (mut caller, _poller) = rings();
    for round in 0..200 {
        let stop = Arc::new(AtomicBool::new(false));
        let (waker, reason): (CallerWaker, _) = (caller.waker(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            // At all points of the other's way to sleep.
            std::thread::sleep(Duration::from_micros(round * 2));
            waker.wake(); // no reason yet
            reason.store(true, Ordering::Release);
            waker.wake();
        });
        let start = Instant::now();
        let ready =
            caller.wait_unless(1, Some(PATIENCE), Duration::ZERO, || stop.load(Ordering::Acquire));
        assert_eq!(ready, 0);
        assert!(stop.load(Ordering::Acquire), "it came back without a reason");
        assert!(start.elapsed() < PATIENCE, "the wake was lost");
        thread.join().expect("it ends");
    }
}

#[test]
fn without_a_reason_the_timeout_ends_it() {
    let (mut caller, _poller) = rings();
    caller.waker().wake();
    let start = Instant::now();
    let timeout = Duration::from_millis(20);
    assert_eq!(caller.wait_unless(1, Some(timeout), Duration::ZERO, || false), 0);
    assert!(start.elapsed() >= timeout);
}

#[test]
fn a_wake_ends_no_plain_wait_for_what_cannot_come() {
    let (mut caller, _poller) = rings();
    caller.waker().wake();
    // Nothing is reserved, so nothing is waited for.
    assert_eq!(caller.wait(1, Some(PATIENCE), Duration::ZERO), 0);
}

#[test]
fn the_end_of_the_poller_ends_it() {
    let (mut caller, poller) = rings();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        drop(poller);
    });
    let start = Instant::now();
    assert_eq!(caller.wait_unless(1, Some(PATIENCE), Duration::ZERO, || false), 0);
    assert!(start.elapsed() < PATIENCE);
    thread.join().expect("it ends");
}
