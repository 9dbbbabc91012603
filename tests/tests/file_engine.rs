//! The engine over real files, and what happens to them: damage, loss, hangs, dropped handles.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use railring::catalog::checksum::{block_checksum, stripe_checksum};
use railring::file::FileRailOptions;
use railring::store::PutOptions;
use railring::{
    BlockingReader, BlockingReaderConfig, Completion, Engine, EngineConfig, Object, Placement,
    Pool, PoolConfig, Proof, RailSet, Read, ReadOptions, Ring, RingConfig, Status, Waiting,
};
use railring_tests::hold::Holding;
use railring_tests::stored::{Disks, StoredObject, random_bytes};

const PATIENCE: Duration = Duration::from_secs(20);
const STRIPE: u64 = 65_536;
const BLOCK: u32 = 4096;
const SIZE: usize = 8 * 65_536 + 1;
const SENTINEL: u8 = 0xa5;

struct Bench {
    engine: Engine,
    object: Object,
    pool: Pool,
    ring: Ring,
    bytes: Vec<u8>,
    holding: Vec<Arc<Holding>>,
    stored: StoredObject,
    _disks: Disks,
}

/// Two directories, `copies` of each stripe; `damage` is done before anything is opened.
fn bench(copies: u16, damage: impl FnOnce(&Placement)) -> Bench {
    let disks = Disks::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 2);
    let bytes = random_bytes(17, SIZE);
    let options =
        PutOptions { stripe_bytes: STRIPE, block_bytes: BLOCK, copies, ..Default::default() };
    let stored = disks.put("object", &bytes, &options);
    damage(&stored.placement);
    let mut holding = Vec::new();
    let mut rails = RailSet::new();
    for directory in &disks.directories {
        let faults = Arc::new(Holding::default());
        let injector: Arc<dyn railring::file::Injector> = faults.clone();
        holding.push(faults);
        let options = FileRailOptions { injector: Some(injector), ..FileRailOptions::default() };
        rails = rails.file(directory, options).expect("a rail");
    }
    let config = EngineConfig {
        io_timeout: Duration::from_millis(200),
        cancel_grace: Duration::from_millis(10),
        quiet_bound: Duration::from_millis(100),
        // Busy: releasing what an injector holds back rings no bell.
        waiting: Waiting::Busy,
        ..EngineConfig::default()
    };
    let engine = Engine::builder().rails(rails).config(config).build().expect("it starts");
    let object = engine.open(&stored.placement).expect("it opens");
    let memory = PoolConfig { slots: 8, slot_bytes: 1 << 20, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory).expect("a pool");
    let ring = engine.ring(RingConfig::default()).expect("a ring");
    Bench { engine, object, pool, ring, bytes, holding, stored, _disks: disks }
}

