//! Waiting for room at push: it comes, or the limit that held the read is named.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use railring::file::FileRailOptions;
use railring::store::PutOptions;
use railring::{
    Engine, EngineConfig, HeldBy, Object, Pool, PoolConfig, PushError, PushWaitError, RailSet,
    Read, Ring, RingConfig, WaitError, Waiting,
};
use railring_tests::hold::Holding;
use railring_tests::stored::{Disks, random_bytes};

const PATIENCE: Duration = Duration::from_secs(30);

struct Bench {
    engine: Engine,
    holding: Arc<Holding>,
    object: Object,
    pool: Pool,
    ring: Ring,
    _disks: Disks,
}

impl Bench {
    /// A ring of so many entries over a rail whose reads can be held back.
    fn new(sq_entries: u32, cq_entries: u32, config: EngineConfig) -> Bench {
        let disks = Disks::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 1);
        let options = PutOptions { stripe_bytes: 4096, ..PutOptions::default() };
        let stored = disks.put("object", &random_bytes(3, 64 << 10), &options);
        let holding = Arc::new(Holding::default());
        let injector: Arc<dyn railring::file::Injector> = holding.clone();
        let options = FileRailOptions { injector: Some(injector), ..FileRailOptions::default() };
        let rails = RailSet::new().file(&disks.directories[0], options).expect("a rail");
        // Busy: releasing what an injector holds back rings no bell.
        let config = EngineConfig { waiting: Waiting::Busy, ..config };
        let engine = Engine::builder().rails(rails).config(config).build().expect("it starts");
        let object = engine.open(&stored.placement).expect("it opens");
        let memory = PoolConfig { slots: 64, slot_bytes: 64 << 10, ..PoolConfig::default() };
        let pool = engine.buffer_pool(memory).expect("a pool");
        let sizes = RingConfig { sq_entries, cq_entries, ..RingConfig::default() };
        let ring = engine.ring(sizes).expect("a ring");
        Bench { engine, holding, object, pool, ring, _disks: disks }
    }

    fn push(&mut self, stripes: u64) {
        let lease = self.pool.take().expect("a lease");
        let read = Read::new(&self.object, 0..stripes * 4096, lease);
        self.ring.push(read).expect("there is room");
    }

    fn push_wait(&mut self, stripes: u64, timeout: Duration) -> Result<usize, PushWaitError> {
        let lease = self.pool.take().expect("a lease");
        let read = Read::new(&self.object, 0..stripes * 4096, lease);
        let mut popped = 0;
        let outcome = self.ring.push_wait(read, timeout, |ring, completion| {
            assert!(completion.status().is_ok());
            assert!(ring.bytes(&completion).is_some());
            popped += 1;
        });
        match outcome {
            Ok(_) => Ok(popped),
            Err(refused) => {
                assert!(refused.read.into_lease().is_some(), "the read comes back whole");
                Err(refused.why)
            }
        }
    }
}

#[test]
fn room_that_comes_is_used_and_completions_are_handed_over() {
    let mut bench = Bench::new(8, 8, EngineConfig::default());
    bench.push(8);
    let popped = bench.push_wait(5, PATIENCE).expect("room comes");
    assert_eq!(popped, 8);
    assert_eq!(bench.push_wait(8, PATIENCE).expect("room comes"), 5);
}

#[test]
fn without_room_the_completion_slots_are_named() {
    let mut bench = Bench::new(8, 8, EngineConfig::default());
    bench.holding.hold();
    bench.push(6);
    let start = Instant::now();
    let error = bench.push_wait(3, Duration::from_millis(30)).expect_err("no room");
    assert!(start.elapsed() >= Duration::from_millis(30));
    let PushWaitError::TimedOut { held_by, .. } = &error else { panic!("{error}") };
    assert_eq!(*held_by, HeldBy::CqEntries { needed: 3, free: 2, entries: 8 });
    assert!(error.to_string().contains("cq_entries = 8"), "{error}");
    bench.holding.release();
    assert_eq!(bench.push_wait(3, PATIENCE).expect("room comes"), 6);
}

#[test]
fn without_room_the_submission_slots_and_reads_max_are_named() {
    let config = EngineConfig { reads_max: 1, ..EngineConfig::default() };
    let mut bench = Bench::new(2, 64, config);
    bench.holding.hold();
    bench.push(1);
    bench.ring.submit();
    let start = Instant::now();
    // The engine takes one; two more fit the ring.
    let mut accepted = 0;
    let held_by = loop {
        assert!(start.elapsed() < PATIENCE);
        match bench.push_wait(1, Duration::from_millis(30)) {
            Ok(_) => accepted += 1,
            Err(PushWaitError::TimedOut { held_by, .. }) => break held_by,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(accepted, 2);
    assert_eq!(held_by, HeldBy::SqEntries { entries: 2, reads_max: 1 });
    bench.holding.release();
    bench.push_wait(1, PATIENCE).expect("room comes");
}

#[test]
fn a_cancelled_token_ends_the_wait() {
    let mut bench = Bench::new(8, 8, EngineConfig::default());
    bench.holding.hold();
    bench.push(8);
    bench.ring.submit();
    let token = bench.engine.cancel_token();
    let lease = bench.pool.take().expect("a lease");
    let read = Read::new(&bench.object, 0..4096, lease).cancelled_by(&token);
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        token.cancel();
    });
    let start = Instant::now();
    let refused = bench.ring.push_wait(read, PATIENCE, |_, _| {}).expect_err("no room");
    assert_eq!(refused.why, PushWaitError::Cancelled);
    assert!(start.elapsed() < PATIENCE, "the token woke it");
    canceller.join().expect("it ends");
    bench.holding.release();
}

#[test]
fn what_waiting_cannot_help_is_refused_at_once() {
    let mut bench = Bench::new(8, 8, EngineConfig::default());
    let error = bench.push_wait(9, PATIENCE).expect_err("it never fits");
    let never = PushError::TooManyStripes { stripes: 9, capacity: 8 };
    assert_eq!(error, PushWaitError::Refused(never));
    let rails = RailSet::new().null(railring::sim::NullConfig::new("null")).expect("a rail");
    let inline = Engine::builder().rails(rails).build_inline().expect("it starts");
    let sizes = RingConfig { sq_entries: 1, cq_entries: 1, ..RingConfig::default() };
    let mut ring = inline.ring(sizes).expect("a ring");
    ring.push(Read::nop()).expect("there is room");
    let refused = ring.push_wait(Read::nop(), PATIENCE, |_, _| {}).expect_err("no room");
    assert_eq!(refused.why, PushWaitError::Wait(WaitError::Inline));
}

#[test]
fn an_inline_engine_makes_its_own_room() {
    let rails = RailSet::new().null(railring::sim::NullConfig::new("null")).expect("a rail");
    let mut inline = Engine::builder().rails(rails).build_inline().expect("it starts");
    let sizes = RingConfig { sq_entries: 1, cq_entries: 1, ..RingConfig::default() };
    let mut ring = inline.ring(sizes).expect("a ring");
    let mut popped = 0;
    for _ in 0..100 {
        let pushed = inline.push_wait(&mut ring, Read::nop(), PATIENCE, |_, _| popped += 1);
        pushed.expect("there is room in the end");
    }
    assert!(popped >= 99);
}
