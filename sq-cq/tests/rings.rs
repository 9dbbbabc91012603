//! Owns the tests of the ring pair that a script does not reach: limits, threads, sleep, the ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sq_cq::{
    Bell, CallerEnd, Cqe, CqeFields, Pair, PollerEnd, PushError, RingConfig, RingError,
    SLOTS_PER_READ_MAX, Sqe, pair,
};

type Caller = CallerEnd<u64, u64>;
type Poller = PollerEnd<u64, u64>;

const FOR_EVER: Duration = Duration::from_secs(60);

fn bell() -> Arc<Bell> {
    Arc::new(Bell::new(1).expect("a descriptor"))
}

fn rings(sq_entries: u32, cq_entries: u32, start_index: u32) -> Pair<u64, u64> {
    let config = RingConfig { sq_entries, cq_entries, start_index };
    pair(config, bell(), 0).expect("a valid config")
}

fn cqe(user_data: u64) -> Cqe {
    Cqe::new(&CqeFields { user_data, ..CqeFields::default() })
}

/// Finishes everything submitted; says how many reads that were.
fn serve(poller: &mut Poller) -> u64 {
    let mut count = 0;
    while let Some((sqe, permit, attachment)) = poller.pop() {
        poller.finish(permit, cqe(sqe.get_user_data()), attachment);
        count += 1;
    }
    poller.publish();
    count
}

fn is_readable(fd: &impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll(2) of one descriptor") == 1
}

#[test]
fn sizes_that_are_not_powers_of_two_are_refused_with_the_next_ones() {
    let config = RingConfig { sq_entries: 10, ..RingConfig::default() };
    let refused = pair::<(), ()>(config, bell(), 0).expect_err("10 is no power of two");
    assert_eq!(refused.to_string(), "sq_entries 10 is not a power of two: use 8 or 16");
    let config = RingConfig { cq_entries: 1 << 21, ..RingConfig::default() };
    let refused = pair::<(), ()>(config, bell(), 0).expect_err("too large");
    assert!(matches!(refused, RingError::EntriesOutOfRange { which: "cq_entries", .. }));
    let refused = pair::<(), ()>(RingConfig::default(), bell(), 1).expect_err("one source, no. 0");
    assert_eq!(refused.to_string(), "source 1 is not one of the bell's 1: use one below that");
}

/// What a poller holds back stays taken for the caller, and what it was given stays given.
#[test]
fn places_that_are_held_back_are_not_pushed_into() {
    for start in [0, u32::MAX - 2] {
        let (mut caller, mut poller) = rings(4, 64, start);
        let fill = |caller: &mut Caller| {
            let pushed = (0..8).take_while(|_| caller.push(Sqe::nop(), 1, 0).is_ok()).count();
            caller.submit();
            pushed
        };
        assert_eq!(fill(&mut caller), 4);
        let mut permits = Vec::new();
        for held in 1..=4 {
            permits.push(poller.pop().expect("four were pushed").1);
            poller.hold_back(held);
            assert!(held < 4 || poller.pop().is_none(), "nobody could push");
        }
        poller.publish();
        assert_eq!((fill(&mut caller), caller.sq_len()), (0, 4));
        poller.hold_back(2);
        poller.publish();
        assert_eq!(fill(&mut caller), 2);
        // Too late for the two that are given: nothing moves back.
        poller.hold_back(4);
        poller.publish();
        assert_eq!((fill(&mut caller), caller.sq_len()), (0, 4));
        poller.hold_back(0);
        for permit in permits {
            poller.finish(permit, cqe(0), 0);
        }
        assert_eq!(serve(&mut poller), 2);
        assert_eq!(fill(&mut caller), 4);
    }
}

/// Exactly N usable slots, at every phase of the indices, across the wrap.
#[test]
fn fills_to_the_same_count_at_every_phase() {
    for entries in [1_u32, 2, 4, 64] {
        for phase in 0..2 * entries {
            let start = u32::MAX.wrapping_sub(entries).wrapping_add(phase);
            let (mut caller, mut poller) = rings(entries, entries, start);
            for round in 0..3 {
                let mut accepted = 0;
                let refused = loop {
                    match caller.push(Sqe::nop(), 1, round) {
                        Ok(_) => accepted += 1,
                        Err(refused) => break refused,
                    }
                };
                assert_eq!((accepted, refused.why), (entries, PushError::Full));
                assert_eq!((caller.sq_len(), caller.reserved()), (entries, entries));
                assert_eq!(caller.submit(), entries);
                assert_eq!(serve(&mut poller), u64::from(entries));
                assert_eq!(caller.cq_len(), entries);
                assert_eq!(std::iter::from_fn(|| caller.pop()).count(), entries as usize);
                assert_eq!((caller.sq_len(), caller.cq_len(), caller.reserved()), (0, 0, 0));
            }
        }
    }
}

