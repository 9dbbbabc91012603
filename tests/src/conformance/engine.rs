//! The engine over the transport: two rails, an endpoint each, every stripe verified.

use std::time::{Duration, Instant};

use railring_catalog::checksum::{encode_table, stripe_checksum, table_checksum};
use railring_catalog::{ObjectKey, Owner, Placement, Source, StripePlacement};
use railring_core::{
    Completion, EngineBuilder, EngineConfig, InlineEngine, Object, PoolConfig, Progress, Rail,
    Read, Ring, RingConfig,
};
use railring_dma::{HugePages, Lease, Pool};
use railring_transport::{Link, Nanos};
use sq_cq::{Proof, Status};

use super::{ENDPOINTS, Time, Transport};

const START: Nanos = Nanos(1_000_000_000);
const PATIENCE: Duration = Duration::from_secs(30);
const STRIPE_BYTES: usize = 65_536;
const BLOCK_BYTES: u32 = 4096;
const SIZE: usize = 11 * STRIPE_BYTES + 1234;
const SENTINEL: u8 = 0xa5;

/// Which copies of a stripe have a wrong bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flipped {
    None,
    /// Of stripe 3, the first copy.
    One,
    /// Of stripe 3, all copies.
    All,
}

/// An object and what its bytes are.
struct Known {
    placement: Placement,
    bytes: Vec<u8>,
}

/// Stripe `i` at endpoints `i` and `i + 1`, each stripe and each table aligned to a block.
fn put<T: Transport>(transport: &mut T, name: &str, flipped: Flipped) -> Known {
    let mut bytes = vec![0; SIZE];
    fastrand::Rng::with_seed(name.len() as u64).fill(&mut bytes);
    let mut files = vec![Vec::new(); ENDPOINTS];
    let mut stripes = Vec::new();
    let mut lay = |source: usize, bytes: &[u8]| {
        let file: &mut Vec<u8> = &mut files[source];
        let offset = file.len();
        file.extend_from_slice(bytes);
        file.resize(file.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        offset as u64
    };
    for (index, stripe) in bytes.chunks(STRIPE_BYTES).enumerate() {
        let table = encode_table(stripe, BLOCK_BYTES);
        let mut owners = Vec::new();
        for copy in 0..ENDPOINTS {
            let source = (index + copy) % ENDPOINTS;
            let mut there = stripe.to_vec();
            let bad = flipped == Flipped::All || (flipped == Flipped::One && copy == 0);
            there[5000 % stripe.len()] ^= u8::from(bad && index == 3);
            let (offset, table_offset) = (lay(source, &there), lay(source, &table));
            let source = u16::try_from(source).expect("two");
            owners.push(Owner { source, offset, table_offset });
        }
        stripes.push(StripePlacement {
            index: u32::try_from(index).expect("few"),
            len_bytes: stripe.len() as u64,
            owners,
            checksum: Some(stripe_checksum(stripe)),
            table_checksum: Some(table_checksum(&table)),
        });
    }
    let source = |(endpoint, file): (usize, Vec<u8>)| Source {
        endpoint: transport.endpoint(endpoint),
        handle: transport.put(endpoint, name, &file),
    };
    let placement = Placement {
        key: ObjectKey::new("test", name).expect("a valid key"),
        generation: 1,
        etag: String::new(),
        handle: name.to_owned(),
        layout_version: 1,
        size_bytes: SIZE as u64,
        stripe_bytes: STRIPE_BYTES as u64,
        block_bytes: BLOCK_BYTES,
        sources: files.into_iter().enumerate().map(source).collect(),
        stripes,
    };
    Known { placement, bytes }
}

/// An engine over a rail to each endpoint; the test makes its turns.
struct Bench<T: Transport> {
    /// Dropped first: the engine of a transport ends before its peers.
    ring: Ring,
    engine: InlineEngine<T::Link>,
    pool: Pool,
    now: Nanos,
    begun: Instant,
    transport: T,
}

impl<T: Transport> Bench<T> {
    fn new(mut transport: T) -> Self {
        let rails = (0..ENDPOINTS).map(|endpoint| {
            let (control, mut link) = transport.rail(endpoint, 32);
            link.start();
            Rail { control, link, poller: 0 }
        });
        let rails = rails.collect();
        let config = EngineConfig { piece_bytes_max: 64 << 10, ..EngineConfig::default() };
        let builder = EngineBuilder::new(rails).config(config);
        let engine = builder.build_virtual(START).expect("a sensible engine");
        let memory = PoolConfig {
            slots: 8,
            slot_bytes: 1 << 20,
            huge_pages: HugePages::Never,
            ..PoolConfig::default()
        };
        let pool = engine.buffer_pool(memory).expect("a pool");
        let ring = engine.ring(RingConfig::default()).expect("a ring");
        Bench { ring, engine, pool, now: START, begun: Instant::now(), transport }
    }

    fn open(&mut self, name: &str, flipped: Flipped) -> (Object, Known) {
        let known = put(&mut self.transport, name, flipped);
        (self.engine.open(&known.placement).expect("it opens"), known)
    }

    /// A lease full of sentinels.
    fn lease(&self) -> Lease {
        let mut lease = self.pool.take().expect("there are enough for a test");
        lease.as_mut_slice().fill(SENTINEL);
        lease
    }

    fn turn(&mut self) {
        if self.engine.turn_at(self.now) == Progress::Worked {
            return;
        }
        self.now = match T::TIME {
            Time::Virtual => {
                let next = self.engine.next_event();
                Nanos(next.0.min(self.now.0 + 1_000_000_000).max(self.now.0 + 1))
            }
            Time::Real => {
                std::thread::sleep(Duration::from_micros(20));
                let elapsed = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                START.after(elapsed)
            }
        };
    }

    fn next(&mut self) -> Completion {
        self.ring.submit();
        let begun = Instant::now();
        loop {
            if let Some(completion) = self.ring.pop() {
                return completion;
            }
            assert!(begun.elapsed() < PATIENCE, "a completion is due");
            self.turn();
        }
    }

    /// All CQEs of one read, which is the only one.
    fn read(&mut self, read: Read<'_>) -> Vec<Completion> {
        self.ring.push(read).expect("accepted");
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

    /// Everything that was lent is back.
    fn rest(&mut self) {
        for _ in 0..50 {
            self.turn();
        }
        assert_eq!(self.pool.free(), self.pool.slots());
        for rail in self.engine.rail_stats() {
            assert_eq!((rail.in_flight, rail.strays, rail.staging_used_bytes), (0, 0, 0));
        }
        assert_eq!(self.engine.regions().stats().leaked_bytes, 0);
    }
}

/// The lease that the last CQE brings.
fn lease_of(cqes: Vec<Completion>) -> Lease {
    let last = cqes.into_iter().next_back().and_then(Completion::into_lease);
    last.expect("the last CQE brings the lease")
}

/// Whole objects, verified by their stripes, over both rails.
pub fn objects_over_several_rails_equal_their_source<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, known) = bench.open("whole", Flipped::None);
    for _ in 0..4 {
        let cqes = bench.read(Read::new(&object, 0..object.len(), bench.lease()));
        assert_eq!(cqes.len(), 12);
        for cqe in &cqes {
            assert_eq!((cqe.status(), cqe.proof(), cqe.attempts()), (Status::OK, Proof::Stripe, 1));
        }
        let lease = lease_of(cqes);
        assert!(lease.as_slice()[..SIZE] == known.bytes, "bytes differ");
        assert!(lease.as_slice()[SIZE..].iter().all(|byte| *byte == SENTINEL), "too many bytes");
    }
    let carried: Vec<u64> = bench.engine.rail_stats().iter().map(|rail| rail.bytes).collect();
    assert!(carried.iter().all(|bytes| *bytes > 0), "{carried:?}");
    bench.rest();
}

