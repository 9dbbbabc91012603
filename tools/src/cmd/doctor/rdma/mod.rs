//! What the doctor says about RDMA: devices, ports and their GIDs, and what verbs rails need
//! besides: device files, kernel modules, user-space drivers, lockable memory.

mod seen;
#[cfg(feature = "verbs")]
mod selftest;

use std::path::Path;

use railring::dma::{MemlockBudget, MemlockLimit};
use railring::topology::choose_gid;
use railring::topology::gid::ipv4_of;
use railring::topology::machine::{GidKind, LinkLayer, PortState, RdmaDevice, RdmaPort};

use self::seen::{DoorState, LIBRARIES, Seen};
use super::{Finding, State};
use crate::units::Bytes;

/// Whether data is moved to find out whether that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelfTest {
    /// Everything is read from files.
    No,
    /// Each active port reads from itself.
    Yes,
}

/// Every check.
pub(super) fn all(test: SelfTest) -> Vec<Finding> {
    let seen = Seen::read(Path::new("/"));
    let mut findings = judge(&seen);
    if let (false, Ok(limit)) = (seen.machine.rdma.is_empty(), MemlockLimit::read()) {
        findings.extend(memlock(limit));
    }
    findings.push(build());
    if test == SelfTest::Yes {
        findings.extend(self_test(&seen));
    }
    findings
}

#[cfg(feature = "verbs")]
fn self_test(seen: &Seen) -> Vec<Finding> {
    selftest::run(&seen.machine)
}

#[cfg(not(feature = "verbs"))]
fn self_test(_seen: &Seen) -> Vec<Finding> {
    let found = "asked for, and this command was built without the feature verbs";
    let meaning = "it cannot speak to RDMA devices, so nothing was tested";
    vec![Finding::new("self-test", State::Broken, found, meaning).mend(BUILD_WITH)]
}

const BUILD_WITH: &str = "cargo build --release --features verbs; that needs libibverbs-dev, \
                          librdmacm-dev, libclang-dev and pkg-config";

/// Whether this program can have verbs rails at all.
fn build() -> Finding {
    if cfg!(feature = "verbs") {
        let meaning = "this command can use RDMA devices";
        return Finding::new("rdma build", State::Good, "built with the feature verbs", meaning);
    }
    let meaning = "this command has no verbs rails, whatever the machine has";
    Finding::new("rdma build", State::Absent, "built without the feature verbs", meaning)
        .mend(BUILD_WITH)
}

fn judge(seen: &Seen) -> Vec<Finding> {
    let devices = &seen.machine.rdma;
    if devices.is_empty() {
        return vec![no_device(seen)];
    }
    let mut findings = Vec::new();
    for device in devices {
        findings.extend(device.ports.iter().map(|port| judge_port(seen, device, port)));
        if device.ports.is_empty() {
            let meaning = "no rail can be made of it";
            let check = format!("rdma {}", device.name);
            findings.push(
                Finding::new(&check, State::Broken, "the device has no port", meaning)
                    .mend("look at the driver's messages: dmesg | grep -i infiniband"),
            );
        }
    }
    let active = devices.iter().flat_map(|device| &device.ports).any(is_active);
    if !active {
        let meaning = "no verbs rail can be made on this machine until one comes up";
        findings.push(
            Finding::new("rdma ports", State::Broken, "no active port", meaning)
                .mend("see each port above"),
        );
    }
    findings.extend(devices.iter().map(|device| door(seen, device)));
    findings.push(libraries(seen));
    findings.extend(devices.iter().filter_map(|device| provider(seen, device)));
    findings
}

fn is_active(port: &RdmaPort) -> bool {
    port.state == Some(PortState::Active)
}

fn no_device(seen: &Seen) -> Finding {
    let meaning = "no verbs rail can be made on this machine; other rails do not need one";
    let soft = if seen.modules.contains("rdma_rxe") {
        "rdma link add rxe0 type rxe netdev NIC"
    } else {
        "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NIC"
    };
    Finding::new("rdma", State::Absent, "no RDMA device", meaning).mend(format!(
        "with a card: load its driver; without one, software RDMA does for trying it out: {soft}"
    ))
}

/// One line per port: what it is, and which of its GIDs a rail would use.
fn judge_port(seen: &Seen, device: &RdmaDevice, port: &RdmaPort) -> Finding {
    let check = format!("rdma {}/{}", device.name, port.number);
    let found = format!("{}; {}", describe(device, port), gid_table(port));
    if !is_active(port) {
        let meaning = "no rail can use this port while it is not active; others are not affected";
        let mend = match &port.net {
            Some(net) => format!("ip link set {net} up; look at its cable and switch"),
            None if port.link_layer == Some(LinkLayer::InfiniBand) => {
                "look at the cable, and that a subnet manager runs in the fabric".to_owned()
            }
            None => "look at the cable and switch".to_owned(),
        };
        return Finding::new(&check, State::Absent, found, meaning).mend(mend);
    }
    match choose_gid(&seen.machine, port, None) {
        Ok(choice) => {
            let meaning = format!("a rail on it uses GID index {} ({})", choice.index, choice.why);
            Finding::new(&check, State::Good, found, meaning)
        }
        Err(error) => {
            let net = port.net.as_deref().unwrap_or("NIC");
            let meaning = format!("no rail can choose a GID by itself: {error}");
            Finding::new(&check, State::Broken, found, meaning)
                .mend(format!("ip address add ADDRESS/24 dev {net}; or name a GID index"))
        }
    }
}

