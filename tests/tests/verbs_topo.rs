//! In the guest: the plan finds a rail on each RDMA device, near the device's own node, and pollers
//! placed by it run there, read back from the kernel.

use railring::topology::assign::{Policy, Rails};
use railring::topology::plan::RailPath;
use railring::topology::render::{TextOptions, text};
use railring::topology::{Discovery, NodeId, assign, parse_rails};
use railring::{Engine, RailSet, Strictness};
use railring_tests::guest;

#[test]
fn the_plan_has_a_rail_per_device_and_a_poller_on_each_node() {
    let test = "the_plan_has_a_rail_per_device_and_a_poller_on_each_node";
    let Some(rails) = guest::rails(test) else { return };
    let machine = Discovery::live().read().expect("sysfs is there");
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    let shown = text(&machine, Some(&plan), TextOptions::default());
    println!("{shown}");
    assert_eq!(plan.rails.len(), rails as usize, "{shown}");
    for (index, rail) in (0_u16..).zip(&plan.rails) {
        let RailPath::Rdma { device, port, gid, .. } = &rail.path else { panic!("{rail:?}") };
        assert!(gid.is_some(), "no GID for {device}:{port}");
        // By PCI address, and so by node: device n is on node n mod 2.
        let number: u16 = device.trim_start_matches("rxe").parse().expect("rxeN");
        let node = NodeId(number % 2);
        assert_eq!((rail.node, rail.memory_node), (Some(node), Some(node)), "{shown}");
        let poller = plan.poller_of(rail).expect("a poller");
        assert_eq!(poller.node, Some(node), "{shown}");
        assert_eq!(rail.number, index);
    }
}

#[test]
fn pollers_near_each_device_run_where_the_plan_says() {
    let test = "pollers_near_each_device_run_where_the_plan_says";
    let Some(rails) = guest::rails(test) else { return };
    // The places of the RDMA rails, for rails that need no peer.
    let specs: Vec<String> =
        (0..rails).map(|rail| format!("null:rail{rail},node={}", rail % 2)).collect();
    let given = Rails::Given(parse_rails(&specs).expect("good rails"));
    let policy = Policy { rails: given, ..Policy::default() };
    let set = RailSet::discover_with(&Discovery::live(), &policy).expect("null rails");
    let engine = Engine::builder().rails(set).strictness(Strictness::Strict).build();
    let engine = engine.expect("every poller is where it was to be");
    let machine = Discovery::live().read().expect("sysfs is there");
    for (rail, stats) in (0..rails).zip(engine.rail_stats()) {
        let cpu = stats.pinned_cpu.expect("read back");
        assert_eq!(stats.asked_cpu, Some(cpu));
        let cpu = railring::topology::CpuId(u16::try_from(cpu).expect("small"));
        let node = NodeId(u16::try_from(rail % 2).expect("0 or 1"));
        assert_eq!(machine.node_of(cpu), Some(node), "{stats}");
    }
}

#[test]
fn the_rails_that_are_found_are_polled_on_their_own_nodes() {
    let test = "the_rails_that_are_found_are_polled_on_their_own_nodes";
    let Some(rails) = guest::rails(test) else { return };
    let set = RailSet::discover().expect("the machine can be read");
    assert_eq!(set.len(), rails as usize, "unused: {:?}", set.unused());
    let before = railring::topology::allowed_cpus().expect("readable");
    let engine = Engine::builder().rails(set).strictness(Strictness::Strict).build();
    let engine = engine.expect("every poller is where it was to be");
    let machine = Discovery::live().read().expect("sysfs is there");
    for rail in engine.rail_stats() {
        println!("{rail}");
        let number = rail.info.name.trim_start_matches("rxe").split(':').next();
        let number: u32 = number.and_then(|text| text.parse().ok()).expect("rxeN:1");
        assert_eq!((rail.node, rail.memory_node), (Some(number % 2), Some(number % 2)), "{rail}");
        let cpu = rail.pinned_cpu.expect("read back");
        assert_eq!(rail.asked_cpu, Some(cpu));
        let node = machine.node_of(railring::topology::CpuId(u16::try_from(cpu).expect("small")));
        assert_eq!(node.map(|node| u32::from(node.0)), rail.node, "{rail}");
        assert_eq!(rail.memory, railring::dma::Placement::Node(number % 2), "{rail}");
    }
    assert_eq!(railring::topology::allowed_cpus().expect("readable"), before, "the caller's own");
}
