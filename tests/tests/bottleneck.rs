//! Where the time of reads goes: stage times add up, and each bottleneck is called by its name.

mod scene;

use std::sync::Arc;

use railring_core::{
    Bottleneck, ClassStats, EngineBuilder, EngineConfig, EngineStats, Hashing, PoolConfig,
    Progress, Rail, Read, ReadClass, RingConfig,
};
use railring_dma::{Region, RegionId};
use railring_sim::{FaultPlan, SimControl, SimWorld};
use railring_tests::objects;
use railring_transport::{
    ConnectError, ControlStats, RailControl, RailInfo, RailKind, RegisterError, SourceRef, TargetId,
};
use scene::{KIB, MS, START, Scene, config, rail, shape};
use sq_cq::Status;

/// The one class that reads were of; its stages add up to its time, exactly.
fn class_of(classes: &[ClassStats]) -> ClassStats {
    let used: Vec<&ClassStats> = classes.iter().filter(|class| class.reads > 0).collect();
    let [class] = used[..] else { panic!("reads of several classes: {classes:?}") };
    let sum =
        class.scheduling_ns + class.queue_ns + class.wire_ns + class.disk_ns + class.verify_ns;
    assert_eq!(sum, class.wall_ns, "{class:?}");
    *class
}

#[test]
fn a_network_that_is_slower_than_everything_else_is_the_bottleneck() {
    let rails = vec![rail("a", FaultPlan::none()), rail("b", FaultPlan::none())];
    let mut scene = Scene::with_leases(rails, config(), 1, 8 << 20);
    let (object, _) = scene.object("x", shape(4, 2048 * KIB, 2), 0..2);
    let start = scene.now;
    for _ in 0..3 {
        assert_eq!(scene.read(&object).0, Status::OK);
    }
    let class = class_of(&scene.engine.stats().classes);
    assert_eq!((class.reads, class.bytes), (3, 24 << 20));
    assert_eq!(class.wall_ns, scene.now.since(start), "one after the other, nothing between");
    assert_eq!(class.bottleneck(), Some(Bottleneck::Network));
}

