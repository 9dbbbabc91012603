//! Owns the loom models of the rings and of both sleep handshakes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p sq-cq --test loom`. Each model is explored
//! completely up to `PREEMPTIONS` forced switches between its two threads; switches at a block or
//! at a thread's end are free.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use sq_cq::{Bell, CancelOutcome, Cqe, CqeFields, Pair, RingConfig, Sqe, pair};
use std::time::Duration;

/// Every known error of these protocols needs one or two; three more than doubles the time.
const PREEMPTIONS: usize = 3;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(body);
}

fn rings(entries: u32, bell: &Arc<Bell>) -> Pair<u64, u64> {
    let config = RingConfig { sq_entries: entries, cq_entries: entries, start_index: u32::MAX };
    pair(config, Arc::clone(bell), 0).expect("a valid config")
}

fn bell() -> Arc<Bell> {
    Arc::new(Bell::new(1).expect("a descriptor"))
}

fn cqe(user_data: u64) -> Cqe {
    Cqe::new(&CqeFields { user_data, ..CqeFields::default() })
}

/// What is published is seen whole or not at all, and in order.
#[test]
fn submission_publishes_and_consumes() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(2, &bell);
        let server = thread::spawn(move || {
            let mut next = 0_u64;
            for _ in 0..2 {
                while let Some((sqe, permit, attachment)) = poller.pop() {
                    assert_eq!((sqe.get_user_data(), attachment), (next, next + 10));
                    next += 1;
                    permit.abandon();
                }
            }
            (next, poller)
        });
        for number in 0..2 {
            let sqe = Sqe::nop().user_data(number);
            caller.push(sqe, 1, number + 10).expect("room");
            caller.submit();
        }
        let (seen, mut poller) = server.join().expect("no panic");
        let rest =
            std::iter::from_fn(|| poller.pop().map(|(_, permit, _)| permit.abandon())).count();
        assert_eq!(seen + rest as u64, 2);
    });
}

/// A submission slot is written again only after its entry was moved out: here it is the ring's own
/// head that says so, since the completion ring has room.
#[test]
fn submission_slots_are_reused_in_order() {
    model(|| {
        let bell = bell();
        let config = RingConfig { sq_entries: 1, cq_entries: 2, start_index: u32::MAX };
        let (mut caller, mut poller) = pair::<u64, u64>(config, bell, 0).expect("a valid config");
        let server = thread::spawn(move || {
            let mut next = 0;
            while next < 2 {
                match poller.pop() {
                    Some((sqe, permit, attachment)) => {
                        assert_eq!((sqe.get_user_data(), attachment), (next, next));
                        next += 1;
                        permit.abandon();
                    }
                    None => thread::yield_now(),
                }
            }
            poller
        });
        for number in 0..2 {
            while caller.push(Sqe::nop().user_data(number), 1, number).is_err() {
                thread::yield_now();
            }
            caller.submit();
        }
        drop(server.join().expect("no panic"));
    });
}

/// A completion slot is written again only after its entry was moved out. In a ring of one slot
/// each write is a reuse; loom watches the cells, and the ring asserts that it is never full.
#[test]
fn completion_slots_are_reused_in_order() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(1, &bell);
        let server = thread::spawn(move || {
            let mut served = 0;
            while served < 2 {
                match poller.pop() {
                    Some((sqe, permit, attachment)) => {
                        poller.finish(permit, cqe(sqe.get_user_data()), attachment);
                        poller.publish();
                        served += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
        for number in 0..2 {
            while caller.push(Sqe::nop().user_data(number), 1, number).is_err() {
                thread::yield_now();
            }
            caller.submit();
            let (cqe, attachment) = loop {
                match caller.pop() {
                    Some(popped) => break popped,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((cqe.user_data(), attachment), (number, number));
        }
        server.join().expect("no panic");
    });
}

/// The poller sleeps whenever it sees nothing; a lost wake-up is a deadlock, which loom reports.
#[test]
fn a_poller_that_sleeps_is_woken() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(2, &bell);
        let server = thread::spawn(move || {
            let mut served = 0;
            while served < 2 {
                bell.take_ready(|_| {
                    while let Some((_, permit, _)) = poller.pop() {
                        permit.abandon();
                        served += 1;
                    }
                });
                if served == 2 {
                    break;
                }
                bell.prepare_sleep();
                if bell.any_ready() {
                    bell.cancel_sleep();
                } else {
                    bell.sleep(None);
                }
            }
            poller
        });
        for number in 0..2 {
            caller.push(Sqe::nop(), 1, number).expect("room");
            caller.submit();
        }
        drop(server.join().expect("no panic"));
    });
}

/// The caller sleeps until the poller published; a lost wake-up is a deadlock.
#[test]
fn a_caller_that_sleeps_is_woken() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(2, &bell);
        for number in 0..2 {
            caller.push(Sqe::nop(), 1, number).expect("room");
        }
        caller.submit();
        let server = thread::spawn(move || {
            for _ in 0..2 {
                let (_, permit, attachment) = poller.pop().expect("submitted before the spawn");
                poller.finish(permit, cqe(0), attachment);
                poller.publish();
            }
            poller
        });
        assert_eq!(caller.wait(2, None, Duration::ZERO), 2);
        drop(server.join().expect("no panic"));
    });
}

