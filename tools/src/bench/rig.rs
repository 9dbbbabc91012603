//! Engines over null rails, and the tight loops that drive them: what the rows of `ring` measure.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use railring::catalog::{Owner, Source, StripePlacement};
use railring::{
    Engine, EngineConfig, InlineEngine, Lease, Object, Placement, Pool, PoolConfig, Read, Ring,
    RingConfig, Waiting,
};

use super::places::{Places, null_rails};

/// Bytes of a stripe, of a read and of a lease.
pub(crate) const READ_BYTES: u64 = 4096;
/// Reads between two looks at the clock, and per doorbell.
pub(crate) const BATCH: usize = 32;
const STRIPES: u32 = 1024;

/// An object of stripes of 4 KiB that null rails reach.
pub(crate) fn placement() -> Result<Placement> {
    let stripe = |index| StripePlacement {
        index,
        len_bytes: READ_BYTES,
        owners: vec![Owner { source: 0, offset: u64::from(index) * READ_BYTES, table_offset: 0 }],
        checksum: None,
        table_checksum: None,
    };
    Ok(Placement {
        key: "bench/null".parse()?,
        generation: 1,
        etag: String::new(),
        handle: "null".to_owned(),
        layout_version: 1,
        size_bytes: u64::from(STRIPES) * READ_BYTES,
        stripe_bytes: READ_BYTES,
        block_bytes: 4096,
        sources: vec![Source { endpoint: "null".to_owned(), handle: "null".to_owned() }],
        stripes: (0..STRIPES).map(stripe).collect(),
    })
}

/// One ring and the leases its reads go round with.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) ring: Ring,
    free: Vec<Lease>,
    next: u64,
    _pool: Pool,
}

impl Seat {
    /// Pushes `count` one-stripe reads, not verified, and rings the doorbell once.
    #[inline]
    pub(crate) fn push(&mut self, object: &Object, count: usize) -> Result<()> {
        for _ in 0..count {
            let Some(lease) = self.free.pop() else { break };
            let start = self.next * READ_BYTES;
            self.next = (self.next + 1) & u64::from(STRIPES - 1);
            let read = Read::new(object, start..start + READ_BYTES, lease).skip_verify();
            self.ring.push(read).map_err(|refused| anyhow!(refused.why))?;
        }
        self.ring.submit();
        Ok(())
    }

    /// Pops everything that is there; returns how many reads ended.
    #[inline]
    pub(crate) fn pop(&mut self) -> usize {
        let before = self.free.len();
        while let Some(completion) = self.ring.pop() {
            self.free.extend(completion.into_lease());
        }
        self.free.len() - before
    }
}

/// An engine without threads over null rails, with rings of `depth` reads each.
#[derive(Debug)]
pub(crate) struct Inline {
    pub(crate) engine: InlineEngine,
    pub(crate) object: Object,
    pub(crate) seats: Vec<Seat>,
    pub(crate) depth: usize,
}

impl Inline {
    pub(crate) fn new(places: &Places, rails: usize, rings: usize, depth: usize) -> Result<Self> {
        Self::with(places.inline(null_rails(rails)?).build_inline()?, rings, depth)
    }

    /// Over one null rail, with one ring, placed nowhere in particular.
    pub(crate) fn anywhere(depth: usize) -> Result<Self> {
        Self::with(Engine::builder().rails(null_rails(1)?).build_inline()?, 1, depth)
    }

    fn with(engine: InlineEngine, rings: usize, depth: usize) -> Result<Self> {
        let object = engine.open(&placement()?)?;
        let entries = u32::try_from(depth)?.next_power_of_two();
        let seat = |_| {
            let ring = engine.ring(RingConfig {
                sq_entries: entries,
                cq_entries: entries,
                ..RingConfig::default()
            })?;
            let pool = engine.buffer_pool(pool(depth))?;
            Ok(Seat { ring, free: leases(&pool), next: 0, _pool: pool })
        };
        let seats = (0..rings).map(seat).collect::<Result<_>>()?;
        Ok(Inline { engine, object, seats, depth })
    }

