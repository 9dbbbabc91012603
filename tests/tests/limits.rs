//! What is refused at push or before, each by name and with its value; and limits that are kept.

use std::path::Path;
use std::time::Duration;

use railring::dma::HugePages;
use railring::store::PutOptions;
use railring::{
    Engine, EngineConfig, Limits, MemoryError, Object, OpenError, Pool, PoolConfig, PushError,
    RailSet, Read, Ring, RingConfig, RingMakeError, Scatter, Status,
};
use railring_tests::stored::{Disks, StoredObject, random_bytes};

const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: u64 = 1_000_003;
const STRIPE: u64 = 65_536;

struct Bench {
    engine: Engine,
    object: Object,
    pool: Pool,
    ring: Ring,
    stored: StoredObject,
    disks: Disks,
}

fn bench(limits: Limits) -> Bench {
    bench_with(EngineConfig { limits, ..EngineConfig::default() })
}

fn bench_with(config: EngineConfig) -> Bench {
    let disks = Disks::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 2);
    let options = PutOptions { stripe_bytes: STRIPE, ..PutOptions::default() };
    let bytes = random_bytes(11, usize::try_from(SIZE).expect("small"));
    let stored = disks.put("object", &bytes, &options);
    let engine = engine(&disks, config);
    let object = engine.open(&stored.placement).expect("it opens");
    let memory = PoolConfig { slots: 16, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory).expect("a pool");
    let ring = engine.ring(RingConfig::default()).expect("a ring");
    Bench { engine, object, pool, ring, stored, disks }
}

fn engine(disks: &Disks, config: EngineConfig) -> Engine {
    let rails = RailSet::directories(&disks.directories).expect("rails");
    Engine::builder().rails(rails).config(config).build().expect("it starts")
}

fn refused(ring: &mut Ring, read: Read<'_>) -> PushError {
    let refused = ring.push(read).expect_err("it makes no sense");
    assert!(!refused.is_full());
    assert!(refused.read.into_destination().is_some(), "the memory comes back");
    refused.why
}

#[test]
fn ranges_beyond_the_object_are_refused() {
    let mut bench = bench(Limits::default());
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let ranges = [0..SIZE + 1, SIZE..SIZE + 1, SIZE + 1..SIZE + 1, 5..4, u64::MAX - 1..u64::MAX];
    for range in ranges {
        let lease = bench.pool.take().expect("a lease");
        let why = refused(&mut bench.ring, Read::new(&bench.object, range.clone(), lease));
        let (offset, end) = (range.start, range.end);
        assert_eq!(why, PushError::OutOfRange { offset, end, size: SIZE });
    }
    assert_eq!(bench.ring.in_flight(), 0);
    assert_eq!(bench.engine.stats().reads, 0);
}

#[test]
fn memory_too_short_is_refused() {
    let mut bench = bench(Limits::default());
    for (have, range) in [(4096, 0..4097_u64), (96, 4000..4097), (0, 0..1)] {
        let (lease, _rest) = bench.pool.take().expect("a lease").split_at(have).expect("within");
        let need = range.end - range.start;
        let why = refused(&mut bench.ring, Read::new(&bench.object, range, lease));
        assert_eq!(why, PushError::BufferTooSmall { need, have: have as u64 });
    }
    let lease = bench.pool.take().expect("a lease");
    let (first, second) = lease.split_at(10).expect("within");
    let (second, _rest) = second.split_at(10).expect("within");
    let scatter = Scatter::new([first, second]);
    let why = refused(&mut bench.ring, Read::scattered(&bench.object, 0..21, scatter));
    assert_eq!(why, PushError::BufferTooSmall { need: 21, have: 20 });
    let why = refused(&mut bench.ring, Read::scattered(&bench.object, 0..0, Scatter::new([])));
    assert!(matches!(why, PushError::BadScatter { .. }));
}

