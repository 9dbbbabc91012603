//! What users of similar systems reported, each as a scene: late writes, half posts, wrong causes,
//! endless reconnects, shifted bytes.

mod scene;

use std::time::Duration;

use railring_core::{Completion, EngineConfig, RailHealth, Read};
use railring_sim::{Cancelling, Fault, FaultKind, FaultPlan, Quiescing, When};
use scene::{KIB, MS, START, Scene, config, fault, rail, shape};
use sq_cq::Status;

/// A read times out, its buffer is used again, and the device writes into it seconds later
/// (novitalabs/pegaflow#403, ydb-platform/nbs#5729).
#[test]
fn an_answer_that_is_seconds_late_touches_nothing_that_was_given_back() {
    let late = Fault::Delay { delay_ns: 3_000 * MS };
    for quiesce in [
        Quiescing::WireCancel { after_ns: 5_000 },
        Quiescing::TearDown { after_ns: 5_000, reconnect_ns: 5_000 },
    ] {
        let mut slow = rail("a", fault(late, When::Nth(0)));
        (slow.cancel, slow.quiesce) = (Cancelling::Ignored, quiesce);
        let config = EngineConfig { io_timeout: Duration::from_secs(10), ..config() };
        let mut scene = Scene::new(vec![slow], config);
        let (x, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
        let (y, known_y) = scene.object("y", shape(1, 64 * KIB, 1), 0..1);
        let read = scene.whole(&x).timeout(Duration::from_millis(100));
        scene.push(read);
        let cqe = scene.next();
        assert_eq!(cqe.ended(), Some(Status::TIMED_OUT));
        assert_eq!(scene.controls[0].stats().outstanding, 0, "quiet before it is told");
        assert!(scene.now <= START.after(115 * MS), "the deadline, and a bounded time to quiet");
        // Another object into the same memory at once; then the memory rests.
        let lease = cqe.into_lease().expect("it comes back");
        scene.push(Read::new(&y, 0..y.len(), lease));
        let cqe = scene.next();
        assert_eq!(cqe.ended(), Some(Status::OK));
        assert_eq!(scene.ring.bytes(&cqe).expect("ok"), &known_y.bytes[..]);
        let mut lease = cqe.into_lease().expect("it comes back");
        lease.as_mut_slice().fill(0xee);
        scene.run_to(5_200 * MS);
        assert!(lease.as_slice().iter().all(|byte| *byte == 0xee), "written after the end");
    }
}

/// A device grants a smaller completion queue than was asked for (ofiwg/libfabric#4420, #4913).
#[test]
fn a_completion_queue_that_was_cut_short_is_never_overrun_and_is_told() {
    let mut small = rail("a", FaultPlan::none());
    (small.window_wrs, small.completion_queue_entries) = (1_000, Some(100));
    let config = EngineConfig { piece_bytes_max: 64 * KIB, ..config() };
    let mut scene = Scene::with_leases(vec![small], config, 4, 32 << 20);
    let (object, _) = scene.object("x", shape(8, 4096 * KIB, 1), 0..1);
    for _ in 0..4 {
        let read = scene.whole(&object);
        scene.push(read);
    }
    let mut ended = 0;
    while ended < 4 {
        ended += u32::from(scene.next().ended().is_some());
    }
    // More would have been a panic of the simulated device.
    assert!(scene.controls[0].stats().outstanding_peak <= 100);
    let stats = &scene.engine.rail_stats()[0];
    assert!(stats.in_flight_peak <= 100);
    assert!(stats.info.notes.iter().any(|note| note.contains("100 entries, 1000 were asked for")));
}

/// A batch is posted in part, and the rest twice or never (PaddlePaddle/FastDeploy#8091,
/// kvcache-ai/Mooncake#1721).
#[test]
fn a_batch_that_is_posted_in_part_is_executed_once_each() {
    let refused = Fault::PostRefused { status: Status::from_errno(12) };
    for half in [Fault::PartialPost, refused] {
        for every in [2, 3] {
            let mut scene = Scene::with_leases(
                vec![rail("a", fault(half, When::Every(every)))],
                EngineConfig { attempts_max: 200, ..config() },
                8,
                1 << 20,
            );
            let (object, known) = scene.object("x", shape(16, 64 * KIB, 1), 0..1);
            for _ in 0..8 {
                let read = scene.whole(&object);
                scene.push(read);
            }
            let mut ended = 0;
            while ended < 8 {
                let cqe = scene.next();
                let at = usize::from(cqe.stripe()) << 16;
                let bytes = scene.ring.bytes(&cqe).expect("it is ok");
                assert!(bytes == &known.bytes[at..at + (64 << 10)], "{half:?}");
                ended += u32::from(cqe.ended().is_some());
            }
            let stats = scene.controls[0].stats();
            assert_eq!((stats.posted, stats.outstanding), (8 * 16, 0), "{half:?}");
            assert!(stats.fired.of(half.kind()) > 0);
            assert_eq!(scene.engine.rail_stats()[0].in_flight, 0);
        }
    }
}

/// Fields of a failed completion that are not defined are used (pytorch/tensorpipe#416,
/// pmem/rpma#1170): here there are none, whatever the device's code is.
#[test]
fn every_code_of_a_failed_completion_ends_the_read_and_names_itself() {
    for code in (1..=24).chain([99, 4_000, 65_535]) {
        let failure = Fault::TransferError { status: Status::from_wc(code), vendor: u32::MAX };
        let mut scene = Scene::new(vec![rail("a", fault(failure, When::ALWAYS))], config());
        let (object, _) = scene.object("x", shape(2, 64 * KIB, 1), 0..1);
        let (status, attempts) = scene.read(&object);
        assert!(status == Status::from_wc(code) || status == Status::RAIL_DOWN, "{code}: {status}");
        assert!((1..=3).contains(&attempts));
        assert_eq!((scene.pool.free(), scene.controls[0].stats().outstanding), (8, 0));
    }
}

/// Requests that were posted when the connection broke vanish, and their reads wait for a deadline
/// that is far away (kvcache-ai/Mooncake#2427).
#[test]
fn a_connection_that_breaks_ends_all_that_was_on_it_at_once() {
    let gone = Fault::Disconnect { down_ns: 3_600_000 * MS };
    let mut scene = Scene::new(
        vec![rail("a", fault(gone, When::At(START.after(MS / 4))))],
        EngineConfig { io_timeout: Duration::from_secs(600), ..config() },
    );
    let (object, _) = scene.object("x", shape(16, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object).timeout(Duration::from_secs(3_600)).allow_partial();
    scene.push(read);
    let cqes = scene.finish();
    assert_eq!(cqes.len(), 16);
    assert!(cqes.iter().any(|cqe| cqe.status().is_ok()), "some came before");
    let last = cqes.last().and_then(Completion::ended).expect("ended");
    let causes = [Status::from_errno(104), Status::from_errno(100), Status::RAIL_DOWN];
    assert!(causes.contains(&last), "{last}");
    assert!(scene.now < START.after(10 * MS), "{:?}", scene.now);
}

/// The first attempt answers late and wrong after another rail has answered right
/// (kvcache-ai/Mooncake#3136).
#[test]
fn a_first_attempt_that_answers_late_and_wrong_finishes_nothing() {
    let late = fault(Fault::Delay { delay_ns: 50 * MS }, When::ALWAYS)
        .with(Fault::FlippedByte, When::ALWAYS)
        .with(Fault::DuplicateCompletion { after_ns: 30 * MS }, When::ALWAYS);
    let mut scene = Scene::new(vec![rail("a", late), rail("b", FaultPlan::none())], config());
    let (object, known) = scene.object("x", shape(1, 64 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    scene.push(read);
    let cqe = scene.next();
    assert_eq!((cqe.ended(), cqe.rail(), cqe.attempts()), (Some(Status::OK), Some(1), 2));
    let lease = cqe.into_lease().expect("it comes back");
    scene.run_to(200 * MS);
    assert_eq!(&lease.as_slice()[..known.bytes.len()], &known.bytes[..]);
    assert!(scene.ring.pop().is_none(), "one CQE");
    assert_eq!(scene.read(&object).0, Status::OK);
    // A rail is looked at when it has something to do, and counts are told when asked for.
    let _ = scene.engine.rail_stats();
    scene.engine.turn_at(scene.now);
    assert!(scene.engine.rail_stats()[0].link.stale_completions > 0);
}

/// One request fails and the others are flushed for it: one error, with its cause
/// (kvcache-ai/Mooncake#2155).
#[test]
fn one_failure_and_its_flushes_are_one_fault_of_the_rail() {
    let slow = (1..16).fold(fault(Fault::Lost, When::Nth(0)), |plan, nth| {
        plan.with(Fault::Delay { delay_ns: 5 * MS }, When::Nth(nth))
    });
    let mut torn = rail("a", slow);
    torn.cancel = Cancelling::Ignored;
    torn.quiesce = Quiescing::TearDown { after_ns: 1_000, reconnect_ns: 1_000 };
    let mut scene = Scene::new(vec![torn], config());
    let (lost, _) = scene.object("lost", shape(1, 64 * KIB, 1), 0..1);
    let (others, _) = scene.object("others", shape(15, 64 * KIB, 1), 0..1);
    let read = scene.whole(&lost).user_data(1);
    scene.push(read);
    scene.run_to(9 * MS);
    let read = scene.whole(&others);
    scene.push(read);
    for _ in 0..16 {
        let cqe = scene.next();
        let attempts = if cqe.user_data() == 1 { 2 } else { 1 };
        assert_eq!((cqe.status(), cqe.attempts()), (Status::OK, attempts));
    }
    let stats = &scene.engine.rail_stats()[0];
    assert_eq!((stats.flushed, stats.rail_faults, stats.timeouts), (15, 1, 1));
    assert_eq!(stats.health, RailHealth::Up);
}

/// Every reconnect fails, and is tried again without end (kvcache-ai/Mooncake#3299).
#[test]
fn a_rail_that_never_comes_back_is_tried_ever_more_seldom() {
    let gone = Fault::Disconnect { down_ns: 3_600_000 * MS };
    let mut scene = Scene::new(vec![rail("a", fault(gone, When::At(START)))], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let mut tried = Vec::new();
    let mut before = 0;
    for millisecond in 1..2_000 {
        scene.run_to(millisecond * MS);
        let (status, _) = scene.read(&object);
        assert!(!status.is_ok());
        let failed = scene.engine.rail_stats()[0].failed;
        if failed > before {
            tried.push(millisecond);
        }
        before = failed;
    }
    // Cooldowns of 5 ms, doubled each time, to 64 times that.
    assert!(tried.len() <= 20, "tried at {tried:?} ms");
    let gaps: Vec<u64> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.last().is_some_and(|gap| *gap >= 300), "tried at {tried:?} ms");
    assert!(!matches!(scene.health(0), RailHealth::Up));
}

/// The last bytes are there before the first ones (ofiwg/libfabric#655): only a completion counts.
#[test]
fn bytes_that_land_tail_first_are_not_told_before_their_completion() {
    let tail = fault(Fault::TailFirst { gap_ns: 3 * MS }, When::ALWAYS);
    let mut scene = Scene::new(vec![rail("a", tail)], config());
    let (object, known) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    scene.run_to(2 * MS);
    assert_eq!(scene.controls[0].stats().fired.of(FaultKind::TailFirst), 1, "the tail is there");
    assert!(scene.ring.pop().is_none(), "told before its completion");
    let cqe = scene.next();
    assert!(scene.now >= START.after(3 * MS));
    assert_eq!(scene.ring.bytes(&cqe).expect("ok"), &known.bytes[..]);
}

/// Stripes beyond the size of the caller's memory are missing, or land shifted, once an object is
/// larger than it (bugs of earlier readers).
#[test]
fn each_stripe_alone_and_any_set_of_them_lands_where_it_belongs() {
    let mut scene = Scene::new(vec![rail("a", FaultPlan::none())], config());
    let (object, known) = scene.object("x", shape(16, 64 * KIB, 1), 0..1);
    let stripe_bytes = 64 << 10;
    let stripe = |index: usize| &known.bytes[index * stripe_bytes..(index + 1) * stripe_bytes];
    for index in 0..16 {
        // No more memory than the one stripe.
        let (lease, rest) = scene.pool.take().expect("free").split_at(stripe_bytes).expect("long");
        scene.push(Read::stripes(&object, u32::try_from(index).expect("few"), 1, lease));
        let cqe = scene.next();
        assert_eq!(cqe.ended(), Some(Status::OK));
        assert_eq!(scene.ring.bytes(&cqe).expect("ok"), stripe(index));
        drop((cqe, rest));
    }
    let mut lease = scene.pool.take().expect("free");
    lease.as_mut_slice().fill(0xa5);
    scene.push(Read::stripes(&object, 0, 0b1000_1001, lease));
    let cqes = scene.finish();
    assert_eq!(cqes.len(), 3);
    let lease = cqes.into_iter().next_back().and_then(Completion::into_lease).expect("back");
    for index in 0..16 {
        let there = &lease.as_slice()[index * stripe_bytes..(index + 1) * stripe_bytes];
        match index {
            0 | 3 | 7 => assert_eq!(there, stripe(index)),
            _ => assert!(there.iter().all(|byte| *byte == 0xa5), "stripe {index} was touched"),
        }
    }
}

/// Adding a slow rail makes reads slower than the fast one alone (NVIDIA/nccl#2310).
#[test]
fn a_slow_rail_beside_a_fast_one_never_costs_anything() {
    let time = |slow: Option<u64>| {
        let mut rails = vec![rail("fast", FaultPlan::none())];
        rails[0].bandwidth_bytes_per_second = 400_000_000;
        if let Some(rate) = slow {
            rails.push(rail("slow", FaultPlan::none()));
            rails[1].bandwidth_bytes_per_second = rate;
        }
        let config = EngineConfig { io_timeout: Duration::from_secs(60), ..config() };
        let mut scene = Scene::with_leases(rails, config, 1, 32 << 20);
        let (object, _) = scene.object("x", shape(16, 2048 * KIB, 2), 0..2);
        assert_eq!(scene.read(&object).0, Status::OK);
        let begun = scene.now;
        assert_eq!(scene.read(&object).0, Status::OK);
        scene.now.since(begun)
    };
    let alone = time(None);
    for rate in [400_000_000, 200_000_000, 100_000_000, 40_000_000] {
        let both = time(Some(rate));
        assert!(both <= alone * 101 / 100, "with {rate} B/s more: {both} ns, alone {alone} ns");
    }
}
