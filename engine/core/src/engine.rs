//! Engines: what an embedder builds, opens objects with, and makes rings of.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use railring_catalog::{Placement, ValidPlacement};
use railring_dma::{Pool, PoolError, PoolOptions, Region, RegionConfig, RegionError, Regions};
use railring_transport::{Link, Nanos, RegisterError};
use sq_cq::RingError;

use crate::build::Assembled;
use crate::cancel::CancelToken;
use crate::clock;
use crate::config::Waiting;
use crate::object::{Object, ObjectInner, OpenError, Opened};
use crate::places::PoolConfig;
use crate::poller::{Control, Poller, Progress};
use crate::ring::{Driver, Ring, RingConfig, RingPlace, WaitError};
use crate::shared::{Shared, lock};
use crate::stats::{EngineStats, RailStats};
use crate::trace::TraceTooLarge;

/// Why a ring was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingMakeError {
    /// Its sizes make no sense, or the process has no more descriptors.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// As many rings as configured exist.
    #[error("{limit} rings exist already (rings_max); drop one first")]
    TooManyRings {
        /// The limit.
        limit: u32,
    },
    /// There is no such poller.
    #[error("poller {poller} does not exist; there are {pollers}")]
    NoSuchPoller {
        /// What was asked for.
        poller: u32,
        /// How many there are.
        pollers: usize,
    },
    /// More room for traces than a ring may have.
    #[error(transparent)]
    Traces(#[from] TraceTooLarge),
    /// The engine is shutting down or has failed.
    #[error("the engine is gone")]
    EngineGone,
}

/// Why there is no pool, or a region was not registered. Nothing stays registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The memory could not be mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The region could not be cut into slots.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A rail could not register it.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// More than may be registered.
    #[error(
        "registering {bytes} B would go over the limit of {limit} B \
         (limits.registered_bytes_max); {used} B are registered"
    )]
    OverLimit {
        /// What was asked for.
        bytes: u64,
        /// What is registered already.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// More bytes than there are addresses.
    #[error("{slots} slots of {slot_bytes} B are more than can be addressed")]
    TooLarge {
        /// Slots asked for.
        slots: usize,
        /// Bytes of each.
        slot_bytes: usize,
    },
    /// The region is still in use.
    #[error("region {0:?} is still in use; put its leases back first")]
    InUse(railring_dma::RegionId),
}

/// Enabling or disabling a rail that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no rail is named {name:?}")]
pub struct NoSuchRail {
    name: String,
}

/// What both kinds of engine can do.
pub(crate) struct EngineCore {
    pub(crate) shared: Arc<Shared>,
    pinned_endpoints: Vec<(String, String)>,
    pollers_of_rails: Box<[u16]>,
}

impl EngineCore {
    pub(crate) fn new(shared: Arc<Shared>, pinned_endpoints: Vec<(String, String)>) -> Self {
        let pollers_of_rails = shared.route.clone();
        EngineCore { shared, pinned_endpoints, pollers_of_rails }
    }

    fn open(&self, placement: &Placement) -> Result<Object, OpenError> {
        let valid: ValidPlacement = placement.clone().validate()?;
        self.shared.sweep();
        let shared = &self.shared;
        if shared.closing.load(Ordering::Relaxed) || shared.failed.load(Ordering::Relaxed) {
            return Err(OpenError::ShuttingDown);
        }
        let limit = shared.config.objects_max;
        let handle = shared.reserve_object().ok_or(OpenError::TooManyObjects { limit })?;
        let opened = ObjectInner::connect(handle, valid, &shared.controls, &self.pinned_endpoints)
            .and_then(|inner| self.admit_connections(inner));
        match opened {
            Ok(inner) => {
                for desk in &shared.desks {
                    desk.tell(Control::Learn(Arc::clone(&inner)));
                }
                let shared = Arc::clone(shared);
                Ok(Object { opened: Arc::new(Opened { inner, shared }) })
            }
            Err(error) => {
                shared.release_object(handle);
                Err(error)
            }
        }
    }

