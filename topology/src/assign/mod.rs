//! `assign`: from a machine and a policy to rails, pollers and memory, each with its reasons.
//!
//! A pure function: it reads nothing, and the same input gives the same plan.

mod candidate;
mod given;
mod groups;
mod memory;
mod policy;
mod pollers;
mod select;
mod usable;

pub use policy::{
    Pin, PinTextError, Placement, PlacementError, Policy, Rails, SamePort, Strictness,
};

use crate::cpuset::CpuSet;
use crate::id::{CpuId, NodeId};
use crate::machine::Machine;
use crate::plan::{PassedOver, Plan, RailPlacement, Reason, ReasonCode, Warning, WarningCode};
use crate::units::bits_text;
use crate::warn;
use candidate::Candidate;
use pollers::Placer;
use std::collections::BTreeMap;

/// Rails of one plan; their numbers are 16 bits wide.
const RAILS_MAX: usize = u16::MAX as usize;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssignError {
    /// A rail names a device that is not there.
    #[error("there is no device '{name}' on this machine; known are: {known}")]
    NoSuchDevice {
        /// The name.
        name: String,
        /// The devices there are.
        known: String,
    },
    /// A rail names a port that is not there.
    #[error("device {device} has no port {port}; its ports are: {known}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The port.
        port: u32,
        /// The ports there are.
        known: String,
    },
    /// A device has several ports, and the rail names none.
    #[error("device {device} has the ports {known}; name one, as in {device}:1")]
    WhichPort {
        /// The device.
        device: String,
        /// The ports there are.
        known: String,
    },
    /// A node that was named does not exist.
    #[error("there is no node {node} on this machine; known are: {known}")]
    NoSuchNode {
        /// The node.
        node: NodeId,
        /// The nodes there are.
        known: String,
    },
    /// A memory node that was named has no memory this process may use.
    #[error("node {node} has no memory that this process may use; nodes that have: {known}")]
    NoMemory {
        /// The node.
        node: NodeId,
        /// The nodes that have memory.
        known: String,
    },
    /// A pin names a rail that is not in the plan.
    #[error("there is no rail '{rail}' to pin; the rails are: {known}")]
    NoSuchRail {
        /// The rail.
        rail: String,
        /// The rails there are.
        known: String,
    },
    /// None of the CPUs that were asked for can be used.
    #[error("none of the cpus {asked} can be used for {what}: this process may use {usable}")]
    NoCpus {
        /// What was asked for.
        asked: CpuSet,
        /// What it was asked for.
        what: String,
        /// The CPUs that can be used.
        usable: CpuSet,
    },
    /// There are rails, and no CPU is known to poll them.
    #[error("no cpu is known that could poll the {rails} rails; is sysfs mounted and readable?")]
    CpusUnknown {
        /// How many rails there are.
        rails: usize,
    },
    /// Some of the CPUs that were asked for cannot be used, and the policy is strict.
    #[error(
        "cpus {dropped} were asked for and cannot be used; leave them out, or do not be strict"
    )]
    Dropped {
        /// The CPUs.
        dropped: CpuSet,
    },
    /// More rails than a plan can number.
    #[error("{rails} rails were found, more than the {RAILS_MAX} of a plan; ask for fewer")]
    TooManyRails {
        /// How many were found.
        rails: usize,
    },
    /// No device is usable.
    #[error("no rail is usable: {why}")]
    NoRails {
        /// Every device that was passed over, with why.
        why: String,
    },
}

impl Plan {
    /// The plan, if it has rails.
    ///
    /// # Errors
    /// [`AssignError::NoRails`], which lists every device and why it is no rail.
    pub fn require_rails(self) -> Result<Self, AssignError> {
        if !self.rails.is_empty() {
            return Ok(self);
        }
        let one = |passed: &PassedOver| format!("{}: {}", passed.name, passed.why);
        let why = self.passed_over.iter().map(one).collect::<Vec<_>>().join("; ");
        let why =
            if why.is_empty() { "no RDMA, network or disk device is known".into() } else { why };
        Err(AssignError::NoRails { why })
    }
}