#[test]
fn stripes_that_are_not_there_are_refused() {
    let mut bench = bench(Limits::default());
    let stripes = bench.object.stripes();
    for (first, mask) in [(0, 0), (stripes, 1), (stripes - 1, 0b10), (0, 1 << 63), (u32::MAX, 1)] {
        let lease = bench.pool.take().expect("a lease");
        let why = refused(&mut bench.ring, Read::stripes(&bench.object, first, mask, lease));
        assert_eq!(why, PushError::NoSuchStripes { first, mask, stripes });
    }
}

#[test]
fn a_read_that_never_fits_the_ring_is_told_apart_from_a_full_ring() {
    let bench = bench(Limits::default());
    let sizes = RingConfig { sq_entries: 4, cq_entries: 4, ..RingConfig::default() };
    let mut ring = bench.engine.ring(sizes).expect("a ring");
    let lease = bench.pool.take().expect("a lease");
    let why = refused(&mut ring, Read::new(&bench.object, 0..5 * STRIPE, lease));
    assert_eq!(why, PushError::TooManyStripes { stripes: 5, capacity: 4 });
    let lease = bench.pool.take().expect("a lease");
    ring.push(Read::new(&bench.object, 0..3 * STRIPE, lease)).expect("it fits");
    let lease = bench.pool.take().expect("a lease");
    let full = ring.push(Read::new(&bench.object, 0..2 * STRIPE, lease)).expect_err("no room");
    assert!(full.is_full());
    assert_eq!(ring.full_answers(), 1);
    // Quietly it needs one slot, whatever its stripes.
    let quiet = full.read.quiet(0);
    ring.push(quiet).expect("it fits");
    while ring.in_flight() > 0 {
        ring.wait(1, PATIENCE).expect("the engine lives");
        while let Some(completion) = ring.pop() {
            assert!(completion.status().is_ok());
        }
    }
    assert_eq!(ring.free_slots(), 4);
}

#[test]
fn handles_of_another_engine_are_refused() {
    let mut one = bench(Limits::default());
    let two = engine(&one.disks, EngineConfig::default());
    let theirs = two.open(&one.stored.placement).expect("it opens");
    let lease = one.pool.take().expect("a lease");
    assert_eq!(refused(&mut one.ring, Read::new(&theirs, 0..1, lease)), PushError::OtherEngine);
    let token = two.cancel_token();
    let lease = one.pool.take().expect("a lease");
    let read = Read::new(&one.object, 0..1, lease).cancelled_by(&token);
    assert_eq!(refused(&mut one.ring, read), PushError::OtherEngine);
    let memory = PoolConfig { slots: 1, slot_bytes: 4096, ..PoolConfig::default() };
    let foreign = two.buffer_pool(memory).expect("a pool").take().expect("a lease");
    let read = Read::new(&one.object, 0..1, foreign);
    assert_eq!(refused(&mut one.ring, read), PushError::UnregisteredMemory);
}

#[test]
fn a_read_over_the_limit_names_it() {
    let mut bench = bench(Limits { read_bytes_max: 1000, ..Limits::default() });
    let lease = bench.pool.take().expect("a lease");
    let why = refused(&mut bench.ring, Read::new(&bench.object, 0..1001, lease));
    assert_eq!(why, PushError::ReadTooLarge { bytes: 1001, limit: 1000 });
    assert!(why.to_string().contains("limits.read_bytes_max"), "{why}");
}

#[test]
fn part_of_a_stripe_without_tables_cannot_be_verified() {
    let mut bench = bench(Limits::default());
    let mut placement = bench.stored.placement.clone();
    placement.stripes.iter_mut().for_each(|stripe| stripe.table_checksum = None);
    let object = bench.engine.open(&placement).expect("it opens");
    let lease = bench.pool.take().expect("a lease");
    let why = refused(&mut bench.ring, Read::new(&object, STRIPE..2 * STRIPE + 1, lease));
    assert_eq!(why, PushError::CannotVerify { stripe: 2 });
    let lease = bench.pool.take().expect("a lease");
    bench.ring.push(Read::new(&object, STRIPE..2 * STRIPE, lease)).expect("whole stripes can be");
}

