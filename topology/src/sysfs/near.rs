//! Decides which cores a device is near, from its `numa_node`, its `local_cpulist` and its bridges.

use super::{Reader, cpus};
use crate::cpuset::CpuSet;
use crate::id::{NodeId, PciAddress};
use crate::machine::{Locality, LocalityFrom, Node};

/// The machine's nodes, as far as locality needs them.
#[derive(Debug)]
pub(super) struct Near<'a> {
    online: &'a CpuSet,
    nodes: &'a [Node],
}

impl<'a> Near<'a> {
    pub(super) fn new(online: &'a CpuSet, nodes: &'a [Node]) -> Self {
        Self { online, nodes }
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Where the device in `folder` is near. Precedence: its own `numa_node` when it names a node
    /// that exists; its `local_cpulist` when that is not simply every CPU; the same two of the
    /// bridges above, innermost first. A `local_cpulist` that contradicts `numa_node` is reported.
    pub(super) fn of_device(
        &self,
        reader: &Reader<'_>,
        folder: &str,
        about: &str,
        bridges: &[(PciAddress, String)],
    ) -> Locality {
        if let Some(own) = self.of_folder(reader, folder, about) {
            return own;
        }
        let above = bridges.iter().rev().find_map(|(address, folder)| {
            let found = self.of_folder(reader, folder, &address.to_string())?;
            Some(Locality { from: LocalityFrom::Bridge(*address), ..found })
        });
        above.unwrap_or_default()
    }

    fn of_folder(&self, reader: &Reader<'_>, folder: &str, about: &str) -> Option<Locality> {
        let local = self.local_cpus(reader, folder);
        if let Some(node) = self.numa_node(reader, folder) {
            return Some(self.by_node(reader, node, local, about));
        }
        // Every CPU is what the kernel answers when it does not know.
        let cpus = local.filter(|cpus| cpus != self.online)?;
        Some(Locality { node: self.node_holding(&cpus), cpus, from: LocalityFrom::LocalCpus })
    }

    fn local_cpus(&self, reader: &Reader<'_>, folder: &str) -> Option<CpuSet> {
        let at = |file: &str| format!("{folder}/{file}");
        let set = cpus::cpu_list_or_mask(reader, &at("local_cpulist"), &at("local_cpus"))?;
        Some(set.intersection(self.online)).filter(|set| !set.is_empty())
    }

    fn numa_node(&self, reader: &Reader<'_>, folder: &str) -> Option<&Node> {
        let path = format!("{folder}/numa_node");
        let number: i64 = reader.tree.value(&path)?;
        // -1 (and what a 32-bit reader would make of it) is the kernel's word for unknown.
        if number < 0 || number == i64::from(u32::MAX) {
            reader.tree.note(&path, "says -1: the firmware did not tell the node");
            return None;
        }
        let node = u16::try_from(number).ok().and_then(|id| self.node(NodeId(id)));
        if node.is_none() {
            reader.tree.note(&path, format!("says {number}, which is no node of this machine"));
        }
        node
    }

    fn by_node(
        &self,
        reader: &Reader<'_>,
        node: &Node,
        local: Option<CpuSet>,
        about: &str,
    ) -> Locality {
        let from = LocalityFrom::NumaNode;
        if node.cpus.is_empty() {
            let cpus = local.filter(|cpus| cpus != self.online);
            let cpus = cpus.unwrap_or_else(|| self.cpus_nearest(node));
            return Locality { node: Some(node.id), cpus, from };
        }
        if let Some(local) = local
            && local != node.cpus
        {
            reader.disagree(
                about,
                format!("numa_node {}, whose cpus are {}", node.id, node.cpus),
                format!("local_cpulist {local}"),
            );
        }
        Locality { node: Some(node.id), cpus: node.cpus.clone(), from }
    }

    /// CPUs of the nodes with CPUs that are least far from one without.
    fn cpus_nearest(&self, node: &Node) -> CpuSet {
        let with_cpus = || self.nodes.iter().filter(|other| !other.cpus.is_empty());
        let distance = |other: &Node| node.distances.get(&other.id).copied();
        let Some(least) = with_cpus().filter_map(distance).min() else { return CpuSet::new() };
        let nearest = with_cpus().filter(|other| distance(other) == Some(least));
        nearest.fold(CpuSet::new(), |cpus, other| cpus.union(&other.cpus))
    }

    fn node_holding(&self, cpus: &CpuSet) -> Option<NodeId> {
        self.nodes.iter().find(|node| cpus.is_subset(&node.cpus)).map(|node| node.id)
    }
}

/// Where something is near that is made of several devices: their common node, else none, and all
/// the CPUs that any of them is near.
pub(super) fn combined<'a>(
    parts: impl Iterator<Item = &'a Locality> + Clone,
    from: LocalityFrom,
) -> Locality {
    let known = || parts.clone().filter(|part| !part.cpus.is_empty());
    let Some(first) = known().next() else { return Locality::default() };
    let node = first.node.filter(|_| known().all(|part| part.node == first.node));
    let cpus = known().fold(CpuSet::new(), |cpus, part| cpus.union(&part.cpus));
    Locality { node, cpus, from }
}
