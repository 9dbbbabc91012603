//! Warnings about what costs speed, each with what to do about it.

use crate::assign::no_rails_warning;
use crate::id::{NodeId, PciAddress};
use crate::machine::{LinkRate, Machine, MemoryLimit, PciFunction};
use crate::plan::{GroupKind, Plan, RailPath, RailPlacement, Warning, WarningCode};
use crate::units::{bits_text, bytes_text};
use std::collections::{BTreeMap, BTreeSet};

/// Locked memory below this is too little for one pool of buffers.
const MEMLOCK_BYTES_MIN: u64 = 1 << 30;

fn warning(
    code: WarningCode,
    about: impl Into<String>,
    text: impl Into<String>,
    todo: impl Into<String>,
) -> Warning {
    Warning { code, about: about.into(), text: text.into(), todo: todo.into() }
}

/// All warnings about the machine as far as the plan uses it.
pub(crate) fn warnings(machine: &Machine, plan: &Plan) -> Vec<Warning> {
    let mut found: Vec<Warning> = no_rails_warning(plan).into_iter().collect();
    if plan.rails.is_empty() {
        return found;
    }
    for rail in &plan.rails {
        found.extend(links(machine, rail));
        found.extend(unknown_node(machine, rail));
        found.extend(far_poller(plan, rail));
        found.extend(far_memory(machine, rail));
    }
    found.extend(shared_paths(plan));
    found.extend(huge_pages(machine, plan));
    found.extend(memlock(machine));
    found.extend(quota(machine, plan));
    found.extend(mtu(plan));
    found.extend(iommu(machine, plan));
    found.extend(disagreements(machine, plan));
    found.extend(dropped(plan));
    found
}

/// The functions whose links a rail's bytes pass: its card's and the bridges above, with each
/// bridge's partner further in.
fn path_of(machine: &Machine, address: PciAddress) -> Vec<&PciFunction> {
    let function = machine.pci_function(address);
    let physical = function
        .and_then(|f| f.physical_function.and_then(|p| machine.pci_function(p)))
        .or(function);
    let Some(card) = physical else { return Vec::new() };
    let bridges = card.bridges.iter().filter_map(|bridge| machine.pci_function(*bridge));
    bridges.chain(std::iter::once(card)).collect()
}

/// Each link has two ends; it could run at what the lesser of both allows. A port of a bridge that
/// leads down is the upper end of the link below it, and shows the same.
fn links(machine: &Machine, rail: &RailPlacement) -> Vec<Warning> {
    let path = rail.pci.map(|address| path_of(machine, address)).unwrap_or_default();
    let is_upper_end = |place: usize| {
        let leads_down = (path.len() - place).is_multiple_of(2);
        let below = path.get(place + 1).map(|below| below.link.now);
        leads_down && below == Some(path[place].link.now)
    };
    let ends = path.iter().enumerate().filter(|(place, _)| !is_upper_end(*place));
    let ends = ends.filter_map(|(place, lower)| {
        let upper = place.checked_sub(1).map(|above| path[above]);
        Some((*lower, upper, lower.link.now?, lower.link.most?))
    });
    ends.filter_map(|(lower, upper, now, most)| {
        // The functions of one card have one link.
        let card = Some(lower.address.slot()).filter(|&slot| machine.pci_function(slot).is_some());
        let about = card.unwrap_or(lower.address).to_string();
        let slot = upper.and_then(|upper| upper.link.most);
        let possible = slot.map_or(most, |slot| lesser(most, slot));
        let (is, could) = (now.bits_per_second(), possible.bits_per_second());
        if is < could {
            return Some(warning(
                WarningCode::LinkBelowMaximum,
                about,
                format!(
                    "its link runs at {now} ({}) and could run at {possible} ({})",
                    bits_text(is),
                    bits_text(could)
                ),
                "reseat the card and its riser, and check the slot's speed in the firmware set-up",
            ));
        }
        let limits = rail.bits_per_second.is_some_and(|bits| bits >= is);
        (most.bits_per_second() > could && limits).then(|| {
            warning(
                WarningCode::SlotBelowCard,
                about,
                format!("its slot gives it {possible}, the card could use {most}"),
                "move the card to a slot with more lines",
            )
        })
    })
    .collect()
}

fn lesser(a: LinkRate, b: LinkRate) -> LinkRate {
    LinkRate { megatransfers: a.megatransfers.min(b.megatransfers), lanes: a.lanes.min(b.lanes) }
}

fn is_other(rail: &RailPlacement) -> bool {
    matches!(rail.path, RailPath::Other { .. })
}

fn unknown_node(machine: &Machine, rail: &RailPlacement) -> Option<Warning> {
    let unknown = rail.near.is_empty() && !machine.is_single_node() && !is_other(rail);
    unknown.then(|| {
        warning(
            WarningCode::UnknownNode,
            &*rail.name,
            "no source tells which node it is near, so its poller and its memory may be far",
            "bind it by hand (--pin, --memory-node), or update the firmware so that numa_node is \
             set",
        )
    })
}

