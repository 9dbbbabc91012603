//! Which port of which device a rail uses, and under which address: found in sysfs, so that it
//! works, and fails with a reason, without the library and without opening anything.

use railring_topology::Machine;
use railring_topology::gid::{GidChoice, GidError, choose_gid};
use railring_topology::machine::{LinkLayer, PortState, RdmaDevice, RdmaPort};

/// The port of a rail, with the GID it speaks from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// The device.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// The entry of the port's GID table, and why this one.
    pub gid: GidChoice,
    /// The memory node that the device is nearest to, where that is known.
    pub node: Option<u32>,
}

/// Why there is no such port to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The machine has no RDMA devices.
    #[error("this machine has no RDMA devices, so there is no {device}; see `railring doctor`")]
    NoDevices {
        /// The device asked for.
        device: String,
    },
    /// It has others.
    #[error("there is no RDMA device {device}; there are: {known}")]
    NoSuchDevice {
        /// The device asked for.
        device: String,
        /// The devices there are.
        known: String,
    },
    /// The device has no port of this number.
    #[error("RDMA device {device} has no port {port}; it has: {known}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The port asked for.
        port: u32,
        /// Its ports.
        known: String,
    },
    /// The port that was asked for is not active.
    #[error("port {port} of RDMA device {device} is {state}; only an active port carries data")]
    Down {
        /// The device.
        device: String,
        /// The port.
        port: u32,
        /// Its state.
        state: String,
    },
    /// None of the device's ports is active.
    #[error("RDMA device {device} has no active port; its ports: {known}")]
    NoActivePort {
        /// The device.
        device: String,
        /// Its ports with their states.
        known: String,
    },
    /// InfiniBand and others.
    #[error(
        "port {port} of RDMA device {device} has the link layer {layer}; this rail speaks RoCE v2 \
         over Ethernet only"
    )]
    NotEthernet {
        /// The device.
        device: String,
        /// The port.
        port: u32,
        /// What it has.
        layer: String,
    },
    /// No usable address.
    #[error("port {port} of RDMA device {device}: {source}")]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u32,
        /// Why; prints the table.
        source: GidError,
    },
}

impl LocalPort {
    /// The port to use: the one asked for, else the device's first active one; and its GID: the
    /// index asked for, else a routable RoCE v2 one (see `railring_topology::choose_gid`).
    ///
    /// # Errors
    /// One variant per cause; those about addresses print the GID table.
    pub fn find(
        machine: &Machine,
        device: &str,
        port: Option<u32>,
        gid: Option<u16>,
    ) -> Result<LocalPort, PortError> {
        let found = find_device(machine, device)?;
        let chosen = find_port(found, port)?;
        let device = device.to_owned();
        let port = chosen.number;
        if chosen.link_layer != Some(LinkLayer::Ethernet) {
            let layer = format!("{:?}", chosen.link_layer);
            return Err(PortError::NotEthernet { device, port, layer });
        }
        let gid = choose_gid(machine, chosen, gid).map_err(|source| PortError::Gid {
            device: device.clone(),
            port,
            source,
        })?;
        let number = u8::try_from(port).map_err(|_| PortError::NoSuchPort {
            device: device.clone(),
            port,
            known: ports(found),
        })?;
        let node = found.locality.node.map(|node| u32::from(node.0));
        Ok(LocalPort { device, port: number, gid, node })
    }
}

fn find_device<'a>(machine: &'a Machine, device: &str) -> Result<&'a RdmaDevice, PortError> {
    if let Some(found) = machine.rdma_device(device) {
        return Ok(found);
    }
    let device = device.to_owned();
    if machine.rdma.is_empty() {
        return Err(PortError::NoDevices { device });
    }
    let names: Vec<_> = machine.rdma.iter().map(|device| &*device.name).collect();
    Err(PortError::NoSuchDevice { device, known: names.join(", ") })
}

fn find_port(device: &RdmaDevice, port: Option<u32>) -> Result<&RdmaPort, PortError> {
    let is_active = |port: &&RdmaPort| port.state == Some(PortState::Active);
    let name = device.name.clone();
    let Some(number) = port else {
        let active = device.ports.iter().find(is_active);
        return active
            .ok_or_else(|| PortError::NoActivePort { device: name, known: ports(device) });
    };
    let found = device.ports.iter().find(|port| port.number == number);
    let found = found.ok_or_else(|| {
        let known = ports(device);
        PortError::NoSuchPort { device: name.clone(), port: number, known }
    })?;
    if !is_active(&found) {
        return Err(PortError::Down { device: name, port: number, state: state(found) });
    }
    Ok(found)
}

fn state(port: &RdmaPort) -> String {
    match &port.state {
        Some(PortState::Other(state)) => state.clone(),
        Some(state) => format!("{state:?}").to_lowercase(),
        None => "unknown".to_owned(),
    }
}

fn ports(device: &RdmaDevice) -> String {
    let each = |port: &RdmaPort| format!("{} ({})", port.number, state(port));
    let ports: Vec<_> = device.ports.iter().map(each).collect();
    if ports.is_empty() { "none".to_owned() } else { ports.join(", ") }
}
