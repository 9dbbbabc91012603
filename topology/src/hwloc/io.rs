//! Turns hwloc's I/O objects into PCI functions, RDMA devices, network devices and disks.

use super::convert::cpus_of;
use crate::cpuset::CpuSet;
use crate::id::PciAddress;
use crate::machine::{
    Disk, Gid, GidKind, Link, LinkLayer, Locality, LocalityFrom, Machine, NetDevice, NetKind,
    PciFunction, PortState, RdmaDevice, RdmaPort,
};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes};
use hwlocality::object::types::OSDeviceType;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

pub(super) fn add_devices(topology: &Topology, machine: &mut Machine) {
    for object in topology.io_objects() {
        let locality = locality(machine, object);
        if let Some((address, attributes)) = pci_of(object) {
            machine.pci.push(function(object, address, attributes, locality));
            continue;
        }
        let Some(ObjectAttributes::OSDevice(attributes)) = object.attributes() else { continue };
        let name = object.name().map(|name| name.to_string_lossy().into_owned());
        let Some(name) = name else { continue };
        let function = object.ancestors().find_map(|above| Some(pci_of(above)?.0));
        match attributes.device_type() {
            OSDeviceType::OpenFabrics => machine.rdma.push(rdma(object, name, function, locality)),
            OSDeviceType::Network => machine.net.push(net(object, name, function, locality)),
            OSDeviceType::Storage => machine.disks.push(disk(object, name, function, locality)),
            _ => {}
        }
    }
    machine.pci.sort_by_key(|function| function.address);
    machine.pci.dedup_by_key(|function| function.address);
    machine.rdma.sort_by(|a, b| a.name.cmp(&b.name));
    machine.net.sort_by(|a, b| a.name.cmp(&b.name));
    machine.disks.sort_by(|a, b| a.name.cmp(&b.name));
    join_ports_and_nets(machine);
}

/// The PCI side of a device or of a bridge between buses.
fn pci_of(object: &TopologyObject) -> Option<(PciAddress, &PCIDeviceAttributes)> {
    let attributes = match object.attributes()? {
        ObjectAttributes::PCIDevice(attributes) => attributes,
        ObjectAttributes::Bridge(bridge) => match bridge.upstream_attributes()? {
            UpstreamAttributes::PCI(attributes) => attributes,
        },
        _ => return None,
    };
    let address = PciAddress {
        domain: attributes.domain().into(),
        bus: attributes.bus_id(),
        device: attributes.bus_device(),
        function: attributes.function(),
    };
    Some((address, attributes))
}

/// Near the CPUs of the object it hangs on; hanging on the whole machine says nothing.
fn locality(machine: &Machine, object: &TopologyObject) -> Locality {
    let cpus: CpuSet = object.first_non_io_ancestor().map(cpus_of).unwrap_or_default();
    if cpus.is_empty() || cpus == machine.cpus.online {
        return Locality::default();
    }
    let with_cpus = machine.nodes.iter().filter(|node| !node.cpus.is_empty());
    let node = with_cpus.clone().find(|node| cpus.is_subset(&node.cpus)).map(|node| node.id);
    // Where the object has all of a node's CPUs, the node's are meant.
    Locality { node, cpus, from: LocalityFrom::Hwloc }
}

fn function(
    object: &TopologyObject,
    address: PciAddress,
    attributes: &PCIDeviceAttributes,
    locality: Locality,
) -> PciFunction {
    let mut bridges: Vec<PciAddress> =
        object.ancestors().filter_map(|above| Some(pci_of(above)?.0)).collect();
    bridges.reverse();
    // hwloc has gigabytes per second of both, after line coding; 0 is unknown.
    let gigabytes = f64::from(attributes.link_speed());
    let bits = (gigabytes > 0.0 && gigabytes < 1e6).then_some((gigabytes * 8e9) as u64);
    PciFunction {
        address,
        class: Some(u32::from(attributes.class_id()) << 8),
        vendor: Some(attributes.vendor_id()),
        device: Some(attributes.device_id()),
        driver: None,
        host_bridge: None,
        bridges,
        link: Link { now: None, most: None, bits_per_second: bits },
        locality,
        physical_function: None,
        virtual_functions: Vec::new(),
        iommu: None,
        interrupts: BTreeMap::new(),
    }
}

