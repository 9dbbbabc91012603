//! What all threads of an engine share: registries behind locks that no read takes, and counters.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use railring_dma::{Impounded, Loan, Part, Region, RegionId, Regions};
use railring_transport::{RailControl, RegisterError};
use sq_cq::{Bell, Handle};

use crate::budget::{Budget, Claim};
use crate::clock::Clock;
use crate::config::EngineConfig;
use crate::health::{RailMarks, RailState};
use crate::mail::{Inbox, SOURCE_CONTROL};
use crate::object::ObjectInner;
use crate::places::Places;
use crate::poller::Control;
use crate::staging::Staging;
use crate::stats::{HomeCounters, RailCounters};

/// A lock whose holders never panic half-way through a change, so poison says nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Messages to a poller that are not about single pieces. Cold: a lock and a growing list.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) bell: Arc<Bell>,
    pub(crate) inbox: Inbox,
    waiting: Mutex<Vec<Control>>,
    /// Which of the bell's ring sources are taken.
    seats: Mutex<Vec<bool>>,
    pub(crate) rings: AtomicU32,
    pub(crate) counters: HomeCounters,
    /// The CPU its thread was to be pinned to, plus one; 0 if to none.
    pub(crate) asked: AtomicU32,
    /// The CPU its thread is pinned to, plus one; 0 if it is not pinned.
    pub(crate) pinned: AtomicU32,
}

impl Desk {
    pub(crate) fn new(bell: Arc<Bell>, mail: usize, rings_max: u32, rails: usize) -> Self {
        Desk {
            inbox: Inbox::new(mail, Arc::clone(&bell)),
            bell,
            waiting: Mutex::new(Vec::new()),
            seats: Mutex::new(vec![false; rings_max as usize]),
            rings: AtomicU32::new(0),
            counters: HomeCounters::new(rails),
            asked: AtomicU32::new(0),
            pinned: AtomicU32::new(0),
        }
    }

    /// Leaves a message; the poller sees it in its next turn, before any SQE pushed after this.
    pub(crate) fn tell(&self, control: Control) {
        lock(&self.waiting).push(control);
        self.bell.mark(SOURCE_CONTROL);
    }

    /// A free ring source of this poller's bell.
    pub(crate) fn take_seat(&self) -> Option<usize> {
        let mut seats = lock(&self.seats);
        let seat = seats.iter().position(|taken| !taken)?;
        seats[seat] = true;
        self.rings.fetch_add(1, Ordering::Relaxed);
        Some(seat)
    }

    pub(crate) fn free_seat(&self, seat: usize) {
        lock(&self.seats)[seat] = false;
        self.rings.fetch_sub(1, Ordering::Relaxed);
    }

    /// The objects among the messages; the other messages stay.
    pub(crate) fn take_learned(&self) -> Vec<Arc<ObjectInner>> {
        let mut learned = Vec::new();
        lock(&self.waiting).retain(|message| match message {
            Control::Learn(object) => {
                learned.push(Arc::clone(object));
                false
            }
            _ => true,
        });
        learned
    }

    pub(crate) fn take(&self) -> Vec<Control> {
        std::mem::take(&mut *lock(&self.waiting))
    }
}

/// What is known of a rail outside its poller.
#[derive(Debug)]
pub(crate) struct RailShared {
    pub(crate) counters: RailCounters,
    pub(crate) state: RailState,
    pub(crate) impound: Arc<Impound>,
    pub(crate) link: Mutex<railring_transport::LinkStats>,
}

/// Memory that may still be written by something: kept until it comes back, for ever if it must.
#[derive(Debug, Default)]
pub(crate) struct Impound {
    yard: Mutex<Yard>,
}

#[derive(Debug, Default)]
struct Yard {
    held: Vec<Impounded>,
    /// Parts that came back before their loan was put here.
    early: Vec<Part>,
}

impl Impound {
    /// A read ended as stuck: its loan waits here for the parts that are still out.
    pub(crate) fn hold(&self, loan: Loan) {
        // Nothing of it may be out at all: of a read of nothing, or of memory that was not needed.
        let loan = match loan.settle() {
            Ok(lease) => return drop(lease),
            Err(loan) => loan,
        };
        let mut yard = lock(&self.yard);
        let mut held = loan.impound();
        for part in std::mem::take(&mut yard.early) {
            match held.repay(part) {
                Ok(lease) => drop(lease),
                Err(part) => yard.early.push(part),
            }
        }
        if held.bytes() > 0 {
            yard.held.push(held);
        }
    }

    /// A part came back long after its read ended. Its lease goes back to its pool when it is
    /// whole.
    pub(crate) fn repay(&self, mut part: Part) {
        let mut yard = lock(&self.yard);
        for index in 0..yard.held.len() {
            match yard.held[index].repay(part) {
                Ok(Some(lease)) => {
                    drop(lease);
                    drop(yard.held.swap_remove(index));
                    return;
                }
                Ok(None) => return,
                Err(back) => part = back,
            }
        }
        yard.early.push(part);
    }
}

