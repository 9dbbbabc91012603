//! Reading does not touch the heap: not the caller's thread, not the pollers'. Every allocation of
//! the process is counted, so this binary runs its tests one after the other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use railring::sim::NullConfig;
use railring::store::PutOptions;
use railring::{
    Engine, EngineConfig, InlineEngine, Lease, Object, Placement, Pool, PoolConfig, RailSet, Read,
    Ring, RingConfig, TraceConfig, Waiting,
};
use railring_catalog::{ObjectKey, Owner, Source, StripePlacement};
use railring_tests::stored::{Disks, random_bytes};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

const PATIENCE: Duration = Duration::from_secs(60);
const BATCH: usize = 32;

/// Reads of `stripes` stripes each, a batch at a time; `wait` is what the engine's kind needs.
struct Loop<'a> {
    ring: &'a mut Ring,
    object: &'a Object,
    pool: &'a Pool,
    bytes: u64,
    how: for<'o> fn(Read<'o>) -> Read<'o>,
    /// Reads that a trace was found of.
    traced: u64,
}

fn plain(read: Read<'_>) -> Read<'_> {
    read
}

fn traced(read: Read<'_>) -> Read<'_> {
    read.traced()
}

impl Loop<'_> {
    fn push_batch(&mut self, from: &mut u64) {
        let size = self.object.len();
        for _ in 0..BATCH {
            let lease: Lease = self.pool.take().expect("a batch fits the pool");
            let offset = *from % (size - self.bytes + 1);
            *from = from.wrapping_add(self.bytes + 4097);
            let read = Read::new(self.object, offset..offset + self.bytes, lease);
            if let Err(refused) = self.ring.push((self.how)(read)) {
                panic!("refused: {refused}");
            }
        }
    }

    fn drain(&mut self) -> usize {
        let mut ended = 0;
        while let Some(completion) = self.ring.pop() {
            assert!(completion.status().is_ok(), "{completion:?}");
            if completion.ended().is_some() {
                let traced = self.ring.trace(&completion).map_or(0, |trace| trace.bytes);
                assert!(traced == 0 || traced == self.bytes);
                self.traced += u64::from(traced > 0);
            }
            ended += usize::from(completion.ended().is_some());
            drop(completion.into_lease());
        }
        ended
    }

    fn run(&mut self, reads: usize, mut wait: impl FnMut(&mut Ring)) {
        let mut from = 0;
        for _ in 0..reads / BATCH {
            self.push_batch(&mut from);
            let mut ended = 0;
            while ended < BATCH {
                wait(self.ring);
                ended += self.drain();
            }
        }
    }
}

/// An object that a null rail pretends to have; nothing can verify it.
fn placement(stripes: u32, stripe_bytes: u64, endpoint: &str) -> Placement {
    let stripe = |index: u32| StripePlacement {
        index,
        len_bytes: stripe_bytes,
        owners: vec![Owner { source: 0, offset: u64::from(index) * stripe_bytes, table_offset: 0 }],
        checksum: None,
        table_checksum: None,
    };
    Placement {
        key: ObjectKey::new("test", "null").expect("a plain name"),
        generation: 1,
        etag: String::new(),
        handle: "null.1".to_owned(),
        layout_version: 1,
        size_bytes: u64::from(stripes) * stripe_bytes,
        stripe_bytes,
        block_bytes: 4096,
        sources: vec![Source { endpoint: endpoint.to_owned(), handle: "null.1".to_owned() }],
        stripes: (0..stripes).map(stripe).collect(),
    }
}

fn measure(name: &str, work: impl FnOnce()) {
    let before = allocations();
    work();
    let count = allocations() - before;
    println!("{name}: {count} allocations");
    assert_eq!(count, 0, "{name} allocated");
}

#[test]
fn a_million_reads_over_a_null_rail_do_not_allocate() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rails = RailSet::new().null(NullConfig::new("null")).expect("a null rail");
    let mut engine: InlineEngine = Engine::builder().rails(rails).build_inline().expect("starts");
    let object = engine.open(&placement(64, 65_536, "null")).expect("it opens");
    let memory = PoolConfig { slots: BATCH, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory).expect("a pool");
    let mut ring = engine.ring(RingConfig::default()).expect("a ring");
    for stripes in [1_u64, 2, 16] {
        let bytes = stripes * 65_536 - 1;
        let (how, traced) = (plain, 0);
        let mut reads = Loop { ring: &mut ring, object: &object, pool: &pool, bytes, how, traced };
        let mut turn = |ring: &mut Ring| {
            ring.submit();
            engine.turn();
        };
        reads.run(1024, &mut turn);
        let count = if stripes == 1 { 1_000_000 } else { 50_000 };
        measure(&format!("{count} null reads of {stripes} stripes"), || reads.run(count, turn));
    }
}