/// In flight and not reaped together never exceed the completion ring, whoever pushes.
#[test]
fn accepts_as_many_as_the_completion_ring_holds_and_three_more_for_three_popped() {
    let (mut caller, mut poller) = rings(64, 8, u32::MAX - 3);
    let mut accepted = Vec::new();
    let mut push = |caller: &mut Caller, user_data: u64| {
        let done = caller.push(Sqe::nop().user_data(user_data), 1, user_data).is_ok();
        accepted.extend(done.then_some(user_data));
        done
    };
    let count = (0..10_000).filter(|&number| push(&mut caller, number)).count();
    assert_eq!((count, caller.full_answers()), (8, 9_992));
    caller.submit();
    serve(&mut poller);
    let mut seen: Vec<u64> =
        std::iter::from_fn(|| caller.pop()).take(3).map(|(cqe, _)| cqe.user_data()).collect();
    let count = (10_000..20_000).filter(|&number| push(&mut caller, number)).count();
    assert_eq!(count, 3);
    for _ in 0..1000 {
        seen.extend(caller.pop().map(|(cqe, _)| cqe.user_data()));
    }
    assert_eq!(caller.full_answers(), 9_992 + 9_997, "popping changes no counter");
    caller.submit();
    serve(&mut poller);
    seen.extend(std::iter::from_fn(|| caller.pop()).map(|(cqe, _)| cqe.user_data()));
    assert_eq!(seen, accepted);
}

#[test]
fn a_read_that_can_never_fit_is_told_so_even_by_a_full_ring() {
    let (mut caller, _poller) = rings(1, 4, 0);
    let refused = caller.push(Sqe::nop(), 5, 1).expect_err("four slots");
    assert_eq!(refused.why, PushError::TooManyStripes { slots: 5, capacity: 4 });
    caller.push(Sqe::nop(), 4, 2).expect("four slots");
    let refused = caller.push(Sqe::nop(), 5, 3).expect_err("four slots");
    assert_eq!(refused.why, PushError::TooManyStripes { slots: 5, capacity: 4 });
    assert_eq!((refused.attachment, caller.full_answers()), (3, 0));
}

/// `frees` is 16 bits wide, so no read may hold more slots, in rings that have more.
#[test]
fn the_largest_read_gets_all_its_slots_back() {
    let (mut caller, mut poller) = rings(2, 1 << 17, 0);
    let refused = caller.push(Sqe::nop(), SLOTS_PER_READ_MAX + 1, 1).expect_err("too many");
    assert_eq!(refused.why, PushError::TooManyStripes { slots: 65_536, capacity: 65_535 });
    caller.push(Sqe::nop(), SLOTS_PER_READ_MAX, 1).expect("the most");
    caller.submit();
    serve(&mut poller);
    let (cqe, _) = caller.pop().expect("it was finished");
    assert_eq!((cqe.frees(), caller.reserved()), (65_535, 0));
}

#[test]
fn indices_are_far_apart() {
    let (caller, _poller) = rings(1, 1, 0);
    let addresses = caller.index_addresses();
    let mut all = [addresses.sq_head, addresses.sq_tail, addresses.cq_head, addresses.cq_tail];
    all.sort_unstable();
    assert!(all.iter().all(|address| address % 64 == 0), "{all:x?}");
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 128), "{all:x?}");
}

#[test]
fn a_forgotten_permit_panics_and_an_unwinding_one_does_not() {
    let (mut caller, mut poller) = rings(4, 4, 0);
    for attachment in 0..4 {
        caller.push(Sqe::nop(), 1, attachment).expect("room");
    }
    caller.submit();
    let (_, permit, _) = poller.pop().expect("submitted");
    let forgotten = catch_unwind(AssertUnwindSafe(move || drop(permit)));
    let message = forgotten.expect_err("it must panic");
    let message = message.downcast_ref::<String>().expect("a formatted message");
    assert!(message.contains("dropped unspent"), "{message}");

    let (_, permit, _) = poller.pop().expect("submitted");
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _held = permit;
        std::panic::panic_any(7_u32);
    }));
    assert_eq!(unwound.expect_err("the first panic").downcast_ref(), Some(&7_u32));

    let (_, permit, _) = poller.pop().expect("submitted");
    permit.abandon();

    let (_, mut permit, _) = poller.pop().expect("submitted");
    let misused = catch_unwind(AssertUnwindSafe(|| poller.complete(&mut permit, cqe(0), 0)));
    assert!(misused.is_err(), "the last slot is for finish");
    poller.finish(permit, cqe(3), 3);
    poller.publish();
    assert_eq!(caller.pop().map(|(_, attachment)| attachment), Some(3));
}

