//! Random reads through the engine against pread(2) of the file that the object was put from.
//!
//! A round is one object of random shape in a store on random directories, read through an engine
//! of random make: with threads or inline, io_uring or workers, O_DIRECT or not. A failure names
//! the round's seed; `RAILRING_DIFFERENTIAL_ROUND=<seed>` repeats that round alone.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use railring::file::{Backend, DirectIo, FileRailOptions};
use railring::store::PutOptions;
use railring::{
    Completion, Engine, EngineConfig, InlineEngine, Lease, Object, Policy, Pool, PoolConfig, Proof,
    Read, Ring, RingConfig, Scatter,
};
use railring_tests::stored::{Disks, random_bytes, seed};

const PATIENCE: Duration = Duration::from_secs(60);
/// What no read may touch.
const SENTINEL: u8 = 0xa5;
const GUARD_BYTES: usize = 64;
const READ_BYTES_MAX: usize = 1 << 20;
const SLOT_BYTES: usize = READ_BYTES_MAX + (64 << 10);

/// Lengths and offsets at which off-by-one errors live.
const EDGES: [u64; 14] =
    [0, 1, 7, 8, 511, 512, 513, 4095, 4096, 4097, 65_535, 65_536, 65_537, 262_144];

/// Small values as often as large ones.
fn log_uniform(rng: &mut Rng, most: u64) -> u64 {
    let bits = rng.u32(0..=(64 - most.leading_zeros()));
    let below = if bits == 0 { 1 } else { 1_u64 << (bits - 1).min(62) };
    rng.u64(0..=below * 2 - 1).min(most)
}

fn size(rng: &mut Rng, most: u64) -> u64 {
    if rng.u8(0..3) == 0 {
        EDGES[rng.usize(0..EDGES.len())].min(most)
    } else {
        log_uniform(rng, most)
    }
}

/// Who makes the turns.
enum Maker {
    Threads(Engine),
    Inline(Box<InlineEngine>),
}

macro_rules! either {
    ($self:ident, $engine:ident => $call:expr) => {
        match $self {
            Maker::Threads($engine) => $call,
            Maker::Inline($engine) => $call,
        }
    };
}

impl Maker {
    fn new(rng: &mut Rng, disks: &Disks) -> Maker {
        let mut rails = railring::RailSet::new();
        for directory in &disks.directories {
            let options = FileRailOptions {
                queue_depth: [1, 4, 64][rng.usize(0..3)],
                direct: if rng.u8(0..4) == 0 { DirectIo::Never } else { DirectIo::Try },
                backend: if rng.u8(0..8) == 0 { Backend::Workers } else { Backend::Auto },
                ..FileRailOptions::default()
            };
            rails = rails.file(directory, options).expect("the directory is there");
        }
        let policies = [Policy::LeastLoaded, Policy::WeightedRoundRobin, Policy::Fixed];
        let config = EngineConfig {
            policy: policies[rng.usize(0..3)],
            piece_bytes_max: [64 << 10, 256 << 10, 4 << 20][rng.usize(0..3)],
            reads_max: [2, 64, 4096][rng.usize(0..3)],
            staging_bytes: 2 << 20,
            ..EngineConfig::default()
        };
        let builder = Engine::builder().rails(rails).config(config);
        if rng.bool() {
            Maker::Threads(builder.pollers(rng.u32(1..=2)).build().expect("it starts"))
        } else {
            Maker::Inline(Box::new(builder.build_inline().expect("it starts")))
        }
    }

    fn wait(&mut self, ring: &mut Ring) {
        let ready = match self {
            Maker::Threads(_) => ring.wait(1, PATIENCE),
            Maker::Inline(engine) => engine.wait(ring, 1, PATIENCE),
        };
        assert!(ready.expect("the engine lives") > 0, "no completion within {PATIENCE:?}");
    }
}

/// What a read in flight must give.
struct Expected {
    /// First byte of the object that lands, at the start of the memory.
    offset: u64,
    len: usize,
    /// The stripes' numbers.
    stripes: Vec<u32>,
    seen: u32,
    scattered: bool,
    quiet: bool,
    verified: bool,
    /// The neighbours of the read's memory.
    guards: Vec<Lease>,
}

/// A read that lacks only its object.
enum Made {
    Range(Range<u64>, Lease),
    Scattered(Range<u64>, Scatter),
    Stripes(u32, u64, Lease),
}