fn far_poller(plan: &Plan, rail: &RailPlacement) -> Option<Warning> {
    let poller = plan.poller_of(rail)?;
    let cpu = poller.cpu.filter(|&cpu| !rail.near.is_empty() && !rail.near.contains(cpu))?;
    let place = poller.node.map_or(String::new(), |node| format!(" on node {node}"));
    let near = rail.node.map_or(String::new(), |node| format!(", of node {node}"));
    Some(warning(
        WarningCode::FarPoller,
        &*rail.name,
        format!("its poller is on cpu {cpu}{place}, far from its near cpus {}{near}", rail.near),
        "let the process use a cpu near it (taskset, cpuset, --cpus), or leave the rail out",
    ))
}

fn far_memory(machine: &Machine, rail: &RailPlacement) -> Option<Warning> {
    let (near, chosen) = rail.node.zip(rail.memory_node).filter(|(near, chosen)| near != chosen)?;
    // A node without memory has no better choice.
    machine.memory_nodes().contains(&near).then(|| {
        warning(
            WarningCode::FarMemory,
            &*rail.name,
            format!("its buffers lie on node {chosen}, and it is near node {near}"),
            format!("leave --memory-node out, or name node {near}"),
        )
    })
}

fn names(plan: &Plan, rails: &[u16]) -> String {
    let name = |number: &u16| plan.rails.get(usize::from(*number)).map(|rail| rail.name.as_str());
    rails.iter().filter_map(name).collect::<Vec<_>>().join(", ")
}

fn shared_paths(plan: &Plan) -> Vec<Warning> {
    let one = |group: &crate::plan::Group| {
        let carries = match (group.bits_per_second, group.wanted_bits_per_second) {
            (Some(carries), Some(wanted)) if carries < wanted => format!(
                ": it carries {}, they could carry {}",
                bits_text(carries),
                bits_text(wanted)
            ),
            (Some(carries), _) => format!(": it carries {}", bits_text(carries)),
            (None, _) => String::new(),
        };
        let (text, todo) = match group.kind {
            GroupKind::SamePort => ("are one physical port", "use one rail of them"),
            GroupKind::SameDisk => ("are one disk", "name one directory per disk"),
            GroupKind::SameAdapter => {
                ("share one card", "spread the rails over several cards, in several slots")
            }
            GroupKind::SameAddress => (
                "share one network device and so one address, and peers cannot tell them apart",
                "give each rail a network device of its own, or use one rail of them",
            ),
            GroupKind::CommonUplink => (
                "share a PCI link that is narrower than they are",
                "move cards behind other switches",
            ),
        };
        let todo = match group.bits_per_second {
            None if group.kind == GroupKind::SameAdapter => {
                "expect no more than the card's own ports carry, or add a second card"
            }
            _ => todo,
        };
        let text = format!("{} rails {text} ({}){carries}", group.rails.len(), group.through);
        warning(WarningCode::SharedPath, names(plan, &group.rails), text, todo)
    };
    // That rails of one port or disk are also on one card goes without saying.
    let implied = |group: &crate::plan::Group| {
        let closer = [GroupKind::SamePort, GroupKind::SameDisk];
        let covers =
            |other: &crate::plan::Group| closer.contains(&other.kind) && other.rails == group.rails;
        group.kind == GroupKind::SameAdapter && plan.groups.iter().any(covers)
    };
    plan.groups.iter().filter(|group| !implied(group)).map(one).collect()
}

/// One warning for all nodes that lack pages of the same size, with the command that gives them
/// some.
fn huge_pages(machine: &Machine, plan: &Plan) -> Vec<Warning> {
    let used: BTreeSet<NodeId> = plan.rails.iter().filter_map(|rail| rail.memory_node).collect();
    let nodes = used.into_iter().filter_map(|id| machine.node(id));
    let mut without: BTreeMap<(u64, bool), Vec<String>> = BTreeMap::new();
    for node in nodes.filter(|node| node.huge_pages.iter().all(|pool| pool.total == 0)) {
        let Some(pool) = node.huge_pages.first() else { continue };
        let key = (pool.page_bytes / 1024, node.implied);
        without.entry(key).or_default().push(node.id.to_string());
    }
    let one = |((kibibytes, implied), ids): ((u64, bool), Vec<String>)| {
        let file = format!("hugepages-{kibibytes}kB/nr_hugepages");
        let nodes = "/sys/devices/system/node";
        let (about, todo) = match ids.as_slice() {
            _ if implied => {
                ("node 0".to_owned(), format!("echo 1024 > /sys/kernel/mm/hugepages/{file}"))
            }
            [id] => {
                (format!("node {id}"), format!("echo 1024 > {nodes}/node{id}/hugepages/{file}"))
            }
            ids => (
                format!("nodes {}", ids.join(", ")),
                format!(
                    "for n in {}; do echo 1024 > {nodes}/node$n/hugepages/{file}; done",
                    ids.join(" ")
                ),
            ),
        };
        let text = "no huge pages there: buffers use small ones, which cost the NIC and the cpu \
                    translations";
        warning(WarningCode::NoHugePages, about, text, todo)
    };
    without.into_iter().map(one).collect()
}

