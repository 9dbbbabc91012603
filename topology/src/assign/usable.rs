//! Which devices of a machine are usable as rails, and why the others are not.

use super::candidate::{Candidate, Through, disk_stages, net_candidate, physical};
use super::policy::{Policy, Rails};
use crate::gid::choose_gid;
use crate::machine::{
    Directory, LinkLayer, Machine, NetDevice, NetKind, PortState, RdmaDevice, RdmaPort,
};
use crate::plan::{PassedOver, RailPath, ReasonCode, WarningCode};
use std::net::IpAddr;

/// The driver of Amazon's Elastic Fabric Adapter.
const EFA: &str = "efa";

#[derive(Debug, Default)]
pub(super) struct Usable {
    pub(super) candidates: Vec<Candidate>,
    pub(super) passed_over: Vec<PassedOver>,
}

impl Usable {
    fn pass_over(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.passed_over.push(PassedOver { name: name.into(), why: why.into() });
    }

    fn wanted(&mut self, policy: &Policy, names: &[&str]) -> bool {
        let listed = |list: &[String]| names.iter().any(|name| list.iter().any(|l| l == name));
        let name = names.last().copied().unwrap_or_default();
        if !policy.only.is_empty() && !listed(&policy.only) {
            self.pass_over(name, "not among the devices that were asked for");
            return false;
        }
        if listed(&policy.except) {
            self.pass_over(name, "excluded by the caller");
            return false;
        }
        true
    }
}

/// All usable devices of the kinds that the policy asks for.
pub(super) fn find(machine: &Machine, policy: &Policy) -> Usable {
    let mut usable = Usable::default();
    if matches!(policy.rails, Rails::Auto | Rails::Rdma) {
        find_rdma(machine, policy, &mut usable);
    }
    let no_rdma = usable.candidates.is_empty();
    if policy.rails == Rails::Tcp || (policy.rails == Rails::Auto && no_rdma) {
        find_tcp(machine, policy, &mut usable);
    }
    if matches!(policy.rails, Rails::Auto | Rails::File) {
        let directories = machine.directories.iter();
        usable.candidates.extend(directories.map(|d| file_candidate(machine, d)));
    }
    usable.candidates.sort_by(|a, b| a.order.cmp(&b.order));
    usable
}

fn find_rdma(machine: &Machine, policy: &Policy, usable: &mut Usable) {
    let is_efa = |device: &&RdmaDevice| device.driver.as_deref() == Some(EFA);
    let any_efa = machine
        .rdma
        .iter()
        .filter(is_efa)
        .any(|device| device.ports.iter().any(|port| port.state == Some(PortState::Active)));
    for function in machine.pci.iter().filter(|function| function.class_name() == "InfiniBand") {
        let at = Some(function.address);
        let has_devices = machine.rdma.iter().any(|device| device.pci == at)
            || function.physical_function.is_some();
        if !has_devices {
            let why = "an InfiniBand adapter without an RDMA device: is its driver's RDMA part \
                       (as mlx5_ib) loaded, and is this its network namespace?";
            usable.pass_over(function.address.to_string(), why);
        }
    }
    for device in &machine.rdma {
        if device.ports.is_empty() {
            usable.pass_over(&device.name, "no port is known");
        }
        for port in &device.ports {
            let name = format!("{}:{}", device.name, port.number);
            if !usable.wanted(policy, &[&device.name, &name]) {
                continue;
            }
            let beside_efa = any_efa && device.driver.as_deref() != Some(EFA);
            match port_usable(machine, port, beside_efa) {
                Ok(why) => {
                    let mut candidate = rdma_candidate(machine, device, port, None);
                    candidate.reasons.insert(0, crate::plan::Reason::new(ReasonCode::Usable, why));
                    usable.candidates.push(candidate);
                }
                Err(why) => usable.pass_over(name, why),
            }
        }
    }
}

