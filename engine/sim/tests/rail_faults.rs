//! Faults of a whole rail: its connection, its bandwidth, its doorbells, its limits.

mod support;

use railring_sim::{Fault, FaultKind, FaultPlan, Latency, Misuse, Quiescing, SimRailConfig, When};
use railring_transport::{Link, Nanos, Outcome, RailControl, WrId};
use sq_cq::Status;
use support::{Rig, refused};

const BYTES: usize = 1000;
const PIPE_NS: u64 = 1_000;
const LATENCY_NS: u64 = 500;

fn config(faults: FaultPlan) -> SimRailConfig {
    SimRailConfig {
        bandwidth_bytes_per_second: 1_000_000_000,
        latency: Latency::Fixed { latency_ns: LATENCY_NS },
        faults,
        ..SimRailConfig::new("rail0")
    }
}

fn rig(fault: Fault, when: When) -> Rig {
    Rig::new(11, 64 * BYTES, config(FaultPlan::none().with(fault, when)))
}

fn failed(status: Status) -> Outcome {
    Outcome::Failed { status, vendor: 0 }
}

fn wr(slot: u32) -> WrId {
    WrId { slot, generation: 1 }
}

const RESET: i32 = 104;
const NET_DOWN: i32 = 100;

#[test]
fn a_broken_connection_fails_what_is_in_flight_and_what_is_posted_until_it_is_back() {
    let down_ns = 20_000;
    let mut rig = rig(Fault::Disconnect { down_ns }, When::At(Nanos(3_600)));
    rig.post(16, BYTES);
    let ended = rig.run_until(Nanos(3_600));
    assert_eq!(ended.len(), 16);
    let (done, broken) = ended.split_at(3);
    assert!(done.iter().all(|end| end.done().is_some()));
    assert_eq!((broken[0].wr, broken[0].outcome), (wr(3), failed(Status::from_errno(RESET))));
    let (mut flushed, mut reset) = (0, 0);
    for end in &broken[1..] {
        match end.outcome {
            Outcome::Flushed => flushed += 1,
            outcome => {
                assert_eq!(outcome, failed(Status::from_errno(RESET)));
                reset += 1;
            }
        }
    }
    assert!(flushed > 0 && reset > 0, "{flushed} {reset}");

    let request = rig.request(0, BYTES);
    let (request, status) = refused(rig.link.queue(request));
    assert_eq!(status, Some(Status::from_errno(NET_DOWN)));
    rig.run_until(Nanos(3_600 + down_ns));
    rig.link.queue(request).expect("the connection is back");
    rig.link.commit(rig.now);
    assert!(rig.run()[0].done().is_some());
    assert_eq!(rig.control.stats().fired.of(FaultKind::Disconnect), 1);
}

#[test]
fn what_is_queued_when_the_connection_breaks_fails_at_its_doorbell() {
    let mut rig = rig(Fault::Disconnect { down_ns: 1_000 }, When::At(Nanos(100)));
    let request = rig.request(0, BYTES);
    rig.link.queue(request).expect("there is room");
    rig.link.commit(Nanos(200));
    let ended = rig.reap();
    assert_eq!(ended[0].outcome, failed(Status::from_errno(NET_DOWN)));
}

#[test]
fn a_flapping_connection_breaks_again_and_again_also_unseen() {
    let flap = Fault::Flap { down_ns: 1_000, up_ns: 9_000 };
    let mut rig = rig(flap, When::At(Nanos(5_000)));
    rig.post(32, BYTES);
    let ended = rig.run_until(Nanos(5_000));
    assert_eq!(ended.iter().filter(|end| end.done().is_some()).count(), 4);
    assert_eq!(ended.len(), 32);
    // Idle for many periods, then inside the break at 105,000.
    rig.run_until(Nanos(105_500));
    assert_eq!(rig.link.next_event(), None, "an idle rail has no events");
    let request = rig.request(0, BYTES);
    let (request, status) = refused(rig.link.queue(request));
    assert_eq!(status, Some(Status::from_errno(NET_DOWN)));
    rig.run_until(Nanos(106_000));
    rig.link.queue(request).expect("the connection is back");
    rig.link.commit(rig.now);
    assert!(rig.run()[0].done().is_some());
    assert_eq!(rig.control.stats().fired.of(FaultKind::Flap), 2);
}

#[test]
fn a_call_that_panics_has_no_effect_and_the_next_goes_on() {
    // Calls: two of queue, a commit, and each look.
    for nth in 0..4 {
        let mut rig = rig(Fault::Panic, When::Nth(nth));
        let all = std::panic::AssertUnwindSafe(|| {
            rig.post(2, BYTES);
            rig.reap();
        });
        let text = std::panic::catch_unwind(all).expect_err("it panics");
        assert_eq!(text.downcast_ref::<&str>(), Some(&"a simulated link panics"));
        assert_eq!(rig.control.stats().fired.of(FaultKind::Panic), 1);
        rig.link.commit(rig.now);
        // What was being queued is lost with its memory; what was queued before comes.
        assert_eq!(rig.run().len() as u64, nth.min(2), "call {nth}");
    }
}

