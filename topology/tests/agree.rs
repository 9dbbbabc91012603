//! hwloc and the kernel's files say the same of every tree that both can read. lstopo(1) reads the
//! tree for hwloc and writes what it saw as XML.
#![cfg(feature = "hwloc")]

mod fixture;

use fixture::{Fixture, machines};
use railring_topology::{CpuSet, Discovery, Machine};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// hwloc's XML of the tree below `root`, if lstopo can make sense of it.
fn by_lstopo(root: &Path, xml: &Path) -> Option<()> {
    let mut command = Command::new("lstopo-no-graphics");
    command.args(["--whole-io", "--disallowed", "--force", "--of", "xml"]);
    command.args(["--input-format", "fsroot", "--input"]);
    let output = command.arg(root).arg(xml).output().ok()?;
    output.status.success().then_some(())
}

fn has_lstopo(test: &str) -> bool {
    let there = Command::new("lstopo-no-graphics").arg("--version").output().is_ok();
    if !there {
        println!("SKIP {test}: lstopo is not installed");
    }
    there
}

/// What hwloc says otherwise. A tree that contradicts itself can be read either way.
fn differences(name: &str, root: &Path, xml: &Path) -> Vec<String> {
    let alone = Discovery::sysfs_root(root).read().expect("a tree is always readable");
    let both = Discovery::sysfs_root(root).with_hwloc_xml(xml).read();
    let both = both.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(both.source.hwloc.is_some(), "{name}: only one source spoke");
    let known: BTreeSet<&str> = alone.disagreements.iter().map(|d| d.about.as_str()).collect();
    let new = both.disagreements.iter().filter(|d| !known.contains(d.about.as_str()));
    new.map(|d| format!("{name}: {}: {} / {}", d.about, d.taken, d.passed_over)).collect()
}

/// A set as the kernel's hexadecimal masks have it: words of 32 bits, highest first.
fn mask(cpus: &CpuSet) -> String {
    let words = usize::from(cpus.last().map_or(0, |cpu| cpu.0)) / 32 + 1;
    let mut mask = vec![0_u32; words];
    for cpu in cpus.iter() {
        mask[usize::from(cpu.0) / 32] |= 1 << (cpu.0 % 32);
    }
    let words: Vec<String> = mask.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// Adds to a fixture the files that hwloc reads where we read others of the same meaning.
fn complete(fixture: &Fixture, machine: &Machine) {
    let mut units = String::new();
    for core in &machine.cores {
        let package = machine.cores.iter().filter(|other| other.package == core.package);
        let package = package.fold(CpuSet::new(), |cpus, other| cpus.union(&other.cpus));
        for cpu in core.cpus.iter() {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            fixture.file(&format!("{folder}/thread_siblings"), &mask(&core.cpus));
            fixture.file(&format!("{folder}/core_siblings"), &mask(&package));
            units.push_str(&format!("processor\t: {cpu}\n\n"));
        }
    }
    fixture.file("proc/cpuinfo", &units);
    for node in machine.nodes.iter().filter(|node| !node.implied) {
        let folder = format!("sys/devices/system/node/node{}", node.id);
        fixture.file(&format!("{folder}/cpumap"), &mask(&node.cpus));
    }
    let nodes: Vec<String> = machine.nodes.iter().map(|node| node.id.to_string()).collect();
    fixture.file("sys/devices/system/node/online", &nodes.join(","));
    for function in &machine.pci {
        let folder = format!("sys/bus/pci/devices/{}", function.address);
        let near = &function.locality.cpus;
        let near = if near.is_empty() { &machine.cpus.online } else { near };
        fixture.file(&format!("{folder}/local_cpus"), &mask(near));
    }
}

#[test]
fn they_agree_on_every_fixture_that_both_can_read() {
    let test = "they_agree_on_every_fixture_that_both_can_read";
    if !has_lstopo(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, build) in machines::ALL {
        let fixture = build();
        complete(&fixture, &fixture.read());
        let xml = folder.path().join("machine.xml");
        if by_lstopo(fixture.root(), &xml).is_some() {
            compared += 1;
            wrong.extend(differences(name, fixture.root(), &xml));
        }
    }
    println!("compared {compared} machines");
    assert!(compared > 5 && wrong.is_empty(), "{compared} compared\n{}", wrong.join("\n"));
}

/// The archives of a folder, sorted.
fn archives(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).expect("a readable folder").flatten().map(|e| e.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(".tar.bz2") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn they_agree_on_every_recorded_tree_that_both_can_read() {
    let test = "they_agree_on_every_recorded_tree_that_both_can_read";
    let Some(recorded) = std::env::var_os("RAILRING_TOPOLOGIES").map(PathBuf::from) else {
        println!("SKIP {test}: RAILRING_TOPOLOGIES names no folder of recorded machines");
        return;
    };
    if !has_lstopo(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let xml = folder.path().join("machine.xml");
    let (mut compared, mut wrong) = (0, Vec::new());
    for archive in archives(&recorded) {
        let name = archive.file_name().expect("a file").to_string_lossy().into_owned();
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let root = root.expect("a temporary folder");
        let done = Command::new("tar").arg("xjf").arg(&archive).arg("-C").arg(root.path()).status();
        if !done.is_ok_and(|status| status.success()) {
            println!("SKIP {name}: tar cannot unpack it here");
            continue;
        }
        let inner = fs::read_dir(root.path()).expect("readable").flatten().next();
        let inner = inner.expect("a folder").path();
        if by_lstopo(&inner, &xml).is_some() {
            compared += 1;
            wrong.extend(differences(&name, &inner, &xml));
        }
    }
    println!("compared {compared} machines");
    assert!(compared > 0 && wrong.is_empty(), "{}", wrong.join("\n"));
}
