//! What the caller may decide, and what is refused.

mod fixture;

use fixture::{Fixture, Port, machines};
use railring_topology::assign::{AssignError, Pin, Placement, Rails, SamePort, Strictness};
use railring_topology::plan::{GroupKind, Plan, RailPath, ReasonCode, WarningCode};
use railring_topology::{CpuId, CpuSet, Machine, NodeId, Policy, assign, parse_rails};

fn set(text: &str) -> CpuSet {
    text.parse().expect("a cpulist")
}

fn pollers(plan: &Plan) -> Vec<u16> {
    plan.rails
        .iter()
        .map(|rail| plan.poller_of(rail).and_then(|p| p.cpu).expect("bound").0)
        .collect()
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.rails.iter().map(|rail| rail.name.as_str()).collect()
}

fn warned(plan: &Plan, code: WarningCode) -> bool {
    plan.warnings.iter().any(|warning| warning.code == code && !warning.todo.is_empty())
}

fn four() -> Machine {
    machines::four_adapters_out_of_order().read()
}

#[test]
fn cpus_that_are_named_are_used_and_others_reported() {
    let policy = Policy { cpus: Some(set("2,6,900")), ..Policy::default() };
    let plan = assign(&four(), &policy).expect("a plan");
    assert_eq!(pollers(&plan), [2, 2, 6, 6]);
    assert_eq!(plan.dropped_cpus, set("900"));
    assert!(warned(&plan, WarningCode::CpusDropped) && warned(&plan, WarningCode::SharedPoller));
    let strict = Policy { strictness: Strictness::Strict, ..policy };
    let refused = assign(&four(), &strict);
    assert_eq!(refused, Err(AssignError::Dropped { dropped: set("900") }));
    let absent = Policy { cpus: Some(set("900")), ..Policy::default() };
    assert!(matches!(assign(&four(), &absent), Err(AssignError::NoCpus { .. })));
}

#[test]
fn an_isolated_cpu_outside_the_affinity_is_usable_when_named() {
    let fixture = machines::four_adapters_out_of_order();
    fixture.file("sys/devices/system/cpu/isolated", "3");
    fixture.file("proc/self/status", "Cpus_allowed_list:\t0-2,4-15");
    let machine = fixture.read();
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    assert!(!pollers(&plan).contains(&3));
    let named = Policy { cpus: Some(set("3")), ..Policy::default() };
    assert_eq!(pollers(&assign(&machine, &named).expect("a plan")), [3, 3, 3, 3]);
}

#[test]
fn a_node_and_a_memory_node_that_are_named_are_used() {
    let policy =
        Policy { node: Some(NodeId(1)), memory_node: Some(NodeId(0)), ..Policy::default() };
    let plan = assign(&four(), &policy).expect("a plan");
    assert!(plan.pollers.iter().all(|poller| poller.node == Some(NodeId(1))));
    assert!(plan.rails.iter().all(|rail| rail.memory_node == Some(NodeId(0))));
    assert!(warned(&plan, WarningCode::FarPoller) && warned(&plan, WarningCode::FarMemory));
    let absent = Policy { node: Some(NodeId(9)), ..Policy::default() };
    assert!(matches!(assign(&four(), &absent), Err(AssignError::NoSuchNode { .. })));
    let machine = machines::nodes_without_cpus_or_memory().read();
    let empty = Policy { memory_node: Some(NodeId(1)), ..Policy::default() };
    assert!(matches!(assign(&machine, &empty), Err(AssignError::NoMemory { .. })));
}

#[test]
fn pins_go_by_name_number_or_device_and_must_be_possible() {
    let pin = |text: &str| text.parse::<Pin>().expect("RAIL=CPU");
    let pins = vec![pin("mlx5_1:1=7"), pin("1=7"), pin("mlx5_0=0")];
    let plan = assign(&four(), &Policy { pins, ..Policy::default() }).expect("a plan");
    assert_eq!(pollers(&plan), [7, 7, 4, 0]);
    assert!(plan.rails[0].reasons_about(ReasonCode::Override).count() > 0);
    let unknown = Policy { pins: vec![pin("eth9=1")], ..Policy::default() };
    assert!(matches!(assign(&four(), &unknown), Err(AssignError::NoSuchRail { .. })));
    let offline = Policy { pins: vec![pin("0=99")], ..Policy::default() };
    assert!(matches!(assign(&four(), &offline), Err(AssignError::NoCpus { .. })));
    for bad in ["", "0", "=1", "0=", "0=x", "0=1-2", "0=70000"] {
        assert!(bad.parse::<Pin>().is_err(), "{bad:?}");
    }
}