/// Ranges at any offset, of any length, verified by their blocks.
pub fn any_range_equals_its_source<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, known) = bench.open("ranges", Flipped::None);
    let seed = crate::stored::seed("any_range_equals_its_source");
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..60 {
        let edge = STRIPE_BYTES * rng.usize(0..12) + rng.usize(0..3);
        let (a, b) = (edge.saturating_sub(1).min(SIZE), rng.usize(0..=SIZE));
        let (from, to) = if round % 3 == 0 { (b, b) } else { (a.min(b), a.max(b)) };
        let cqes = bench.read(Read::new(&object, from as u64..to as u64, bench.lease()));
        assert!(cqes.iter().all(|cqe| cqe.status().is_ok()), "{from}..{to}: {cqes:?}");
        let whole = |cqe: &Completion| matches!(cqe.proof(), Proof::Stripe | Proof::Blocks);
        assert!(from == to || cqes.iter().all(whole), "{from}..{to}: {cqes:?}");
        let lease = lease_of(cqes);
        assert!(lease.as_slice()[..to - from] == known.bytes[from..to], "{from}..{to} differs");
        let behind = &lease.as_slice()[to - from..];
        assert!(behind.iter().all(|byte| *byte == SENTINEL), "{from}..{to}: too many bytes");
    }
    bench.rest();
}

/// A wrong bit of one copy costs an attempt, and nothing else.
pub fn a_flipped_bit_is_read_elsewhere<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, known) = bench.open("one-flipped", Flipped::One);
    let mut most = 0;
    for _ in 0..8 {
        let cqes = bench.read(Read::new(&object, 0..object.len(), bench.lease()));
        assert!(cqes.iter().all(|cqe| cqe.status().is_ok()), "{cqes:?}");
        most = cqes.iter().map(|cqe| cqe.attempts()).max().unwrap_or(0).max(most);
        assert!(lease_of(cqes).as_slice()[..SIZE] == known.bytes, "bytes differ");
    }
    assert_eq!(most > 1, bench.engine.stats().mismatches > 0);
    bench.rest();
}