    fn admit_connections(&self, inner: ObjectInner) -> Result<Arc<ObjectInner>, OpenError> {
        let count = inner.connections();
        let limit = self.shared.config.limits.connections_max;
        let used = self.shared.connections.fetch_add(count, Ordering::Relaxed);
        if used.saturating_add(count) > limit {
            self.shared.connections.fetch_sub(count, Ordering::Relaxed);
            return Err(OpenError::TooManyConnections { limit });
        }
        self.shared.note_connections(inner.handle, count);
        Ok(Arc::new(inner))
    }

    fn pool(&self, config: PoolConfig) -> Result<Pool, MemoryError> {
        let PoolConfig { slots, slot_bytes, alignment, huge_pages, node } = config;
        let too_large = MemoryError::TooLarge { slots, slot_bytes };
        let stride = slot_bytes.checked_next_multiple_of(alignment.max(1));
        let Some(bytes) = stride.and_then(|stride| stride.checked_mul(slots)) else {
            return Err(too_large);
        };
        let mut wanted = RegionConfig::new(bytes);
        wanted.huge_pages = huge_pages;
        wanted.node = self.shared.places.node_of(node);
        self.check_registered(bytes as u64)?;
        let region = self.shared.places.allocate(&self.shared.regions, wanted)?;
        let pool = Pool::new(&region, slot_bytes, PoolOptions { alignment })?;
        self.register(&region)?;
        Ok(pool)
    }

    fn check_registered(&self, bytes: u64) -> Result<(), MemoryError> {
        let limit = self.shared.config.limits.registered_bytes_max;
        let used = self.shared.registered_bytes.load(Ordering::Relaxed);
        if used.saturating_add(bytes) > limit {
            return Err(MemoryError::OverLimit { bytes, used, limit });
        }
        Ok(())
    }

    fn register(&self, region: &Region) -> Result<(), MemoryError> {
        self.check_registered(region.bytes() as u64)?;
        self.shared.register(region)?;
        Ok(())
    }

    fn unregister(&self, region: Region) -> Result<(), MemoryError> {
        let id = region.id();
        match region.unregister() {
            Ok(()) => {
                self.shared.unregister(id);
                Ok(())
            }
            Err(_) => Err(MemoryError::InUse(id)),
        }
    }

    fn ring(&self, config: RingConfig, driver: Driver) -> Result<Ring, RingMakeError> {
        let shared = &self.shared;
        if shared.closing.load(Ordering::Relaxed) || shared.failed.load(Ordering::Relaxed) {
            return Err(RingMakeError::EngineGone);
        }
        config.trace.check(shared.rails.len())?;
        let pollers = shared.desks.len();
        let poller = match config.poller {
            Some(poller) if (poller as usize) < pollers => poller as usize,
            Some(poller) => return Err(RingMakeError::NoSuchPoller { poller, pollers }),
            None => (0..pollers)
                .min_by_key(|&at| shared.desks[at].rings.load(Ordering::Relaxed))
                .unwrap_or(0),
        };
        let limit = shared.config.rings_max;
        if shared.rings.fetch_add(1, Ordering::Relaxed) >= limit {
            shared.rings.fetch_sub(1, Ordering::Relaxed);
            return Err(RingMakeError::TooManyRings { limit });
        }
        let desk = &shared.desks[poller];
        let made = desk.take_seat().ok_or(RingMakeError::TooManyRings { limit }).and_then(|seat| {
            let sizes = sq_cq::RingConfig {
                sq_entries: config.sq_entries,
                cq_entries: config.cq_entries,
                ..Default::default()
            };
            let source = crate::mail::SOURCE_RINGS + seat;
            sq_cq::pair(sizes, Arc::clone(&desk.bell), source).map(|ends| (seat, ends)).map_err(
                |error| {
                    desk.free_seat(seat);
                    error.into()
                },
            )
        });
        let (seat, (caller, poller_end)) = made.inspect_err(|_| {
            shared.rings.fetch_sub(1, Ordering::Relaxed);
        })?;
        let RingConfig { sq_entries, cq_entries, .. } = config;
        desk.tell(Control::Ring { seat, end: Box::new(poller_end), sq_entries, cq_entries });
        let place = RingPlace { desk: Arc::clone(desk), seat };
        Ok(Ring::new(caller, Arc::clone(shared), place, config, driver))
    }