#[derive(Debug)]
struct ObjectSlot {
    generation: u32,
    live: bool,
    /// Pollers that have let go of it.
    buried: usize,
    connections: u32,
}

#[derive(Debug, Default)]
struct Objects {
    slots: Vec<ObjectSlot>,
    free: Vec<u32>,
}

/// The engine's shared state.
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) clock: Clock,
    pub(crate) controls: Arc<[Arc<dyn RailControl>]>,
    pub(crate) regions: Regions,
    pub(crate) desks: Box<[Arc<Desk>]>,
    pub(crate) rails: Box<[Arc<RailShared>]>,
    /// The poller of each rail.
    pub(crate) route: Box<[u16]>,
    pub(crate) staging: Box<[Staging]>,
    pub(crate) places: Places,
    pub(crate) impound: Arc<Impound>,
    /// How the rails stand, in a word for all.
    pub(crate) marks: Arc<RailMarks>,
    pieces: Budget,
    bytes: Budget,
    claim: Claim,
    /// Pollers with pieces that found a budget or a rail's staging memory used up, one bit each.
    starving: AtomicU64,
    pub(crate) closing: AtomicBool,
    pub(crate) failed: AtomicBool,
    pub(crate) failed_pollers: AtomicU32,
    pub(crate) tokens: AtomicU64,
    pub(crate) rings: AtomicU32,
    /// Where each registered region lies: start address and length in bytes.
    registered: Mutex<HashMap<RegionId, (usize, usize)>>,
    /// Homes that were told to stop and have no reads left.
    pub(crate) idle_homes: AtomicUsize,
    pub(crate) registered_bytes: AtomicU64,
    pub(crate) connections: AtomicU32,
    objects: Mutex<Objects>,
    /// Objects that a poller let go of, to be dropped where blocking is allowed.
    graveyard: Mutex<Vec<Arc<ObjectInner>>>,
    pub(crate) buried: Condvar,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The parts of [`Shared`] that its builder chooses.
pub(crate) struct SharedParts {
    pub(crate) config: EngineConfig,
    pub(crate) clock: Clock,
    pub(crate) controls: Arc<[Arc<dyn RailControl>]>,
    pub(crate) regions: Regions,
    pub(crate) desks: Box<[Arc<Desk>]>,
    pub(crate) rails: Box<[Arc<RailShared>]>,
    pub(crate) route: Box<[u16]>,
    pub(crate) staging: Box<[Staging]>,
    pub(crate) places: Places,
    pub(crate) impound: Arc<Impound>,
    pub(crate) marks: Arc<RailMarks>,
}

impl Shared {
    pub(crate) fn new(parts: SharedParts) -> Self {
        let limits = parts.config.limits;
        let pieces =
            if limits.pieces_max == u32::MAX { u64::MAX } else { limits.pieces_max.into() };
        Shared {
            config: parts.config,
            clock: parts.clock,
            controls: parts.controls,
            regions: parts.regions,
            desks: parts.desks,
            rails: parts.rails,
            route: parts.route,
            staging: parts.staging,
            places: parts.places,
            impound: parts.impound,
            marks: parts.marks,
            pieces: Budget::new(pieces),
            bytes: Budget::new(limits.bytes_max),
            claim: Claim::default(),
            starving: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failed_pollers: AtomicU32::new(0),
            tokens: AtomicU64::new(1),
            rings: AtomicU32::new(0),
            registered: Mutex::new(HashMap::new()),
            idle_homes: AtomicUsize::new(0),
            registered_bytes: AtomicU64::new(0),
            connections: AtomicU32::new(0),
            objects: Mutex::new(Objects::default()),
            graveyard: Mutex::new(Vec::new()),
            buried: Condvar::new(),
        }
    }

    /// Takes room for one piece of `poller` from the engine's budgets.
    #[inline]
    pub(crate) fn take_room(&self, poller: u16, bytes: u64) -> bool {
        if !self.pieces.is_bounded() && !self.bytes.is_bounded() {
            return true;
        }
        if self.claim.is_anothers(poller) || !self.pieces.take(1) {
            return false;
        }
        let taken = self.bytes.take(bytes);
        if !taken {
            self.pieces.give_back(1);
        }
        taken
    }

    /// The oldest piece of `poller` found no room: nobody else takes any before it has, unless
    /// another was first. Otherwise small pieces could for ever take what a large one waits for.
    pub(crate) fn claim_room(&self, poller: u16) {
        self.claim.want(poller);
    }

    /// That piece has its room, or wants none any more: the next poller's turn.
    pub(crate) fn release_claim(&self, poller: u16) {
        if let Some(next) = self.claim.release(poller) {
            self.desks[usize::from(next)].inbox.ring();
        }
    }

    /// Gives the room of `pieces` pieces back, and wakes whoever waited for it.
    #[inline]
    pub(crate) fn give_back_room(&self, pieces: u32, bytes: u64) {
        self.pieces.give_back(pieces.into());
        self.bytes.give_back(bytes);
        if self.pieces.is_bounded() || self.bytes.is_bounded() {
            self.feed_starving();
        }
    }

