//! Trees that are missing, damaged or hostile: everything unknown, nothing wrong, no panic.

mod fixture;

use fixture::{Fixture, Port, machines};
use proptest::prelude::*;
use railring_topology::capture::Mask;
use railring_topology::render::{TextOptions, json, svg, text};
use railring_topology::{Discovery, Machine, NodeId, Policy, assign};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn show(machine: &Machine) {
    let plan = assign(machine, &Policy::default()).ok();
    let _ = text(machine, plan.as_ref(), TextOptions::default());
    let _ = svg(machine, plan.as_ref());
    let _ = json(machine, plan.as_ref());
}

#[test]
fn no_tree_at_all_is_a_machine_of_unknowns() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    for root in [empty.path().to_owned(), empty.path().join("absent")] {
        let machine = Discovery::sysfs_root(root).read().expect("never an error");
        assert!(machine.nodes.is_empty() && machine.cpus.online.is_empty());
        assert!(!machine.unknowns.is_empty());
        show(&machine);
    }
}

#[test]
fn dangling_links_leave_devices_that_are_listed_with_nothing_known() {
    let f = machines::two_sockets();
    f.link("sys/class/infiniband/gone0", "../../devices/nowhere/infiniband/gone0");
    f.link("sys/class/net/gone1", "../../devices/nowhere/net/gone1");
    f.link("sys/bus/pci/devices/0000:99:00.0", "../../../devices/pci0000:99/0000:99:00.0");
    f.link("sys/block/gone2", "../devices/nowhere");
    f.link("sys/class/net/loop", "loop");
    let machine = f.read();
    let device = machine.rdma_device("gone0").expect("listed");
    assert!(device.pci.is_none() && device.ports.is_empty());
    assert!(machine.net_device("gone1").is_some_and(|net| net.state.is_none()));
    assert!(machine.unknowns.iter().any(|u| u.path.contains("0000:99:00.0")));
    show(&machine);
}

#[test]
fn unreadable_files_are_unknown_with_the_reason() {
    let f = machines::four_adapters_out_of_order();
    let path = f.at(&format!("{}/numa_node", f.folder("0000:21:00.0")));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("changed");
    if fs::read(&path).is_ok() {
        println!(
            "SKIP unreadable_files_are_unknown_with_the_reason: running as root, which reads all"
        );
        return;
    }
    let machine = f.read();
    let denied = |u: &&railring_topology::machine::Unknown| u.why == "permission denied";
    assert!(machine.unknowns.iter().any(|u| denied(&u)));
    show(&machine);
}

#[test]
fn nul_bytes_and_odd_values_are_read_or_noted() {
    let mut f = machines::two_sockets();
    f.file("sys/devices/system/cpu/online", "0-15\n\0\0\0");
    f.pci("0000:21:00.0", machines::INFINIBAND, 4_294_967_295);
    f.pci("0000:22:00.0", machines::INFINIBAND, 77);
    f.pci("0000:23:00.0", "not hexadecimal", 0);
    f.rdma("0000:21:00.0", "a", &[Port { rate: "fast", number: 300, ..Port::INFINIBAND }]);
    f.file("sys/devices/system/node/node1/distance", "21 banana");
    f.file("sys/bus/pci/devices/rxe0/class", "0x020000");
    let machine = f.read();
    assert_eq!(machine.cpus.online.len(), 16);
    let node =
        |at: &str| machine.pci_function(at.parse().expect("an address")).map(|f| f.locality.node);
    assert_eq!(node("0000:21:00.0"), Some(None), "-1 as an unsigned number");
    assert_eq!(node("0000:22:00.0"), Some(None), "a node that does not exist");
    assert_eq!(node("0000:23:00.0"), Some(Some(NodeId(0))));
    for what in ["node77", "/class", "/distance", "/rxe0"] {
        let what = what.trim_start_matches("node");
        let noted = machine.unknowns.iter().any(|u| u.path.contains(what) || u.why.contains(what));
        assert!(noted, "{what} is not among {:?}", machine.unknowns);
    }
    show(&machine);
}

#[test]
fn a_bad_cpu_list_is_no_list_and_the_folders_count() {
    for bad in ["0-4294967295", "5-3", "zero", "0-15;reboot"] {
        let f = machines::two_sockets();
        f.file("sys/devices/system/cpu/online", bad);
        let machine = f.read();
        assert_eq!(machine.cpus.online.to_string(), "0-15", "{bad:?}");
        assert!(machine.unknowns.iter().any(|u| u.path.ends_with("cpu/online")));
    }
}

