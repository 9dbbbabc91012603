//! The async reader: results, waiting for buffers, and futures that are dropped at any point.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use railring::file::FileRailOptions;
use railring::store::PutOptions;
use railring::{
    Engine, EngineConfig, Object, RailSet, ReadBytes, ReadFuture, ReadIntoError, Reader,
    ReaderConfig, Waiting,
};
use railring_tests::hold::Holding;
use railring_tests::stored::{Disks, random_bytes, seed};

const PATIENCE: Duration = Duration::from_secs(60);

/// Unparks its thread, and counts.
struct Unpark {
    thread: Thread,
    wakes: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn unpark() -> (Arc<Unpark>, Waker) {
    let wake = Arc::new(Unpark { thread: std::thread::current(), wakes: AtomicUsize::new(0) });
    (Arc::clone(&wake), Waker::from(wake))
}

fn wait_for(future: &mut ReadFuture) -> Result<ReadBytes, ReadIntoError> {
    let (_, waker) = unpark();
    let start = Instant::now();
    loop {
        if let Poll::Ready(result) = poll(future, &waker) {
            return result;
        }
        assert!(start.elapsed() < PATIENCE, "nothing came");
        std::thread::park_timeout(PATIENCE);
    }
}

fn poll(future: &mut ReadFuture, waker: &Waker) -> Poll<Result<ReadBytes, ReadIntoError>> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

struct Bench {
    engine: Engine,
    object: Object,
    bytes: Vec<u8>,
    reader: Reader,
    holding: Arc<Holding>,
    _disks: Disks,
}

fn bench(buffers: usize) -> Bench {
    let disks = Disks::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 2);
    let bytes = random_bytes(5, 1_000_003);
    let options = PutOptions { stripe_bytes: 65_536, ..PutOptions::default() };
    let stored = disks.put("object", &bytes, &options);
    let holding = Arc::new(Holding::default());
    let mut rails = RailSet::new();
    for directory in &disks.directories {
        let injector: Arc<dyn railring::file::Injector> = holding.clone();
        let options = FileRailOptions { injector: Some(injector), ..FileRailOptions::default() };
        rails = rails.file(directory, options).expect("a rail");
    }
    // Busy: releasing what an injector holds back rings no bell.
    let config = EngineConfig { waiting: Waiting::Busy, ..EngineConfig::default() };
    let engine = Engine::builder().rails(rails).config(config).build().expect("it starts");
    let object = engine.open(&stored.placement).expect("it opens");
    let config = ReaderConfig { read_bytes_max: 200_000, buffers, ..ReaderConfig::default() };
    let reader = Reader::new(&engine, config).expect("a reader");
    Bench { engine, object, bytes, reader, holding, _disks: disks }
}