#[test]
fn the_placement_policies_do_what_they_say() {
    let compact = Policy { placement: Placement::Compact, ..Policy::default() };
    let plan = assign(&four(), &compact).expect("a plan");
    assert_eq!(pollers(&plan), [1, 1, 4, 4]);
    let unpinned = Policy { placement: Placement::Unpinned, ..Policy::default() };
    let plan = assign(&four(), &unpinned).expect("a plan");
    assert_eq!(plan.pollers.len(), 4);
    assert!(plan.pollers.iter().all(|poller| poller.cpu.is_none() && poller.cpus == set("0-15")));
    for (text, placement) in [
        ("near", Placement::Near),
        ("compact", Placement::Compact),
        ("unpinned", Placement::Unpinned),
    ] {
        assert_eq!(text.parse(), Ok(placement));
    }
    assert!("fast".parse::<Placement>().is_err());
}

#[test]
fn fewer_rails_are_spread_over_cards_and_switches() {
    let two = Policy { rails_max: Some(2), ..Policy::default() };
    let machine = machines::narrow_uplinks().read();
    let plan = assign(&machine, &two).expect("a plan");
    assert_eq!(names(&plan), ["hca00:1", "hca10:1"]);
    assert!(plan.groups.is_empty());
    let mut fixture = machines::two_ports_of_one_card();
    fixture.pci("0000:c1:00.0", machines::INFINIBAND, 1);
    fixture.rdma("0000:c1:00.0", "second", &[Port::INFINIBAND]);
    let plan = assign(&fixture.read(), &two).expect("a plan");
    assert_eq!(names(&plan), ["mlx5_0:1", "second:1"]);
    let none = Policy { rails_max: Some(0), ..Policy::default() };
    assert!(assign(&machine, &none).expect("a plan").rails.is_empty());
}

