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
