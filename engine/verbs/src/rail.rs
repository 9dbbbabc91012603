//! Opening a verbs rail: both halves, over one port of one device.

use std::sync::Arc;

use railring_topology::Discovery;
use railring_transport::{Alignment, LinkLimits};

use crate::control::{Setup, VerbsControl};
use crate::ffi::{Access, Cq, Device, DeviceLimits, Pd, PortFacts, Route, Wake};
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
        let grant = grant(device.limits(), options.queue_depth);
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
        if grant.reads < options.queue_depth {
            let Grant { reads, .. } = grant;
            let (asked, cqes) = (options.queue_depth, shared.device.limits().cqes);
            shared.say(format!(
                "{reads} reads at once instead of {asked}: a completion queue has {cqes} entries"
            ));
        }
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
            device: format!("{}:{}", port.device, port.port),
            endpoints: options.endpoints.clone(),
            access: access(&options),
        };
        Ok((Arc::new(VerbsControl::new(shared, setup, keeper)), link))
    }
}

/// What the device grants of the queue depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

fn grant(limits: &DeviceLimits, queue_depth: u32) -> Grant {
    let sges = SGES.min(limits.sges).min(limits.read_sges).max(1);
    // A read that its memory splits takes two work requests where one cannot have two entries.
    let wrs_per_read = SGES.div_ceil(sges);
    let reads = queue_depth.min((limits.cqes / wrs_per_read).max(1));
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
            "a registration length in pages of 4096 B",
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
        from: format!("{} (gid {}, {})", port.gid.address, port.gid.index, port.gid.why),
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

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: DeviceLimits = DeviceLimits {
        qps: 131_072,
        qp_wrs: 32_768,
        sges: 30,
        read_sges: 30,
        cqs: 1 << 24,
        cqes: 4_194_303,
        mrs: 1 << 24,
        mr_bytes: u64::MAX,
        pds: 1 << 24,
        reads_in: 16,
        reads_out: 16,
        ports: 1,
    };

    fn granted(limits: DeviceLimits, queue_depth: u32) -> Grant {
        let grant = grant(&limits, queue_depth);
        let wrs_per_read = SGES.div_ceil(grant.sges);
        assert!(grant.cq_entries <= limits.cqes.max(wrs_per_read), "{grant:?}");
        assert!(grant.send_wrs <= limits.qp_wrs.max(wrs_per_read), "{grant:?}");
        // Every request of every read may complete by itself, when it fails.
        assert!(grant.reads * wrs_per_read <= grant.cq_entries, "{grant:?}");
        grant
    }

    #[test]
    fn a_device_is_never_asked_for_more_than_it_has() {
        assert_eq!(granted(ROOMY, 128).reads, 128);
        // A completion queue that is shorter than what was asked for caps what is in flight.
        assert_eq!(granted(DeviceLimits { cqes: 100, ..ROOMY }, 1000).reads, 100);
        // A short send queue is another limit: other connections may have the rest.
        let short = granted(DeviceLimits { qp_wrs: 63, ..ROOMY }, 128);
        assert_eq!((short.reads, short.send_wrs), (128, 63));
        // Where a read has one entry only, one that is split takes two requests.
        let single = granted(DeviceLimits { read_sges: 1, cqes: 101, ..ROOMY }, 128);
        assert_eq!((single.reads, single.send_wrs, single.sges), (50, 100, 1));
        for limit in [0, 1, 2, 3] {
            granted(DeviceLimits { cqes: limit, ..ROOMY }, 7);
            granted(DeviceLimits { qp_wrs: limit, sges: limit, ..ROOMY }, 7);
        }
    }

    #[test]
    fn options_are_checked_before_any_device_is_looked_for() {
        let options = VerbsRailOptions { queue_depth: 0, ..VerbsRailOptions::new("x") };
        let refused = VerbsRail::open(options).expect_err("no reads at all");
        assert!(refused.to_string().contains("from 1 to 16384"), "{refused}");
    }
}
