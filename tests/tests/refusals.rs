//! What an engine is not built from, what it does not open, and reads that have no time: each is
//! answered at the right moment, by name, and nothing is left behind.

mod scene;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use railring_catalog::Placement;
use railring_catalog::checksum::stripe_checksum;
use railring_core::{
    BuildError, EngineBuilder, EngineConfig, InlineEngine, OpenError, Rail, RailHealth, Read,
};
use railring_dma::{Region, RegionId};
use railring_sim::{FaultPlan, SimControl, SimLink, SimWorld};
use railring_tests::objects;
use railring_transport::{
    Completion, ConnectError, ControlStats, Link, LinkLimits, LinkStats, Nanos, RailControl,
    RailInfo, Refused, RegisterError, SourceRef, TargetId, WorkRequest, WrId,
};
use scene::{KIB, START, Scene, config, rail, shape};
use sq_cq::Status;

/// A rail that says of itself what the test wants, and counts its connections.
#[derive(Debug)]
struct Told {
    inner: Arc<SimControl>,
    name: String,
    weight: u32,
    connects: Arc<AtomicU32>,
}

impl RailControl for Told {
    fn info(&self) -> RailInfo {
        RailInfo { name: self.name.clone(), weight: self.weight, ..self.inner.info() }
    }
    fn stats(&self) -> ControlStats {
        RailControl::stats(&*self.inner)
    }
    fn reaches(&self, endpoint: &str) -> bool {
        self.inner.reaches(endpoint)
    }
    fn register(&self, region: &Region) -> Result<(), RegisterError> {
        self.inner.register(region)
    }
    fn unregister(&self, region: RegionId) {
        self.inner.unregister(region);
    }
    fn connect(&self, source: SourceRef<'_>) -> Result<TargetId, ConnectError> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        self.inner.connect(source)
    }
    fn disconnect(&self, target: TargetId) {
        self.inner.disconnect(target);
    }
}

/// Its link, which grants what the test wants.
struct Grants {
    inner: SimLink,
    limits: LinkLimits,
}

impl Link for Grants {
    fn limits(&self) -> LinkLimits {
        self.limits
    }
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        self.inner.queue(request)
    }
    fn commit(&mut self, now: Nanos) {
        self.inner.commit(now);
    }
    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        self.inner.reap(now, budget, sink)
    }
    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.inner.cancel(wr, now);
    }
    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.inner.quiesce(wr, now);
    }
    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }
    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

/// What a rail is like.
struct Like {
    name: &'static str,
    weight: u32,
    poller: u32,
    wrs: u32,
    request_bytes: u64,
}

/// One that is fine.
const FINE: Like = Like { name: "a", weight: 1, poller: 0, wrs: 4, request_bytes: 1 << 20 };

struct Rails {
    world: SimWorld,
    rails: Vec<Rail<Grants>>,
    connects: Arc<AtomicU32>,
}

fn rails(likes: impl IntoIterator<Item = Like>) -> Rails {
    let (mut world, connects) = (SimWorld::new(7), Arc::new(AtomicU32::new(0)));
    let rails = likes.into_iter().enumerate().map(|(index, like)| {
        let made = world.add_rail(rail(&format!("rail{index}"), FaultPlan::none()));
        let (inner, link) = made.expect("a sensible rail");
        let mut limits = link.limits();
        (limits.outstanding_wrs_max, limits.request_bytes_max) = (like.wrs, like.request_bytes);
        let (name, connects) = (like.name.to_owned(), Arc::clone(&connects));
        let control = Arc::new(Told { inner, name, weight: like.weight, connects });
        Rail { control, link: Grants { inner: link, limits }, poller: like.poller }
    });
    let rails = rails.collect();
    Rails { world, rails, connects }
}

fn build(likes: impl IntoIterator<Item = Like>) -> Result<InlineEngine<Grants>, BuildError> {
    EngineBuilder::new(rails(likes).rails).config(config()).build_virtual(START)
}

fn refused(likes: impl IntoIterator<Item = Like>) -> String {
    build(likes).map(drop).expect_err("it makes no sense").to_string()
}

