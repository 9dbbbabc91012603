//! Ending: engines with several pollers, dropped at any moment, end at once.

use std::sync::mpsc;
use std::time::Duration;

use railring::sim::NullConfig;
use railring::{Engine, EngineConfig, PoolConfig, RailSet, Read, RingConfig, Waiting};

const PATIENCE: Duration = Duration::from_secs(60);

fn engine(pollers: u32) -> Engine {
    let rails = (0..pollers).fold(RailSet::new(), |rails, index| {
        rails.null(NullConfig::new(format!("null{index}"))).expect("a null rail")
    });
    // Without spinning a poller is asleep, or about to be, most of the time.
    let waiting = Waiting::Adaptive { spin: Duration::ZERO };
    let config = EngineConfig { waiting, staging_bytes: 2 << 20, ..EngineConfig::default() };
    Engine::builder().rails(rails).config(config).pollers(pollers).build().expect("it starts")
}

#[test]
fn engines_of_several_pollers_end_at_once() {
    let (told, ended) = mpsc::channel();
    // On a thread of its own: one that hangs must not hang the test.
    std::thread::spawn(move || {
        for round in 0..100_u32 {
            let engine = engine(2 + round % 3);
            if round % 2 == 0 {
                let memory = PoolConfig { slots: 1, slot_bytes: 4096, ..PoolConfig::default() };
                let pool = engine.buffer_pool(memory).expect("a pool");
                let mut ring = engine.ring(RingConfig::default()).expect("a ring");
                ring.push(Read::nop()).expect("there is room");
                ring.submit();
                drop(engine);
                assert!(ring.pop().is_some(), "the read ended");
                drop(pool);
            }
            told.send(round).expect("the test waits");
        }
    });
    for round in 0..100 {
        let came = ended.recv_timeout(PATIENCE);
        assert_eq!(came, Ok(round), "an engine did not end");
    }
}

#[test]
fn every_submitted_read_ends_though_few_fit_at_a_time() {
    for round in 0..50_u32 {
        let rails = RailSet::new().null(NullConfig::new("null")).expect("a null rail");
        let waiting = Waiting::Adaptive { spin: Duration::ZERO };
        let config = EngineConfig { waiting, reads_max: 1, ..EngineConfig::default() };
        let engine = Engine::builder().rails(rails).config(config).build().expect("it starts");
        let mut ring = engine.ring(RingConfig::default()).expect("a ring");
        for _ in 0..200 {
            ring.push(Read::nop()).expect("there is room");
        }
        ring.submit();
        if round % 2 == 1 {
            std::thread::yield_now();
        }
        drop(engine);
        assert_eq!(std::iter::from_fn(|| ring.pop()).count(), 200, "round {round}");
    }
}
