//! From rails and wishes to places: the machine's plan, as the engine uses it.

use railring_core::RailPlace;
use railring_topology::assign::{Policy, Rails, Strictness};
use railring_topology::railspec::{RailSpec, RailTarget};
use railring_topology::{CpuSet, Discovery, Machine, Plan, assign};

use crate::builder::{EngineError, Pinning};
use crate::rails::{AnyRail, RailSet};
use crate::seats::{Seat, set_of};

/// A plan and the machine it is of.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) machine: Machine,
    pub(crate) plan: Plan,
    policy: Policy,
}

/// The caller's wishes: those of the rail set, and above them the builder's.
fn merged(set: &Policy, builder: &Policy) -> Policy {
    let default = Policy::default();
    let pins = set.pins.iter().chain(&builder.pins).cloned().collect();
    let is_strict = [set, builder].iter().any(|policy| policy.strictness == Strictness::Strict);
    Policy {
        cpus: builder.cpus.clone().or_else(|| set.cpus.clone()),
        node: builder.node.or(set.node),
        memory_node: builder.memory_node.or(set.memory_node),
        pins,
        pollers_max: builder.pollers_max.or(set.pollers_max),
        placement: match builder.placement {
            chosen if chosen != default.placement => chosen,
            _ => set.placement,
        },
        strictness: if is_strict { Strictness::Strict } else { Strictness::Survive },
        ..default
    }
}

/// The rail as the plan names it.
fn spec(rail: &AnyRail) -> RailSpec {
    RailSpec { name: Some(rail.control.info().name), ..rail.spec.clone() }
}

/// This machine, with what the rails' directories lie on.
fn read_machine(rails: &RailSet) -> Result<Machine, EngineError> {
    let directories = rails.rails.iter().filter_map(|rail| match &rail.spec.target {
        RailTarget::File(directory) => Some(directory),
        _ => None,
    });
    let discovery = directories.fold(Discovery::live(), |d, directory| d.directory(directory));
    Ok(discovery.read()?)
}

/// The plan of the rails, if there is a reason for one: they were found on a machine, or the caller
/// has wishes that only a plan can meet.
pub(crate) fn plan(rails: &mut RailSet, wishes: &Policy) -> Result<Option<Planned>, EngineError> {
    let places = Policy { pollers_max: None, strictness: Strictness::Survive, ..wishes.clone() };
    let is_placed = |rail: &AnyRail| {
        rail.spec.cpu.is_some() || rail.spec.node.is_some() || rail.spec.memory_node.is_some()
    };
    let has_reason =
        rails.machine.is_some() || places != Policy::default() || rails.rails.iter().any(is_placed);
    if rails.is_empty() || !has_reason {
        return Ok(None);
    }
    let machine = match rails.machine.take() {
        Some(machine) => machine,
        None => read_machine(rails)?,
    };
    let specs = rails.rails.iter().map(spec).collect();
    let policy = Policy { rails: Rails::Given(specs), ..merged(&rails.policy, wishes) };
    let plan = assign(&machine, &policy)?;
    Ok(Some(Planned { machine, plan, policy }))
}

impl Planned {
    pub(crate) fn is_strict(&self) -> bool {
        self.policy.strictness == Strictness::Strict
    }

    /// The poller of each rail.
    pub(crate) fn pollers_of_rails(&self) -> Vec<u32> {
        self.plan.rails.iter().map(|rail| rail.poller.into()).collect()
    }

    pub(crate) fn places(&self) -> Vec<RailPlace> {
        let number = |node: railring_topology::NodeId| u32::from(node.0);
        let rails = self.plan.rails.iter();
        rails
            .map(|rail| RailPlace {
                node: rail.node.map(number),
                memory_node: rail.memory_node.map(number),
                device: rail.device().map(str::to_owned),
                pci: rail.pci.map(|pci| pci.to_string()),
            })
            .collect()
    }

