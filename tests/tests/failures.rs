//! What failures are to callers: one scene per promise, with exact expectations, in virtual time.

mod scene;

use std::sync::Arc;
use std::time::Duration;

use railring_core::{
    Completion, EngineBuilder, EngineConfig, OpenError, PoolConfig, PushError, Rail, RailHealth,
    Read, RingConfig,
};
use railring_sim::{Cancelling, Fault, FaultPlan, Quiescing, SimLink, SimWorld, When};
use railring_tests::objects;
use railring_transport::{
    Completion as Reaped, Link, LinkLimits, LinkStats, Nanos, Outcome, RailControl, Refused,
    WorkRequest, WrId,
};
use scene::{KIB, MS, START, Scene, config, fault, rail, shape};
use sq_cq::Status;

#[test]
fn a_lost_piece_is_read_over_another_rail_once_it_is_quiet() {
    let lost = fault(Fault::Lost, When::Nth(0));
    let mut scene = Scene::new(vec![rail("a", lost), rail("b", FaultPlan::none())], config());
    let (object, known) = scene.object("x", shape(1, 64 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    scene.push(read);
    while scene.controls[1].stats().posted == 0 {
        assert!(scene.step());
    }
    assert_eq!(scene.controls[0].stats().outstanding, 0, "the first attempt is over");
    let cqe = scene.next();
    assert_eq!((cqe.status(), cqe.attempts(), cqe.rail()), (Status::OK, 2, Some(1)));
    assert!(u64::from(cqe.latency_ns()) >= 10 * MS, "not before the timeout");
    assert_eq!(scene.ring.bytes(&cqe).expect("readable"), &known.bytes[..]);
    assert_eq!(scene.engine.rail_stats()[0].timeouts, 1);
}

#[test]
fn fail_fast_does_not_try_again() {
    let lost = fault(Fault::Lost, When::Nth(0));
    let mut scene = Scene::new(vec![rail("a", lost), rail("b", FaultPlan::none())], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 2), 0..2);
    let read = scene.whole(&object).fail_fast();
    scene.push(read);
    let cqe = scene.next();
    assert_eq!((cqe.ended(), cqe.attempts()), (Some(Status::TIMED_OUT), 1));
    assert_eq!(scene.controls[1].stats().posted, 0);
    assert!(cqe.into_lease().is_some());
}

#[test]
fn a_stripe_that_fails_stops_the_rest_unless_a_part_will_do() {
    for partial in [false, true] {
        let gone = FaultPlan::none().with_at("server2", Fault::NotFoundAnswer, When::ALWAYS);
        let mut scene = Scene::new(vec![rail("a", gone)], config());
        let (object, _) = scene.object("x", shape(4, 64 * KIB, 1), 0..4);
        let read = scene.whole(&object);
        scene.push(if partial { read.allow_partial() } else { read });
        let cqes = scene.finish();
        assert_eq!(cqes.len(), 4);
        let last = cqes.last().expect("four");
        assert_eq!(last.ended(), Some(Status::NOT_FOUND));
        let bad = cqes.iter().find(|cqe| cqe.stripe() == 2).expect("each stripe");
        assert_eq!((bad.status(), bad.attempts()), (Status::NOT_FOUND, 3));
        if partial {
            assert_eq!((last.failed_stripes(), last.total_bytes()), (1, 3 * 64 * KIB));
            let good = cqes.iter().filter(|cqe| cqe.status().is_ok()).count();
            assert_eq!(good, 3);
        }
        assert!(cqes.into_iter().next_back().and_then(Completion::into_lease).is_some());
    }
}

#[test]
fn stripes_that_no_rail_reaches_fail_and_the_others_are_read() {
    let mut near = rail("a", FaultPlan::none());
    near.endpoints = Some(vec!["server0".into(), "server2".into()]);
    let mut scene = Scene::new(vec![near], config());
    // Stripe i is at server i: the second and the fourth are out of reach.
    let (object, known) = scene.object("x", shape(4, 64 * KIB, 1), 0..4);
    assert_eq!(object.unreachable_stripes(), 2);
    let read = scene.whole(&object).allow_partial();
    scene.push(read);
    let mut cqes = scene.finish();
    cqes.sort_by_key(|cqe| cqe.stripe());
    let statuses: Vec<Status> = cqes.iter().map(|cqe| cqe.status()).collect();
    assert_eq!(statuses, [Status::OK, Status::NO_RAIL, Status::OK, Status::NO_RAIL]);
    // By itself, in part, and as a set.
    let lease = scene.pool.take().expect("a lease");
    scene.push(Read::new(&object, 64 * KIB..128 * KIB, lease));
    assert_eq!(scene.next().ended(), Some(Status::NO_RAIL));
    let lease = scene.pool.take().expect("a lease");
    scene.push(Read::new(&object, 64 * KIB + 5..64 * KIB + 6, lease));
    assert_eq!((scene.next().ended(), scene.now), (Some(Status::NO_RAIL), scene.now));
    let lease = scene.pool.take().expect("a lease");
    scene.push(Read::stripes(&object, 0, 0b101, lease));
    let cqes = scene.finish();
    assert_eq!(cqes.last().and_then(|cqe| cqe.ended()), Some(Status::OK));
    let lease = cqes.into_iter().next_back().and_then(Completion::into_lease).expect("it is back");
    let third = 128 * 1024..192 * 1024;
    assert_eq!(lease.as_slice()[third.clone()], known.bytes[third]);
}

#[test]
fn an_object_of_which_nothing_can_be_read_does_not_open() {
    let mut near = rail("a", FaultPlan::none());
    near.endpoints = Some(vec!["server9".into()]);
    let scene = Scene::new(vec![near], config());
    let endpoints = ["server0".to_owned(), "server1".to_owned()];
    let known = objects::put(&scene.world, "x", shape(4, 64 * KIB, 1), &endpoints, 3);
    let error = scene.engine.open(&known.placement).expect_err("no rail reaches any of it");
    assert!(matches!(error, OpenError::NoRail { stripe: 0, .. }), "{error}");
}

#[test]
fn a_checksum_mismatch_is_read_again_and_shows_in_the_attempts() {
    let mut scene = Scene::new(vec![rail("a", fault(Fault::FlippedByte, When::Nth(0)))], config());
    let (object, known) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    let cqe = scene.next();
    assert_eq!((cqe.status(), cqe.attempts()), (Status::OK, 2));
    assert_eq!(scene.ring.bytes(&cqe).expect("readable"), &known.bytes[..]);
    assert_eq!(scene.engine.stats().mismatches, 1);
    assert_eq!((scene.health(0), scene.engine.rail_stats()[0].rail_faults), (RailHealth::Up, 0));
}

#[test]
fn a_mismatch_that_stays_says_which_block_and_what_was_there() {
    let mut scene = Scene::new(vec![rail("a", fault(Fault::FlippedByte, When::ALWAYS))], config());
    let (object, known) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    let cqe = scene.next();
    assert_eq!(cqe.ended(), Some(Status::CHECKSUM_MISMATCH));
    assert_ne!(Some(cqe.checksum()), known.placement.stripes[0].checksum);
    assert!(scene.ring.bytes(&cqe).is_none());
}

#[test]
fn a_block_table_that_the_placement_does_not_vouch_for_is_fetched_again() {
    let mut scene = Scene::new(vec![rail("a", fault(Fault::FlippedByte, When::Nth(0)))], config());
    let (object, known) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let lease = scene.pool.take().expect("a lease");
    // Part of a stripe: the first request is for its table, the second for its bytes.
    scene.push(Read::new(&object, 0..4096, lease));
    let cqe = scene.next();
    assert_eq!((cqe.status(), cqe.attempts()), (Status::OK, 2));
    assert_eq!(scene.ring.bytes(&cqe).expect("readable"), &known.bytes[..4096]);
    let stats = scene.engine.stats();
    assert_eq!((stats.mismatches, scene.controls[0].stats().posted), (1, 3));
}

#[test]
fn with_all_rails_down_the_answer_comes_at_once() {
    let rails = vec![rail("a", FaultPlan::none()), rail("b", FaultPlan::none())];
    let mut scene = Scene::new(rails, config());
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 2), 0..2);
    for name in ["a", "b"] {
        scene.engine.set_enabled(name, false).expect("a rail");
    }
    let read = scene.whole(&object);
    scene.push(read);
    let cqes = scene.finish();
    let last = cqes.last().expect("some");
    assert_eq!((last.ended(), last.latency_ns()), (Some(Status::RAIL_DOWN), 0));
    assert_eq!(scene.now, START, "no time passed");
    let posted: u64 = scene.controls.iter().map(|control| control.stats().posted).sum();
    assert_eq!(posted, 0);
}

