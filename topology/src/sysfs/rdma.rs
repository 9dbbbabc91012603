//! Reads RDMA devices with every port: state, rate, MTU, GID table, network device.

use super::{Reader, pci};
use crate::machine::{
    Gid, GidKind, LinkLayer, Locality, LocalityFrom, NetDevice, PciFunction, PortState, RdmaDevice,
    RdmaPort,
};
use std::net::Ipv6Addr;

const RDMA: &str = "sys/class/infiniband";
/// Ports of one device; the specification allows 255 and hardware stops at 12 or so.
const PORTS_MAX: usize = 255;

pub(super) fn read(
    reader: &Reader<'_>,
    functions: &[PciFunction],
    net: &[NetDevice],
) -> Vec<RdmaDevice> {
    let mut devices = Vec::new();
    for name in reader.tree.list(RDMA) {
        let entry = format!("{RDMA}/{name}");
        match reader.tree.resolve(&entry) {
            Ok(folder) => devices.push(read_device(reader, functions, net, &name, &folder)),
            Err(why) => {
                // Listed all the same: that there is such a device is known.
                reader.tree.note(&entry, why.text());
                devices.push(read_device(reader, functions, net, &name, &entry));
            }
        }
    }
    devices
}

fn read_device(
    reader: &Reader<'_>,
    functions: &[PciFunction],
    net: &[NetDevice],
    name: &str,
    folder: &str,
) -> RdmaDevice {
    let guid = |file: &str| {
        let text = reader.tree.optional(&format!("{folder}/{file}"))?;
        // All zeros is what devices without an identity say.
        text.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0').then_some(text)
    };
    // The class entry lies below the function; sub-functions have a level in between.
    let device_link = reader.tree.resolve(&format!("{folder}/device")).unwrap_or_default();
    let function = pci::function_above(folder).or_else(|| pci::function_above(&device_link));
    let mut device = RdmaDevice {
        name: name.to_owned(),
        pci: function,
        driver: function.and_then(|at| pci::find(functions, at)).and_then(|f| f.driver.clone()),
        node_guid: guid("node_guid"),
        system_guid: guid("sys_image_guid"),
        locality: pci::locality_of(functions, function),
        ports: read_ports(reader, folder),
    };
    for port in &mut device.ports {
        port.net = net_of_port(reader, net, port, function, folder);
        let layer = port.link_layer.clone();
        let under = port.net.as_ref().and_then(|name| net.iter().find(|net| net.name == *name));
        port.mtu_bytes = layer.zip(under).and_then(|(layer, net)| path_mtu(&layer, net.mtu_bytes?));
    }
    if device.pci.is_none() {
        device.locality = ride_on(&device, net);
    }
    device
}

/// A software device is near where its network device is.
fn ride_on(device: &RdmaDevice, net: &[NetDevice]) -> Locality {
    let carrier = device.ports.iter().find_map(|port| port.net.as_ref());
    let carrier = carrier.and_then(|name| net.iter().find(|net| net.name == *name));
    let placed = carrier.filter(|net| !net.locality.cpus.is_empty());
    placed.map_or_else(Locality::default, |net| Locality {
        from: LocalityFrom::NetDevice(net.name.clone()),
        ..net.locality.clone()
    })
}

fn read_ports(reader: &Reader<'_>, folder: &str) -> Vec<RdmaPort> {
    let names = reader.tree.list(&format!("{folder}/ports"));
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.truncate(PORTS_MAX);
    numbers.into_iter().map(|number| read_port(reader, folder, number)).collect()
}

fn read_port(reader: &Reader<'_>, folder: &str, number: u32) -> RdmaPort {
    let port = format!("{folder}/ports/{number}");
    let at = |file: &str| format!("{port}/{file}");
    let layer = reader.tree.optional(&at("link_layer")).map(|text| match text.as_str() {
        "InfiniBand" => LinkLayer::InfiniBand,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Other(text),
    });
    let rate = reader.tree.optional(&at("rate"));
    RdmaPort {
        number,
        state: reader.tree.expected(&at("state")).map(|text| port_state(&text)),
        physical_state: reader.tree.optional(&at("phys_state")).map(|text| after_colon(&text)),
        bits_per_second: rate.and_then(|rate| data_rate(&rate, layer.as_ref())),
        link_layer: layer,
        mtu_bytes: None,
        net: None,
        gids: read_gids(reader, &port),
    }
}

fn after_colon(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, word)| word).trim().to_owned()
}

/// `4: ACTIVE`, `1: DOWN`.
fn port_state(text: &str) -> PortState {
    match text.split(':').next().map(str::trim) {
        Some("1") => PortState::Down,
        Some("2") => PortState::Init,
        Some("3") => PortState::Armed,
        Some("4") => PortState::Active,
        _ => PortState::Other(after_colon(text)),
    }
}

