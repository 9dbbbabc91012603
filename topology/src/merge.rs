//! Puts the kernel's files and hwloc's view together: the files are taken, hwloc fills in what they
//! leave unknown, and where both speak and differ that is listed.

use crate::cpuset::CpuSet;
use crate::machine::{CoreKind, Disagreement, LocalityFrom, Machine, PciFunction};
use std::collections::BTreeSet;

pub(crate) fn merge(mut files: Machine, by_hwloc: &Machine) -> Machine {
    files.source.hwloc.clone_from(&by_hwloc.source.hwloc);
    merge_nodes(&mut files, by_hwloc);
    merge_cores(&mut files, by_hwloc);
    merge_pci(&mut files, by_hwloc);
    if files.pci.is_empty() {
        files.pci.clone_from(&by_hwloc.pci);
    }
    if files.rdma.is_empty() {
        files.rdma.clone_from(&by_hwloc.rdma);
    }
    if files.net.is_empty() {
        files.net.clone_from(&by_hwloc.net);
    }
    if files.disks.is_empty() {
        files.disks.clone_from(&by_hwloc.disks);
    }
    if files.cpus.online.is_empty() {
        files.cpus.online.clone_from(&by_hwloc.cpus.online);
    }
    files.disagreements.sort();
    files.disagreements.dedup();
    files
}

fn disagree(machine: &mut Machine, about: String, taken: String, passed_over: String) {
    machine.disagreements.push(Disagreement { about, taken, passed_over });
}

fn merge_nodes(files: &mut Machine, by_hwloc: &Machine) {
    let implied = files.nodes.iter().all(|node| node.implied);
    if files.nodes.is_empty() || (implied && by_hwloc.nodes.iter().any(|node| !node.implied)) {
        files.nodes.clone_from(&by_hwloc.nodes);
        return;
    }
    let mut found = Vec::new();
    for node in &mut files.nodes {
        let Some(other) = by_hwloc.nodes.iter().find(|other| other.id == node.id) else {
            let about = format!("node {}", node.id);
            found.push((about, "sysfs lists it".to_owned(), "hwloc does not".to_owned()));
            continue;
        };
        if node.cpus != other.cpus {
            let (ours, theirs) = (&node.cpus, &other.cpus);
            let about = format!("node {}", node.id);
            found.push((
                about,
                format!("cpus {ours}, by sysfs"),
                format!("cpus {theirs}, by hwloc"),
            ));
        }
        node.memory_bytes = node.memory_bytes.or(other.memory_bytes);
        if node.distances.is_empty() {
            node.distances.clone_from(&other.distances);
        }
    }
    for (about, taken, passed_over) in found {
        disagree(files, about, taken, passed_over);
    }
    let ours: BTreeSet<_> = files.nodes.iter().map(|node| node.id).collect();
    for other in by_hwloc.nodes.iter().filter(|other| !ours.contains(&other.id)) {
        let about = format!("node {}", other.id);
        disagree(files, about, "sysfs has no such node".into(), "hwloc lists it".into());
    }
}

fn merge_cores(files: &mut Machine, by_hwloc: &Machine) {
    if files.cores.is_empty() {
        files.cores.clone_from(&by_hwloc.cores);
        return;
    }
    let theirs: BTreeSet<&CpuSet> = by_hwloc.cores.iter().map(|core| &core.cpus).collect();
    let mut differ = CpuSet::new();
    for core in &mut files.cores {
        if !theirs.contains(&core.cpus) {
            differ = differ.union(&core.cpus);
        }
        let other = core.cpus.first().and_then(|cpu| by_hwloc.core_of(cpu));
        if let (CoreKind::Unknown, Some(other)) = (core.kind, other) {
            core.kind = other.kind;
        }
    }
    if !differ.is_empty() {
        let taken = format!("the cores of cpus {differ} as sysfs has them");
        disagree(files, "cores".into(), taken, "hwloc has others".into());
    }
}

fn merge_pci(files: &mut Machine, by_hwloc: &Machine) {
    let mut found = Vec::new();
    for function in &mut files.pci {
        let Some(other) = by_hwloc.pci_function(function.address) else { continue };
        found.extend(merge_function(function, other));
    }
    for (about, taken, passed_over) in found {
        disagree(files, about, taken, passed_over);
    }
    let placed: Vec<_> = files.pci.iter().map(|f| (f.address, f.locality.clone())).collect();
    let locality_of = |address| placed.iter().find(|(at, _)| Some(*at) == address);
    for device in &mut files.rdma {
        if let Some((_, locality)) = locality_of(device.pci) {
            device.locality.clone_from(locality);
        }
    }
    for net in &mut files.net {
        if let Some((_, locality)) = locality_of(net.pci) {
            net.locality.clone_from(locality);
        }
    }
    for disk in &mut files.disks {
        if let Some((_, locality)) = locality_of(disk.pci).filter(|_| disk.members.is_empty()) {
            disk.locality.clone_from(locality);
        }
    }
}

fn merge_function(
    function: &mut PciFunction,
    other: &PciFunction,
) -> Option<(String, String, String)> {
    if function.link.capacity().is_none() {
        function.link.bits_per_second = other.link.capacity();
    }
    let unknown = function.locality.from == LocalityFrom::Nothing;
    if other.locality.cpus.is_empty() {
        return None;
    }
    if unknown {
        function.locality.clone_from(&other.locality);
        return None;
    }
    let place = |f: &PciFunction| match f.locality.node {
        Some(node) => format!("node {node}"),
        None => format!("cpus {}", f.locality.cpus),
    };
    let nodes = function.locality.node.zip(other.locality.node);
    let same_node = nodes.is_some_and(|(ours, theirs)| ours == theirs);
    // hwloc knows places by their CPUs only: for a node without any it names the nearest with some.
    let differs = !same_node && function.locality.cpus != other.locality.cpus;
    differs.then(|| {
        let taken = format!("{}, by sysfs", place(function));
        (function.address.to_string(), taken, format!("{}, by hwloc", place(other)))
    })
}
