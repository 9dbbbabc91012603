//! hwloc as a source: its own files, and its agreement with the kernel's on the running machine.
#![cfg(feature = "hwloc")]

mod fixture;

use fixture::machines;
use railring_topology::machine::{LinkLayer, LocalityFrom, PortState};
use railring_topology::{CpuSet, Discovery, NodeId, Policy, assign};
use std::path::PathBuf;

/// Two nodes of two cores; a dual-port card below a bridge of node 1, both ports active.
const XML: &str = include_str!("fixture/two_nodes.xml");

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("machine.xml");
    std::fs::write(&path, XML).expect("written");
    (folder, path)
}

#[test]
fn a_file_of_version_2_is_a_machine_with_rails() {
    let (_keep, path) = file();
    let machine = Discovery::hwloc_xml(&path).read().expect("version 2 is read");
    assert_eq!(machine.cpus.online, "0-3".parse::<CpuSet>().expect("a list"));
    assert_eq!(machine.allowed().to_string(), "0-1,3", "hwloc marks cpu 2 as disallowed");
    assert_eq!((machine.nodes.len(), machine.cores.len(), machine.pci.len()), (2, 4, 3));
    let device = machine.rdma_device("mlx5_1").expect("a device");
    assert_eq!(device.locality.node, Some(NodeId(1)));
    assert_eq!(device.locality.from, LocalityFrom::Hwloc);
    assert_eq!(device.ports[0].state, Some(PortState::Active));
    assert_eq!(device.ports[0].link_layer, Some(LinkLayer::InfiniBand));
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    assert_eq!(plan.rails.len(), 2);
    assert_eq!(plan.pollers.len(), 1, "only cpu 3 is near and allowed");
    assert_eq!(plan.expected.bits_per_second, plan.rails[0].bits_per_second, "one card's link");
}

#[test]
fn what_is_no_topology_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("machine.xml");
    for bad in
        ["", "<system version=\"1\"/>", "<topology version=\"3.0\"/>", "<topology version=\"2.0\">"]
    {
        std::fs::write(&path, bad).expect("written");
        assert!(Discovery::hwloc_xml(&path).read().is_err(), "{bad:?} was read");
    }
    assert!(Discovery::hwloc_xml(folder.path().join("absent")).read().is_err());
}

#[test]
fn the_kernels_word_is_taken_and_the_difference_listed() {
    let (_keep, path) = file();
    let mut f = fixture::Fixture::new();
    f.cores(Some(0), &[&[0], &[1]]).cores(Some(1), &[&[2], &[3]]).node(0, 1, "10 20");
    f.node(1, 1, "20 10");
    f.pci("0000:80:01.0/0000:81:00.0", machines::INFINIBAND, 0);
    f.pci("0000:80:01.0/0000:81:00.1", machines::INFINIBAND, -1);
    let machine = f.read_with(|discovery| discovery.with_hwloc_xml(&path));
    let at = |address: &str| {
        let address = address.parse().expect("an address");
        machine.pci_function(address).expect("a function").locality.clone()
    };
    assert_eq!(at("0000:81:00.0").node, Some(NodeId(0)), "sysfs speaks");
    assert!(machine.disagreements.iter().any(|d| d.about == "0000:81:00.0"));
    assert_eq!(at("0000:81:00.1").node, Some(NodeId(0)), "its bridge speaks");
    assert_eq!(machine.rdma.len(), 2, "hwloc fills in what the tree leaves out");
}

#[test]
fn hwloc_and_sysfs_agree_on_this_machine() {
    let machine = Discovery::live().with_hwloc_live().read().expect("both sources");
    let about: Vec<_> = machine
        .disagreements
        .iter()
        .filter(|d| d.about.starts_with("node") || d.about == "cores")
        .collect();
    assert!(about.is_empty(), "{about:?}");
    assert!(!machine.cpus.online.is_empty());
}
