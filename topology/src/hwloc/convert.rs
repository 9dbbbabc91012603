//! Turns hwloc's object tree into a `Machine`: nodes, cores, kinds, distances.

use super::{HwlocError, io};
use crate::cpuset::CpuSet;
use crate::id::{CpuId, NodeId};
use crate::machine::{Core, CoreKind, CpuUse, HugePages, Machine, Node, Source};
use hwlocality::Topology;
use hwlocality::cpu::kind::CpuKind;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::distance::DistancesKind;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use std::collections::BTreeMap;
use std::path::Path;

/// As for the kernel's files: below this part of the best core's, it is an efficiency core.
const PERFORMANCE_PERCENT_MIN: u64 = 80;

pub(super) fn load_text(text: &str, path: &Path) -> Result<Machine, HwlocError> {
    let what = path.display().to_string();
    let refused = |why: String| HwlocError::Load { what: what.clone(), why };
    let builder = TopologyBuilder::new().from_xml(text).map_err(|e| refused(e.to_string()))?;
    let topology = build(builder).map_err(refused)?;
    Ok(convert(&topology, Source { sysfs: None, hwloc: Some(what.clone()), live: false }))
}

pub(crate) fn read_live() -> Result<Machine, HwlocError> {
    let what = "this machine".to_owned();
    let topology = build(TopologyBuilder::new()).map_err(|why| HwlocError::Load { what, why })?;
    Ok(convert(&topology, Source { sysfs: None, hwloc: Some("live".into()), live: true }))
}

fn build(builder: TopologyBuilder) -> Result<Topology, String> {
    let builder = builder
        // What this process may not use is still there.
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .map_err(|e| e.to_string())?
        .with_io_type_filter(TypeFilter::KeepAll)
        .map_err(|e| e.to_string())?;
    builder.build().map_err(|e| e.to_string())
}

fn convert(topology: &Topology, source: Source) -> Machine {
    let root = topology.root_object();
    let online = cpus_of(root);
    let nodes = nodes(topology);
    let info = |key: &str| root.info(key).map(|value| value.to_string_lossy().into_owned());
    let model = [info("DMISysVendor"), info("DMIProductName")];
    let words = model.into_iter().flatten();
    let words = words.map(|word| word.split_whitespace().collect::<Vec<_>>().join(" "));
    let model: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    let allowed: CpuSet = topology.allowed_cpuset().iter_set().filter_map(cpu_id).collect();
    let mut machine = Machine {
        source,
        kernel: info("OSRelease"),
        model: crate::machine::model_name(&model),
        cores: cores(topology),
        cpus: CpuUse {
            cpuset: (allowed != online).then_some(allowed),
            online,
            ..CpuUse::default()
        },
        nodes,
        ..Machine::default()
    };
    io::add_devices(topology, &mut machine);
    machine
}

fn cpu_id(index: hwlocality::bitmap::BitmapIndex) -> Option<CpuId> {
    u16::try_from(usize::from(index)).ok().map(CpuId)
}

/// The CPUs of an object; none for those without a place.
pub(super) fn cpus_of(object: &TopologyObject) -> CpuSet {
    let set = object.cpuset();
    set.iter().flat_map(|set| set.iter_set()).filter_map(cpu_id).collect()
}

fn node_id(object: &TopologyObject) -> Option<NodeId> {
    u16::try_from(object.os_index()?).ok().map(NodeId)
}

