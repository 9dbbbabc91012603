//! Assembling an engine from rails: who drives which rail, and memory for all of it, made once.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use railring_dma::{Region, Regions};
use railring_transport::{Link, Nanos, RailControl, RailKind, RegisterError};
use sq_cq::Bell;

use crate::clock::{Clock, Hashing};
use crate::config::{ConfigError, EngineConfig};
use crate::engine::{Engine, InlineEngine, StartHook};
use crate::health::RailState;
use crate::home::{Home, RailFacts};
use crate::mail::SOURCE_RINGS;
use crate::places::{NodeHook, Places, RailPlace};
use crate::poller::{Poller, Port};
use crate::schedule::RAILS_MAX;
use crate::shared::{Desk, Impound, RailShared, Shared, SharedParts};
use crate::staging::{REGIONS_PER_RAIL, Staging, StagingError};
use crate::stats::RailCounters;

/// A rail as a transport makes it: its two halves, and who is to drive it.
#[derive(Debug)]
pub struct Rail<L> {
    /// The slow half.
    pub control: Arc<dyn RailControl>,
    /// The data path.
    pub link: L,
    /// The poller that drives it, from 0. Rails of one number share a poller.
    pub poller: u32,
}

/// Why an engine was not built. Nothing stays running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No rails at all.
    #[error("an engine needs at least one rail")]
    NoRails,
    /// More rails than can be told apart.
    #[error("{rails} rails were given; at most {limit} can be used")]
    TooManyRails {
        /// How many were given.
        rails: usize,
        /// The most there can be.
        limit: usize,
    },
    /// Two rails of one name, or one without.
    #[error("rail name {name:?} is blank or used twice; give each rail a name of its own")]
    BadRailName {
        /// The name.
        name: String,
    },
    /// A rail of no weight.
    #[error("rail {name} has weight 0; use 1 or more, or disable it")]
    NoWeight {
        /// The rail.
        name: String,
    },
    /// A rail that can never have anything in flight, or no whole block.
    #[error("rail {name} grants {wrs} work requests of at most {bytes} B; it needs 1 of 1 MiB")]
    UselessRail {
        /// The rail.
        name: String,
        /// Work requests it grants.
        wrs: u32,
        /// Bytes of one.
        bytes: u64,
    },
    /// Pollers that are not numbered from 0 without gaps.
    #[error("pollers must be numbered from 0 without gaps; {poller} drives no rail")]
    PollerGap {
        /// The first that is missing.
        poller: u32,
    },
    /// A setting that makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No staging memory.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// Staging memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No descriptor for a poller to sleep on, or no thread.
    #[error("a poller could not be set up: {0}")]
    Io(#[from] io::Error),
}

/// Everything an engine is built from.
pub struct EngineBuilder<L> {
    rails: Vec<Rail<L>>,
    config: EngineConfig,
    cpus: Vec<Option<u32>>,
    hook: Option<StartHook>,
    pinned_endpoints: Vec<(String, String)>,
    places: Places,
}

impl<L> fmt::Debug for EngineBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("rails", &self.rails.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Pollers ready to turn, and what they share.
pub(crate) struct Assembled<L> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pollers: Vec<Poller<L>>,
}

impl<L: Link> EngineBuilder<L> {
    /// Begins with the rails, in the order in which CQEs number them.
    #[must_use]
    pub fn new(rails: Vec<Rail<L>>) -> Self {
        let (config, cpus, pinned_endpoints) = (EngineConfig::default(), Vec::new(), Vec::new());
        let places = Places::default();
        EngineBuilder { rails, config, cpus, hook: None, pinned_endpoints, places }
    }

    /// Settings.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// The CPU that each poller's thread is to be pinned to, told to the start hook.
    #[must_use]
    pub fn cpus(mut self, cpus: Vec<Option<u32>>) -> Self {
        self.cpus = cpus;
        self
    }

