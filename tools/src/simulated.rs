//! Reads of the real engine over simulated rails in virtual time: what `railring model` and
//! `railring bench sim` measure. Bytes are moved and verified; only time is not real.

use std::num::NonZeroU64;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use railring::catalog::checksum::stripe_checksum;
use railring::catalog::{Owner, Source, StripePlacement};
use railring::transport::{Nanos, RailControl};
use railring::{
    EngineConfig, EngineStats, Lease, Object, Placement, Pool, PoolConfig, Progress, RailStats,
    Read, Ring, RingConfig,
};
use railring_core::{EngineBuilder, Hashing, InlineEngine, Rail};
use railring_sim::{SimLink, SimRailConfig, SimWorld, SourceContent};

/// Where virtual time begins: not at zero, which means "never" in places.
pub(crate) const START: Nanos = Nanos(1_000_000_000);
const ENDPOINT: &str = "server";
const HANDLE: &str = "object";

/// What is read, by what, from which seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    pub(crate) object_bytes: u64,
    pub(crate) stripe_bytes: u64,
    /// Longest piece.
    pub(crate) piece_bytes_max: u64,
    /// What the core that drives the rails hashes; none: verification takes no virtual time.
    pub(crate) verify_bytes_per_second: Option<u64>,
    pub(crate) seed: u64,
}

impl Reads {
    /// Length of the pieces that the engine cuts such an object into for so many rails: as
    /// `EngineConfig::piece_bytes_max` says, fine enough that they end together.
    pub(crate) fn piece_bytes(&self, rails: usize) -> u64 {
        let longest = self.piece_bytes_max.min(self.stripe_bytes);
        if rails < 2 {
            return longest;
        }
        let fine = 1 << (self.object_bytes / (rails as u64 * 128)).max(1).ilog2();
        u64::clamp(fine, longest.min(64 << 10), longest)
    }
}

/// An engine without threads over simulated rails, one object, and memory for it.
pub(crate) struct Simulated {
    engine: InlineEngine<SimLink>,
    object: Object,
    ring: Ring,
    lease: Option<Lease>,
    now: Nanos,
    _pool: Pool,
}

impl Simulated {
    pub(crate) fn new(reads: &Reads, rails: Vec<SimRailConfig>) -> Result<Self> {
        let mut world = SimWorld::new(reads.seed);
        let placement = put(&world, reads)?;
        let mut halves = Vec::with_capacity(rails.len());
        for rail in rails {
            let (control, link) = world.add_rail(rail)?;
            halves.push(Rail { control: control as Arc<dyn RailControl>, link, poller: 0 });
        }
        let config =
            EngineConfig { piece_bytes_max: reads.piece_bytes_max, ..EngineConfig::default() };
        let rate = reads.verify_bytes_per_second.and_then(NonZeroU64::new);
        let hashing = rate.map_or(Hashing::Free, Hashing::BytesPerSecond);
        let builder = EngineBuilder::new(halves).config(config);
        let engine = builder.build_virtual_hashing(START, hashing)?;
        let object = engine.open(&placement)?;
        let slot_bytes = usize::try_from(reads.object_bytes)?;
        let pool =
            engine.buffer_pool(PoolConfig { slots: 1, slot_bytes, ..PoolConfig::default() })?;
        let stripes = u32::try_from(placement.stripes.len())?;
        let cq_entries = stripes.next_power_of_two().max(64);
        let ring = engine.ring(RingConfig { cq_entries, ..RingConfig::default() })?;
        let lease = pool.take();
        Ok(Simulated { engine, object, ring, lease, now: START, _pool: pool })
    }

    /// The same, and where the engine says the time went.
    pub(crate) fn timed_read(&mut self) -> Result<(u64, EngineStats)> {
        let before = self.engine.stats();
        let took = self.read()?;
        Ok((took, self.engine.stats().since(&before)))
    }

    /// Reads the whole object; how long that took, in virtual nanoseconds.
    pub(crate) fn read(&mut self) -> Result<u64> {
        let begun = self.now;
        let lease = self.lease.take().context("an earlier read kept its memory")?;
        let read = Read::new(&self.object, 0..self.object.len(), lease);
        self.ring.push(read).map_err(|refused| anyhow!(refused.why))?;
        self.ring.submit();
        loop {
            let progress = self.engine.turn_at(self.now);
            self.now = self.engine.now();
            self.pop()?;
            match progress {
                _ if self.lease.is_some() => return Ok(self.now.since(begun)),
                Progress::Worked => {}
                Progress::Idle => self.pass_time()?,
            }
        }
    }

