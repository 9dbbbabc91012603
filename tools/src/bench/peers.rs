//! Peers: two pinned threads that echo 64-byte items through crossbeam's `ArrayQueue`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use crossbeam_queue::ArrayQueue;
use railring::topology::CpuSet;

use super::rig::{BATCH, per_second};

type Item = [u64; 8];

#[derive(Debug)]
struct Queues {
    there: ArrayQueue<Item>,
    back: ArrayQueue<Item>,
    is_done: AtomicBool,
}

/// An echo on another core. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Echo {
    queues: Arc<Queues>,
    thread: Option<JoinHandle<Result<()>>>,
    depth: usize,
}

impl Echo {
    /// At most `depth` items under way.
    pub(super) fn start(cpus: &CpuSet, depth: usize) -> Result<Self> {
        let cpus = cpus.clone();
        let queues = Arc::new(Queues {
            there: ArrayQueue::new(depth),
            back: ArrayQueue::new(depth),
            is_done: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&queues);
        let thread = std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
            super::places::pin(&cpus)?;
            while !theirs.is_done.load(Ordering::Relaxed) {
                while let Some(item) = theirs.there.pop() {
                    let pushed = theirs.back.push(item);
                    debug_assert!(pushed.is_ok(), "both queues hold all items");
                }
                std::hint::spin_loop();
            }
            Ok(())
        })?;
        Ok(Echo { queues, thread: Some(thread), depth })
    }

    fn items(&self, items: usize) -> Result<()> {
        let (mut pushed, mut done) = (0, 0);
        while done < items {
            if pushed - done + BATCH <= self.depth && pushed < items {
                for item in pushed..pushed + BATCH {
                    let pushed = self.queues.there.push([item as u64; 8]);
                    pushed.map_err(|_| anyhow!("the echo's queue is full"))?;
                }
                pushed += BATCH;
            }
            while self.queues.back.pop().is_some() {
                done += 1;
            }
        }
        Ok(())
    }

    pub(super) fn rate(&self, time: Duration) -> Result<f64> {
        let per_round = BATCH * 256;
        self.items(per_round)?;
        let (begun, mut done) = (Instant::now(), 0);
        loop {
            self.items(per_round)?;
            done += per_round;
            let elapsed = begun.elapsed();
            if elapsed >= time {
                return Ok(per_second(done, elapsed));
            }
        }
    }

    pub(super) fn round_trip(&self) -> Result<()> {
        self.queues.there.push([0; 8]).map_err(|_| anyhow!("the echo's queue is full"))?;
        while self.queues.back.pop().is_none() {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.queues.is_done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