/// Bits per second of data in a line such as `40 Gb/sec (4X QDR)`. InfiniBand to QDR sends 8 bits
/// of data in 10, FDR 64 in 66; the rates of later generations, and of Ethernet, are data already.
fn data_rate(text: &str, layer: Option<&LinkLayer>) -> Option<u64> {
    let number = text.split_whitespace().next()?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenths): (u64, u64) = (whole.parse().ok()?, part.get(..1)?.parse().ok()?);
    let bits = whole.checked_mul(1_000_000_000)?.checked_add(tenths * 100_000_000)?;
    let generation = text.split_once('(').map_or("", |(_, rest)| rest.trim_end_matches(')'));
    let generation = generation.split_whitespace().nth(1).unwrap_or("SDR");
    Some(match (layer, generation) {
        (Some(LinkLayer::InfiniBand), "SDR" | "DDR" | "QDR") => bits / 10 * 8,
        (Some(LinkLayer::InfiniBand), "FDR") => bits / 66 * 64,
        _ => bits,
    })
}

fn read_gids(reader: &Reader<'_>, port: &str) -> Vec<Gid> {
    let mut gids = Vec::new();
    for name in reader.tree.list(&format!("{port}/gids")) {
        let Ok(index) = name.parse::<u16>() else { continue };
        // Entries that are not in use are all zeros, or refuse to be read.
        let text = reader.tree.read(&format!("{port}/gids/{index}")).unwrap_or_default();
        let Ok(address) = text.parse::<Ipv6Addr>() else { continue };
        if address.is_unspecified() {
            continue;
        }
        let attribute = |kind: &str| reader.tree.read(&format!("{port}/gid_attrs/{kind}/{index}"));
        let kind = match attribute("types").as_deref() {
            Ok("RoCE v2") => GidKind::RoceV2,
            Ok("IB/RoCE v1") => GidKind::InfiniBandOrRoceV1,
            _ => GidKind::Unknown,
        };
        let net = attribute("ndevs").ok().filter(|name| !name.is_empty());
        gids.push(Gid { index, kind, address, net });
    }
    gids.sort_by_key(|gid| gid.index);
    gids
}

/// The network device of a port: that of its GIDs (VLANs have GIDs too, so the most frequent at the
/// lowest index), else the one the driver names, else the only one of the function with that port.
fn net_of_port(
    reader: &Reader<'_>,
    net: &[NetDevice],
    port: &RdmaPort,
    function: Option<crate::id::PciAddress>,
    folder: &str,
) -> Option<String> {
    if let Some(name) = port.gids.iter().find_map(|gid| gid.net.clone()) {
        return Some(name);
    }
    if let Some(parent) = reader.tree.read(&format!("{folder}/parent")).ok()
        && net.iter().any(|net| net.name == parent)
    {
        return Some(parent);
    }
    let function = function?;
    let of_function = net.iter().filter(|net| net.pci == Some(function));
    let of_function: Vec<&NetDevice> = of_function.collect();
    let of_port = of_function.iter().filter(|net| {
        let path = format!("sys/class/net/{}/dev_port", net.name);
        reader.tree.value::<u32>(&path).is_some_and(|dev_port| dev_port + 1 == port.number)
    });
    let of_port: Vec<_> = of_port.collect();
    match (of_port.as_slice(), of_function.as_slice()) {
        ([one], _) => Some(one.name.clone()),
        ([], [one]) => Some(one.name.clone()),
        _ => None,
    }
}

/// The path MTU a port uses on a network device: on Ethernet the largest of 256 to 4,096 that
/// leaves 96 bytes for headers (the kernel's `iboe_get_mtu`); IPoIB's is 4 bytes below the port's.
fn path_mtu(layer: &LinkLayer, net_mtu: u32) -> Option<u32> {
    const PATH_MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
    const ROCE_HEADER_BYTES: u32 = 96;
    match layer {
        LinkLayer::Ethernet => {
            let room = net_mtu.saturating_sub(ROCE_HEADER_BYTES);
            PATH_MTUS.into_iter().find(|&mtu| mtu <= room)
        }
        LinkLayer::InfiniBand => PATH_MTUS.into_iter().find(|&mtu| mtu == net_mtu + 4),
        LinkLayer::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_data_and_not_line_coding() {
        let (ib, ethernet) = (LinkLayer::InfiniBand, LinkLayer::Ethernet);
        let cases = [
            ("40 Gb/sec (4X QDR)", &ib, 32_000_000_000),
            ("40 Gb/sec (4X QDR)", &ethernet, 40_000_000_000),
            ("10 Gb/sec (4X)", &ib, 8_000_000_000),
            ("2.5 Gb/sec (1X)", &ethernet, 2_500_000_000),
            ("100 Gb/sec (4X EDR)", &ib, 100_000_000_000),
            ("66 Gb/sec (4X FDR)", &ib, 64_000_000_000),
        ];
        for (text, layer, bits) in cases {
            assert_eq!(data_rate(text, Some(layer)), Some(bits), "{text}");
        }
        assert_eq!(data_rate("fast", None), None);
    }

    #[test]
    fn the_path_mtu_is_what_fits_beside_the_headers() {
        let ethernet = |mtu| path_mtu(&LinkLayer::Ethernet, mtu);
        assert_eq!(
            [ethernet(1500), ethernet(9000), ethernet(4191)],
            [Some(1024), Some(4096), Some(2048)]
        );
        assert_eq!(ethernet(300), None);
        assert_eq!(path_mtu(&LinkLayer::InfiniBand, 4092), Some(4096));
        assert_eq!(path_mtu(&LinkLayer::InfiniBand, 65520), None);
    }
}
