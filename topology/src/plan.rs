//! `Plan`: the rails of a machine, their pollers and memory, what they can carry together, and why.

use crate::cpuset::CpuSet;
use crate::gid::GidChoice;
use crate::id::{CpuId, NodeId, PciAddress};
use crate::machine::LinkLayer;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// What a reason is about. The names are part of the JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ReasonCode {
    /// Why this device is a rail.
    Usable,
    /// Why it is near the cores it is near.
    Locality,
    /// Why this core polls it.
    Poller,
    /// Why it shares a poller, and what that costs.
    Shared,
    /// Why its memory lies on that node.
    Memory,
    /// Why this GID.
    Gid,
    /// Why it is expected to carry so much.
    Bandwidth,
    /// What the caller asked for.
    Override,
}

/// One reason, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What it is about.
    pub code: ReasonCode,
    /// The reason.
    pub text: String,
}

impl Reason {
    pub(crate) fn new(code: ReasonCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a rail goes through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum RailPath {
    /// A port of an RDMA device.
    Rdma {
        /// The device.
        device: String,
        /// The port, from 1.
        port: u32,
        /// What it is connected with.
        link_layer: Option<LinkLayer>,
        /// The GID to use, where one fits.
        gid: Option<GidChoice>,
        /// Its network device.
        net: Option<String>,
    },
    /// A network device with TCP.
    Tcp {
        /// The network device.
        net: String,
        /// The address to connect from, where known.
        source: Option<IpAddr>,
    },
    /// A local directory.
    File {
        /// The directory.
        directory: String,
        /// The disk it lies on, where known.
        disk: Option<String>,
    },
    /// Something that is no device of this machine, as a simulated path.
    Other {
        /// Its specification.
        spec: String,
    },
}

/// One rail with its place on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailPlacement {
    /// Its number in this plan, from 0 and without gaps.
    pub number: u16,
    /// Its name: `mlx5_0:1`, `eth0`, a directory, or what the caller called it.
    pub name: String,
    /// What it goes through.
    pub path: RailPath,
    /// The PCI function, where it has one.
    pub pci: Option<PciAddress>,
    /// The memory node it is near, where known.
    pub node: Option<NodeId>,
    /// The CPUs it is near; empty when unknown.
    pub near: CpuSet,
    /// The number of its poller.
    pub poller: u16,
    /// The node its buffers should lie on.
    pub memory_node: Option<NodeId>,
    /// Bits per second that its port and its own links carry.
    pub bits_per_second: Option<u64>,
    /// Packet or path MTU, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Weight, where the caller gave one.
    pub weight: Option<u32>,
    /// Why all this.
    pub reasons: Vec<Reason>,
}

/// One poller: a thread that drives one or more rails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollerPlacement {
    /// Its number in this plan, from 0 and without gaps.
    pub number: u16,
    /// The CPU to bind it to; none when the plan binds nothing.
    pub cpu: Option<CpuId>,
    /// The CPUs it may run on: the one it is bound to, or all that are allowed.
    pub cpus: CpuSet,
    /// The node of its CPU.
    pub node: Option<NodeId>,
    /// The numbers of its rails.
    pub rails: Vec<u16>,
}

/// What rails of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GroupKind {
    /// One physical port: a physical function and its virtual ones, or two devices on one port.
    SamePort,
    /// One disk.
    SameDisk,
    /// Several functions or ports of one card.
    SameAdapter,
    /// One network device, and so one address, for instance a bond.
    SameAddress,
    /// A PCI link above them that carries less than they could.
    CommonUplink,
}

/// Rails that are not worth as much together as each alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// What they have in common.
    pub kind: GroupKind,
    /// What that is, as in `0000:81:00`.
    pub through: String,
    /// The numbers of the rails.
    pub rails: Vec<u16>,
    /// Bits per second that the common part carries, where known.
    pub bits_per_second: Option<u64>,
    /// Bits per second that the rails could carry without it, where known.
    pub wanted_bits_per_second: Option<u64>,
}

