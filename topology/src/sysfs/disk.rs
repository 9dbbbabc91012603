//! Reads whole block devices, also layered and multipath ones.

use super::near::combined;
use super::{Reader, pci};
use crate::id::PciAddress;
use crate::machine::{Disk, Locality, LocalityFrom, PciFunction};
use std::collections::BTreeMap;

const BLOCK: &str = "sys/block";
/// Major numbers of RAM disks, floppies, loop devices and CD drives (devices.txt of the kernel).
const MAJORS_SKIPPED: [&str; 4] = ["1", "2", "7", "11"];
/// Layers of RAID on LVM on multipath that are followed.
const LAYERS_MAX: usize = 8;

pub(super) fn read(reader: &Reader<'_>, functions: &[PciFunction]) -> Vec<Disk> {
    let mut disks = Vec::new();
    for name in reader.tree.list(BLOCK) {
        let entry = format!("{BLOCK}/{name}");
        match reader.tree.resolve(&entry) {
            Ok(folder) => disks.extend(read_disk(reader, functions, &name, &folder)),
            Err(why) => reader.tree.note(&entry, why.text()),
        }
    }
    place_layered(&mut disks);
    disks
}

fn read_disk(
    reader: &Reader<'_>,
    functions: &[PciFunction],
    name: &str,
    folder: &str,
) -> Option<Disk> {
    let at = |file: &str| format!("{folder}/{file}");
    let text = |file: &str| reader.tree.optional(&at(file)).filter(|text| !text.is_empty());
    let number = text("dev");
    let major = number.as_ref().and_then(|number| number.split(':').next());
    if major.is_some_and(|major| MAJORS_SKIPPED.contains(&major)) {
        return None;
    }
    // `size` counts 512-byte sectors whatever the disk's own are; an unused device has none.
    let size_bytes =
        reader.tree.value::<u64>(&at("size")).map(|sectors| sectors.saturating_mul(512));
    if size_bytes == Some(0) {
        return None;
    }
    let paths = controllers(reader, folder);
    let function = pci::function_above(folder).or_else(|| paths.first().copied());
    let near: Vec<Locality> =
        paths.iter().map(|&path| pci::locality_of(functions, Some(path))).collect();
    let locality = match near.len() {
        0 | 1 => pci::locality_of(functions, function),
        _ => combined(near.iter(), LocalityFrom::Disks(name.to_owned())),
    };
    Some(Disk {
        name: name.to_owned(),
        number,
        model: text("device/model"),
        size_bytes,
        rotational: text("queue/rotational").map(|flag| flag == "1"),
        pci: function,
        locality,
        members: reader.tree.list(&at("slaves")),
    })
}

/// The PCI functions of a multipath NVMe disk's controllers, which are links in its subsystem.
fn controllers(reader: &Reader<'_>, folder: &str) -> Vec<PciAddress> {
    let Some((subsystem, _)) = folder.rsplit_once('/') else { return Vec::new() };
    if !subsystem.contains("/nvme-subsystem/") {
        return Vec::new();
    }
    let names = reader.tree.list(subsystem);
    let links = names.iter().filter(|name| name.starts_with("nvme"));
    let targets = links.filter_map(|name| reader.tree.resolve(&format!("{subsystem}/{name}")).ok());
    let mut functions: Vec<PciAddress> =
        targets.filter_map(|target| pci::function_above(&target)).collect();
    functions.sort();
    functions.dedup();
    functions
}

/// A layered device is near where the disks below it are. Members may be partitions.
fn place_layered(disks: &mut [Disk]) {
    for _ in 0..LAYERS_MAX {
        let before: BTreeMap<String, Locality> =
            disks.iter().map(|disk| (disk.name.clone(), disk.locality.clone())).collect();
        for disk in disks.iter_mut().filter(|disk| disk.pci.is_none()) {
            let parts = disk.members.iter().filter_map(|member| whole_disk(&before, member));
            disk.locality = combined(parts, LocalityFrom::Disks(disk.members.join(", ")));
        }
    }
}

/// The disk of that name, or the one it is a partition of.
fn whole_disk<'a>(disks: &'a BTreeMap<String, Locality>, name: &str) -> Option<&'a Locality> {
    let partition = || {
        let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
        disks.get(digits).or_else(|| disks.get(digits.strip_suffix('p')?))
    };
    disks.get(name).or_else(partition)
}