#[test]
fn traced_reads_do_not_allocate() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rails = RailSet::new().null(NullConfig::new("null")).expect("a null rail");
    let mut engine: InlineEngine = Engine::builder().rails(rails).build_inline().expect("starts");
    let object = engine.open(&placement(64, 65_536, "null")).expect("it opens");
    let memory = PoolConfig { slots: BATCH, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory).expect("a pool");
    let trace = TraceConfig { reads: BATCH as u32, records: 16 };
    let config = RingConfig { trace, ..RingConfig::default() };
    let mut ring = engine.ring(config).expect("a ring");
    for stripes in [1_u64, 16] {
        let (bytes, how) = (stripes * 65_536 - 1, traced);
        let mut reads =
            Loop { ring: &mut ring, object: &object, pool: &pool, bytes, how, traced: 0 };
        let mut turn = |ring: &mut Ring| {
            ring.submit();
            engine.turn();
        };
        reads.run(1024, &mut turn);
        measure(&format!("20000 traced reads of {stripes} stripes"), || reads.run(20_000, turn));
        assert_eq!(reads.traced, 1024 + 20_000);
    }
}

/// Reads of stored bytes over file rails with threads: verified, unaligned, with block tables.
fn file_reads(base: &Path, waiting: Waiting) {
    let disks = Disks::new(base, 2);
    let options =
        PutOptions { stripe_bytes: 256 << 10, block_bytes: 16 << 10, ..PutOptions::default() };
    let stored = disks.put("object", &random_bytes(1, 4 << 20), &options);
    let rails = RailSet::directories(&disks.directories).expect("rails");
    let config = EngineConfig { waiting, ..EngineConfig::default() };
    let engine = Engine::builder().rails(rails).config(config).build().expect("it starts");
    let object = engine.open(&stored.placement).expect("it opens");
    let memory = PoolConfig { slots: BATCH, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory).expect("a pool");
    let mut ring = engine.ring(RingConfig::default()).expect("a ring");
    for (bytes, count) in [(4096_u64, 100_000), (20_001, 60_000), (300_000, 4_000)] {
        let (how, traced) = (plain, 0);
        let mut reads = Loop { ring: &mut ring, object: &object, pool: &pool, bytes, how, traced };
        let wait = |ring: &mut Ring| {
            assert!(ring.wait(1, PATIENCE).expect("the engine lives") > 0);
        };
        reads.run(2048, wait);
        let name = format!("{count} file reads of {bytes} B on {}, {waiting:?}", base.display());
        measure(&name, || reads.run(count, wait));
    }
}

#[test]
fn reads_over_file_rails_do_not_allocate() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let sleepy = Waiting::Adaptive { spin: Duration::ZERO };
    file_reads(Path::new(env!("CARGO_TARGET_TMPDIR")), sleepy);
    if Path::new("/dev/shm").is_dir() {
        file_reads(Path::new("/dev/shm"), EngineConfig::default().waiting);
    } else {
        println!("SKIP reads_over_file_rails_do_not_allocate on tmpfs: there is no /dev/shm");
    }
}