impl Made {
    fn of(self, object: &Object) -> Read<'_> {
        match self {
            Made::Range(range, lease) => Read::new(object, range, lease),
            Made::Scattered(range, scatter) => Read::scattered(object, range, scatter),
            Made::Stripes(first, mask, lease) => Read::stripes(object, first, mask, lease),
        }
    }
}

struct Round<'a> {
    rng: Rng,
    maker: Maker,
    ring: Ring,
    pool: Pool,
    object: Object,
    file: &'a File,
    size: u64,
    stripe_bytes: u64,
    in_flight: Vec<Option<Expected>>,
    scratch: Vec<u8>,
}

/// A lease of `bytes` at an odd place of a slot, filled with the sentinel, and its neighbours.
fn cut(rng: &mut Rng, pool: &Pool, bytes: usize) -> Option<(Lease, [Lease; 2])> {
    let slot = pool.take()?;
    let skip = [0, 1, 8, 511, 512, 4096, rng.usize(0..8192)][rng.usize(0..7)];
    let (mut head, rest) = slot.split_at(skip).expect("a slot is longer");
    let (mut mine, mut tail) = rest.split_at(bytes).expect("a slot is longer");
    mine.as_mut_slice().fill(SENTINEL);
    let guard = head.len().min(GUARD_BYTES);
    let from = head.len() - guard;
    head.as_mut_slice()[from..].fill(SENTINEL);
    tail.as_mut_slice()[..GUARD_BYTES].fill(SENTINEL);
    Some((mine, [head, tail]))
}

fn is_untouched(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == SENTINEL)
}

