//! Puts pollers on cores: near first, other physical cores before siblings, sharing when they run
//! out.

use super::candidate::Candidate;
use super::policy::{Placement, Policy};
use crate::cpuset::CpuSet;
use crate::id::{CpuId, NodeId};
use crate::machine::{CoreKind, Machine};
use crate::plan::{PollerPlacement, Reason, ReasonCode, Warning, WarningCode};
use crate::units::plural;
use std::collections::BTreeMap;

/// Where one rail's poller may run.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// Near CPUs of the rail; all usable ones when nothing is known.
    near: CpuSet,
    /// The node that distances are counted from.
    node: Option<NodeId>,
    /// CPUs it may use at all.
    usable: CpuSet,
    /// Bound by hand.
    pin: Option<CpuId>,
}

/// The pollers, and the reasons and warnings for each rail (by its place in the plan).
#[derive(Debug, Default)]
pub(super) struct Placed {
    pub(super) pollers: Vec<PollerPlacement>,
    /// For each rail the number of its poller.
    pub(super) of_rail: Vec<u16>,
    pub(super) reasons: Vec<Vec<Reason>>,
    pub(super) warnings: Vec<Warning>,
}

pub(super) struct Placer<'a> {
    pub(super) machine: &'a Machine,
    pub(super) policy: &'a Policy,
    /// CPUs that pollers may use.
    pub(super) usable: &'a CpuSet,
    pub(super) rails: &'a [&'a Candidate],
    /// What is known of each usable CPU, so that nothing is searched for in the inner loops.
    facts: BTreeMap<CpuId, CpuFacts>,
    /// True when some CPU serves interrupts of the rails' functions.
    any_busy: bool,
}

/// What makes a CPU a better or a worse place for a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuFacts {
    /// Its core's place in the machine's list.
    core: Option<usize>,
    kind: CoreKind,
    node: Option<NodeId>,
    /// Interrupts of the rails' functions that its core serves, and it itself.
    busy: (u32, u32),
    isolated: bool,
    /// 2 for CPU 0, where the kernel does its own work, 1 for its siblings, 0 for the others.
    housekeeping: u8,
}

