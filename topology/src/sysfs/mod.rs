//! Reads a `Machine` from the sysfs and procfs files below a root, the live one or a captured one.

mod cpus;
mod directory;
mod disk;
mod limits;
mod mounts;
mod near;
mod net;
mod pci;
mod rdma;

use crate::machine::{Disagreement, Machine, Source};
use crate::tree::Tree;
use std::cell::RefCell;
use std::path::PathBuf;

/// What is read besides the tree itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Directories whose disk and node are wanted.
    pub(crate) directories: Vec<PathBuf>,
}

/// What the readers of the parts share: the tree, and the place for contradictions.
#[derive(Debug)]
struct Reader<'a> {
    tree: &'a Tree,
    disagreements: RefCell<Vec<Disagreement>>,
}

impl Reader<'_> {
    fn disagree(&self, about: &str, taken: String, passed_over: String) {
        let about = about.to_owned();
        self.disagreements.borrow_mut().push(Disagreement { about, taken, passed_over });
    }
}

/// Reads all that is there. A file that is missing or unreadable leaves its field unknown.
pub(crate) fn read(tree: &Tree, wanted: &Wanted) -> Machine {
    let reader = Reader { tree, disagreements: RefCell::default() };
    let online = cpus::read_online(&reader);
    let nodes = cpus::read_nodes(&reader, &online);
    let near = near::Near::new(&online.online, &nodes);
    let pci = pci::read(&reader, &near);
    let net = net::read(&reader, &pci);
    let rdma = rdma::read(&reader, &pci, &net);
    let disks = disk::read(&reader, &pci);
    let directories = directory::read(&reader, &disks, &wanted.directories);
    let limits = limits::read(&reader);
    let mut disagreements = reader.disagreements.take();
    disagreements.sort();
    Machine {
        source: Source { sysfs: Some(tree.name()), hwloc: None, live: tree.is_live() },
        kernel: kernel(tree),
        model: model(tree),
        cores: cpus::read_cores(&reader, &online.online),
        cpus: limits.cpus(online),
        quota: limits.quota,
        memlock: limits.memlock,
        ipc_lock: limits.ipc_lock,
        nodes,
        pci,
        rdma,
        net,
        disks,
        directories,
        disagreements,
        unknowns: tree.unknowns(),
    }
}

fn kernel(tree: &Tree) -> Option<String> {
    let version = tree.optional("proc/sys/kernel/osrelease");
    version.or_else(|| Some(tree.optional("proc/version")?.split(' ').nth(2)?.to_owned()))
}

fn model(tree: &Tree) -> Option<String> {
    let dmi = |file: &str| tree.optional(&format!("sys/class/dmi/id/{file}"));
    let words: Vec<String> = [dmi("sys_vendor"), dmi("product_name")]
        .into_iter()
        .flatten()
        .map(|word| word.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|word| !word.is_empty())
        .collect();
    let model = crate::machine::model_name(&words);
    model.or_else(|| tree.optional("proc/device-tree/model"))
}