impl Bench {
    /// All CQEs of one read.
    fn read(&mut self, make: impl FnOnce(Read<'_>) -> Read<'_>) -> Vec<Completion> {
        self.read_range(0, self.object.len(), make)
    }

    fn read_range(
        &mut self,
        from: u64,
        to: u64,
        make: impl FnOnce(Read<'_>) -> Read<'_>,
    ) -> Vec<Completion> {
        let lease = self.pool.take().expect("a lease");
        self.ring.push(make(Read::new(&self.object, from..to, lease))).expect("it fits");
        self.finish()
    }

    fn finish(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        while self.ring.in_flight() > 0 {
            assert!(self.ring.wait(1, PATIENCE).expect("the engine lives") > 0);
            while let Some(completion) = self.ring.pop() {
                all.push(completion);
            }
        }
        all
    }

    fn is_right(&mut self) {
        let mut all = self.read(|read| read);
        assert!(all.iter().all(|completion| completion.status().is_ok()), "{all:?}");
        let lease = all.pop().and_then(Completion::into_lease).expect("the last brings it");
        assert!(lease.as_slice()[..SIZE] == self.bytes, "bytes differ");
    }

    fn wait_until_free(&self) {
        let start = Instant::now();
        while self.pool.free() < self.pool.slots() {
            assert!(start.elapsed() < PATIENCE, "{} of {}", self.pool.free(), self.pool.slots());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Flips one bit of the file that copy `copy` of stripe `index` lies in.
fn flip(placement: &Placement, index: usize, copy: usize, at: u64) {
    let (path, offset) = Disks::extent(placement, index, copy);
    let file = OpenOptions::new().read(true).write(true).open(path).expect("it is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset + at).expect("it is long enough");
    file.write_all_at(&[byte[0] ^ 1], offset + at).expect("it is writable");
    file.sync_all().expect("it is synced");
}

#[test]
fn one_flipped_bit_is_one_bad_stripe_with_both_values() {
    let mut bench = bench(1, |placement| flip(placement, 5, 0, 3 * 4096 + 7));
    let mut wrong = bench.bytes[5 * 65_536..6 * 65_536].to_vec();
    wrong[3 * 4096 + 7] ^= 1;
    let all = bench.read(|read| read.allow_partial());
    assert_eq!(all.len(), 9);
    for completion in &all {
        if completion.stripe() == 5 {
            assert_eq!(completion.status(), Status::CHECKSUM_MISMATCH);
            assert_eq!(completion.checksum(), stripe_checksum(&wrong));
            assert!(completion.attempts() > 1, "a mismatch is tried again");
        } else {
            assert_eq!((completion.status(), completion.proof()), (Status::OK, Proof::Stripe));
        }
    }
    let last = all.last().expect("nine");
    assert_eq!(last.ended(), Some(Status::CHECKSUM_MISMATCH));
    assert_eq!(last.total_bytes(), SIZE as u64 - STRIPE);
    assert_eq!(last.failed_stripes(), 1);
}

#[test]
fn a_range_is_proved_by_its_blocks_alone() {
    let mut bench = bench(1, |placement| flip(placement, 5, 0, 3 * 4096 + 7));
    let start = 5 * STRIPE;
    // Blocks 0 to 2 are good, whatever block 3 is.
    let good = bench.read_range(start + 1, start + 3 * 4096, |read| read);
    assert_eq!((good[0].status(), good[0].proof()), (Status::OK, Proof::Blocks));
    let bad = bench.read_range(start + 4095, start + 3 * 4096 + 1, |read| read);
    assert_eq!(bad[0].status(), Status::CHECKSUM_MISMATCH);
    assert_eq!(bad[0].bad_block(), Some(3));
}

#[test]
fn a_block_flipped_together_with_its_table_entry_is_a_mismatch() {
    let forge = |placement: &Placement| {
        flip(placement, 2, 0, 4096);
        let (path, offset) = Disks::extent(placement, 2, 0);
        let file = OpenOptions::new().read(true).write(true).open(path).expect("it is there");
        let mut block = vec![0; BLOCK as usize];
        file.read_exact_at(&mut block, offset + 4096).expect("it is long enough");
        let entry = placement.stripes[2].owners[0].table_offset + 8;
        file.write_all_at(&block_checksum(&block).to_le_bytes(), entry).expect("writable");
    };
    let mut bench = bench(1, forge);
    // Part of the stripe: the forged table agrees with the forged block, the placement does not.
    let start = 2 * STRIPE;
    let part = bench.read_range(start + 4096, start + 8192, |read| read);
    assert_eq!(part[0].status(), Status::CHECKSUM_MISMATCH, "{:?}", part[0]);
    let whole = bench.read_range(start, start + STRIPE, |read| read);
    assert_eq!(whole[0].status(), Status::CHECKSUM_MISMATCH);
    assert!(bench.read_range(0, 10, |read| read)[0].status().is_ok(), "other stripes are good");
}

#[test]
fn without_checksums_nothing_claims_to_be_proved() {
    let mut bench = bench(1, |placement| flip(placement, 5, 0, 9));
    let mut bare = bench.stored.placement.clone();
    for stripe in &mut bare.stripes {
        (stripe.checksum, stripe.table_checksum) = (None, None);
    }
    bench.object = bench.engine.open(&bare).expect("it opens");
    for completion in bench.read(|read| read) {
        assert_eq!((completion.status(), completion.proof()), (Status::OK, Proof::None));
    }
}

#[test]
fn a_short_file_is_a_short_read_and_not_zeros() {
    let cut = |placement: &Placement| {
        let (path, offset) = Disks::extent(placement, 3, 0);
        let file = OpenOptions::new().write(true).open(path).expect("it is there");
        file.set_len(offset + 768).expect("it can be cut");
    };
    let mut bench = bench(1, cut);
    let all = bench.read_range(3 * STRIPE, 4 * STRIPE, |read| read.skip_verify());
    assert_eq!(all[0].status(), Status::SHORT_READ, "{:?}", all[0]);
    assert!(bench.read_range(0, STRIPE, |read| read)[0].status().is_ok());
}

#[test]
fn the_last_stripe_is_one_byte_and_its_padding_is_no_data() {
    let mut bench = bench(1, |_| {});
    let last = bench.read_range(8 * STRIPE, 8 * STRIPE + 1, |read| read).pop().expect("one");
    assert_eq!((last.bytes(), last.stripe(), last.proof()), (1, 8, Proof::Stripe));
    assert_eq!(last.checksum(), stripe_checksum(&bench.bytes[SIZE - 1..]));
    assert_eq!(bench.ring.bytes(&last), Some(&bench.bytes[SIZE - 1..]));
}

#[test]
fn a_stripe_set_touches_its_own_bytes_only() {
    let mut bench = bench(1, |_| {});
    let mut lease = bench.pool.take().expect("a lease");
    lease.as_mut_slice().fill(SENTINEL);
    let mask = 1 | 1 << 3 | 1 << 7;
    bench.ring.push(Read::stripes(&bench.object, 0, mask, lease)).expect("it fits");
    let lease = bench.finish().pop().and_then(Completion::into_lease).expect("the last brings it");
    for (index, stripe) in lease.as_slice().chunks(65_536).enumerate() {
        if index < 8 && mask >> index & 1 == 1 {
            assert!(*stripe == bench.bytes[index * 65_536..(index + 1) * 65_536], "{index}");
        } else {
            assert!(stripe.iter().all(|&byte| byte == SENTINEL), "stripe {index} was touched");
        }
    }
}

#[test]
fn garbage_on_one_disk_is_survived_with_copies() {
    let spoil = |placement: &Placement| {
        let (path, _) = Disks::extent(placement, 0, 0);
        let bytes = std::fs::metadata(&path).expect("it is there").len();
        let garbage = random_bytes(99, usize::try_from(bytes).expect("small"));
        OpenOptions::new()
            .write(true)
            .open(path)
            .expect("writable")
            .write_all_at(&garbage, 0)
            .expect("it is written");
    };
    let mut bench = bench(2, spoil);
    bench.is_right();
    assert!(bench.engine.stats().mismatches > 0, "the bad disk was tried");
    let part = bench.read_range(100, 70_000, |read| read);
    assert!(part.iter().all(|completion| completion.status().is_ok()), "{part:?}");
}

#[test]
fn a_file_that_is_gone_is_survived_with_copies_and_named_without() {
    let remove = |placement: &Placement| {
        let (path, _) = Disks::extent(placement, 0, 0);
        std::fs::remove_file(path).expect("it is there");
    };
    bench(2, remove).is_right();
    let whole = bench(1, |_| {});
    remove(&whole.stored.placement);
    let error = whole.engine.open(&whole.stored.placement).expect_err("half of it is gone");
    assert!(matches!(error, railring::OpenError::Stale { .. }), "{error}");
}

#[test]
fn a_disk_that_fails_is_survived_with_copies_and_cools_down() {
    let mut bench = bench(2, |_| {});
    let eio = rustix::io::Errno::IO.raw_os_error();
    bench.holding[0].fail(eio);
    for _ in 0..4 {
        bench.is_right();
    }
    let rails = bench.engine.rail_stats();
    assert!(rails[0].failed > 0 && rails[0].cooldowns > 0, "{}", rails[0]);
    assert!(bench.engine.stats().retries > 0);
    bench.holding[0].fail(0);
    bench.is_right();
    bench.holding[1].fail(eio);
    let start = Instant::now();
    // The first disk comes back after a probe, not because time passed.
    while bench.read(|read| read).iter().any(|completion| !completion.status().is_ok()) {
        let rails = bench.engine.rail_stats();
        let states = format!("{} {}", rails[0], rails[1]);
        assert!(start.elapsed() < PATIENCE, "the good disk never came back: {states}");
    }
}

#[test]
fn a_disk_that_fails_without_copies_fails_its_stripes_with_the_cause() {
    let mut bench = bench(1, |_| {});
    let eio = rustix::io::Errno::IO.raw_os_error();
    bench.holding[0].fail(eio);
    let all = bench.read(|read| read.allow_partial());
    let failed = all.iter().filter(|completion| !completion.status().is_ok()).count();
    assert!((4..=5).contains(&failed), "every other stripe: {failed}");
    assert!(all.iter().any(|completion| completion.status() == Status::from_errno(eio)));
    drop(all);
    bench.wait_until_free();
}

#[test]
fn a_hung_disk_ends_as_stuck_and_its_memory_comes_back_with_it() {
    let mut bench = bench(1, |_| {});
    bench.holding[1].hold();
    let mut all = bench.read(|read| read);
    let last = all.pop().expect("nine");
    assert_eq!(last.ended(), Some(Status::STUCK));
    assert!(last.into_lease().is_none(), "memory in doubt does not come back");
    drop(all);
    assert!(bench.engine.stats().impounded_bytes > 0);
    assert_eq!(bench.pool.free(), bench.pool.slots() - 1);
    // The other disk goes on.
    let placement = &bench.stored.placement;
    let endpoint = |stripe: usize| {
        let owner = &placement.stripes[stripe].owners[0];
        &placement.sources[usize::from(owner.source)].endpoint
    };
    let good = (0..2).find(|&stripe| endpoint(stripe).ends_with("disk0")).expect("in turn");
    let start = good as u64 * STRIPE;
    assert!(bench.read_range(start, start + STRIPE, |read| read)[0].status().is_ok());
    bench.holding[1].release();
    bench.wait_until_free();
    assert_eq!(bench.engine.stats().impounded_bytes, 0);
}

#[test]
fn rings_dropped_with_reads_in_flight_give_their_memory_back() {
    let bench = bench(1, |_| {});
    for round in 0..200 {
        let mut ring = bench.engine.ring(RingConfig::default()).expect("a ring");
        if round % 2 == 0 {
            bench.holding.iter().for_each(|rail| rail.hold());
        }
        while let Some(lease) = bench.pool.take() {
            ring.push(Read::new(&bench.object, 0..SIZE as u64, lease)).expect("it fits");
        }
        if round % 3 > 0 {
            ring.submit();
        }
        drop(ring);
        // What the heap gives out next is not what a device still writes.
        let blocks: Vec<Vec<u8>> = (0..16).map(|_| vec![SENTINEL; 4096]).collect();
        bench.holding.iter().for_each(|rail| rail.release());
        bench.wait_until_free();
        assert!(blocks.iter().flatten().all(|&byte| byte == SENTINEL));
    }
}

#[test]
fn a_forgotten_ring_leaks_and_the_engine_still_ends() {
    let mut bench = bench(1, |_| {});
    let mut ring = bench.engine.ring(RingConfig::default()).expect("a ring");
    let lease = bench.pool.take().expect("a lease");
    ring.push(Read::new(&bench.object, 0..SIZE as u64, lease)).expect("it fits");
    ring.submit();
    std::mem::forget(ring);
    std::mem::forget(bench.pool.take().expect("a lease"));
    bench.is_right();
    let Bench { engine, .. } = bench;
    drop(engine);
}

#[test]
fn an_engine_dropped_with_reads_in_flight_ends_them() {
    for held in [false, true] {
        let mut bench = bench(1, |_| {});
        if held {
            bench.holding[0].hold();
        }
        for _ in 0..4 {
            let lease = bench.pool.take().expect("a lease");
            bench.ring.push(Read::new(&bench.object, 0..SIZE as u64, lease)).expect("it fits");
        }
        bench.ring.submit();
        let Bench { engine, mut ring, pool, object, .. } = bench;
        drop(engine);
        let mut ended = 0;
        while let Some(completion) = ring.pop() {
            ended += usize::from(completion.ended().is_some());
        }
        assert_eq!(ended, 4, "each read ends once");
        let refused = ring.push(Read::new(&object, 0..0, pool.take().expect("a lease")));
        assert_eq!(refused.expect_err("it is gone").why, railring::PushError::EngineGone);
    }
}

#[test]
fn direct_reads_into_vectors_that_reuse_addresses_are_right() {
    let bench = bench(1, |_| {});
    let mut reader =
        BlockingReader::new(&bench.engine, BlockingReaderConfig::default()).expect("a reader");
    for round in 0..300_usize {
        let (from, bytes) = (round * 1009 % 400_000, 1 + round * 331 % 100_000);
        // A new vector each time, mostly at the address of the last.
        let mut vector = vec![SENTINEL; bytes];
        let range = from as u64..(from + bytes) as u64;
        reader
            .read_into_direct(&bench.object, range.clone(), &mut vector, ReadOptions::default())
            .expect("it works");
        assert!(vector == bench.bytes[from..from + bytes], "round {round}");
        let mut copied = vec![SENTINEL; bytes];
        reader
            .read_into(&bench.object, range, &mut copied, ReadOptions::default())
            .expect("it works");
        assert!(copied == vector);
    }
    assert_eq!(bench.engine.regions().stats().foreign_bytes, 0);
}