/// A wrong bit of all copies fails its stripe; allow-partial delivers the others.
pub fn a_flipped_bit_in_all_copies_is_told_and_the_rest_is_delivered<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, known) = bench.open("all-flipped", Flipped::All);
    let read = Read::new(&object, 0..object.len(), bench.lease()).allow_partial();
    let cqes = bench.read(read);
    assert_eq!(cqes.len(), 12);
    let last = cqes.last().expect("twelve");
    assert_eq!(last.ended(), Some(Status::CHECKSUM_MISMATCH));
    assert_eq!(last.total_bytes(), (SIZE - STRIPE_BYTES) as u64);
    for cqe in &cqes {
        let status = if cqe.stripe() == 3 { Status::CHECKSUM_MISMATCH } else { Status::OK };
        assert_eq!(cqe.status(), status, "stripe {}", cqe.stripe());
    }
    let lease = lease_of(cqes);
    let good = |index: usize| index / STRIPE_BYTES != 3;
    let right = (0..SIZE).filter(|at| good(*at)).all(|at| lease.as_slice()[at] == known.bytes[at]);
    assert!(right, "a stripe that is ok differs");
    drop(lease);
    bench.rest();
}

/// No transfer begins.
pub fn a_deadline_in_the_past_touches_nothing<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, _) = bench.open("late", Flipped::None);
    for deadline in [Nanos(0), Nanos(1), START] {
        let read = Read::new(&object, 0..object.len(), bench.lease()).deadline(deadline);
        let cqes = bench.read(read);
        assert!(cqes.iter().all(|cqe| cqe.status() == Status::TIMED_OUT), "{cqes:?}");
        assert!(lease_of(cqes).as_slice().iter().all(|byte| *byte == SENTINEL));
    }
    bench.rest();
}

/// Cancelled at any moment: it ends once, as cancelled or as it would have.
pub fn a_cancelled_read_brings_its_lease_back_once<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, known) = bench.open("cancelled", Flipped::None);
    for turns in 0..40 {
        let read = Read::new(&object, 0..object.len(), bench.lease());
        let id = bench.ring.push(read).expect("accepted");
        bench.ring.submit();
        (0..turns).for_each(|_| bench.turn());
        bench.ring.cancel(id);
        let (mut stripes, mut lease) = (0, None);
        while lease.is_none() {
            let cqe = bench.next();
            stripes += 1;
            let status = cqe.status();
            assert!(status.is_ok() || status == Status::CANCELLED, "{status}");
            if status.is_ok() {
                let at = usize::from(cqe.stripe()) * STRIPE_BYTES;
                let bytes = bench.ring.bytes(&cqe).expect("it is ok");
                assert!(bytes == &known.bytes[at..at + bytes.len()], "bytes differ");
            }
            assert!(cqe.ended().is_some() == (stripes == 12));
            lease = cqe.into_lease();
        }
        assert!(!bench.ring.cancel(id), "it has ended");
    }
    bench.rest();
}

/// Whoever closes an object does not take it from those who read it.
pub fn a_closed_object_is_read_to_its_end<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    for turns in 0..20 {
        let (object, known) = bench.open("closed", Flipped::None);
        let read = Read::new(&object, 0..object.len(), bench.lease());
        bench.ring.push(read).expect("accepted");
        bench.ring.submit();
        (0..turns).for_each(|_| bench.turn());
        drop(object);
        let lease = loop {
            let cqe = bench.next();
            assert!(cqe.status().is_ok(), "{cqe:?}");
            if let Some(lease) = cqe.into_lease() {
                break lease;
            }
        };
        assert!(lease.as_slice()[..SIZE] == known.bytes, "bytes differ");
    }
    bench.rest();
}

/// One lease, two objects in turn: nothing of the first read lands in the second.
pub fn memory_is_read_into_again_at_once<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let objects = [bench.open("odd", Flipped::None), bench.open("even object", Flipped::One)];
    let mut lease = Some(bench.lease());
    for round in 0..30 {
        let (object, known) = &objects[round % 2];
        let read = Read::new(object, 0..object.len(), lease.take().expect("it came back"));
        let cqes = bench.read(read);
        assert!(cqes.iter().all(|cqe| cqe.status().is_ok()), "{cqes:?}");
        let back = lease_of(cqes);
        assert!(back.as_slice()[..SIZE] == known.bytes, "round {round}: bytes differ");
        lease = Some(back);
    }
    drop(lease);
    bench.rest();
}

/// Many reads at once, more than the rails have room for; then the engine is as new.
pub fn all_leases_and_handles_come_back<T: Transport>(transport: T) {
    let mut bench = Bench::new(transport);
    let (object, known) = bench.open("many", Flipped::None);
    let (mut pushed, mut ended) = (0, 0);
    while ended < 40 {
        while let Some(lease) = bench.pool.take().filter(|_| pushed < 40) {
            bench.ring.push(Read::new(&object, 0..object.len(), lease)).expect("accepted");
            pushed += 1;
        }
        let cqe = bench.next();
        assert!(cqe.status().is_ok(), "{cqe:?}");
        if let Some(lease) = cqe.into_lease() {
            assert!(lease.as_slice()[..SIZE] == known.bytes, "bytes differ");
            ended += 1;
        }
    }
    drop(object);
    bench.rest();
    assert_eq!((bench.ring.in_flight(), bench.engine.stats().reads_in_progress), (0, 0));
}
