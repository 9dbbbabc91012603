//! A device that may become a rail, with all that speaks for its place and its bandwidth.

use crate::id::{CpuId, NodeId, PciAddress};
use crate::machine::{Disk, Locality, LocalityFrom, Machine, NetDevice, PciFunction};
use crate::plan::{RailPath, Reason, ReasonCode, Warning, WarningCode};

/// Something that several rails may go through.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Through {
    /// A physical port of a function.
    Port { function: PciAddress, port: u32 },
    /// A disk.
    Disk(String),
    /// A network device.
    Net(String),
    /// A card's link: all functions of one slot.
    Slot(PciAddress),
    /// A card by its identity, which may have several slots.
    Card(String),
    /// The link at a bridge.
    Bridge(PciAddress),
}

/// One stage of a rail's way, from the port inwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) through: Through,
    /// Bits per second, where known and where it limits.
    pub(super) capacity: Option<u64>,
}

/// Candidates are ordered by where they sit, and by name only where they sit nowhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) pci: Option<PciAddress>,
    pub(super) is_virtual: bool,
    pub(super) port: u32,
    pub(super) name: String,
}

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) path: RailPath,
    pub(super) pci: Option<PciAddress>,
    pub(super) locality: Locality,
    pub(super) stages: Vec<Stage>,
    pub(super) mtu_bytes: Option<u32>,
    pub(super) weight: Option<u32>,
    pub(super) cpu: Option<CpuId>,
    pub(super) node: Option<NodeId>,
    pub(super) memory_node: Option<NodeId>,
    pub(super) order: Order,
    pub(super) reasons: Vec<Reason>,
    pub(super) warnings: Vec<Warning>,
}

impl Candidate {
    pub(super) fn new(name: String, path: RailPath) -> Self {
        let order = Order { pci: None, is_virtual: false, port: 0, name: name.clone() };
        Self {
            name,
            path,
            pci: None,
            locality: Locality::default(),
            stages: Vec::new(),
            mtu_bytes: None,
            weight: None,
            cpu: None,
            node: None,
            memory_node: None,
            order,
            reasons: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(super) fn say(&mut self, code: ReasonCode, text: impl Into<String>) {
        self.reasons.push(Reason::new(code, text));
    }

    pub(super) fn warn(&mut self, code: WarningCode, text: impl Into<String>, todo: &str) {
        let (about, text, todo) = (self.name.clone(), text.into(), todo.to_owned());
        self.warnings.push(Warning { code, about, text, todo });
    }

    pub(super) fn stage(&mut self, through: Through, capacity: Option<u64>) {
        self.stages.push(Stage { through, capacity });
    }

    /// The stages of the PCI function at `address`: its slot, its card, the bridges outwards.
    pub(super) fn go_through_pci(
        &mut self,
        machine: &Machine,
        address: PciAddress,
        card: Option<&String>,
    ) {
        self.pci = Some(address);
        self.order.pci = Some(address);
        let Some(function) = machine.pci_function(address) else { return };
        self.order.is_virtual = function.physical_function.is_some();
        let physical = physical(machine, function);
        let slot = physical.address.slot();
        // All functions of a card have one link; not each of them tells its speed.
        let of_card = machine.pci.iter().filter(|other| other.address.slot() == slot);
        let own = of_card.filter(|other| other.physical_function.is_none());
        let link = own.filter_map(|other| other.link.capacity()).max();
        self.stage(Through::Slot(slot), link);
        if let Some(card) = card {
            self.stage(Through::Card(card.clone()), None);
        }
        for bridge in physical.bridges.iter().rev() {
            let capacity = machine.pci_function(*bridge).and_then(|b| b.link.capacity());
            self.stage(Through::Bridge(*bridge), capacity);
        }
    }

    /// Bits per second of its own way, were it alone.
    pub(super) fn alone(&self) -> Option<u64> {
        self.stages.iter().filter_map(|stage| stage.capacity).min()
    }

    pub(super) fn port(&self) -> Option<&Through> {
        let is_port = |t: &&Through| matches!(t, Through::Port { .. });
        self.stages.iter().map(|stage| &stage.through).find(is_port)
    }

    /// True when it goes through the same card as `other`.
    pub(super) fn shares_card(&self, other: &Self) -> bool {
        let is_card = |t: &&Through| matches!(t, Through::Slot(_) | Through::Card(_));
        let own = || self.stages.iter().map(|stage| &stage.through).filter(is_card);
        other.stages.iter().map(|stage| &stage.through).any(|t| own().any(|o| o == t))
    }

    pub(super) fn explain_locality(&mut self, machine: &Machine) {
        let Locality { node, cpus, from } = &self.locality;
        let place = match node {
            Some(node) => format!("node {node}"),
            None => format!("cpus {cpus}"),
        };
        let text = match from {
            LocalityFrom::Nothing if machine.is_single_node() => {
                "no source tells its node, and the machine has one: every core is as near".into()
            }
            LocalityFrom::Nothing => {
                "no source tells its node: neither it nor a bridge above it, so any core may be far"
                    .into()
            }
            LocalityFrom::NumaNode => format!("near {place}, says its numa_node"),
            LocalityFrom::LocalCpus => format!("near {place}, says its local_cpulist"),
            LocalityFrom::Bridge(bridge) => {
                format!("near {place}, says the bridge {bridge} above it")
            }
            LocalityFrom::NetDevice(net) => format!("near {place}, as it rides on {net}"),
            LocalityFrom::Disks(disks) => format!("near {place}, as it is made of {disks}"),
            LocalityFrom::Hwloc => format!("near {place}, says hwloc"),
        };
        self.say(ReasonCode::Locality, text);
    }
}

/// The physical function of a virtual one, else the function itself.
pub(super) fn physical<'a>(machine: &'a Machine, function: &'a PciFunction) -> &'a PciFunction {
    function.physical_function.and_then(|p| machine.pci_function(p)).unwrap_or(function)
}

pub(super) fn net_candidate(machine: &Machine, net: &NetDevice, name: String) -> Candidate {
    let global = net.addresses.iter().map(|a| a.address).find(|&a| super::usable::is_global(a));
    let path = RailPath::Tcp { net: net.name.clone(), source: global };
    let mut candidate = Candidate::new(name, path);
    candidate.locality = net.locality.clone();
    candidate.mtu_bytes = net.mtu_bytes;
    let below = super::usable::physical_below(machine, net);
    let below = below.filter(|below| below.pci.is_some());
    let rate = net.bits_per_second.or_else(|| below?.bits_per_second);
    match below.and_then(|below| below.pci.zip(Some(below))) {
        Some((function, below)) => {
            let port = super::usable::port_index(machine, below);
            let physical = machine.pci_function(function).map(|f| physical(machine, f).address);
            let at = physical.unwrap_or(function);
            candidate.stage(Through::Port { function: at, port }, rate);
            candidate.order.port = port;
            candidate.go_through_pci(machine, function, None);
            if below.name != net.name {
                candidate.pci = None;
            }
        }
        None => candidate.stage(Through::Net(net.name.clone()), rate),
    }
    candidate
}

pub(super) fn disk_stages(machine: &Machine, candidate: &mut Candidate, disk: &Disk) {
    candidate.stage(Through::Disk(disk.name.clone()), None);
    if let Some(function) = disk.pci {
        candidate.go_through_pci(machine, function, None);
    }
}