#[test]
fn a_stalled_rail_goes_on_where_it_was() {
    let mut rig = rig(Fault::Stall { stall_ns: 70_000 }, When::At(Nanos(2_250)));
    rig.post(4, BYTES);
    let at: Vec<u64> = rig.run().iter().map(|end| end.at.0).collect();
    // The first was back; the second had travelled half its way, the third was in the pipe.
    assert_eq!(at, [1_500, 72_500, 73_500, 74_500]);
    assert_eq!(rig.control.stats().fired.of(FaultKind::Stall), 1);
}

#[test]
fn a_rail_that_becomes_slow_serves_what_is_left_at_its_new_rate() {
    let slow = Fault::Rate { bytes_per_second: 100_000_000 };
    let mut rig = rig(slow, When::At(Nanos(1_500)));
    rig.post(3, BYTES);
    let at: Vec<u64> = rig.run().iter().map(|end| end.at.0).collect();
    let second = 1_500 + 5_000;
    assert_eq!(at, [1_500, second + LATENCY_NS, second + 10_000 + LATENCY_NS]);
}

#[test]
fn the_device_takes_some_of_a_doorbell_and_the_rest_at_the_next() {
    let mut taken = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let faults = FaultPlan::none().with(Fault::PartialPost, When::Nth(0));
        let mut rig = Rig::new(seed, 64 * BYTES, config(faults));
        rig.post(4, BYTES);
        let posted = rig.control.stats().posted;
        taken.insert(posted);
        let again = rig.link.next_event().expect("there is something to post");
        assert!(again <= Nanos(PIPE_NS));
        let ended = rig.run();
        assert!(ended.len() == 4 && ended.iter().all(|end| end.done().is_some()));
        assert_eq!(rig.control.stats().posted, 4, "each was executed once");
        assert_eq!(rig.control.stats().fired.of(FaultKind::PartialPost), 1);
    }
    assert_eq!(Vec::from_iter(taken), [0, 1, 2, 3]);
}

/// Those before the bad one are executed once, the bad one comes back with the cause, those behind
/// it wait for the next doorbell.
#[test]
fn a_post_that_fails_in_its_midst_gives_one_back_and_keeps_the_rest() {
    for (seed, errno) in (0..).zip([5, -5, 11, 12, 22, -22, 107, 4000]) {
        let status = Status::from_errno(errno);
        let faults = FaultPlan::none().with(Fault::PostRefused { status }, When::Nth(0));
        let mut rig = Rig::new(seed, 64 * BYTES, config(faults));
        rig.post(4, BYTES);
        let taken = rig.control.stats().posted;
        assert_eq!(rig.link.has_uncommitted(), taken < 3);
        let ended = rig.run();
        assert_eq!(ended.len(), 4);
        let bad: Vec<_> = ended.iter().filter(|end| end.done().is_none()).collect();
        assert_eq!(bad.len(), 1);
        assert_eq!((u64::from(bad[0].wr.slot), bad[0].outcome), (taken, failed(status)));
        let stats = rig.control.stats();
        assert_eq!((stats.posted, stats.outstanding), (3, 0), "each was executed once");
        assert_eq!(stats.fired.of(FaultKind::PostRefused), 1);
    }
}

#[test]
fn what_hangs_for_ever_comes_back_when_the_device_is_made_to_let_go() {
    let hang = Fault::Hang { returns_after_ns: None };
    let mut rig = rig(hang, When::Every(2));
    rig.post(4, BYTES);
    for slot in 0..4 {
        rig.link.quiesce(wr(slot), rig.now);
    }
    assert_eq!(rig.run().len(), 2);
    assert_eq!((rig.link.next_event(), rig.control.stats().outstanding), (None, 2));
    rig.control.let_go();
    assert!(rig.link.next_event().is_some_and(|at| at <= rig.now));
    let ended = rig.reap();
    assert!(ended.iter().all(|end| end.outcome == failed(Status::CANCELLED)));
    assert_eq!((ended.len(), rig.control.stats().outstanding), (2, 0));
    assert_eq!(rig.link.next_event(), None);
}

#[test]
fn queueing_can_fail_in_any_form_and_find_no_room() {
    for errno in [5, 11, 12, 14, 22, 105, 107] {
        let status = Status::from_errno(errno);
        let mut rig = rig(Fault::PostError { status }, When::Nth(0));
        let request = rig.request(0, BYTES);
        let (request, said) = refused(rig.link.queue(request));
        assert_eq!(said, Some(status));
        rig.link.queue(request).expect("it struck once");
    }
    let mut rig = rig(Fault::SpuriousFull, When::Nth(0));
    let request = rig.request(0, BYTES);
    let (request, said) = refused(rig.link.queue(request));
    assert_eq!(said, None);
    let again = rig.link.next_event().expect("a hint when to try again");
    rig.now = again;
    assert!(rig.reap().is_empty());
    assert_eq!(rig.link.next_event(), None, "the hint passes");
    rig.link.queue(request).expect("it struck once");
    assert_eq!(rig.control.stats().fired.of(FaultKind::SpuriousFull), 1);
}

