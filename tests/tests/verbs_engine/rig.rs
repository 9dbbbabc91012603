//! What these tests share: an engine over one verbs rail, a peer with an object, a ring.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use railring::{
    AnyLink, Engine, EngineConfig, InlineEngine, Lease, Object, Placement, Pool, PoolConfig,
    RailSet, RailStats, Read, Ring, RingConfig, Waiting,
};
use railring_core::{Completion, EngineBuilder, Rail};
use railring_tests::guest;
use railring_tests::memory_peer::{MemoryPeer, PeerConfig};
use railring_tests::objects::{self, Known, Shape};
use railring_verbs::{VerbsControl, VerbsRail, VerbsRailOptions};

pub(crate) const DEVICE: &str = "rxe0";
pub(crate) const STRIPE: u64 = 65_536;
/// Eight stripes and a byte, in blocks of 4 KiB.
pub(crate) const SHAPE: Shape =
    Shape { size_bytes: 8 * STRIPE + 1, stripe_bytes: STRIPE, block_bytes: 4096, copies: 1 };
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Who makes the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Thread,
    Caller,
}

/// An engine of either kind.
#[derive(Debug)]
pub(crate) enum Driven {
    /// Built by the facade.
    Threads(Engine),
    /// Built from its parts, for what the facade hides.
    Parts(railring_core::Engine),
    Inline(InlineEngine),
}

macro_rules! each {
    ($self:expr, $engine:ident => $call:expr) => {
        match $self {
            Driven::Threads($engine) => $call,
            Driven::Parts($engine) => $call,
            Driven::Inline($engine) => $call,
        }
    };
}

impl Driven {
    pub(crate) fn open(&self, placement: &Placement) -> Object {
        each!(self, engine => engine.open(placement)).expect("it opens")
    }

    pub(crate) fn try_open(&self, placement: &Placement) -> Result<Object, String> {
        each!(self, engine => engine.open(placement)).map_err(|error| error.to_string())
    }

    pub(crate) fn pool(&self, slots: usize, slot_bytes: usize) -> Pool {
        let memory = PoolConfig { slots, slot_bytes, ..PoolConfig::default() };
        each!(self, engine => engine.buffer_pool(memory)).expect("a pool")
    }

    pub(crate) fn ring(&self) -> Ring {
        each!(self, engine => engine.ring(RingConfig::default())).expect("a ring")
    }

    pub(crate) fn rail(&mut self) -> RailStats {
        // The first asks, a turn answers, the second is told.
        let _ = each!(self, engine => engine.rail_stats());
        match self {
            Driven::Inline(engine) => _ = engine.turn(),
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
        each!(self, engine => engine.rail_stats()).remove(0)
    }

    pub(crate) fn wait(&mut self, ring: &mut Ring, timeout: Duration) -> usize {
        match self {
            Driven::Inline(engine) => engine.wait(ring, 1, timeout),
            _ => ring.wait(1, timeout),
        }
        .expect("the engine lives")
    }
}

/// Everything for reading one object over one verbs rail.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) ring: Ring,
    pub(crate) pool: Pool,
    pub(crate) object: Object,
    pub(crate) driven: Driven,
    pub(crate) control: Option<Arc<VerbsControl>>,
    pub(crate) known: Known,
    pub(crate) peer: MemoryPeer,
}

/// A peer that holds the object of this name; none outside of the guest.
pub(crate) fn peer(test: &str, name: &str) -> Option<(MemoryPeer, Known)> {
    guest::rails(test)?;
    let peer = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("a peer starts");
    let known = put(&peer, name);
    Some((peer, known))
}

/// An object with bytes of its own at `peer`.
pub(crate) fn put(peer: &MemoryPeer, name: &str) -> Known {
    let seed = name.bytes().map(u64::from).sum();
    let (known, files) = objects::build(name, SHAPE, &[peer.endpoint()], seed);
    let placement = &known.placement;
    peer.put(&placement.handle, placement.generation, &files[0]).expect("it is registered");
    known
}

