//! Group `idle`: what an engine costs that has nothing to do, and how fast it is back at work.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use railring::topology::CpuSet;
use railring::{Engine, RailSet, Read, Ring, RingConfig};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::places::pin;
use super::rig::quantile;
use super::row::{Pairs, Row, Target};
use super::{Bench, cpu_time};
use crate::signals::Stop;
use crate::units::ratio;

/// Wake-ups per pair, so that five pairs make a p99.
const SAMPLES: usize = 20;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.take_place()?;
    let place = bench.place()?;
    idle_cpu(bench, place.path())?;
    idle_wake(bench, place.path())
}

fn engine(bench: &Bench<'_>, directory: &std::path::Path) -> Result<Engine> {
    let directories = (0..bench.places.rails()).map(|rail| directory.join(format!("rail{rail}")));
    let directories: Vec<_> = directories.collect();
    directories.iter().try_for_each(std::fs::create_dir_all)?;
    let engine = bench.places.builder(RailSet::directories(directories)?).build()?;
    bench.places.record(&engine);
    Ok(engine)
}

/// CPU of this process while its own thread sleeps, in percent of one core.
fn percent(time: Duration) -> f64 {
    let (begun, before) = (Instant::now(), cpu_time());
    std::thread::sleep(time);
    let cpu = cpu_time().saturating_sub(before);
    100.0 * cpu.as_secs_f64() / begun.elapsed().as_secs_f64()
}

fn idle_cpu(bench: &mut Bench<'_>, directory: &std::path::Path) -> Result<()> {
    bench.begin("idle-cpu")?;
    let time = bench.time();
    let mut pairs = Pairs::default();
    for _ in 0..bench.options.pairs {
        bench.stop.check()?;
        let engine = engine(bench, directory)?;
        let ring = engine.ring(RingConfig::default())?;
        // Idle, not just begun: past the spinning.
        std::thread::sleep(Duration::from_millis(20));
        pairs.ours.push(percent(time));
        drop((ring, engine));
        pairs.theirs.push(percent(time));
    }
    let (target, against) = (Target::OursBelow(0.5), "the same process without an engine");
    let row = Row::new("idle-cpu", "% of a core", against, target, &pairs);
    bench.row(row.alone(target, &pairs, None))
}

fn idle_wake(bench: &mut Bench<'_>, directory: &std::path::Path) -> Result<()> {
    bench.begin("idle-wake")?;
    let idle = bench.time().min(Duration::from_secs(1));
    let samples = if bench.options.seconds < 0.5 { 2 } else { SAMPLES };
    let engine = engine(bench, directory)?;
    let mut ring = engine.ring(RingConfig::default())?;
    let sleeper = Sleeper::start(bench.places.other().cloned())?;
    let (mut pairs, mut all, mut peers) = (Pairs::default(), Vec::new(), Vec::new());
    for _ in 0..bench.options.pairs {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for sample in 0..samples {
            nap(idle, bench.stop)?;
            // Both have slept; which goes first alternates.
            if sample % 2 == 0 {
                ours.push(wake_engine(&engine, &mut ring)?);
                theirs.push(sleeper.wake()?);
            } else {
                theirs.push(sleeper.wake()?);
                ours.push(wake_engine(&engine, &mut ring)?);
            }
        }
        ours.sort_unstable();
        theirs.sort_unstable();
        let (p99, p50) = (quantile(&ours, 0.99), quantile(&theirs, 0.5));
        let (p99, p50) = (p99.unwrap_or(0), p50.unwrap_or(0));
        pairs.ours.push(ratio(p99.saturating_sub(p50), 1000));
        pairs.theirs.push(ratio(p50, 1000));
        all.extend(ours);
        peers.extend(theirs);
    }
    all.sort_unstable();
    peers.sort_unstable();
    let us = |values: &[u64], q| ratio(quantile(values, q).unwrap_or(0), 1000);
    let note = format!(
        "after {idle:?} of idleness, {} wake-ups: engine p50 {:.1}, p99 {:.1} us; eventfd p50 \
         {:.1}, p99 {:.1} us",
        all.len(),
        us(&all, 0.5),
        us(&all, 0.99),
        us(&peers, 0.5),
        us(&peers, 0.99)
    );
    let target = Target::OursAtMost(50.0);
    let row = Row::new("idle-wake", "us", "an eventfd wake-up, taken off", target, &pairs);
    let ours = (us(&all, 0.99) - us(&peers, 0.5)).max(0.0);
    bench.row(row.alone(target, &pairs, Some(ours)).note(note))
}

fn nap(time: Duration, stop: &Stop) -> Result<()> {
    std::thread::sleep(time);
    Ok(stop.check()?)
}

/// From push until the poller's count of turns with work has moved, in nanoseconds.
fn wake_engine(engine: &Engine, ring: &mut Ring) -> Result<u64> {
    let before = engine.stats().turns_with_work;
    let begun = Instant::now();
    ring.push(Read::nop()).map_err(|refused| anyhow!(refused.why))?;
    ring.submit();
    while engine.stats().turns_with_work == before {
        std::hint::spin_loop();
    }
    let elapsed = begun.elapsed();
    ring.wait(1, Duration::from_secs(1))?;
    while ring.pop().is_some() {}
    Ok(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// A thread that sleeps on an eventfd, as pollers do: the peer.
#[derive(Debug)]
struct Sleeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    event: OwnedFd,
    woken: AtomicU64,
    is_done: AtomicBool,
}

impl Sleeper {
    fn start(cpus: Option<CpuSet>) -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared =
            Arc::new(Shared { event, woken: AtomicU64::new(0), is_done: AtomicBool::new(false) });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sleeper".to_owned()).spawn(move || {
            if let Some(cpus) = cpus {
                // Unpinned it still wakes, as a poller would.
                let _ = pin(&cpus);
            }
            while !theirs.is_done.load(Ordering::Acquire) {
                let mut fds = [PollFd::from_borrowed_fd(theirs.event.as_fd(), PollFlags::IN)];
                let _ = poll(&mut fds, None);
                theirs.woken.fetch_add(1, Ordering::Release);
                let _ = rustix::io::read(&theirs.event, &mut [0; 8]);
            }
        })?;
        Ok(Sleeper { shared, thread: Some(thread) })
    }

    fn wake(&self) -> Result<u64> {
        let before = self.shared.woken.load(Ordering::Acquire);
        let begun = Instant::now();
        rustix::io::write(&self.shared.event, &1_u64.to_ne_bytes())?;
        while self.shared.woken.load(Ordering::Acquire) == before {
            std::hint::spin_loop();
        }
        Ok(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.shared.is_done.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.event, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