impl<'a> Placer<'a> {
    pub(super) fn new(
        machine: &'a Machine,
        policy: &'a Policy,
        usable: &'a CpuSet,
        rails: &'a [&'a Candidate],
    ) -> Self {
        let mut busy = BTreeMap::new();
        let functions = rails.iter().filter_map(|rail| machine.pci_function(rail.order.pci?));
        for (&cpu, &count) in functions.flat_map(|function| &function.interrupts) {
            *busy.entry(cpu).or_insert(0) += count;
        }
        let mut facts = BTreeMap::new();
        let cores = machine.cores.iter().enumerate();
        let core_of: BTreeMap<CpuId, usize> =
            cores.flat_map(|(at, core)| core.cpus.iter().map(move |cpu| (cpu, at))).collect();
        for cpu in machine.cpus.online.iter().chain(usable.iter()) {
            let at = core_of.get(&cpu).copied();
            let core = at.map(|at| &machine.cores[at]);
            let own = |cpu: CpuId| busy.get(&cpu).copied().unwrap_or(0);
            let of_core = core.map_or(own(cpu), |core| core.cpus.iter().map(own).sum());
            let beside_zero = core.is_some_and(|core| core.cpus.contains(CpuId(0)));
            facts.insert(
                cpu,
                CpuFacts {
                    core: at,
                    kind: core.map_or(CoreKind::Unknown, |core| core.kind),
                    node: machine.node_of(cpu),
                    busy: (of_core, own(cpu)),
                    isolated: machine.cpus.isolated.contains(cpu),
                    housekeeping: if cpu == CpuId(0) { 2 } else { u8::from(beside_zero) },
                },
            );
        }
        Self { machine, policy, usable, rails, facts, any_busy: !busy.is_empty() }
    }

    fn core_of(&self, cpu: CpuId) -> Option<usize> {
        self.facts.get(&cpu).and_then(|facts| facts.core)
    }

    /// The CPU of a poller on the same core, if there is one.
    fn sibling_poller(&self, placed: &Placed, cpu: CpuId) -> Option<CpuId> {
        let core = self.core_of(cpu)?;
        let mut cpus = placed.pollers.iter().filter_map(|poller| poller.cpu);
        cpus.find(|&other| self.core_of(other) == Some(core))
    }

    /// Places all rails. `pins` are by place in the plan and already checked.
    pub(super) fn place(&self, pins: &BTreeMap<usize, CpuId>) -> Placed {
        let mut placed = Placed {
            of_rail: vec![0; self.rails.len()],
            reasons: vec![Vec::new(); self.rails.len()],
            ..Placed::default()
        };
        if self.policy.placement == Placement::Unpinned {
            self.leave_unpinned(&mut placed);
            return placed;
        }
        let wishes: Vec<Wish> =
            self.rails.iter().enumerate().map(|(n, rail)| self.wish(rail, pins.get(&n))).collect();
        let pollers_max = self.pollers_max(&wishes);
        for rail in self.order(&wishes) {
            self.place_one(&mut placed, &wishes[rail], rail, pollers_max);
        }
        self.number_by_rail(&mut placed);
        self.explain_sharing(&mut placed, pollers_max);
        placed
    }

    fn leave_unpinned(&self, placed: &mut Placed) {
        let pollers =
            self.policy.pollers_max.unwrap_or(usize::MAX).clamp(1, self.rails.len().max(1));
        for rail in 0..self.rails.len() {
            let number = (rail % pollers) as u16;
            placed.of_rail[rail] = number;
            placed.reasons[rail].push(Reason::new(
                ReasonCode::Override,
                "its poller is bound to nothing, as the policy 'unpinned' asks",
            ));
            match placed.pollers.get_mut(usize::from(number)) {
                Some(poller) => poller.rails.push(rail as u16),
                None => placed.pollers.push(PollerPlacement {
                    number,
                    cpu: None,
                    cpus: self.usable.clone(),
                    node: None,
                    rails: vec![rail as u16],
                }),
            }
        }
    }

    fn wish(&self, rail: &Candidate, pin: Option<&CpuId>) -> Wish {
        let of_node = |id: NodeId| self.machine.node(id).map(|node| node.cpus.clone());
        let usable = rail.node.and_then(of_node).map(|cpus| cpus.intersection(self.usable));
        let usable = usable.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| self.usable.clone());
        let near = if rail.locality.cpus.is_empty() { &usable } else { &rail.locality.cpus };
        Wish { near: near.clone(), node: rail.locality.node, usable, pin: pin.copied() }
    }

    /// As many pollers as run all the time without being stopped: the CPU quota's, and one per node
    /// under the compact policy, and no more than asked for. Pollers bound by hand are always
    /// granted.
    fn pollers_max(&self, wishes: &[Wish]) -> usize {
        let by_quota = self.machine.quota.as_ref().map_or(usize::MAX, |q| q.busy_threads_max());
        let pinned = wishes.iter().filter(|wish| wish.pin.is_some()).count();
        let by_policy = match self.policy.placement {
            Placement::Compact => {
                let mut near: Vec<&CpuSet> = wishes.iter().map(|wish| &wish.near).collect();
                near.sort();
                near.dedup();
                near.len()
            }
            _ => usize::MAX,
        };
        let asked = self.policy.pollers_max.unwrap_or(usize::MAX);
        by_quota.min(by_policy).min(asked).max(pinned).max(1)
    }

    /// Rails bound by hand first; then one of each place, then the second of each, and so on, so
    /// that no place goes without a poller while another has two. Where nothing is known comes
    /// last.
    fn order(&self, wishes: &[Wish]) -> Vec<usize> {
        let mut seen: BTreeMap<&CpuSet, usize> = BTreeMap::new();
        let mut order: Vec<(bool, usize, bool, usize)> = Vec::new();
        for (rail, wish) in wishes.iter().enumerate() {
            let nth = seen.entry(&wish.near).or_insert(0);
            let unknown = self.rails[rail].locality.cpus.is_empty();
            order.push((wish.pin.is_none(), *nth, unknown, rail));
            *nth += 1;
        }
        order.sort_unstable();
        order.into_iter().map(|(_, _, _, rail)| rail).collect()
    }

    fn place_one(&self, placed: &mut Placed, wish: &Wish, rail: usize, pollers_max: usize) {
        let taken = |cpu: CpuId| placed.pollers.iter().position(|poller| poller.cpu == Some(cpu));
        if let Some(cpu) = wish.pin {
            match taken(cpu) {
                Some(poller) => placed.pollers[poller].rails.push(rail as u16),
                None => self.add_poller(placed, cpu, rail),
            }
            let text = format!("its poller is bound to cpu {cpu}, as asked");
            placed.reasons[rail].push(Reason::new(ReasonCode::Override, text));
            return;
        }
        let free = wish.usable.iter().filter(|&cpu| taken(cpu).is_none());
        let best = free.min_by_key(|&cpu| self.cost(placed, wish, cpu));
        let sharable = self.least_far_poller(placed, wish);
        // A near poller that is shared serves better than a far one of its own.
        let far = |cpu: CpuId| self.distance(wish, cpu);
        let own = best.filter(|&cpu| {
            let nearer = sharable.is_none_or(|at| {
                let other = placed.pollers[at].cpu.map_or(u32::MAX, far);
                far(cpu) <= other
            });
            placed.pollers.len() < pollers_max && nearer && !self.compact_has(placed, wish)
        });
        match (own, sharable) {
            (Some(cpu), _) => {
                let text = self.explain(placed, wish, cpu);
                self.add_poller(placed, cpu, rail);
                placed.reasons[rail].push(Reason::new(ReasonCode::Poller, text));
            }
            (None, Some(at)) => placed.pollers[at].rails.push(rail as u16),
            // The first rail always gets a poller, as some CPU is usable.
            (None, None) => {}
        }
    }

    /// Under the compact policy one poller near a rail is enough.
    fn compact_has(&self, placed: &Placed, wish: &Wish) -> bool {
        self.policy.placement == Placement::Compact
            && placed.pollers.iter().filter_map(|p| p.cpu).any(|cpu| wish.near.contains(cpu))
    }

    fn add_poller(&self, placed: &mut Placed, cpu: CpuId, rail: usize) {
        placed.pollers.push(PollerPlacement {
            number: 0,
            cpu: Some(cpu),
            cpus: cpu.into(),
            node: self.machine.node_of(cpu),
            rails: vec![rail as u16],
        });
    }

    fn least_far_poller(&self, placed: &Placed, wish: &Wish) -> Option<usize> {
        let usable = placed.pollers.iter().enumerate();
        let usable = usable.filter(|(_, p)| p.cpu.is_some_and(|cpu| wish.usable.contains(cpu)));
        let any: Vec<_> = usable.collect();
        let any = if any.is_empty() { placed.pollers.iter().enumerate().collect() } else { any };
        let rank = |(at, poller): &(usize, &PollerPlacement)| {
            let distance = poller.cpu.map_or(u32::MAX, |cpu| self.distance(wish, cpu));
            (distance, poller.rails.len(), *at)
        };
        any.into_iter().min_by_key(rank).map(|(at, _)| at)
    }

    /// 0 for a near CPU, else the distance of its node from the rail's.
    fn distance(&self, wish: &Wish, cpu: CpuId) -> u32 {
        if wish.near.contains(cpu) {
            return 0;
        }
        let nodes = wish.node.zip(self.facts.get(&cpu).and_then(|facts| facts.node));
        nodes.map_or(u32::MAX, |(from, to)| self.machine.distance(from, to).max(1))
    }

    fn cost(&self, placed: &Placed, wish: &Wish, cpu: CpuId) -> impl Ord + use<> {
        let facts = self.facts.get(&cpu);
        (
            self.distance(wish, cpu),
            facts.is_some_and(|facts| facts.kind == CoreKind::Efficiency),
            self.sibling_poller(placed, cpu).is_some(),
            facts.map_or(0, |facts| facts.housekeeping),
            facts.map_or((0, 0), |facts| facts.busy),
            !facts.is_some_and(|facts| facts.isolated),
            cpu,
        )
    }

    fn explain(&self, placed: &Placed, wish: &Wish, cpu: CpuId) -> String {
        let machine = self.machine;
        let place = match machine.node_of(cpu) {
            Some(node) => format!("cpu {cpu} (node {node})"),
            None => format!("cpu {cpu}"),
        };
        let mut why: Vec<String> = Vec::new();
        why.push(match self.distance(wish, cpu) {
            0 if wish.node.is_none() && wish.near == wish.usable => "any core is as near".into(),
            0 => "near".into(),
            u32::MAX => "no near cpu is usable, and no distance is known".into(),
            distance => format!("no near cpu is usable; distance {distance}"),
        });
        let facts = self.facts.get(&cpu).copied();
        match facts.map(|facts| facts.kind) {
            Some(CoreKind::Performance) => why.push("a performance core".into()),
            Some(CoreKind::Efficiency) => why.push("no performance core is free there".into()),
            _ => {}
        }
        match self.sibling_poller(placed, cpu) {
            Some(other) => why.push(format!("a sibling of cpu {other}, as no whole core is free")),
            None => why.push("a core of its own".into()),
        }
        if facts.is_some_and(|facts| facts.housekeeping > 0) {
            why.push("the core of cpu 0, as no other is free there".into());
        }
        match facts.map_or(0, |facts| facts.busy.0) {
            0 if self.any_busy => why.push("no interrupts of the NICs".into()),
            0 => {}
            count => {
                let interrupts = plural(count as usize, "interrupt");
                why.push(format!("its core also serves {interrupts} of the NICs"));
            }
        }
        if facts.is_some_and(|facts| facts.isolated) {
            why.push("isolated from the scheduler".into());
        }
        format!("{place}: {}", why.join(", "))
    }

    /// Pollers are numbered by their first rail, so that numbers do not depend on the order of
    /// placing.
    fn number_by_rail(&self, placed: &mut Placed) {
        for poller in &mut placed.pollers {
            poller.rails.sort_unstable();
        }
        placed.pollers.sort_by_key(|poller| poller.rails.first().copied());
        for (poller, number) in placed.pollers.iter_mut().zip(0_u16..) {
            poller.number = number;
            for &rail in &poller.rails {
                placed.of_rail[usize::from(rail)] = number;
            }
        }
    }

    fn explain_sharing(&self, placed: &mut Placed, pollers_max: usize) {
        for poller in placed.pollers.iter().filter(|poller| poller.rails.len() > 1) {
            let Some(cpu) = poller.cpu else { continue };
            let count = poller.rails.len();
            let names: Vec<&str> = poller
                .rails
                .iter()
                .map(|&rail| self.rails[usize::from(rail)].name.as_str())
                .collect();
            let why = match (&self.machine.quota, self.policy.placement) {
                _ if poller.rails.iter().all(|&rail| self.is_pinned(placed, rail)) => {
                    "they were bound to the same cpu".to_owned()
                }
                _ if self.policy.pollers_max.is_some_and(|most| placed.pollers.len() >= most) => {
                    let most = placed.pollers.len();
                    format!(
                        "at most {} {} asked for",
                        plural(most, "poller"),
                        if most == 1 { "was" } else { "were" }
                    )
                }
                (_, Placement::Compact) => "the policy 'compact' asks for one per node".to_owned(),
                (Some(quota), _) if placed.pollers.len() >= pollers_max => format!(
                    "the CPU quota in {} allows {}",
                    quota.path,
                    plural(quota.busy_threads_max(), "busy thread")
                ),
                _ => "no further usable cpu is as near".to_owned(),
            };
            let text = format!(
                "{count} rails share the poller on cpu {cpu}, as {why}: each gets 1/{count} of a \
                 core and waits for the others' turns"
            );
            for &rail in &poller.rails {
                placed.reasons[usize::from(rail)].push(Reason::new(ReasonCode::Shared, &*text));
            }
            placed.warnings.push(Warning {
                code: WarningCode::SharedPoller,
                about: names.join(", "),
                text,
                todo: "allow the process more cpus or a larger quota, or ask for fewer rails"
                    .to_owned(),
            });
        }
    }

    fn is_pinned(&self, placed: &Placed, rail: u16) -> bool {
        let reasons = &placed.reasons[usize::from(rail)];
        reasons.iter().any(|reason| reason.code == ReasonCode::Override)
    }
}
