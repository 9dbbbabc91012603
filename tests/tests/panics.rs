//! Pollers that panic: their reads fail, and nobody else's do.

mod scene;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use railring_core::{
    Completion, EngineBuilder, EngineConfig, InlineEngine, Object, PoolConfig, Progress, PushError,
    Rail, RailHealth, Read, Ring, RingConfig,
};
use railring_dma::Pool;
use railring_sim::{FaultPlan, SimLink, SimWorld};
use railring_tests::objects::{self, Known};
use railring_transport::{
    Completion as Reaped, Link, LinkLimits, LinkStats, Nanos, RailControl, Refused, WorkRequest,
    WrId,
};
use scene::{KIB, MS, START, config, rail, shape};
use sq_cq::Status;

/// A link that panics at one of its calls, and at each after it if it is `spoilt` by that.
struct Panics {
    inner: SimLink,
    calls_left: Arc<AtomicU32>,
    spoilt: bool,
}

impl Panics {
    fn call(&self) {
        let left = self.calls_left.load(Ordering::Relaxed);
        let next = if left == 1 && self.spoilt { 1 } else { left.saturating_sub(1) };
        self.calls_left.store(next, Ordering::Relaxed);
        assert!(left != 1, "this link panics, as the test wants it");
    }
}

impl Link for Panics {
    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        self.call();
        self.inner.queue(request)
    }
    fn commit(&mut self, now: Nanos) {
        self.call();
        self.inner.commit(now);
    }
    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Reaped)) -> usize {
        self.call();
        self.inner.reap(now, budget, sink)
    }
    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.call();
        self.inner.cancel(wr, now);
    }
    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.call();
        self.inner.quiesce(wr, now);
    }
    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }
    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

/// Panics that are wanted are not shown.
fn hush() {
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.to_string().contains("as the test wants it") {
            show(panic);
        }
    }));
}

/// Three rails of a poller each; the second panics at call `calls`. A ring at each poller.
struct Stage {
    _world: SimWorld,
    engine: InlineEngine<Panics>,
    rings: Vec<Ring>,
    pool: Pool,
    object: Object,
    known: Known,
    now: Nanos,
}

impl Stage {
    fn new(calls: u32, spoilt: bool) -> Stage {
        let mut world = SimWorld::new(7);
        let mut rails = Vec::new();
        for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
            let made = world.add_rail(rail(name, FaultPlan::none()));
            let (control, inner) = made.expect("a sensible rail");
            let bad = index == 1;
            let calls_left = Arc::new(AtomicU32::new(if bad { calls } else { 0 }));
            let link = Panics { inner, calls_left, spoilt: bad && spoilt };
            let poller = u32::try_from(index).expect("few");
            rails.push(Rail { control: control as Arc<dyn RailControl>, link, poller });
        }
        let mut config = EngineConfig { piece_bytes_max: 64 * KIB, ..config() };
        // Room that is not given back is missed where there is little.
        config.limits.pieces_max = if calls % 2 == 1 { 1 } else { u32::MAX };
        let builder = EngineBuilder::new(rails).config(config);
        let engine = builder.build_virtual(START).expect("an engine");
        let known = objects::put(&world, "x", shape(4, 128 * KIB, 1), &["server0".to_owned()], 3);
        let object = engine.open(&known.placement).expect("opens");
        let memory = PoolConfig { slots: 12, slot_bytes: 512 << 10, ..PoolConfig::default() };
        let pool = engine.buffer_pool(memory).expect("a pool");
        let ring = |poller| {
            let config = RingConfig { poller: Some(poller), ..RingConfig::default() };
            engine.ring(config).expect("a ring")
        };
        let rings = (0..3).map(ring).collect();
        Stage { _world: world, engine, rings, pool, object, known, now: START }
    }

    /// Pushes four reads to each ring, and makes turns until all have ended; gives the last CQEs of
    /// each ring.
    fn play(&mut self) -> Vec<Vec<Completion>> {
        for ring in &mut self.rings {
            for _ in 0..4 {
                let lease = self.pool.take().expect("a lease");
                let read = Read::new(&self.object, 0..self.object.len(), lease);
                ring.push(read).expect("accepted");
            }
            ring.submit();
        }
        let mut ends: Vec<Vec<Completion>> = (0..3).map(|_| Vec::new()).collect();
        while ends.iter().any(|ends| ends.len() < 4) {
            let left: Vec<_> = ends.iter().map(Vec::len).collect();
            assert!(self.now < START.after(1000 * MS), "only {left:?} have ended");
            let turns = (0..3).map(|poller| self.engine.turn_poller_at(poller, self.now));
            if turns.collect::<Vec<_>>().contains(&Progress::Worked) {
                self.now = self.now.after(100);
            } else {
                self.now = self.engine.next_event().max(self.now.after(1)).min(self.now.after(MS));
            }
            for (ring, ends) in self.rings.iter_mut().zip(&mut ends) {
                while let Some(cqe) = ring.pop() {
                    if cqe.ended().is_some() {
                        ends.push(cqe);
                    }
                }
            }
        }
        ends
    }
}