    fn set_enabled(&self, name: &str, on: bool) -> Result<(), NoSuchRail> {
        let named = |rail: &usize| self.shared.controls[*rail].info().name == name;
        let rail = (0..self.shared.controls.len())
            .find(named)
            .ok_or_else(|| NoSuchRail { name: name.to_owned() })?;
        let desk = &self.shared.desks[usize::from(self.pollers_of_rails[rail])];
        let rail = u16::try_from(rail).expect("at most 64 rails");
        desk.tell(Control::Enable { rail, on });
        Ok(())
    }
}

/// The methods that [`Engine`] and [`InlineEngine`] share.
macro_rules! engine_methods {
    ($driver:expr) => {
        /// Opens an object: validates its placement, connects its sources over every rail that
        /// reaches them. May block; never on the read path.
        ///
        /// # Errors
        /// One variant per cause; nothing stays connected.
        pub fn open(&self, placement: &Placement) -> Result<Object, OpenError> {
            self.core.open(placement)
        }

        /// Allocates memory, registers it with every rail and cuts it into leases. May block.
        ///
        /// # Errors
        /// One variant per cause; nothing stays registered.
        pub fn buffer_pool(&self, config: PoolConfig) -> Result<Pool, MemoryError> {
            self.core.pool(config)
        }

        /// The registry of memory regions, to map the caller's own memory (`Regions::foreign`) and
        /// then [`register`](Self::register) it.
        #[must_use]
        pub fn regions(&self) -> &Regions {
            &self.core.shared.regions
        }

        /// Registers a region with every rail. May block, for long if it is large.
        ///
        /// # Errors
        /// A rail or a limit refused it; it is then registered with none.
        pub fn register(&self, region: &Region) -> Result<(), MemoryError> {
            self.core.register(region)
        }

        /// Forgets a region that nothing uses any more. Foreign memory may be freed once this said
        /// so.
        ///
        /// # Errors
        /// Something still holds a lease, a loan or the region itself.
        pub fn unregister(&self, region: Region) -> Result<(), MemoryError> {
            self.core.unregister(region)
        }

        /// A ring for one caller.
        ///
        /// # Errors
        /// Sizes that are no powers of two, and limits.
        pub fn ring(&self, config: RingConfig) -> Result<Ring, RingMakeError> {
            self.core.ring(config, $driver)
        }

        /// A token that cancels the reads pushed with it.
        #[must_use]
        pub fn cancel_token(&self) -> CancelToken {
            CancelToken::new(&self.core.shared)
        }

        /// Switches a rail on or off by name. What is in flight on it goes on. Switching on clears
        /// its cooldown.
        ///
        /// # Errors
        /// No rail has that name.
        pub fn set_enabled(&self, rail: &str, on: bool) -> Result<(), NoSuchRail> {
            self.core.set_enabled(rail, on)
        }

        /// The engine's counters.
        #[must_use]
        pub fn stats(&self) -> EngineStats {
            self.core.shared.engine_stats()
        }

        /// The rails' counters, in the order in which the rails were given. The links' own counters
        /// are those of the call before, or a moment ago: pollers are asked for them.
        #[must_use]
        pub fn rail_stats(&self) -> Vec<RailStats> {
            self.core.shared.ask_link_stats();
            self.core.shared.rail_stats()
        }

        /// Pollers of this engine.
        #[must_use]
        pub fn pollers(&self) -> usize {
            self.core.shared.desks.len()
        }
    };
}

/// What a start hook is told of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerStart {
    /// The poller, from 0.
    pub poller: u32,
    /// The CPU it was asked to be pinned to, if any.
    pub cpu: Option<u32>,
}

/// Runs on each poller's thread before its first turn, and may pin it. Returns the CPU that the
/// thread was seen to be pinned to.
pub type StartHook = Arc<dyn Fn(PollerStart) -> Option<u32> + Send + Sync>;

