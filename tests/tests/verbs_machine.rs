//! The guest is the machine it promises to be, and topology sees it: two memory nodes, each NIC
//! below its own node's PCIe root, and a software RDMA device on each.

use railring::topology::machine::{GidKind, LinkLayer, PortState};
use railring::topology::{Discovery, NodeId, choose_gid};
use railring_tests::guest;

#[test]
fn each_rail_is_near_the_node_of_its_nic() {
    let Some(rails) = guest::rails("each_rail_is_near_the_node_of_its_nic") else { return };
    let machine = Discovery::live().read().expect("sysfs is there");
    assert_eq!(machine.nodes.len(), 2, "{:?}", machine.nodes);
    assert!(machine.nodes.iter().all(|node| !node.cpus.is_empty()), "{:?}", machine.nodes);
    for rail in 0..rails {
        let device = machine.rdma_device(&format!("rxe{rail}"));
        let device = device.expect("a device per NIC");
        let node = NodeId(u16::try_from(rail % 2).expect("0 or 1"));
        assert_eq!(device.locality.node, Some(node), "{device:?}");
        let net = machine.net_device(&format!("nic{rail}")).expect("its NIC");
        let address = net.pci.expect("a PCI device");
        let function = machine.pci_function(address).expect("it is listed");
        assert_eq!(function.locality.node, Some(node), "{function:?}");
        assert!(function.bridges.len() == 1, "one port of the node's root: {function:?}");
    }
}

#[test]
fn each_port_is_up_with_a_routable_gid() {
    let Some(rails) = guest::rails("each_port_is_up_with_a_routable_gid") else { return };
    let machine = Discovery::live().read().expect("sysfs is there");
    for rail in 0..rails {
        let device = machine.rdma_device(&format!("rxe{rail}"));
        let [port] = device.expect("a device per NIC").ports.as_slice() else {
            panic!("not one port: {device:?}");
        };
        assert_eq!(port.state, Some(PortState::Active), "{port:?}");
        assert_eq!(port.link_layer, Some(LinkLayer::Ethernet), "{port:?}");
        let choice = choose_gid(&machine, port, None).expect("a routable GID");
        let chosen = port.gids.iter().find(|gid| gid.index == choice.index).expect("in the table");
        assert_eq!(chosen.kind, GidKind::RoceV2);
        let address = format!("::ffff:10.7.{rail}.1");
        assert_eq!(choice.address, address.parse::<std::net::Ipv6Addr>().expect("an address"));
    }
}
