//! A simulated world: one seed, one clock, one set of sources, any number of rails.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::simulated::clock::VirtualClock;
use crate::simulated::config::{SimConfigError, SimRailConfig};
use crate::simulated::control::{RailShared, SimControl};
use crate::simulated::late::KnownRegions;
use crate::simulated::link::SimLink;
use crate::simulated::store::{ObjectStore, SourceContent};

/// Makes simulated rails that share their sources and their clock. The same seed and the same calls
/// give the same run, bit for bit; a rail's random numbers do not depend on the other rails.
///
/// ```
/// use railring_sim::{SimRailConfig, SimWorld, SourceContent};
/// use railring_transport::{RailControl, SourceRef};
///
/// let mut world = SimWorld::new(42);
/// world.put("server0", "object", SourceContent::new(1, vec![7; 1 << 20]));
/// let (control, link) = world.add_rail(SimRailConfig::new("rail0"))?;
/// let source = SourceRef { endpoint: "server0", handle: "object", generation: 1 };
/// let target = control.connect(source)?;
/// # let _ = (link, target);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SimWorld {
    seed: u64,
    clock: VirtualClock,
    store: Arc<ObjectStore>,
    names: BTreeSet<String>,
    regions: KnownRegions,
}

impl SimWorld {
    /// An empty world at time 0.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SimWorld {
            seed,
            clock: VirtualClock::default(),
            store: Arc::default(),
            names: BTreeSet::new(),
            regions: KnownRegions::default(),
        }
    }

    /// What all its randomness comes from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Its clock; clone it to keep it. The rails go by the `now` they are given, not by the clock.
    #[must_use]
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// Lets `handle` at `endpoint` hold `content`, instead of what it held.
    pub fn put(&self, endpoint: &str, handle: &str, content: SourceContent) {
        self.store.put(endpoint, handle, content);
    }

    /// Lets `handle` at `endpoint` hold nothing. Rails that are connected to it answer `NOT_FOUND`.
    pub fn remove(&self, endpoint: &str, handle: &str) {
        self.store.remove(endpoint, handle);
    }

    /// Says where the memory is that a late write lands in. Needed before the first late write;
    /// the first call counts.
    #[cfg(feature = "fault")]
    pub fn late_writes_into(&self, regions: &railring_dma::Regions) {
        self.regions.set(regions.clone());
    }

    /// Both halves of a new rail.
    ///
    /// # Errors
    /// One [`SimConfigError`] per thing in `config` that makes no sense, or a name that is taken.
    pub fn add_rail(
        &mut self,
        config: SimRailConfig,
    ) -> Result<(Arc<SimControl>, SimLink), SimConfigError> {
        config.check()?;
        if !self.names.insert(config.name.clone()) {
            return Err(SimConfigError::NameTaken { rail: config.name });
        }
        let store = Arc::clone(&self.store);
        let shared = Arc::new(RailShared::new(config, store, self.regions.clone()));
        let link = SimLink::new(Arc::clone(&shared), self.seed);
        Ok((Arc::new(SimControl::new(shared)), link))
    }
}