#[test]
fn a_teardown_fails_the_guilty_flushes_the_innocent_and_then_reconnects() {
    let quiesce = Quiescing::TearDown { after_ns: 2_000, reconnect_ns: 50_000 };
    let faults = FaultPlan::none().with(Fault::Lost, When::Nth(1));
    let mut rig = Rig::new(11, 64 * BYTES, SimRailConfig { quiesce, ..config(faults) });
    rig.post(8, BYTES);
    rig.link.quiesce(wr(1), Nanos(0));
    let ended = rig.run_until(Nanos(2_000));
    let outcomes: Vec<Outcome> = ended.iter().map(|end| end.outcome).collect();
    assert_eq!(outcomes[0], Outcome::Done { bytes: BYTES as u64 });
    assert_eq!(outcomes[1], failed(Status::CANCELLED));
    assert_eq!(outcomes[2..], [Outcome::Flushed; 6]);
    assert_eq!(rig.control.stats().teardowns, 1);

    let request = rig.request(0, BYTES);
    rig.link.queue(request).expect("there is room");
    rig.link.commit(rig.now);
    let ended = rig.run();
    assert_eq!(ended[0].at, Nanos(2_000 + 50_000 + PIPE_NS + LATENCY_NS));

    // And again: the connection is a new one.
    rig.post(1, BYTES);
    rig.link.quiesce(wr(0), rig.now);
    let asked = rig.now;
    let ended = rig.run();
    assert!(ended[0].done().is_some() && ended[0].at < asked.after(2_000));
    assert_eq!(rig.control.stats().teardowns, 2);
}

#[test]
fn a_liar_gives_the_part_back_and_writes_it_later() {
    let quiesce = Quiescing::Lie { writes_after_ns: 3_000_000 };
    let mut rig = Rig::new(11, BYTES, SimRailConfig { quiesce, ..config(FaultPlan::none()) });
    rig.post(1, BYTES);
    rig.link.quiesce(wr(0), Nanos(10));
    let mut ended = rig.reap();
    assert_eq!(ended[0].outcome, failed(Status::CANCELLED));
    ended[0].part.as_mut_slice().fill(0x55);
    rig.run_until(Nanos(3_000_009));
    assert!(ended[0].part.as_slice().iter().all(|byte| *byte == 0x55));
    rig.run();
    assert!(rig.is_exact(&ended[0].part), "the write came late");
    let stats = rig.control.stats();
    assert_eq!((stats.lies, stats.late_writes), (1, 1));
}

#[test]
fn each_late_write_lands_at_its_own_time() {
    let quiesce = Quiescing::Lie { writes_after_ns: 1_000_000 };
    let mut rig = Rig::new(11, 2 * BYTES, SimRailConfig { quiesce, ..config(FaultPlan::none()) });
    rig.post(2, BYTES);
    rig.link.quiesce(wr(0), Nanos(10));
    rig.link.quiesce(wr(1), Nanos(500));
    let ended = rig.run_until(Nanos(1_000_499));
    let exact: Vec<bool> = ended.iter().map(|end| rig.is_exact(&end.part)).collect();
    assert_eq!(exact, [true, false]);
    rig.run();
    assert!(rig.is_exact(&ended[1].part));
}

#[test]
fn a_late_write_lands_in_memory_that_was_given_back() {
    let mut rig = rig(Fault::LateWrite { after_ns: 9_000 }, When::Nth(0));
    rig.post(1, BYTES);
    let mut ended = rig.run_until(Nanos(PIPE_NS + LATENCY_NS));
    assert!(rig.is_exact(&ended[0].part));
    ended[0].part.as_mut_slice().fill(0x55);
    rig.run();
    assert!(rig.is_exact(&ended[0].part), "the write came again");
    assert_eq!(rig.control.stats().late_writes, 1);
}

#[test]
fn a_smaller_completion_queue_is_granted_and_shown() {
    let config = SimRailConfig {
        window_wrs: 1000,
        completion_queue_entries: Some(2),
        misuse: Misuse::Refuse,
        ..config(FaultPlan::none())
    };
    let mut rig = Rig::new(11, 64 * BYTES, config);
    assert_eq!(rig.link.limits().outstanding_wrs_max, 2);
    assert!(rig.control.info().notes[0].contains("2 entries, 1000 were asked for"));
    rig.post(2, BYTES);
    let request = rig.request(2, BYTES);
    let (_, status) = refused(rig.link.queue(request));
    assert_eq!(status, None);
    assert_eq!(rig.control.stats().outstanding_peak, 2);
}

#[test]
#[should_panic(expected = "rail rail0 granted 2 requests")]
fn a_caller_that_does_not_keep_credits_is_a_panic() {
    let config = SimRailConfig { completion_queue_entries: Some(2), ..config(FaultPlan::none()) };
    Rig::new(11, 64 * BYTES, config).post(3, BYTES);
}

#[test]
#[should_panic(expected = "its slot is in flight")]
fn a_caller_that_uses_a_slot_twice_is_a_panic() {
    let mut rig = Rig::new(11, 64 * BYTES, config(FaultPlan::none()));
    rig.post(1, BYTES);
    rig.post(1, BYTES);
}