#[test]
fn a_permit_is_of_use_on_its_own_ring_only() {
    let bell = Arc::new(Bell::new(2).expect("a descriptor"));
    let config = RingConfig { sq_entries: 1, cq_entries: 1, ..RingConfig::default() };
    let (mut caller, mut poller) =
        pair::<u64, u64>(config, Arc::clone(&bell), 0).expect("a valid config");
    let (_other_caller, mut other_poller) =
        pair::<u64, u64>(config, bell, 1).expect("a valid config");
    caller.push(Sqe::nop(), 1, 0).expect("room");
    caller.submit();
    let (_, permit, _) = poller.pop().expect("submitted");
    let misused = catch_unwind(AssertUnwindSafe(|| other_poller.finish(permit, cqe(0), 0)));
    let message = misused.expect_err("it must panic");
    let message = message.downcast_ref::<&str>().expect("a literal message");
    assert!(message.contains("the ring that gave it out"), "{message}");
}

#[test]
fn what_was_not_submitted_dies_with_the_caller_and_the_rest_is_served() {
    let (mut caller, mut poller) = rings(8, 8, u32::MAX);
    caller.push(Sqe::nop().user_data(1), 1, 1).expect("room");
    caller.submit();
    caller.push(Sqe::nop().user_data(2), 1, 2).expect("room");
    drop(caller);
    assert!(poller.is_closed());
    let (sqe, permit, _) = poller.pop().expect("submitted before");
    assert_eq!(sqe.get_user_data(), 1);
    poller.finish(permit, cqe(1), 1);
    assert!(poller.pop().is_none());
}

#[test]
fn a_gone_poller_refuses_pushes_ends_waits_and_leaves_its_completions() {
    let (mut caller, mut poller) = rings(8, 8, 0);
    for number in 0..2 {
        caller.push(Sqe::nop().user_data(number), 1, number).expect("room");
    }
    caller.submit();
    let (_, permit, attachment) = poller.pop().expect("submitted");
    poller.finish(permit, cqe(0), attachment);
    let waiter = std::thread::spawn(move || {
        let ready = caller.wait(2, Some(FOR_EVER), Duration::ZERO);
        (caller, ready)
    });
    std::thread::sleep(Duration::from_millis(20));
    let begin = Instant::now();
    drop(poller);
    let (mut caller, ready) = waiter.join().expect("the waiter does not panic");
    assert!(begin.elapsed() < FOR_EVER / 2);
    assert_eq!((ready, caller.is_closed()), (1, true));
    let refused = caller.push(Sqe::nop(), 1, 9).expect_err("closed");
    assert_eq!((refused.why, refused.attachment), (PushError::Closed, 9));
    assert!(caller.pop().is_some() && caller.pop().is_none());
}

#[test]
fn waiting_for_nothing_returns_and_a_timeout_is_kept() {
    let (mut caller, _poller) = rings(8, 8, 0);
    assert_eq!(caller.wait(5, None, Duration::ZERO), 0, "nothing in flight");
    caller.push(Sqe::nop(), 1, 0).expect("room");
    let begin = Instant::now();
    let spin = Duration::from_millis(1);
    assert_eq!(caller.wait(1, Some(Duration::from_millis(10)), spin), 0);
    assert!(begin.elapsed() >= Duration::from_millis(10));
    assert_eq!(caller.wait(1, Some(Duration::ZERO), FOR_EVER), 0);
}

#[test]
fn the_descriptor_is_readable_from_a_publish_while_armed_until_cleared() {
    let (mut caller, mut poller) = rings(8, 8, 0);
    caller.push(Sqe::nop(), 1, 0).expect("room");
    assert!(!caller.arm(), "nothing is ready, and what was pushed is submitted");
    assert!(!is_readable(&caller));
    serve(&mut poller);
    assert!(is_readable(&caller));
    caller.clear_event();
    assert!(!is_readable(&caller));
    assert!(caller.arm(), "a CQE is there");
    caller.pop().expect("a CQE is there");
    caller.push(Sqe::nop(), 1, 0).expect("room");
    caller.submit();
    serve(&mut poller);
    assert!(!is_readable(&caller), "a publish while disarmed makes no system call");
    assert_eq!(caller.cq_len(), 1);
}

