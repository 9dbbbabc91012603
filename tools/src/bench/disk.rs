//! Objects on a disk, and the tight loops that read them through one rail: what the rows of `file`
//! and `verbs` measure.

use std::io::{self, Read as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use railring::store::PutOptions;
use railring::{
    InlineEngine, Lease, Object, Placement, Pool, PoolConfig, RailSet, RailStats, Read, Ring,
    RingConfig, Store,
};

use super::places::Places;
use super::rig::per_second;
use crate::signals::Stop;

pub(super) const STRIPE_BYTES: u64 = 1 << 20;
/// Blocks are as long as the random reads, so that each is checked and nothing besides is read.
pub(super) const BLOCK_BYTES: u32 = 4096;
/// How often the clock is looked at, in turns; in fewer where a turn moves much.
const LOOK_EVERY: usize = 64;
const LOOK_EVERY_LARGE: usize = 4;
const LARGE_BYTES: u64 = 256 << 10;
const SPIN: Duration = Duration::from_micros(50);

/// A store of one directory with one object of random bytes; removed when it is dropped.
#[derive(Debug)]
pub(super) struct Stored {
    directory: PathBuf,
    placement: Placement,
    _place: tempfile::TempDir,
}

impl Stored {
    pub(super) fn new(place: tempfile::TempDir, bytes: u64, stop: &Stop) -> Result<Self> {
        let store = Store::create(&[place.path().join("disk")])?;
        let options = PutOptions {
            stripe_bytes: STRIPE_BYTES,
            block_bytes: BLOCK_BYTES,
            ..PutOptions::default()
        };
        let mut source = Noise(fastrand::Rng::with_seed(1)).take(bytes);
        let put = store.put(&"bench/file".parse()?, &mut source, &options, &mut |_| {
            if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        stop.check()?;
        let placement = put?.placement;
        let directory = crate::stores::present(&store).pop().context("a store of one directory")?;
        Ok(Stored { directory, placement, _place: place })
    }

    /// Where the object lies.
    #[cfg(feature = "verbs")]
    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The store's directory.
    #[cfg(feature = "verbs")]
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The data file, for a peer that reads the same bytes.
    pub(super) fn file(&self) -> Result<PathBuf> {
        let source = self.placement.sources.first().context("an object with a data file")?;
        Ok(Path::new(&source.endpoint).join(&source.handle))
    }
}

/// Bytes without a pattern that a disk could make use of.
struct Noise(fastrand::Rng);

impl io::Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.fill(buffer);
        Ok(buffer.len())
    }
}

/// Whether bytes are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    On,
    Off,
}

/// What the thread does while nothing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    /// Looks again.
    Spin,
    /// Looks again for 50 us, as pollers do by default, then sleeps.
    Adaptive,
    /// Sleeps until something has.
    Sleep,
}

/// Where reads begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Random,
    Sequential,
}

/// An engine without threads over one rail.
#[derive(Debug)]
pub(super) struct Disk {
    engine: InlineEngine,
    object: Object,
    ring: Ring,
    free: Vec<Lease>,
    depth: usize,
    read_bytes: u64,
    order: Order,
    verify: Verify,
    between: Between,
    next: u64,
    random: fastrand::Rng,
    _pool: Pool,
}

/// How a disk is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) depth: usize,
    pub(super) read_bytes: u64,
    pub(super) order: Order,
    pub(super) verify: Verify,
    pub(super) between: Between,
}

impl Disk {
    /// Over a file rail.
    pub(super) fn open(places: &Places, stored: &Stored, how: How) -> Result<Self> {
        let rails = RailSet::directories([&stored.directory])?;
        Disk::over(places, rails, &stored.placement, how)
    }

    /// Over one rail of any kind.
    pub(super) fn over(
        places: &Places,
        rails: RailSet,
        placement: &Placement,
        how: How,
    ) -> Result<Self> {
        let How { depth, read_bytes, order, verify, between } = how;
        let engine = places.inline(rails).build_inline()?;
        let object = engine.open(placement)?;
        let entries = u32::try_from(depth)?.next_power_of_two();
        let sizes =
            RingConfig { sq_entries: entries, cq_entries: entries, ..RingConfig::default() };
        let ring = engine.ring(sizes)?;
        let slot_bytes = usize::try_from(read_bytes)?;
        let pool =
            engine.buffer_pool(PoolConfig { slots: depth, slot_bytes, ..PoolConfig::default() })?;
        let free = std::iter::from_fn(|| pool.take()).collect();
        let random = fastrand::Rng::with_seed(7);
        let mut disk = Disk {
            engine,
            object,
            ring,
            free,
            depth,
            read_bytes,
            order,
            verify,
            between,
            next: 0,
            random,
            _pool: pool,
        };
        disk.warm()?;
        Ok(disk)
    }