    /// Fills the first `active` rings in batches, and turns until everything has come back.
    #[inline]
    pub(crate) fn round(&mut self, active: usize) -> Result<usize> {
        let Inline { engine, object, seats, depth } = self;
        for seat in &mut seats[..active] {
            for _ in 0..*depth / BATCH {
                seat.push(object, BATCH)?;
            }
        }
        let reads = *depth / BATCH * BATCH * active;
        let mut done = 0;
        while done < reads {
            engine.turn();
            for seat in &mut seats[..active] {
                done += seat.pop();
            }
        }
        Ok(reads)
    }

    /// Reads per second over `time`.
    pub(crate) fn rate(&mut self, active: usize, time: Duration) -> Result<f64> {
        self.round(active)?;
        let (begun, mut reads) = (Instant::now(), 0);
        loop {
            reads += self.round(active)?;
            let elapsed = begun.elapsed();
            if elapsed >= time {
                return Ok(per_second(reads, elapsed));
            }
        }
    }

    /// Seconds per read over `time`.
    pub(crate) fn cost_ns(&mut self, active: usize, time: Duration) -> Result<f64> {
        Ok(1e9 / self.rate(active, time)?)
    }
}

/// An engine whose pollers are bound and never sleep, and one ring.
#[derive(Debug)]
pub(crate) struct Threaded {
    pub(crate) seat: Seat,
    pub(crate) object: Object,
    /// Dropped last, when the ring is gone.
    _engine: Engine,
    depth: usize,
}

impl Threaded {
    pub(crate) fn new(places: &Places, rails: usize, depth: usize) -> Result<Self> {
        let config = EngineConfig { waiting: Waiting::Busy, ..EngineConfig::default() };
        let engine = places.builder(null_rails(rails)?).config(config).build()?;
        places.record(&engine);
        let object = engine.open(&placement()?)?;
        let entries = u32::try_from(depth)?.next_power_of_two();
        let ring = engine.ring(RingConfig {
            sq_entries: entries,
            cq_entries: entries,
            ..RingConfig::default()
        })?;
        let pool = engine.buffer_pool(pool(depth))?;
        let seat = Seat { ring, free: leases(&pool), next: 0, _pool: pool };
        Ok(Threaded { seat, object, _engine: engine, depth })
    }

    /// Keeps the ring full in batches until `reads` have ended.
    pub(crate) fn reads(&mut self, reads: usize) -> Result<()> {
        let (mut pushed, mut done) = (0, 0);
        while done < reads {
            if pushed - done + BATCH <= self.depth && pushed < reads {
                self.seat.push(&self.object, BATCH)?;
                pushed += BATCH;
            }
            done += self.seat.pop();
        }
        Ok(())
    }

    pub(crate) fn rate(&mut self, time: Duration) -> Result<f64> {
        let per_round = BATCH * 256;
        self.reads(per_round)?;
        let (begun, mut reads) = (Instant::now(), 0);
        loop {
            self.reads(per_round)?;
            reads += per_round;
            let elapsed = begun.elapsed();
            if elapsed >= time {
                return Ok(per_second(reads, elapsed));
            }
        }
    }

    /// One read on its own: pushed, and spun for.
    #[inline]
    pub(crate) fn round_trip(&mut self) -> Result<()> {
        self.seat.push(&self.object, 1)?;
        while self.seat.pop() == 0 {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn pool(slots: usize) -> PoolConfig {
    let slot_bytes = usize::try_from(READ_BYTES).unwrap_or(4096);
    PoolConfig { slots, slot_bytes, ..PoolConfig::default() }
}

fn leases(pool: &Pool) -> Vec<Lease> {
    std::iter::from_fn(|| pool.take()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// The value that `quantile` of `sorted` do not exceed.
pub(crate) fn quantile(sorted: &[u64], quantile: f64) -> Option<u64> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among some millions"
    )]
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