    /// Runs on each poller's thread before its first turn.
    #[must_use]
    pub fn on_poller_start(mut self, hook: StartHook) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Where each rail is, and what runs on a node's CPUs where the kernel refuses to place memory.
    #[must_use]
    pub fn places(mut self, of_rails: Vec<RailPlace>, on_node: Option<NodeHook>) -> Self {
        self.places = Places::new(of_rails, on_node);
        self
    }

    /// Under endpoint affinity, `endpoint` belongs to the rail of this name.
    #[must_use]
    pub fn pin_endpoint(mut self, endpoint: impl Into<String>, rail: impl Into<String>) -> Self {
        self.pinned_endpoints.push((endpoint.into(), rail.into()));
        self
    }

    /// An engine whose pollers are threads.
    ///
    /// # Errors
    /// One variant per cause; nothing stays running.
    pub fn build(self) -> Result<Engine, BuildError>
    where
        L: 'static,
    {
        let (cpus, hook) = (self.cpus, self.hook);
        let assembled = assemble(self.rails, self.config, Clock::Kernel, self.places)?;
        Ok(Engine::start(assembled, self.pinned_endpoints, &cpus, hook)?)
    }

    /// An engine whose turns its owner makes.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn build_inline(self) -> Result<InlineEngine<L>, BuildError> {
        let assembled = assemble(self.rails, self.config, Clock::Kernel, self.places)?;
        Ok(InlineEngine::assemble(assembled, self.pinned_endpoints))
    }

    /// An engine whose turns its owner makes, and whose time is that of its turns, from `start` on:
    /// for simulators. Use `turn_at`.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn build_virtual(self, start: Nanos) -> Result<InlineEngine<L>, BuildError> {
        self.build_virtual_hashing(start, Hashing::Free)
    }

    /// The same; hashing takes time, too. After a turn, [`InlineEngine::now`] is when it ended.
    ///
    /// # Errors
    /// One variant per cause.
    pub fn build_virtual_hashing(
        self,
        start: Nanos,
        hashing: Hashing,
    ) -> Result<InlineEngine<L>, BuildError> {
        let clock = Clock::Turns(start.0.into(), hashing);
        let assembled = assemble(self.rails, self.config, clock, self.places)?;
        Ok(InlineEngine::assemble(assembled, self.pinned_endpoints))
    }
}

fn check_rails<L: Link>(rails: &[Rail<L>]) -> Result<u32, BuildError> {
    if rails.is_empty() {
        return Err(BuildError::NoRails);
    }
    if rails.len() > RAILS_MAX {
        return Err(BuildError::TooManyRails { rails: rails.len(), limit: RAILS_MAX });
    }
    let mut names: Vec<String> = Vec::new();
    for rail in rails {
        let (info, limits) = (rail.control.info(), rail.link.limits());
        if info.name.trim().is_empty() || names.contains(&info.name) {
            return Err(BuildError::BadRailName { name: info.name });
        }
        if info.weight == 0 {
            return Err(BuildError::NoWeight { name: info.name });
        }
        let (wrs, bytes) = (limits.outstanding_wrs_max, limits.request_bytes_max);
        if wrs == 0 || bytes < 1 << 20 {
            return Err(BuildError::UselessRail { name: info.name, wrs, bytes });
        }
        names.push(info.name);
    }
    let pollers = rails.iter().map(|rail| rail.poller).max().unwrap_or(0) + 1;
    match (0..pollers).find(|poller| rails.iter().all(|rail| rail.poller != *poller)) {
        Some(poller) => Err(BuildError::PollerGap { poller }),
        None => Ok(pollers),
    }
}

