//! What there is of RDMA on this machine, read from files below one root; nothing is opened for
//! work and no library is loaded.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use railring::topology::{Discovery, Machine};
use rustix::fs::{Access, access};

/// What can be told without touching a device.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Devices with ports and GIDs, and the network devices below them.
    pub(super) machine: Machine,
    /// The character devices that programs speak to RDMA devices through.
    pub(super) doors: Vec<Door>,
    /// Whether the kernel has these built in or loaded; the ones that were looked for.
    pub(super) modules: BTreeSet<String>,
    /// The shared libraries that were found, of [`LIBRARIES`].
    pub(super) libraries: BTreeSet<&'static str>,
    /// Names of the installed user-space drivers: `rxe`, `mlx5`.
    pub(super) providers: BTreeSet<String>,
}

/// `/dev/infiniband/uverbsN`, and whose it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Door {
    pub(super) path: PathBuf,
    pub(super) device: String,
    pub(super) state: DoorState,
}

/// Whether this process can open a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoorState {
    Open,
    Forbidden,
    /// The kernel has the device, and this file system shows no node for it.
    NoNode,
}

/// What a build with the feature `verbs` links.
pub(super) const LIBRARIES: &[&str] = &["libibverbs.so.1", "librdmacm.so.1"];
/// Modules that are looked for.
const MODULES: &[&str] = &["ib_uverbs", "rdma_ucm", "rdma_rxe", "siw"];

impl Seen {
    pub(super) fn read(root: &Path) -> Self {
        let folders = library_folders(root);
        let is_there = |name: &&&str| {
            folders.iter().any(|folder| folder.join(name).symlink_metadata().is_ok())
        };
        Seen {
            // Of a live machine everything that is missing is unknown; nothing is an error.
            machine: Discovery::sysfs_root(root).read().unwrap_or_default(),
            doors: doors(root),
            modules: MODULES
                .iter()
                .filter(|name| root.join("sys/module").join(name).is_dir())
                .map(|&name| name.to_owned())
                .collect(),
            libraries: LIBRARIES.iter().filter(is_there).copied().collect(),
            providers: folders.iter().flat_map(|folder| providers(folder)).collect(),
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn doors(root: &Path) -> Vec<Door> {
    let class = root.join("sys/class/infiniband_verbs");
    let mut doors = Vec::new();
    for name in names(&class) {
        // The folder also holds a file with the version of the interface.
        let Ok(device) = fs::read_to_string(class.join(&name).join("ibdev")) else { continue };
        let path = root.join("dev/infiniband").join(&name);
        let state = match access(&path, Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => DoorState::Open,
            Err(_) if path.exists() => DoorState::Forbidden,
            Err(_) => DoorState::NoNode,
        };
        let path = Path::new("/dev/infiniband").join(name);
        doors.push(Door { path, device: device.trim().to_owned(), state });
    }
    doors
}

/// Where the loader finds libraries: the usual folders, those of this architecture below them, and
/// what the environment adds.
fn library_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for base in ["lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib"] {
        let base = root.join(base);
        let triplets = names(&base).into_iter().filter(|name| name.ends_with("-linux-gnu"));
        folders.extend(triplets.map(|triplet| base.join(triplet)));
        folders.push(base);
    }
    let added = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&added));
    folders
}

/// libibverbs loads `libibverbs/lib<name>-rdmav<version>.so` beside itself.
fn providers(folder: &Path) -> Vec<String> {
    let files = names(&folder.join("libibverbs"));
    let name = |file: &String| Some(file.strip_prefix("lib")?.split_once("-rdmav")?.0.to_owned());
    files.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_libraries_and_drivers_are_found_below_a_root() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
            fs::write(path, text).expect("there is room");
        };
        write("sys/class/infiniband_verbs/abi_version", "6\n");
        write("sys/class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
        write("sys/class/infiniband_verbs/uverbs1/ibdev", "rxe1\n");
        write("dev/infiniband/uverbs0", "");
        write("sys/module/ib_uverbs/refcnt", "0\n");
        write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
        write("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "");
        let seen = Seen::read(root.path());
        let door = |number: u8, state| Door {
            path: format!("/dev/infiniband/uverbs{number}").into(),
            device: format!("rxe{number}"),
            state,
        };
        assert_eq!(seen.doors, [door(0, DoorState::Open), door(1, DoorState::NoNode)]);
        assert_eq!(seen.libraries, BTreeSet::from(["libibverbs.so.1"]));
        assert_eq!(seen.providers, BTreeSet::from(["rxe".to_owned()]));
        assert_eq!(seen.modules, BTreeSet::from(["ib_uverbs".to_owned()]));
    }
}
