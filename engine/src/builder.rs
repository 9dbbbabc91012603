//! Building an engine: rails, settings, and where its pollers run.

use std::ops::Deref;
use std::sync::Arc;

use railring_core::{BuildError, EngineBuilder as CoreBuilder, EngineConfig, PollerStart, Rail};
use railring_topology::assign::{Pin, Placement, Policy as Place};
use railring_topology::plan::PassedOver;
use railring_topology::{AssignError, CpuId, CpuSet, DiscoverError, NodeId, Plan, allowed_cpus};
use railring_uring::with_signals_blocked;

use crate::link::AnyLink;
use crate::place::{self, Planned};
use crate::rails::RailSet;
use crate::seats::{Seat, Seats, UserHook, node_hook, show, start_hook};

/// Where pollers run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinning {
    /// By the machine's plan, if the rails were discovered or the builder was told where to place
    /// them. Otherwise each poller on an allowed CPU of its own, the last ones first; none if the
    /// process may use only one. A poller that cannot be pinned runs anyway and shows it in the
    /// stats.
    Auto,
    /// The scheduler decides.
    Unpinned,
    /// Poller `i` on the `i`-th of these CPUs (by their real numbers), round and round.
    Cpus(Vec<u32>),
}

/// Whether an engine starts when a poller could not be pinned as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// It starts, and its stats say `pinned_cpu: None`.
    BestEffort,
    /// It does not start.
    Strict,
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// It could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The machine could not be read.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The machine has not what the builder or the rails ask for.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// There are devices, and none that this build can use.
    #[error("no rail of this machine can be used: {why}")]
    NoUsableRails {
        /// Each device, with why.
        why: String,
    },
    /// A poller does not run where it was to, and the builder was told to be strict.
    #[error(
        "poller {poller} was to run on cpus {asked} and may run on {got}{why}; choose among those, \
         widen the cpuset, or do not be strict"
    )]
    NotPinned {
        /// The poller.
        poller: u32,
        /// Where it was to run.
        asked: CpuSet,
        /// Where it may run, as read back; `any` if that cannot be read.
        got: String,
        /// What the kernel said, if it refused.
        why: String,
    },
}

/// Everything an engine is built from. Made by [`Engine::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct EngineBuilder {
    rails: RailSet,
    config: EngineConfig,
    pinning: Pinning,
    strictness: Strictness,
    pollers: Option<u32>,
    pinned_endpoints: Vec<(String, String)>,
    hook: Option<UserHook>,
    place: Place,
}

impl EngineBuilder {
    fn new() -> Self {
        EngineBuilder {
            rails: RailSet::new(),
            config: EngineConfig::default(),
            pinning: Pinning::Auto,
            strictness: Strictness::BestEffort,
            pollers: None,
            pinned_endpoints: Vec::new(),
            hook: None,
            place: Place::default(),
        }
    }

    /// The rails.
    pub fn rails(mut self, rails: RailSet) -> Self {
        self.rails = rails;
        self
    }

