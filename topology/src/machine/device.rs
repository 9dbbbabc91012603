//! The part of a machine that moves data: PCI functions, RDMA ports, network and block devices.

use crate::cpuset::CpuSet;
use crate::id::{CpuId, NodeId, PciAddress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// How it is known which cores a device is near.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "of")]
#[non_exhaustive]
pub enum LocalityFrom {
    /// Nothing says; any core may be far.
    #[default]
    Nothing,
    /// The device's `numa_node`.
    NumaNode,
    /// The device's `local_cpulist`, as its `numa_node` says nothing.
    LocalCpus,
    /// A PCI bridge above it, as the device itself says nothing.
    Bridge(PciAddress),
    /// The network device that a software RDMA device rides on, or a bond's members.
    NetDevice(String),
    /// The disks below a layered block device or directory.
    Disks(String),
    /// hwloc.
    Hwloc,
}

/// Which cores and which memory a device is near.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// The memory node, where exactly one is known.
    pub node: Option<NodeId>,
    /// The near CPUs; empty when nothing is known.
    pub cpus: CpuSet,
    /// How this is known.
    pub from: LocalityFrom,
}

/// Speed and width of a PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkRate {
    /// Transfers per second and line, in millions: 8,000 for "8.0 GT/s".
    pub megatransfers: u32,
    /// Lines in use (the "x16" of a link).
    pub lanes: u8,
}

impl LinkRate {
    /// Bits per second after line coding (8b/10b to 5 GT/s, 128b/130b to 32 GT/s, 242/256 FLIT at
    /// 64 GT/s, PCI Express Base Specification 6.0). Packet headers take a further 5 to 15 %.
    #[must_use]
    pub fn bits_per_second(self) -> u64 {
        let (payload, line) = match self.megatransfers {
            0..=5_000 => (8, 10),
            5_001..=32_000 => (128, 130),
            _ => (242, 256),
        };
        u64::from(self.megatransfers) * 1_000_000 * u64::from(self.lanes) * payload / line
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigatransfers = f64::from(self.megatransfers) / 1000.0;
        write!(f, "{gigatransfers} GT/s x{}", self.lanes)
    }
}

/// A PCI function's link, as it is and as it could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// As trained.
    pub now: Option<LinkRate>,
    /// The most this end supports.
    pub most: Option<LinkRate>,
    /// Bits per second where only a rate is known (hwloc gives no speed and width).
    pub bits_per_second: Option<u64>,
}

impl Link {
    /// Bits per second the link carries now.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.now.map(LinkRate::bits_per_second).or(self.bits_per_second).filter(|&bits| bits > 0)
    }
}

/// How the IOMMU treats a function's memory accesses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iommu {
    /// The IOMMU group.
    pub group: String,
    /// The group's kind (`DMA`, `DMA-FQ`, `identity`), where the kernel says.
    pub kind: Option<String>,
}

impl Iommu {
    /// True when each access is translated, false when addresses pass unchanged.
    #[must_use]
    pub fn translates(&self) -> Option<bool> {
        self.kind.as_ref().map(|kind| kind != "identity")
    }
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciFunction {
    /// Where it sits.
    pub address: PciAddress,
    /// Class, subclass and programming interface (24 bits).
    pub class: Option<u32>,
    /// Vendor id.
    pub vendor: Option<u16>,
    /// Device id.
    pub device: Option<u16>,
    /// The driver bound to it.
    pub driver: Option<String>,
    /// The host bridge (`pci0000:80`) it hangs below.
    pub host_bridge: Option<String>,
    /// The bridges between the host bridge and it, outermost first.
    pub bridges: Vec<PciAddress>,
    /// Its link.
    pub link: Link,
    /// Where it is near.
    pub locality: Locality,
    /// The physical function, when this is a virtual one.
    pub physical_function: Option<PciAddress>,
    /// Its virtual functions.
    pub virtual_functions: Vec<PciAddress>,
    /// Its IOMMU group.
    pub iommu: Option<Iommu>,
    /// Interrupts of this function that each CPU serves.
    pub interrupts: BTreeMap<CpuId, u32>,
}

impl PciFunction {
    /// True for bridges between PCI buses.
    #[must_use]
    pub fn is_bridge(&self) -> bool {
        self.class.is_some_and(|class| class >> 8 == 0x0604)
    }

    /// What it is, in words.
    #[must_use]
    pub fn class_name(&self) -> &'static str {
        match self.class.map(|class| class >> 8) {
            Some(0x0604) => "bridge",
            Some(0x0200) => "Ethernet",
            Some(0x0207 | 0x0c06) => "InfiniBand",
            Some(0x0280 | 0x0202..=0x0206) => "network",
            Some(0x0108) => "NVMe",
            Some(0x0100..=0x01ff) => "storage",
            Some(0x0300..=0x03ff) => "display",
            Some(0x1200..=0x12ff) => "accelerator",
            Some(_) => "device",
            None => "unknown",
        }
    }
}

/// State of an RDMA port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PortState {
    /// The link is down.
    Down,
    /// The link is up and waits for a subnet manager.
    Init,
    /// Configured and not yet active.
    Armed,
    /// Usable.
    Active,
    /// What else the kernel said.
    Other(String),
}