/// Why a port is usable, or why not. An InfiniBand port is usable without its IPoIB device.
pub(super) fn port_usable(
    machine: &Machine,
    port: &RdmaPort,
    beside_efa: bool,
) -> Result<String, String> {
    match &port.state {
        Some(PortState::Active) => {}
        Some(PortState::Down) => {
            let physical = port.physical_state.as_deref().unwrap_or("unknown");
            return Err(format!("the port is down (physical state {physical})"));
        }
        Some(PortState::Init) => {
            return Err("the port waits for a subnet manager (state INIT)".into());
        }
        Some(PortState::Armed) => return Err("the port is only armed".into()),
        Some(PortState::Other(state)) => return Err(format!("the port's state is '{state}'")),
        None => return Err("the port's state is unknown".into()),
    }
    let net = port.net.as_ref().and_then(|name| machine.net_device(name));
    if beside_efa && !net.is_some_and(NetDevice::is_up) {
        return Err("no EFA device on a machine that has some, and no network device that is up: \
                    not a port for data"
            .into());
    }
    if beside_efa && port.link_layer == Some(LinkLayer::InfiniBand) {
        return Err("an InfiniBand port on a machine with EFA devices: not a port for data".into());
    }
    if port.link_layer == Some(LinkLayer::Ethernet) {
        match (net, &port.net) {
            (Some(net), _) if net.state.is_none() && net.carrier.is_none() => {
                let name = &net.name;
                return Ok(format!("the port is active; whether {name} is up is unknown"));
            }
            (Some(net), _) if !net.is_up() => {
                return Err(format!("its network device {} is not up", net.name));
            }
            (Some(net), _) => {
                return Ok(format!("the port is active and its network device {} is up", net.name));
            }
            (None, _) if port.gids.is_empty() => {
                return Err("it has neither a network device nor a GID here".into());
            }
            (None, _) => {
                return Ok("the port is active; its network device is not visible here".into());
            }
        }
    }
    Ok("the port is active".into())
}

pub(super) fn rdma_candidate(
    machine: &Machine,
    device: &RdmaDevice,
    port: &RdmaPort,
    wanted_gid: Option<u16>,
) -> Candidate {
    let name = format!("{}:{}", device.name, port.number);
    let gid = choose_gid(machine, port, wanted_gid);
    let path = RailPath::Rdma {
        device: device.name.clone(),
        port: port.number,
        link_layer: port.link_layer.clone(),
        gid: gid.as_ref().ok().cloned(),
        net: port.net.clone(),
    };
    let mut candidate = Candidate::new(name, path);
    match gid {
        Ok(gid) => {
            candidate
                .say(ReasonCode::Gid, format!("gid {} ({}): {}", gid.index, gid.address, gid.why));
        }
        Err(error) => candidate.warn(
            WarningCode::NoGid,
            error.to_string(),
            "give its network device a routable address, or name a gid index in the rail",
        ),
    }
    candidate.locality = device.locality.clone();
    candidate.mtu_bytes = port.mtu_bytes;
    candidate.order.port = port.number;
    if let Some(function) = device.pci {
        let at = machine.pci_function(function).map(|f| physical(machine, f).address);
        let through = Through::Port { function: at.unwrap_or(function), port: port.number };
        candidate.stage(through, port.bits_per_second);
        candidate.go_through_pci(machine, function, device.system_guid.as_ref());
    } else {
        software_stages(machine, &mut candidate, port);
    }
    if let Some(net) = &port.net {
        candidate.stage(Through::Net(net.clone()), None);
    }
    candidate
}

/// A software device carries what the network device below it does.
fn software_stages(machine: &Machine, candidate: &mut Candidate, port: &RdmaPort) {
    let net = port.net.as_ref().and_then(|name| machine.net_device(name));
    let below = net.and_then(|net| physical_below(machine, net)).filter(|net| net.pci.is_some());
    match below.and_then(|below| below.pci.zip(Some(below))) {
        Some((function, below)) => {
            let port_index = port_index(machine, below);
            let at = machine.pci_function(function).map(|f| physical(machine, f).address);
            let through = Through::Port { function: at.unwrap_or(function), port: port_index };
            candidate.stage(through, below.bits_per_second.or(port.bits_per_second));
            candidate.go_through_pci(machine, function, None);
            candidate.pci = None;
        }
        None => {
            let name = port.net.clone().unwrap_or_else(|| candidate.name.clone());
            candidate.stage(Through::Net(name), port.bits_per_second);
        }
    }
}

fn find_tcp(machine: &Machine, policy: &Policy, usable: &mut Usable) {
    let addresses_known = machine.net.iter().any(|net| !net.addresses.is_empty());
    let any_hardware = machine
        .net
        .iter()
        .any(|net| net.is_up() && matches!(net.kind, NetKind::Physical | NetKind::Bond));
    for net in machine.net.iter().filter(|net| net.kind != NetKind::Loopback) {
        if !usable.wanted(policy, &[&net.name]) {
            continue;
        }
        match net_usable(machine, net, addresses_known, any_hardware) {
            Ok(why) => {
                let mut candidate = net_candidate(machine, net, net.name.clone());
                candidate.say(ReasonCode::Usable, why);
                usable.candidates.push(candidate);
            }
            Err(why) => usable.pass_over(&net.name, why),
        }
    }
}

