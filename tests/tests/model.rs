//! How close the engine comes to what its rails can carry, in virtual time: the laws behind the
//! rows
//! `model-1` to `model-8`, `slow-rail` and `dead-rail`.

use railring_core::{EngineConfig, PoolConfig, Read, RingConfig};
use railring_sim::{Fault, FaultPlan, SimRailConfig, SimWorld, When};
use railring_tests::objects::{self, Shape};
use railring_tests::virtual_engine::{START, VirtualEngine};
use railring_transport::Nanos;

const RATE: u64 = 125_000_000;
const SHAPE: Shape =
    Shape { size_bytes: 64 << 20, stripe_bytes: 4 << 20, block_bytes: 65536, copies: 1 };

/// Nanoseconds that one read of the whole object takes, after one to warm up.
fn time_of(rails: Vec<SimRailConfig>) -> u64 {
    let mut world = SimWorld::new(11);
    let known = objects::put(&world, "m", SHAPE, &["server".to_owned()], 3);
    let mut sim = VirtualEngine::new(&mut world, rails, &[], EngineConfig::default());
    let object = sim.engine.open(&known.placement).expect("opens");
    let pool = PoolConfig { slots: 1, slot_bytes: 64 << 20, ..Default::default() };
    let pool = sim.engine.buffer_pool(pool).expect("a pool");
    let mut ring = sim.engine.ring(RingConfig::default()).expect("a ring");
    let mut time = 0;
    for _ in 0..2 {
        let begun = sim.clock.now();
        let lease = pool.take().expect("a lease");
        ring.push(Read::new(&object, 0..object.len(), lease)).expect("accepted");
        loop {
            let completion = sim.next(&mut ring).expect("a completion");
            assert!(completion.status().is_ok(), "{completion:?}");
            if completion.ended().is_some() {
                break;
            }
        }
        time = sim.clock.now().since(begun);
    }
    for stats in sim.engine.rail_stats() {
        println!("  {stats}");
    }
    time
}

fn rails(count: usize) -> Vec<SimRailConfig> {
    (0..count).map(|index| SimRailConfig::new(format!("rail{index}"))).collect()
}

/// The rate achieved, as a share of `capacity` bytes per second.
fn share(time_ns: u64, capacity: f64) -> f64 {
    let seconds = time_ns as f64 / 1e9;
    SHAPE.size_bytes as f64 / seconds / capacity
}

#[test]
fn one_to_eight_rails_carry_what_they_can() {
    for count in 1..=8 {
        let ratio = share(time_of(rails(count)), (RATE * count as u64) as f64);
        println!("model-{count}: {ratio:.4}");
        assert!(ratio >= 0.99, "{count} rails reach {ratio:.4} of their rate");
    }
}

#[test]
fn a_slow_rail_that_tells_nobody_costs_its_share() {
    let mut four = rails(4);
    four[2].bandwidth_bytes_per_second = RATE / 4;
    let ratio = share(time_of(four), RATE as f64 * 3.25);
    println!("slow-rail: {ratio:.4}");
    assert!(ratio >= 0.97, "{ratio:.4} of 3.25 rails");
}

#[test]
fn a_rail_that_dies_costs_its_detection_and_its_share() {
    let three = time_of(rails(3));
    let mut four = rails(4);
    // In the middle of the second read, which begins after three quarters of that time; for good.
    let at = Nanos(START.0 + three * 9 / 8);
    let fault = Fault::Disconnect { down_ns: 3_600_000_000_000 };
    four[1].faults = FaultPlan::none().with(fault, When::At(at));
    let time = time_of(four);
    println!("dead-rail: {:.4}", time as f64 / three as f64);
    assert!(time as f64 <= three as f64 * 1.15, "{time} against {three}");
}
