//! Waiting for room, and blocking reads: whatever fails, the caller's slice is as it was.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use railring_core::{
    BlockingReader, BlockingReaderConfig, CancelledBy, Drive, EngineConfig, Limits, Object,
    PublishGate, PushError, ReadIntoError, ReadOptions, Ring, RingConfig, Verification, WaitError,
};
use railring_sim::{Fault, FaultPlan, SimRailConfig, SimWorld, When};
use railring_tests::objects::{self, Known, Shape};
use railring_tests::virtual_engine::VirtualEngine;
use railring_transport::Nanos;
use sq_cq::Status;

const SENTINEL: u8 = 0xa5;
const MIB: u64 = 1 << 20;

/// A simulated engine as a driver of blocking calls: waiting moves its time on.
struct Virtual<'a> {
    sim: &'a mut VirtualEngine,
    /// Called before each step, with the time.
    before_step: &'a mut dyn FnMut(Nanos),
}

impl Drive for Virtual<'_> {
    fn wait(
        &mut self,
        ring: &mut Ring,
        timeout: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), WaitError> {
        ring.submit();
        let nanoseconds = u64::try_from(timeout.as_nanos()).expect("short");
        let end = self.sim.clock.now().after(nanoseconds);
        loop {
            if ring.ready() > 0 || stop() {
                return Ok(());
            }
            let now = self.sim.clock.now();
            (self.before_step)(now);
            if !self.sim.step() {
                // Nothing will happen by itself: the time passes all the same.
                self.sim.clock.advance_to(end);
                self.sim.engine.turn_at(end);
            }
            if self.sim.clock.now() >= end {
                return Ok(());
            }
        }
    }
}

struct Bench {
    sim: VirtualEngine,
    known: Known,
    object: Object,
    reader: BlockingReader,
    world: SimWorld,
}

fn shape() -> Shape {
    Shape { size_bytes: 3 * MIB + 17, stripe_bytes: MIB, block_bytes: 65_536, copies: 1 }
}

fn config() -> EngineConfig {
    EngineConfig {
        attempts_max: 2,
        io_timeout: Duration::from_millis(200),
        cancel_grace: Duration::from_millis(10),
        quiet_bound: Duration::from_millis(50),
        ..EngineConfig::default()
    }
}

impl Bench {
    fn new(faults: FaultPlan) -> Bench {
        Bench::with(
            faults,
            config(),
            BlockingReaderConfig { read_bytes_max: 4 << 20, ..BlockingReaderConfig::default() },
        )
    }

    fn with(faults: FaultPlan, engine: EngineConfig, reader: BlockingReaderConfig) -> Bench {
        let mut world = SimWorld::new(1);
        let servers = ["server0".to_owned(), "server1".to_owned()];
        let known = objects::put(&world, "object", shape(), &servers, 7);
        let mut rails = vec![SimRailConfig::new("r0"), SimRailConfig::new("r1")];
        for rail in &mut rails {
            rail.faults = faults.clone();
        }
        let sim = VirtualEngine::new(&mut world, rails, &[0, 1], engine);
        let object = sim.engine.open(&known.placement).expect("it opens");
        let reader = BlockingReader::new_inline(&sim.engine, reader).expect("a reader");
        Bench { sim, known, object, reader, world }
    }

    fn read(
        &mut self,
        range: Range<u64>,
        slice: &mut [u8],
        options: ReadOptions<'_>,
    ) -> Result<(), ReadIntoError> {
        self.read_while(range, slice, options, &mut |_| {})
    }

    fn read_while(
        &mut self,
        range: Range<u64>,
        slice: &mut [u8],
        options: ReadOptions<'_>,
        before_step: &mut dyn FnMut(Nanos),
    ) -> Result<(), ReadIntoError> {
        let mut drive = Virtual { sim: &mut self.sim, before_step };
        self.reader.read_into_driven(&mut drive, &self.object, range, slice, options)
    }

    fn whole(&self) -> Range<u64> {
        0..self.object.len()
    }