    /// Brings every block table into the cache, where a long-lived engine has them.
    fn warm(&mut self) -> Result<()> {
        let order = std::mem::replace(&mut self.order, Order::Sequential);
        let bytes = std::mem::replace(&mut self.read_bytes, BLOCK_BYTES.into());
        for stripe in 0..self.object.len() / STRIPE_BYTES {
            self.next = stripe * STRIPE_BYTES;
            self.fill(1)?;
            self.come_back(self.depth)?;
        }
        (self.order, self.read_bytes, self.next) = (order, bytes, 0);
        Ok(())
    }

    fn fill(&mut self, at_most: usize) -> Result<()> {
        for _ in 0..at_most {
            let Some(lease) = self.free.pop() else { break };
            let start = match self.order {
                Order::Random => {
                    self.random.u64(..self.object.len() / self.read_bytes) * self.read_bytes
                }
                Order::Sequential => {
                    if self.next + self.read_bytes > self.object.len() {
                        self.next = 0;
                    }
                    self.next
                }
            };
            self.next = start + self.read_bytes;
            let read = Read::new(&self.object, start..start + self.read_bytes, lease);
            let read = if self.verify == Verify::Off { read.skip_verify() } else { read };
            self.ring.push(read).map_err(|refused| anyhow!(refused.why))?;
        }
        self.ring.submit();
        Ok(())
    }

    /// One turn, and what came of it; returns how many reads ended.
    fn turn(&mut self) -> Result<usize> {
        let sleeps = match self.between {
            Between::Spin => {
                self.engine.turn();
                false
            }
            Between::Adaptive => !self.spin(),
            Between::Sleep => true,
        };
        if sleeps {
            self.engine.wait(&mut self.ring, 1, Duration::from_secs(1))?;
        }
        let before = self.free.len();
        while let Some(completion) = self.ring.pop() {
            if !completion.status().is_ok() {
                bail!("a read failed: {}", completion.status());
            }
            self.free.extend(completion.into_lease());
        }
        Ok(self.free.len() - before)
    }

    /// Turns until something has come, for 50 us at most; whether it has.
    fn spin(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            self.engine.turn();
            if self.ring.ready() > 0 {
                return true;
            }
            if begun.elapsed() > SPIN {
                return false;
            }
        }
    }

    /// Turns until `free` leases are back.
    fn come_back(&mut self, free: usize) -> Result<()> {
        while self.free.len() < free {
            self.turn()?;
        }
        Ok(())
    }

    /// Keeps the disk at its depth for `time`; returns reads and the time they took.
    pub(super) fn run(&mut self, time: Duration) -> Result<(usize, Duration)> {
        let turns = if self.read_bytes < LARGE_BYTES { LOOK_EVERY } else { LOOK_EVERY_LARGE };
        let (begun, mut done) = (Instant::now(), 0);
        loop {
            for _ in 0..turns {
                self.fill(self.depth)?;
                done += self.turn()?;
            }
            if begun.elapsed() >= time {
                let elapsed = begun.elapsed();
                self.come_back(self.depth)?;
                return Ok((done, elapsed));
            }
        }
    }

    /// Exactly so many reads.
    pub(super) fn reads(&mut self, reads: usize) -> Result<()> {
        let mut pushed = 0;
        while pushed < reads {
            let before = self.free.len().min(reads - pushed);
            self.fill(before)?;
            pushed += before;
            self.turn()?;
        }
        self.come_back(self.depth)
    }

    pub(super) fn reads_per_second(&mut self, time: Duration) -> Result<f64> {
        let (reads, elapsed) = self.run(time)?;
        Ok(per_second(reads, elapsed))
    }

    pub(super) fn bytes_per_second(&mut self, time: Duration) -> Result<f64> {
        let bytes = crate::units::ratio(self.read_bytes, 1);
        Ok(self.reads_per_second(time)? * bytes)
    }

    /// Latencies of reads on their own, in nanoseconds, ascending.
    pub(super) fn latencies(&mut self, time: Duration) -> Result<Vec<u64>> {
        let (begun, mut latencies) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let pushed = Instant::now();
            self.fill(1)?;
            self.come_back(self.depth)?;
            latencies.push(u64::try_from(pushed.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        latencies.sort_unstable();
        Ok(latencies)
    }

    /// CPU seconds per GiB over `time`.
    pub(super) fn cpu_per_gib(&mut self, time: Duration) -> Result<f64> {
        let before = super::cpu_time();
        let (reads, _) = self.run(time)?;
        let cpu = super::cpu_time().saturating_sub(before);
        let bytes = reads as u64 * self.read_bytes;
        Ok(cpu.as_secs_f64() / crate::units::ratio(bytes.max(1), 1 << 30))
    }

    /// How the bytes move, for people.
    #[cfg(feature = "verbs")]
    pub(super) fn backend(&mut self) -> Result<String> {
        Ok(self.counters()?.0.link.backend)
    }

    /// The rail's counters and the engine's turns with work, as of now.
    pub(super) fn counters(&mut self) -> Result<(RailStats, u64)> {
        // The link is asked at one call, answers at the next turn, and is read at the next call.
        let _ = self.engine.rail_stats();
        self.engine.turn();
        let rail = self.engine.rail_stats().pop().context("an engine with a rail")?;
        Ok((rail, self.engine.stats().turns_with_work))
    }
}
