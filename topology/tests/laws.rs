//! The rules every plan obeys, for any machine that the generator makes.

use proptest::prelude::*;
use railring_topology::assign::{AssignError, Pin, Placement, Rails, SamePort};
use railring_topology::machine::{
    Core, CoreKind, CpuQuota, CpuUse, Link, LinkLayer, LinkRate, Locality, LocalityFrom, Node,
    PciFunction, PortState, RdmaDevice, RdmaPort,
};
use railring_topology::plan::{PollerPlacement, RailPlacement};
use railring_topology::render::{TextOptions, json, svg, text};
use railring_topology::{CpuId, CpuSet, Machine, NodeId, PciAddress, Plan, Policy, assign};
use std::collections::{BTreeMap, BTreeSet};

/// Makes machines from a seed: sparse ids, nodes without CPUs or memory, hybrid cores, switches,
/// several ports and functions, unknown places, cpusets, quotas.
struct Maker(fastrand::Rng);

impl Maker {
    fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(0..100) < percent
    }

    fn machine(&mut self) -> Machine {
        let mut machine = Machine::default();
        let mut next_node = 0;
        for _ in 0..self.0.usize(1..4) {
            let gap = if self.chance(20) { 50 } else { 1 };
            next_node += self.0.u16(0..gap);
            self.node(&mut machine, NodeId(next_node));
            next_node += 1;
        }
        let ids: Vec<NodeId> = machine.nodes.iter().map(|node| node.id).collect();
        for node in &mut machine.nodes {
            let far = |rng: &mut fastrand::Rng| rng.u32(11..40);
            node.distances = ids
                .iter()
                .map(|&id| (id, if id == node.id { 10 } else { far(&mut self.0) }))
                .collect();
        }
        machine.cpus.online =
            machine.cores.iter().fold(CpuSet::new(), |cpus, core| cpus.union(&core.cpus));
        self.restrict(&mut machine);
        self.devices(&mut machine);
        machine
    }

    fn node(&mut self, machine: &mut Machine, id: NodeId) {
        let first_of_all = machine.cores.is_empty();
        let cores = if first_of_all || self.chance(80) { self.0.u16(1..6) } else { 0 };
        let threads = if self.chance(50) { 2 } else { 1 };
        let hybrid = self.chance(25);
        let mut next = machine.cores.iter().filter_map(|core| core.cpus.last()).max();
        let mut cpus = CpuSet::new();
        for _ in 0..cores {
            let gap = if self.chance(10) { 700 } else { 1 };
            let start = next.map_or(if self.chance(70) { 0 } else { 3 }, |last| last.0 + gap);
            let of_core: CpuSet = (start..start + threads).map(CpuId).collect();
            next = of_core.last();
            cpus = cpus.union(&of_core);
            let kind = match hybrid {
                true if self.chance(50) => CoreKind::Efficiency,
                true => CoreKind::Performance,
                false => CoreKind::Unknown,
            };
            machine.cores.push(Core { cpus: of_core, package: None, core_id: None, kind });
        }
        let memory = if self.chance(85) { 1 << 30 } else { 0 };
        machine.nodes.push(Node {
            id,
            cpus,
            memory_bytes: (!self.chance(5)).then_some(memory),
            distances: BTreeMap::new(),
            huge_pages: Vec::new(),
            implied: false,
        });
    }

    fn some_of(&mut self, cpus: &CpuSet) -> CpuSet {
        let mut some: CpuSet = cpus.iter().filter(|_| self.0.bool()).collect();
        if some.is_empty() {
            some.extend(cpus.first());
        }
        some
    }

    fn restrict(&mut self, machine: &mut Machine) {
        let online = machine.cpus.online.clone();
        machine.cpus = CpuUse {
            isolated: if self.chance(20) { self.some_of(&online) } else { CpuSet::new() },
            cpuset: self.chance(30).then(|| self.some_of(&online)),
            ..machine.cpus.clone()
        };
        let within = machine.cpus.cpuset.clone().unwrap_or(online);
        machine.cpus.affinity = self.chance(30).then(|| self.some_of(&within));
        machine.quota = self.chance(20).then(|| CpuQuota {
            quota_us: self.0.u64(1..800) * 1000,
            period_us: 100_000,
            path: "/sys/fs/cgroup/cpu.max".to_owned(),
        });
    }

    fn devices(&mut self, machine: &mut Machine) {
        for bus in 0..self.0.u8(0..7) {
            let locality = self.locality(machine);
            let top = PciAddress { domain: 0, bus: bus * 16, device: 1, function: 0 };
            let bridge = self.function(top, Vec::new(), locality.clone());
            machine.pci.push(bridge);
            for card in 0..self.0.u8(1..3) {
                let at = PciAddress { domain: 0, bus: bus * 16 + 1 + card, device: 0, function: 0 };
                for function in 0..self.0.u8(1..3) {
                    let at = PciAddress { function, ..at };
                    let mut made = self.function(at, vec![top], locality.clone());
                    let physical = at.slot();
                    if function > 0 && self.chance(30) {
                        made.physical_function = Some(physical);
                    }
                    machine.pci.push(made);
                    self.rdma(machine, at, locality.clone());
                }
            }
        }
        machine.pci.sort_by_key(|function| function.address);
    }

    fn locality(&mut self, machine: &Machine) -> Locality {
        if self.chance(20) {
            return Locality::default();
        }
        let node = machine.nodes[self.0.usize(..machine.nodes.len())].clone();
        Locality { node: Some(node.id), cpus: node.cpus, from: LocalityFrom::NumaNode }
    }

    fn function(
        &mut self,
        address: PciAddress,
        bridges: Vec<PciAddress>,
        locality: Locality,
    ) -> PciFunction {
        let rate = |lanes| LinkRate { megatransfers: 8000, lanes };
        let now = (!self.chance(20)).then(|| rate([4, 8, 16][self.0.usize(..3)]));
        let busy: Vec<CpuId> = locality.cpus.iter().filter(|_| self.chance(20)).collect();
        PciFunction {
            address,
            class: Some(if bridges.is_empty() { 0x06_0400 } else { 0x02_0000 }),
            vendor: None,
            device: None,
            driver: None,
            host_bridge: None,
            bridges,
            link: Link { now, most: Some(rate(16)), bits_per_second: None },
            locality,
            physical_function: None,
            virtual_functions: Vec::new(),
            iommu: None,
            interrupts: busy.into_iter().map(|cpu| (cpu, 1)).collect(),
        }
    }

    fn rdma(&mut self, machine: &mut Machine, pci: PciAddress, locality: Locality) {
        let ports = (1..=self.0.u32(1..3)).map(|number| RdmaPort {
            number,
            state: Some(if self.chance(70) { PortState::Active } else { PortState::Down }),
            physical_state: None,
            link_layer: Some(LinkLayer::InfiniBand),
            bits_per_second: (!self.chance(20)).then_some(100_000_000_000),
            mtu_bytes: None,
            net: None,
            gids: Vec::new(),
        });
        let ports = ports.collect();
        machine.rdma.push(RdmaDevice {
            name: format!("mlx5_{}", machine.rdma.len()),
            pci: Some(pci),
            driver: None,
            node_guid: None,
            system_guid: None,
            locality,
            ports,
        });
    }

    fn policy(&mut self, machine: &Machine) -> Policy {
        let online = machine.cpus.online.clone();
        let node = machine.nodes[self.0.usize(..machine.nodes.len())].id;
        Policy {
            rails: Rails::Rdma,
            rails_max: self.chance(30).then(|| self.0.usize(0..6)),
            same_port: if self.chance(20) { SamePort::All } else { SamePort::One },
            cpus: self.chance(20).then(|| self.some_of(&online)),
            node: self.chance(15).then_some(node),
            pins: match self.chance(20) {
                true => vec![Pin { rail: "0".into(), cpu: online.first().expect("some cpu") }],
                false => Vec::new(),
            },
            placement: [Placement::Near, Placement::Near, Placement::Compact, Placement::Unpinned]
                [self.0.usize(..4)],
            ..Policy::default()
        }
    }
}