/// An engine with threads. `Send + Sync`. Dropping it cancels what is in flight, waits until it is
/// quiet (or declared stuck), and ends its threads.
pub struct Engine {
    core: EngineCore,
    threads: Mutex<Vec<JoinHandle<()>>>,
    sweeper: Mutex<Option<JoinHandle<()>>>,
    stop_sweeping: Arc<AtomicBool>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("pollers", &self.pollers()).finish_non_exhaustive()
    }
}

impl Engine {
    engine_methods!(Driver::Threads);

    pub(crate) fn start<L: Link + 'static>(
        assembled: Assembled<L>,
        pinned_endpoints: Vec<(String, String)>,
        cpus: &[Option<u32>],
        hook: Option<StartHook>,
    ) -> std::io::Result<Self> {
        let Assembled { shared, pollers } = assembled;
        let stop_sweeping = Arc::new(AtomicBool::new(false));
        let engine = Engine {
            core: EngineCore::new(Arc::clone(&shared), pinned_endpoints),
            threads: Mutex::new(Vec::new()),
            sweeper: Mutex::new(None),
            stop_sweeping: Arc::clone(&stop_sweeping),
        };
        // Dropped by each thread once it is set up, or by its unwinding.
        let (set_up, all_set_up) = std::sync::mpsc::channel::<()>();
        for (index, poller) in pollers.into_iter().enumerate() {
            let start = PollerStart {
                poller: u32::try_from(index).expect("few pollers"),
                cpu: cpus.get(index).copied().flatten(),
            };
            let (hook, shared, set_up) = (hook.clone(), Arc::clone(&shared), set_up.clone());
            let thread = std::thread::Builder::new()
                .name(format!("railring-{index}"))
                .spawn(move || poller_thread(poller, &shared, start, hook, set_up))?;
            lock(&engine.threads).push(thread);
        }
        let sweeping = Arc::clone(&shared);
        let sweeper =
            std::thread::Builder::new().name("railring-control".to_owned()).spawn(move || {
                drop(set_up);
                sweeping.sweep_until(&stop_sweeping);
            })?;
        *lock(&engine.sweeper) = Some(sweeper);
        // Nothing of a thread's start happens after this: no late allocation, no late pinning.
        let _ = all_set_up.recv();
        Ok(engine)
    }

    /// Whether a poller has panicked. Its reads ended as `EngineFailed`; pushes are refused.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.core.shared.failed.load(Ordering::Acquire)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.core.shared.shut();
        for thread in lock(&self.threads).drain(..) {
            // A poller's panic was contained and told; there is nothing to add here.
            let _ = thread.join();
        }
        self.stop_sweeping.store(true, Ordering::Release);
        self.core.shared.buried.notify_all();
        if let Some(sweeper) = lock(&self.sweeper).take() {
            let _ = sweeper.join();
        }
        self.core.shared.sweep();
    }
}

fn poller_thread<L: Link>(
    mut poller: Poller<L>,
    shared: &Arc<Shared>,
    start: PollerStart,
    hook: Option<StartHook>,
    set_up: std::sync::mpsc::Sender<()>,
) {
    let pinned = hook.and_then(|hook| hook(start));
    let desk = &shared.desks[start.poller as usize];
    desk.asked.store(start.cpu.map_or(0, |cpu| cpu + 1), Ordering::Relaxed);
    desk.pinned.store(pinned.map_or(0, |cpu| cpu + 1), Ordering::Relaxed);
    let waiting = shared.config.waiting;
    let run = std::panic::AssertUnwindSafe(|| {
        poller.start();
        drop(set_up);
        run(&mut poller, waiting);
    });
    if std::panic::catch_unwind(run).is_err() {
        tracing::error!(poller = start.poller, "a poller panicked; its reads end as failed");
        poller.fail();
        poller.haunt_to_the_end();
        // What could not even be failed is leaked with the poller.
        std::mem::forget(poller);
    }
}

/// How often a poller with nothing to do looks for work between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 16;

