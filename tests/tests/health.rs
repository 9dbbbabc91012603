//! Rails that are switched off, cool down and are tried again: what becomes of what waits for them.

mod scene;

use railring_core::{EngineBuilder, EngineConfig, Progress, Rail, RailHealth};
use railring_sim::{Fault, FaultPlan, SimRailConfig, SimWorld, When};
use scene::{KIB, MS, START, Scene, config, rail, shape};
use sq_cq::Status;

/// A rail that takes one piece at a time, a millisecond each.
fn slow(name: &str, faults: FaultPlan) -> SimRailConfig {
    let mut slow = rail(name, faults);
    slow.bandwidth_bytes_per_second = 64 * KIB * 1000;
    slow.window_wrs = 1;
    slow
}

fn broken(times: u64) -> FaultPlan {
    let failure = Fault::TransferError { status: Status::from_wc(12), vendor: 1 };
    (0..times).fold(FaultPlan::none(), |plan, nth| plan.with(failure, When::Nth(nth)))
}

/// `fixed`, so that no idle rail steals what waits.
fn fixed() -> EngineConfig {
    EngineConfig { policy: railring_core::Policy::Fixed, ..config() }
}

#[test]
fn what_waits_for_a_rail_that_is_switched_off_goes_to_another() {
    let rails = vec![slow("a", FaultPlan::none()), slow("b", FaultPlan::none())];
    let mut scene = Scene::new(rails, fixed());
    let (object, known) = scene.object("x", shape(16, 64 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    scene.push(read);
    scene.run_to(MS / 2);
    scene.engine.set_enabled("a", false).expect("a rail");
    let cqes = scene.finish();
    assert!(cqes.iter().all(|cqe| cqe.status().is_ok() && cqe.attempts() == 1));
    let lease = cqes.into_iter().next_back().and_then(|cqe| cqe.into_lease()).expect("it is back");
    assert_eq!(&lease.as_slice()[..known.bytes.len()], &known.bytes[..]);
    assert_eq!(scene.controls[0].stats().posted, 1, "what it had when it was switched off");
    assert_eq!(scene.controls[1].stats().posted, 15);
}

#[test]
fn what_waits_for_the_only_rail_when_it_is_switched_off_fails_at_once() {
    let mut scene = Scene::new(vec![slow("a", FaultPlan::none())], config());
    let (object, _) = scene.object("x", shape(16, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    scene.run_to(MS / 2);
    scene.engine.set_enabled("a", false).expect("a rail");
    let cqes = scene.finish();
    assert_eq!(cqes.last().and_then(|cqe| cqe.ended()), Some(Status::RAIL_DOWN));
    assert_eq!(scene.controls[0].stats().posted, 1);
    assert!(scene.now <= START.after(2 * MS), "with the piece that was under way");
}

#[test]
fn what_waits_for_a_rail_that_cools_down_goes_to_another() {
    let rails = vec![slow("a", broken(3)), slow("b", FaultPlan::none())];
    let mut scene = Scene::new(rails, fixed());
    let (object, known) = scene.object("x", shape(16, 64 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    scene.push(read);
    // It cools down for 5 ms and is tried again: until then it has nothing.
    while scene.controls[0].stats().posted < 3 {
        assert!(scene.step());
    }
    let third = scene.now.since(START);
    scene.run_to(third + 4 * MS);
    assert_eq!((scene.health(0), scene.controls[0].stats().posted), (RailHealth::Cooling, 3));
    let cqes = scene.finish();
    assert!(cqes.iter().all(|cqe| cqe.status().is_ok()));
    let lease = cqes.into_iter().next_back().and_then(|cqe| cqe.into_lease()).expect("it is back");
    assert_eq!(&lease.as_slice()[..known.bytes.len()], &known.bytes[..]);
}

#[test]
fn orders_that_wait_at_a_rail_go_back_when_it_is_switched_off() {
    // Two homes fill the window of one rail: what does not fit waits at the rail itself.
    let rails = vec![slow("a", FaultPlan::none()), slow("b", FaultPlan::none())];
    let mut config = fixed();
    config.limits.rail_pieces_max = 1;
    let mut scene = Scene::spread(rails, &[0, 1], config, 8, 1 << 20);
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 2), 0..2);
    let mut second = scene.engine.ring(railring_core::RingConfig {
        poller: Some(1),
        ..railring_core::RingConfig::default()
    });
    let second = second.as_mut().expect("a ring");
    let (one, two) = (scene.whole(&object), scene.whole(&object));
    scene.push(one);
    second.push(two).expect("accepted");
    second.submit();
    scene.run_to(MS / 2);
    scene.engine.set_enabled("a", false).expect("a rail");
    assert!(scene.finish().iter().all(|cqe| cqe.status().is_ok()));
    while second.in_flight() > 0 {
        while let Some(cqe) = second.pop() {
            assert!(cqe.status().is_ok());
        }
        assert!(second.in_flight() == 0 || scene.step());
    }
    assert_eq!(scene.controls[0].stats().posted, 1);
}

#[test]
fn a_read_of_many_stripes_waits_for_the_probe_of_the_only_rail() {
    let mut scene = Scene::new(vec![rail("a", broken(3))], config());
    let (object, _) = scene.object("x", shape(8, 64 * KIB, 1), 0..1);
    let (small, _) = scene.object("y", shape(1, 64 * KIB, 1), 0..1);
    assert_eq!(scene.read(&small), (Status::from_wc(12), 3));
    assert_eq!(scene.read(&object).0, Status::RAIL_DOWN, "at once while it cools down");
    scene.run_to(6 * MS);
    assert_eq!(scene.health(0), RailHealth::Probing);
    let read = scene.whole(&object);
    scene.push(read);
    while scene.controls[0].stats().posted < 4 {
        assert!(scene.step());
    }
    assert_eq!((scene.controls[0].stats().outstanding, scene.health(0)), (1, RailHealth::Probing));
    let cqes = scene.finish();
    assert!(cqes.iter().all(|cqe| (cqe.status(), cqe.attempts()) == (Status::OK, 1)));
}

#[test]
fn reads_that_wait_for_a_probe_that_fails_end_with_it() {
    // Three faults, and a probe that is never answered.
    let faults = broken(3).with(Fault::Lost, When::Nth(3));
    let mut scene = Scene::new(vec![rail("a", faults)], config());
    let (object, _) = scene.object("x", shape(8, 64 * KIB, 1), 0..1);
    let (small, _) = scene.object("y", shape(1, 64 * KIB, 1), 0..1);
    assert_eq!(scene.read(&small), (Status::from_wc(12), 3));
    scene.run_to(6 * MS);
    let read = scene.whole(&object).allow_partial();
    scene.push(read);
    let read = scene.whole(&small).user_data(9).timeout(std::time::Duration::from_millis(1));
    scene.push(read);
    let cqe = scene.next();
    assert_eq!((cqe.user_data(), cqe.ended()), (9, Some(Status::TIMED_OUT)), "its own deadline");
    let cqes = scene.finish();
    let count = |status| cqes.iter().filter(|cqe| cqe.status() == status).count();
    assert_eq!((count(Status::TIMED_OUT), count(Status::RAIL_DOWN)), (1, 7));
    assert_eq!(scene.controls[0].stats().posted, 4, "only the probe went");
    assert_eq!(scene.health(0), RailHealth::Cooling);
}

#[test]
fn while_another_rail_is_up_nothing_waits_for_a_probe() {
    let lossy = broken(3).with(Fault::Lost, When::Nth(3));
    let mut scene = Scene::new(vec![rail("a", lossy), rail("b", FaultPlan::none())], fixed());
    let (object, _) = scene.object("x", shape(6, 64 * KIB, 2), 0..2);
    assert_eq!(scene.read(&object).0, Status::OK);
    scene.run_to(6 * MS);
    assert_eq!(scene.health(0), RailHealth::Probing);
    // The probe is lost; the other stripes do not wait for its timeout.
    let read = scene.whole(&object);
    scene.push(read);
    for _ in 0..5 {
        let cqe = scene.next();
        assert_eq!((cqe.status(), cqe.attempts()), (Status::OK, 1));
    }
    assert!(scene.now < START.after(10 * MS));
    assert_eq!(scene.next().attempts(), 2, "the probe went elsewhere after its timeout");
}

/// What waits for a rail in the home of another poller need not wait any more, or must go
/// elsewhere: nothing but this tells that poller, if it sleeps.
#[test]
fn every_poller_is_told_when_a_rail_stands_otherwise() {
    let mut world = SimWorld::new(7);
    let mut rails = Vec::new();
    for (poller, name) in (0..).zip(["a", "b"]) {
        let (control, link) = world.add_rail(rail(name, FaultPlan::none())).expect("sensible");
        rails.push(Rail { control: control as _, link, poller });
    }
    let builder = EngineBuilder::new(rails).config(config());
    let mut engine = builder.build_virtual(START).expect("an engine");
    for on in [false, true] {
        for poller in [0, 1, 0] {
            while engine.turn_poller_at(poller, START) == Progress::Worked {}
        }
        assert!(engine.park_poller_at(0, START).is_some(), "there is nothing to do");
        engine.set_enabled("b", on).expect("there is such a rail");
        assert!(!engine.is_called(0), "it is the other's rail");
        engine.turn_poller_at(1, START);
        assert!(engine.is_called(0), "rail b is switched {on}, and poller 0 sleeps on");
        engine.rouse_poller(0);
    }
}