#[test]
fn nodes_that_claim_the_same_cpus_are_reported() {
    let f = machines::four_adapters_out_of_order();
    f.file("sys/devices/system/node/node1/cpulist", "2-15");
    let machine = f.read();
    assert_eq!(machine.node(NodeId(0)).map(|n| n.cpus.to_string()).as_deref(), Some("0-3,8-11"));
    assert_eq!(machine.node(NodeId(1)).map(|n| n.cpus.to_string()).as_deref(), Some("4-7,12-15"));
    assert!(machine.disagreements.iter().any(|d| d.about == "node 1"));
}

#[test]
fn a_machine_without_nodes_has_one_that_is_implied() {
    let mut f = Fixture::new();
    f.cores(None, &[&[0], &[1]]).file("proc/meminfo", "MemTotal:  2048 kB");
    let machine = f.read();
    assert_eq!(machine.nodes.len(), 1);
    assert!(machine.nodes[0].implied && machine.nodes[0].cpus.len() == 2);
    assert_eq!(machine.nodes[0].memory_bytes, Some(2 << 20));
}

#[test]
fn siblings_with_core_ids_of_their_own_are_cores() {
    let mut f = Fixture::new();
    f.cores(Some(0), &[&[0, 1], &[2, 3]]).node(0, 4, "10");
    f.file("sys/devices/system/cpu/cpu1/topology/core_id", "1");
    let cores: Vec<String> = f.read().cores.iter().map(|core| core.cpus.to_string()).collect();
    assert_eq!(cores, ["0", "1", "2-3"]);
}

#[test]
fn a_node_whose_cpus_are_all_anothers_is_none() {
    let f = machines::two_sockets();
    f.file("sys/devices/system/node/node0/cpulist", "0-15");
    f.file("sys/devices/system/node/node1/cpulist", "0-15");
    let machine = f.read();
    assert_eq!(machine.nodes.len(), 1);
    assert!(!machine.disagreements.is_empty());
}

#[test]
fn local_cpus_that_contradict_the_node_are_reported() {
    let f = machines::four_adapters_out_of_order();
    f.file(&format!("{}/local_cpulist", f.folder("0000:81:00.0")), "0-15");
    let machine = f.read();
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    let rail = plan.rail("mlx5_2:1").expect("a rail");
    assert_eq!(rail.near.to_string(), "4-7,12-15", "numa_node is taken");
    assert!(plan.warnings.iter().any(|warning| warning.about.contains("0000:81:00.0")));
}

#[test]
fn every_machine_reads_the_same_from_its_archive() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, build) in machines::ALL.into_iter().filter(|(name, _)| *name != "many_cpus") {
        let fixture = build();
        let discovery = Discovery::sysfs_root(fixture.root()).directory("/data1/x");
        let path = folder.path().join(format!("{name}.tar.gz"));
        let file = fs::File::create(&path).expect("created");
        let captured = discovery.capture(file, Mask::Nothing).expect("written");
        assert!(captured.files > 10, "{name}");
        let mut original = discovery.read().expect("readable");
        let mut replayed = Discovery::archive(&path).read().expect("readable");
        original.source.sysfs = None;
        replayed.source.sysfs = None;
        assert_eq!(replayed, original, "{name}");
        let masked = fs::File::create(&path).expect("created");
        discovery.capture(masked, Mask::HardwareAddresses).expect("written");
        let plan = assign(&original, &Policy::default()).expect("a plan");
        let masked = Discovery::archive(&path).read().expect("readable");
        let places = |plan: &railring_topology::Plan| {
            plan.rails
                .iter()
                .map(|rail| (rail.name.clone(), rail.poller, rail.node))
                .collect::<Vec<_>>()
        };
        let plan_of_masked = assign(&masked, &Policy::default()).expect("a plan");
        assert_eq!(places(&plan_of_masked), places(&plan), "{name}: masking changed the plan");
    }
}

#[test]
fn a_damaged_archive_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x.tar.gz");
    fs::write(&path, b"not an archive").expect("written");
    assert!(Discovery::archive(&path).read().is_err());
    assert!(Discovery::archive(folder.path().join("absent")).read().is_err());
    let fixture = machines::two_sockets();
    let mut bytes = Vec::new();
    Discovery::sysfs_root(fixture.root()).capture(&mut bytes, Mask::Nothing).expect("written");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    assert!(Discovery::archive(&path).read().is_err());
    assert!(Discovery::archive(&path).capture(&mut bytes, Mask::Nothing).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 30,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any file of a good tree replaced by anything.
    #[test]
    fn no_file_content_panics(
        which in any::<prop::sample::Index>(),
        content in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..80),
            "[-0-9,xa-f: ./]{0,40}".prop_map(String::into_bytes),
        ],
    ) {
        let fixture = machines::bond_over_two_adapters();
        let mut files = Vec::new();
        let mut folders = vec![fixture.root().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let kind = entry.file_type().expect("a kind");
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    files.push(entry.path());
                }
            }
        }
        files.sort();
        fs::write(which.get(&files), content).expect("written");
        show(&fixture.read());
    }
}