    /// Reads everything with something wrong; the slice must be as it was.
    fn fails(&mut self, options: ReadOptions<'_>) -> ReadIntoError {
        self.fails_while(options, &mut |_| {})
    }

    fn fails_while(
        &mut self,
        options: ReadOptions<'_>,
        before_step: &mut dyn FnMut(Nanos),
    ) -> ReadIntoError {
        let mut slice = vec![SENTINEL; self.known.bytes.len() + 3];
        let error = self
            .read_while(self.whole(), &mut slice, options, before_step)
            .expect_err("something is wrong");
        assert!(slice.iter().all(|&byte| byte == SENTINEL), "the slice was touched: {error}");
        error
    }

    /// After whatever happened, the reader works.
    fn still_reads(&mut self) {
        let mut slice = vec![SENTINEL; 70_000];
        self.read(MIB - 5..MIB + 69_995, &mut slice, ReadOptions::default()).expect("it works");
        let at = usize::try_from(MIB).expect("small") - 5;
        assert!(slice == self.known.bytes[at..at + 70_000]);
    }
}

fn status_of(error: &ReadIntoError) -> Status {
    error.status().unwrap_or_else(|| panic!("refused: {error}"))
}

#[test]
fn a_range_lands_exactly_and_nothing_behind_it_is_touched() {
    let mut bench = Bench::new(FaultPlan::none());
    let size = usize::try_from(bench.object.len()).expect("small");
    for range in [0..size, 5..size - 5, 0..0, size..size, 7..8, 65_535..1_200_001] {
        let mut slice = vec![SENTINEL; range.len() + 9];
        let wanted = range.start as u64..range.end as u64;
        bench.read(wanted, &mut slice, ReadOptions::default()).expect("it works");
        assert!(slice[..range.len()] == bench.known.bytes[range.clone()], "{range:?}");
        assert!(slice[range.len()..].iter().all(|&byte| byte == SENTINEL), "{range:?}");
    }
}

#[test]
fn a_read_beyond_the_limit_of_one_read_is_split_and_lands_whole() {
    let limits = Limits { read_bytes_max: 100_000, ..Limits::default() };
    let reader = BlockingReaderConfig {
        read_bytes_max: 4 << 20,
        ring: RingConfig { sq_entries: 2, cq_entries: 2, ..RingConfig::default() },
        ..BlockingReaderConfig::default()
    };
    let mut bench = Bench::with(FaultPlan::none(), EngineConfig { limits, ..config() }, reader);
    let mut slice = vec![0; bench.known.bytes.len()];
    bench.read(bench.whole(), &mut slice, ReadOptions::default()).expect("it works");
    assert!(slice == bench.known.bytes);
}

#[test]
fn a_mismatch_leaves_the_slice_untouched() {
    let flip = FaultPlan::none().with(Fault::FlippedByte, When::ALWAYS);
    let mut bench = Bench::new(flip);
    let error = bench.fails(ReadOptions::default());
    assert_eq!(status_of(&error), Status::CHECKSUM_MISMATCH);
    let ReadIntoError::Failed(failure) = error else { panic!("{error}") };
    assert_eq!(failure.attempts, 2);
}

#[test]
fn a_failing_rail_leaves_the_slice_untouched() {
    let fault = Fault::TransferError { status: Status::from_errno(5), vendor: 0 };
    let mut bench = Bench::new(FaultPlan::none().with(fault, When::ALWAYS));
    let error = bench.fails(ReadOptions::default());
    assert!(matches!(error, ReadIntoError::Failed(_)), "{error}");
}

#[test]
fn short_bytes_leave_the_slice_untouched() {
    let mut bench = Bench::new(FaultPlan::none().with(Fault::ShortDelivery, When::ALWAYS));
    assert_eq!(status_of(&bench.fails(ReadOptions::default())), Status::SHORT_READ);
    let mut bench = Bench::new(FaultPlan::none().with(Fault::SilentTruncation, When::ALWAYS));
    assert_eq!(status_of(&bench.fails(ReadOptions::default())), Status::CHECKSUM_MISMATCH);
}