impl Round<'_> {
    fn run(&mut self, reads: usize) {
        let mut left = reads;
        let mut pending = 0;
        while left > 0 || pending > 0 {
            while left > 0 && self.push() {
                left -= 1;
                pending += 1;
            }
            self.maker.wait(&mut self.ring);
            while let Some(completion) = self.ring.pop() {
                pending -= usize::from(self.check(completion));
            }
        }
        assert_eq!(self.pool.free(), self.pool.slots(), "memory got lost");
    }

    /// Pushes a random read; `false` if there is no room.
    fn push(&mut self) -> bool {
        let Some(at) = self.in_flight.iter().position(Option::is_none) else { return false };
        let sets = self.size > 0 && self.stripe_bytes <= READ_BYTES_MAX as u64;
        let made = match self.rng.u8(0..10) {
            0 | 1 if sets => self.stripes(),
            2 => self.scattered(),
            _ => self.range(),
        };
        let Some((read, mut expected)) = made else { return false };
        let object = self.object.clone();
        let mut read = read.of(&object).user_data(at as u64);
        if self.rng.u8(0..4) == 0 {
            read = read.skip_verify();
            expected.verified = false;
        }
        if self.rng.u8(0..8) == 0 {
            read = read.quiet(self.rng.u16(0..9));
            expected.quiet = true;
        }
        match self.ring.push(read) {
            Ok(_) => self.in_flight[at] = Some(expected),
            Err(refused) => {
                assert!(refused.is_full(), "refused: {refused}");
                return false;
            }
        }
        true
    }

    fn random_range(&mut self) -> (u64, usize) {
        let len = size(&mut self.rng, self.size.min(READ_BYTES_MAX as u64));
        let last = self.size - len;
        let offset = match self.rng.u8(0..4) {
            0 => last,
            1 => size(&mut self.rng, last),
            2 => (self.rng.u64(0..=last) / self.stripe_bytes * self.stripe_bytes).min(last),
            _ => self.rng.u64(0..=last),
        };
        (offset, usize::try_from(len).expect("at most 1 MiB"))
    }

    fn expect(&self, offset: u64, len: usize, stripes: Vec<u32>) -> Expected {
        let (seen, verified, guards) = (0, true, Vec::new());
        let (scattered, quiet) = (false, false);
        Expected { offset, len, stripes, seen, scattered, quiet, verified, guards }
    }

    fn covered(&self, offset: u64, len: usize) -> Vec<u32> {
        if len == 0 {
            return Vec::new();
        }
        let number = |at: u64| u32::try_from(at / self.stripe_bytes).expect("few stripes");
        (number(offset)..=number(offset + len as u64 - 1)).collect()
    }

    fn range(&mut self) -> Option<(Made, Expected)> {
        let (offset, len) = self.random_range();
        let slack = self.rng.usize(0..100);
        let (lease, guards) = cut(&mut self.rng, &self.pool, len + slack)?;
        let mut expected = self.expect(offset, len, self.covered(offset, len));
        expected.guards.extend(guards);
        Some((Made::Range(offset..offset + len as u64, lease), expected))
    }

    fn scattered(&mut self) -> Option<(Made, Expected)> {
        let (offset, len) = self.random_range();
        let mut expected = self.expect(offset, len, self.covered(offset, len));
        let count = self.rng.usize(1..5);
        let mut left = len;
        let mut leases = Vec::new();
        for index in 0..count {
            let last = index + 1 == count;
            let bytes = if last { left } else { self.rng.usize(0..=left) };
            let slack = if last { self.rng.usize(0..100) } else { 0 };
            let (lease, guards) = cut(&mut self.rng, &self.pool, bytes + slack)?;
            leases.push(lease);
            expected.guards.extend(guards);
            left -= bytes;
        }
        let range = offset..offset + len as u64;
        expected.scattered = true;
        Some((Made::Scattered(range, Scatter::new(leases)), expected))
    }

    fn stripes(&mut self) -> Option<(Made, Expected)> {
        let count = self.object.stripes();
        let first = self.rng.u32(0..count);
        let room = u64::from(count - first).min(64).min(READ_BYTES_MAX as u64 / self.stripe_bytes);
        let mask = (self.rng.u64(..) | 1) & (u64::MAX >> (64 - room));
        let stripes: Vec<u32> =
            (0..64).filter(|bit| mask >> bit & 1 == 1).map(|b| first + b).collect();
        let last = *stripes.last().expect("bit 0 is set");
        let offset = u64::from(first) * self.stripe_bytes;
        let end = (u64::from(last + 1) * self.stripe_bytes).min(self.size);
        let len = usize::try_from(end - offset).expect("at most 1 MiB");
        let slack = self.rng.usize(0..100);
        let (lease, guards) = cut(&mut self.rng, &self.pool, len + slack)?;
        let mut expected = self.expect(offset, len, stripes);
        expected.guards.extend(guards);
        Some((Made::Stripes(first, mask, lease), expected))
    }

    /// Checks one CQE; `true` if it was its read's last.
    fn check(&mut self, completion: Completion) -> bool {
        let at = usize::try_from(completion.user_data()).expect("an index");
        let expected = self.in_flight[at].as_mut().expect("one CQE too many");
        assert!(completion.status().is_ok(), "{completion:?}");
        expected.seen += 1;
        if let Some(bytes) = self.ring.bytes(&completion)
            && !expected.stripes.is_empty()
        {
            let stripe = u32::from(completion.stripe());
            assert!(expected.stripes.contains(&stripe), "stripe {stripe} was not asked for");
            let start = (u64::from(stripe) * self.stripe_bytes).max(expected.offset);
            let end = expected.offset + expected.len as u64;
            let end = (u64::from(stripe + 1) * self.stripe_bytes).min(end);
            assert_eq!(completion.bytes(), end - start);
            assert_eq!(bytes.len() as u64, end - start);
            let pread = pread(self.file, &mut self.scratch, start, bytes.len());
            assert!(bytes == pread, "stripe {stripe} differs from pread: {completion:?}");
            let proven = completion.proof() != Proof::None;
            assert_eq!(proven, expected.verified, "{completion:?}");
        }
        let Some(status) = completion.ended() else { return false };
        assert!(status.is_ok());
        let expected = self.in_flight[at].take().expect("checked above");
        let count = if expected.quiet { 1 } else { expected.stripes.len().max(1) };
        assert_eq!(expected.seen as usize, count, "CQEs of {} stripes", expected.stripes.len());
        self.check_memory(completion, &expected);
        true
    }

    /// All bytes of an ended read, in order: what was read, and what was not to be touched.
    fn check_memory(&mut self, completion: Completion, expected: &Expected) {
        let leases = memory_of(completion, expected.scattered);
        let mut at = expected.offset;
        let end = expected.offset + expected.len as u64;
        for lease in &leases {
            let take = usize::try_from((end - at).min(lease.len() as u64)).expect("it fits");
            let (read, slack) = lease.as_slice().split_at(take);
            assert!(is_untouched(slack), "bytes behind the read were written");
            self.check_run(at, read, expected);
            at += take as u64;
        }
        assert_eq!(at, end, "memory is missing");
        let guards = expected.guards.chunks(2);
        for pair in guards {
            let head = pair[0].as_slice();
            assert!(is_untouched(&head[head.len() - head.len().min(GUARD_BYTES)..]));
            assert!(is_untouched(&pair[1].as_slice()[..GUARD_BYTES]));
        }
    }

    fn check_run(&mut self, at: u64, read: &[u8], expected: &Expected) {
        let mut done = 0;
        while done < read.len() {
            let offset = at + done as u64;
            let stripe = offset / self.stripe_bytes;
            let stripe_end = (stripe + 1) * self.stripe_bytes;
            let run = usize::try_from(stripe_end - offset).unwrap_or(usize::MAX);
            let run = run.min(read.len() - done);
            let bytes = &read[done..done + run];
            if expected.stripes.contains(&u32::try_from(stripe).expect("few stripes")) {
                let pread = pread(self.file, &mut self.scratch, offset, run);
                assert!(bytes == pread, "bytes at {offset} differ from pread");
            } else {
                assert!(is_untouched(bytes), "the gap at stripe {stripe} was written");
            }
            done += run;
        }
    }
}

