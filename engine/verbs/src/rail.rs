//! Opening a verbs rail: both halves, over one port of one device.

use std::sync::Arc;

use railring_topology::Discovery;
use railring_transport::{Alignment, LinkLimits};

use crate::control::{Setup, VerbsControl};
use crate::ffi::{Access, Cq, Device, Pd, PortFacts, Route, Wake};
use crate::keeper::Keeper;
use crate::link::{LinkSetup, VerbsLink};
use crate::memory::Memory;
use crate::mtu::{MtuWish, PathMtu};
use crate::options::{QUEUE_DEPTH_MAX, VerbsRailError, VerbsRailOptions, Waiting};
use crate::port::LocalPort;
use crate::shared::{Dial, Ground, Shared};

/// Longest read: what a message of any device holds is less or as much.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Scatter entries of a read: its memory may lie in two registrations.
const SGES: u32 = 2;
/// Registrations are split at a multiple of this.
const PAGE_BYTES: u64 = 4096;

/// Opens verbs rails.
#[derive(Debug)]
pub struct VerbsRail;

impl VerbsRail {
    /// Opens a rail over a port: a control half for any threads, and a link for one poller. It
    /// starts two threads, which end with the last half. Nothing is connected yet.
    ///
    /// # Errors
    /// No such device, port, address; or an option makes no sense. What the device grants less of
    /// than was asked for is done with, and noted.
    pub fn open(
        options: VerbsRailOptions,
    ) -> Result<(Arc<VerbsControl>, VerbsLink), VerbsRailError> {
        check(&options)?;
        let machine =
            Discovery::live().read().map_err(|error| VerbsRailError::Machine(error.to_string()))?;
        let port = LocalPort::find(&machine, &options.device, options.port, options.gid)?;
        let device = Device::open(&options.device)?;
        let facts = device.port(port.port)?;
        let name = options.name.clone().unwrap_or_else(|| format!("{}:{}", port.device, port.port));
        let mut notes = vec![format!(
            "from {} (gid {}: {})",
            railring_topology::gid::ipv4_of(port.gid.address)
                .map_or(port.gid.address.to_string(), |v4| v4.to_string()),
            port.gid.index,
            port.gid.why
        )];
        let grant = grant(&device, &options, &mut notes);
        let wake = match options.waiting {
            Waiting::Adaptive => Wake::Descriptor,
            Waiting::Polling => Wake::Never,
        };
        let cq = Cq::new(&device, grant.cq_entries, wake)?;
        let split_bytes = split_bytes(&device, &options);
        let ground = Ground {
            name,
            dial: dial(&device, &port, facts, &options, &grant)?,
            memory: Memory::new(split_bytes),
            pd: Pd::new(&device)?,
            cq,
            device,
        };
        let shared = Arc::new(Shared::new(ground)?);
        notes.into_iter().for_each(|line| tracing::debug!(rail = shared.name, "{line}"));
        let keeper = Arc::new(Keeper::start(&shared)?);
        let limits = LinkLimits {
            outstanding_wrs_max: grant.reads,
            request_bytes_max: REQUEST_BYTES_MAX
                .min(facts.message_bytes_max.into())
                .min(split_bytes),
            alignment: Alignment::NONE,
        };
        let link = LinkSetup {
            limits,
            waiting: options.waiting,
            #[cfg(feature = "fault")]
            quiesce_at_once: options.faults.quiesce_at_once,
        };
        let link = VerbsLink::new(Arc::clone(&shared), link, Arc::clone(&keeper));
        let setup = Setup {
            weight: options.weight,
            node: port.node,
            endpoints: options.endpoints.clone(),
            access: access(&options),
        };
        Ok((Arc::new(VerbsControl::new(shared, setup, keeper)), link))
    }
}

