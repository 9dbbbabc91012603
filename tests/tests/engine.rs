//! The engine over simulated rails without faults: bytes, ranges, stripes, memory.

use railring_core::{EngineConfig, PoolConfig, Read, RingConfig};
use railring_sim::{SimRailConfig, SimWorld};
use railring_tests::objects::{self, Shape};
use railring_tests::virtual_engine::VirtualEngine;
use sq_cq::Proof;

fn endpoints(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("server{index}")).collect()
}

#[test]
fn a_whole_object_over_two_rails_is_byte_exact() {
    let mut world = SimWorld::new(1);
    let shape =
        Shape { size_bytes: (5 << 20) + 17, stripe_bytes: 1 << 20, block_bytes: 65536, copies: 1 };
    let known = objects::put(&world, "a", shape, &endpoints(2), 7);
    let rails = vec![SimRailConfig::new("r0"), SimRailConfig::new("r1")];
    let mut sim = VirtualEngine::new(&mut world, rails, &[0, 1], EngineConfig::default());
    let object = sim.engine.open(&known.placement).expect("opens");
    let pool = sim
        .engine
        .buffer_pool(PoolConfig { slots: 2, slot_bytes: 8 << 20, ..Default::default() })
        .expect("a pool");
    let mut ring = sim.engine.ring(RingConfig::default()).expect("a ring");
    let lease = pool.take().expect("a lease");
    ring.push(Read::new(&object, 0..object.len(), lease).user_data(9)).expect("accepted");
    let mut seen = 0;
    let lease = loop {
        let completion = sim.next(&mut ring).expect("a completion");
        assert!(completion.status().is_ok(), "{:?}", completion);
        assert_eq!(completion.user_data(), 9);
        assert_eq!(completion.proof(), Proof::Stripe);
        let start = usize::from(completion.stripe()) << 20;
        let stripe = ring.bytes(&completion).expect("readable");
        assert_eq!(stripe, &known.bytes[start..start + stripe.len()]);
        seen += 1;
        if completion.ended().is_some() {
            assert_eq!(completion.total_bytes(), object.len());
            break completion.into_lease().expect("the last brings the lease");
        }
    };
    assert_eq!(seen, 6);
    assert_eq!(&lease.as_slice()[..known.bytes.len()], &known.bytes[..]);
}
