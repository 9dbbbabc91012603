//! What failures are to callers: one scene per promise, with exact expectations, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use railring_core::{
    Completion, EngineBuilder, EngineConfig, InlineEngine, Object, Policy, PoolConfig, Progress,
    PushError, Rail, RailHealth, Read, Ring, RingConfig,
};
use railring_dma::Pool;
use railring_sim::{
    Cancelling, Fault, FaultPlan, Latency, Quiescing, SimControl, SimLink, SimRailConfig, SimWorld,
    When,
};
use railring_tests::objects::{self, Known, Shape};
use railring_transport::{
    Completion as Reaped, Link, LinkLimits, LinkStats, Nanos, RailControl, Refused, WorkRequest,
    WrId,
};
use sq_cq::Status;

const START: Nanos = Nanos(1_000_000_000);
const MS: u64 = 1_000_000;
const KIB: u64 = 1024;

/// An engine over simulated rails with one ring, one pool, and time.
struct Scene {
    world: SimWorld,
    engine: InlineEngine<SimLink>,
    controls: Vec<Arc<SimControl>>,
    ring: Ring,
    pool: Pool,
    now: Nanos,
}

fn config() -> EngineConfig {
    EngineConfig {
        io_timeout: Duration::from_millis(10),
        cancel_grace: Duration::from_millis(2),
        quiet_bound: Duration::from_millis(10),
        cooldown: Duration::from_millis(5),
        ..EngineConfig::default()
    }
}

/// A rail with 1 GB/s, 10 us, and this to go wrong.
fn rail(name: &str, faults: FaultPlan) -> SimRailConfig {
    let mut rail = SimRailConfig::new(name);
    rail.bandwidth_bytes_per_second = 1_000_000_000;
    rail.latency = Latency::Fixed { latency_ns: 10_000 };
    rail.faults = faults;
    rail
}

fn fault(fault: Fault, when: When) -> FaultPlan {
    FaultPlan::none().with(fault, when)
}

fn shape(stripes: u64, stripe_bytes: u64, copies: usize) -> Shape {
    Shape { size_bytes: stripes * stripe_bytes, stripe_bytes, block_bytes: 4096, copies }
}

impl Scene {
    fn new(rails: Vec<SimRailConfig>, config: EngineConfig) -> Self {
        Scene::with_leases(rails, config, 8, 1 << 20)
    }

    fn with_leases(
        rails: Vec<SimRailConfig>,
        config: EngineConfig,
        slots: usize,
        slot_bytes: usize,
    ) -> Self {
        let mut world = SimWorld::new(7);
        let (mut built, mut controls) = (Vec::new(), Vec::new());
        for rail in rails {
            let (control, link) = world.add_rail(rail).expect("a sensible rail");
            controls.push(Arc::clone(&control));
            built.push(Rail { control: control as Arc<dyn RailControl>, link, poller: 0 });
        }
        let builder = EngineBuilder::new(built).config(config);
        let engine = builder.build_virtual(START).expect("a sensible engine");
        let pool = PoolConfig { slots, slot_bytes, ..PoolConfig::default() };
        let pool = engine.buffer_pool(pool).expect("a pool");
        let ring = engine.ring(RingConfig::default()).expect("a ring");
        Scene { world, engine, controls, ring, pool, now: START }
    }

    /// An object at servers 0, 1, ...
    fn object(&self, name: &str, shape: Shape, servers: std::ops::Range<usize>) -> (Object, Known) {
        let endpoints: Vec<String> = servers.map(|index| format!("server{index}")).collect();
        let known = objects::put(&self.world, name, shape, &endpoints, 3);
        (self.engine.open(&known.placement).expect("opens"), known)
    }

    fn push(&mut self, read: Read<'_>) -> sq_cq::ReadId {
        let id = self.ring.push(read).expect("accepted");
        self.ring.submit();
        id
    }