/// All buffers come back in the end, whatever became of their reads.
fn all_free(bench: &Bench, buffers: usize) {
    let start = Instant::now();
    while bench.reader.buffers_free() < buffers {
        assert!(start.elapsed() < PATIENCE, "{} of {buffers} free", bench.reader.buffers_free());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reads_bring_their_bytes() {
    let bench = bench(4);
    for range in [0..1, 0..0, 65_535..65_537, 100_000..300_000, 999_990..1_000_003] {
        let wanted = range.start as u64..range.end as u64;
        let got = wait_for(&mut bench.reader.read(&bench.object, wanted)).expect("it works");
        assert!(*got == bench.bytes[range]);
    }
    all_free(&bench, 4);
}

#[test]
fn what_makes_no_sense_is_an_error() {
    let bench = bench(1);
    let size = bench.object.len();
    let error = wait_for(&mut bench.reader.read(&bench.object, 0..200_001)).expect_err("large");
    assert!(matches!(error, ReadIntoError::TooLarge { bytes: 200_001, limit: 200_000 }));
    let error = wait_for(&mut bench.reader.read(&bench.object, size..size + 1)).expect_err("past");
    assert!(matches!(error, ReadIntoError::Refused(_)), "{error}");
    all_free(&bench, 1);
}

#[test]
fn more_futures_than_buffers_wait_and_all_are_served() {
    let bench = bench(2);
    let threads: Vec<_> = (0..4_u64)
        .map(|thread| {
            let (reader, object, bytes) =
                (bench.reader.clone(), bench.object.clone(), bench.bytes.clone());
            std::thread::spawn(move || {
                for round in 0..50_u64 {
                    let at = (thread * 1000 + round * 17_001) % 800_000;
                    let got = wait_for(&mut reader.read(&object, at..at + 150_000));
                    let got = got.expect("it works");
                    let start = usize::try_from(at).expect("small");
                    assert!(*got == bytes[start..start + 150_000]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it passes"));
    all_free(&bench, 2);
}

#[test]
fn a_timeout_is_told_and_the_memory_comes_back() {
    let bench = bench(2);
    bench.holding.hold();
    let mut future = bench.reader.read(&bench.object, 0..10).timeout(Duration::from_millis(20));
    let (_, waker) = unpark();
    assert!(poll(&mut future, &waker).is_pending());
    std::thread::sleep(Duration::from_millis(40));
    // However slow the machine is: the poller has looked at the deadline.
    let turns = bench.engine.stats().turns;
    while bench.engine.stats().turns < turns + 1000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.holding.release();
    let error = wait_for(&mut future).expect_err("late");
    assert!(matches!(error, ReadIntoError::TimedOut), "{error}");
    all_free(&bench, 2);
}

#[test]
fn futures_dropped_at_random_points_give_their_buffers_back() {
    let bench = bench(3);
    let mut rng = fastrand::Rng::with_seed(seed("futures_dropped_at_random_points"));
    let (_, waker) = unpark();
    let mut pending: Vec<(usize, usize, ReadFuture)> = Vec::new();
    let mut ready = Vec::new();
    let mut served = 0;
    for _ in 0..4000 {
        match rng.u8(0..6) {
            0 | 1 if pending.len() < 8 => {
                let (at, len) = (rng.usize(0..800_000), rng.usize(0..200_000));
                let range = at as u64..(at + len) as u64;
                pending.push((at, len, bench.reader.read(&bench.object, range)));
            }
            2 if !pending.is_empty() => drop(pending.swap_remove(rng.usize(0..pending.len()))),
            3 if !ready.is_empty() => drop(ready.swap_remove(rng.usize(0..ready.len()))),
            4 => bench.holding.hold(),
            5 => bench.holding.release(),
            _ if !pending.is_empty() => {
                let index = rng.usize(0..pending.len());
                let (at, len, future) = &mut pending[index];
                if let Poll::Ready(result) = poll(future, &waker) {
                    let got = result.expect("it works");
                    assert!(*got == bench.bytes[*at..*at + *len]);
                    served += 1;
                    drop(pending.swap_remove(index));
                    ready.push(got);
                }
            }
            _ => std::thread::yield_now(),
        }
    }
    bench.holding.release();
    drop((pending, ready));
    all_free(&bench, 3);
    println!("{served} reads were served");
    assert_eq!(bench.engine.stats().impounded_bytes, 0);
}

#[test]
fn futures_that_outlive_their_engine_say_so() {
    let bench = bench(2);
    let Bench { engine, object, reader, holding, .. } = bench;
    holding.hold();
    let mut running = reader.read(&object, 0..10);
    let (_, waker) = unpark();
    assert!(poll(&mut running, &waker).is_pending());
    let mut waiting = reader.read(&object, 0..10);
    let releaser = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        holding.release();
    });
    drop(engine);
    releaser.join().expect("it ends");
    // It ends, as cancelled or as it would have; what comes after it cannot begin.
    let _ = wait_for(&mut running);
    wait_for(&mut waiting).expect_err("gone");
}
