//! Open objects: a placement validated once, with its sources connected over the rails.

use std::fmt;
use std::sync::Arc;

use railring_catalog::{PlacementError, ValidPlacement};
use railring_transport::{ConnectError, RailControl, TargetId};
use sq_cq::Handle;

use crate::plan::Layout;
use crate::schedule::RailMask;
use crate::shared::Shared;

/// Why an object could not be opened. Nothing stays connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The placement contradicts itself.
    #[error(transparent)]
    InvalidPlacement(#[from] PlacementError),
    /// No stripe has an owner on any endpoint that a rail reaches.
    #[error(
        "no rail reaches an owner of any stripe (the first, {stripe}, is at {endpoint}): {why}; \
         add a rail to it"
    )]
    NoRail {
        /// The first such stripe.
        stripe: u32,
        /// The endpoint of its first owner.
        endpoint: String,
        /// What the rails that serve the endpoint answered, if any does.
        why: String,
    },
    /// Every owner's source is gone: the placement is old.
    #[error("the placement of generation {generation} is stale: {source}")]
    Stale {
        /// The generation that was to be opened.
        generation: u64,
        /// What a rail answered.
        source: ConnectError,
    },
    /// As many objects as configured are open.
    #[error("{limit} objects are open already (objects_max); close one first")]
    TooManyObjects {
        /// The limit.
        limit: u32,
    },
    /// As many targets as configured are connected.
    #[error("{limit} targets are connected already (limits.connections_max); close an object")]
    TooManyConnections {
        /// The limit.
        limit: u32,
    },
    /// The engine is shutting down, or a poller of it has panicked.
    #[error("the engine is shutting down, or a poller of it has failed; build a new one")]
    ShuttingDown,
}

/// An open object. Cheap to clone, `Send + Sync`; closed when the last clone is dropped and the
/// last read of it has ended.
#[derive(Clone)]
pub struct Object {
    pub(crate) opened: Arc<Opened>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("key", self.opened.inner.placement.key())
            .field("generation", &self.opened.inner.placement.generation())
            .field("handle", &self.opened.inner.handle)
            .finish()
    }
}

impl Object {
    /// Size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an object's length is its size in bytes")]
    pub fn len(&self) -> u64 {
        self.opened.inner.layout.size_bytes
    }

    /// Stripes it is cut into; none if it is empty.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        self.opened.inner.placement.stripe_count()
    }

    /// Stripes that no rail reaches an owner of, as it was when the object was opened: reads of
    /// them end as `Status::NO_RAIL`, all others can be read.
    #[must_use]
    pub fn unreachable_stripes(&self) -> u32 {
        self.opened.inner.unreached
    }

    /// The validated placement.
    #[must_use]
    pub fn placement(&self) -> &ValidPlacement {
        &self.opened.inner.placement
    }

    /// The handle that goes onto the ring.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.opened.inner.handle
    }
}

/// What all clones of an [`Object`] share; its drop asks the pollers to let go.
pub(crate) struct Opened {
    pub(crate) inner: Arc<ObjectInner>,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shared.close_object(self.inner.handle);
    }
}

/// The immutable part, held by the caller's handles and by every poller.
pub(crate) struct ObjectInner {
    pub(crate) handle: Handle,
    pub(crate) placement: ValidPlacement,
    pub(crate) layout: Layout,
    /// Rails that reach each source.
    reach: Vec<RailMask>,
    /// Rails that prefer each source under endpoint affinity.
    prefer: Vec<RailMask>,
    /// Target of source `s` on rail `r` at `s * rails + r`.
    targets: Vec<Option<TargetId>>,
    controls: Arc<[Arc<dyn RailControl>]>,
    connections: u32,
    /// Stripes that no rail reaches an owner of.
    unreached: u32,
}

/// One way to a stripe: which owner, connected how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) target: TargetId,
    pub(crate) offset: u64,
    pub(crate) table_offset: u64,
}

impl ObjectInner {
    /// Connects every source over every rail that reaches it.
    pub(crate) fn connect(
        handle: Handle,
        placement: ValidPlacement,
        controls: &Arc<[Arc<dyn RailControl>]>,
        pinned: &[(String, String)],
    ) -> Result<Self, OpenError> {
        let layout = Layout {
            size_bytes: placement.size_bytes(),
            stripe_bytes: placement.stripe_bytes(),
            block_bytes: placement.block_bytes().into(),
        };
        let sources = placement.sources().len();
        let mut inner = ObjectInner {
            handle,
            placement,
            layout,
            reach: vec![RailMask::default(); sources],
            prefer: vec![RailMask::default(); sources],
            targets: vec![None; sources * controls.len()],
            controls: Arc::clone(controls),
            connections: 0,
            unreached: 0,
        };
        let refused = inner.connect_sources(pinned);
        inner.check_reach(refused)?;
        Ok(inner)
    }