#[test]
fn one_bad_stripe_among_good_ones_leaves_the_slice_untouched() {
    let flip = FaultPlan::none().with_at("server1", Fault::FlippedByte, When::ALWAYS);
    let mut bench = Bench::new(flip);
    let ReadIntoError::Failed(failure) = bench.fails(ReadOptions::default()) else {
        panic!("stripe 1 is bad")
    };
    assert_eq!((failure.status, failure.stripe % 2), (Status::CHECKSUM_MISMATCH, 1));
    // Stripe 0 is another server's.
    let mut slice = vec![0; 1000];
    bench.read(10..1010, &mut slice, ReadOptions::default()).expect("stripe 0 is good");
    assert!(slice == bench.known.bytes[10..1010]);
}

#[test]
fn a_stale_generation_leaves_the_slice_untouched() {
    let mut bench = Bench::new(FaultPlan::none().with(Fault::StaleAnswer, When::ALWAYS));
    assert!(status_of(&bench.fails(ReadOptions::default())).is_stale());
}

#[test]
fn an_object_that_vanished_leaves_the_slice_untouched() {
    let mut bench = Bench::new(FaultPlan::none());
    for server in ["server0", "server1"] {
        bench.world.remove(server, "object.1");
    }
    let error = bench.fails(ReadOptions::default());
    assert!(matches!(error, ReadIntoError::Failed(_)), "{error}");
}

#[test]
fn a_deadline_leaves_the_slice_untouched() {
    let slow = Fault::Delay { delay_ns: 40_000_000 };
    let mut bench = Bench::new(FaultPlan::none().with(slow, When::ALWAYS));
    let timeout = Some(Duration::from_millis(5));
    let error = bench.fails(ReadOptions { timeout, ..ReadOptions::default() });
    assert!(matches!(error, ReadIntoError::TimedOut), "{error}");
    bench.still_reads();
    let timeout = Some(Duration::ZERO);
    let error = bench.fails(ReadOptions { timeout, ..ReadOptions::default() });
    assert!(matches!(error, ReadIntoError::TimedOut), "{error}");
}

#[test]
fn a_cancelled_token_leaves_the_slice_untouched() {
    let mut bench = Bench::new(FaultPlan::none());
    let token = bench.sim.engine.cancel_token();
    let start = bench.sim.clock.now();
    let cancelled_by = CancelledBy::Token(&token);
    let options = ReadOptions { cancelled_by, ..ReadOptions::default() };
    let error = bench.fails_while(options, &mut |now| {
        if now > start {
            token.cancel();
        }
    });
    assert!(matches!(error, ReadIntoError::Cancelled), "{error}");
    bench.still_reads();
    let cancelled_by = CancelledBy::Token(&token);
    let error = bench.fails(ReadOptions { cancelled_by, ..ReadOptions::default() });
    assert!(matches!(error, ReadIntoError::Cancelled), "{error}");
}

#[test]
fn a_stuck_read_leaves_the_slice_untouched_and_another_buffer_stands_in() {
    let hang = Fault::Hang { returns_after_ns: Some(2_000_000_000) };
    let first = When::Nth(1);
    let mut bench = Bench::new(FaultPlan::none().with(hang, first));
    let free = bench.reader.buffers_free();
    let error = bench.fails(ReadOptions::default());
    assert_eq!(status_of(&error), Status::STUCK);
    assert!(bench.sim.engine.stats().impounded_bytes > 0);
    bench.still_reads();
    bench.sim.clock.advance_by(2_500_000_000);
    while bench.sim.step() {}
    bench.still_reads();
    assert_eq!(bench.sim.engine.stats().impounded_bytes, 0, "the late memory came back");
    assert_eq!(bench.reader.buffers_free(), free);
}

