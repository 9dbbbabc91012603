//! Laws of a simulated rail without faults: throughput, latency, byte-exactness, conservation.

mod support;

use proptest::prelude::*;
use railring_sim::{Latency, SimRailConfig};
use railring_transport::{Link, Nanos, Outcome};
use support::Rig;

const MIB: usize = 1 << 20;

#[test]
fn a_share_of_sixteen_stripes_takes_the_time_that_its_bytes_need() {
    for rails in [4usize, 8] {
        let stripes = 16 / rails;
        let config = SimRailConfig::new("rail0");
        let latency_ns = 120_000;
        let mut rig = Rig::new(3, stripes * 4 * MIB, config);
        rig.post(u32::try_from(stripes).expect("at most 16"), 4 * MIB);
        let ended = rig.run();
        assert_eq!(ended.len(), stripes);
        assert!(ended.iter().all(|end| rig.is_exact(&end.part)));
        let ideal_ns = (stripes * 4 * MIB * 8) as u64; // 125 MB/s is 8 ns a byte
        let took_ns = ended.iter().map(|end| end.at.0).max().expect("some");
        assert!(took_ns >= ideal_ns && took_ns <= ideal_ns + latency_ns, "{took_ns} {ideal_ns}");
        assert!(ideal_ns * 100 >= took_ns * 99, "{rails} rails: {ideal_ns} of {took_ns}");
    }
}

#[test]
fn latencies_overlap_and_small_requests_are_not_rounded_up() {
    let latency = Latency::Fixed { latency_ns: 1_000_000 };
    let config = SimRailConfig {
        bandwidth_bytes_per_second: 3_000_000_000,
        latency,
        ..SimRailConfig::new("rail0")
    };
    let mut rig = Rig::new(3, 200 * 100, config);
    rig.post(200, 100);
    let last = rig.run().last().expect("200 requests").at;
    // 100 B take 33 1/3 ns; 200 of them 6,667, not 200 * 34.
    assert_eq!(last, Nanos(1_000_000 + 6_667));
}

#[test]
fn reads_past_the_end_are_short_or_fail() {
    let mut rig = Rig::new(3, 1000, SimRailConfig::new("rail0"));
    let mut request = rig.request(0, 100);
    (request.offset, request.bytes_min) = (950, 50);
    rig.link.queue(request).expect("there is room");
    let mut request = rig.request(1, 100);
    request.offset = 950;
    rig.link.queue(request).expect("there is room");
    let mut request = rig.request(2, 100);
    (request.offset, request.bytes_min) = (u64::MAX, 0);
    rig.link.queue(request).expect("there is room");
    rig.link.commit(rig.now);
    let mut ended = rig.run();
    ended.sort_by_key(|end| end.wr.slot);
    let status = sq_cq::Status::SHORT_READ;
    let outcomes: Vec<Outcome> = ended.iter().map(|end| end.outcome).collect();
    let short = Outcome::Failed { status, vendor: 0 };
    assert_eq!(outcomes, [Outcome::Done { bytes: 50 }, short, Outcome::Done { bytes: 0 }]);
    assert_eq!(ended[0].part.as_slice()[..50], rig.content[950..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is queued, whenever, each part comes back exactly once, exact, no earlier than its
    /// bytes could have come; and the link ends with nothing.
    #[test]
    fn every_part_comes_back_once_and_exact(
        seed: u64,
        rate in 1u64..20_000_000_000,
        mean_ns in 0u64..1_000_000,
        requests in prop::collection::vec((0usize..5_000, 0u64..100_000), 1..60),
    ) {
        let config = SimRailConfig {
            bandwidth_bytes_per_second: rate,
            latency: Latency::Uniform { mean_ns, spread_ns: mean_ns / 3 },
            ..SimRailConfig::new("rail0")
        };
        let total: usize = requests.iter().map(|(bytes, _)| bytes).sum();
        let mut rig = Rig::new(seed, total.max(1), config);
        let mut ended = Vec::new();
        for (slot, (bytes, pause_ns)) in (0u32..).zip(&requests) {
            let request = rig.request(slot, *bytes);
            rig.link.queue(request).expect("there is room");
            rig.link.commit(rig.now);
            ended.extend(rig.run_until(rig.now.after(*pause_ns)));
        }
        ended.extend(rig.run());
        prop_assert_eq!(ended.len(), requests.len());
        let least_ns = mean_ns - mean_ns / 3;
        let work_ns = (total as u128 * 1_000_000_000).div_ceil(u128::from(rate));
        prop_assert!(u128::from(rig.now.0) >= work_ns + u128::from(least_ns));
        let mut seen = vec![false; requests.len()];
        for end in ended {
            prop_assert!(!std::mem::replace(&mut seen[end.wr.slot as usize], true));
            prop_assert_eq!(end.done(), Some(end.part.len() as u64));
            prop_assert!(rig.is_exact(&end.part));
            rig.loan.repay(end.part).expect("of this loan");
        }
        let stats = rig.control.stats();
        prop_assert_eq!((stats.outstanding, stats.fired.total()), (0, 0));
        prop_assert_eq!(stats.delivered_bytes, total as u64);
        prop_assert_eq!(rig.link.next_event(), None);
    }
}