fn memlock(machine: &Machine) -> Option<Warning> {
    let Some(MemoryLimit::Bytes(bytes)) = machine.memlock else { return None };
    let low = bytes < MEMLOCK_BYTES_MIN && machine.ipc_lock != Some(true);
    low.then(|| {
        warning(
            WarningCode::LowMemlock,
            "process",
            format!(
                "only {} of memory may be locked, and registered buffers are",
                bytes_text(bytes)
            ),
            "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or --ulimit memlock=-1 for \
             the \
             container",
        )
    })
}

fn quota(machine: &Machine, plan: &Plan) -> Option<Warning> {
    let quota = machine.quota.as_ref()?;
    let hundredths = u128::from(quota.quota_us) * 100 / u128::from(quota.period_us.max(1));
    let cpus = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    let pollers = plan.pollers.len();
    Some(warning(
        WarningCode::CpuQuota,
        "process",
        format!(
            "{} allows {cpus} cpus; pollers that spin (here {pollers}) are stopped for the rest of \
             each {} ms when it is used up",
            quota.path,
            quota.period_us / 1000
        ),
        "raise the quota above the pollers and the program's own threads, or let pollers sleep \
             when \
         idle (adaptive waiting)",
    ))
}

fn mtu(plan: &Plan) -> Vec<Warning> {
    let mut found = Vec::new();
    let mut by_mtu: BTreeMap<(bool, u32), Vec<&str>> = BTreeMap::new();
    for rail in &plan.rails {
        let Some(mtu) = rail.mtu_bytes else { continue };
        let is_rdma = matches!(rail.path, RailPath::Rdma { .. });
        by_mtu.entry((is_rdma, mtu)).or_default().push(&rail.name);
    }
    for is_rdma in [false, true] {
        let of_kind = by_mtu.iter().filter(|((kind, _), _)| *kind == is_rdma);
        let list: Vec<String> =
            of_kind.map(|((_, mtu), rails)| format!("{mtu}: {}", rails.join(", "))).collect();
        if list.len() > 1 {
            found.push(warning(
                WarningCode::Mtu,
                if is_rdma { "RDMA rails" } else { "TCP rails" },
                format!("the rails have different MTUs in bytes: {}", list.join("; ")),
                "set the same MTU on all rails, their switches and the servers",
            ));
        }
    }
    let small = by_mtu.iter().filter(|((is_rdma, mtu), _)| *is_rdma && *mtu < 2048);
    for ((_, mtu), rails) in small {
        found.push(warning(
            WarningCode::Mtu,
            rails.join(", "),
            format!("the path MTU is only {mtu} bytes, which costs packets per byte"),
            "set the network device's MTU to 4200 or more (9000 is usual), there and on the \
             switches",
        ));
    }
    found
}

fn iommu(machine: &Machine, plan: &Plan) -> Option<Warning> {
    let translated = plan.rails.iter().filter(|rail| {
        let function = rail.pci.and_then(|address| machine.pci_function(address));
        let iommu = function.and_then(|function| function.iommu.as_ref());
        iommu.and_then(|iommu| iommu.translates()) == Some(true)
    });
    let translated: Vec<&str> = translated.map(|rail| rail.name.as_str()).collect();
    (!translated.is_empty()).then(|| {
        warning(
            WarningCode::IommuTranslation,
            translated.join(", "),
            "the IOMMU translates each of their memory accesses",
            "boot with iommu=pt, unless the machine must be protected from its own devices",
        )
    })
}

fn disagreements(machine: &Machine, plan: &Plan) -> Vec<Warning> {
    let rail_of = |about: &str| {
        let same = |rail: &&RailPlacement| {
            rail.pci.is_some_and(|pci| pci.to_string() == about) || rail.device() == Some(about)
        };
        plan.rails.iter().find(same)
    };
    let concerns = machine.disagreements.iter().filter_map(|d| Some((d, rail_of(&d.about)?)));
    concerns
        .map(|(disagreement, rail)| {
            warning(
                WarningCode::Disagreement,
                format!("{} ({})", rail.name, disagreement.about),
                format!("taken: {}; passed over: {}", disagreement.taken, disagreement.passed_over),
                "bind the rail by hand (--pin) if what was taken is wrong, and update the firmware",
            )
        })
        .collect()
}

fn dropped(plan: &Plan) -> Option<Warning> {
    (!plan.dropped_cpus.is_empty()).then(|| {
        warning(
            WarningCode::CpusDropped,
            "process",
            format!("cpus {} were asked for and cannot be used", plan.dropped_cpus),
            "name only cpus that are online and in the process's cpuset",
        )
    })
}
