//! Quickstart: put a real file into a store over two directories, read it back in batches through
//! the rings, and look at the result of each stripe.
//!
//! `cargo run --release -p railring-examples --example quickstart [FILE]`

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;

use railring::store::PutOptions;
use railring::{Engine, PoolConfig, RailSet, Read, RingConfig, Store};

const READ_BYTES: u64 = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let file = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => std::env::current_exe()?,
    };
    let home = tempfile::tempdir()?;
    let disks = [home.path().join("disk0"), home.path().join("disk1")];

    // Stripes of 1 MiB, in turn on the two directories, each with checksums.
    let store = Store::create(&disks)?;
    let options = PutOptions { stripe_bytes: 1 << 20, ..PutOptions::default() };
    let key = "demo/file".parse()?;
    let put = store.put_file(&key, &file, &options, &mut |_| ControlFlow::Continue(()))?;

    // One rail per directory, some memory, a ring for this thread.
    let engine = Engine::builder().rails(RailSet::directories(&disks)?).build()?;
    let object = engine.open(&put.placement)?;
    let memory = PoolConfig { slots: 8, slot_bytes: READ_BYTES as usize, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory)?;
    let mut ring = engine.ring(RingConfig::default())?;

    let mut next = 0;
    while next < object.len() || ring.in_flight() > 0 {
        // As many reads as there is memory for: a batch.
        while next < object.len()
            && let Some(lease) = pool.take()
        {
            let end = object.len().min(next + READ_BYTES);
            ring.push(Read::new(&object, next..end, lease)).map_err(|refused| refused.why)?;
            next = end;
        }
        ring.submit();
        ring.wait(1, Duration::from_secs(1))?;
        while let Some(cqe) = ring.pop() {
            let bytes = ring.bytes(&cqe).ok_or_else(|| cqe.status().to_string())?;
            let rail = cqe.rail().map_or("no".to_owned(), |rail| rail.to_string());
            let (stripe, proof) = (cqe.stripe(), cqe.proof());
            println!("stripe {stripe:4}: {:8} B over rail {rail}, proof {proof:?}", bytes.len());
            // The read's last CQE brings the lease; dropped, it goes back to its pool.
            drop(cqe.into_lease());
        }
    }
    for rail in engine.rail_stats() {
        println!("{rail}");
    }
    Ok(())
}