/// What the device grants of the queue depth.
struct Grant {
    /// Reads at once.
    reads: u32,
    /// Work requests of each connection.
    send_wrs: u32,
    sges: u32,
    /// Entries of the completion queue: as many as there can be completions, so that it cannot
    /// overrun.
    cq_entries: u32,
}

fn grant(device: &Device, options: &VerbsRailOptions, notes: &mut Vec<String>) -> Grant {
    let limits = device.limits();
    let sges = SGES.min(limits.sges).min(limits.read_sges).max(1);
    // A read that its memory splits takes two work requests where one cannot have two entries.
    let wrs_per_read = SGES.div_ceil(sges);
    let most = (limits.cqes / wrs_per_read).max(1);
    let reads = options.queue_depth.min(most);
    if reads < options.queue_depth {
        notes.push(format!(
            "{reads} reads at once instead of {}: completion queues of {} have {} entries",
            options.queue_depth,
            device.name(),
            limits.cqes
        ));
    }
    let cq_entries = reads * wrs_per_read;
    let send_wrs = cq_entries.min(limits.qp_wrs).max(wrs_per_read);
    Grant { reads, send_wrs, sges, cq_entries }
}

fn check(options: &VerbsRailOptions) -> Result<(), VerbsRailError> {
    let numbers = [
        ("a queue depth", u64::from(options.queue_depth), u64::from(QUEUE_DEPTH_MAX)),
        ("a number of reads on the wire", options.reads_out.into(), 255),
        ("a hop limit", options.hop_limit.into(), 255),
        ("a weight", options.weight.into(), u32::MAX.into()),
        (
            "a registration length",
            options.registration_bytes_max.map_or(1, |bytes| bytes / PAGE_BYTES),
            u64::MAX,
        ),
    ];
    for (what, asked, limit) in numbers {
        if !(1..=limit).contains(&asked) {
            return Err(VerbsRailError::Number { what, asked, limit });
        }
    }
    if options.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(VerbsRailError::BlankName);
    }
    Ok(())
}

fn split_bytes(device: &Device, options: &VerbsRailOptions) -> u64 {
    let most = device.limits().mr_bytes.min(options.registration_bytes_max.unwrap_or(u64::MAX));
    // Whole pages, so that no two registrations share one.
    (most / PAGE_BYTES).max(1) * PAGE_BYTES
}

fn dial(
    device: &Device,
    port: &LocalPort,
    facts: PortFacts,
    options: &VerbsRailOptions,
    grant: &Grant,
) -> Result<Dial, VerbsRailError> {
    let (name, number) = (port.device.clone(), port.port);
    if !facts.active {
        return Err(VerbsRailError::PortDown { device: name, port: number, state: facts.state });
    }
    let active = facts.mtu.unwrap_or(PathMtu::B256);
    let mtu = match options.mtu {
        Some(asked) if asked > active => {
            return Err(VerbsRailError::Mtu { device: name, port: number, asked, active });
        }
        Some(asked) => MtuWish::Exactly(asked),
        None => MtuWish::AtMost(active),
    };
    let gid_index = u8::try_from(port.gid.index).map_err(|_| VerbsRailError::Number {
        what: "a gid index",
        asked: port.gid.index.into(),
        limit: 255,
    })?;
    Ok(Dial {
        route: Route {
            port: number,
            gid_index,
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
        },
        // The device's own word, which is what its packets will carry.
        gid: device.gid(number, port.gid.index)?,
        mtu,
        timers: options.timers,
        reads_out: options.reads_out.min(device.limits().reads_out.max(1)),
        send_wrs: grant.send_wrs,
        sges: grant.sges,
        patience: options.patience,
        open_memory: access(options) != Access::LocalWrite,
    })
}

#[cfg(feature = "fault")]
fn access(options: &VerbsRailOptions) -> Access {
    if options.faults.open_memory { Access::RemoteWrite } else { Access::LocalWrite }
}

#[cfg(not(feature = "fault"))]
fn access(_options: &VerbsRailOptions) -> Access {
    Access::LocalWrite
}