fn net_usable(
    machine: &Machine,
    net: &NetDevice,
    addresses_known: bool,
    any_hardware: bool,
) -> Result<String, String> {
    if net.state.is_none() && net.carrier.is_none() {
        return Err("whether it is up is unknown".into());
    }
    if !net.is_up() {
        return Err("it is not up".into());
    }
    if let Some(master) = &net.master {
        return Err(format!("it is a member of {master}"));
    }
    if net.port_name.as_deref().is_some_and(is_representor) {
        return Err("it stands for a virtual function's end inside the adapter".into());
    }
    let global = net.addresses.iter().find(|a| is_global(a.address));
    if addresses_known && global.is_none() {
        return Err("it has no address beyond its own link".into());
    }
    match net.kind {
        NetKind::Bridge if physical_below(machine, net).is_none() => {
            return Err("it is a software switch without a NIC".into());
        }
        NetKind::Virtual if any_hardware => {
            return Err("it is made of software, on a machine with NICs".into());
        }
        NetKind::Stacked if physical_below(machine, net).is_none() => {
            return Err("it is made of software only".into());
        }
        _ => {}
    }
    let address = global.map_or(String::new(), |address| format!(" with address {address}"));
    Ok(format!("it is up{address}"))
}

/// Port names such as `pf0vf3` or `c1pf0sf2` (devlink's scheme) are representors.
fn is_representor(port_name: &str) -> bool {
    let rest = port_name.trim_start_matches(|c: char| c == 'c' || c.is_ascii_digit());
    let rest = rest.strip_prefix("pf").map(|r| r.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.is_some_and(|rest| rest.starts_with("vf") || rest.starts_with("sf") || rest == "hpf")
}

/// True for addresses that other machines can reach.
pub(super) fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified()),
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified()),
    }
}

/// The one NIC that a device goes through: itself, or the only physical one below it.
pub(super) fn physical_below<'a>(
    machine: &'a Machine,
    net: &'a NetDevice,
) -> Option<&'a NetDevice> {
    let mut level = vec![net];
    // As deep as the reader of network devices follows.
    for _ in 0..8 {
        if let [one] = level.as_slice()
            && one.kind == NetKind::Physical
        {
            return Some(one);
        }
        let below = level
            .iter()
            .flat_map(|net| net.members.iter().filter_map(|member| machine.net_device(member)));
        let next: Vec<&NetDevice> = below.collect();
        if next.is_empty() {
            return None;
        }
        // A bridge has the ends of virtual machines beside the NIC.
        let physical: Vec<&NetDevice> =
            next.iter().copied().filter(|net| net.kind == NetKind::Physical).collect();
        level = if physical.is_empty() { next } else { physical };
    }
    None
}

/// Which port of its function a network device is, from 1: the RDMA port that names it, else its
/// rank among the function's devices.
pub(super) fn port_index(machine: &Machine, net: &NetDevice) -> u32 {
    let by_rdma = machine.rdma.iter().filter(|device| device.pci == net.pci).find_map(|device| {
        let port = device.ports.iter().find(|port| port.net.as_ref() == Some(&net.name));
        port.map(|port| port.number)
    });
    let rank = || {
        let same = machine.net.iter().filter(|other| other.pci == net.pci);
        let before = same.take_while(|other| other.name != net.name).count();
        u32::try_from(before).unwrap_or(u32::MAX - 1) + 1
    };
    by_rdma.unwrap_or_else(rank)
}

pub(super) fn file_candidate(machine: &Machine, directory: &Directory) -> Candidate {
    let path = RailPath::File { directory: directory.path.clone(), disk: directory.disk.clone() };
    let mut candidate = Candidate::new(directory.path.clone(), path);
    candidate.locality = directory.locality.clone();
    let disk = machine.disks.iter().find(|disk| Some(&disk.name) == directory.disk.as_ref());
    match disk {
        Some(disk) => {
            disk_stages(machine, &mut candidate, disk);
            candidate.say(ReasonCode::Usable, format!("the directory lies on disk {}", disk.name));
        }
        None => {
            let why = directory.why_unknown.as_deref().unwrap_or("its disk is unknown");
            candidate.say(ReasonCode::Usable, format!("a directory; {why}"));
        }
    }
    candidate
}
