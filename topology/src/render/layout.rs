//! The order in which devices are shown: per memory node, the PCI tree without what carries no
//! data.

use crate::id::{NodeId, PciAddress};
use crate::machine::{
    Disk, Locality, Machine, NetDevice, NetKind, PciFunction, PortState, RdmaDevice, RdmaPort,
};
use crate::plan::{Plan, RailPath};
use crate::units::{bits_text, bytes_text};
use std::collections::{BTreeMap, BTreeSet};

/// Virtual functions of one parent that are shown one by one; more are counted.
const VIRTUAL_FUNCTIONS_SHOWN: usize = 4;

/// What a line stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Host,
    Bridge,
    Function,
    Port,
    Net,
    Disk,
    Note,
}

/// One line of the tree.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) kind: Kind,
    /// What it is.
    pub(super) label: String,
    /// What is to be said about it.
    pub(super) detail: String,
    /// The rails that go through it.
    pub(super) rails: Vec<u16>,
    /// False for what is there and cannot carry data now.
    pub(super) usable: bool,
    /// Bits per second of a bridge's link.
    capacity: Option<u64>,
    pub(super) children: Vec<Self>,
}

impl Branch {
    fn new(kind: Kind, label: impl Into<String>, detail: impl Into<String>) -> Self {
        let (label, detail) = (label.into(), detail.into());
        let (rails, children) = (Vec::new(), Vec::new());
        Self { kind, label, detail, rails, usable: true, capacity: None, children }
    }

    /// A bridge with nothing but one further bridge below it is drawn with that in one line, which
    /// tells the narrower of their links.
    fn joined(mut self) -> Self {
        let alone = matches!(self.children.as_slice(), [only] if only.kind == Kind::Bridge);
        if self.kind != Kind::Bridge || !alone {
            return self;
        }
        let Some(below) = self.children.pop() else { return self };
        let label = format!("{} > {}", self.label, below.label);
        let known = |branch: &Self| branch.capacity.unwrap_or(u64::MAX);
        let (capacity, detail) = match known(&self) <= known(&below) {
            true => (self.capacity, self.detail),
            false => (below.capacity, below.detail.clone()),
        };
        Self { label, capacity, detail, ..below }
    }
}

/// What is near one node, or near none that is known.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) node: Option<NodeId>,
    pub(super) branches: Vec<Branch>,
}

/// Everything that is shown, node by node; what has no known node comes last.
pub(super) fn places(machine: &Machine, plan: Option<&Plan>) -> Vec<Place> {
    let builder = Builder { machine, plan };
    let mut nodes: Vec<Option<NodeId>> = machine.nodes.iter().map(|n| Some(n.id)).collect();
    nodes.push(None);
    let mut places: Vec<Place> = nodes.into_iter().map(|node| builder.place(node)).collect();
    places.retain(|place| place.node.is_some() || !place.branches.is_empty());
    places
}

struct Builder<'a> {
    machine: &'a Machine,
    plan: Option<&'a Plan>,
}

