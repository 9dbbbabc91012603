//! `Machine`: what a Linux machine is made of, as plain data in which anything unreadable is
//! unknown.

mod compute;
mod device;

pub use compute::{Core, CoreKind, CpuQuota, CpuUse, HugePages, MemoryLimit, Node};
pub use device::{
    Directory, Disk, Gid, GidKind, Iommu, Link, LinkLayer, LinkRate, Locality, LocalityFrom,
    NetDevice, NetKind, PciFunction, PortState, RdmaDevice, RdmaPort, SubnetAddress,
};

use crate::cpuset::CpuSet;
use crate::id::{CpuId, NodeId, PciAddress};
pub use crate::tree::Unknown;
use serde::{Deserialize, Serialize};

/// Where a [`Machine`] came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The root of the sysfs and procfs tree, where one was read.
    pub sysfs: Option<String>,
    /// The hwloc source (`live`, or the name of an XML file), where one was read.
    pub hwloc: Option<String>,
    /// True when this is the machine the program runs on.
    pub live: bool,
}

/// Two sources, or two files of one, that do not say the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Disagreement {
    /// What they speak of, as in `0000:43:00.0`.
    pub about: String,
    /// What was taken, and from where.
    pub taken: String,
    /// What was passed over, and where it stood.
    pub passed_over: String,
}

/// A machine, or what could be read of it. Lists are in the order of their ids; an id is never an
/// index. A field that is `None` is unknown, and [`Machine::unknowns`] says why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Where this description came from.
    pub source: Source,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// Vendor and product name of the machine.
    pub model: Option<String>,
    /// Memory nodes, with and without CPUs or memory. Never empty when a CPU is known: a machine
    /// without NUMA has one implied node.
    pub nodes: Vec<Node>,
    /// Physical cores that have at least one CPU online.
    pub cores: Vec<Core>,
    /// Which CPUs there are, and which this process may use.
    pub cpus: CpuUse,
    /// The CPU time this process's cgroup may use, where it is limited.
    pub quota: Option<CpuQuota>,
    /// Memory this process may lock, where known.
    pub memlock: Option<MemoryLimit>,
    /// True when the process holds `CAP_IPC_LOCK`, so that `memlock` is not counted.
    pub ipc_lock: Option<bool>,
    /// PCI functions.
    pub pci: Vec<PciFunction>,
    /// RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// Network devices of this network namespace.
    pub net: Vec<NetDevice>,
    /// Whole block devices (no partitions, no loop or RAM disks).
    pub disks: Vec<Disk>,
    /// The directories that were asked about, with what they lie on.
    pub directories: Vec<Directory>,
    /// Sources that do not say the same.
    pub disagreements: Vec<Disagreement>,
    /// What was looked for and could not be read.
    pub unknowns: Vec<Unknown>,
}

impl Machine {
    /// The node of that id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node that `cpu` belongs to; the lowest one where several claim it.
    #[must_use]
    pub fn node_of(&self, cpu: CpuId) -> Option<NodeId> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }

    /// The physical core that `cpu` is a thread of.
    #[must_use]
    pub fn core_of(&self, cpu: CpuId) -> Option<&Core> {
        self.cores.iter().find(|core| core.cpus.contains(cpu))
    }

    /// The PCI function at that address.
    #[must_use]
    pub fn pci_function(&self, address: PciAddress) -> Option<&PciFunction> {
        self.pci.iter().find(|function| function.address == address)
    }

    /// The network device of that name.
    #[must_use]
    pub fn net_device(&self, name: &str) -> Option<&NetDevice> {
        self.net.iter().find(|net| net.name == name)
    }

    /// The RDMA device of that name.
    #[must_use]
    pub fn rdma_device(&self, name: &str) -> Option<&RdmaDevice> {
        self.rdma.iter().find(|device| device.name == name)
    }

    /// The CPUs this process may use: online, in its affinity mask and in its cgroup's cpuset.
    #[must_use]
    pub fn allowed(&self) -> CpuSet {
        self.cpus.allowed()
    }

    /// The distance from one node to another as the firmware gives it: 10 is the node itself.
    /// Nodes of which nothing is said are as far as anything can be.
    #[must_use]
    pub fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        if from == to {
            return 10;
        }
        let known = |a: NodeId, b: NodeId| self.node(a)?.distances.get(&b).copied();
        known(from, to).or_else(|| known(to, from)).unwrap_or(u32::MAX)
    }

    /// Nodes whose memory this process may use and that have some, by id. Where no node says how
    /// much memory it has, all of them.
    #[must_use]
    pub fn memory_nodes(&self) -> Vec<NodeId> {
        let permitted = |id: &NodeId| {
            self.cpus.memory_nodes.as_ref().is_none_or(|permitted| permitted.contains(id))
        };
        let of = |keep: fn(&&Node) -> bool| {
            let kept = self.nodes.iter().filter(keep).map(|node| node.id);
            kept.filter(permitted).collect::<Vec<_>>()
        };
        let known = of(|node| node.memory_bytes.is_some_and(|bytes| bytes > 0));
        if known.is_empty() { of(|node| node.memory_bytes != Some(0)) } else { known }
    }

    /// True when at most one node has CPUs, so that every core is as near to everything.
    #[must_use]
    pub fn is_single_node(&self) -> bool {
        self.nodes.iter().filter(|node| !node.cpus.is_empty()).count() <= 1
    }
}

/// Vendor and product, or the product alone where it begins with the vendor.
pub(crate) fn model_name(words: &[String]) -> Option<String> {
    let repeats =
        |vendor: &str, product: &str| product.to_lowercase().starts_with(&vendor.to_lowercase());
    match words {
        [vendor, product] if repeats(vendor, product) => Some(product.clone()),
        [] => None,
        words => Some(words.join(" ")),
    }
}