    fn whole<'o>(&self, object: &'o Object) -> Read<'o> {
        Read::new(object, 0..object.len(), self.pool.take().expect("a lease"))
    }

    /// One turn, or a step in time; `false` if nothing will happen any more.
    fn step(&mut self) -> bool {
        if self.engine.turn_at(self.now) == Progress::Worked {
            return true;
        }
        let next = self.engine.next_event();
        if next != Nanos::NEVER {
            self.now = Nanos(next.0.max(self.now.0 + 1));
        }
        next != Nanos::NEVER
    }

    /// Runs until `time` has passed since the start.
    fn run_to(&mut self, nanoseconds: u64) {
        let end = START.after(nanoseconds);
        while self.engine.turn_at(self.now) == Progress::Worked || self.engine.next_event() <= end {
            self.now = self.now.max(self.engine.next_event().min(end));
        }
        self.now = end;
        while self.engine.turn_at(self.now) == Progress::Worked {}
    }

    fn next(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.ring.pop() {
                return completion;
            }
            assert!(self.step(), "nothing will ever happen, and a completion is due");
        }
    }

    /// All CQEs up to the end of one read, which is the only one.
    fn finish(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let completion = self.next();
            let last = completion.ended().is_some();
            all.push(completion);
            if last {
                return all;
            }
        }
    }

    /// Reads all of an object; gives its status and the most attempts of a stripe.
    fn read(&mut self, object: &Object) -> (Status, u8) {
        let read = self.whole(object);
        self.push(read);
        let cqes = self.finish();
        let attempts = cqes.iter().map(|cqe| cqe.attempts()).max().unwrap_or(0);
        (cqes.last().and_then(|cqe| cqe.ended()).expect("ended"), attempts)
    }

    fn health(&self, rail: usize) -> RailHealth {
        self.engine.rail_stats()[rail].health
    }
}

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
fn a_rail_that_hangs_delays_no_read_of_the_others() {
    let slowest = |faults: FaultPlan| {
        let (mut bad, mut good) = (rail("a", faults), rail("b", FaultPlan::none()));
        bad.endpoints = Some(vec!["server0".into()]);
        good.endpoints = Some(vec!["server1".into()]);
        let mut scene = Scene::with_leases(vec![bad, good], config(), 64, 64 << 10);
        let (x, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
        let (y, _) = scene.object("y", shape(1, 64 * KIB, 1), 1..2);
        for _ in 0..30 {
            let read = scene.whole(&x);
            scene.push(read);
        }
        for _ in 0..30 {
            let read = scene.whole(&y).user_data(1);
            scene.push(read);
        }
        let mut slowest = 0;
        for _ in 0..60 {
            let cqe = scene.next();
            if cqe.user_data() == 1 {
                assert_eq!(cqe.ended(), Some(Status::OK));
                slowest = slowest.max(cqe.latency_ns());
            }
        }
        slowest
    };
    let hung = slowest(fault(Fault::Hang { returns_after_ns: None }, When::ALWAYS));
    assert_eq!(hung, slowest(FaultPlan::none()));
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
fn a_slow_rail_gets_the_share_it_can_carry() {
    let (mut fast, mut slow) = (rail("a", FaultPlan::none()), rail("b", FaultPlan::none()));
    fast.bandwidth_bytes_per_second = 400_000_000;
    slow.bandwidth_bytes_per_second = 100_000_000;
    // Shares are whole pieces: of 512, so that one more or less is no matter.
    let io_timeout = Duration::from_secs(30);
    let config = EngineConfig { io_timeout, piece_bytes_max: 64 * KIB, ..config() };
    let mut scene = Scene::with_leases(vec![fast, slow], config, 1, 32 << 20);
    let (object, _) = scene.object("x", shape(16, 2048 * KIB, 2), 0..2);
    assert_eq!(scene.read(&object).0, Status::OK);
    let before: Vec<u64> = scene.engine.rail_stats().iter().map(|rail| rail.bytes).collect();
    let start = scene.now;
    for _ in 0..4 {
        assert_eq!(scene.read(&object).0, Status::OK);
    }
    let after = scene.engine.rail_stats();
    let moved = [after[0].bytes - before[0], after[1].bytes - before[1]];
    let ratio = moved[0] as f64 / moved[1] as f64;
    assert!((ratio / 4.0 - 1.0).abs() <= 0.02, "{moved:?} is 1 to {ratio}");
    let seconds = scene.now.since(start) as f64 / 1e9;
    let rate = (moved[0] + moved[1]) as f64 / seconds;
    assert!(rate > 0.95 * 500e6, "together {rate} of 500 MB/s");
}

#[test]
fn eight_equal_rails_carry_an_eighth_each() {
    let rails = (0..8).map(|index| rail(&format!("r{index}"), FaultPlan::none())).collect();
    let mut scene = Scene::with_leases(rails, config(), 1, 16 << 20);
    let (object, _) = scene.object("x", shape(64, 256 * KIB, 2), 0..4);
    assert_eq!(scene.read(&object).0, Status::OK);
    for rail in scene.engine.rail_stats() {
        let share = (16 << 20) / 8;
        assert!(rail.bytes.abs_diff(share) <= 256 * KIB, "{} of {share}", rail.bytes);
    }
}

#[test]
fn sixteen_stripes_on_three_rails_are_six_five_and_five() {
    let rails = (0..3).map(|index| rail(&format!("r{index}"), FaultPlan::none())).collect();
    let config = EngineConfig { policy: Policy::Fixed, ..config() };
    let mut scene = Scene::with_leases(rails, config, 1, 4 << 20);
    let (object, _) = scene.object("x", shape(16, 256 * KIB, 1), 0..1);
    assert_eq!(scene.read(&object).0, Status::OK);
    let pieces: Vec<u64> = scene.engine.rail_stats().iter().map(|rail| rail.pieces).collect();
    assert_eq!(pieces, [6, 5, 5]);
}

#[test]
fn limits_per_rail_and_in_all_are_never_exceeded() {
    let rails = vec![rail("a", FaultPlan::none()), rail("b", FaultPlan::none())];
    let mut config = config();
    (config.limits.rail_pieces_max, config.limits.pieces_max) = (16, 24);
    let mut scene = Scene::with_leases(rails, config, 100, 64 << 10);
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 2), 0..2);
    for _ in 0..100 {
        let read = scene.whole(&object);
        scene.push(read);
    }
    let (mut ended, mut most) = (0, 0);
    while ended < 100 {
        assert!(scene.step());
        let held: u64 = scene.controls.iter().map(|control| control.stats().outstanding).sum();
        most = most.max(held);
        while scene.ring.pop().is_some() {
            ended += 1;
        }
    }
    assert_eq!(most, 24, "the whole of the limit is used, and no more");
    assert!(scene.controls.iter().all(|control| control.stats().outstanding_peak <= 16));
}

