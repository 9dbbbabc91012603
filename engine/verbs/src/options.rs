//! What a verbs rail can be asked for, and why it may not open.

use std::io;
use std::time::Duration;

use crate::ffi::{CqError, DeviceError, PdError, PortQueryError};
use crate::mtu::PathMtu;
use crate::port::PortError;
use crate::timers::Timers;

/// Most reads in flight a rail can be asked for.
pub(crate) const QUEUE_DEPTH_MAX: u32 = 16_384;
/// Endpoints a rail is connected to at once.
pub(crate) const ENDPOINTS_MAX: usize = 256;

/// How a poller learns of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// It polls while there is work, and sleeps on a completion channel when it has waited long.
    #[default]
    Adaptive,
    /// It polls as long as anything is in flight, and never sleeps then.
    Polling,
}

/// An endpoint the rail serves, and where to dial it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// As placements name it: `host:port`, or a host for all its ports.
    pub advertised: String,
    /// Where to connect instead: `host:port`.
    pub listener: Option<String>,
}

/// What a verbs rail should be like. `None` means "found out".
#[derive(Clone, Debug)]
pub struct VerbsRailOptions {
    /// The device, such as `mlx5_0`.
    pub device: String,
    /// The port, from 1; none: the first that is active.
    pub port: Option<u32>,
    /// Index in the port's GID table; none: a routable RoCE v2 one.
    pub gid: Option<u16>,
    /// The path MTU, exactly; none: the smaller of the two ports'.
    pub mtu: Option<PathMtu>,
    /// Reads queued or in flight at most, at most 16,384. The device may grant less.
    pub queue_depth: u32,
    /// RDMA READs that each connection may have under way on the wire.
    pub reads_out: u8,
    /// Retries and their waits.
    pub timers: Timers,
    /// How the poller waits.
    pub waiting: Waiting,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Routers that packets may cross, from 1.
    pub hop_limit: u8,
    /// How long a step of connecting may take.
    pub patience: Duration,
    /// Longest single registration in bytes; none: the device's. Longer regions are split.
    pub registration_bytes_max: Option<u64>,
    /// The endpoints it may serve; empty: any `host:port`.
    pub endpoints: Vec<Endpoint>,
    /// Name of the rail; none: device and port.
    pub name: Option<String>,
    /// Static weight, at least 1.
    pub weight: u32,
    /// Rules to break, for tests.
    #[cfg(feature = "fault")]
    pub faults: VerbsFaults,
}

impl VerbsRailOptions {
    /// Defaults for a device: 128 reads, 16 of them on the wire, adaptive waiting, two seconds of
    /// patience.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        VerbsRailOptions {
            device: device.into(),
            port: None,
            gid: None,
            mtu: None,
            queue_depth: 128,
            reads_out: 16,
            timers: Timers::default(),
            waiting: Waiting::default(),
            traffic_class: 0,
            hop_limit: 64,
            patience: Duration::from_secs(2),
            registration_bytes_max: None,
            endpoints: Vec::new(),
            name: None,
            weight: 1,
            #[cfg(feature = "fault")]
            faults: VerbsFaults::default(),
        }
    }
}

/// Rules that a rail breaks on purpose. Only for tests that must see a wrong rail fail.
#[cfg(feature = "fault")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbsFaults {
    /// `quiesce` gives the part back at once and leaves the queue pair as it is.
    pub quiesce_at_once: bool,
    /// Memory is registered so that the peer may write it, and [`crate::VerbsControl::keys`] says
    /// where.
    pub open_memory: bool,
}

/// Why a verbs rail did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsRailError {
    /// No usable port or address.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The machine cannot be described.
    #[error("the machine's devices cannot be read: {0}")]
    Machine(String),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The port cannot be asked.
    #[error(transparent)]
    Query(#[from] PortQueryError),
    /// The port went down meanwhile.
    #[error(
        "port {port} of {device} is not active (state {state}); only an active one carries data"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// `enum ibv_port_state`.
        state: u32,
    },
    /// The MTU that was asked for is larger than the port's.
    #[error(
        "a path MTU of {asked} was asked for; port {port} of {device} has {active}: raise the \
         MTU of its network device (4200 for 4096 B), or ask for less"
    )]
    Mtu {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What was asked for.
        asked: PathMtu,
        /// What the port has.
        active: PathMtu,
    },
    /// A number makes no sense.
    #[error("{what} of {asked} was refused; it must be from 1 to {limit}")]
    Number {
        /// Which.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The most there can be.
        limit: u64,
    },
    /// A blank name.
    #[error("a blank rail name was refused; leave it out to use the device's")]
    BlankName,
    /// No protection domain.
    #[error(transparent)]
    Pd(#[from] PdError),
    /// No completion queue.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// No thread, descriptor or socket for the control side.
    #[error("the control side of the rail cannot be set up: {0}")]
    Io(#[from] io::Error),
}
