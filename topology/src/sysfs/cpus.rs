//! Reads memory nodes, cores with their siblings and kinds, and which CPUs are online.

use super::Reader;
use crate::cpuset::{CpuSet, parse_ranges};
use crate::id::{CpuId, NodeId};
use crate::machine::{Core, CoreKind, HugePages, Node};
use std::collections::BTreeMap;

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

/// A core is an efficiency core when it has less than this part (in percent) of the best core's
/// capacity or base frequency. Hybrid machines seen: 74 % (i7-1370P); turbo bins of one kind differ
/// by less than 10 %.
const PERFORMANCE_PERCENT_MIN: u64 = 80;

/// CPUs that exist, by whether they are switched on.
#[derive(Clone, Debug)]
pub(super) struct Online {
    pub(super) online: CpuSet,
    pub(super) offline: CpuSet,
}

fn numbered(name: &str, prefix: &str) -> Option<u16> {
    let digits = name.strip_prefix(prefix)?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn cpu_list(reader: &Reader<'_>, path: &str) -> Option<CpuSet> {
    reader.tree.value(path)
}

/// A set written as a list in `list`, or as a hexadecimal mask in `mask` (older kernels).
pub(super) fn cpu_list_or_mask(reader: &Reader<'_>, list: &str, mask: &str) -> Option<CpuSet> {
    if let Some(text) = reader.tree.optional(list) {
        return reader.tree.parsed(list, &text);
    }
    let text = reader.tree.optional(mask)?;
    let set = CpuSet::from_hex_mask(&text);
    set.inspect_err(|error| reader.tree.note(mask, error.to_string())).ok()
}

pub(super) fn read_online(reader: &Reader<'_>) -> Online {
    let listed = reader.tree.list(CPUS);
    let folders: CpuSet = listed.iter().filter_map(|n| numbered(n, "cpu")).map(CpuId).collect();
    let online = cpu_list(reader, &format!("{CPUS}/online")).filter(|set| !set.is_empty());
    let online = online.unwrap_or_else(|| folders_online(reader, &folders));
    let online = if online.is_empty() { from_cpuinfo(reader) } else { online };
    // A sandbox may hide all of these; what this thread may use is there in any case.
    let own = || reader.tree.is_live().then(|| crate::pin::allowed_cpus().ok()).flatten();
    let online = if online.is_empty() { own().unwrap_or_default() } else { online };
    if online.is_empty() {
        reader.tree.note(CPUS, "no cpu is known to be online");
    }
    let present = cpu_list(reader, &format!("{CPUS}/present")).unwrap_or(folders);
    Online { offline: present.difference(&online), online }
}

fn folders_online(reader: &Reader<'_>, folders: &CpuSet) -> CpuSet {
    let on = |cpu: &CpuId| {
        let switch = reader.tree.optional(&format!("{CPUS}/cpu{cpu}/online"));
        switch.as_deref() != Some("0")
    };
    folders.iter().filter(on).collect()
}

fn from_cpuinfo(reader: &Reader<'_>) -> CpuSet {
    let text = reader.tree.optional("proc/cpuinfo").unwrap_or_default();
    let number = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "processor").then(|| value.trim().parse().ok().map(CpuId))?
    };
    text.lines().filter_map(number).collect()
}

pub(super) fn read_cores(reader: &Reader<'_>, online: &CpuSet) -> Vec<Core> {
    let mut placed = CpuSet::new();
    let mut cores = Vec::new();
    for cpu in online.iter() {
        if placed.contains(cpu) {
            continue;
        }
        let folder = format!("{CPUS}/cpu{cpu}/topology");
        let core_id = core_id(reader, cpu);
        let siblings = siblings(reader, &folder).unwrap_or_default();
        let others = siblings.intersection(online).difference(&placed);
        // Cores that share a part of themselves (AMD's compute units) are listed as siblings, and
        // have core ids of their own.
        let same = |other: &CpuId| *other != cpu && self::core_id(reader, *other) == core_id;
        let mut cpus: CpuSet = others.iter().filter(same).collect();
        cpus.insert(cpu);
        placed = placed.union(&cpus);
        let package = reader.tree.value(&format!("{folder}/physical_package_id"));
        cores.push(Core { cpus, package, core_id, kind: CoreKind::Unknown });
    }
    set_kinds(reader, &mut cores);
    cores
}

