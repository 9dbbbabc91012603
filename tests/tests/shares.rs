//! Who carries how much: shares of rails, limits, and what one rail is to the others.

mod scene;

use std::time::Duration;

use railring_core::{EngineConfig, Policy, PushError, Read, RingConfig};
use railring_sim::{Fault, FaultPlan, When};
use railring_tests::objects::Shape;
use scene::{KIB, START, Scene, config, fault, rail, shape};
use sq_cq::Status;

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

/// Edges keep their staging memory until their tables are there; tables that are fetched once more
/// find some all the same.
#[test]
fn tables_do_not_wait_behind_what_waits_for_them() {
    const READS: u64 = 64;
    // Blocks and tables are of one class, of which there are 33 buffers. Every table is not found
    // at first; by the second time, edges would have all of them.
    let plan = (0..READS)
        .fold(FaultPlan::none(), |plan, nth| plan.with(Fault::NotFoundAnswer, When::Nth(nth)));
    let config = EngineConfig { staging_bytes: 2 << 20, ..config() };
    let mut scene = Scene::with_leases(vec![rail("a", plan)], config, 64, 4096);
    let block_bytes = 16 * 1024;
    let bytes = 1056 * u64::from(block_bytes);
    let (object, known) = scene.object("x", Shape { block_bytes, ..shape(1, bytes, 1) }, 0..1);
    for read in 0..READS {
        let lease = scene.pool.take().expect("a lease");
        let at = read * u64::from(block_bytes) + 50;
        scene.push(Read::new(&object, at..at + 100, lease).user_data(at));
    }
    for _ in 0..READS {
        let cqe = scene.next();
        assert_eq!(cqe.ended(), Some(Status::OK));
        let at = usize::try_from(cqe.user_data()).expect("small");
        assert_eq!(scene.ring.bytes(&cqe).expect("readable"), &known.bytes[at..at + 100]);
    }
    let rail = &scene.engine.rail_stats()[0];
    assert_eq!((rail.failed, rail.staging_used_bytes), (READS, 0));
}

/// Small pieces come and go without end; a large one that fits the limit only by itself has its
/// turn all the same, whoever of the two is first.
/// Edges have all the buffers they can have, and all of their tables must be fetched again: those
/// go before the edges that wait for buffers.
#[test]
fn tables_that_are_fetched_again_go_before_edges_that_wait_for_buffers() {
    let plan = fault(Fault::FlippedByte, When::ALWAYS);
    let config = EngineConfig { staging_bytes: 2 << 20, ..config() };
    let patience = config.io_timeout + config.cancel_grace + config.quiet_bound;
    let mut scene = Scene::with_leases(vec![rail("a", plan)], config, 128, 4096);
    let block_bytes = 16 * 1024;
    let bytes = 1056 * u64::from(block_bytes);
    let (object, _) = scene.object("x", Shape { block_bytes, ..shape(1, bytes, 1) }, 0..1);
    for read in 0..128 {
        let lease = scene.pool.take().expect("a lease");
        let at = read * u64::from(block_bytes) + 50;
        scene.push(Read::new(&object, at..at + 100, lease));
    }
    for _ in 0..128 {
        let status = scene.next().ended().expect("one stripe");
        assert!(!status.is_ok() && status != Status::RAIL_DOWN, "{status}");
    }
    let took = Duration::from_nanos(scene.now.since(START));
    assert!(took < patience, "{took:?}: something waited until it was given up");
}

#[test]
fn a_large_piece_is_not_starved_by_small_ones() {
    for (small_poller, large_poller) in [(0, 0), (0, 1), (1, 0)] {
        let (mut one, mut two) = (rail("a", FaultPlan::none()), rail("b", FaultPlan::none()));
        one.endpoints = Some(vec!["server0".into()]);
        two.endpoints = Some(vec!["server1".into()]);
        let mut config = config();
        config.limits.bytes_max = 1 << 20;
        let mut scene = Scene::spread(vec![one, two], &[0, 1], config, 32, 1 << 20);
        let ring = |scene: &Scene, poller| {
            let config = RingConfig { poller: Some(poller), ..RingConfig::default() };
            scene.engine.ring(config).expect("a ring")
        };
        let (mut small, mut large) = (ring(&scene, small_poller), ring(&scene, large_poller));
        let (x, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
        let (y, _) = scene.object("y", shape(1, 1024 * KIB, 1), 1..2);
        let (mut ended, mut pushed) = (0, false);
        while !pushed || large.ready() == 0 {
            while small.in_flight() < 16 {
                small.push(scene.whole(&x)).expect("accepted");
                small.submit();
            }
            if ended > 50 && !pushed {
                large.push(scene.whole(&y)).expect("accepted");
                large.submit();
                pushed = true;
            }
            scene.step();
            while let Some(cqe) = small.pop() {
                assert!(cqe.status().is_ok());
                ended += usize::from(cqe.ended().is_some());
            }
            assert!(ended < 200, "pollers {small_poller}, {large_poller}: it is starved");
        }
        assert_eq!(large.pop().and_then(|cqe| cqe.ended()), Some(Status::OK));
    }
}

#[test]
fn no_piece_is_longer_than_its_rail_takes() {
    let mut short = rail("a", FaultPlan::none());
    short.request_bytes_max = 1 << 20;
    let mut scene = Scene::with_leases(vec![short], config(), 1, 2 << 20);
    let bytes = (1 << 20) + 64 * KIB + 5000;
    let shape = Shape { block_bytes: 65_536, ..shape(1, bytes, 1) };
    let (object, _) = scene.object("x", shape, 0..1);
    // All but the first block: what is left is a little more than the longest request.
    let lease = scene.pool.take().expect("a lease");
    scene.push(Read::new(&object, 64 * KIB..bytes, lease));
    let cqe = scene.next();
    assert_eq!((cqe.ended(), cqe.attempts()), (Some(Status::OK), 1));
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

#[test]
fn weights_as_large_as_can_be_are_weights_under_every_policy() {
    let policies =
        [Policy::LeastLoaded, Policy::EndpointAffinity, Policy::WeightedRoundRobin, Policy::Fixed];
    for policy in policies {
        let (mut one, two) = (rail("a", FaultPlan::none()), rail("b", FaultPlan::none()));
        one.weight = 1_000_000; // The most that a rail may have.
        let config = EngineConfig { policy, ..config() };
        let mut scene = Scene::new(vec![one, two], config);
        let (object, _) = scene.object("x", shape(8, 64 * KIB, 2), 0..2);
        assert_eq!(scene.read(&object).0, Status::OK, "{policy:?}");
    }
}

#[test]
fn an_engine_without_rails_is_not_built() {
    let none = Vec::<railring_core::Rail<railring_sim::SimLink>>::new();
    let built = railring_core::EngineBuilder::new(none).build_virtual(scene::START);
    assert!(matches!(built.map(drop), Err(railring_core::BuildError::NoRails)));
}