    /// A poller's piece found something used up that others hold too: it is woken when some of it
    /// comes back. `true`: this is news, so some may have come back just before: look once more.
    pub(crate) fn starve(&self, poller: u16) -> bool {
        let bit = 1 << poller;
        // The fence orders the bit before the second look; pairs with that in `feed_starving`.
        let news = self.starving.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        fence(Ordering::SeqCst);
        news
    }

    /// Something came back: whoever starves looks again.
    pub(crate) fn feed_starving(&self) {
        // Orders what came back before the look at the bits; pairs with the fence in `starve`.
        fence(Ordering::SeqCst);
        if self.starving.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut bits = self.starving.swap(0, Ordering::Relaxed);
        while bits != 0 {
            self.desks[bits.trailing_zeros() as usize].inbox.ring();
            bits &= bits - 1;
        }
    }

    /// A ring's poller has forgotten it.
    pub(crate) fn free_seat(&self, poller: usize, seat: usize) {
        self.desks[poller].free_seat(seat);
        self.rings.fetch_sub(1, Ordering::Relaxed);
    }

    /// A handle for an object about to be opened; `None` when `objects_max` are open.
    pub(crate) fn reserve_object(&self) -> Option<Handle> {
        let mut objects = lock(&self.objects);
        let slot = match objects.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(objects.slots.len()).ok()?;
                if slot >= self.config.objects_max {
                    return None;
                }
                let fresh = ObjectSlot { generation: 1, live: false, buried: 0, connections: 0 };
                objects.slots.push(fresh);
                slot
            }
        };
        let entry = &mut objects.slots[slot as usize];
        entry.live = true;
        entry.buried = 0;
        Some(Handle { slot, generation: entry.generation })
    }

    pub(crate) fn note_connections(&self, handle: Handle, connections: u32) {
        lock(&self.objects).slots[handle.slot as usize].connections = connections;
    }

    /// Gives a handle back that was never told to the pollers.
    pub(crate) fn release_object(&self, handle: Handle) {
        let mut objects = lock(&self.objects);
        let entry = &mut objects.slots[handle.slot as usize];
        entry.live = false;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        let connections = std::mem::take(&mut entry.connections);
        objects.free.push(handle.slot);
        self.connections.fetch_sub(connections, Ordering::Relaxed);
    }

    /// The caller's last handle is gone: pollers let go once its reads have ended.
    pub(crate) fn close_object(&self, handle: Handle) {
        for desk in &self.desks {
            desk.tell(Control::Close(handle));
        }
        self.sweep();
    }

    /// A poller lets go of an object; it may not block, so the object is dropped elsewhere.
    pub(crate) fn bury(&self, object: Arc<ObjectInner>) {
        lock(&self.graveyard).push(object);
        self.buried.notify_one();
    }

    /// Drops what the pollers let go of, on a thread that may block.
    pub(crate) fn sweep(&self) {
        let buried = std::mem::take(&mut *lock(&self.graveyard));
        for object in buried {
            let handle = object.handle;
            drop(object);
            let pollers = self.desks.len();
            let all = {
                let mut objects = lock(&self.objects);
                let entry = &mut objects.slots[handle.slot as usize];
                entry.buried += 1;
                entry.buried == pollers
            };
            if all {
                self.release_object(handle);
            }
        }
    }

    /// Sweeps whenever something was buried, until `stop`. The control thread's body.
    pub(crate) fn sweep_until(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let graveyard = lock(&self.graveyard);
            let pause = std::time::Duration::from_secs(1);
            let waited = self.buried.wait_timeout_while(graveyard, pause, |buried| {
                buried.is_empty() && !stop.load(Ordering::Acquire)
            });
            drop(waited);
            self.sweep();
        }
    }

    /// Registers a region with every rail, or with none.
    pub(crate) fn register(&self, region: &Region) -> Result<(), RegisterError> {
        self.register_by(region, |control| control.register(region))
    }

    /// The same for memory that is used for one read.
    pub(crate) fn register_briefly(&self, region: &Region) -> Result<(), RegisterError> {
        self.register_by(region, |control| control.register_briefly(region))
    }

    fn register_by(
        &self,
        region: &Region,
        register: impl Fn(&dyn RailControl) -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        for (done, control) in self.controls.iter().enumerate() {
            if let Err(error) = register(&**control) {
                self.controls[..done].iter().for_each(|control| control.unregister(region.id()));
                return Err(error);
            }
        }
        let place = (region.base().as_ptr() as usize, region.bytes());
        lock(&self.registered).insert(region.id(), place);
        self.registered_bytes.fetch_add(region.bytes() as u64, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn unregister(&self, region: RegionId) {
        let Some((_, bytes)) = lock(&self.registered).remove(&region) else { return };
        self.registered_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.controls.iter().for_each(|control| control.unregister(region));
    }

    pub(crate) fn registered_region(&self, region: RegionId) -> Option<(usize, usize)> {
        lock(&self.registered).get(&region).copied()
    }

    /// Tells every poller to stop. Idempotent.
    pub(crate) fn shut(&self) {
        self.closing.store(true, Ordering::Release);
        for desk in &self.desks {
            desk.tell(Control::Stop);
        }
    }
}