/// A caller that sleeps learns that its poller is gone.
#[test]
fn a_caller_that_sleeps_learns_of_the_end() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(1, &bell);
        caller.push(Sqe::nop(), 1, 0).expect("room");
        caller.submit();
        let server = thread::spawn(move || {
            let (_, permit, _) = poller.pop().expect("submitted before the spawn");
            permit.abandon();
            drop(poller);
        });
        assert_eq!(caller.wait(1, None, Duration::ZERO), 0);
        assert!(caller.is_closed());
        server.join().expect("no panic");
    });
}

/// A caller that finds its bit set may leave it: whoever takes the bit sees the new tail too.
#[test]
fn a_mark_that_is_found_set_is_as_good_as_one_made() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(2, &bell);
        caller.push(Sqe::nop(), 1, 0).expect("room");
        caller.submit();
        let server = thread::spawn(move || {
            let mut served = 0;
            bell.take_ready(|_| {
                while let Some((_, permit, _)) = poller.pop() {
                    permit.abandon();
                    served += 1;
                }
            });
            (bell, served, poller)
        });
        caller.push(Sqe::nop(), 1, 1).expect("room");
        caller.submit();
        let (bell, mut served, mut poller) = server.join().expect("no panic");
        bell.take_ready(|_| {
            while let Some((_, permit, _)) = poller.pop() {
                permit.abandon();
                served += 1;
            }
        });
        assert_eq!(served, 2, "a ring with something in it, and no bit set");
    });
}

/// A cancel reaches a read that is taken at the same time, by one way or the other, exactly once.
#[test]
fn a_cancel_meets_its_read() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(1, &bell);
        let id = caller.push(Sqe::nop(), 1, 0).expect("room");
        caller.submit();
        let server = thread::spawn(move || {
            let early = poller.pop_cancel();
            assert_eq!(early, None, "the read was not taken");
            let (_, permit, attachment) = poller.pop().expect("submitted before the spawn");
            let at_pop = permit.is_cancelled();
            let later = poller.pop_cancel();
            assert!(!(at_pop && later.is_some()), "told twice");
            assert!(later.is_none_or(|later| later == id));
            (poller, permit, attachment, at_pop || later.is_some())
        });
        assert_eq!(caller.cancel(id), CancelOutcome::Sent);
        let (mut poller, permit, attachment, told) = server.join().expect("no panic");
        assert!(told || poller.pop_cancel() == Some(id), "a cancel was lost");
        poller.finish(permit, cqe(0), attachment);
    });
}

/// A cancel that races with the last CQE of its read does not touch the slot's next read.
#[test]
fn a_cancel_too_late_is_ignored() {
    model(|| {
        let bell = bell();
        let (mut caller, mut poller) = rings(1, &bell);
        let first = caller.push(Sqe::nop(), 1, 0).expect("room");
        caller.submit();
        let server = thread::spawn(move || {
            let (_, permit, attachment) = poller.pop().expect("submitted before the spawn");
            poller.finish(permit, cqe(0), attachment);
            poller.publish();
            poller
        });
        assert_eq!(caller.cancel(first), CancelOutcome::Sent);
        let mut poller = server.join().expect("no panic");
        assert!(caller.pop().is_some());
        assert_eq!(caller.cancel(first), CancelOutcome::NotLive);
        let second = caller.push(Sqe::nop(), 1, 1).expect("room");
        assert_eq!(second.slot, first.slot);
        caller.submit();
        let (_, permit, attachment) = poller.pop().expect("submitted");
        assert!(!permit.is_cancelled());
        assert_eq!(poller.pop_cancel(), None);
        poller.finish(permit, cqe(1), attachment);
    });
}