#[test]
fn registered_memory_is_bounded() {
    let limits = Limits { registered_bytes_max: 64 << 20, ..Limits::default() };
    let bench = bench(limits);
    let used = bench.engine.stats().registered_bytes;
    let memory = PoolConfig { slots: 64, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let error = bench.engine.buffer_pool(memory).expect_err("over the limit");
    let MemoryError::OverLimit { bytes, used: told, limit } = error else { panic!("{error}") };
    assert_eq!((bytes, told, limit), (64 << 20, used, 64 << 20));
    assert_eq!(bench.engine.stats().registered_bytes, used, "nothing stays registered");
}

#[test]
fn pools_of_odd_sizes_work_with_and_without_huge_pages() {
    let mut bench = bench(Limits::default());
    for huge_pages in [HugePages::Try, HugePages::Never] {
        let memory =
            PoolConfig { slots: 3, slot_bytes: 3_779_571, huge_pages, ..PoolConfig::default() };
        let pool = bench.engine.buffer_pool(memory).expect("a pool");
        let leases: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(leases.len(), 3);
        for lease in leases {
            bench.ring.push(Read::new(&bench.object, 3..SIZE, lease)).expect("it fits");
        }
        while bench.ring.in_flight() > 0 {
            bench.ring.wait(1, PATIENCE).expect("the engine lives");
            while let Some(completion) = bench.ring.pop() {
                assert!(completion.status().is_ok());
            }
        }
        drop(pool);
    }
}

#[test]
fn rings_objects_and_connections_are_bounded() {
    let limits = Limits { connections_max: 5, ..Limits::default() };
    let config = EngineConfig { rings_max: 2, objects_max: 2, limits, ..EngineConfig::default() };
    let bench = bench_with(config);
    let second = bench.engine.ring(RingConfig::default()).expect("a second ring");
    let error = bench.engine.ring(RingConfig::default()).expect_err("a third");
    assert!(matches!(error, RingMakeError::TooManyRings { limit: 2 }), "{error}");
    drop(second);
    let other = bench.engine.open(&bench.stored.placement).expect("a second object");
    let error = bench.engine.open(&bench.stored.placement).expect_err("a third");
    assert!(matches!(error, OpenError::TooManyObjects { limit: 2 }), "{error}");
    drop(other);
    let limits = Limits { connections_max: 3, ..Limits::default() };
    let tight = engine(&bench.disks, EngineConfig { limits, ..EngineConfig::default() });
    let _first = tight.open(&bench.stored.placement).expect("two connections");
    let error = tight.open(&bench.stored.placement).expect_err("four connections");
    assert!(matches!(error, OpenError::TooManyConnections { limit: 3 }), "{error}");
}

#[test]
fn limits_on_what_is_in_flight_are_kept_and_everything_is_read() {
    let limits = Limits {
        rail_pieces_max: 2,
        pieces_max: 3,
        rail_bytes_max: 100_000,
        bytes_max: 150_000,
        ..Limits::default()
    };
    let mut bench = bench(limits);
    for _ in 0..16 {
        let lease = bench.pool.take().expect("a lease");
        bench.ring.push(Read::new(&bench.object, 0..SIZE, lease)).expect("it fits");
    }
    while bench.ring.in_flight() > 0 {
        bench.ring.wait(1, PATIENCE).expect("the engine lives");
        while let Some(completion) = bench.ring.pop() {
            assert_eq!(completion.status(), Status::OK);
        }
    }
    for rail in bench.engine.rail_stats() {
        assert!(rail.in_flight_peak <= 2, "{} pieces in flight", rail.in_flight_peak);
        assert!(rail.in_flight_bytes_peak <= 100_000, "{} B", rail.in_flight_bytes_peak);
    }
}
