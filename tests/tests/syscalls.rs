//! System calls on the data path: one per turn with work at most, none without.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use railring::sim::NullConfig;
use railring::store::PutOptions;
use railring::{Engine, InlineEngine, Object, Pool, PoolConfig, RailSet, Read, Ring, RingConfig};
use railring_tests::stored::{Disks, random_bytes};

const BATCH: u64 = 16;

struct Bench {
    engine: InlineEngine,
    object: Object,
    pool: Pool,
    ring: Ring,
    _disks: Disks,
}

/// An inline engine over one file rail.
fn bench() -> Bench {
    let disks = Disks::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 1);
    let options = PutOptions { stripe_bytes: 65_536, ..PutOptions::default() };
    let stored = disks.put("object", &random_bytes(13, 1 << 20), &options);
    let rails = RailSet::directories(&disks.directories).expect("a rail");
    let engine = Engine::builder().rails(rails).build_inline().expect("it starts");
    let object = engine.open(&stored.placement).expect("it opens");
    let memory = PoolConfig { slots: 16, slot_bytes: 65_536, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory).expect("a pool");
    let ring = engine.ring(RingConfig::default()).expect("a ring");
    Bench { engine, object, pool, ring, _disks: disks }
}

impl Bench {
    /// One batch of whole stripes, turned without sleeping until it is done.
    fn batch(&mut self) {
        for stripe in 0..BATCH {
            let lease = self.pool.take().expect("a batch fits");
            let range = stripe * 65_536..(stripe + 1) * 65_536;
            self.ring.push(Read::new(&self.object, range, lease)).expect("a batch fits");
        }
        self.ring.submit();
        while self.ring.in_flight() > 0 {
            self.engine.turn();
            while let Some(completion) = self.ring.pop() {
                assert!(completion.status().is_ok());
            }
        }
    }

    fn syscalls(&mut self) -> u64 {
        // The first asks, a turn answers, the second is told.
        let _ = self.engine.rail_stats();
        self.engine.turn();
        self.engine.rail_stats()[0].link.syscalls
    }
}

#[test]
fn a_turn_with_work_makes_one_system_call_at_most() {
    let mut bench = bench();
    bench.batch();
    let (calls, turns) = (bench.syscalls(), bench.engine.stats().turns_with_work);
    let batches = 500;
    (0..batches).for_each(|_| bench.batch());
    let calls = bench.syscalls() - calls;
    let turns = bench.engine.stats().turns_with_work - turns;
    println!("{} reads, {turns} turns with work, {calls} system calls", batches * BATCH);
    assert!(calls <= turns, "{calls} calls in {turns} turns");
    assert!(calls >= batches, "a batch cannot be read without a call");
    assert!(calls < batches * BATCH, "no batching: {calls} calls");
}

#[test]
fn an_idle_turn_makes_none() {
    let mut bench = bench();
    bench.batch();
    let calls = bench.syscalls();
    for _ in 0..10_000 {
        bench.engine.turn();
    }
    assert_eq!(bench.syscalls(), calls);
}

#[test]
fn a_sleeping_engine_does_nothing_at_all() {
    let disks = Disks::new(Path::new(env!("CARGO_TARGET_TMPDIR")), 2);
    let rails = RailSet::directories(&disks.directories).expect("rails");
    let rails = rails.null(NullConfig::new("null")).expect("a rail");
    let engine = Engine::builder().rails(rails).build().expect("it starts");
    std::thread::sleep(Duration::from_millis(100));
    let before = engine.stats();
    std::thread::sleep(Duration::from_millis(300));
    let after = engine.stats();
    assert_eq!(before.turns, after.turns, "an idle poller turned");
    assert!(after.sleeps >= engine.pollers() as u64);
}

/// What the test below runs under strace.
#[test]
#[ignore = "run by strace_agrees"]
fn reads_for_strace() {
    let batches: u64 =
        std::env::var("RAILRING_BATCHES").map_or(0, |n| n.parse().expect("a number"));
    let mut bench = bench();
    (0..batches).for_each(|_| bench.batch());
    println!("turns={}", bench.engine.stats().turns_with_work);
}

/// All system calls of a child process, and its turns with work.
fn traced(batches: u64) -> (u64, u64) {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let me = std::env::current_exe().expect("it runs");
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(log.path())
        .arg(me)
        .args(["--ignored", "--exact", "--nocapture", "reads_for_strace"])
        .env("RAILRING_BATCHES", batches.to_string())
        .output()
        .expect("strace was found");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let turns = said.lines().find_map(|line| line.split_once("turns=").map(|(_, n)| n.to_owned()));
    let turns = turns.expect("the child says it").parse().expect("a number");
    let calls = std::fs::read_to_string(log.path()).expect("strace wrote it");
    (calls.lines().count() as u64, turns)
}

#[test]
fn strace_agrees() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIP strace_agrees: strace is not installed");
        return;
    }
    let (calls_few, turns_few) = traced(10);
    let (calls_many, turns_many) = traced(110);
    let (calls, turns) = (calls_many.saturating_sub(calls_few), turns_many - turns_few);
    println!("100 batches more: {calls} system calls more, {turns} turns with work more");
    // The clock can be a system call where there is no vDSO; nothing else comes with a turn. Start
    // and end of a process differ by a few calls from run to run.
    assert!(calls <= turns + 100, "{calls} calls in {turns} turns");
}