fn facts_of<L: Link>(
    rails: &[Rail<L>],
    config: &EngineConfig,
    regions: &Regions,
    places: &Places,
) -> Result<(Vec<RailFacts>, Vec<Region>), BuildError> {
    let staging_bytes = usize::try_from(config.staging_bytes).unwrap_or(usize::MAX);
    let (mut facts, mut staged) = (Vec::new(), Vec::new());
    for (index, rail) in rails.iter().enumerate() {
        let (info, limits) = (rail.control.info(), rail.link.limits());
        let place = places.of_rail(index);
        let node = place.memory_node.or(place.node).or(info.node);
        let (staging, made) = Staging::new(regions, places, staging_bytes, node)?;
        staged.extend(made);
        facts.push(RailFacts {
            weight: info.weight,
            outstanding_wrs_max: limits.outstanding_wrs_max,
            request_bytes_max: limits.request_bytes_max,
            alignment: limits.alignment,
            staging,
            is_disk: info.kind == RailKind::File,
        });
    }
    Ok((facts, staged))
}

/// Mail that can be under way to one poller: an order and a cancel for each piece of each home that
/// its rails can hold, and one reply for each piece of its own.
fn mail_max(facts: &[RailFacts], pieces: u32, homes: usize) -> usize {
    let orders: u32 = facts.iter().map(|rail| rail.outstanding_wrs_max).sum();
    2 * orders as usize * homes + pieces as usize
}

fn assemble<L: Link>(
    rails: Vec<Rail<L>>,
    config: EngineConfig,
    clock: Clock,
    places: Places,
) -> Result<Assembled<L>, BuildError> {
    config.validate()?;
    let homes = check_rails(&rails)? as usize;
    // Each rail has staging regions of its own beside the caller's.
    let regions_max = config
        .regions_max
        .saturating_add(u32::try_from(rails.len() * REGIONS_PER_RAIL).unwrap_or(256));
    let regions = Regions::new(regions_max);
    let (facts, staged) = facts_of(&rails, &config, &regions, &places)?;
    let pieces = Home::piece_ids_max(&facts, config.reads_max);
    let mail = mail_max(&facts, pieces, homes);
    let mut desks = Vec::new();
    for _ in 0..homes {
        let bell = Arc::new(Bell::new(SOURCE_RINGS + config.rings_max as usize)?);
        desks.push(Arc::new(Desk::new(bell, mail, config.rings_max, rails.len())));
    }
    let impound = Arc::new(Impound::default());
    let marks = Arc::default();
    let rail_shared = |index| {
        Arc::new(RailShared {
            counters: RailCounters::default(),
            state: RailState::new(index, &marks),
            impound: Arc::clone(&impound),
            link: Mutex::default(),
        })
    };
    let shared = Arc::new(Shared::new(SharedParts {
        config,
        clock,
        controls: rails.iter().map(|rail| Arc::clone(&rail.control)).collect(),
        regions,
        desks: desks.into(),
        rails: (0..rails.len()).map(rail_shared).collect(),
        route: rails.iter().map(|r| u16::try_from(r.poller).expect("at most 64")).collect(),
        staging: facts.iter().map(|facts| facts.staging.clone()).collect(),
        places,
        impound,
        marks: Arc::clone(&marks),
    }));
    for region in &staged {
        shared.register(region)?;
    }
    let pollers = make_pollers(rails, &shared, &facts, homes, pieces);
    Ok(Assembled { shared, pollers })
}

fn make_pollers<L: Link>(
    rails: Vec<Rail<L>>,
    shared: &Arc<Shared>,
    facts: &[RailFacts],
    homes: usize,
    pieces: u32,
) -> Vec<Poller<L>> {
    let mut ports: Vec<Vec<Port<L>>> = (0..homes).map(|_| Vec::new()).collect();
    for (index, rail) in rails.into_iter().enumerate() {
        let number = u16::try_from(index).expect("at most 64 rails");
        let of_rail = Arc::clone(&shared.rails[index]);
        let port = Port::new(number, rail.link, &shared.config, homes, pieces, of_rail);
        ports[rail.poller as usize].push(port);
    }
    let now = shared.clock.now();
    ports
        .into_iter()
        .enumerate()
        .map(|(index, ports)| {
            let index = u16::try_from(index).expect("at most 64 pollers");
            let home = Home::new(index, Arc::clone(shared), facts, now);
            Poller::new(index, Arc::clone(shared), home, ports)
        })
        .collect()
}
