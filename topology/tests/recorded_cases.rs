//! What is known of some recorded machines, when `RAILRING_TOPOLOGIES` names their folder: devices
//! without a node, contradictions, sparse ids, nodes without CPUs, cpusets, hybrid cores.

use railring_topology::assign::Rails;
use railring_topology::{
    CpuId, CpuSet, Discovery, Machine, NodeId, Plan, Policy, assign, parse_rails,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The recorded tree of that name, read; nothing without the folder.
fn recorded(test: &str, name: &str) -> Option<Machine> {
    let Some(folder) = std::env::var_os("RAILRING_TOPOLOGIES").map(PathBuf::from) else {
        println!("SKIP {test}: RAILRING_TOPOLOGIES names no folder of recorded machines");
        return None;
    };
    let archive = folder.join("hwloc-linux").join(format!("{name}.tar.bz2"));
    let root = tempfile::tempdir().expect("a temporary folder");
    let done = Command::new("tar").arg("xjf").arg(&archive).arg("-C").arg(root.path()).status();
    assert!(done.is_ok_and(|status| status.success()), "cannot unpack {}", archive.display());
    let inner = std::fs::read_dir(root.path()).expect("readable").flatten().next();
    Some(Discovery::sysfs_root(inner.expect("a folder").path()).read().expect("never an error"))
}

fn set(text: &str) -> CpuSet {
    text.parse().expect("a cpulist")
}

/// A plan for rails that are near nothing in particular.
fn plan_of(machine: &Machine, rails: usize) -> Plan {
    let specs: Vec<String> = (0..rails).map(|rail| format!("sim:r{rail}")).collect();
    let rails = Rails::Given(parse_rails(&specs).expect("good rails"));
    assign(machine, &Policy { rails, ..Policy::default() }).expect("a plan")
}

fn cpus(plan: &Plan) -> CpuSet {
    plan.pollers.iter().filter_map(|poller| poller.cpu).collect()
}

#[test]
fn devices_of_unknown_node_are_shown_as_unknown_and_polled_where_allowed() {
    let test = "devices_of_unknown_node_are_shown_as_unknown_and_polled_where_allowed";
    let Some(machine) = recorded(test, "2pa-pcidomain32bits") else { return };
    assert!(machine.pci.len() >= 9, "{}", machine.pci.len());
    assert!(machine.pci.iter().all(|function| function.locality.node.is_none()));
    assert!(machine.pci.iter().any(|function| function.address.domain == 0x10000));
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    assert!(!plan.pollers.is_empty() && cpus(&plan).is_subset(&machine.allowed()));
}

#[test]
fn a_node_that_contradicts_the_local_cpus_is_taken_and_told() {
    let test = "a_node_that_contradicts_the_local_cpus_is_taken_and_told";
    let Some(machine) = recorded(test, "40intel64-2g2n4c+pcilocality") else { return };
    let device = machine.rdma_device("qib0").expect("listed");
    assert_eq!(device.locality.node, Some(NodeId(2)));
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    assert!(cpus(&plan).is_subset(&set("2,6,10,14,18,22,26,30,34,38")));
    let told = |text: &str| text.contains("local_cpulist 0-39");
    assert!(machine.disagreements.iter().any(|d| told(&d.passed_over)));
    assert!(plan.warnings.iter().any(|warning| told(&warning.text)));
}

#[test]
fn a_device_without_a_pci_parent_is_listed() {
    let test = "a_device_without_a_pci_parent_is_listed";
    let Some(machine) = recorded(test, "32em64t-2n8c+dax+nvme+mic+dimms") else { return };
    let card = machine.rdma_device("mlx4_0").expect("listed");
    assert_eq!(card.pci.map(|at| at.to_string()).as_deref(), Some("0000:82:00.0"));
    assert_eq!((card.locality.node, &card.locality.cpus), (Some(NodeId(1)), &set("8-15")));
    assert_eq!(machine.rdma_device("scif0").expect("listed").pci, None);
}

#[test]
fn ids_are_never_indexes() {
    let test = "ids_are_never_indexes";
    let Some(machine) = recorded(test, "offline-cpu0-node0") else { return };
    assert_eq!(machine.cpus.online, set("4-20"));
    let ids: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [NodeId(1)]);
    assert!(!cpus(&plan_of(&machine, 3)).contains(CpuId(0)));
}