/// A device that is no rail of this plan, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PassedOver {
    /// The device, as in `mlx5_3:1`.
    pub name: String,
    /// Why it is no rail.
    pub why: String,
}

/// What a warning is about. The names are part of the JSON schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WarningCode {
    /// A link runs slower or narrower than both its ends can.
    LinkBelowMaximum,
    /// A slot gives a card fewer lines or less speed than it can use.
    SlotBelowCard,
    /// Nobody knows which node a device is near.
    UnknownNode,
    /// A poller is on another node than its rail.
    FarPoller,
    /// Rails share a port, an adapter, an address or an uplink.
    SharedPath,
    /// Rails share a poller because cores or the CPU quota ran out.
    SharedPoller,
    /// A node has no huge pages.
    NoHugePages,
    /// Little memory may be locked.
    LowMemlock,
    /// Busy polling under a CPU quota.
    CpuQuota,
    /// Rails have different MTUs, or a small one.
    Mtu,
    /// Each memory access of a device is translated.
    IommuTranslation,
    /// Sources disagree about a device.
    Disagreement,
    /// No GID of a port fits.
    NoGid,
    /// A rail that was named is not usable at the moment.
    NotUsable,
    /// CPUs that were asked for cannot be used.
    CpusDropped,
    /// Buffers lie on another node than the rail.
    FarMemory,
    /// There is no rail.
    NoRails,
}

/// Something that costs speed, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Warning {
    /// What it is about.
    pub code: WarningCode,
    /// The rail, device or node it concerns.
    pub about: String,
    /// What is wrong and what it costs.
    pub text: String,
    /// What to do.
    pub todo: String,
}

/// What all rails can carry together, computed from links and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Bits per second of all rails together, an upper bound; none when a rail's is unknown.
    pub bits_per_second: Option<u64>,
    /// The sum of the rails' own, as if they had nothing in common.
    pub sum_bits_per_second: Option<u64>,
    /// Names of the rails of which nothing is known.
    pub unknown_rails: Vec<String>,
}

/// The rails of a machine with their pollers and memory. The same machine and policy give the same
/// plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The rails, by number.
    pub rails: Vec<RailPlacement>,
    /// The pollers, by number.
    pub pollers: Vec<PollerPlacement>,
    /// Rails that have something in common.
    pub groups: Vec<Group>,
    /// What they can carry together.
    pub expected: Expected,
    /// Devices that are no rails.
    pub passed_over: Vec<PassedOver>,
    /// CPUs that were asked for and cannot be used.
    pub dropped_cpus: CpuSet,
    /// What costs speed.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// The rail of that number or name. A device's name stands for its only rail.
    #[must_use]
    pub fn rail(&self, wanted: &str) -> Option<&RailPlacement> {
        let by_name = self.rails.iter().find(|rail| rail.name == wanted);
        let by_number = || {
            let number: u16 = wanted.parse().ok()?;
            self.rails.iter().find(|rail| rail.number == number)
        };
        let by_device = || {
            let mut rails = self.rails.iter().filter(|rail| rail.device() == Some(wanted));
            rails.next().filter(|_| rails.next().is_none())
        };
        by_name.or_else(by_number).or_else(by_device)
    }

    /// The poller of a rail.
    #[must_use]
    pub fn poller_of(&self, rail: &RailPlacement) -> Option<&PollerPlacement> {
        self.pollers.iter().find(|poller| poller.number == rail.poller)
    }
}

impl RailPlacement {
    /// The device it goes through, by name.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match &self.path {
            RailPath::Rdma { device, .. } => Some(device),
            RailPath::Tcp { net, .. } => Some(net),
            RailPath::File { disk, .. } => disk.as_deref(),
            RailPath::Other { .. } => None,
        }
    }

    /// The reasons about one thing.
    pub fn reasons_about(&self, code: ReasonCode) -> impl Iterator<Item = &str> {
        self.reasons.iter().filter(move |reason| reason.code == code).map(|r| r.text.as_str())
    }
}
