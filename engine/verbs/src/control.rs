//! The control half of a verbs rail: registering memory and opening targets, from any thread.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use railring_dma::{Region, RegionId};
use railring_transport::{
    ConnectError, ControlStats, RailControl, RailInfo, RailKind, RegisterError, Registration,
    SourceRef, TargetId,
};
use sq_cq::Status;

use crate::dial::{AskError, ask, establish, target_of};
use crate::ffi::{Access, Mr, MrError};
use crate::hello::HANDLE_BYTES_MAX;
use crate::keeper::Keeper;
use crate::memory::{REGIONS_MAX, SPLITS_MAX};
use crate::options::{ENDPOINTS_MAX, Endpoint};
use crate::shared::{Desk, Open, Shared, lock};
use crate::targets::TARGETS_MAX;

/// The control half of a verbs rail. Any thread may call it; connecting and registering block.
#[derive(Debug)]
pub struct VerbsControl {
    shared: Arc<Shared>,
    weight: u32,
    node: Option<u32>,
    device: String,
    endpoints: Vec<Endpoint>,
    access: Access,
    registered: Mutex<Registered>,
    /// Slot of each endpoint that was ever dialled.
    slots: Mutex<HashMap<String, usize>>,
    _keeper: Arc<Keeper>,
}

#[derive(Debug, Default)]
struct Registered {
    regions: HashMap<RegionId, Vec<Mr>>,
    bytes: u64,
}

/// What a rail is, besides what it shares.
pub(crate) struct Setup {
    pub(crate) weight: u32,
    pub(crate) node: Option<u32>,
    /// The device and its port.
    pub(crate) device: String,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) access: Access,
}

impl VerbsControl {
    pub(crate) fn new(shared: Arc<Shared>, setup: Setup, keeper: Arc<Keeper>) -> Self {
        let Setup { weight, node, device, endpoints, access } = setup;
        VerbsControl {
            shared,
            weight,
            node,
            device,
            endpoints,
            access,
            registered: Mutex::default(),
            slots: Mutex::default(),
            _keeper: keeper,
        }
    }

    /// How much memory is registered with the device.
    #[must_use]
    pub fn registration(&self) -> Registration {
        let bytes = lock(&self.registered).bytes;
        Registration { bytes, unregistered_because: None }
    }

    /// Where peers would find a region's first byte, and its key, if they may: for the test of a
    /// write that comes too late.
    #[cfg(feature = "fault")]
    #[must_use]
    pub fn keys(&self, region: RegionId) -> Option<(u64, u32)> {
        let registered = lock(&self.registered);
        let first = registered.regions.get(&region)?.first()?;
        Some((first.address(), first.rkey()))
    }

    /// Connections that live now.
    #[must_use]
    pub fn connections(&self) -> usize {
        let live = |slot: &&crate::shared::Connection| slot.epoch.load(Ordering::Relaxed) != 0;
        self.shared.connections.iter().filter(live).count()
    }

    /// Where endpoints were dialled, in order.
    fn listeners(&self) -> Vec<String> {
        let slots = lock(&self.slots);
        let mut dialled: Vec<String> =
            slots.keys().filter_map(|endpoint| self.address_of(endpoint)).collect();
        dialled.sort_unstable();
        dialled
    }

    fn rail(&self) -> String {
        self.shared.name.clone()
    }