/// Wherever its link panics, a poller fails its own reads, and those of others come to their end
/// over other rails; what a device might still write is not given back, and nothing else is kept.
#[test]
fn others_reads_end_well_wherever_a_poller_panics() {
    hush();
    let (mut panicked, mut stuck_in_all) = (0, 0);
    for spoilt in [false, true] {
        for calls in (2..100).chain([150, 200]) {
            let mut stage = Stage::new(calls, spoilt);
            let ends = stage.play();
            let failed = stage.engine.stats().failed_pollers;
            panicked += failed;
            let mut stuck = 0;
            let at = format!("call {calls}, spoilt: {spoilt}");
            for (poller, ends) in ends.into_iter().enumerate() {
                for cqe in ends {
                    let status = cqe.ended().expect("a last CQE");
                    match (poller, status) {
                        (_, Status::OK) => {
                            let lease = cqe.into_lease().expect("it comes back");
                            assert_eq!(
                                &lease.as_slice()[..512 << 10],
                                &stage.known.bytes[..],
                                "{at}"
                            );
                        }
                        (1, Status::ENGINE_FAILED) if failed == 1 => {}
                        (_, Status::STUCK) if failed == 1 => stuck += 1,
                        (poller, status) => panic!("{at}: a read of poller {poller}: {status}"),
                    }
                }
            }
            // What was being passed to the link when it panicked is lost in its unwinding.
            assert!(spoilt || stuck <= 1, "{at}: {stuck} reads are stuck");
            stuck_in_all += stuck;
            for _ in 0..100 {
                stage.now = stage.now.after(MS);
                for poller in 0..3 {
                    stage.engine.turn_poller_at(poller, stage.now);
                }
            }
            let stats = stage.engine.rail_stats();
            let health = if failed == 1 { RailHealth::Failed } else { RailHealth::Up };
            assert_eq!(stats[1].health, health, "{at}");
            assert!([0, 2].iter().all(|&rail| stats[rail].in_flight == 0), "{at}");
            if failed == 1 {
                let refused = stage.rings[0].push(Read::nop()).expect_err("the engine has failed");
                assert_eq!(refused.why, PushError::EngineGone);
            }
        }
    }
    println!("{panicked} panics, {stuck_in_all} reads stuck");
    assert!(panicked > 150, "only {panicked} runs had a panic");
    assert!(stuck_in_all > 10, "a spoilt link never held anything");
}

/// The same with threads: the engine lives on, and ends when it is dropped.
#[test]
fn a_thread_that_panics_takes_no_other_with_it() {
    hush();
    for spoilt in [false, true] {
        let mut world = SimWorld::new(7);
        let mut rails = Vec::new();
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            let made = world.add_rail(rail(name, FaultPlan::none()));
            let (control, inner) = made.expect("a sensible rail");
            let calls_left = Arc::new(AtomicU32::new(if index == 1 { 40 } else { 0 }));
            let link = Panics { inner, calls_left, spoilt: spoilt && index == 1 };
            let poller = u32::try_from(index).expect("few");
            rails.push(Rail { control: control as Arc<dyn RailControl>, link, poller });
        }
        let engine = EngineBuilder::new(rails).build().expect("an engine");
        let known = objects::put(&world, "x", shape(16, 256 * KIB, 1), &["server0".to_owned()], 3);
        let object = engine.open(&known.placement).expect("opens");
        let memory = PoolConfig { slots: 4, slot_bytes: 4 << 20, ..PoolConfig::default() };
        let pool = engine.buffer_pool(memory).expect("a pool");
        let rings = RingConfig { poller: Some(0), ..RingConfig::default() };
        let mut ring = engine.ring(rings).expect("a ring");
        let (mut ended, mut stuck) = (0, 0);
        for _ in 0..4 {
            let lease = pool.take().expect("a lease");
            if ring.push(Read::new(&object, 0..object.len(), lease)).is_err() {
                assert!(engine.has_failed());
                break;
            }
            ring.submit();
            ended += 1;
        }
        // Time in simulated rails is that of turns, which is real here.
        while ring.in_flight() > 0 {
            ring.wait(1, Duration::from_secs(20)).expect("its poller lives");
            while let Some(cqe) = ring.pop() {
                let status = cqe.ended().unwrap_or(Status::OK);
                assert!(status.is_ok() || status == Status::STUCK, "{status}");
                stuck += u32::from(status == Status::STUCK && cqe.ended().is_some());
            }
        }
        // What was being passed to the link when it panicked is lost in its unwinding.
        assert!(spoilt || stuck <= 1, "{stuck} reads are stuck");
        assert!(ended > 0 && engine.has_failed());
        drop(engine);
    }
}