fn core_id(reader: &Reader<'_>, cpu: CpuId) -> Option<i64> {
    reader.tree.value(&format!("{CPUS}/cpu{cpu}/topology/core_id"))
}

fn siblings(reader: &Reader<'_>, folder: &str) -> Option<CpuSet> {
    let at = |file: &str| format!("{folder}/{file}");
    cpu_list_or_mask(reader, &at("core_cpus_list"), &at("core_cpus"))
        .or_else(|| cpu_list_or_mask(reader, &at("thread_siblings_list"), &at("thread_siblings")))
}

/// Kinds from the kernel's own lists, else from the capacity, else from the base frequency. The
/// maximum frequency says nothing: the turbo bins of performance cores differ too.
fn set_kinds(reader: &Reader<'_>, cores: &mut [Core]) {
    let performance = cpu_list(reader, "sys/devices/cpu_core/cpus");
    let efficiency = cpu_list(reader, "sys/devices/cpu_atom/cpus");
    if performance.is_some() || efficiency.is_some() {
        let (performance, efficiency) =
            (performance.unwrap_or_default(), efficiency.unwrap_or_default());
        for core in cores {
            core.kind = match () {
                () if core.cpus.intersects(&performance) => CoreKind::Performance,
                () if core.cpus.intersects(&efficiency) => CoreKind::Efficiency,
                () => CoreKind::Unknown,
            };
        }
        return;
    }
    for file in ["cpu_capacity", "cpufreq/base_frequency"] {
        if set_kinds_by(reader, cores, file) {
            return;
        }
    }
}

fn set_kinds_by(reader: &Reader<'_>, cores: &mut [Core], file: &str) -> bool {
    let measure = |core: &Core| -> Option<u64> {
        reader.tree.value(&format!("{CPUS}/cpu{}/{file}", core.cpus.first()?))
    };
    // A machine without the file for its first core does not have it for the others.
    if cores.first().and_then(measure).is_none() {
        return false;
    }
    let measures: Vec<Option<u64>> = cores.iter().map(measure).collect();
    let best = measures.iter().flatten().copied().max().unwrap_or(0);
    let is_performance = |measure: u64| {
        u128::from(measure) * 100 >= u128::from(best) * u128::from(PERFORMANCE_PERCENT_MIN)
    };
    if measures.iter().flatten().all(|&measure| is_performance(measure)) {
        return false;
    }
    for (core, measure) in cores.iter_mut().zip(measures) {
        core.kind = match measure.map(is_performance) {
            Some(true) => CoreKind::Performance,
            Some(false) => CoreKind::Efficiency,
            None => CoreKind::Unknown,
        };
    }
    true
}

pub(super) fn read_nodes(reader: &Reader<'_>, online: &Online) -> Vec<Node> {
    let listed = reader.tree.list(NODES);
    let mut ids: Vec<NodeId> =
        listed.iter().filter_map(|name| numbered(name, "node")).map(NodeId).collect();
    ids.sort();
    let mut nodes: Vec<Node> =
        ids.iter().map(|&id| read_node(reader, id, &ids, &online.online)).collect();
    nodes = part_shared_cpus(reader, nodes);
    if nodes.iter().all(|node| node.cpus.is_empty()) && !online.online.is_empty() {
        nodes = vec![implied_node(reader, &online.online)];
    }
    nodes
}