#[test]
fn faults_of_a_rail_cool_it_down_and_a_probe_brings_it_back() {
    let failure = Fault::TransferError { status: Status::from_wc(12), vendor: 1 };
    let faults = (0..3).fold(FaultPlan::none(), |plan, nth| plan.with(failure, When::Nth(nth)));
    let mut scene = Scene::new(vec![rail("a", faults)], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    assert_eq!(scene.read(&object), (Status::from_wc(12), 3));
    assert_eq!(scene.health(0), RailHealth::Cooling);
    assert_eq!(scene.read(&object).0, Status::RAIL_DOWN, "at once, not after the cooldown");
    assert!(scene.now < START.after(5 * MS));
    scene.run_to(6 * MS);
    assert_eq!(scene.health(0), RailHealth::Probing, "time alone does not bring it back");
    assert_eq!(scene.read(&object), (Status::OK, 1));
    assert_eq!(scene.health(0), RailHealth::Up);
    assert_eq!(scene.engine.rail_stats()[0].cooldowns, 1);
}

#[test]
fn answers_of_the_peer_never_cool_a_rail_down() {
    let answers = [
        (Fault::NotFoundAnswer, Status::NOT_FOUND),
        (Fault::StaleAnswer, Status::STALE),
        (Fault::RefusedAnswer, Status::REFUSED),
    ];
    for (answer, status) in answers {
        let mut scene = Scene::new(vec![rail("a", fault(answer, When::ALWAYS))], config());
        let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
        for _ in 0..20 {
            assert_eq!(scene.read(&object).0, status);
        }
        let stats = &scene.engine.rail_stats()[0];
        assert_eq!((stats.health, stats.rail_faults, stats.cooldowns), (RailHealth::Up, 0, 0));
    }
}

#[test]
fn memory_that_is_stuck_is_impounded_and_comes_back_when_the_device_lets_go() {
    let hang = Fault::Hang { returns_after_ns: Some(500 * MS) };
    let mut scene = Scene::new(vec![rail("a", fault(hang, When::Nth(0)))], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    let cqe = scene.next();
    assert_eq!(cqe.ended(), Some(Status::STUCK));
    assert!(scene.now <= START.after(23 * MS), "timeout, grace and bound");
    assert!(cqe.into_lease().is_none());
    assert_eq!(scene.engine.stats().impounded_bytes, 1 << 20);
    assert_eq!(scene.pool.free(), 7);
    scene.run_to(600 * MS);
    assert_eq!(scene.engine.stats().impounded_bytes, 0);
    assert_eq!(scene.pool.free(), 8);
}

#[test]
fn who_is_flushed_for_another_is_requeued_and_pays_no_attempt() {
    let faults =
        fault(Fault::Lost, When::Nth(0)).with(Fault::Delay { delay_ns: 5 * MS }, When::Nth(1));
    let mut torn = rail("a", faults);
    torn.cancel = Cancelling::Ignored;
    torn.quiesce = Quiescing::TearDown { after_ns: 1_000, reconnect_ns: 1_000 };
    let mut scene = Scene::new(vec![torn], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object).user_data(1);
    scene.push(read);
    scene.run_to(9 * MS);
    let read = scene.whole(&object).user_data(2);
    scene.push(read);
    for _ in 0..2 {
        let cqe = scene.next();
        let attempts = if cqe.user_data() == 1 { 2 } else { 1 };
        assert_eq!((cqe.ended(), cqe.attempts()), (Some(Status::OK), attempts));
    }
    let stats = &scene.engine.rail_stats()[0];
    assert_eq!((stats.flushed, scene.controls[0].stats().teardowns), (1, 1));
    assert_eq!(stats.rail_faults, 1, "the cause is counted, the flush is not");
}

#[test]
fn a_cancelled_read_ends_as_cancelled_and_quiet() {
    let mut scene = Scene::new(
        vec![rail("a", fault(Fault::Delay { delay_ns: 8 * MS }, When::ALWAYS))],
        config(),
    );
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    let id = scene.push(read);
    scene.run_to(MS);
    assert_eq!(scene.controls[0].stats().outstanding, 4);
    assert!(scene.ring.cancel(id));
    let cqes = scene.finish();
    assert_eq!(scene.controls[0].stats().outstanding, 0, "quiet");
    assert!(cqes.iter().all(|cqe| cqe.status() == Status::CANCELLED));
    assert!(scene.now < START.after(2 * MS));
    assert!(cqes.into_iter().next_back().and_then(Completion::into_lease).is_some());
    assert!(!scene.ring.cancel(id), "it has ended");
}

#[test]
fn completions_that_belong_to_nobody_finish_nothing_and_are_counted() {
    let ghosts = [
        Fault::DuplicateCompletion { after_ns: 25_000 },
        Fault::UnknownCompletion,
        Fault::OldCompletion,
    ];
    for ghost in ghosts {
        let mut scene = Scene::new(vec![rail("a", fault(ghost, When::ALWAYS))], config());
        let (x, known_x) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
        let (y, known_y) = scene.object("y", shape(1, 128 * KIB, 1), 0..1);
        for _ in 0..10 {
            for (object, known) in [(&x, &known_x), (&y, &known_y)] {
                let read = scene.whole(object);
                scene.push(read);
                let cqe = scene.next();
                assert_eq!((cqe.ended(), cqe.attempts()), (Some(Status::OK), 1));
                assert_eq!(scene.ring.bytes(&cqe).expect("readable"), &known.bytes[..]);
            }
        }
        let _ = scene.engine.rail_stats();
        scene.engine.turn_at(scene.now);
        let stats = &scene.engine.rail_stats()[0];
        assert!(stats.link.stale_completions >= 15, "{ghost:?}: {:?}", stats.link);
        assert_eq!((stats.strays, stats.pieces), (0, 20));
    }
}

#[test]
fn a_deadline_in_the_past_costs_no_transfer() {
    let mut scene = Scene::new(vec![rail("a", FaultPlan::none())], config());
    let (object, _) = scene.object("x", shape(2, 64 * KIB, 1), 0..1);
    for deadline in [Nanos(0), Nanos(1), START] {
        let read = scene.whole(&object).deadline(deadline);
        scene.push(read);
        let cqes = scene.finish();
        assert_eq!(cqes.last().and_then(|cqe| cqe.ended()), Some(Status::TIMED_OUT));
        assert_eq!(cqes.len(), 2);
    }
    assert_eq!((scene.controls[0].stats().posted, scene.now), (0, START));
}

#[test]
fn reads_that_wait_for_others_to_end_keep_their_deadlines_and_cancels() {
    let slow = fault(Fault::Delay { delay_ns: 8 * MS }, When::Nth(0));
    let config = EngineConfig { reads_max: 1, ..config() };
    let mut scene = Scene::new(vec![rail("a", slow)], config);
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let token = scene.engine.cancel_token();
    let reads = [
        scene.whole(&object).user_data(0),
        scene.whole(&object).user_data(1).deadline(START.after(2 * MS)),
        scene.whole(&object).user_data(2),
        scene.whole(&object).user_data(3).cancelled_by(&token),
        scene.whole(&object).user_data(4),
    ];
    let ids: Vec<_> = reads.map(|read| scene.push(read)).into();
    scene.run_to(MS);
    assert!(scene.ring.cancel(ids[2]));
    token.cancel();
    let mut ends = Vec::new();
    for _ in 0..5 {
        let cqe = scene.next();
        ends.push((cqe.user_data(), cqe.ended(), scene.now.since(START) / MS));
        assert!(cqe.into_lease().is_some());
    }
    let (late, cancelled) = (Some(Status::TIMED_OUT), Some(Status::CANCELLED));
    ends.sort_by_key(|(user_data, _, _)| *user_data);
    assert_eq!(ends[1], (1, late, 2), "at its deadline, not when it is its turn");
    assert_eq!((ends[2], ends[3]), ((2, cancelled, 1), (3, cancelled, 1)));
    assert_eq!((ends[0].1, ends[4].1), (Some(Status::OK), Some(Status::OK)));
    assert!(ends[4].2 >= 8, "after the first");
}

#[test]
fn an_engine_that_is_dropped_ends_the_reads_in_flight() {
    let mut scene = Scene::new(vec![rail("a", FaultPlan::none())], config());
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 1), 0..1);
    for stripes in [4, 1] {
        let lease = scene.pool.take().expect("a lease");
        scene.push(Read::new(&object, 0..stripes * 64 * KIB, lease));
    }
    scene.engine.turn_at(scene.now);
    let Scene { engine, mut ring, pool, .. } = scene;
    drop(engine);
    let mut cqes = Vec::new();
    while let Some(cqe) = ring.pop() {
        cqes.push((cqe.status(), cqe.ended().is_some(), cqe.stripe()));
    }
    assert_eq!(cqes.len(), 5);
    assert!(cqes.iter().all(|(status, _, _)| *status == Status::ENGINE_FAILED));
    assert_eq!(cqes.iter().filter(|(_, ended, _)| *ended).count(), 2);
    assert_eq!(cqes.iter().map(|(_, _, stripe)| *stripe).sum::<u16>(), 1 + 2 + 3);
    assert!(pool.free() < pool.slots(), "a device may still write the memory");
    let refused = ring.push(Read::nop()).expect_err("nobody is there");
    assert_eq!(refused.why, PushError::EngineGone);
}

