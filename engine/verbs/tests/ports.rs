//! Which port is used, on machines that are only described.

use railring_topology::Machine;
use railring_topology::machine::{
    Gid, GidKind, LinkLayer, Locality, NetDevice, NetKind, PortState, RdmaDevice, RdmaPort,
};
use railring_verbs::{LocalPort, PortError};

fn port(number: u32, state: PortState, gids: &[(u16, GidKind, &str)]) -> RdmaPort {
    let gid = |&(index, kind, address): &(u16, GidKind, &str)| Gid {
        index,
        kind,
        address: address.parse().expect("an address"),
        net: Some("eth0".into()),
    };
    RdmaPort {
        number,
        state: Some(state),
        physical_state: None,
        link_layer: Some(LinkLayer::Ethernet),
        bits_per_second: None,
        mtu_bytes: Some(4096),
        net: Some("eth0".into()),
        gids: gids.iter().map(gid).collect(),
    }
}

fn machine(ports: Vec<RdmaPort>, net_state: &str) -> Machine {
    let device = RdmaDevice {
        name: "mlx5_0".into(),
        pci: None,
        driver: None,
        node_guid: None,
        system_guid: None,
        locality: Locality::default(),
        ports,
    };
    let net = NetDevice {
        name: "eth0".into(),
        kind: NetKind::Physical,
        pci: None,
        locality: Locality::default(),
        mtu_bytes: Some(9000),
        carrier: Some(net_state == "up"),
        state: Some(net_state.into()),
        bits_per_second: None,
        hardware_address: None,
        addresses: Vec::new(),
        master: None,
        members: Vec::new(),
        switch_id: None,
        port_name: None,
    };
    Machine { rdma: vec![device], net: vec![net], ..Machine::default() }
}

const GOOD: &[(u16, GidKind, &str)] = &[
    (0, GidKind::InfiniBandOrRoceV1, "fe80::1"),
    (1, GidKind::RoceV2, "fe80::1"),
    (3, GidKind::RoceV2, "::ffff:10.7.0.1"),
];

#[test]
fn the_first_active_port_and_its_routable_address_are_used() {
    let ports = vec![port(1, PortState::Down, GOOD), port(2, PortState::Active, GOOD)];
    let machine = machine(ports, "up");
    let found = LocalPort::find(&machine, "mlx5_0", None, None).expect("port 2 is good");
    assert_eq!((found.port, found.gid.index), (2, 3));
    let explicit = LocalPort::find(&machine, "mlx5_0", Some(2), Some(1)).expect("it is in use");
    assert_eq!(explicit.gid.index, 1, "an explicit index wins");
}

#[test]
fn what_cannot_be_used_is_refused_with_its_reason() {
    let find = |machine: &Machine, device: &str, port, gid| {
        LocalPort::find(machine, device, port, gid).expect_err("nothing usable")
    };
    let none = find(&Machine::default(), "mlx5_0", None, None);
    assert!(matches!(none, PortError::NoDevices { .. }), "{none}");
    let down = machine(vec![port(1, PortState::Down, GOOD)], "up");
    let other = find(&down, "mlx5_1", None, None);
    assert!(other.to_string().contains("there are: mlx5_0"), "{other}");
    let missing = find(&down, "mlx5_0", Some(2), None);
    assert!(missing.to_string().contains("it has: 1 (down)"), "{missing}");
    let explicit = find(&down, "mlx5_0", Some(1), None);
    assert!(matches!(explicit, PortError::Down { port: 1, .. }), "{explicit}");
    let no_active = find(&down, "mlx5_0", None, None);
    assert!(no_active.to_string().contains("no active port; its ports: 1 (down)"), "{no_active}");
}

#[test]
fn an_address_that_does_not_do_is_shown_with_the_whole_table() {
    let only_local = &GOOD[..2];
    let cases = [
        (machine(vec![port(1, PortState::Active, only_local)], "up"), None),
        (machine(vec![port(1, PortState::Active, GOOD)], "down"), None),
        (machine(vec![port(1, PortState::Active, GOOD)], "up"), Some(2)),
        (machine(vec![port(1, PortState::Active, GOOD)], "up"), Some(255)),
    ];
    for (machine, wanted) in cases {
        let refused = LocalPort::find(&machine, "mlx5_0", None, wanted).expect_err("no such gid");
        assert!(matches!(refused, PortError::Gid { port: 1, .. }), "{refused}");
        let cause = std::error::Error::source(&refused).expect("it says why").to_string();
        assert!(cause.contains("1: RoCE v2 fe80::1"), "{cause}");
        assert!(refused.to_string().contains(&cause), "{refused}");
    }
}

#[test]
fn infiniband_is_refused_and_not_tried() {
    let mut ib = port(1, PortState::Active, GOOD);
    ib.link_layer = Some(LinkLayer::InfiniBand);
    let refused = LocalPort::find(&machine(vec![ib], "up"), "mlx5_0", None, None);
    let refused = refused.expect_err("not RoCE");
    assert!(refused.to_string().contains("InfiniBand"), "{refused}");
}