impl Builder<'_> {
    fn is_at(&self, locality: &Locality, node: Option<NodeId>) -> bool {
        let only = self.machine.nodes.first().filter(|_| self.machine.nodes.len() == 1);
        locality.node.or(only.map(|node| node.id)) == node
    }

    fn place(&self, node: Option<NodeId>) -> Place {
        let shown = self.machine.pci.iter().filter(|function| self.is_shown(function));
        let here: Vec<&PciFunction> =
            shown.filter(|function| self.is_at(&function.locality, node)).collect();
        let mut branches = self.pci_tree(&here);
        let machine = self.machine;
        let loose_rdma = machine.rdma.iter().filter(|d| d.pci.is_none());
        for device in loose_rdma.filter(|device| self.is_at(&device.locality, node)) {
            branches.extend(self.ports(device));
        }
        let loose_net = machine.net.iter().filter(|net| net.pci.is_none());
        let shown = loose_net.filter(|net| self.is_loose_net_shown(net));
        branches
            .extend(shown.filter(|net| self.is_at(&net.locality, node)).map(|net| self.net(net)));
        let loose_disks = machine.disks.iter().filter(|disk| disk.pci.is_none());
        branches.extend(
            loose_disks.filter(|disk| self.is_at(&disk.locality, node)).map(|d| self.disk(d)),
        );
        Place { node, branches }
    }

    /// Devices that carry data or do the work on it; the rest of the bus is left out.
    fn is_shown(&self, function: &PciFunction) -> bool {
        let carries = function.class.is_some_and(|class| {
            matches!(class >> 16, 0x02 | 0x12) || matches!(class >> 8, 0x0108 | 0x0302)
        });
        carries || self.has_devices(function.address)
    }

    fn has_devices(&self, address: PciAddress) -> bool {
        let at = Some(address);
        let machine = self.machine;
        machine.rdma.iter().any(|device| device.pci == at)
            || machine.net.iter().any(|net| net.pci == at)
            || machine.disks.iter().any(|disk| disk.pci == at)
    }

    fn is_loose_net_shown(&self, net: &NetDevice) -> bool {
        let is_rail = !self.rails_of_net(&net.name).is_empty();
        is_rail || (net.is_up() && !matches!(net.kind, NetKind::Loopback | NetKind::Virtual))
    }

    fn pci_tree(&self, functions: &[&PciFunction]) -> Vec<Branch> {
        let mut by_host: BTreeMap<String, Vec<&PciFunction>> = BTreeMap::new();
        for function in functions {
            let first = function.bridges.first().unwrap_or(&function.address);
            let host = function.host_bridge.clone();
            let host = host.unwrap_or_else(|| format!("pci{:04x}:{:02x}", first.domain, first.bus));
            by_host.entry(host).or_default().push(function);
        }
        let mut hosts = Vec::new();
        for (host, functions) in by_host {
            let mut branch = Branch::new(Kind::Host, host, "");
            branch.children = self.below(&functions, 0);
            hosts.push(branch);
        }
        hosts
    }

    /// The functions whose path so far is the same, at `depth` bridges from the host.
    fn below(&self, functions: &[&PciFunction], depth: usize) -> Vec<Branch> {
        let mut branches = Vec::new();
        let mut by_bridge: BTreeMap<PciAddress, Vec<&PciFunction>> = BTreeMap::new();
        let mut here: Vec<&PciFunction> = Vec::new();
        for function in functions {
            match function.bridges.get(depth) {
                Some(bridge) => by_bridge.entry(*bridge).or_default().push(function),
                None => here.push(function),
            }
        }
        for (bridge, functions) in by_bridge {
            let mut branch = Branch::new(Kind::Bridge, bridge.to_string(), self.link(bridge));
            branch.capacity =
                self.machine.pci_function(bridge).and_then(|function| function.link.capacity());
            branch.children = self.below(&functions, depth + 1);
            branches.push(branch.joined());
        }
        branches.extend(self.functions(&here));
        branches
    }

    fn functions(&self, here: &[&PciFunction]) -> Vec<Branch> {
        let plain_virtual = |function: &&&PciFunction| {
            function.physical_function.is_some() && self.rails_of(function.address).is_empty()
        };
        let hidden: BTreeSet<PciAddress> =
            here.iter().filter(plain_virtual).map(|function| function.address).collect();
        let count = hidden.len();
        let collapse = count > VIRTUAL_FUNCTIONS_SHOWN;
        let shown = here.iter().filter(|f| !(collapse && hidden.contains(&f.address)));
        let mut branches: Vec<Branch> = shown.map(|function| self.function(function)).collect();
        if collapse {
            branches.push(Branch::new(Kind::Note, format!("{count} virtual functions"), ""));
        }
        branches
    }

    fn link(&self, address: PciAddress) -> String {
        let Some(function) = self.machine.pci_function(address) else { return String::new() };
        match (function.link.now, function.link.capacity()) {
            (Some(now), Some(bits)) => format!("{now}, {}", bits_text(bits)),
            (None, Some(bits)) => bits_text(bits),
            _ => String::new(),
        }
    }

    fn function(&self, function: &PciFunction) -> Branch {
        let address = function.address;
        let mut details = vec![function.class_name().to_owned()];
        details.extend(function.driver.clone());
        details.push(self.link(address));
        if let Some(physical) = function.physical_function {
            details.push(format!("virtual function of {physical}"));
        }
        if !function.virtual_functions.is_empty() {
            details.push(format!("{} virtual functions", function.virtual_functions.len()));
        }
        details.retain(|detail| !detail.is_empty());
        let mut branch = Branch::new(Kind::Function, address.to_string(), details.join(", "));
        let at = Some(address);
        let rdma = self.machine.rdma.iter().filter(|device| device.pci == at);
        branch.children.extend(rdma.flat_map(|device| self.ports(device)));
        let nets = self.machine.net.iter().filter(|net| net.pci == at);
        branch.children.extend(nets.map(|net| self.net(net)));
        let disks = self.machine.disks.iter().filter(|disk| disk.pci == at);
        branch.children.extend(disks.map(|disk| self.disk(disk)));
        branch
    }

    fn rails_where(&self, through: impl Fn(&RailPath) -> bool) -> Vec<u16> {
        let rails = self.plan.iter().flat_map(|plan| &plan.rails);
        rails.filter(|rail| through(&rail.path)).map(|rail| rail.number).collect()
    }

    fn rails_of(&self, address: PciAddress) -> Vec<u16> {
        let rails = self.plan.iter().flat_map(|plan| &plan.rails);
        rails.filter(|rail| rail.pci == Some(address)).map(|rail| rail.number).collect()
    }

    fn rails_of_net(&self, name: &str) -> Vec<u16> {
        self.rails_where(|path| matches!(path, RailPath::Tcp { net, .. } if net == name))
    }

    fn ports(&self, device: &RdmaDevice) -> Vec<Branch> {
        if device.ports.is_empty() {
            let mut branch = Branch::new(Kind::Port, device.name.clone(), "no port is known");
            branch.usable = false;
            return vec![branch];
        }
        device.ports.iter().map(|port| self.port(device, port)).collect()
    }

    fn port(&self, device: &RdmaDevice, port: &RdmaPort) -> Branch {
        let state = match &port.state {
            Some(PortState::Active) => "active".to_owned(),
            Some(PortState::Down) => "down".to_owned(),
            Some(PortState::Init) => "waits for a subnet manager".to_owned(),
            Some(PortState::Armed) => "armed".to_owned(),
            Some(PortState::Other(state)) => state.clone(),
            None => "state unknown".to_owned(),
        };
        let mut details = vec![state];
        details.extend(port.link_layer.as_ref().map(|layer| match layer {
            crate::machine::LinkLayer::InfiniBand => "InfiniBand".to_owned(),
            crate::machine::LinkLayer::Ethernet => "Ethernet".to_owned(),
            crate::machine::LinkLayer::Other(other) => other.clone(),
        }));
        details.extend(port.bits_per_second.map(bits_text));
        details.extend(port.mtu_bytes.map(|mtu| format!("path MTU {mtu}")));
        details.extend(port.net.as_ref().map(|net| format!("on {net}")));
        let label = format!("{}:{}", device.name, port.number);
        let mut branch = Branch::new(Kind::Port, label, details.join(", "));
        branch.usable = port.state == Some(PortState::Active);
        branch.rails = self.rails_where(|path| {
            matches!(path, RailPath::Rdma { device: of, port: number, .. }
                if *of == device.name && *number == port.number)
        });
        branch
    }

    fn net(&self, net: &NetDevice) -> Branch {
        let mut details = Vec::new();
        details.push(match (&net.state, net.is_up()) {
            (_, true) => "up".to_owned(),
            (None, false) if net.carrier.is_none() => "state unknown".to_owned(),
            _ => "not up".to_owned(),
        });
        details.extend(net.bits_per_second.map(bits_text));
        details.extend(net.mtu_bytes.map(|mtu| format!("MTU {mtu}")));
        let global = net.addresses.iter().map(ToString::to_string);
        details.extend(global.filter(|address| !address.starts_with("fe80:")));
        details.extend(net.master.as_ref().map(|master| format!("in {master}")));
        if net.pci.is_none() && !net.members.is_empty() {
            details.push(format!("over {}", net.members.join(", ")));
        }
        let mut branch = Branch::new(Kind::Net, net.name.clone(), details.join(", "));
        branch.usable = net.is_up();
        branch.rails = self.rails_of_net(&net.name);
        branch
    }

    fn disk(&self, disk: &Disk) -> Branch {
        let mut details = Vec::new();
        details.extend(disk.model.clone());
        details.extend(disk.size_bytes.map(bytes_text));
        if disk.rotational == Some(true) {
            details.push("rotational".to_owned());
        }
        if !disk.members.is_empty() {
            details.push(format!("over {}", disk.members.join(", ")));
        }
        let mut branch = Branch::new(Kind::Disk, disk.name.clone(), details.join(", "));
        let name = Some(disk.name.clone());
        branch.rails =
            self.rails_where(|path| matches!(path, RailPath::File { disk, .. } if *disk == name));
        branch
    }
}

/// One line about a node.
pub(super) fn node_line(machine: &Machine, id: NodeId) -> String {
    let Some(node) = machine.node(id) else { return String::new() };
    let mut parts = Vec::new();
    parts.push(match node.memory_bytes {
        Some(0) => "no memory".to_owned(),
        Some(bytes) => bytes_text(bytes),
        None => "memory unknown".to_owned(),
    });
    if node.cpus.is_empty() {
        parts.push("no cpus".to_owned());
    } else {
        let cores = machine.cores.iter().filter(|core| core.cpus.intersects(&node.cpus)).count();
        let (s, cpus) = (if cores == 1 { "" } else { "s" }, &node.cpus);
        parts.push(format!("{cores} core{s}, cpus {cpus}"));
    }
    let huge: Vec<String> = node
        .huge_pages
        .iter()
        .filter(|pool| pool.total > 0)
        .map(|pool| format!("{} x {}", pool.total, bytes_text(pool.page_bytes)))
        .collect();
    if !huge.is_empty() {
        parts.push(format!("huge pages {}", huge.join(" and ")));
    }
    if node.implied {
        parts.push("implied: the machine lists no nodes".to_owned());
    }
    parts.join(", ")
}