pub(crate) fn options() -> VerbsRailOptions {
    VerbsRailOptions::new(DEVICE)
}

/// Failures are told early.
pub(crate) fn hasty() -> EngineConfig {
    EngineConfig {
        io_timeout: Duration::from_millis(400),
        cancel_grace: Duration::from_millis(20),
        quiet_bound: Duration::from_secs(2),
        ..EngineConfig::default()
    }
}

/// As users build one.
pub(crate) fn engine(who: Who, options: VerbsRailOptions, config: EngineConfig) -> Driven {
    let builder = Engine::builder().rails(RailSet::new().verbs(options).expect("a rail"));
    let builder = builder.config(config);
    match who {
        Who::Thread => Driven::Threads(builder.build().expect("it starts")),
        Who::Caller => Driven::Inline(builder.build_inline().expect("it starts")),
    }
}

impl Rig {
    pub(crate) fn new(driven: Driven, peer: MemoryPeer, known: Known) -> Rig {
        let object = driven.open(&known.placement);
        let (pool, ring) = (driven.pool(16, 1 << 20), driven.ring());
        Rig { ring, pool, object, driven, control: None, known, peer }
    }

    /// With the rail's control half at hand.
    pub(crate) fn from_parts(
        options: VerbsRailOptions,
        config: EngineConfig,
        peer: MemoryPeer,
        known: Known,
    ) -> Rig {
        let (control, link) = VerbsRail::open(options).expect("a rail");
        let link = AnyLink::Verbs(Box::new(link));
        let rail = Rail { control: control.clone(), link, poller: 0 };
        let engine = EngineBuilder::new(vec![rail]).config(config).build().expect("it starts");
        let mut rig = Rig::new(Driven::Parts(engine), peer, known);
        rig.control = Some(control);
        rig
    }

    pub(crate) fn lease(&self) -> Lease {
        self.pool.take().expect("a lease")
    }

    /// All CQEs of one read.
    pub(crate) fn read(
        &mut self,
        range: std::ops::Range<u64>,
        make: impl FnOnce(Read<'_>) -> Read<'_>,
    ) -> Vec<Completion> {
        let lease = self.lease();
        self.ring.push(make(Read::new(&self.object, range, lease))).expect("it fits");
        self.finish()
    }

    /// All CQEs of everything in flight.
    pub(crate) fn finish(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        while self.ring.in_flight() > 0 {
            assert!(self.driven.wait(&mut self.ring, PATIENCE) > 0, "nothing came back");
            all.extend(std::iter::from_fn(|| self.ring.pop()));
        }
        all
    }

    /// The object is read whole, verified, and right.
    pub(crate) fn is_right(&mut self) {
        let mut all = self.read(0..self.object.len(), |read| read);
        assert!(all.iter().all(|completion| completion.status().is_ok()), "{all:?}");
        let lease = all.pop().and_then(Completion::into_lease).expect("the last brings it");
        assert!(lease.as_slice()[..self.known.bytes.len()] == self.known.bytes, "bytes differ");
    }
}

/// A rail that polls, or one that sleeps as soon as it can, with an engine that does likewise.
pub(crate) fn waiting(rail: railring_verbs::Waiting) -> (VerbsRailOptions, EngineConfig) {
    let waiting = match rail {
        railring_verbs::Waiting::Polling => Waiting::Busy,
        railring_verbs::Waiting::Adaptive => Waiting::Adaptive { spin: Duration::ZERO },
    };
    let config = EngineConfig { waiting, ..EngineConfig::default() };
    (VerbsRailOptions { waiting: rail, ..options() }, config)
}

/// Runs ip(8), which the guest has.
pub(crate) fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("the guest has it");
    assert!(status.success(), "ip {arguments:?}: {status}");
}
