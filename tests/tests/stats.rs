//! Counters move when what they count happens, and only then, and their sums agree.

mod scene;

use std::time::Duration;

use railring_core::{
    EngineConfig, PoolConfig, PushError, RailErrors, RailHealth, RailStats, Read, RingConfig,
};
use railring_sim::{Cancelling, Fault, FaultPlan, Quiescing, SimRailConfig, When};
use scene::{KIB, Scene, config, fault, rail, shape};
use sq_cq::Status;

fn two(first: FaultPlan) -> Vec<SimRailConfig> {
    vec![rail("a", first), rail("b", FaultPlan::none())]
}

/// What holds of every rail at any time, and with nothing in flight.
fn check_at_rest(stats: &[RailStats]) {
    for rail in stats {
        assert_eq!(rail.errors.total(), rail.failed, "{rail}");
        assert_eq!(rail.latency.count(), rail.pieces, "{rail}");
        assert_eq!((rail.in_flight, rail.in_flight_bytes), (0, 0), "{rail}");
        assert!(rail.in_flight_peak > 0 || rail.pieces == 0, "{rail}");
        assert!(rail.connections_retired <= rail.connections_made, "{rail}");
        assert_eq!(rail.strays, 0, "{rail}");
    }
}

#[test]
fn bytes_of_rails_are_the_bytes_of_reads() {
    let mut scene = Scene::with_leases(two(FaultPlan::none()), config(), 2, 4 << 20);
    let (object, _) = scene.object("x", shape(8, 256 * KIB, 2), 0..2);
    for _ in 0..5 {
        assert_eq!(scene.read(&object).0, Status::OK);
    }
    let (engine, rails) = (scene.engine.stats(), scene.engine.rail_stats());
    check_at_rest(&rails);
    let sum = |of: fn(&RailStats) -> u64| rails.iter().map(of).sum::<u64>();
    assert_eq!(sum(|rail| rail.bytes), 5 * (2 << 20));
    assert_eq!(sum(|rail| rail.bytes), engine.classes.iter().map(|class| class.bytes).sum::<u64>());
    assert_eq!((engine.reads, engine.stripes, engine.rings), (5, 40, 1));
    assert_eq!(sum(|rail| rail.retries + rail.mismatches + rail.failed), 0);
    assert!(rails.iter().all(|rail| rail.rate_bytes_per_s > 0 && rail.info.weight == 1));
    assert!(rails.iter().all(|rail| rail.pieces > 0 && !rail.is_pinned()));
    let text = engine.to_string();
    assert!(text.contains("5 reads of 40 stripes, 0 failed"), "{text}");
}

/// One piece of one read fails on rail a with `status`, of whose kind there is one then.
fn fails_with(status: Status, kind: fn(&RailErrors) -> u64) {
    let fault = fault(Fault::TransferError { status, vendor: 0 }, When::Nth(0));
    let mut scene = Scene::new(vec![rail("a", fault)], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let _ = scene.read(&object);
    let stats = scene.engine.rail_stats();
    check_at_rest(&stats);
    let errors = stats[0].errors;
    assert_eq!((kind(&errors), errors.total()), (1, 1), "{status}: {errors}");
    assert!(stats[0].to_string().contains(&format!("errors: {errors}")), "{}", stats[0]);
    // Tried again on the same rail, if that made sense.
    let retried = u64::from(status.is_retryable());
    assert_eq!((stats[0].retries, stats[0].pieces), (retried, retried), "{status}");
    assert_eq!(stats[0].rail_faults, u64::from(status.blame() == sq_cq::Blame::Rail), "{status}");
}

#[test]
fn each_kind_of_error_has_its_counter() {
    let errno = Status::from_errno;
    fails_with(errno(5), |errors| errors.path);
    fails_with(errno(2), |errors| errors.peer);
    fails_with(errno(116), |errors| errors.stale);
    fails_with(errno(74), |errors| errors.data);
    fails_with(errno(105), |errors| errors.full);
    fails_with(errno(22), |errors| errors.caller);
    fails_with(errno(107), |errors| errors.other);
    assert_eq!(RailErrors::default().to_string(), "none");
}

#[test]
fn a_piece_that_takes_too_long_is_a_timeout_and_a_retry_where_it_went() {
    let mut scene = Scene::new(two(fault(Fault::Lost, When::Nth(0))), config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 2), 0..2);
    while scene.engine.rail_stats()[0].pieces + scene.engine.rail_stats()[0].failed == 0 {
        assert_eq!(scene.read(&object).0, Status::OK);
    }
    let stats = scene.engine.rail_stats();
    check_at_rest(&stats);
    assert_eq!((stats[0].timeouts, stats[0].errors.timed_out), (1, 1));
    assert_eq!((stats[0].retries, stats[1].retries), (0, 1));
    assert_eq!(scene.engine.stats().retries, 1);
}