fn read_node(reader: &Reader<'_>, id: NodeId, ids: &[NodeId], online: &CpuSet) -> Node {
    let at = |file: &str| format!("{NODES}/node{id}/{file}");
    let cpus = cpu_list_or_mask(reader, &at("cpulist"), &at("cpumap"));
    if cpus.is_none() {
        reader.tree.note(&at("cpulist"), "the node's cpus are unknown");
    }
    let cpus = cpus.unwrap_or_default().intersection(online);
    let meminfo = reader.tree.expected(&at("meminfo")).unwrap_or_default();
    let distance = reader.tree.optional(&at("distance")).unwrap_or_default();
    let distances: Vec<u32> = distance.split_whitespace().map_while(|d| d.parse().ok()).collect();
    if !distance.is_empty() && distances.len() != ids.len() {
        let (given, nodes) = (distances.len(), ids.len());
        reader.tree.note(&at("distance"), format!("{given} distances for {nodes} nodes"));
    }
    Node {
        id,
        cpus,
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal:"),
        distances: ids.iter().copied().zip(distances).collect(),
        huge_pages: read_huge_pages(reader, &at("hugepages")),
        implied: false,
    }
}

/// A CPU belongs to the first node that claims it; firmware exists that lists it twice. A node all
/// of whose CPUs are another's is none: such machines list every CPU for every node.
fn part_shared_cpus(reader: &Reader<'_>, nodes: Vec<Node>) -> Vec<Node> {
    let mut owners: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    let mut parted = Vec::new();
    for mut node in nodes {
        let taken: CpuSet = node.cpus.iter().filter(|cpu| owners.contains_key(cpu)).collect();
        if !taken.is_empty() {
            let owner = taken.first().map_or(node.id, |cpu| owners[&cpu]);
            reader.disagree(
                &format!("node {}", node.id),
                format!("cpus {taken} belong to node {owner}, which comes first"),
                format!("node {} lists cpus {taken} as well", node.id),
            );
        }
        if !taken.is_empty() && taken == node.cpus {
            continue;
        }
        node.cpus = node.cpus.difference(&taken);
        owners.extend(node.cpus.iter().map(|cpu| (cpu, node.id)));
        parted.push(node);
    }
    parted
}

fn implied_node(reader: &Reader<'_>, online: &CpuSet) -> Node {
    let meminfo = reader.tree.optional("proc/meminfo").unwrap_or_default();
    reader.tree.note(NODES, "no memory node with cpus is listed; one is implied");
    Node {
        id: NodeId(0),
        cpus: online.clone(),
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal:"),
        distances: BTreeMap::new(),
        huge_pages: read_huge_pages(reader, "sys/kernel/mm/hugepages"),
        implied: true,
    }
}

/// The value of a `Node 0 MemTotal: 1024 kB` or `MemTotal: 1024 kB` line, in bytes.
fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let mut words = text.lines().find(|line| line.contains(key))?.split_whitespace();
    let kibibytes: u64 =
        words.find(|word| *word == key).and_then(|_| words.next()?.parse().ok())?;
    kibibytes.checked_mul(1024)
}

fn read_huge_pages(reader: &Reader<'_>, folder: &str) -> Vec<HugePages> {
    let mut pools = Vec::new();
    for name in reader.tree.list(folder) {
        let size = name.strip_prefix("hugepages-").and_then(|size| size.strip_suffix("kB"));
        let Some(kibibytes) = size.and_then(|size| size.parse::<u64>().ok()) else { continue };
        let count = |file: &str| reader.tree.value::<u64>(&format!("{folder}/{name}/{file}"));
        let Some(total) = count("nr_hugepages") else { continue };
        let free = count("free_hugepages").unwrap_or(0);
        pools.push(HugePages { page_bytes: kibibytes.saturating_mul(1024), total, free });
    }
    pools.sort();
    pools
}

/// A list of node ids, as in `Mems_allowed_list`.
pub(super) fn node_list(text: &str) -> Option<Vec<NodeId>> {
    let ranges = parse_ranges(text).ok()?;
    Some(ranges.into_iter().flat_map(|(first, last)| first..=last).map(NodeId).collect())
}