    /// Where an endpoint is dialled; nothing if it is not served.
    fn address_of(&self, endpoint: &str) -> Option<String> {
        let (host, port) = endpoint.rsplit_once(':')?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return None;
        }
        if self.endpoints.is_empty() {
            return Some(endpoint.to_owned());
        }
        let is_it = |known: &&Endpoint| known.advertised == endpoint || known.advertised == host;
        let known = self.endpoints.iter().find(is_it)?;
        Some(known.listener.clone().unwrap_or_else(|| endpoint.to_owned()))
    }

    /// The slot of an endpoint: its own, a free one, or that of one which nobody uses.
    fn slot_of(&self, endpoint: &str, address: &str) -> Option<usize> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(endpoint) {
            return Some(*slot);
        }
        let free = (0..ENDPOINTS_MAX).find(|slot| !slots.values().any(|used| used == slot));
        let slot = match free {
            Some(slot) => slot,
            None => {
                let unused = slots.iter().find(|(_, slot)| {
                    let desk = self.shared.connections[**slot].desk.try_lock();
                    desk.is_ok_and(|desk| desk.open.is_empty())
                });
                let (name, slot) = unused.map(|(name, slot)| (name.clone(), *slot))?;
                slots.remove(&name);
                slot
            }
        };
        let mut desk = lock(&self.shared.connections[slot].desk);
        self.shared.cut(slot, desk.last_epoch, 0);
        let last_epoch = desk.last_epoch;
        let (endpoint, address) = (endpoint.to_owned(), address.to_owned());
        *desk = Desk { endpoint: endpoint.clone(), address, last_epoch, ..Desk::default() };
        slots.insert(endpoint, slot);
        Some(slot)
    }

    fn refused(&self, source: SourceRef<'_>, status: Status, text: &str) -> ConnectError {
        let (rail, handle) = (self.rail(), source.handle.to_owned());
        if status.is_stale() || status.wire_code() == Status::NOT_FOUND.wire_code() {
            return ConnectError::Stale { rail, handle };
        }
        ConnectError::Refused { rail, handle, why: format!("{text} ({status})") }
    }

    fn no_connection(&self, source: SourceRef<'_>, why: String) -> ConnectError {
        ConnectError::NoConnection { rail: self.rail(), endpoint: source.endpoint.to_owned(), why }
    }

    /// Opens the source over the connection of `slot`, which is made first if need be. A connection
    /// that turns out to be dead is made anew once.
    fn open(&self, slot: usize, source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        let shared = &*self.shared;
        let mut desk = lock(&shared.connections[slot].desk);
        if desk.endpoint != source.endpoint {
            // The slot went to another endpoint meanwhile: there are very many.
            return Err(self.too_many());
        }
        let mut last = String::new();
        for _ in 0..2 {
            let living = shared.connections[slot].epoch.load(Ordering::Acquire) != 0;
            if !living || desk.talk.is_none() {
                shared.cut(slot, desk.last_epoch, 0);
                let made = establish(shared, slot, &mut desk);
                made.map_err(|error| self.no_connection(source, error.to_string()))?;
            }
            let Some(talk) = &mut desk.talk else { continue };
            match ask(talk, source.handle, source.generation) {
                Ok(opened) => {
                    let row = target_of(slot, opened);
                    let id = shared.targets.insert(row).ok_or_else(|| self.too_many())?;
                    let handle = source.handle.to_owned();
                    desk.open.push(Open { id, handle, generation: source.generation });
                    return Ok(id);
                }
                Err(AskError::Refused { status, text }) => {
                    return Err(self.refused(source, status, &text));
                }
                Err(AskError::Talk(error)) => {
                    last = error.to_string();
                    desk.talk = None;
                }
            }
        }
        Err(self.no_connection(source, last))
    }

    fn too_many(&self) -> ConnectError {
        ConnectError::TooManyTargets { rail: self.rail(), limit: TARGETS_MAX }
    }

    /// Registers all of the region, or nothing.
    fn register_all(&self, region: &Region) -> Result<Vec<Mr>, RegisterError> {
        let split = self.shared.memory.split_bytes();
        let split = usize::try_from(split).unwrap_or(usize::MAX);
        let total = region.mapped_bytes();
        let mut registered = Vec::new();
        let mut from = 0;
        while from < total {
            let end = total.min(from.saturating_add(split));
            let mr = Mr::register(&self.shared.pd, region, from..end, self.access);
            registered.push(mr.map_err(|error| self.register_error(total as u64, error))?);
            from = end;
        }
        Ok(registered)
    }

    fn register_error(&self, bytes: u64, error: MrError) -> RegisterError {
        let rail = self.rail();
        match error {
            MrError::Memlock { limit_bytes, .. } => {
                RegisterError::MemlockLimit { rail, bytes, limit_bytes }
            }
            MrError::Refused { source, .. } => RegisterError::Io { rail, bytes, source },
            other => RegisterError::Io { rail, bytes, source: io::Error::other(other) },
        }
    }
}

impl RailControl for VerbsControl {
    fn info(&self) -> RailInfo {
        RailInfo {
            kind: RailKind::Verbs,
            name: self.rail(),
            weight: self.weight,
            node: self.node,
            device: Some(self.device.clone()),
            listeners: self.listeners(),
            notes: self.shared.notes.all(),
        }
    }

    fn stats(&self) -> ControlStats {
        self.shared.counts.with(lock(&self.registered).bytes)
    }

    fn reaches(&self, endpoint: &str) -> bool {
        self.address_of(endpoint).is_some()
    }

    /// Registers with the device, which pins the memory: without that nothing can be read into it.
    fn register(&self, region: &Region) -> Result<(), RegisterError> {
        let (id, rail) = (region.id(), self.rail());
        if lock(&self.registered).regions.contains_key(&id) {
            return Ok(());
        }
        if id.slot >= REGIONS_MAX {
            return Err(RegisterError::TooManyRegions { rail, limit: REGIONS_MAX });
        }
        let bytes = region.mapped_bytes() as u64;
        let limit_bytes = self.shared.memory.split_bytes().saturating_mul(SPLITS_MAX as u64);
        if bytes > limit_bytes {
            return Err(RegisterError::TooLong { rail, bytes, limit_bytes });
        }
        let made = self.register_all(region)?;
        let mut registered = lock(&self.registered);
        // Unless another thread was faster.
        if let Entry::Vacant(entry) = registered.regions.entry(id) {
            self.shared.memory.publish(region, made.iter().map(Mr::lkey));
            entry.insert(made);
            registered.bytes += bytes;
        }
        Ok(())
    }

    fn unregister(&self, region: RegionId) {
        let removed = {
            let mut registered = lock(&self.registered);
            let removed = registered.regions.remove(&region);
            let bytes: usize = removed.iter().flatten().map(Mr::bytes).sum();
            registered.bytes -= bytes as u64;
            removed
        };
        if removed.is_some() {
            self.shared.memory.withdraw(region);
        }
    }

    fn connect(&self, source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        let Some(address) = self.address_of(source.endpoint) else {
            let (rail, endpoint) = (self.rail(), source.endpoint.to_owned());
            return Err(ConnectError::Unreachable { rail, endpoint });
        };
        if source.handle.len() > HANDLE_BYTES_MAX {
            let (rail, handle) = (self.rail(), source.handle.to_owned());
            return Err(ConnectError::BadHandle { rail, handle, why: "it is longer than 1024 B" });
        }
        let slot = self.slot_of(source.endpoint, &address).ok_or_else(|| {
            let why = format!("the rail has {ENDPOINTS_MAX} endpoints in use, its limit");
            self.no_connection(source, why)
        })?;
        self.open(slot, source)
    }

    fn disconnect(&self, target: TargetId) {
        let Some(connection) = self.shared.targets.remove(target) else { return };
        let slot = usize::try_from(connection).expect("a few hundred");
        lock(&self.shared.connections[slot].desk).open.retain(|open| open.id != target);
    }
}
