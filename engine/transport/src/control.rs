//! The slow half of a rail: registering memory and connecting to sources, from any thread.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use railring_dma::{Region, RegionId};

use crate::link::TargetId;

/// What kind of path a rail is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RailKind {
    /// A local directory on a disk.
    File,
    /// Completes at once and moves nothing; for measuring the engine.
    Null,
    /// Moves real bytes in virtual time.
    Sim,
    /// A NIC with TCP.
    Tcp,
    /// An RDMA port.
    Verbs,
}

impl fmt::Display for RailKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RailKind::File => "file",
            RailKind::Null => "null",
            RailKind::Sim => "sim",
            RailKind::Tcp => "tcp",
            RailKind::Verbs => "verbs",
        })
    }
}

/// What a rail is, for people and for placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailInfo {
    /// The kind of path.
    pub kind: RailKind,
    /// Its name: a directory, a device and port. Not blank, unique within an engine.
    pub name: String,
    /// Static weight, at least 1: the rate it is expected to have beside the others.
    pub weight: u32,
    /// The memory node it is nearest to, where that is known.
    pub node: Option<u32>,
    /// The device it goes through, where the transport knows: a device and port, a directory.
    pub device: Option<String>,
    /// Where it has dialled its peers: addresses of their listeners.
    pub listeners: Vec<String>,
    /// What was set up differently than asked and why (fallbacks), one line each.
    pub notes: Vec<String>,
}

/// What the control half of a rail counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlStats {
    /// Bytes registered with the device now.
    pub registered_bytes: u64,
    /// Connections made so far, again or for the first time: queue pairs brought up, files opened.
    pub connections_made: u64,
    /// Connections that ended so far, for whatever cause: lost, torn down, closed. At most as many
    /// as were made.
    pub connections_retired: u64,
}

/// Connections as the halves of a rail count them: any thread, several at once.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    made: AtomicU64,
    retired: AtomicU64,
}

impl ConnectionCounts {
    /// One was made. Called before it can end.
    pub fn made(&self) {
        // Relaxed: it orders nothing.
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// One that was made has ended.
    pub fn retired(&self) {
        self.retired.fetch_add(1, Ordering::Relaxed);
    }

    /// Both counts, beside `registered_bytes`.
    #[must_use]
    pub fn with(&self, registered_bytes: u64) -> ControlStats {
        // In this order, so that no more are seen to have ended than were made.
        let connections_retired = self.retired.load(Ordering::Relaxed);
        let connections_made = self.made.load(Ordering::Relaxed).max(connections_retired);
        ControlStats { registered_bytes, connections_made, connections_retired }
    }
}

/// Where a placement says bytes are: an endpoint and an opaque handle there.
#[derive(Clone, Copy, Debug)]
pub struct SourceRef<'a> {
    /// Which server or disk.
    pub endpoint: &'a str,
    /// What to read there; opaque to everything but the transport and its peer.
    pub handle: &'a str,
    /// The object's generation, which the owner must confirm.
    pub generation: u64,
}

/// Why memory could not be registered with a rail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The kernel refuses to pin so much.
    #[error(
        "cannot register {bytes} B with rail {rail}: RLIMIT_MEMLOCK is {limit_bytes} B; raise it \
         (ulimit -l, LimitMEMLOCK=) or register less"
    )]
    MemlockLimit {
        /// The rail.
        rail: String,
        /// What was asked for.
        bytes: u64,
        /// The soft limit in force.
        limit_bytes: u64,
    },
    /// The device has no room for another region.
    #[error("rail {rail} has {limit} regions registered already; unregister one first")]
    TooManyRegions {
        /// The rail.
        rail: String,
        /// How many it can have.
        limit: u32,
    },
    /// Longer than the device can be told of, in as many pieces as the rail keeps.
    #[error("rail {rail} cannot register a region of {bytes} B; it takes {limit_bytes} B")]
    TooLong {
        /// The rail.
        rail: String,
        /// What was asked for.
        bytes: u64,
        /// The longest region.
        limit_bytes: u64,
    },
    /// The system call failed.
    #[error("rail {rail} could not register {bytes} B: {source}")]
    Io {
        /// The rail.
        rail: String,
        /// What was asked for.
        bytes: u64,
        /// The cause.
        source: io::Error,
    },
}

/// Why a rail could not connect to a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This rail does not reach that endpoint.
    #[error("rail {rail} does not reach endpoint {endpoint}")]
    Unreachable {
        /// The rail.
        rail: String,
        /// The endpoint of the placement.
        endpoint: String,
    },
    /// The handle is not one this transport could have given out.
    #[error("rail {rail} refuses handle {handle:?}: {why}")]
    BadHandle {
        /// The rail.
        rail: String,
        /// The handle of the placement.
        handle: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The source is not there (any more): look the object up again.
    #[error("{handle} is not on rail {rail} any more; look the object up again")]
    Stale {
        /// The rail.
        rail: String,
        /// The handle of the placement.
        handle: String,
    },
    /// The peer answered that it will not.
    #[error("the peer of rail {rail} refuses {handle:?}: {why}")]
    Refused {
        /// The rail.
        rail: String,
        /// The handle of the placement.
        handle: String,
        /// What the peer said.
        why: String,
    },
    /// There is no connection to the endpoint, and not because of the handle.
    #[error("rail {rail} has no connection to {endpoint}: {why}")]
    NoConnection {
        /// The rail.
        rail: String,
        /// The endpoint of the placement.
        endpoint: String,
        /// Why, with what to do.
        why: String,
    },
    /// As many targets as the rail can have are connected.
    #[error("rail {rail} has {limit} targets connected already; close an object first")]
    TooManyTargets {
        /// The rail.
        rail: String,
        /// How many it can have.
        limit: u32,
    },
    /// The system call failed.
    #[error("rail {rail} could not open {handle}: {source}")]
    Io {
        /// The rail.
        rail: String,
        /// The handle of the placement.
        handle: String,
        /// The cause.
        source: io::Error,
    },
}

/// The control half of a rail. Any thread may call it; any call may block; none is made by a turn.
pub trait RailControl: Send + Sync + fmt::Debug {
    /// What this rail is.
    fn info(&self) -> RailInfo;

    /// What it has counted; each count by itself is exact, a moment ago.
    fn stats(&self) -> ControlStats;

    /// Whether sources on this endpoint can be read over this rail.
    fn reaches(&self, endpoint: &str) -> bool;

    /// Makes `region` known to the device, pinned where the device needs that. A rail that can do
    /// without pinning uses the region unregistered rather than fail, and says so in `info`.
    ///
    /// # Errors
    /// One variant per cause; the region is then not known to this rail.
    fn register(&self, region: &Region) -> Result<(), RegisterError>;

    /// Makes memory known that is the caller's own and is used for one read only. A rail that can
    /// transfer into memory it does not know has nothing to do here.
    ///
    /// # Errors
    /// As [`RailControl::register`].
    fn register_briefly(&self, region: &Region) -> Result<(), RegisterError> {
        self.register(region)
    }

    /// Forgets a region. The caller has made sure that nothing of it is in flight.
    fn unregister(&self, region: RegionId);

    /// Connects to a source: opens the file, brings up the queue pair, says hello to the server.
    ///
    /// # Errors
    /// One variant per cause; nothing is left connected.
    fn connect(&self, source: SourceRef<'_>) -> Result<TargetId, ConnectError>;

    /// Disconnects. The caller has made sure that nothing of it is in flight.
    fn disconnect(&self, target: TargetId);
}