/// A link that says of its first request that it is done, with a byte less than it must have.
struct Boasts {
    inner: SimLink,
    times: u32,
}

impl Link for Boasts {
    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        self.inner.queue(request)
    }
    fn commit(&mut self, now: Nanos) {
        self.inner.commit(now);
    }
    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Reaped)) -> usize {
        let times = &mut self.times;
        self.inner.reap(now, budget, &mut |mut completion| {
            if let (true, Outcome::Done { bytes }) = (*times > 0, &mut completion.outcome) {
                *bytes -= 1;
                *times -= 1;
            }
            sink(completion);
        })
    }
    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.inner.cancel(wr, now);
    }
    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.inner.quiesce(wr, now);
    }
    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }
    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

#[test]
fn a_link_that_says_done_with_too_few_bytes_is_not_believed() {
    for (times, outcome) in [(1, (Status::OK, 2)), (9, (Status::SHORT_READ, 3))] {
        let mut world = SimWorld::new(7);
        let made = world.add_rail(rail("a", FaultPlan::none()));
        let (control, inner) = made.expect("a sensible rail");
        let link = Boasts { inner, times };
        let rails = vec![Rail { control: control as Arc<dyn RailControl>, link, poller: 0 }];
        let builder = EngineBuilder::new(rails).config(config());
        let mut engine = builder.build_virtual(START).expect("an engine");
        let known = objects::put(&world, "x", shape(1, 64 * KIB, 1), &["server0".to_owned()], 3);
        let object = engine.open(&known.placement).expect("opens");
        let pool = engine.buffer_pool(PoolConfig::default()).expect("a pool");
        let mut ring = engine.ring(RingConfig::default()).expect("a ring");
        let lease = pool.take().expect("a lease");
        ring.push(Read::new(&object, 0..object.len(), lease).skip_verify()).expect("accepted");
        ring.submit();
        let mut now = START;
        let cqe = loop {
            engine.turn_at(now);
            if let Some(cqe) = ring.pop() {
                break cqe;
            }
            now = now.max(engine.next_event());
            assert!(now < START.after(1000 * MS), "nothing happens");
        };
        assert_eq!((cqe.status(), cqe.attempts()), outcome);
        assert_eq!(engine.rail_stats()[0].health, RailHealth::Up, "short is no fault of the path");
    }
}