#[test]
fn a_rail_that_is_switched_off_carries_nothing() {
    let rails = vec![rail("a", FaultPlan::none()), rail("b", FaultPlan::none())];
    let mut scene = Scene::new(rails, config());
    let (object, _) = scene.object("x", shape(8, 64 * KIB, 2), 0..2);
    scene.engine.set_enabled("a", false).expect("a rail");
    assert_eq!(scene.read(&object).0, Status::OK);
    assert_eq!(scene.controls[0].stats().posted, 0);
    scene.engine.set_enabled("a", true).expect("a rail");
    assert_eq!(scene.read(&object).0, Status::OK);
    assert!(scene.controls[0].stats().posted > 0);
}

#[test]
fn limits_that_are_smaller_than_a_piece_let_one_through_at_a_time() {
    let mut config = config();
    (config.limits.rail_bytes_max, config.limits.bytes_max) = (1, 1);
    let mut scene = Scene::new(vec![rail("a", FaultPlan::none())], config);
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 1), 0..1);
    assert_eq!(scene.read(&object).0, Status::OK);
    assert_eq!(scene.controls[0].stats().outstanding_peak, 1);
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
        cqes.push((cqe.status(), cqe.ended().is_some()));
    }
    assert_eq!(cqes.len(), 5);
    assert!(cqes.iter().all(|(status, _)| *status == Status::ENGINE_FAILED));
    assert_eq!(cqes.iter().filter(|(_, ended)| *ended).count(), 2);
    assert!(pool.free() < pool.slots(), "a device may still write the memory");
    let refused = ring.push(Read::nop()).expect_err("nobody is there");
    assert_eq!(refused.why, PushError::EngineGone);
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
    assert!(engine.has_failed());
    assert_eq!(pool.free(), 1, "nothing is known of its memory");
    let refused = ring.push(Read::nop()).expect_err("the engine has failed");
    assert_eq!(refused.why, PushError::EngineGone);
}

#[test]
fn pushes_to_a_full_ring_say_full_and_nothing_else() {
    let mut scene = Scene::with_leases(vec![rail("a", FaultPlan::none())], config(), 16, 4096);
    let (object, _) = scene.object("x", shape(1, 4096, 1), 0..1);
    let config = RingConfig { sq_entries: 8, cq_entries: 8, ..RingConfig::default() };
    scene.ring = scene.engine.ring(config).expect("a ring");
    let mut accepted = 0;
    while scene.ring.push(scene.whole(&object)).is_ok() {
        accepted += 1;
    }
    assert_eq!(accepted, 8);
    let refused = scene.ring.push(scene.whole(&object)).expect_err("full");
    assert_eq!(refused.why, PushError::Full);
}