#[test]
fn virtual_functions_are_rails_when_forced_and_grouped() {
    let machine = machines::virtual_functions().read();
    let forced = Policy { same_port: SamePort::All, ..Policy::default() };
    let plan = assign(&machine, &forced).expect("a plan");
    assert_eq!(names(&plan), ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1"]);
    assert_eq!(plan.expected.bits_per_second, Some(100_000_000_000));
    assert!(plan.groups.iter().any(|g| g.kind == GroupKind::SamePort && g.rails == [0, 1, 2]));
    let by_hand = parse_rails(&["mlx5_2", "mlx5_1:1,weight=3"]).expect("good rails");
    let given = Policy { rails: Rails::Given(by_hand), ..Policy::default() };
    let plan = assign(&machine, &given).expect("a plan");
    assert_eq!(names(&plan), ["mlx5_2:1", "mlx5_1:1"]);
    assert_eq!(plan.rails[1].weight, Some(3));
}

#[test]
fn rails_given_by_hand_are_found_or_refused() {
    let machine = machines::twelve_ports().read();
    let given = |specs: &[&str]| {
        let rails = Rails::Given(parse_rails(specs).expect("good rails"));
        assign(&machine, &Policy { rails, ..Policy::default() })
    };
    let error = given(&["mlx5_7"]).expect_err("no such device");
    assert!(error.to_string().contains("known are: plane0, portless"), "{error}");
    assert!(matches!(given(&["plane0"]), Err(AssignError::WhichPort { .. })));
    assert!(matches!(given(&["plane0:13"]), Err(AssignError::NoSuchPort { .. })));
    let plan =
        given(&["plane0:1", "plane0:3,cpu=9,memory-node=0,name=x", "sim:a"]).expect("a plan");
    assert!(warned(&plan, WarningCode::NotUsable), "port 1 is down");
    assert_eq!(names(&plan), ["plane0:1", "x", "a"]);
    assert_eq!(pollers(&plan)[1], 9);
    assert_eq!(plan.rails[1].memory_node, Some(NodeId(0)));
}

#[test]
fn only_active_ports_become_rails_and_none_is_an_error_that_says_why() {
    let machine = machines::ports_down().read();
    let plan = assign(&machine, &Policy::default()).expect("an empty plan");
    let error = plan.require_rails().expect_err("both ports are down");
    assert!(error.to_string().contains("mlx5_0:1: the port is down"), "{error}");
    let mut fixture = machines::ports_down();
    fixture.pci("0000:c1:00.0", machines::INFINIBAND, 1);
    fixture.rdma("0000:c1:00.0", "far_up", &[Port::INFINIBAND]);
    let plan = assign(&fixture.read(), &Policy::default()).expect("a plan");
    assert_eq!(names(&plan), ["far_up:1"], "a live far port comes before a dead near one");
}

#[test]
fn devices_can_be_allowed_and_denied() {
    let only = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let policy = Policy { only: only(&["mlx5_0", "mlx5_3:1"]), ..Policy::default() };
    assert_eq!(names(&assign(&four(), &policy).expect("a plan")), ["mlx5_3:1", "mlx5_0:1"]);
    let policy = Policy { except: only(&["mlx5_1"]), ..Policy::default() };
    assert_eq!(names(&assign(&four(), &policy).expect("a plan")).len(), 3);
}

#[test]
fn network_devices_are_rails_where_there_is_no_rdma() {
    let mut f = machines::two_sockets();
    f.pci("0000:21:00.0", machines::ETHERNET, 0).net("0000:21:00.0", "ens1", true);
    f.pci("0000:81:00.0", machines::ETHERNET, 1).net("0000:81:00.0", "ens2", true);
    f.pci("0000:82:00.0", machines::ETHERNET, 1).net("0000:82:00.0", "ens3", false);
    f.net("", "docker0", true).file("sys/devices/virtual/net/docker0/bridge/x", "");
    f.net("", "veth7", true).net("", "lo", true);
    f.file("sys/devices/virtual/net/lo/type", "772");
    let addresses = [
        "ens1 192.0.2.1/24",
        "ens2 fe80::2/64",
        "ens2 192.0.2.9/24",
        "lo 127.0.0.1/8",
        "docker0 172.17.0.1/16",
        "veth7 192.0.2.77/24",
    ];
    f.file("railring/addresses", &addresses.join("\n"));
    let plan = assign(&f.read(), &Policy::default()).expect("a plan");
    assert_eq!(names(&plan), ["ens1", "ens2"]);
    let RailPath::Tcp { source, .. } = &plan.rails[1].path else { panic!("TCP") };
    assert_eq!(source.map(|address| address.to_string()).as_deref(), Some("192.0.2.9"));
    let given = parse_rails(&["tcp:192.0.2.9", "tcp:ens3"]).expect("good rails");
    let policy = Policy { rails: Rails::Given(given), ..Policy::default() };
    let plan = assign(&f.read(), &policy).expect("a plan");
    assert_eq!(names(&plan), ["ens2", "ens3"]);
    assert!(warned(&plan, WarningCode::NotUsable), "ens3 is down");
}

#[test]
fn interrupts_move_the_poller_when_another_core_is_as_near() {
    let mut f = machines::two_sockets();
    f.pci("0000:21:00.0", machines::ETHERNET, 0);
    f.rdma("0000:21:00.0", "mlx5_0", &[Port::INFINIBAND]);
    for (irq, cpu) in [(40, "1"), (41, "10"), (42, "9")] {
        f.file(&format!("{}/msi_irqs/{irq}", f.folder("0000:21:00.0")), "msix");
        f.file(&format!("proc/irq/{irq}/effective_affinity_list"), cpu);
    }
    let plan = assign(&f.read(), &Policy::default()).expect("a plan");
    assert_eq!(pollers(&plan), [3]);
}

#[test]
fn what_a_mask_shows_is_not_the_size_of_the_machine() {
    let f = machines::four_adapters_out_of_order();
    f.file("proc/self/status", "Cpus_allowed_list:\t0");
    let machine = f.read();
    assert_eq!(machine.cpus.online, set("0-15"));
    assert_eq!(machine.allowed(), set("0"));
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    assert_eq!(plan.pollers.len(), 1);
    assert_eq!(plan.pollers[0].cpu, Some(CpuId(0)));
}

#[test]
fn a_bare_fixture_has_no_cpus_and_no_plan_for_rails() {
    let f = Fixture::new();
    let machine = f.read();
    assert!(assign(&machine, &Policy::default()).expect("an empty plan").rails.is_empty());
    let rails = Rails::Given(parse_rails(&["sim:a"]).expect("a good rail"));
    let refused = assign(&machine, &Policy { rails, ..Policy::default() });
    assert_eq!(refused, Err(AssignError::CpusUnknown { rails: 1 }));
}

#[test]
fn no_more_pollers_than_asked_for() {
    for placement in [Placement::Near, Placement::Compact, Placement::Unpinned] {
        for most in [1, 2, 3, 9] {
            let policy = Policy { pollers_max: Some(most), placement, ..Policy::default() };
            let plan = assign(&four(), &policy).expect("a plan");
            assert!(plan.pollers.len() <= most, "{placement:?} {most}");
            let served: usize = plan.pollers.iter().map(|poller| poller.rails.len()).sum();
            assert_eq!(served, 4);
            for rail in &plan.rails {
                let poller = plan.poller_of(rail).expect("a poller");
                assert!(poller.rails.contains(&rail.number));
            }
        }
    }
    let one = Policy { pollers_max: Some(1), ..Policy::default() };
    let plan = assign(&four(), &one).expect("a plan");
    let why: Vec<&str> = plan.rails[0].reasons_about(ReasonCode::Shared).collect();
    assert!(why[0].contains("at most 1 poller was asked for"), "{why:?}");
    let none = Policy { pollers_max: Some(0), ..Policy::default() };
    assert_eq!(assign(&four(), &none).expect("a plan").pollers.len(), 1);
}

#[test]
fn an_adapter_without_an_rdma_device_is_listed_with_why() {
    let mut fixture = machines::two_sockets();
    fixture.pci("0000:21:00.0", machines::INFINIBAND, 0);
    let plan = assign(&fixture.read(), &Policy::default()).expect("an empty plan");
    let error = plan.require_rails().expect_err("no RDMA device");
    assert!(error.to_string().contains("0000:21:00.0: an InfiniBand adapter without"), "{error}");
}