/// The CPUs that the policy and the machine leave to pollers.
fn usable(machine: &Machine, policy: &Policy) -> CpuSet {
    let mut usable = match &policy.cpus {
        Some(cpus) => cpus.intersection(&machine.cpus.bindable()),
        None => machine.allowed(),
    };
    if let Some(node) = policy.node.and_then(|id| machine.node(id)) {
        usable = usable.intersection(&node.cpus);
    }
    usable
}

struct Check<'a> {
    machine: &'a Machine,
    policy: &'a Policy,
    plan: &'a Plan,
    usable: CpuSet,
}

impl Check<'_> {
    fn rails_of(&self, poller: &PollerPlacement) -> Vec<&RailPlacement> {
        poller.rails.iter().map(|&rail| &self.plan.rails[usize::from(rail)]).collect()
    }

    /// Where the rail would best be polled.
    fn near(&self, rail: &RailPlacement) -> CpuSet {
        if rail.near.is_empty() {
            self.usable.clone()
        } else {
            rail.near.intersection(&self.usable)
        }
    }

    fn taken(&self) -> CpuSet {
        self.plan.pollers.iter().filter_map(|poller| poller.cpu).collect()
    }

    fn pinned(&self) -> BTreeSet<CpuId> {
        self.policy.pins.iter().map(|pin| pin.cpu).collect()
    }

    /// Near CPUs of the rail on cores without any poller, of kinds at least as good.
    fn free_cores(&self, rail: &RailPlacement, kind: CoreKind) -> CpuSet {
        let taken = self.taken();
        let near = self.near(rail);
        let free = near.iter().filter(|&cpu| {
            let core = self.machine.core_of(cpu).expect("each cpu has a core");
            let worse = core.kind == CoreKind::Efficiency && kind != CoreKind::Efficiency;
            !core.cpus.intersects(&taken) && !worse
        });
        free.collect()
    }

    fn numbering(&self) -> Result<(), TestCaseError> {
        for (at, rail) in self.plan.rails.iter().enumerate() {
            prop_assert_eq!(usize::from(rail.number), at);
            let poller = self.plan.poller_of(rail);
            prop_assert!(poller.is_some_and(|poller| poller.rails.contains(&rail.number)));
        }
        let mut seen = BTreeSet::new();
        for (at, poller) in self.plan.pollers.iter().enumerate() {
            prop_assert_eq!(usize::from(poller.number), at);
            prop_assert!(!poller.rails.is_empty(), "a poller without rails");
            for rail in &poller.rails {
                prop_assert!(seen.insert(*rail), "a rail with two pollers");
            }
        }
        prop_assert_eq!(seen.len(), self.plan.rails.len());
        Ok(())
    }

    fn cores(&self) -> Result<(), TestCaseError> {
        let pinned = self.pinned();
        let mut cpus = BTreeSet::new();
        for poller in &self.plan.pollers {
            let Some(cpu) = poller.cpu else {
                prop_assert_eq!(self.policy.placement, Placement::Unpinned);
                continue;
            };
            prop_assert!(cpus.insert(cpu), "two pollers on cpu {}", cpu);
            if pinned.contains(&cpu) {
                prop_assert!(self.machine.cpus.bindable().contains(cpu));
                continue;
            }
            prop_assert!(self.usable.contains(cpu), "cpu {} may not be used", cpu);
            self.best_core(poller, cpu)?;
        }
        let quota = self.machine.quota.as_ref().map_or(usize::MAX, |q| q.busy_threads_max());
        let bound = self.policy.placement != Placement::Unpinned;
        prop_assert!(!bound || self.plan.pollers.len() <= quota.max(pinned.len()).max(1));
        Ok(())
    }

    fn best_core(&self, poller: &PollerPlacement, cpu: CpuId) -> Result<(), TestCaseError> {
        let core = self.machine.core_of(cpu).expect("each cpu has a core");
        let rails = self.rails_of(poller);
        let near_some = rails.iter().any(|rail| self.near(rail).contains(cpu));
        if !near_some {
            // Far only where nothing near is usable.
            prop_assert!(rails.iter().any(|rail| self.near(rail).is_empty()), "far without need");
            return Ok(());
        }
        let none_free = |kind| rails.iter().any(|rail| self.free_cores(rail, kind).is_empty());
        let others: Vec<CpuId> =
            self.taken().intersection(&core.cpus).iter().filter(|&other| other != cpu).collect();
        if others.iter().any(|other| *other < cpu) && !self.pinned().contains(&cpu) {
            prop_assert!(none_free(core.kind), "a sibling while a core is free");
        }
        if core.cpus.contains(CpuId(0)) && others.is_empty() {
            prop_assert!(none_free(core.kind), "the core of cpu 0 while another is free");
        }
        if core.kind == CoreKind::Efficiency {
            let free = |rail: &&RailPlacement| -> bool {
                let near = self.near(rail).difference(&self.taken());
                near.iter().any(|cpu| {
                    let other = self.machine.core_of(cpu).expect("each cpu has a core");
                    other.kind != CoreKind::Efficiency
                })
            };
            prop_assert!(!rails.iter().all(free), "an efficiency core without need");
        }
        Ok(())
    }

    fn rails(&self) -> Result<(), TestCaseError> {
        let mut ports = BTreeSet::new();
        for rail in &self.plan.rails {
            let device = self.machine.rdma_device(rail.device().expect("RDMA")).expect("there");
            let (_, port) = rail.name.split_once(':').expect("device:port");
            let port = device.ports.iter().find(|p| p.number.to_string() == port).expect("there");
            prop_assert_eq!(port.state.as_ref(), Some(&PortState::Active));
            let function = self.machine.pci_function(device.pci.expect("all are on PCI"));
            let function = function.expect("there");
            let physical = function.physical_function.unwrap_or(function.address);
            let fresh = ports.insert((physical, port.number));
            prop_assert!(fresh || self.policy.same_port == SamePort::All, "one port twice");
            prop_assert!(!rail.reasons.is_empty());
            if let Some(node) = rail.memory_node {
                prop_assert!(self.machine.memory_nodes().contains(&node), "no memory there");
            } else {
                let none = self.machine.memory_nodes().is_empty();
                prop_assert!(none || rail.node.is_none(), "memory nowhere");
            }
        }
        let most = self.policy.rails_max.unwrap_or(usize::MAX);
        prop_assert!(self.plan.rails.len() <= most);
        Ok(())
    }

    fn bandwidth(&self) -> Result<(), TestCaseError> {
        let expected = &self.plan.expected;
        if let (Some(total), Some(sum)) = (expected.bits_per_second, expected.sum_bits_per_second) {
            prop_assert!(total <= sum);
            let most = self.plan.rails.iter().filter_map(|rail| rail.bits_per_second).max();
            prop_assert!(total >= most.unwrap_or(0), "together less than one alone");
        }
        for group in &self.plan.groups {
            prop_assert!(group.rails.len() > 1);
            prop_assert!(group.rails.iter().all(|&r| usize::from(r) < self.plan.rails.len()));
        }
        Ok(())
    }
}