fn run<L: Link>(poller: &mut Poller<L>, waiting: Waiting) {
    let mut last_work = clock::now();
    while !poller.has_ended() {
        // Looking costs less than the clock does.
        for _ in 0..LOOKS_PER_CLOCK {
            if !poller.is_still() {
                break;
            }
            std::hint::spin_loop();
        }
        let now = clock::now();
        if poller.turn(now) == Progress::Worked {
            last_work = now;
            continue;
        }
        match waiting {
            Waiting::Adaptive { spin } if Duration::from_nanos(now.since(last_work)) >= spin => {
                poller.park(now, Some(Duration::from_secs(3600)));
                last_work = clock::now();
            }
            _ => std::hint::spin_loop(),
        }
    }
}

/// An engine without threads: its owner makes its turns. It and its rings belong to one thread
/// from the first turn on. No hand-off between threads, so the best on few cores.
pub struct InlineEngine<L> {
    pub(crate) core: EngineCore,
    pub(crate) pollers: Vec<Poller<L>>,
}

impl<L> fmt::Debug for InlineEngine<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineEngine").finish_non_exhaustive()
    }
}

impl<L: Link> InlineEngine<L> {
    engine_methods!(Driver::Caller);

    pub(crate) fn assemble(
        assembled: Assembled<L>,
        pinned_endpoints: Vec<(String, String)>,
    ) -> Self {
        let Assembled { shared, mut pollers } = assembled;
        pollers.iter_mut().for_each(Poller::start);
        InlineEngine { core: EngineCore::new(shared, pinned_endpoints), pollers }
    }

    /// One turn, at the present time. Submit before it.
    #[inline]
    pub fn turn(&mut self) -> Progress {
        self.turn_at(clock::now())
    }

    /// One turn at a given time, which must not run backwards. For simulators.
    #[inline]
    pub fn turn_at(&mut self, now: Nanos) -> Progress {
        self.core.shared.clock.set(now);
        let mut progress = Progress::Idle;
        for poller in &mut self.pollers {
            if poller.turn(now) == Progress::Worked {
                progress = Progress::Worked;
            }
        }
        progress
    }

    /// Submits `ring` and makes turns until at least `min` of its CQEs can be popped, or all that
    /// are outstanding, or `timeout` has passed. Sleeps when there is nothing to do and a single
    /// poller. Returns how many can be popped.
    ///
    /// # Errors
    /// None today; the type is that of [`Ring::wait`].
    pub fn wait(
        &mut self,
        ring: &mut Ring,
        min: u32,
        timeout: Duration,
    ) -> Result<usize, WaitError> {
        ring.submit();
        let end = clock::now().after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let now = clock::now();
            let progress = self.turn_before_sleep(now);
            let ready = ring.ready();
            if ready >= min || now >= end || ready >= ring.outstanding() {
                self.pollers.iter_mut().for_each(|poller| poller.ring_doorbells(now));
                return Ok(ready as usize);
            }
            if progress == Progress::Idle || self.pollers.iter().any(Poller::left_a_doorbell) {
                self.sleep_until_something(now, Duration::from_nanos(end.since(now)));
            }
        }
    }

    /// One turn, after which [`InlineEngine::sleep_until_something`] is called or doorbells are
    /// rung.
    fn turn_before_sleep(&mut self, now: Nanos) -> Progress {
        match &mut self.pollers[..] {
            [poller] => {
                self.core.shared.clock.set(now);
                poller.turn_before_sleep(now)
            }
            _ => self.turn_at(now),
        }
    }

    /// Sleeps if there is a single poller that has nothing to do, for at most so long.
    pub(crate) fn sleep_until_something(&mut self, now: Nanos, at_most: Duration) {
        if let [poller] = &mut self.pollers[..] {
            poller.park(now, Some(at_most));
        }
    }
}

impl<L> Drop for InlineEngine<L> {
    /// Nobody makes turns any more: what is in flight ends as `EngineFailed`, and memory that a
    /// device may still write is kept for ever.
    fn drop(&mut self) {
        self.core.shared.shut();
        self.pollers.iter_mut().for_each(Poller::abandon);
    }
}