#[test]
fn a_mismatch_belongs_to_the_rail_that_brought_it() {
    for stripe_bytes in [64 * KIB, 1024 * KIB] {
        // Hashed by the rail's poller, in one piece, and by the home, in several.
        let flipped = fault(Fault::FlippedByte, When::Nth(0));
        let mut scene = Scene::new(vec![rail("a", flipped)], config());
        let (object, _) = scene.object("x", shape(1, stripe_bytes, 1), 0..1);
        assert_eq!(scene.read(&object), (Status::OK, 2));
        let stats = scene.engine.rail_stats();
        check_at_rest(&stats);
        assert_eq!((stats[0].mismatches, stats[0].failed), (1, 0));
        assert_eq!(scene.engine.stats().mismatches, 1);
    }
}

#[test]
fn steals_are_the_thiefs() {
    let mut slow = rail("a", FaultPlan::none());
    slow.bandwidth_bytes_per_second /= 20;
    let config = EngineConfig { io_timeout: Duration::from_secs(1), ..config() };
    let rails = vec![slow, rail("b", FaultPlan::none())];
    let mut scene = Scene::with_leases(rails, config, 1, 8 << 20);
    let (object, _) = scene.object("x", shape(16, 512 * KIB, 2), 0..2);
    assert_eq!(scene.read(&object).0, Status::OK);
    let stats = scene.engine.rail_stats();
    check_at_rest(&stats);
    assert!(stats[1].steals > stats[0].steals, "{} and {}", stats[1].steals, stats[0].steals);
    assert_eq!(stats[0].steals + stats[1].steals, scene.engine.stats().steals);
}

#[test]
fn connections_are_counted_when_they_are_made_lost_and_made_again() {
    let mut config_of_rail = rail("a", fault(Fault::Lost, When::Nth(1)));
    config_of_rail.cancel = Cancelling::Ignored;
    config_of_rail.quiesce = Quiescing::TearDown { after_ns: 10_000, reconnect_ns: 100_000 };
    let mut scene = Scene::new(vec![config_of_rail], config());
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 1), 0..1);
    let now = |scene: &Scene| {
        let rail = &scene.engine.rail_stats()[0];
        (rail.connections_made, rail.connections_retired, rail.connections())
    };
    assert_eq!(now(&scene), (0, 0, 0));
    let (lease, bytes) = (scene.pool.take().expect("a lease"), 64 * KIB);
    scene.push(Read::new(&object, 0..bytes, lease));
    let _ = scene.finish();
    assert_eq!(now(&scene), (1, 0, 1));
    // A piece is lost and asked back: the connection is torn down for it, and made again.
    assert_eq!(scene.read(&object), (Status::OK, 2));
    assert_eq!(now(&scene), (2, 1, 1));
    check_at_rest(&scene.engine.rail_stats());
}

#[test]
fn rails_say_how_much_memory_is_registered_with_them() {
    let scene = Scene::new(two(FaultPlan::none()), config());
    let registered = |scene: &Scene| {
        let rails = scene.engine.rail_stats();
        assert_eq!(rails[0].registered_bytes, rails[1].registered_bytes);
        assert_eq!(rails[0].registered_bytes, scene.engine.stats().registered_bytes);
        rails[0].registered_bytes
    };
    let before = registered(&scene);
    let more = PoolConfig { slots: 4, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let _pool = scene.engine.buffer_pool(more).expect("a pool");
    assert_eq!(registered(&scene), before + (4 << 20));
}

#[test]
fn a_rail_that_cools_down_says_for_how_long() {
    let status = Status::from_errno(5);
    let broken = fault(Fault::TransferError { status, vendor: 0 }, When::ALWAYS);
    let mut scene = Scene::new(two(broken), config());
    let (object, _) = scene.object("x", shape(8, 64 * KIB, 2), 0..2);
    assert_eq!(scene.read(&object).0, Status::OK);
    let stats = scene.engine.rail_stats();
    assert_eq!((stats[0].health, stats[0].cooldowns), (RailHealth::Cooling, 1), "{}", stats[0]);
    assert!(stats[0].cooldown_left > Duration::ZERO);
    assert!(stats[0].to_string().contains("of cooldown left"), "{}", stats[0]);
    assert!(stats[0].errors.path >= 3 && stats[1].retries >= 3, "{} {}", stats[0], stats[1]);
    assert_eq!(stats[1].failed, 0);
}

#[test]
fn a_ring_says_how_full_it_is() {
    let scene = Scene::new(two(FaultPlan::none()), config());
    let sizes = RingConfig { sq_entries: 2, cq_entries: 4, ..RingConfig::default() };
    let mut ring = scene.engine.ring(sizes).expect("a ring");
    for _ in 0..2 {
        ring.push(Read::nop()).expect("there is room");
    }
    assert_eq!(ring.push(Read::nop()).expect_err("full").why, PushError::Full);
    let stats = ring.stats();
    assert_eq!((stats.in_flight, stats.full_answers, stats.ready), (2, 1, 0));
    assert_eq!((stats.reserved, stats.cq_entries, stats.traces_dropped), (2, 4, 0));
    assert!(stats.to_string().contains("full 1 times"), "{stats}");
    assert_eq!(scene.engine.stats().rings, 2);
    drop(ring);
}