#[test]
fn an_object_that_changed_meanwhile_leaves_the_slice_untouched() {
    let mut bench = Bench::new(FaultPlan::none());
    let mut newer = bench.known.placement.clone();
    newer.generation = 2;
    let mut moved = bench.known.placement.clone();
    moved.stripes[1].owners[0].offset += 4096;
    for (answer, generation) in [(Some(newer), Some(2)), (Some(moved), Some(1)), (None, None)] {
        let mut recheck = || Ok(answer.clone());
        let options = ReadOptions { recheck: Some(&mut recheck), ..ReadOptions::default() };
        match bench.fails(options) {
            ReadIntoError::VersionChanged { read: 1, now } => assert_eq!(now, generation),
            error => panic!("{error}"),
        }
    }
    let mut recheck = || Err("the catalog is away".into());
    let options = ReadOptions { recheck: Some(&mut recheck), ..ReadOptions::default() };
    assert!(matches!(bench.fails(options), ReadIntoError::Recheck(_)));
}

#[test]
fn an_unchanged_object_is_published_after_one_recheck() {
    let mut bench = Bench::new(FaultPlan::none());
    let asked = Cell::new(0);
    let placement = bench.known.placement.clone();
    let mut recheck = || {
        asked.set(asked.get() + 1);
        Ok(Some(placement.clone()))
    };
    let options = ReadOptions { recheck: Some(&mut recheck), ..ReadOptions::default() };
    let mut slice = vec![0; 100];
    bench.read(1..101, &mut slice, options).expect("it works");
    assert!(slice == bench.known.bytes[1..101]);
    assert_eq!(asked.get(), 1);
}

#[test]
fn cancel_and_publish_have_exactly_one_winner() {
    // Cancelled before, during and after: the outcome and the slice always say the same.
    for cancel_at in 0..60_u64 {
        let mut bench = Bench::new(FaultPlan::none());
        let gate = PublishGate::new(bench.sim.engine.cancel_token());
        let mut won = None;
        let mut steps = 0;
        let mut slice = vec![SENTINEL; bench.known.bytes.len()];
        let cancelled_by = CancelledBy::Gate(&gate);
        let options = ReadOptions { cancelled_by, ..ReadOptions::default() };
        let outcome = bench.read_while(bench.whole(), &mut slice, options, &mut |_| {
            if steps == cancel_at {
                won = Some(gate.cancel());
            }
            steps += 1;
        });
        let won = won.unwrap_or_else(|| gate.cancel());
        if won {
            assert!(matches!(outcome, Err(ReadIntoError::Cancelled)), "{outcome:?}");
            assert!(slice.iter().all(|&byte| byte == SENTINEL));
        } else {
            outcome.expect("published");
            assert!(slice == bench.known.bytes);
        }
        assert_eq!(gate.cancel(), won, "the decision stands");
    }
}

#[test]
fn a_gate_decides_while_it_is_rechecked() {
    let mut bench = Bench::new(FaultPlan::none());
    let gate = PublishGate::new(bench.sim.engine.cancel_token());
    let placement = bench.known.placement.clone();
    let mut recheck = || {
        assert!(gate.cancel(), "nothing is published yet");
        Ok(Some(placement.clone()))
    };
    let options = ReadOptions {
        cancelled_by: CancelledBy::Gate(&gate),
        recheck: Some(&mut recheck),
        ..ReadOptions::default()
    };
    assert!(matches!(bench.fails(options), ReadIntoError::Cancelled));
}

#[test]
fn what_makes_no_sense_is_refused_before_any_io() {
    let mut bench = Bench::new(FaultPlan::none());
    let size = bench.object.len();
    let mut small = vec![SENTINEL; 10];
    let error = bench.read(0..11, &mut small, ReadOptions::default()).expect_err("too small");
    let too_small = PushError::BufferTooSmall { need: 11, have: 10 };
    assert!(matches!(error, ReadIntoError::Refused(why) if why == too_small));
    let mut slice = vec![SENTINEL; 64];
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let ranges = [size - 1..size + 1, 5..4, size + 1..size + 1, u64::MAX - 1..u64::MAX];
    for range in ranges {
        let error = bench.read(range, &mut slice, ReadOptions::default()).expect_err("no such");
        assert!(matches!(error, ReadIntoError::Refused(PushError::OutOfRange { .. })), "{error}");
    }
    assert!(slice.iter().chain(&small).all(|&byte| byte == SENTINEL));
    assert_eq!(bench.sim.engine.stats().reads, 0);
}