    fn connect_sources(&mut self, pinned: &[(String, String)]) -> Vec<Option<ConnectError>> {
        let rails = self.controls.len();
        let mut refused: Vec<Option<ConnectError>> = Vec::new();
        for (index, source) in self.placement.sources().iter().enumerate() {
            let mut last = None;
            for (rail, control) in self.controls.iter().enumerate() {
                if !control.reaches(&source.endpoint) {
                    continue;
                }
                let wanted = railring_transport::SourceRef {
                    endpoint: &source.endpoint,
                    handle: &source.handle,
                    generation: self.placement.generation(),
                };
                match control.connect(wanted) {
                    Ok(target) => {
                        self.targets[index * rails + rail] = Some(target);
                        self.reach[index] = self.reach[index].with(RailMask::of(rail));
                        self.connections += 1;
                    }
                    Err(error) => last = Some(error),
                }
                let name = control.info().name;
                if pinned.iter().any(|(endpoint, to)| *endpoint == source.endpoint && *to == name) {
                    self.prefer[index] = self.prefer[index].with(RailMask::of(rail));
                }
            }
            refused.push(last);
        }
        refused
    }

    /// Some stripe must be readable over some rail, and none may be out of reach because the
    /// placement is old. The others fail when they are read.
    fn check_reach(&mut self, mut refused: Vec<Option<ConnectError>>) -> Result<(), OpenError> {
        let stripes = self.placement.stripe_count();
        let unreached = || (0..stripes).filter(|&stripe| self.rails(stripe).is_empty());
        let Some(stripe) = unreached().next() else { return Ok(()) };
        let is_stale = |error: &ConnectError| matches!(error, ConnectError::Stale { .. });
        let stale = unreached()
            .flat_map(|stripe| self.placement.owners(stripe))
            .find(|owner| refused[usize::from(owner.source)].as_ref().is_some_and(is_stale));
        if let Some(source) = stale.and_then(|owner| refused[usize::from(owner.source)].take()) {
            return Err(OpenError::Stale { generation: self.placement.generation(), source });
        }
        let count = unreached().count();
        let owners = self.placement.owners(stripe);
        let error = owners.iter().find_map(|owner| refused[usize::from(owner.source)].take());
        let why = error.map_or_else(|| "no rail serves it".to_owned(), |e| e.to_string());
        let endpoint = self.placement.sources()[usize::from(owners[0].source)].endpoint.clone();
        if count == stripes as usize {
            return Err(OpenError::NoRail { stripe, endpoint, why });
        }
        tracing::warn!(stripe, count, endpoint, why, "stripes of an object are out of reach");
        self.unreached = u32::try_from(count).expect("at most 65,535 stripes");
        Ok(())
    }

    /// Targets this object holds, over all rails.
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }

    /// Rails that reach an owner of stripe `index`.
    #[inline]
    pub(crate) fn rails(&self, index: u32) -> RailMask {
        self.placement.owners(index).iter().fold(RailMask::default(), |mask, owner| {
            mask.with(self.reach[usize::from(owner.source)])
        })
    }

    /// How stripe `index` is got at, if there is one way only: one owner, and one rail to it.
    #[inline(always)]
    pub(crate) fn only_path(&self, index: u32) -> Option<(usize, Path)> {
        let [owner] = self.placement.owners(index) else { return None };
        let source = usize::from(owner.source);
        let reach = self.reach[source];
        if reach.count() != 1 {
            return None;
        }
        let rail = reach.0.trailing_zeros() as usize;
        let target = self.targets[source * self.controls.len() + rail]?;
        Some((rail, Path { target, offset: owner.offset, table_offset: owner.table_offset }))
    }

    /// Rails that endpoint affinity prefers for stripe `index`: pinned ones, else those that the
    /// first owner is nearest to.
    pub(crate) fn preferred(&self, index: u32) -> RailMask {
        let owners = self.placement.owners(index);
        let pinned = owners
            .iter()
            .fold(RailMask::default(), |mask, o| mask.with(self.prefer[usize::from(o.source)]));
        if pinned.is_empty() { self.reach[usize::from(owners[0].source)] } else { pinned }
    }

    /// How rail `rail` gets at stripe `index`. `attempt` rotates through the owners it reaches.
    #[inline]
    pub(crate) fn path(&self, index: u32, rail: usize, attempt: u8) -> Option<Path> {
        let owners = self.placement.owners(index);
        let rails = self.controls.len();
        let reached =
            |owner: &&railring_catalog::Owner| self.reach[usize::from(owner.source)].contains(rail);
        let owner = if let [only] = owners {
            only // Its target says whether the rail reaches it.
        } else {
            let count = owners.iter().filter(reached).count().max(1);
            owners.iter().filter(reached).nth(usize::from(attempt) % count)?
        };
        let target = self.targets[usize::from(owner.source) * rails + rail]?;
        Some(Path { target, offset: owner.offset, table_offset: owner.table_offset })
    }
}

impl Drop for ObjectInner {
    /// Disconnecting may block, so pollers never drop the last reference: they hand theirs to the
    /// graveyard of [`Shared`].
    fn drop(&mut self) {
        let rails = self.controls.len();
        for (index, target) in self.targets.iter().enumerate() {
            if let Some(target) = target {
                self.controls[index % rails].disconnect(*target);
            }
        }
    }
}

impl fmt::Debug for ObjectInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectInner").field("handle", &self.handle).finish_non_exhaustive()
    }
}