/// hwloc gives memory that is not attached to CPUs (HBM, CXL) the CPUs it is near, where the kernel
/// gives it none. A CPU belongs to the plainest and smallest node that has it.
fn nodes(topology: &Topology) -> Vec<Node> {
    let objects: Vec<&TopologyObject> = topology.objects_with_type(ObjectType::NUMANode).collect();
    let mut order: Vec<(bool, usize, NodeId, &TopologyObject)> = objects
        .iter()
        .filter_map(|object| {
            let special = object.subtype().is_some_and(|kind| kind.to_bytes() != b"DRAM");
            Some((special, cpus_of(object).len(), node_id(object)?, *object))
        })
        .collect();
    order.sort_by_key(|(special, cpus, id, _)| (*special, *cpus, *id));
    let distances = distances(topology);
    let mut taken = CpuSet::new();
    let mut nodes = Vec::new();
    for (_, _, id, object) in order {
        let cpus = cpus_of(object).difference(&taken);
        taken = taken.union(&cpus);
        let (memory_bytes, huge_pages) = memory(object);
        let distances = distances.get(&id).cloned().unwrap_or_default();
        nodes.push(Node { id, cpus, memory_bytes, distances, huge_pages, implied: false });
    }
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn memory(object: &TopologyObject) -> (Option<u64>, Vec<HugePages>) {
    let Some(ObjectAttributes::NUMANode(attributes)) = object.attributes() else {
        return (None, Vec::new());
    };
    // hwloc lists the kernel's ordinary pages first, and does not say how many of a pool are free.
    let huge = attributes.page_types().iter().skip(1);
    let pools = huge.map(|pages| HugePages {
        page_bytes: pages.size().get(),
        total: pages.count(),
        free: pages.count(),
    });
    (attributes.local_memory().map(std::num::NonZero::get), pools.collect())
}

fn distances(topology: &Topology) -> BTreeMap<NodeId, BTreeMap<NodeId, u32>> {
    let mut found: BTreeMap<NodeId, BTreeMap<NodeId, u32>> = BTreeMap::new();
    let kind = Some(DistancesKind::MEANS_LATENCY);
    let matrices = topology.distances_with_type(kind, ObjectType::NUMANode).unwrap_or_default();
    let Some(matrix) = matrices.first() else { return found };
    let ids: Vec<Option<NodeId>> =
        matrix.objects().map(|object| object.and_then(node_id)).collect();
    for ((from, to), distance) in matrix.enumerate_distances() {
        let pair = ids.get(from).copied().flatten().zip(ids.get(to).copied().flatten());
        if let (Some((from, to)), Ok(distance)) = (pair, u32::try_from(distance)) {
            found.entry(from).or_default().insert(to, distance);
        }
    }
    found
}

fn cores(topology: &Topology) -> Vec<Core> {
    let number =
        |object: &TopologyObject| object.os_index().and_then(|index| i64::try_from(index).ok());
    let core = |object: &TopologyObject| Core {
        cpus: cpus_of(object),
        package: object.first_ancestor_with_type(ObjectType::Package).and_then(number),
        core_id: number(object),
        kind: CoreKind::Unknown,
    };
    let mut cores: Vec<Core> = topology.objects_with_type(ObjectType::Core).map(core).collect();
    if cores.is_empty() {
        // Machines whose files name no cores have bare processing units.
        let bare = topology.objects_with_type(ObjectType::PU);
        cores = bare.map(|unit| Core { core_id: None, ..core(unit) }).collect();
    }
    cores.retain(|core| !core.cpus.is_empty());
    cores.sort_by_key(|core| core.cpus.first());
    set_kinds(topology, &mut cores);
    cores
}

/// hwloc makes a kind of every group of cores that differs, also of those that only boost higher;
/// what counts is the vendor's word, else the base frequency or the kernel's capacity.
fn set_kinds(topology: &Topology, cores: &mut [Core]) {
    let Ok(kinds) = topology.cpu_kinds() else { return };
    let kinds: Vec<CpuKind<'_>> = kinds.collect();
    if kinds.len() < 2 {
        return;
    }
    let info = |kind: &CpuKind<'_>, key: &str| {
        let infos = kind.infos.iter();
        let mut named = infos.filter(|info| info.name().to_bytes() == key.as_bytes());
        named.next().map(|info| info.value().to_string_lossy().into_owned())
    };
    let measure = |kind: &CpuKind<'_>| {
        let text = info(kind, "LinuxCapacity").or_else(|| info(kind, "FrequencyBaseMHz"));
        text.and_then(|text| text.parse::<u64>().ok())
    };
    let best = kinds.iter().filter_map(measure).max();
    for kind in &kinds {
        let by_vendor = match info(kind, "CoreType").as_deref() {
            Some("IntelCore") => Some(CoreKind::Performance),
            Some("IntelAtom") => Some(CoreKind::Efficiency),
            _ => None,
        };
        let by_measure = measure(kind).zip(best).map(|(measure, best)| {
            let enough =
                measure.saturating_mul(100) >= best.saturating_mul(PERFORMANCE_PERCENT_MIN);
            if enough { CoreKind::Performance } else { CoreKind::Efficiency }
        });
        let Some(found) = by_vendor.or(by_measure) else { continue };
        let cpus: CpuSet = kind.cpuset.iter_set().filter_map(cpu_id).collect();
        for core in cores.iter_mut().filter(|core| core.cpus.intersects(&cpus)) {
            core.kind = found;
        }
    }
    // Alike after all: only turbo bins differ.
    if cores.iter().all(|core| core.kind != CoreKind::Efficiency) {
        cores.iter_mut().for_each(|core| core.kind = CoreKind::Unknown);
    }
}
