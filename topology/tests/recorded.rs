//! Walks a folder of recorded machines, when `RAILRING_TOPOLOGIES` names one: no panic, no rail
//! without a core, and the same nodes and cores as lstopo printed beside the archive.

use railring_topology::render::{TextOptions, explain, json, svg, text};
use railring_topology::{CpuId, CpuSet, Discovery, Machine, NodeId, Policy, assign};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("RAILRING_TOPOLOGIES").map(PathBuf::from);
    if folder.is_none() {
        println!("SKIP {test}: RAILRING_TOPOLOGIES names no folder of recorded machines");
    }
    folder
}

/// All files below a folder with one of the endings, sorted.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Unpacks an archive; gives the folder that holds its `sys` and `proc`.
fn unpack(archive: &Path) -> Option<(tempfile::TempDir, PathBuf)> {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let root = root.expect("a temporary folder");
    let done = Command::new("tar").arg("xjf").arg(archive).arg("-C").arg(root.path()).status();
    if !done.is_ok_and(|status| status.success()) {
        return None;
    }
    let inner = fs::read_dir(root.path()).ok()?.flatten().next()?.path();
    Some((root, inner))
}

/// Plans, checks and shows a machine.
fn check(name: &str, machine: &Machine) {
    let plan = assign(machine, &Policy::default())
        .unwrap_or_else(|error| panic!("{name}: no plan: {error}"));
    for rail in &plan.rails {
        let poller = plan.poller_of(rail).unwrap_or_else(|| panic!("{name}: {}", rail.name));
        let cpu = poller.cpu.unwrap_or_else(|| panic!("{name}: {} has no core", rail.name));
        assert!(machine.allowed().contains(cpu), "{name}: cpu {cpu} may not be used");
        explain(machine, &plan, &rail.name, TextOptions::default()).expect("a rail of the plan");
    }
    let _ = text(machine, Some(&plan), TextOptions::default());
    let _ = svg(machine, Some(&plan));
    let document = json(machine, Some(&plan));
    let read: railring_topology::render::Report =
        serde_json::from_str(&document).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read.machine, *machine, "{name}");
}

/// What lstopo printed: ids of nodes, sets of each core's units, all units.
#[derive(Debug, Default)]
struct Console {
    nodes: BTreeSet<NodeId>,
    cores: BTreeSet<CpuSet>,
    cpus: CpuSet,
}

/// The number in `PU L#3 (P#7 ...)`.
fn physical(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("(P#")?;
    rest.split([' ', ')']).next()?.parse().ok()
}

fn read_console(text: &str) -> Console {
    let mut console = Console::default();
    let mut core: Option<(usize, CpuSet)> = None;
    let mut finish = |core: &mut Option<(usize, CpuSet)>| {
        if let Some((_, cpus)) = core.take()
            && !cpus.is_empty()
        {
            console.cores.insert(cpus);
        }
    };
    let mut nodes = BTreeSet::new();
    let mut cpus = CpuSet::new();
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if core.as_ref().is_some_and(|(at, _)| depth <= *at) {
            finish(&mut core);
        }
        match line.split([' ', '(']).next() {
            Some("NUMANode") => nodes.extend(physical(line).map(NodeId)),
            Some("Core") => core = Some((depth, CpuSet::new())),
            Some("PU") => {
                let cpu = CpuId(physical(line).expect("a unit has a number"));
                cpus.insert(cpu);
                match &mut core {
                    Some((_, of_core)) => of_core.insert(cpu),
                    None => core = Some((depth, cpu.into())),
                }
            }
            _ => {}
        }
    }
    finish(&mut core);
    console.nodes = nodes;
    console.cpus = cpus;
    console
}

/// What differs from the console, in words.
fn differences(machine: &Machine, console: &Console) -> Vec<String> {
    let mut found = Vec::new();
    if machine.allowed() != console.cpus {
        found.push(format!("cpus {} against {}", machine.allowed(), console.cpus));
    }
    let within = |cpus: &CpuSet| cpus.intersection(&console.cpus);
    let cores = machine.cores.iter().map(|core| within(&core.cpus));
    let cores: BTreeSet<CpuSet> = cores.filter(|cpus| !cpus.is_empty()).collect();
    if cores != console.cores {
        found.push(format!("cores {cores:?} against {:?}", console.cores));
    }
    let permitted = |id: NodeId| {
        machine.cpus.memory_nodes.as_ref().is_none_or(|permitted| permitted.contains(&id))
    };
    let nodes = machine.nodes.iter().map(|node| node.id).filter(|&id| permitted(id));
    let nodes: BTreeSet<NodeId> = nodes.collect();
    if nodes != console.nodes {
        found.push(format!("nodes {nodes:?} against {:?}", console.nodes));
    }
    found
}

#[test]
fn every_recorded_tree_is_described_as_lstopo_did() {
    let Some(folder) = folder("every_recorded_tree_is_described_as_lstopo_did") else { return };
    let mut wrong = Vec::new();
    let mut compared = 0;
    for archive in files(&folder, ".tar.bz2") {
        let name = archive.file_name().expect("a file").to_string_lossy().into_owned();
        let Some((_keep, root)) = unpack(&archive) else {
            println!("SKIP {name}: tar cannot unpack it here");
            continue;
        };
        let machine = Discovery::sysfs_root(&root).read().expect("never an error");
        check(&name, &machine);
        let console = archive.with_file_name(name.replace(".tar.bz2", ".console"));
        let Ok(printed) = fs::read_to_string(console) else { continue };
        compared += 1;
        let found = differences(&machine, &read_console(&printed));
        wrong.extend(found.into_iter().map(|difference| format!("{name}: {difference}")));
    }
    println!("compared {compared} machines");
    assert!(compared > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_recorded_hwloc_file_is_read_or_refused_by_version() {
    let name = "every_recorded_hwloc_file_is_read_or_refused_by_version";
    let Some(folder) = folder(name) else { return };
    if !cfg!(feature = "hwloc") {
        println!("SKIP {name}: built without the feature hwloc");
        return;
    }
    let mut read = 0;
    for file in files(&folder, ".xml") {
        let name = file.display().to_string();
        let start = fs::read_to_string(&file).expect("readable");
        let machine = Discovery::hwloc_xml(&file).read();
        match machine {
            Ok(machine) => {
                assert!(!start.contains("<topology version=\"3"), "{name}: version 3 was read");
                check(&name, &machine);
                read += 1;
            }
            Err(error) => {
                let known = start.contains("<topology version=\"3") || !start.contains("<topology");
                assert!(known, "{name}: {error}");
            }
        }
    }
    assert!(read > 0, "no file was read");
}