    /// Where the pollers are to run. One that is bound to no single CPU is still kept to those that
    /// the caller named.
    pub(crate) fn seats(&self) -> Vec<Seat> {
        let is_confined = self.policy.cpus.is_some() || self.policy.node.is_some();
        let pollers = self.plan.pollers.iter();
        pollers
            .map(|poller| {
                let confined = || Some(poller.cpus.clone()).filter(|_| is_confined);
                let asked = poller.cpu.map(CpuSet::from).or_else(confined);
                let rails =
                    poller.rails.iter().filter_map(|&n| self.plan.rails.get(usize::from(n)));
                let rails = rails.map(|rail| rail.name.clone()).collect();
                Seat { asked, ..Seat::new(poller.number.into(), rails) }
            })
            .collect()
    }
}

/// Where pollers run without a plan: as they were told, else each on an allowed CPU of its own, the
/// last ones first, with one left to the caller.
pub(crate) fn seats(
    pinning: &Pinning,
    allowed: &CpuSet,
    names: &[String],
    pollers_of_rails: &[u32],
) -> Vec<Seat> {
    let pollers = pollers_of_rails.iter().max().map_or(0, |last| last + 1);
    let by_number = |cpus: &[u32], poller: u32| {
        let cpu = cpus.get(poller as usize % cpus.len().max(1)).copied();
        cpu.map(|cpu| set_of(cpu).unwrap_or_default())
    };
    let spare: Vec<u32> = allowed.iter().skip(1).map(|cpu| u32::from(cpu.0)).collect();
    let spare: Vec<u32> = spare.into_iter().rev().collect();
    let seat = |poller: u32| {
        let rails = names.iter().zip(pollers_of_rails).filter(|(_, of)| **of == poller);
        let rails = rails.map(|(name, _)| name.clone()).collect();
        let asked = match pinning {
            Pinning::Unpinned => None,
            Pinning::Auto => by_number(&spare, poller),
            Pinning::Cpus(cpus) => by_number(cpus, poller),
        };
        Seat { asked, ..Seat::new(poller, rails) }
    };
    (0..pollers).map(seat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use railring_topology::assign::Placement;
    use railring_topology::{CpuId, NodeId};

    #[test]
    fn without_a_plan_the_caller_keeps_the_first_cpu() {
        let asked = |pinning: &Pinning, allowed: &str, of_rails: &[u32]| -> Vec<String> {
            let allowed = allowed.parse().expect("a list");
            let names = vec!["a".to_owned(); of_rails.len()];
            let seats = seats(pinning, &allowed, &names, of_rails);
            seats.iter().map(|seat| crate::seats::show(seat.asked.as_ref())).collect()
        };
        assert_eq!(asked(&Pinning::Auto, "2,5,9", &[0, 1, 0]), ["9", "5"]);
        assert_eq!(asked(&Pinning::Auto, "2,5,9", &[0, 1, 2]), ["9", "5", "9"]);
        assert_eq!(asked(&Pinning::Auto, "7", &[0]), ["any"]);
        assert_eq!(asked(&Pinning::Cpus(vec![3, 1]), "0", &[0, 1, 2]), ["3", "1", "3"]);
        assert_eq!(asked(&Pinning::Cpus(vec![]), "0", &[0]), ["any"]);
        // Beyond what a CPU can be called: no CPU at all, which no thread can be bound to.
        assert_eq!(asked(&Pinning::Cpus(vec![70_000]), "0", &[0]), [""]);
        assert_eq!(asked(&Pinning::Unpinned, "0-3", &[0, 1]), ["any", "any"]);
    }

    #[test]
    fn the_builders_wishes_come_before_the_sets() {
        let set = Policy {
            cpus: Some(CpuId(1).into()),
            node: Some(NodeId(0)),
            placement: Placement::Compact,
            ..Policy::default()
        };
        let builder = Policy { cpus: Some(CpuId(2).into()), ..Policy::default() };
        let merged = merged(&set, &builder);
        assert_eq!(merged.cpus, Some(CpuId(2).into()));
        assert_eq!((merged.node, merged.placement), (Some(NodeId(0)), Placement::Compact));
    }
}