/// A link whose poller panics at its n-th look.
struct Panics {
    inner: SimLink,
    looks: u32,
}

impl Link for Panics {
    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        self.inner.queue(request)
    }
    fn commit(&mut self, now: Nanos) {
        self.inner.commit(now);
    }
    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Reaped)) -> usize {
        assert!(self.looks > 0, "this link panics when asked once more, as the test wants it");
        self.looks -= 1;
        self.inner.reap(now, budget, sink)
    }
    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.inner.cancel(wr, now);
    }
    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.inner.quiesce(wr, now);
    }
    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

#[test]
fn a_poller_that_panics_fails_its_reads_and_the_engine_says_so() {
    let mut world = SimWorld::new(7);
    let endless = fault(Fault::Hang { returns_after_ns: None }, When::ALWAYS);
    let (control, inner) = world.add_rail(rail("a", endless)).expect("a sensible rail");
    let link = Panics { inner, looks: 100 };
    let rails = vec![Rail { control: control as Arc<dyn RailControl>, link, poller: 0 }];
    let engine = EngineBuilder::new(rails).build().expect("an engine");
    let known = objects::put(&world, "x", shape(4, 64 * KIB, 1), &["server0".to_owned()], 3);
    let object = engine.open(&known.placement).expect("opens");
    let pool = PoolConfig { slots: 2, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let pool = engine.buffer_pool(pool).expect("a pool");
    let mut ring = engine.ring(RingConfig::default()).expect("a ring");
    let lease = pool.take().expect("a lease");
    ring.push(Read::new(&object, 0..object.len(), lease)).expect("accepted");
    let mut cqes = Vec::new();
    while cqes.len() < 4 {
        let ready = ring.wait(1, Duration::from_secs(20)).expect("it is told");
        assert!(ready > 0, "only {} CQEs in 20 s", cqes.len());
        while let Some(cqe) = ring.pop() {
            cqes.push(cqe);
        }
    }
    assert!(cqes.iter().all(|cqe| cqe.status() == Status::ENGINE_FAILED));
    assert_eq!(cqes[3].ended(), Some(Status::ENGINE_FAILED));
    let stripes: Vec<u16> = cqes.iter().map(|cqe| cqe.stripe()).collect();
    assert_eq!(stripes, [0, 1, 2, 3], "each names its own");
    assert!(engine.has_failed());
    assert_eq!(pool.free(), 1, "nothing is known of its memory");
    let refused = ring.push(Read::nop()).expect_err("the engine has failed");
    assert_eq!(refused.why, PushError::EngineGone);
}

#[test]
fn pieces_that_fail_together_on_another_pollers_rail_are_called_back_once() {
    let gone = fault(Fault::NotFoundAnswer, When::ALWAYS);
    let (mut near, mut far) = (rail("a", FaultPlan::none()), rail("b", gone));
    near.endpoints = Some(vec!["server0".into()]);
    far.endpoints = Some(vec!["server1".into()]);
    let config = EngineConfig { piece_bytes_max: 64 * KIB, attempts_max: 1, ..config() };
    let mut scene = Scene::spread(vec![near, far], &[0, 1], config, 1, 16 << 20);
    let (object, _) = scene.object("x", shape(1, 16 << 20, 1), 1..2);
    assert_eq!(scene.read(&object), (Status::NOT_FOUND, 1));
    assert_eq!(scene.pool.free(), 1);
}