#[test]
fn reads_of_one_piece_are_counted_too() {
    let mut scene = Scene::new(vec![rail("a", FaultPlan::none())], config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let start = scene.now;
    assert_eq!(scene.engine.stats().classes[0].bottleneck(), None);
    assert_eq!(scene.read(&object).0, Status::OK);
    let class = class_of(&scene.engine.stats().classes);
    assert_eq!((class.reads, class.wire_ns), (1, scene.now.since(start)));
    assert_eq!(class.bottleneck(), Some(Bottleneck::Network));
}

#[test]
fn a_rail_that_is_last_by_far_is_the_bottleneck() {
    let (fast, mut slow) = (rail("a", FaultPlan::none()), rail("b", FaultPlan::none()));
    slow.bandwidth_bytes_per_second /= 4;
    // Whole stripes by weight, whatever the rails' speed: nobody helps the slow one.
    let config = EngineConfig { policy: railring_core::Policy::Fixed, ..config() };
    let mut scene = Scene::with_leases(vec![fast, slow], config, 1, 8 << 20);
    let (object, _) = scene.object("x", shape(8, 512 * KIB, 2), 0..2);
    assert_eq!(scene.read(&object).0, Status::OK);
    let class = class_of(&scene.engine.stats().classes);
    assert_eq!(class.bottleneck(), Some(Bottleneck::SlowRail), "{class:?}");
}

#[test]
fn reads_that_wait_for_others_to_end_wait_for_scheduling() {
    let config = EngineConfig { reads_max: 1, ..config() };
    let mut scene = Scene::with_leases(vec![rail("a", FaultPlan::none())], config, 16, 64 << 10);
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    for _ in 0..16 {
        let read = scene.whole(&object);
        scene.push(read);
    }
    for _ in 0..16 {
        assert_eq!(scene.next().ended(), Some(Status::OK));
    }
    let class = class_of(&scene.engine.stats().classes);
    assert_eq!(class.bottleneck(), Some(Bottleneck::Scheduling), "{class:?}");
}

#[test]
fn a_cpu_that_hashes_slowly_is_the_bottleneck() {
    let mut fast = rail("a", FaultPlan::none());
    fast.bandwidth_bytes_per_second = 100_000_000_000;
    let config = EngineConfig { piece_bytes_max: 1 << 20, ..config() };
    let mut scene = Scene::with_leases(vec![fast], config, 1, 32 << 20);
    let (object, _) = scene.object("x", shape(1, 32 * 1024 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    // A turn hashes a megabyte at most; here that takes half a millisecond.
    while scene.ring.ready() == 0 {
        let worked = scene.engine.turn_at(scene.now) == Progress::Worked;
        let next = if worked { scene.now.after(MS / 2) } else { scene.engine.next_event() };
        scene.now = scene.now.max(next);
    }
    let class = class_of(&scene.engine.stats().classes);
    assert_eq!(class.bottleneck(), Some(Bottleneck::Verification), "{class:?}");
}

/// What lands is hashed at once, on the poller that should bring the next: the rail is waited for
/// because that poller is late.
#[test]
fn a_poller_that_hashes_most_of_the_time_is_the_bottleneck() {
    for (rate, expected) in
        [(100_000_000, Bottleneck::Verification), (10_000_000_000, Bottleneck::Network)]
    {
        let mut world = SimWorld::new(7);
        let (control, link) = world.add_rail(rail("a", FaultPlan::none())).expect("sensible");
        let rails = vec![Rail { control: control as _, link, poller: 0 }];
        let hashing = Hashing::BytesPerSecond(rate.try_into().expect("not 0"));
        let builder = EngineBuilder::new(rails).config(config());
        let mut engine = builder.build_virtual_hashing(START, hashing).expect("an engine");
        let shape = shape(16, 256 * KIB, 1);
        let known = objects::put(&world, "x", shape, &["server0".to_owned()], 3);
        let object = engine.open(&known.placement).expect("opens");
        let slot = PoolConfig { slots: 1, slot_bytes: 4 << 20, ..PoolConfig::default() };
        let pool = engine.buffer_pool(slot).expect("a pool");
        let mut ring = engine.ring(RingConfig::default()).expect("a ring");
        let lease = pool.take().expect("a lease");
        ring.push(Read::new(&object, 0..object.len(), lease)).expect("accepted");
        ring.submit();
        let mut now = START;
        while ring.ready() < 16 {
            let progress = engine.turn_at(now);
            now = engine.now();
            if progress == Progress::Idle {
                now = now.max(engine.next_event());
            }
            assert!(now < START.after(1000 * MS), "nothing happens");
        }
        let stats = engine.stats().since(&EngineStats::default());
        let (class, poller) = (class_of(&stats.classes), stats.pollers[0]);
        assert_eq!(class.bottleneck(), Some(Bottleneck::Network), "on the rail, or landed on it");
        assert_eq!(stats.bottleneck(ReadClass::Medium), Some(expected), "{poller:?}");
        assert_eq!(stats.bottleneck(ReadClass::Small), None, "there were none");
        let least = object.len() * 1_000_000_000 / rate;
        assert!((least - least / 100..=least).contains(&poller.hash_ns), "{poller:?}, {least} ns");
        assert!(poller.busy_ns >= poller.hash_ns, "{poller:?}");
    }
}

/// A simulated rail that says it is a disk.
#[derive(Debug)]
struct Disk(Arc<SimControl>);

impl RailControl for Disk {
    fn info(&self) -> RailInfo {
        RailInfo { kind: RailKind::File, ..self.0.info() }
    }
    fn stats(&self) -> ControlStats {
        RailControl::stats(&*self.0)
    }
    fn reaches(&self, endpoint: &str) -> bool {
        self.0.reaches(endpoint)
    }
    fn register(&self, region: &Region) -> Result<(), RegisterError> {
        self.0.register(region)
    }
    fn unregister(&self, region: RegionId) {
        self.0.unregister(region);
    }
    fn connect(&self, source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        self.0.connect(source)
    }
    fn disconnect(&self, target: TargetId) {
        self.0.disconnect(target);
    }
}

#[test]
fn a_disk_is_storage() {
    let mut world = SimWorld::new(7);
    let (control, link) = world.add_rail(rail("a", FaultPlan::none())).expect("a sensible rail");
    let rails = vec![Rail { control: Arc::new(Disk(control)) as _, link, poller: 0 }];
    let builder = EngineBuilder::new(rails).config(config());
    let mut engine = builder.build_virtual(START).expect("an engine");
    let known = objects::put(&world, "x", shape(2, 64 * KIB, 1), &["server0".to_owned()], 3);
    let object = engine.open(&known.placement).expect("opens");
    let pool = engine.buffer_pool(PoolConfig::default()).expect("a pool");
    let mut ring = engine.ring(RingConfig::default()).expect("a ring");
    for bytes in [64 * KIB, 128 * KIB] {
        let lease = pool.take().expect("a lease");
        ring.push(Read::new(&object, 0..bytes, lease)).expect("accepted");
        ring.submit();
    }
    let mut now = START;
    loop {
        engine.turn_at(now);
        if ring.ready() == 3 {
            break;
        }
        now = now.max(engine.next_event());
        assert!(now < START.after(1000 * MS), "nothing happens");
    }
    let classes = engine.stats().classes;
    for class in &classes[..2] {
        assert_eq!((class_of(&[*class]).wire_ns, class.reads), (0, 1));
        assert_eq!(class.bottleneck(), Some(Bottleneck::Storage));
    }
}
