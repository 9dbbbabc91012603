//! Findings from machines that are not there: each thing that can be wrong is said, with a way out.

use std::collections::BTreeSet;

use railring::topology::machine::{Gid, Machine};

use super::seen::Door;
use super::*;

fn port(state: PortState, addresses: &[&str]) -> RdmaPort {
    let gid = |(index, address): (usize, &&str)| Gid {
        index: u16::try_from(index).expect("few"),
        kind: GidKind::RoceV2,
        address: address.parse().expect("an address"),
        net: Some("nic0".to_owned()),
    };
    RdmaPort {
        number: 1,
        state: Some(state),
        physical_state: None,
        link_layer: Some(LinkLayer::Ethernet),
        bits_per_second: None,
        mtu_bytes: Some(4096),
        net: Some("nic0".to_owned()),
        gids: addresses.iter().enumerate().map(gid).collect(),
    }
}

/// A software device that lacks nothing.
fn whole(port: RdmaPort) -> Seen {
    let device = RdmaDevice {
        name: "rxe0".to_owned(),
        pci: None,
        driver: None,
        node_guid: None,
        system_guid: None,
        locality: Default::default(),
        ports: vec![port],
    };
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Seen {
        machine: Machine { rdma: vec![device], ..Machine::default() },
        doors: vec![Door {
            path: "/dev/infiniband/uverbs0".into(),
            device: "rxe0".to_owned(),
            state: DoorState::Open,
        }],
        modules: names(&["ib_uverbs", "rdma_rxe"]),
        libraries: LIBRARIES.iter().copied().collect(),
        providers: names(&["rxe", "mlx5"]),
    }
}

fn good() -> Seen {
    whole(port(PortState::Active, &["fe80::1", "::ffff:10.7.0.1"]))
}

/// The one finding that is not good.
fn wrong(seen: &Seen) -> Finding {
    let mut bad = judge(seen);
    bad.retain(|finding| finding.state != State::Good);
    assert_eq!(bad.len(), 1, "{bad:?}");
    let finding = bad.remove(0);
    assert!(finding.mend.is_some(), "{finding:?}");
    finding
}

#[test]
fn a_whole_device_is_good_and_says_its_gid() {
    let findings = judge(&good());
    assert!(findings.iter().all(|finding| finding.state == State::Good), "{findings:?}");
    let port = &findings[0];
    assert!(port.found.contains("1: 10.7.0.1 RoCE v2 nic0"), "{port:?}");
    assert!(port.meaning.contains("GID index 1"), "{port:?}");
}

#[test]
fn a_machine_without_rdma_is_not_broken() {
    let finding = wrong(&Seen::default());
    assert_eq!(finding.state, State::Absent);
    assert!(finding.mend.is_some_and(|mend| mend.contains("modprobe rdma_rxe")));
}

#[test]
fn a_port_that_is_down_is_absent_and_a_machine_of_such_ports_broken() {
    let mut seen = good();
    seen.machine.rdma[0].ports.push(RdmaPort { number: 2, ..port(PortState::Down, &[]) });
    let finding = wrong(&seen);
    assert_eq!((&*finding.check, finding.state), ("rdma rxe0/2", State::Absent));
    let seen = whole(port(PortState::Down, &[]));
    let findings = judge(&seen);
    let none = findings.iter().find(|finding| finding.found == "no active port");
    assert_eq!(none.map(|finding| finding.state), Some(State::Broken), "{findings:?}");
}

#[test]
fn a_port_without_a_routable_gid_prints_its_table() {
    let finding = wrong(&whole(port(PortState::Active, &["fe80::1"])));
    assert_eq!(finding.state, State::Broken);
    assert!(finding.meaning.contains("0: RoCE v2 fe80::1"), "{finding:?}");
}

#[test]
fn doors_that_do_not_open_say_why() {
    let mut seen = good();
    seen.doors[0].state = DoorState::Forbidden;
    assert!(wrong(&seen).found.contains("no permission"));
    seen.doors[0].state = DoorState::NoNode;
    assert!(wrong(&seen).found.contains("is not there"));
    seen.doors.clear();
    assert!(wrong(&seen).found.contains("offers no device file"));
    seen.modules.remove("ib_uverbs");
    assert!(wrong(&seen).found.contains("ib_uverbs is not loaded"));
}

#[test]
fn missing_libraries_and_drivers_are_named() {
    let mut seen = good();
    seen.libraries.remove("librdmacm.so.1");
    assert!(wrong(&seen).found.ends_with("librdmacm.so.1"));
    let mut seen = good();
    seen.providers = BTreeSet::from(["mlx5".to_owned()]);
    assert!(wrong(&seen).found.contains("driver rxe is not installed"));
    seen.machine.rdma[0].driver = Some("mlx5_core".to_owned());
    assert!(judge(&seen).iter().all(|finding| finding.state == State::Good));
}

#[test]
fn little_lockable_memory_is_said_with_the_budget() {
    let limit = MemlockLimit { limit_bytes: Some(8 << 20), ipc_lock: false };
    let finding = memlock(limit).expect("a finite budget");
    assert_eq!(finding.state, State::Slower);
    assert!(finding.found.contains("6.4 MiB"), "{finding:?}");
    assert!(memlock(MemlockLimit { ipc_lock: true, ..limit }).is_none());
}
