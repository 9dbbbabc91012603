//! Where pollers were to run, where they do, and how each is put there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use railring_core::{NodeHook, PollerStart, StartHook};
use railring_topology::{CpuId, CpuSet, Machine, PinError, pin_current_thread};

/// One poller of an engine: what it serves, where it was to run, and what the kernel made of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The poller, from 0.
    pub poller: u32,
    /// The names of its rails.
    pub rails: Vec<String>,
    /// The CPUs it was to be bound to; `None` if to none in particular.
    pub asked: Option<CpuSet>,
    /// The CPUs it may run on, read back from the kernel; `None` if that could not be read.
    pub got: Option<CpuSet>,
    /// Why it was not bound, if the kernel refused.
    pub why: Option<String>,
}

impl Seat {
    pub(crate) fn new(poller: u32, rails: Vec<String>) -> Self {
        Seat { poller, rails, asked: None, got: None, why: None }
    }

    /// Whether it runs exactly where it was to.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.asked.is_none() || self.asked == self.got
    }
}

/// The seats of an engine while its pollers take them.
#[derive(Clone, Debug)]
pub(crate) struct Seats(Arc<Mutex<Vec<Seat>>>);

impl Seats {
    pub(crate) fn new(seats: Vec<Seat>) -> Self {
        Seats(Arc::new(Mutex::new(seats)))
    }

    /// As they are now.
    pub(crate) fn taken(&self) -> Vec<Seat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For the core, which names a poller's CPU by number: those that are bound to a single one.
    pub(crate) fn cpus(&self) -> Vec<Option<u32>> {
        self.taken().iter().map(|seat| seat.asked.as_ref().and_then(single)).collect()
    }

    /// Binds the thread it runs on and reads back what came of it.
    fn take(&self, poller: u32) -> Option<u32> {
        let index = poller as usize;
        let mut seat = self.taken().get(index)?.clone();
        match &seat.asked {
            Some(cpus) => match pin_current_thread(cpus) {
                Ok(pinned) => seat.got = Some(pinned.got),
                Err(error) => {
                    if let PinError::Refused { allowed, .. } = &error {
                        seat.got = Some(allowed.clone());
                    }
                    seat.why = Some(error.to_string());
                }
            },
            None => seat.got = railring_topology::allowed_cpus().ok(),
        }
        if !seat.is_exact() {
            let (asked, got) = (show(seat.asked.as_ref()), show(seat.got.as_ref()));
            tracing::warn!(poller, asked, got, "a poller does not run where it was to");
        }
        let exact = seat.asked.as_ref().filter(|_| seat.is_exact()).and_then(single);
        if let Some(place) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *place = seat;
        }
        exact
    }
}

fn single(cpus: &CpuSet) -> Option<u32> {
    cpus.first().filter(|_| cpus.len() == 1).map(|cpu| u32::from(cpu.0))
}

pub(crate) fn show(cpus: Option<&CpuSet>) -> String {
    cpus.map_or_else(|| "any".to_owned(), CpuSet::to_string)
}

/// The set of one CPU; none beyond what a CPU's number can be.
pub(crate) fn set_of(cpu: u32) -> Option<CpuSet> {
    u16::try_from(cpu).ok().map(|cpu| CpuId(cpu).into())
}

/// The embedder's own start hook.
#[derive(Clone)]
pub(crate) struct UserHook(pub(crate) Arc<dyn Fn(PollerStart) + Send + Sync>);

impl std::fmt::Debug for UserHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("start hook")
    }
}

/// Runs on each poller's thread: takes the poller's seat, then does what the embedder wants.
pub(crate) fn start_hook(seats: Seats, user: Option<UserHook>) -> StartHook {
    Arc::new(move |start| {
        let pinned = seats.take(start.poller);
        if let Some(UserHook(hook)) = &user {
            hook(start);
        }
        pinned
    })
}

/// Runs what it is given on a thread of its own that is bound to the node's CPUs; does nothing if
/// it cannot be.
pub(crate) fn node_hook(machine: &Machine) -> NodeHook {
    let cpus: BTreeMap<u32, CpuSet> = machine
        .nodes
        .iter()
        .map(|node| (u32::from(node.id.0), node.cpus.intersection(&machine.allowed())))
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect();
    Arc::new(move |node, work| {
        let Some(cpus) = cpus.get(&node) else { return };
        std::thread::scope(|scope| {
            let touch = move || {
                if pin_current_thread(cpus).is_ok() {
                    work();
                }
            };
            let thread = std::thread::Builder::new().name("railring-touch".to_owned());
            // Without a thread the memory is touched where it is used.
            let _ = thread.spawn_scoped(scope, touch);
        });
    })
}