#[test]
fn rails_that_no_engine_can_use_are_refused_by_name() {
    assert!(build([FINE]).is_ok());
    assert_eq!(refused([]), "an engine needs at least one rail");
    let many = (0..65).map(|_| FINE);
    assert_eq!(refused(many), "65 rails were given; at most 64 can be used");
    for twice in [vec![FINE, FINE], vec![Like { name: "a", ..FINE }, Like { name: " ", ..FINE }]] {
        let text = refused(twice);
        assert!(text.ends_with("is blank or used twice; give each rail a name of its own"));
    }
    let none = refused([Like { weight: 0, ..FINE }]);
    assert_eq!(none, "rail a has weight 0; use 1 or more, or disable it");
    for useless in [Like { wrs: 0, ..FINE }, Like { request_bytes: (1 << 20) - 1, ..FINE }] {
        assert!(refused([useless]).starts_with("rail a grants "));
    }
    let gap = refused([FINE, Like { name: "b", poller: 2, ..FINE }]);
    assert_eq!(gap, "pollers must be numbered from 0 without gaps; 1 drives no rail");
    assert!(build([Like { weight: u32::MAX, ..FINE }]).is_ok(), "a weight is only a share");
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    type Change = fn(&mut EngineConfig);
    let changes: &[(&str, Change)] = &[
        ("piece_bytes_max", |c| c.piece_bytes_max = (64 << 10) - 1),
        ("reads_max", |c| c.reads_max = 0),
        ("reads_max", |c| c.reads_max = (1 << 20) + 1),
        ("rings_max", |c| c.rings_max = 0),
        ("rings_max", |c| c.rings_max = 4097),
        ("objects_max", |c| c.objects_max = 0),
        ("attempts_max", |c| c.attempts_max = 0),
        ("staging_bytes", |c| c.staging_bytes = (2 << 20) - 1),
        ("table_cache_bytes", |c| c.table_cache_bytes = (2 << 20) - 1),
        ("limits.pieces_max", |c| c.limits.pieces_max = 0),
        ("limits.rail_pieces_max", |c| c.limits.rail_pieces_max = 0),
        ("limits.bytes_max", |c| c.limits.bytes_max = 0),
        ("limits.rail_bytes_max", |c| c.limits.rail_bytes_max = 0),
    ];
    for (field, change) in changes {
        let mut config = config();
        change(&mut config);
        let built = EngineBuilder::new(rails([FINE]).rails).config(config).build_virtual(START);
        let error = built.map(drop).expect_err("it makes no sense");
        assert!(matches!(error, BuildError::Config(_)), "{field}: {error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{field} = ")) && text.contains("was refused"), "{text}");
    }
}

#[test]
fn a_placement_that_contradicts_itself_is_refused_before_any_connection() {
    type Change = fn(&mut Placement);
    let changes: &[(&str, Change)] = &[
        ("a stripe is missing", |p| drop(p.stripes.remove(1))),
        ("a stripe is there twice", |p| p.stripes.push(p.stripes[1].clone())),
        ("one stands for another", |p| p.stripes[2].index = 1),
        ("an index is out of range", |p| p.stripes[3].index = 4),
        ("a stripe has no owner", |p| p.stripes[0].owners.clear()),
        ("an owner is no source", |p| p.stripes[0].owners[0].source = 99),
        ("a stripe is too long", |p| p.stripes[3].len_bytes += 1),
        ("a stripe is too short", |p| p.stripes[0].len_bytes -= 1),
        ("the object is longer", |p| p.size_bytes += 1),
        ("bytes lie beyond all", |p| p.stripes[0].owners[0].offset = u64::MAX),
        ("stripes have no length", |p| p.stripe_bytes = 0),
        ("blocks have no length", |p| p.block_bytes = 0),
    ];
    let Rails { world, rails, connects } = rails([FINE]);
    let engine = EngineBuilder::new(rails).config(config()).build_virtual(START).expect("builds");
    let endpoints = ["server0".to_owned(), "server1".to_owned()];
    let known = objects::put(&world, "x", shape(4, 64 * KIB, 2), &endpoints, 3);
    for (what, change) in changes {
        let mut placement = known.placement.clone();
        change(&mut placement);
        let error = engine.open(&placement).map(drop).expect_err(what);
        assert!(matches!(error, OpenError::InvalidPlacement(_)), "{what}: {error}");
        assert_eq!(connects.load(Ordering::Relaxed), 0, "{what}");
    }
    let mut turned = known.placement.clone();
    turned.stripes.rotate_left(1);
    assert!(engine.open(&turned).is_ok(), "their order is nobody's business");
    assert_eq!(connects.load(Ordering::Relaxed), 2);
}

#[test]
fn the_last_stripe_of_one_byte_is_one_byte_with_its_own_checksum() {
    let mut scene = Scene::with_leases(vec![rail("a", FaultPlan::none())], config(), 1, 8 << 20);
    let mut plan = shape(1, 4 << 20, 1);
    plan.size_bytes += 1;
    let (object, known) = scene.object("x", plan, 0..1);
    let read = scene.whole(&object);
    scene.push(read);
    let cqes = scene.finish();
    let last = cqes.iter().find(|cqe| cqe.stripe() == 1).expect("two stripes");
    assert_eq!((cqes.len(), last.bytes(), last.status()), (2, 1, Status::OK));
    assert_eq!(last.checksum(), stripe_checksum(&known.bytes[4 << 20..]));
}

#[test]
fn reads_without_any_time_end_at_once_and_transfer_nothing() {
    type Change = for<'o> fn(Read<'o>) -> Read<'o>;
    let changes: [Change; 3] = [
        |read| read.deadline(Nanos(0)),
        |read| read.deadline(Nanos(START.0 - 1)),
        |read| read.timeout(Duration::ZERO),
    ];
    let mut scene = Scene::new(vec![rail("a", FaultPlan::none())], config());
    let (object, _) = scene.object("x", shape(4, 64 * KIB, 1), 0..1);
    for change in changes {
        let read = change(scene.whole(&object));
        scene.push(read);
        let cqes = scene.finish();
        assert!(cqes.iter().all(|cqe| cqe.status() == Status::TIMED_OUT), "{cqes:?}");
        assert_eq!((cqes.len(), scene.now), (4, START), "it ends at once");
    }
    assert_eq!(scene.controls[0].stats().posted, 0);
    assert_eq!(scene.health(0), RailHealth::Up);
    assert_eq!(scene.pool.free(), scene.pool.slots(), "the memory is back");
}
