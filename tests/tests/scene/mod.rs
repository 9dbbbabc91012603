//! An engine over simulated rails with one ring and one pool, in virtual time: what scenes play on.

#![allow(dead_code, reason = "each test file plays on a part of it")]

use std::sync::Arc;
use std::time::Duration;

use railring_core::{
    Completion, EngineBuilder, EngineConfig, InlineEngine, Object, PoolConfig, Progress, Rail,
    RailHealth, Read, Ring, RingConfig,
};
use railring_dma::Pool;
use railring_sim::{Fault, FaultPlan, Latency, SimControl, SimLink, SimRailConfig, SimWorld, When};
use railring_tests::objects::{self, Known, Shape};
use railring_transport::{Nanos, RailControl};
use sq_cq::Status;

pub(crate) const START: Nanos = Nanos(1_000_000_000);
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const KIB: u64 = 1024;

/// An engine over simulated rails with one ring, one pool, and time.
pub(crate) struct Scene {
    pub(crate) world: SimWorld,
    pub(crate) engine: InlineEngine<SimLink>,
    pub(crate) controls: Vec<Arc<SimControl>>,
    pub(crate) ring: Ring,
    pub(crate) pool: Pool,
    pub(crate) now: Nanos,
}

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        io_timeout: Duration::from_millis(10),
        cancel_grace: Duration::from_millis(2),
        quiet_bound: Duration::from_millis(10),
        cooldown: Duration::from_millis(5),
        ..EngineConfig::default()
    }
}

/// A rail with 1 GB/s, 10 us, and this to go wrong.
pub(crate) fn rail(name: &str, faults: FaultPlan) -> SimRailConfig {
    let mut rail = SimRailConfig::new(name);
    rail.bandwidth_bytes_per_second = 1_000_000_000;
    rail.latency = Latency::Fixed { latency_ns: 10_000 };
    rail.faults = faults;
    rail
}

pub(crate) fn fault(fault: Fault, when: When) -> FaultPlan {
    FaultPlan::none().with(fault, when)
}

pub(crate) fn shape(stripes: u64, stripe_bytes: u64, copies: usize) -> Shape {
    Shape { size_bytes: stripes * stripe_bytes, stripe_bytes, block_bytes: 4096, copies }
}

impl Scene {
    pub(crate) fn new(rails: Vec<SimRailConfig>, config: EngineConfig) -> Self {
        Scene::with_leases(rails, config, 8, 1 << 20)
    }

    pub(crate) fn with_leases(
        rails: Vec<SimRailConfig>,
        config: EngineConfig,
        slots: usize,
        slot_bytes: usize,
    ) -> Self {
        Scene::spread(rails, &[], config, slots, slot_bytes)
    }

    /// With rail `i` on poller `pollers[i]`, or all on poller 0; the ring is at home there.
    pub(crate) fn spread(
        rails: Vec<SimRailConfig>,
        pollers: &[u32],
        config: EngineConfig,
        slots: usize,
        slot_bytes: usize,
    ) -> Self {
        let mut world = SimWorld::new(7);
        let (mut built, mut controls) = (Vec::new(), Vec::new());
        for (index, rail) in rails.into_iter().enumerate() {
            let (control, link) = world.add_rail(rail).expect("a sensible rail");
            controls.push(Arc::clone(&control));
            let poller = pollers.get(index).copied().unwrap_or(0);
            built.push(Rail { control: control as Arc<dyn RailControl>, link, poller });
        }
        let builder = EngineBuilder::new(built).config(config);
        let engine = builder.build_virtual(START).expect("a sensible engine");
        let pool = PoolConfig { slots, slot_bytes, ..PoolConfig::default() };
        let pool = engine.buffer_pool(pool).expect("a pool");
        let ring = engine.ring(RingConfig::default()).expect("a ring");
        Scene { world, engine, controls, ring, pool, now: START }
    }

    /// An object at servers 0, 1, ...
    pub(crate) fn object(
        &self,
        name: &str,
        shape: Shape,
        servers: std::ops::Range<usize>,
    ) -> (Object, Known) {
        let endpoints: Vec<String> = servers.map(|index| format!("server{index}")).collect();
        let known = objects::put(&self.world, name, shape, &endpoints, 3);
        (self.engine.open(&known.placement).expect("opens"), known)
    }

    pub(crate) fn push(&mut self, read: Read<'_>) -> sq_cq::ReadId {
        let id = self.ring.push(read).expect("accepted");
        self.ring.submit();
        id
    }

    pub(crate) fn whole<'o>(&self, object: &'o Object) -> Read<'o> {
        Read::new(object, 0..object.len(), self.pool.take().expect("a lease"))
    }

    /// One turn, or a step in time; `false` if nothing will happen any more.
    pub(crate) fn step(&mut self) -> bool {
        if self.engine.turn_at(self.now) == Progress::Worked {
            return true;
        }
        let next = self.engine.next_event();
        if next != Nanos::NEVER {
            self.now = Nanos(next.0.max(self.now.0 + 1));
        }
        next != Nanos::NEVER
    }

    /// Runs until `time` has passed since the start.
    pub(crate) fn run_to(&mut self, nanoseconds: u64) {
        let end = START.after(nanoseconds);
        while self.engine.turn_at(self.now) == Progress::Worked || self.engine.next_event() <= end {
            self.now = self.now.max(self.engine.next_event().min(end));
        }
        self.now = end;
        while self.engine.turn_at(self.now) == Progress::Worked {}
    }

    pub(crate) fn next(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.ring.pop() {
                return completion;
            }
            assert!(self.step(), "nothing will ever happen, and a completion is due");
        }
    }

    /// All CQEs up to the end of one read, which is the only one.
    pub(crate) fn finish(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        loop {
            let completion = self.next();
            let last = completion.ended().is_some();
            all.push(completion);
            if last {
                return all;
            }
        }
    }

    /// Reads all of an object; gives its status and the most attempts of a stripe.
    pub(crate) fn read(&mut self, object: &Object) -> (Status, u8) {
        let read = self.whole(object);
        self.push(read);
        let cqes = self.finish();
        let attempts = cqes.iter().map(|cqe| cqe.attempts()).max().unwrap_or(0);
        (cqes.last().and_then(|cqe| cqe.ended()).expect("ended"), attempts)
    }

    pub(crate) fn health(&self, rail: usize) -> RailHealth {
        self.engine.rail_stats()[rail].health
    }
}