fn describe(device: &RdmaDevice, port: &RdmaPort) -> String {
    let state = match &port.state {
        Some(PortState::Active) => "active",
        Some(PortState::Down) => "down",
        Some(PortState::Init) => "initialising",
        Some(PortState::Armed) => "armed",
        Some(PortState::Other(state)) => state,
        Some(_) | None => "of unknown state",
    };
    let mut words = vec![state.to_owned()];
    match &port.link_layer {
        Some(LinkLayer::Ethernet) => words.push("Ethernet".to_owned()),
        Some(LinkLayer::InfiniBand) => words.push("InfiniBand".to_owned()),
        _ => {}
    }
    words.extend(port.mtu_bytes.map(|bytes| format!("MTU {bytes}")));
    words.extend(port.net.as_ref().map(|net| format!("on {net}")));
    words.extend(device.locality.node.map(|node| format!("near node {}", node.0)));
    words.join(", ")
}

fn gid_table(port: &RdmaPort) -> String {
    let kind = |kind| match kind {
        GidKind::RoceV2 => "RoCE v2",
        GidKind::InfiniBandOrRoceV1 => "IB or RoCE v1",
        _ => "unknown kind",
    };
    let rows = port.gids.iter().map(|gid| {
        let address = ipv4_of(gid.address).map_or(gid.address.to_string(), |v4| v4.to_string());
        let net = gid.net.as_ref().map_or(String::new(), |net| format!(" {net}"));
        format!("{}: {address} {}{net}", gid.index, kind(gid.kind))
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() { "no GIDs".to_owned() } else { format!("GIDs {}", rows.join(", ")) }
}

/// The device file, which is all that a program needs permission for.
fn door(seen: &Seen, device: &RdmaDevice) -> Finding {
    let check = format!("access {}", device.name);
    let Some(door) = seen.doors.iter().find(|door| door.device == device.name) else {
        let meaning = "programs cannot reach the device";
        let found = if seen.modules.contains("ib_uverbs") {
            "the kernel offers no device file for it"
        } else {
            "the kernel module ib_uverbs is not loaded"
        };
        return Finding::new(&check, State::Broken, found, meaning).mend("modprobe ib_uverbs");
    };
    let path = door.path.display();
    match door.state {
        DoorState::Open => {
            let meaning = "this user may use the device";
            Finding::new(&check, State::Good, format!("{path} can be opened"), meaning)
        }
        DoorState::Forbidden => {
            let meaning = "this user may not use the device";
            let found = format!("no permission to read and write {path}");
            Finding::new(&check, State::Broken, found, meaning).mend(format!(
                "chmod 0666 {path}, for good with a udev rule (KERNEL==\"uverbs*\", MODE=\"0666\")"
            ))
        }
        DoorState::NoNode => {
            let meaning = "programs here cannot reach the device";
            Finding::new(&check, State::Broken, format!("{path} is not there"), meaning)
                .mend("let udev make it; containers: --device=/dev/infiniband")
        }
    }
}

fn libraries(seen: &Seen) -> Finding {
    let lacks = |name: &&&str| !seen.libraries.contains(*name);
    let missing: Vec<_> = LIBRARIES.iter().filter(lacks).copied().collect();
    if missing.is_empty() {
        let meaning = "a build with the feature verbs runs here";
        return Finding::new("rdma library", State::Good, LIBRARIES.join(", "), meaning);
    }
    let meaning = "a build with the feature verbs does not start here";
    let found = format!("not found: {}", missing.join(", "));
    Finding::new("rdma library", State::Broken, found, meaning)
        .mend("apt install libibverbs1 librdmacm1 (rdma-core elsewhere)")
}

/// User-space drivers by what the kernel's driver is called; a software device has none to name.
const PROVIDERS: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("efa", "efa"),
    ("erdma", "erdma"),
    ("hns3", "hns"),
    ("cxgb4", "cxgb4"),
    ("qede", "qedr"),
    ("mana", "mana"),
    ("vmw_pvrdma", "vmw_pvrdma"),
];

/// Nothing is said of a device whose driver is not known.
fn provider(seen: &Seen, device: &RdmaDevice) -> Option<Finding> {
    let wanted = match device.driver.as_deref() {
        Some(driver) => PROVIDERS.iter().find(|(kernel, _)| *kernel == driver)?.1,
        None if seen.modules.contains("rdma_rxe") && seen.modules.contains("siw") => return None,
        None if seen.modules.contains("rdma_rxe") => "rxe",
        None if seen.modules.contains("siw") => "siw",
        None => return None,
    };
    let check = format!("driver {}", device.name);
    if seen.providers.contains(wanted) {
        let meaning = "libibverbs finds the device";
        let found = format!("user-space driver {wanted} is installed");
        return Some(Finding::new(&check, State::Good, found, meaning));
    }
    let meaning = "libibverbs does not find the device: it looks like a machine without one";
    let found = format!("user-space driver {wanted} is not installed");
    Some(
        Finding::new(&check, State::Broken, found, meaning)
            .mend("apt install ibverbs-providers (rdma-core elsewhere)"),
    )
}

/// Verbs rails have no way around registration, so a limit that file rails live with hurts here.
fn memlock(limit: MemlockLimit) -> Option<Finding> {
    let MemlockBudget::Bytes(budget) = limit.budget() else { return None };
    let found = format!("at most {} can be registered", Bytes(budget));
    let meaning = "a verbs rail reads into registered memory only: larger pools are refused, with \
                   this limit named";
    let enough = 256 << 20;
    let state = if budget >= enough { State::Good } else { State::Slower };
    let finding = Finding::new("rdma memory", state, found, meaning);
    Some(if state == State::Good { finding } else { finding.mend("raise memlock, as above") })
}

#[cfg(test)]
mod tests;