/// Derives the rails of a machine with their pollers and memory. A machine without usable devices
/// gives an empty plan that says why (see [`Plan::require_rails`]).
///
/// # Errors
/// When something the policy names does not exist, or cannot be used at all.
pub fn assign(machine: &Machine, policy: &Policy) -> Result<Plan, AssignError> {
    check_nodes(machine, policy)?;
    let (usable, dropped) = usable_cpus(machine, policy)?;
    let (candidates, mut passed_over) = match &policy.rails {
        Rails::Given(specs) => (given::candidates(machine, specs)?, Vec::new()),
        _ => {
            let found = usable::find(machine, policy);
            (found.candidates, found.passed_over)
        }
    };
    let given = matches!(policy.rails, Rails::Given(_));
    let wide = Policy { same_port: SamePort::All, ..policy.clone() };
    let (chosen, others) = select::select(&candidates, if given { &wide } else { policy }, &usable);
    passed_over.extend(others);
    if chosen.len() > RAILS_MAX {
        return Err(AssignError::TooManyRails { rails: chosen.len() });
    }
    if !chosen.is_empty() && usable.is_empty() {
        return Err(AssignError::CpusUnknown { rails: chosen.len() });
    }
    let rails: Vec<&Candidate> = chosen.iter().map(|&index| &candidates[index]).collect();
    let pins = pins_by_place(machine, policy, &rails)?;
    let placed = Placer::new(machine, policy, &usable, &rails).place(&pins);
    let (groups, expected) = groups::evaluate(&candidates, &chosen);
    let mut plan = Plan {
        rails: place_rails(machine, policy, &rails, &placed),
        pollers: placed.pollers,
        groups,
        expected,
        passed_over,
        dropped_cpus: dropped,
        warnings: placed.warnings,
    };
    plan.warnings.extend(rails.iter().flat_map(|rail| rail.warnings.iter().cloned()));
    plan.warnings.extend(warn::warnings(machine, &plan));
    plan.warnings.sort_by(|a, b| (a.code, &a.about).cmp(&(b.code, &b.about)));
    plan.warnings.dedup();
    Ok(plan)
}

fn ids(nodes: impl Iterator<Item = NodeId>) -> String {
    nodes.map(|id| id.to_string()).collect::<Vec<_>>().join(", ")
}

fn check_nodes(machine: &Machine, policy: &Policy) -> Result<(), AssignError> {
    let given: &[_] = if let Rails::Given(specs) = &policy.rails { specs } else { &[] };
    let cpu_nodes = policy.node.into_iter().chain(given.iter().filter_map(|spec| spec.node));
    for node in cpu_nodes {
        if machine.node(node).is_none() {
            let known = ids(machine.nodes.iter().map(|node| node.id));
            return Err(AssignError::NoSuchNode { node, known });
        }
    }
    let with_memory = machine.memory_nodes();
    let memory = policy.memory_node.into_iter();
    for node in memory.chain(given.iter().filter_map(|spec| spec.memory_node)) {
        if !with_memory.contains(&node) {
            return Err(AssignError::NoMemory { node, known: ids(with_memory.into_iter()) });
        }
    }
    Ok(())
}

/// The CPUs that pollers may use, and those that were asked for and cannot be. CPUs that are named
/// may lie outside the affinity mask (isolated ones do), never outside the cpuset.
fn usable_cpus(machine: &Machine, policy: &Policy) -> Result<(CpuSet, CpuSet), AssignError> {
    let bindable = machine.cpus.bindable();
    let mut usable = machine.allowed();
    let mut dropped = CpuSet::new();
    if let Some(asked) = &policy.cpus {
        usable = asked.intersection(&bindable);
        dropped = asked.difference(&bindable);
        if usable.is_empty() {
            let (asked, what) = (asked.clone(), "pollers".to_owned());
            return Err(AssignError::NoCpus { asked, what, usable: bindable });
        }
        if policy.strictness == Strictness::Strict && !dropped.is_empty() {
            return Err(AssignError::Dropped { dropped });
        }
    }
    if let Some(node) = policy.node.and_then(|id| machine.node(id)) {
        let on_node = usable.intersection(&node.cpus);
        if on_node.is_empty() {
            let (asked, what) = (node.cpus.clone(), format!("pollers on node {}", node.id));
            return Err(AssignError::NoCpus { asked, what, usable });
        }
        usable = on_node;
    }
    Ok((usable, dropped))
}