fn info(object: &TopologyObject, key: &str) -> Option<String> {
    object.info(key).map(|value| value.to_string_lossy().into_owned())
}

fn rdma(
    object: &TopologyObject,
    name: String,
    pci: Option<PciAddress>,
    locality: Locality,
) -> RdmaDevice {
    RdmaDevice {
        name,
        pci,
        driver: None,
        node_guid: info(object, "NodeGUID"),
        system_guid: info(object, "SysImageGUID"),
        locality,
        ports: (1..=255).filter_map(|number| port(object, number)).collect(),
    }
}

/// `Port1State`, `Port1LID`, `Port1GID0`: hwloc says no more about a port.
fn port(object: &TopologyObject, number: u32) -> Option<RdmaPort> {
    let state = info(object, &format!("Port{number}State"))?;
    let lid = info(object, &format!("Port{number}LID")).unwrap_or_default();
    let lid = u32::from_str_radix(lid.trim_start_matches("0x"), 16).ok();
    // Only InfiniBand subnets give out local identifiers, so an active port without is Ethernet.
    let is_ethernet = lid == Some(0) && state == "4";
    let gid = |index: u16| {
        let address: Ipv6Addr = info(object, &format!("Port{number}GID{index}"))?.parse().ok()?;
        let kind = GidKind::Unknown;
        (!address.is_unspecified()).then_some(Gid { index, kind, address, net: None })
    };
    Some(RdmaPort {
        number,
        state: Some(match state.as_str() {
            "1" => PortState::Down,
            "2" => PortState::Init,
            "3" => PortState::Armed,
            "4" => PortState::Active,
            _ => PortState::Other(state),
        }),
        physical_state: None,
        link_layer: lid.map(|_| match is_ethernet {
            true => LinkLayer::Ethernet,
            false => LinkLayer::InfiniBand,
        }),
        bits_per_second: None,
        mtu_bytes: None,
        net: None,
        gids: (0..256).filter_map(gid).collect(),
    })
}

fn net(
    object: &TopologyObject,
    name: String,
    pci: Option<PciAddress>,
    locality: Locality,
) -> NetDevice {
    NetDevice {
        name,
        kind: if pci.is_some() { NetKind::Physical } else { NetKind::Virtual },
        pci,
        locality,
        mtu_bytes: None,
        carrier: None,
        state: None,
        bits_per_second: None,
        hardware_address: info(object, "Address"),
        addresses: Vec::new(),
        master: None,
        members: Vec::new(),
        switch_id: None,
        port_name: None,
    }
}

fn disk(
    object: &TopologyObject,
    name: String,
    pci: Option<PciAddress>,
    locality: Locality,
) -> Disk {
    // `Size` is in KiB (hwloc's documentation of I/O attributes).
    let size = info(object, "Size").and_then(|size| size.parse::<u64>().ok());
    Disk {
        name,
        number: info(object, "LinuxDeviceID"),
        // A disk of a volume group has the group's identity here.
        model: info(object, "Model").filter(|model| !model.starts_with("LVM PV")),
        size_bytes: size.and_then(|kibibytes| kibibytes.checked_mul(1024)),
        rotational: None,
        pci,
        locality,
        members: Vec::new(),
    }
}

/// A port's network device is the only one of the same function.
fn join_ports_and_nets(machine: &mut Machine) {
    for device in machine.rdma.iter_mut().filter(|device| device.ports.len() == 1) {
        let mut nets = machine.net.iter().filter(|net| net.pci.is_some() && net.pci == device.pci);
        if let (Some(net), None) = (nets.next(), nets.next()) {
            device.ports[0].net = Some(net.name.clone());
        }
    }
}
