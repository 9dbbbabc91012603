//! A ring in the embedder's own event loop: its descriptor sits in an epoll set beside others.
//!
//! `cargo run --release -p railring-examples --example epoll [FILE]`

use std::error::Error;
use std::os::fd::AsFd;
use std::time::Duration;

use railring::{PoolConfig, Read, Ring, RingConfig};
use rustix::event::{Timespec, epoll};

const READ_BYTES: u64 = 1 << 20;
const RING: u64 = 1;
const TICK: u64 = 2;

/// Takes everything there is; says how many reads ended.
fn pop_all(ring: &mut Ring) -> Result<u64, Box<dyn Error>> {
    let mut ended = 0;
    while let Some(cqe) = ring.pop() {
        if !cqe.status().is_ok() {
            return Err(format!("stripe {}: {}", cqe.stripe(), cqe.status()).into());
        }
        ended += u64::from(cqe.ended().is_some());
        drop(cqe.into_lease());
    }
    Ok(ended)
}

fn main() -> Result<(), Box<dyn Error>> {
    let demo = railring_examples::demo()?;
    let memory = PoolConfig { slots: 8, slot_bytes: READ_BYTES as usize, ..PoolConfig::default() };
    let pool = demo.engine.buffer_pool(memory)?;
    let mut ring = demo.engine.ring(RingConfig::default())?;

    // What the loop waits for besides the ring: a timer, to stand for sockets and the like.
    let timer = rustix::time::timerfd_create(
        rustix::time::TimerfdClockId::Monotonic,
        rustix::time::TimerfdFlags::NONBLOCK,
    )?;
    let tick = Timespec::try_from(Duration::from_millis(1))?;
    let setting = rustix::time::Itimerspec { it_interval: tick, it_value: tick };
    rustix::time::timerfd_settime(&timer, rustix::time::TimerfdTimerFlags::empty(), &setting)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let readable = epoll::EventFlags::IN;
    epoll::add(&set, ring.as_fd(), epoll::EventData::new_u64(RING), readable)?;
    epoll::add(&set, &timer, epoll::EventData::new_u64(TICK), readable)?;

    let (mut next, mut reads, mut ticks) = (0, 0, 0_u64);
    while next < demo.object.len() || ring.in_flight() > 0 {
        while next < demo.object.len()
            && let Some(lease) = pool.take()
        {
            let end = demo.object.len().min(next + READ_BYTES);
            ring.push(Read::new(&demo.object, next..end, lease)).map_err(|refused| refused.why)?;
            next = end;
        }
        // Arm, and wait only if there is nothing already: that is what loses no wake-up.
        if ring.arm() {
            reads += pop_all(&mut ring)?;
            continue;
        }
        let mut events = Vec::with_capacity(8);
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            if event.data.u64() == RING {
                ring.clear_event();
                reads += pop_all(&mut ring)?;
            } else {
                rustix::io::read(&timer, &mut [0; 8])?;
                ticks += 1;
            }
        }
    }
    println!("{reads} reads, {} B, and {ticks} ticks of a timer meanwhile", demo.object.len());
    Ok(())
}