/// The same machine with names that say other things.
fn renamed(machine: &Machine) -> Machine {
    let mut machine = machine.clone();
    let count = machine.rdma.len();
    for (at, device) in machine.rdma.iter_mut().enumerate() {
        device.name = format!("z{}", count - at);
    }
    machine.rdma.reverse();
    machine
}

/// Function, poller, its CPU, and the node of the buffers.
type Place = (Option<PciAddress>, u16, Option<CpuId>, Option<NodeId>);

fn places(plan: &Plan) -> Vec<Place> {
    let place = |rail: &RailPlacement| {
        let poller = plan.poller_of(rail);
        (rail.pci, rail.poller, poller.and_then(|poller| poller.cpu), rail.memory_node)
    };
    plan.rails.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        // The seed that proptest prints is all there is to keep.
        failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_obeys_the_rules(seed in any::<u64>()) {
        let mut maker = Maker(fastrand::Rng::with_seed(seed));
        let machine = maker.machine();
        let policy = maker.policy(&machine);
        let plan = match assign(&machine, &policy) {
            Ok(plan) => plan,
            // What was asked for may not exist or may not be allowed; a default policy always
            // plans.
            Err(AssignError::NoCpus { .. } | AssignError::NoSuchRail { .. }) => {
                assign(&machine, &Policy::default()).expect("the default policy always plans");
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let again = assign(&machine, &policy);
        prop_assert_eq!(again.as_ref(), Ok(&plan), "not the same plan again");
        let usable = usable(&machine, &policy);
        let check = Check { machine: &machine, policy: &policy, plan: &plan, usable };
        check.numbering()?;
        if policy.placement == Placement::Near {
            check.cores()?;
        }
        check.rails()?;
        check.bandwidth()?;
        let other = renamed(&machine);
        let other = assign(&other, &policy).expect("names decide nothing");
        prop_assert_eq!(places(&other), places(&plan), "names decided something");
    }

    #[test]
    fn every_plan_can_be_shown(seed in any::<u64>()) {
        let mut maker = Maker(fastrand::Rng::with_seed(seed));
        let machine = maker.machine();
        if let Ok(plan) = assign(&machine, &Policy::default()) {
            let shown = text(&machine, Some(&plan), TextOptions::default());
            for rail in &plan.rails {
                prop_assert!(shown.contains(&rail.name));
            }
            prop_assert!(svg(&machine, Some(&plan)).ends_with("</svg>\n"));
            let document = json(&machine, Some(&plan));
            prop_assert!(document.ends_with('\n'));
        }
    }
}
