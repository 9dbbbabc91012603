//! Turns rails given by hand into candidates.

use super::AssignError;
use super::candidate::{Candidate, net_candidate};
use super::usable::{file_candidate, port_usable, rdma_candidate};
use crate::machine::{Machine, NetDevice, PortState, RdmaDevice, RdmaPort};
use crate::plan::{RailPath, Reason, ReasonCode, WarningCode};
use crate::railspec::{RailSpec, RailTarget};

pub(super) fn candidates(
    machine: &Machine,
    specs: &[RailSpec],
) -> Result<Vec<Candidate>, AssignError> {
    specs.iter().map(|spec| candidate(machine, spec)).collect()
}

fn candidate(machine: &Machine, spec: &RailSpec) -> Result<Candidate, AssignError> {
    let mut candidate = match &spec.target {
        RailTarget::Rdma(device) => rdma(machine, spec, device)?,
        RailTarget::TcpInterface(name) => {
            let net = machine.net_device(name);
            tcp(spec, machine, net.ok_or_else(|| no_device(name, names_of_net(machine)))?)
        }
        RailTarget::TcpAddress(address) => {
            let has = |net: &&NetDevice| net.addresses.iter().any(|a| a.address == *address);
            let net = machine.net.iter().find(has);
            let known = || {
                let all = machine.net.iter().flat_map(|net| &net.addresses);
                all.map(|a| a.address.to_string()).collect()
            };
            let net = net.ok_or_else(|| no_device(&address.to_string(), known()))?;
            let mut candidate = tcp(spec, machine, net);
            if let RailPath::Tcp { source, .. } = &mut candidate.path {
                *source = spec.source.or(Some(*address));
            }
            candidate
        }
        RailTarget::File(directory) => {
            let known = machine.directories.iter().find(|known| known.path == *directory);
            match known {
                Some(directory) => file_candidate(machine, directory),
                None => {
                    let path = RailPath::File { directory: directory.clone(), disk: None };
                    Candidate::new(directory.clone(), path)
                }
            }
        }
        RailTarget::Simulated(name) | RailTarget::Null(name) => {
            let path = RailPath::Other { spec: spec.target.to_string() };
            Candidate::new(name.clone(), path)
        }
    };
    if let Some(name) = &spec.name {
        candidate.name.clone_from(name);
    }
    candidate.weight = spec.weight;
    candidate.cpu = spec.cpu;
    candidate.node = spec.node;
    candidate.memory_node = spec.memory_node;
    candidate.mtu_bytes = spec.mtu_bytes.or(candidate.mtu_bytes);
    candidate.reasons.insert(0, Reason::new(ReasonCode::Override, format!("given as '{spec}'")));
    Ok(candidate)
}

fn names_of_net(machine: &Machine) -> Vec<String> {
    machine.net.iter().map(|net| net.name.clone()).collect()
}

fn no_device(name: &str, known: Vec<String>) -> AssignError {
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    AssignError::NoSuchDevice { name: name.to_owned(), known }
}

fn tcp(spec: &RailSpec, machine: &Machine, net: &NetDevice) -> Candidate {
    let mut candidate = net_candidate(machine, net, net.name.clone());
    if let (Some(asked), RailPath::Tcp { source, .. }) = (spec.source, &mut candidate.path) {
        *source = Some(asked);
    }
    if !net.is_up() {
        candidate.warn(
            WarningCode::NotUsable,
            format!("network device {} is not up", net.name),
            "bring it up, or leave the rail out",
        );
    }
    candidate
}

fn rdma(machine: &Machine, spec: &RailSpec, name: &str) -> Result<Candidate, AssignError> {
    let known = || machine.rdma.iter().map(|device| device.name.clone()).collect();
    let device = machine.rdma_device(name).ok_or_else(|| no_device(name, known()))?;
    let port = the_port(device, spec)?;
    let mut candidate = rdma_candidate(machine, device, port, spec.gid);
    if let Err(why) = port_usable(machine, port, false) {
        candidate.warn(WarningCode::NotUsable, why, "bring the port up, or leave the rail out");
    }
    Ok(candidate)
}

/// The port that is named, or the only one, or the only active one.
fn the_port<'a>(device: &'a RdmaDevice, spec: &RailSpec) -> Result<&'a RdmaPort, AssignError> {
    let all = || device.ports.iter().map(|port| port.number.to_string()).collect::<Vec<_>>();
    if let Some(number) = spec.port {
        let port = device.ports.iter().find(|port| port.number == number);
        return port.ok_or_else(|| AssignError::NoSuchPort {
            device: device.name.clone(),
            port: number,
            known: all().join(", "),
        });
    }
    let active = |port: &&RdmaPort| port.state == Some(PortState::Active);
    let active: Vec<&RdmaPort> = device.ports.iter().filter(active).collect();
    match (device.ports.as_slice(), active.as_slice()) {
        ([one], _) => Ok(one),
        (_, [one]) => Ok(one),
        _ => Err(AssignError::WhichPort { device: device.name.clone(), known: all().join(", ") }),
    }
}
