//! The control half of a simulated rail: registration within the device's limits, and connections
//! to the sources of its world.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use railring_dma::{Region, RegionId};
use railring_transport::{
    ConnectError, ConnectionCounts, ControlStats, RailControl, RailInfo, RailKind, RegisterError,
    SourceRef, TargetId,
};

use crate::simulated::config::SimRailConfig;
use crate::simulated::flight::Target;
use crate::simulated::late::KnownRegions;
use crate::simulated::stats::{SimCounters, SimStats, bump};
use crate::simulated::store::{ObjectStore, lock};
use crate::targets::TargetTable;

const ENOMEM: i32 = 12;

/// What both halves of a rail know.
#[derive(Debug)]
pub(crate) struct RailShared {
    pub(crate) config: SimRailConfig,
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) targets: Mutex<TargetTable<Target>>,
    pub(crate) registered: Mutex<BTreeMap<RegionId, u64>>,
    pub(crate) counters: SimCounters,
    pub(crate) connections: ConnectionCounts,
    pub(crate) regions: KnownRegions,
    /// Whether hung requests come back: see [`SimControl::let_go`].
    pub(crate) lets_go: AtomicBool,
}

impl RailShared {
    pub(crate) fn new(
        config: SimRailConfig,
        store: Arc<ObjectStore>,
        regions: KnownRegions,
    ) -> Self {
        let targets = Mutex::new(TargetTable::new(config.targets_max));
        let (registered, counters) = (Mutex::default(), SimCounters::default());
        let lets_go = AtomicBool::new(false);
        let connections = ConnectionCounts::default();
        RailShared { config, store, targets, registered, counters, connections, regions, lets_go }
    }
}

/// The control half of a simulated rail. Nothing in it takes time.
#[derive(Debug)]
pub struct SimControl {
    shared: Arc<RailShared>,
}

impl SimControl {
    pub(crate) fn new(shared: Arc<RailShared>) -> Self {
        SimControl { shared }
    }

    /// What the rail has done so far, faults included.
    #[must_use]
    pub fn stats(&self) -> SimStats {
        self.shared.counters.snapshot()
    }

    /// Bytes registered with it.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        lock(&self.shared.registered).values().sum()
    }

    /// From now on nothing hangs in the device, as when a hung server is killed: what hung comes
    /// back at the next look.
    pub fn let_go(&self) {
        // Relaxed: a simulation has one thread.
        self.shared.lets_go.store(true, Ordering::Relaxed);
    }

    fn name(&self) -> String {
        self.shared.config.name.clone()
    }

    /// Whether `bytes` more can be registered beside what is.
    fn has_room(
        &self,
        registered: &BTreeMap<RegionId, u64>,
        bytes: u64,
    ) -> Result<(), RegisterError> {
        let limits = self.shared.config.registration;
        if registered.len() as u64 >= u64::from(limits.regions_max) {
            return Err(RegisterError::TooManyRegions {
                rail: self.name(),
                limit: limits.regions_max,
            });
        }
        let page_bytes = u64::from(limits.page_bytes.max(1));
        let pages: u64 = registered.values().map(|bytes| bytes.div_ceil(page_bytes)).sum();
        let too_many_pages = pages + bytes.div_ceil(page_bytes) > limits.pages_max;
        if too_many_pages || bytes > limits.region_bytes_max {
            let source = io::Error::from_raw_os_error(ENOMEM);
            return Err(RegisterError::Io { rail: self.name(), bytes, source });
        }
        if registered.values().sum::<u64>().saturating_add(bytes) > limits.bytes_max {
            let limit_bytes = limits.bytes_max;
            return Err(RegisterError::MemlockLimit { rail: self.name(), bytes, limit_bytes });
        }
        Ok(())
    }
}

impl RailControl for SimControl {
    fn info(&self) -> RailInfo {
        let config = &self.shared.config;
        let mut notes = Vec::new();
        if let Some(entries) = config.completion_queue_entries.filter(|e| *e < config.window_wrs) {
            notes.push(format!(
                "completion queue has {entries} entries, {} were asked for",
                config.window_wrs
            ));
        }
        RailInfo {
            kind: RailKind::Sim,
            name: self.name(),
            weight: config.weight,
            node: config.node,
            device: None,
            listeners: Vec::new(),
            notes,
        }
    }

    /// Its one connection is made when something is posted, and made again after it was lost.
    fn stats(&self) -> ControlStats {
        self.shared.connections.with(self.registered_bytes())
    }

    fn reaches(&self, endpoint: &str) -> bool {
        let endpoints = self.shared.config.endpoints.as_ref();
        endpoints.is_none_or(|endpoints| endpoints.iter().any(|known| known == endpoint))
    }

    fn register(&self, region: &Region) -> Result<(), RegisterError> {
        let bytes = region.bytes() as u64;
        let mut registered = lock(&self.shared.registered);
        if registered.contains_key(&region.id()) {
            return Ok(());
        }
        if let Err(error) = self.has_room(&registered, bytes) {
            bump(&self.shared.counters.registrations_refused, 1);
            return Err(error);
        }
        registered.insert(region.id(), bytes);
        Ok(())
    }

    fn unregister(&self, region: RegionId) {
        lock(&self.shared.registered).remove(&region);
    }

    fn connect(&self, source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        let SourceRef { endpoint, handle, generation } = source;
        if !self.reaches(endpoint) {
            return Err(ConnectError::Unreachable { rail: self.name(), endpoint: endpoint.into() });
        }
        let stale = || ConnectError::Stale { rail: self.name(), handle: handle.into() };
        let source = self.shared.store.find(endpoint, handle).ok_or_else(stale)?;
        let target = Target { source, generation };
        target.ask().map_err(|_| stale())?;
        let mut targets = lock(&self.shared.targets);
        let limit = targets.targets_max();
        targets
            .insert(target)
            .ok_or_else(|| ConnectError::TooManyTargets { rail: self.name(), limit })
    }

    fn disconnect(&self, target: TargetId) {
        lock(&self.shared.targets).remove(target);
    }
}