    /// Takes what has completed.
    fn pop(&mut self) -> Result<()> {
        while let Some(completion) = self.ring.pop() {
            let (status, stripe) = (completion.status(), completion.stripe());
            ensure!(status.is_ok(), "stripe {stripe} ended with {status}");
            self.lease = self.lease.take().or(completion.into_lease());
        }
        Ok(())
    }

    fn pass_time(&mut self) -> Result<()> {
        let next = self.engine.next_event();
        if next == Nanos::NEVER {
            bail!("nothing will ever happen and the read has not ended");
        }
        self.now = Nanos(next.0.max(self.now.0 + 1));
        Ok(())
    }

    /// The rails as they are.
    pub(crate) fn rails(&self) -> Vec<RailStats> {
        self.engine.rail_stats()
    }
}

/// Puts an object of noise into `world`, and says where it lies.
fn put(world: &SimWorld, reads: &Reads) -> Result<Placement> {
    let mut bytes = vec![0; usize::try_from(reads.object_bytes)?];
    fastrand::Rng::with_seed(reads.seed).fill(&mut bytes);
    let stripes = bytes.chunks(usize::try_from(reads.stripe_bytes)?).zip(0..);
    let stripe = |(stripe, index): (&[u8], u32)| StripePlacement {
        index,
        len_bytes: stripe.len() as u64,
        owners: vec![Owner {
            source: 0,
            offset: u64::from(index) * reads.stripe_bytes,
            table_offset: 0,
        }],
        checksum: Some(stripe_checksum(stripe)),
        table_checksum: None,
    };
    let stripes = stripes.map(stripe).collect();
    world.put(ENDPOINT, HANDLE, SourceContent::new(1, bytes));
    Ok(Placement {
        key: "model/object".parse()?,
        generation: 1,
        etag: String::new(),
        handle: HANDLE.to_owned(),
        layout_version: 1,
        size_bytes: reads.object_bytes,
        stripe_bytes: reads.stripe_bytes,
        block_bytes: 64 << 10,
        sources: vec![Source { endpoint: ENDPOINT.to_owned(), handle: HANDLE.to_owned() }],
        stripes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: Reads = Reads {
        object_bytes: 8 << 20,
        stripe_bytes: 1 << 20,
        piece_bytes_max: 4 << 20,
        verify_bytes_per_second: None,
        seed: 7,
    };

    /// How long `bytes` take at `rate` bytes per second.
    fn nanoseconds(bytes: u64, rate: u64) -> u64 {
        bytes * 1_000_000_000 / rate
    }

    fn time(reads: Reads) -> u64 {
        let mut simulated = Simulated::new(&reads, vec![SimRailConfig::new("a")]).expect("valid");
        simulated.read().expect("reads")
    }

    #[test]
    fn a_read_takes_its_bytes_at_the_rails_rate_and_no_real_time() {
        let took = time(READS);
        assert_eq!(took, time(READS), "the same seed");
        let least = nanoseconds(READS.object_bytes, 125_000_000);
        assert!((least..least * 101 / 100).contains(&took), "{took} of {least}");
    }

    #[test]
    fn hashing_slower_than_the_rail_is_what_the_read_takes() {
        let verify_bytes_per_second = Some(50_000_000);
        let took = time(Reads { verify_bytes_per_second, ..READS });
        let least = nanoseconds(READS.object_bytes, 50_000_000);
        assert!((least..least * 110 / 100).contains(&took), "{took} of {least}");
    }

    #[test]
    fn pieces_are_as_long_as_the_engine_cuts_them() {
        for rails in [1_usize, 2, 3, 8] {
            let all = (0..rails).map(|at| SimRailConfig::new(format!("r{at}"))).collect();
            let mut simulated = Simulated::new(&READS, all).expect("valid");
            simulated.read().expect("reads");
            let pieces: u64 = simulated.rails().iter().map(|rail| rail.pieces).sum();
            let piece_bytes = READS.piece_bytes(rails);
            assert_eq!(pieces, READS.object_bytes / piece_bytes, "{rails} rails: {piece_bytes} B");
        }
    }
}