/// What an RDMA port is connected with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand, also Omni-Path.
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// Ethernet: RoCE, or iWARP.
    Ethernet,
    /// What else the kernel said, as `Unspecified` for EFA.
    Other(String),
}

/// The protocol a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: the kernel does not tell them apart.
    #[serde(rename = "infiniband-or-roce-v1")]
    InfiniBandOrRoceV1,
    /// RoCE v2, over UDP.
    RoceV2,
    /// Not said.
    Unknown,
}

/// An entry of a port's GID table that is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u16,
    /// The protocol.
    pub kind: GidKind,
    /// The address, IPv4 ones as `::ffff:a.b.c.d`.
    pub address: Ipv6Addr,
    /// The network device whose address it is.
    pub net: Option<String>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// Its state.
    pub state: Option<PortState>,
    /// The physical state in the kernel's words (`LinkUp`, `Polling`, `Disabled`).
    pub physical_state: Option<String>,
    /// What it is connected with.
    pub link_layer: Option<LinkLayer>,
    /// Data bits per second, after line coding.
    pub bits_per_second: Option<u64>,
    /// The path MTU in use, in bytes, computed from the network device's as the kernel does.
    pub mtu_bytes: Option<u32>,
    /// Its network device.
    pub net: Option<String>,
    /// The entries of its GID table that are in use.
    pub gids: Vec<Gid>,
}

/// An RDMA device with all its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    /// Its name, which says nothing about where it is.
    pub name: String,
    /// The PCI function it belongs to; none for software devices.
    pub pci: Option<PciAddress>,
    /// The driver of that function (`mlx5_core`, `efa`).
    pub driver: Option<String>,
    /// Identity of the node, as printed by the kernel.
    pub node_guid: Option<String>,
    /// Identity of the adapter: the same for all functions of one card.
    pub system_guid: Option<String>,
    /// Where it is near.
    pub locality: Locality,
    /// Its ports, whatever their state.
    pub ports: Vec<RdmaPort>,
}

/// What sort of network device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NetKind {
    /// A NIC's port.
    Physical,
    /// Several NICs under one address.
    Bond,
    /// A VLAN or similar on another device.
    Stacked,
    /// A software switch.
    Bridge,
    /// The loopback device.
    Loopback,
    /// Anything else that is made of software.
    Virtual,
}

/// An IP address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubnetAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of the network prefix, in bits.
    pub prefix: u8,
}

impl fmt::Display for SubnetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Text that is not an IP address with an optional prefix length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not an address; write it as 10.0.0.1/24 or fd00::1/64")]
pub struct SubnetAddressError {
    /// What was given.
    pub text: String,
}

fn parse_subnet(text: &str) -> Option<SubnetAddress> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.map_or(Some(whole), |prefix| prefix.parse().ok())?;
    (prefix <= whole).then_some(SubnetAddress { address, prefix })
}

impl std::str::FromStr for SubnetAddress {
    type Err = SubnetAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_subnet(text)
            .ok_or_else(|| SubnetAddressError { text: text.chars().take(64).collect() })
    }
}

impl Serialize for SubnetAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SubnetAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDevice {
    /// Its name, which says nothing about where it is.
    pub name: String,
    /// What sort it is.
    pub kind: NetKind,
    /// The PCI function it belongs to.
    pub pci: Option<PciAddress>,
    /// Where it is near.
    pub locality: Locality,
    /// The largest packet, in bytes.
    pub mtu_bytes: Option<u32>,
    /// True when there is a carrier.
    pub carrier: Option<bool>,
    /// The kernel's word for its state (`up`, `down`, `unknown`).
    pub state: Option<String>,
    /// Bits per second.
    pub bits_per_second: Option<u64>,
    /// The hardware address.
    pub hardware_address: Option<String>,
    /// IP addresses, where known.
    pub addresses: Vec<SubnetAddress>,
    /// The bond or bridge it is a member of.
    pub master: Option<String>,
    /// The devices below it: a bond's or bridge's members, a VLAN's parent.
    pub members: Vec<String>,
    /// Identity of the switch inside the adapter, where it has one.
    pub switch_id: Option<String>,
    /// The port's name at that switch; `pf0vf1` is a virtual function's representor.
    pub port_name: Option<String>,
}

impl NetDevice {
    /// True when packets can flow. Devices of software often say `unknown` and have a carrier.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match self.state.as_deref() {
            Some("up") => true,
            Some("unknown") | None => self.carrier == Some(true),
            Some(_) => false,
        }
    }
}

/// A whole block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name, which says nothing about where it is.
    pub name: String,
    /// Major and minor number, as in `259:0`.
    pub number: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// Its size, in bytes.
    pub size_bytes: Option<u64>,
    /// True for disks that turn.
    pub rotational: Option<bool>,
    /// The PCI function it belongs to.
    pub pci: Option<PciAddress>,
    /// Where it is near.
    pub locality: Locality,
    /// The disks a layered device (RAID, LVM, multipath) is made of.
    pub members: Vec<String>,
}

/// A directory, and what it lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// The directory as it was asked for.
    pub path: String,
    /// Where its file system is mounted.
    pub mount_point: Option<String>,
    /// The file system's type.
    pub filesystem: Option<String>,
    /// The whole disk it lies on.
    pub disk: Option<String>,
    /// Where that is near.
    pub locality: Locality,
    /// Why the disk is unknown, when it is.
    pub why_unknown: Option<String>,
}