/// The CPUs of pollers bound by hand, by the rail's place in the plan: the policy's pins before the
/// rails' own.
fn pins_by_place(
    machine: &Machine,
    policy: &Policy,
    rails: &[&Candidate],
) -> Result<BTreeMap<usize, CpuId>, AssignError> {
    let mut pins: BTreeMap<usize, CpuId> =
        rails.iter().enumerate().filter_map(|(n, rail)| Some((n, rail.cpu?))).collect();
    for pin in &policy.pins {
        let place = place_of(rails, &pin.rail).ok_or_else(|| AssignError::NoSuchRail {
            rail: pin.rail.clone(),
            known: rails.iter().map(|rail| rail.name.as_str()).collect::<Vec<_>>().join(", "),
        })?;
        pins.insert(place, pin.cpu);
    }
    let bindable = machine.cpus.bindable();
    for (&place, &cpu) in &pins {
        if !bindable.contains(cpu) {
            let what = format!("the poller of rail {}", rails[place].name);
            return Err(AssignError::NoCpus { asked: cpu.into(), what, usable: bindable });
        }
    }
    Ok(pins)
}

/// The same rules as [`Plan::rail`]: name, number, or a device with one rail.
fn place_of(rails: &[&Candidate], wanted: &str) -> Option<usize> {
    let by_name = rails.iter().position(|rail| rail.name == wanted);
    let by_number = || wanted.parse().ok().filter(|&number: &usize| number < rails.len());
    let by_device = || {
        let device = |rail: &Candidate| match &rail.path {
            crate::plan::RailPath::Rdma { device, .. } => device == wanted,
            _ => false,
        };
        let mut places = rails.iter().enumerate().filter(|(_, rail)| device(rail));
        places.next().filter(|_| places.next().is_none()).map(|(place, _)| place)
    };
    by_name.or_else(by_number).or_else(by_device)
}

fn place_rails(
    machine: &Machine,
    policy: &Policy,
    rails: &[&Candidate],
    placed: &pollers::Placed,
) -> Vec<RailPlacement> {
    let one = |(place, number): (usize, u16)| {
        let mut rail = rails[place].clone();
        let poller = placed.of_rail[place];
        let at = placed.pollers.iter().find(|p| p.number == poller);
        let (memory_node, memory) = memory::choose(machine, &rail, at, policy.memory_node);
        rail.explain_locality(machine);
        let mut reasons = rail.reasons.clone();
        reasons.extend(placed.reasons[place].iter().cloned());
        reasons.push(memory);
        reasons.push(explain_bandwidth(&rail));
        reasons.sort_by_key(|reason| reason.code);
        RailPlacement {
            number,
            bits_per_second: rail.alone(),
            name: rail.name,
            path: rail.path,
            pci: rail.pci,
            node: rail.locality.node,
            near: rail.locality.cpus,
            poller,
            memory_node,
            mtu_bytes: rail.mtu_bytes,
            weight: rail.weight,
            reasons,
        }
    };
    (0..rails.len()).zip(0_u16..).map(one).collect()
}

fn explain_bandwidth(rail: &Candidate) -> Reason {
    let narrowest = rail.stages.iter().filter(|stage| stage.capacity.is_some());
    let narrowest = narrowest.min_by_key(|stage| stage.capacity);
    let text = match narrowest.and_then(|stage| Some((&stage.through, stage.capacity?))) {
        Some((through, bits)) => {
            let what = match through {
                candidate::Through::Port { .. } | candidate::Through::Net(_) => "its port".into(),
                candidate::Through::Disk(_) => "its disk".into(),
                candidate::Through::Slot(_) | candidate::Through::Card(_) => {
                    "the link of its card".to_owned()
                }
                candidate::Through::Bridge(bridge) => format!("the link at {bridge}"),
            };
            format!("at most {}, by {what}", bits_text(bits))
        }
        None => "neither its port's rate nor its links' are known".to_owned(),
    };
    Reason::new(ReasonCode::Bandwidth, text)
}

/// The warning for a plan without rails.
pub(crate) fn no_rails_warning(plan: &Plan) -> Option<Warning> {
    plan.rails.is_empty().then(|| Warning {
        code: WarningCode::NoRails,
        about: "plan".to_owned(),
        text: match plan.passed_over.len() {
            0 => "no RDMA or network device is known, and no directory was named".to_owned(),
            count => {
                format!("none of the {count} devices found is usable; they are listed with why")
            }
        },
        todo: "bring a port up and give it an address, or give rails by hand".to_owned(),
    })
}