#[test]
fn nodes_without_cpus_have_no_pollers_and_others_do() {
    let test = "nodes_without_cpus_have_no_pollers_and_others_do";
    let names = [
        "fakeheteromemtiers",
        "fakememinitiators-1np2c+1npp+gi",
        "128ia64-17n4s2c",
        "48amd64-4pa2n6c-sparse",
        // No nodes at all: one that is implied.
        "2ps3-2t",
        "20s390-2g6s4c",
    ];
    for name in names {
        let Some(machine) = recorded(test, name) else { return };
        let plan = plan_of(&machine, 4);
        assert!(!plan.pollers.is_empty(), "{name}");
        for poller in &plan.pollers {
            let node = machine.node(poller.node.expect("each cpu has a node")).expect("there");
            assert!(node.cpus.contains(poller.cpu.expect("bound")), "{name}");
        }
        let memory = machine.memory_nodes();
        let placed = plan.rails.iter().filter_map(|rail| rail.memory_node);
        assert!(placed.into_iter().all(|node| memory.contains(&node)), "{name}");
    }
}

#[test]
fn cpusets_are_walls() {
    for (name, allowed) in
        [("32amd64-4s2n4c-cgroup2", "0-5"), ("16amd64-8n2c-cpusets", "0-3,5-6,12-15")]
    {
        let Some(machine) = recorded("cpusets_are_walls", name) else { return };
        assert_eq!(machine.allowed(), set(allowed), "{name}");
        // More rails than CPUs: they share, inside the wall.
        let plan = plan_of(&machine, 20);
        assert!(cpus(&plan).is_subset(&set(allowed)), "{name}");
        assert!(plan.pollers.len() < 20 && !plan.warnings.is_empty(), "{name}");
    }
}

#[test]
fn performance_cores_come_first_and_whole() {
    let test = "performance_cores_come_first_and_whole";
    let name = "20em64t-hybrid-1p6c2t+2ca4co1t";
    let Some(machine) = recorded(test, name) else { return };
    // Six performance cores of two threads, one of them with CPU 0.
    let plan = plan_of(&machine, 6);
    assert!(cpus(&plan).is_subset(&set("0-11")), "{}", cpus(&plan));
    let cores: std::collections::BTreeSet<_> =
        cpus(&plan).iter().filter_map(|cpu| machine.core_of(cpu)).map(|core| &core.cpus).collect();
    let cores = cores.len();
    assert_eq!(cores, 6, "one per core");
}

#[test]
fn two_rails_are_two_cards() {
    let test = "two_rails_are_two_cards";
    let Some(folder) = std::env::var_os("RAILRING_TOPOLOGIES").map(PathBuf::from) else {
        println!("SKIP {test}: RAILRING_TOPOLOGIES names no folder of recorded machines");
        return;
    };
    if !cfg!(feature = "hwloc") {
        println!("SKIP {test}: built without the feature hwloc");
        return;
    }
    let file = folder.join(Path::new("psmgmt/topo.mel3001.xml"));
    let machine = Discovery::hwloc_xml(file).read().expect("version 2 is read");
    let two = Policy { rails_max: Some(2), ..Policy::default() };
    let plan = assign(&machine, &two).expect("a plan");
    let slots: Vec<String> =
        plan.rails.iter().filter_map(|rail| Some(rail.pci?.slot().to_string())).collect();
    assert_eq!(slots, ["0000:21:00.0", "0000:c1:00.0"]);
}