    /// Settings. See [`EngineConfig`] for the defaults.
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Where pollers run. Default: [`Pinning::Auto`].
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.pinning = pinning;
        self
    }

    /// Where rails, pollers and memory go, all at once: CPUs, nodes, pins, placement, strictness.
    /// Which rails there are was decided by the [`RailSet`]; that part is not looked at. With any
    /// wish the machine is read when the engine is built, unless the rails were discovered.
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Pollers run on these CPUs only, also isolated ones.
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.place.cpus = Some(cpus);
        self
    }

    /// Pollers run on this memory node's CPUs only.
    pub fn node(mut self, node: NodeId) -> Self {
        self.place.node = Some(node);
        self
    }

    /// Buffers lie on this memory node.
    pub fn memory_node(mut self, node: NodeId) -> Self {
        self.place.memory_node = Some(node);
        self
    }

    /// The poller of a rail, by its name or number, runs on this CPU.
    pub fn pin(mut self, rail: impl Into<String>, cpu: CpuId) -> Self {
        self.place.pins.push(Pin { rail: rail.into(), cpu });
        self
    }

    /// How pollers are put on cores. Default: one per rail, near it.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.place.placement = placement;
        self
    }

    /// What happens when a poller cannot be pinned. Default: it runs unpinned.
    pub fn strictness(mut self, strictness: Strictness) -> Self {
        self.strictness = strictness;
        self
    }

    /// How many pollers share the rails. Default: as the plan says; without one, one per rail, but
    /// one fewer than the CPUs this process may use (one is for the caller), and at least one.
    pub fn pollers(mut self, pollers: u32) -> Self {
        self.pollers = Some(pollers.max(1));
        self
    }

    /// Under endpoint affinity, sources on `endpoint` belong to the rail of this name.
    pub fn pin_endpoint(mut self, endpoint: impl Into<String>, rail: impl Into<String>) -> Self {
        self.pinned_endpoints.push((endpoint.into(), rail.into()));
        self
    }

    /// Runs on each poller's thread, after it was pinned and before its first turn.
    pub fn on_poller_start(mut self, hook: impl Fn(PollerStart) + Send + Sync + 'static) -> Self {
        self.hook = Some(UserHook(Arc::new(hook)));
        self
    }

    /// Rails with the poller of each.
    fn core(self, pollers_of_rails: &[u32], planned: Option<&Planned>) -> CoreBuilder<AnyLink> {
        let rails = self.rails.rails.into_iter().zip(pollers_of_rails);
        let rails = rails
            .map(|(rail, &poller)| Rail { control: rail.control, link: rail.link, poller })
            .collect();
        let core = CoreBuilder::new(rails).config(self.config);
        let core = match planned {
            Some(planned) => core.places(planned.places(), Some(node_hook(&planned.machine))),
            None => core,
        };
        self.pinned_endpoints
            .into_iter()
            .fold(core, |core, (endpoint, rail)| core.pin_endpoint(endpoint, rail))
    }

    /// The plan, if there is a reason for one. Rails that were found and cannot be used are named.
    fn plan(&mut self) -> Result<Option<Planned>, EngineError> {
        let none = self.rails.unused().iter().chain(self.rails.passed_over());
        if self.rails.is_empty() && none.clone().next().is_some() {
            let one = |rail: &PassedOver| format!("{}: {}", rail.name, rail.why);
            let why = none.map(one).collect::<Vec<_>>().join("; ");
            return Err(EngineError::NoUsableRails { why });
        }
        self.place.pollers_max =
            self.pollers.and_then(|most| usize::try_from(most).ok()).or(self.place.pollers_max);
        place::plan(&mut self.rails, &self.place)
    }

    /// Without a plan: rails take the pollers in turn.
    fn in_turn(&self, allowed: &CpuSet) -> Vec<u32> {
        let spare = u32::try_from(allowed.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let rails = u32::try_from(self.rails.len()).unwrap_or(u32::MAX).max(1);
        let pollers = self.pollers.unwrap_or(rails.min(spare.max(1))).min(rails);
        (0..pollers).cycle().take(self.rails.len()).collect()
    }

    /// Starts an engine whose pollers are threads.
    ///
    /// # Errors
    /// One variant per cause; nothing stays running.
    pub fn build(mut self) -> Result<Engine, EngineError> {
        let planned = self.plan()?;
        let allowed = allowed_cpus().unwrap_or_default();
        let (of_rails, mut seats) = match &planned {
            Some(planned) => (planned.pollers_of_rails(), planned.seats()),
            None => (self.in_turn(&allowed), Vec::new()),
        };
        if planned.is_none() || self.pinning != Pinning::Auto {
            seats = place::seats(&self.pinning, &allowed, &self.rails.names(), &of_rails);
        }
        let is_strict = self.strictness == Strictness::Strict
            || planned.as_ref().is_some_and(Planned::is_strict);
        let disabled = self.rails.disabled();
        let seats = Seats::new(seats);
        let hook = start_hook(seats.clone(), self.hook.clone());
        let core = self.core(&of_rails, planned.as_ref());
        let core = core.cpus(seats.cpus()).on_poller_start(hook);
        // Threads inherit the mask of whoever makes them; the caller's own is as before afterwards.
        let core = with_signals_blocked(|| core.build()).map_err(BuildError::Io)??;
        let seats = seats.taken();
        if is_strict {
            check(&seats)?;
        }
        for name in disabled {
            core.set_enabled(&name, false).expect("the rail is one of the engine's");
        }
        Ok(Engine { core, seats, plan: planned.map(|planned| Box::new(planned.plan)) })
    }

    /// An engine without threads, whose turns the caller makes. Where it runs is the caller's
    /// choice; memory goes where the plan says.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn build_inline(mut self) -> Result<InlineEngine, EngineError> {
        let planned = self.plan()?;
        let (of_rails, disabled) = (vec![0; self.rails.len()], self.rails.disabled());
        let engine = self.core(&of_rails, planned.as_ref()).build_inline()?;
        for name in disabled {
            engine.set_enabled(&name, false).expect("the rail is one of the engine's");
        }
        Ok(engine)
    }
}

/// Refuses an engine of which a poller does not run where it was to.
fn check(seats: &[Seat]) -> Result<(), EngineError> {
    let Some(seat) = seats.iter().find(|seat| !seat.is_exact()) else { return Ok(()) };
    Err(EngineError::NotPinned {
        poller: seat.poller,
        asked: seat.asked.clone().unwrap_or_default(),
        got: show(seat.got.as_ref()),
        why: seat.why.as_ref().map_or(String::new(), |why| format!(" ({why})")),
    })
}

/// An engine with threads. `Send + Sync`; see [`railring_core::Engine`] for what it does.
#[derive(Debug)]
pub struct Engine {
    core: railring_core::Engine,
    seats: Vec<Seat>,
    plan: Option<Box<Plan>>,
}

impl Engine {
    /// Begins to build an engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }

    /// Where each poller was to run, and where it does, read back when it started.
    #[must_use]
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// The plan it was built by, with the reasons; `None` if it was built without one.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_deref()
    }
}

impl Deref for Engine {
    type Target = railring_core::Engine;

    fn deref(&self) -> &railring_core::Engine {
        &self.core
    }
}

/// An engine without threads, over rails of any transport.
pub type InlineEngine = railring_core::InlineEngine<AnyLink>;