#[test]
fn a_sleeping_poller_is_woken_once() {
    let bell = bell();
    assert!(!is_readable(&*bell));
    bell.mark(0);
    assert!(!is_readable(&*bell), "nobody sleeps");
    bell.take_ready(|_| ());
    bell.prepare_sleep();
    bell.mark(0);
    assert!(is_readable(&*bell) && bell.any_ready());
    bell.clear();
    assert!(!is_readable(&*bell) && bell.any_ready());
    bell.prepare_sleep();
    bell.cancel_sleep();
    bell.wake();
    assert!(!is_readable(&*bell), "the sleep was cancelled");
}

#[test]
fn every_source_of_a_bell_is_told_apart() {
    let bell = Bell::new(200).expect("a descriptor");
    for source in [0, 63, 64, 127, 199] {
        bell.mark(source);
        bell.mark(source);
    }
    let mut ready = Vec::new();
    bell.take_ready(|source| ready.push(source));
    assert_eq!(ready, [0, 63, 64, 127, 199]);
    bell.take_ready(|source| panic!("{source} was taken before"));
    assert!(catch_unwind(|| bell.mark(200)).is_err());
}

/// Serves until the caller is gone, sleeping whenever there is nothing to do.
fn sleepy_poller(bell: &Bell, poller: &mut Poller) {
    loop {
        bell.take_ready(|_| _ = serve(poller));
        if poller.is_closed() {
            return;
        }
        bell.prepare_sleep();
        if bell.any_ready() {
            bell.cancel_sleep();
        } else {
            bell.sleep(Some(FOR_EVER));
        }
    }
}

/// Both sides sleep each time. A lost wake-up shows as a wait that reaches its timeout.
#[test]
fn no_wake_up_is_lost_when_both_sides_sleep() {
    let bell = bell();
    let config = RingConfig { sq_entries: 2, cq_entries: 2, start_index: u32::MAX - 3 };
    let (mut caller, mut poller): (Caller, Poller) =
        pair(config, Arc::clone(&bell), 0).expect("a valid config");
    let server = std::thread::spawn(move || sleepy_poller(&bell, &mut poller));
    for number in 0..20_000 {
        caller.push(Sqe::nop().user_data(number), 1, number).expect("room");
        let ready = caller.wait(1, Some(FOR_EVER), Duration::ZERO);
        assert_eq!(ready, 1, "read {number} was lost in a sleep");
        let (cqe, attachment) = caller.pop().expect("it is ready");
        assert_eq!((cqe.user_data(), attachment), (number, number));
    }
    drop(caller);
    server.join().expect("the poller does not panic");
}

/// Exactly once and in order through two threads, several CQEs for a read, the indices wrapping;
/// and a third thread whose gauges stay within bounds all the while.
#[test]
fn exactly_once_between_two_threads() {
    let bell = bell();
    let config = RingConfig { sq_entries: 16, cq_entries: 32, start_index: u32::MAX - 50_000 };
    let (mut caller, mut poller): (Caller, Poller) =
        pair(config, Arc::clone(&bell), 0).expect("a valid config");
    let server = std::thread::spawn(move || {
        while !poller.is_closed() {
            bell.take_ready(|_| {
                while let Some((sqe, mut permit, attachment)) = poller.pop() {
                    while permit.slots_left() > 1 {
                        poller.complete(&mut permit, cqe(sqe.get_user_data()), attachment);
                    }
                    poller.finish(permit, cqe(sqe.get_user_data()), attachment);
                }
            });
            poller.publish();
            std::thread::yield_now();
        }
    });
    let gauges = caller.gauges();
    let done = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let mut full_answers = 0;
            while !done.load(Ordering::Relaxed) {
                assert!(gauges.sq_len() <= 16 && gauges.cq_len() <= 32);
                assert!(gauges.full_answers() >= full_answers, "a counter went back");
                full_answers = gauges.full_answers();
                std::thread::yield_now();
            }
        }
    });
    let total = 100_000_u64;
    let slots = |number: u64| (number % 5 + 1) as u32;
    let (mut next_push, mut next_pop, mut stripes) = (0, 0, 0);
    while next_pop < total {
        while next_push < total {
            let sqe = Sqe::nop().user_data(next_push);
            if caller.push(sqe, slots(next_push), next_push).is_err() {
                break;
            }
            next_push += 1;
        }
        caller.wait(1, Some(FOR_EVER), Duration::from_micros(5));
        while let Some((cqe, attachment)) = caller.pop() {
            stripes += 1;
            assert_eq!((cqe.user_data(), attachment), (next_pop, next_pop));
            assert_eq!(cqe.has_more(), stripes < slots(next_pop));
            if !cqe.has_more() {
                (next_pop, stripes) = (next_pop + 1, 0);
            }
        }
    }
    done.store(true, Ordering::Relaxed);
    watcher.join().expect("gauges stay within bounds");
    drop(caller);
    server.join().expect("the poller does not panic");
}