fn memory_of(completion: Completion, scattered: bool) -> Vec<Lease> {
    if scattered {
        completion.into_scatter().expect("the last CQE brings the memory").into_leases()
    } else {
        vec![completion.into_lease().expect("the last CQE brings the memory")]
    }
}

fn pread<'s>(file: &File, scratch: &'s mut Vec<u8>, offset: u64, bytes: usize) -> &'s [u8] {
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
    file.read_exact_at(&mut scratch[..bytes], offset).expect("the source file is whole");
    &scratch[..bytes]
}

fn run_round(seed: u64, base: &Path, reads: usize) {
    let mut rng = Rng::with_seed(seed);
    let disks = Disks::new(base, rng.usize(1..4));
    let most = if rng.u8(0..8) == 0 { 6 << 20 } else { 1 << 20 };
    let bytes = size(&mut rng, most);
    let least = bytes.div_ceil(2000).max(1);
    let stripe_bytes = size(&mut rng, 2 << 20).max(least);
    let options = PutOptions {
        stripe_bytes,
        block_bytes: 4096 << rng.u32(0..9),
        copies: rng.u16(1..=u16::try_from(disks.directories.len()).expect("few")),
        ..PutOptions::default()
    };
    let stored =
        disks.put("object", &random_bytes(seed, usize::try_from(bytes).expect("small")), &options);
    let maker = Maker::new(&mut rng, &disks);
    let memory = PoolConfig { slots: 24, slot_bytes: SLOT_BYTES, ..PoolConfig::default() };
    let sizes =
        RingConfig { sq_entries: 1 << rng.u32(0..7), cq_entries: 4096, ..RingConfig::default() };
    let maker_ref = &maker;
    let pool = either!(maker_ref, engine => engine.buffer_pool(memory)).expect("a pool");
    let object = either!(maker_ref, engine => engine.open(&stored.placement)).expect("it opens");
    let ring = either!(maker_ref, engine => engine.ring(sizes)).expect("a ring");
    let mut round = Round {
        rng,
        maker,
        ring,
        pool,
        object,
        file: &stored.file,
        size: bytes,
        stripe_bytes,
        in_flight: (0..20).map(|_| None).collect(),
        scratch: Vec::new(),
    };
    round.run(reads);
}

/// Runs rounds of `reads_per_round` until `reads` are done, on each of the directories in turn.
fn run(test: &str, reads: usize, reads_per_round: usize) {
    let mut bases = vec![env!("CARGO_TARGET_TMPDIR")];
    if std::fs::metadata("/dev/shm").is_ok_and(|meta| meta.is_dir()) {
        bases.push("/dev/shm");
    } else {
        println!("SKIP {test} on tmpfs: there is no /dev/shm");
    }
    if let Ok(round) = std::env::var("RAILRING_DIFFERENTIAL_ROUND") {
        let round = round.parse().expect("a seed is a number");
        bases.iter().for_each(|base| run_round(round, Path::new(base), reads_per_round));
        return;
    }
    let start = Instant::now();
    let mut rng = Rng::with_seed(seed(test));
    let rounds = reads.div_ceil(reads_per_round);
    for index in 0..rounds {
        let (round, base) = (rng.u64(..), Path::new(bases[index % bases.len()]));
        let outcome = std::panic::catch_unwind(|| run_round(round, base, reads_per_round));
        if outcome.is_err() {
            panic!("round RAILRING_DIFFERENTIAL_ROUND={round} on {} failed", base.display());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{test}: {} reads in {rounds} rounds, {seconds:.1} s", rounds * reads_per_round);
}

#[test]
fn random_reads_equal_pread() {
    let reads = std::env::var("RAILRING_DIFFERENTIAL_READS").ok();
    let reads = reads.map_or(20_000, |reads| reads.parse().expect("a count is a number"));
    run("random_reads_equal_pread", reads, 500);
}
