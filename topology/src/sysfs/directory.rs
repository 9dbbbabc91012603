//! Finds the disk and the node a directory lies on, through the mount table.

use super::Reader;
use super::mounts::{self, Mount};
use crate::machine::{Directory, Disk, Locality};
use std::path::{Path, PathBuf};

pub(super) fn read(reader: &Reader<'_>, disks: &[Disk], wanted: &[PathBuf]) -> Vec<Directory> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let mounts = mounts::read(reader);
    wanted.iter().map(|path| read_one(reader, disks, &mounts, path)).collect()
}

fn read_one(reader: &Reader<'_>, disks: &[Disk], mounts: &[Mount], wanted: &Path) -> Directory {
    let path = if reader.tree.is_live() { existing(wanted) } else { wanted.to_owned() };
    let mount = mounts::holding(mounts, &path.to_string_lossy());
    let disk = mount.ok_or_else(|| "no mount point is known above it".to_owned());
    let disk = disk.and_then(|mount| disk_below(reader, disks, mount));
    Directory {
        path: wanted.display().to_string(),
        mount_point: mount.map(|mount| mount.point.clone()),
        filesystem: mount.map(|mount| mount.filesystem.clone()),
        disk: disk.as_ref().ok().map(|disk| disk.name.clone()),
        locality: disk.as_ref().map_or_else(|_| Locality::default(), |d| d.locality.clone()),
        why_unknown: disk.err(),
    }
}

/// The path with links followed, of the nearest folder that exists: it may yet be created.
fn existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find_map(|folder| folder.canonicalize().ok()).unwrap_or(absolute)
}

fn disk_below<'a>(
    reader: &Reader<'_>,
    disks: &'a [Disk],
    mount: &Mount,
) -> Result<&'a Disk, String> {
    let by_number = mount.device.iter().filter(|number| !number.starts_with("0:"));
    let by_number = by_number.map(|number| format!("sys/dev/block/{number}"));
    // File systems with anonymous device numbers (btrfs, ZFS) still name a device, or not.
    let by_name = mount.source.strip_prefix("/dev/");
    let by_name = by_name.and_then(|name| block_entry(reader, name));
    let entry = by_number.chain(by_name).find_map(|entry| reader.tree.resolve(&entry).ok());
    let Some(entry) = entry else {
        let Mount { filesystem, source, .. } = mount;
        return Err(format!("{filesystem} on {source} has no block device of its own"));
    };
    // A partition lies in its disk's folder.
    let names = entry.rsplit('/');
    let mut found = names.take(2).filter_map(|name| disks.iter().find(|disk| disk.name == name));
    found.next().ok_or_else(|| format!("block device {} is no disk of this machine", mount.source))
}

/// The class entry of a device name; `mapper/x` is a link to the real one.
fn block_entry(reader: &Reader<'_>, name: &str) -> Option<String> {
    let target = reader.tree.link_name(&format!("dev/{name}"));
    let name = target.unwrap_or_else(|| name.rsplit('/').next().unwrap_or(name).to_owned());
    let entry = format!("sys/class/block/{name}");
    reader.tree.exists(&entry).then_some(entry)
}
