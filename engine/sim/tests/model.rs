//! The capacity model and the simulation agree: whole stripes over one to eight simulated rails
//! take the time that the model says.

mod support;

use railring_sim::{Latency, ModelConfig, ModelRail, SimRailConfig, capacity_rows};
use support::Rig;

const STRIPES: usize = 16;
const STRIPE_BYTES: usize = 128 << 10;
const BANDWIDTH: u64 = 125_000_000;
const LATENCY_NS: u64 = 100_000;

/// When a rail that is given `stripes` stripes at once has delivered the last.
fn simulate(stripes: usize) -> u64 {
    let config = SimRailConfig {
        bandwidth_bytes_per_second: BANDWIDTH,
        latency: Latency::Fixed { latency_ns: LATENCY_NS },
        ..SimRailConfig::new("rail0")
    };
    let mut rig = Rig::new(1, stripes * STRIPE_BYTES, config);
    rig.post(u32::try_from(stripes).expect("at most 16"), STRIPE_BYTES);
    rig.run().iter().map(|end| end.at.0).max().expect("at least one stripe")
}

#[test]
fn whole_stripes_take_the_time_that_the_model_says() {
    let rail = ModelRail {
        bandwidth_bytes_per_second: BANDWIDTH,
        latency_ns: LATENCY_NS,
        window_pieces: 256,
    };
    let rows = capacity_rows(&ModelConfig {
        object_bytes: (STRIPES * STRIPE_BYTES) as u64,
        stripe_bytes: STRIPE_BYTES as u64,
        piece_bytes: STRIPE_BYTES as u64,
        rails: vec![rail; 8],
        verify_bytes_per_second: None,
    })
    .expect("valid");
    for row in rows {
        let simulated_ns = simulate(STRIPES.div_ceil(row.rails)) as f64;
        let off = (row.times.total_ns() - simulated_ns).abs();
        assert!(off <= 2.0, "{} rails: {row:?} against {simulated_ns} ns", row.rails);
    }
}
