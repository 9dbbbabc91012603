//! Building an engine: rails, settings, and where its pollers run.

use std::ops::Deref;
use std::sync::Arc;

use railring_core::{
    BuildError, EngineBuilder as CoreBuilder, EngineConfig, PollerStart, Rail, StartHook,
};
use railring_topology::{CpuId, CpuSet, PinError, allowed_cpus, pin_current_thread};

use railring_uring::with_signals_blocked;

use crate::link::AnyLink;
use crate::rails::RailSet;

/// Where pollers run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinning {
    /// Each poller on an allowed CPU of its own, the last ones first; none if the process may use
    /// only one. A poller that cannot be pinned runs anyway and shows it in the stats.
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
    /// A CPU that was asked for cannot be used, and the builder was told to be strict.
    #[error("cannot pin a poller to cpu {cpu}: {source}")]
    Pin {
        /// The CPU.
        cpu: u32,
        /// The cause.
        source: PinError,
    },
    /// CPUs that are not among those this process may use, and the builder was told to be strict.
    #[error("cpus {missing} are not among those this process may use ({allowed})")]
    NotAllowed {
        /// What was asked for and is not allowed.
        missing: CpuSet,
        /// What is.
        allowed: CpuSet,
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
}

/// The embedder's own start hook.
#[derive(Clone)]
struct UserHook(Arc<dyn Fn(PollerStart) + Send + Sync>);

impl std::fmt::Debug for UserHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("start hook")
    }
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

    /// What happens when a poller cannot be pinned. Default: it runs unpinned.
    pub fn strictness(mut self, strictness: Strictness) -> Self {
        self.strictness = strictness;
        self
    }

    /// How many pollers share the rails. Default: one per rail, but one fewer than the CPUs this
    /// process may use (one is for the caller), and at least one.
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

    fn core(self, pollers: u32) -> CoreBuilder<AnyLink> {
        let rails = self
            .rails
            .rails
            .into_iter()
            .zip((0..pollers).cycle())
            .map(|(rail, poller)| Rail { control: rail.control, link: rail.link, poller })
            .collect();
        let core = CoreBuilder::new(rails).config(self.config);
        self.pinned_endpoints
            .into_iter()
            .fold(core, |core, (endpoint, rail)| core.pin_endpoint(endpoint, rail))
    }

    /// Starts an engine whose pollers are threads.
    ///
    /// # Errors
    /// One variant per cause; nothing stays running.
    pub fn build(self) -> Result<Engine, EngineError> {
        let allowed = allowed_cpus().unwrap_or_default();
        let spare = u32::try_from(allowed.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let rails = u32::try_from(self.rails.len()).unwrap_or(u32::MAX).max(1);
        let pollers = self.pollers.unwrap_or(rails.min(spare.max(1))).min(rails);
        let cpus = self.choose_cpus(&allowed, pollers)?;
        let hook = start_hook(self.hook.clone());
        let core = self.core(pollers).cpus(cpus).on_poller_start(hook);
        // Threads inherit the mask of whoever makes them; the caller's own is as before afterwards.
        let core = with_signals_blocked(|| core.build()).map_err(BuildError::Io)??;
        Ok(Engine { core })
    }

    /// An engine without threads, whose turns the caller makes.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn build_inline(self) -> Result<InlineEngine, EngineError> {
        Ok(self.core(1).build_inline()?)
    }

    fn choose_cpus(&self, allowed: &CpuSet, pollers: u32) -> Result<Vec<Option<u32>>, EngineError> {
        let pollers = pollers as usize;
        match &self.pinning {
            Pinning::Unpinned => Ok(vec![None; pollers]),
            Pinning::Auto if allowed.len() < 2 => Ok(vec![None; pollers]),
            Pinning::Auto => {
                let mut cpus: Vec<u32> = allowed.iter().map(|cpu| u32::from(cpu.0)).collect();
                cpus.reverse();
                cpus.pop();
                Ok(cpus.into_iter().cycle().take(pollers).map(Some).collect())
            }
            Pinning::Cpus(cpus) => {
                let asked: CpuSet =
                    cpus.iter().filter_map(|&cpu| u16::try_from(cpu).ok()).map(CpuId).collect();
                let missing = asked.difference(allowed);
                let strict = self.strictness == Strictness::Strict;
                if strict && (!missing.is_empty() || asked.is_empty()) {
                    return Err(EngineError::NotAllowed { missing, allowed: allowed.clone() });
                }
                if cpus.is_empty() {
                    return Ok(vec![None; pollers]);
                }
                Ok(cpus.iter().copied().map(Some).cycle().take(pollers).collect())
            }
        }
    }
}

/// Pins the thread it runs on and reads back what came of it.
fn start_hook(user: Option<UserHook>) -> StartHook {
    Arc::new(move |start| {
        let pinned = start.cpu.and_then(pin_to);
        if start.cpu.is_some() && pinned.is_none() {
            tracing::warn!(poller = start.poller, cpu = start.cpu, "a poller runs unpinned");
        }
        if let Some(UserHook(hook)) = &user {
            hook(start);
        }
        pinned
    })
}

fn pin_to(cpu: u32) -> Option<u32> {
    let cpu = CpuId(u16::try_from(cpu).ok()?);
    let pinned = pin_current_thread(cpu).ok()?;
    pinned.is_exact().then_some(u32::from(cpu.0))
}

/// An engine with threads. `Send + Sync`; see [`railring_core::Engine`] for what it does.
#[derive(Debug)]
pub struct Engine {
    core: railring_core::Engine,
}

impl Engine {
    /// Begins to build an engine.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
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
