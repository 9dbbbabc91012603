//! Reads network devices: kind, speed, carrier, addresses, and how bonds and VLANs stack.

use super::near::combined;
use super::{Reader, pci};
use crate::machine::{LocalityFrom, NetDevice, NetKind, PciFunction, SubnetAddress};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

const NET: &str = "sys/class/net";
/// The file of a captured tree that holds what `getifaddrs` said: one `eth0 10.0.0.1/24` per line.
pub(crate) const ADDRESSES: &str = "railring/addresses";
/// Hardware type of the loopback device (linux/if_arp.h).
const ARPHRD_LOOPBACK: u32 = 772;
/// Devices deep a stack of VLANs on bonds may be before it is taken for a loop.
const STACK_DEPTH_MAX: usize = 8;

type Addresses = BTreeMap<String, Vec<SubnetAddress>>;

pub(super) fn read(reader: &Reader<'_>, functions: &[PciFunction]) -> Vec<NetDevice> {
    let mut addresses = read_addresses(reader);
    let mut devices = Vec::new();
    for name in reader.tree.list(NET) {
        // `bonding_masters` is a file among the links.
        let entry = format!("{NET}/{name}");
        match reader.tree.resolve(&entry) {
            Ok(folder) if reader.tree.exists(&format!("{folder}/type")) || folder != entry => {
                devices.push(read_device(reader, functions, &name, &folder, &mut addresses));
            }
            Ok(_) => {}
            Err(why) => {
                // Listed all the same: that there is such a device is known.
                reader.tree.note(&entry, why.text());
                let device = read_device(reader, functions, &name, &entry, &mut addresses);
                devices.push(device);
            }
        }
    }
    place_stacked(&mut devices);
    devices
}

fn read_device(
    reader: &Reader<'_>,
    functions: &[PciFunction],
    name: &str,
    folder: &str,
    addresses: &mut Addresses,
) -> NetDevice {
    let at = |file: &str| format!("{folder}/{file}");
    let text = |file: &str| reader.tree.optional(&at(file)).filter(|text| !text.is_empty());
    let function = pci::function_above(folder);
    // Without a carrier the kernel refuses to tell the speed, or says -1.
    let megabits = reader.tree.read(&at("speed")).ok().and_then(|speed| speed.parse::<i64>().ok());
    let members = read_members(reader, folder);
    NetDevice {
        name: name.to_owned(),
        kind: kind_of(reader, folder, &members),
        pci: function,
        locality: pci::locality_of(functions, function),
        mtu_bytes: reader.tree.value(&at("mtu")),
        carrier: reader.tree.read(&at("carrier")).ok().map(|carrier| carrier == "1"),
        state: text("operstate"),
        bits_per_second: megabits
            .filter(|&megabits| megabits > 0 && megabits < i64::from(u32::MAX))
            .map(|megabits| megabits.unsigned_abs() * 1_000_000),
        hardware_address: text("address"),
        addresses: addresses.remove(name).unwrap_or_default(),
        master: reader.tree.link_name(&at("master")),
        members,
        switch_id: reader.tree.read(&at("phys_switch_id")).ok().filter(|id| !id.is_empty()),
        port_name: reader.tree.read(&at("phys_port_name")).ok().filter(|name| !name.is_empty()),
    }
}

fn read_members(reader: &Reader<'_>, folder: &str) -> Vec<String> {
    let bonded = reader.tree.optional(&format!("{folder}/bonding/slaves"));
    let mut members: Vec<String> =
        bonded.iter().flat_map(|names| names.split_whitespace()).map(str::to_owned).collect();
    let names = reader.tree.list(folder);
    members.extend(names.iter().filter_map(|name| name.strip_prefix("lower_")).map(str::to_owned));
    members.sort();
    members.dedup();
    members
}

fn kind_of(reader: &Reader<'_>, folder: &str, members: &[String]) -> NetKind {
    let has = |file: &str| reader.tree.exists(&format!("{folder}/{file}"));
    let hardware: Option<u32> = reader.tree.value(&format!("{folder}/type"));
    match () {
        () if hardware == Some(ARPHRD_LOOPBACK) => NetKind::Loopback,
        () if has("bonding") => NetKind::Bond,
        () if has("bridge") => NetKind::Bridge,
        () if has("device") || pci::function_above(folder).is_some() => NetKind::Physical,
        () if !members.is_empty() => NetKind::Stacked,
        () => NetKind::Virtual,
    }
}

/// A device made of others is near where they are.
fn place_stacked(devices: &mut [NetDevice]) {
    for _ in 0..STACK_DEPTH_MAX {
        let before: BTreeMap<String, _> =
            devices.iter().map(|device| (device.name.clone(), device.locality.clone())).collect();
        for device in devices.iter_mut().filter(|device| device.pci.is_none()) {
            let parts = device.members.iter().filter_map(|member| before.get(member));
            let from = LocalityFrom::NetDevice(device.members.join(", "));
            device.locality = combined(parts, from);
        }
    }
}

fn read_addresses(reader: &Reader<'_>) -> Addresses {
    let mut addresses = Addresses::new();
    if reader.tree.is_live() {
        for (name, address) in live_addresses() {
            addresses.entry(name).or_default().push(address);
        }
        let lines = addresses.iter().flat_map(|(name, of_it)| {
            of_it.iter().map(move |address| format!("{name} {address}\n"))
        });
        reader.tree.record_extra(ADDRESSES, lines.collect());
    }
    let captured = reader.tree.optional(ADDRESSES).filter(|_| !reader.tree.is_live());
    for line in captured.iter().flat_map(|text| text.lines()) {
        match line.split_once(' ').map(|(name, address)| (name, address.parse())) {
            Some((name, Ok(address))) => {
                addresses.entry(name.to_owned()).or_default().push(address)
            }
            _ => reader.tree.note(ADDRESSES, format!("'{line}' is not a device and an address")),
        }
    }
    if addresses.is_empty() {
        addresses = from_if_inet6(&reader.tree.optional("proc/net/if_inet6").unwrap_or_default());
    }
    for of_one in addresses.values_mut() {
        of_one.sort();
        of_one.dedup();
    }
    addresses
}

fn live_addresses() -> Vec<(String, SubnetAddress)> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let one = |interface: nix::ifaddrs::InterfaceAddress| {
        let ip = ip_of(&interface.address?)?;
        let mask = interface.netmask.as_ref().and_then(ip_of);
        let prefix = mask.map_or(if ip.is_ipv4() { 32 } else { 128 }, |mask| match mask {
            IpAddr::V4(mask) => u32::from(mask).leading_ones(),
            IpAddr::V6(mask) => u128::from(mask).leading_ones(),
        });
        let prefix = u8::try_from(prefix).ok()?;
        Some((interface.interface_name, SubnetAddress { address: ip, prefix }))
    };
    interfaces.filter_map(one).collect()
}

fn ip_of(storage: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// `00000000000000000000000000000001 01 80 10 80 lo`: address, index, prefix length, scope, flags.
fn from_if_inet6(text: &str) -> Addresses {
    let mut addresses = Addresses::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, prefix, _, _, name] = words.as_slice() else { continue };
        let address = u128::from_str_radix(address, 16).map(Ipv6Addr::from);
        let (Ok(address), Ok(prefix)) = (address, u8::from_str_radix(prefix, 16)) else { continue };
        let address = SubnetAddress { address: IpAddr::V6(address), prefix: prefix.min(128) };
        addresses.entry((*name).to_owned()).or_default().push(address);
    }
    addresses
}