#[test]
fn a_range_over_the_readers_memory_names_the_limit() {
    let reader = BlockingReaderConfig { read_bytes_max: 1000, ..BlockingReaderConfig::default() };
    let mut bench = Bench::with(FaultPlan::none(), config(), reader);
    let mut slice = vec![SENTINEL; 1001];
    let error = bench.read(0..1001, &mut slice, ReadOptions::default()).expect_err("too large");
    assert!(matches!(error, ReadIntoError::TooLarge { bytes: 1001, limit: 1000 }), "{error}");
    assert!(error.to_string().contains("read_bytes_max"), "{error}");
    assert!(slice.iter().all(|&byte| byte == SENTINEL));
    bench.read(0..1000, &mut slice[..1000], ReadOptions::default()).expect("it fits");
}

#[test]
fn unverified_bytes_are_an_error_unless_asked_for() {
    let mut bench = Bench::new(FaultPlan::none());
    let mut bare = bench.known.placement.clone();
    for stripe in &mut bare.stripes {
        (stripe.checksum, stripe.table_checksum) = (None, None);
    }
    bench.object = bench.sim.engine.open(&bare).expect("it opens");
    assert!(matches!(bench.fails(ReadOptions::default()), ReadIntoError::NothingToVerifyBy));
    let mut slice = vec![0; 64];
    let options = ReadOptions { verification: Verification::Skipped, ..ReadOptions::default() };
    bench.read(0..64, &mut slice, options).expect("it works");
    assert!(slice == bench.known.bytes[..64]);
}

#[test]
fn direct_reads_land_in_the_slice_itself() {
    let mut bench = Bench::new(FaultPlan::none());
    let size = bench.known.bytes.len();
    let mut slice = vec![SENTINEL; size + 64];
    for (from, skip) in [(0, 0), (1, 3), (65_536, 8), (size - 1, 1)] {
        slice.fill(SENTINEL);
        let bytes = (size - from).min(2_000_000);
        let mut drive = Virtual { sim: &mut bench.sim, before_step: &mut |_| {} };
        let range = from as u64..(from + bytes) as u64;
        let into = &mut slice[skip..];
        bench
            .reader
            .read_into_direct_driven(&mut drive, &bench.object, range, into, ReadOptions::default())
            .expect("it works");
        assert!(slice[skip..skip + bytes] == bench.known.bytes[from..from + bytes]);
        assert!(slice[..skip].iter().chain(&slice[skip + bytes..]).all(|&b| b == SENTINEL));
    }
    assert_eq!(bench.sim.engine.regions().stats().foreign_bytes, 0, "nothing stays registered");
}

#[test]
fn a_direct_read_that_is_stuck_comes_back_only_when_its_memory_does() {
    let hang = Fault::Hang { returns_after_ns: Some(2_000_000_000) };
    let mut bench = Bench::new(FaultPlan::none().with(hang, When::Nth(1)));
    let mut slice = vec![SENTINEL; bench.known.bytes.len()];
    let start = bench.sim.clock.now();
    let whole = bench.whole();
    let mut drive = Virtual { sim: &mut bench.sim, before_step: &mut |_| {} };
    let options = ReadOptions::default();
    let error = bench
        .reader
        .read_into_direct_driven(&mut drive, &bench.object, whole, &mut slice, options)
        .expect_err("it hangs");
    assert_eq!(status_of(&error), Status::STUCK);
    assert!(
        bench.sim.clock.now().since(start) >= 2_000_000_000,
        "the device may still have written"
    );
    assert_eq!(bench.sim.engine.regions().stats().foreign_bytes, 0);
}
