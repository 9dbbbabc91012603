//! What an engine is told when it is built, with defaults, validated once.

use std::time::Duration;

use crate::schedule::Policy;

/// How a poller waits when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// Never sleeps: lowest latency, one core busy.
    Busy,
    /// Spins for so long after the last work, then sleeps until something happens. An idle engine
    /// uses no CPU.
    Adaptive {
        /// How long it spins first.
        spin: Duration,
    },
}

/// Upper bounds, in total over the engine. Refusal happens before any effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pieces in flight, per rail. A rail may grant fewer.
    pub rail_pieces_max: u32,
    /// Bytes in flight, per rail. At least one piece is always let through.
    pub rail_bytes_max: u64,
    /// Pieces in flight, over all rails.
    pub pieces_max: u32,
    /// Bytes in flight, over all rails. At least one piece is always let through.
    pub bytes_max: u64,
    /// Bytes of one read; a larger one is refused at push.
    pub read_bytes_max: u64,
    /// Bytes registered with rails; a region that goes over is refused.
    pub registered_bytes_max: u64,
    /// Targets connected over all rails; an object that goes over is refused at open.
    pub connections_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rail_pieces_max: u32::MAX,
            rail_bytes_max: u64::MAX,
            pieces_max: u32::MAX,
            bytes_max: u64::MAX,
            read_bytes_max: u64::MAX,
            registered_bytes_max: u64::MAX,
            connections_max: 65_536,
        }
    }
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How pieces are given to rails.
    pub policy: Policy,
    /// Longest piece, in bytes. A read over several rails that all reach its owners is cut finer,
    /// down to 64 KiB, so that they finish together. Default 4 MiB.
    pub piece_bytes_max: u64,
    /// Reads a poller works on at once; more wait in their rings. Default 4,096.
    pub reads_max: u32,
    /// Rings per engine. Default 64.
    pub rings_max: u32,
    /// Objects open at once. Default 65,536.
    pub objects_max: u32,
    /// Regions registered at once. Default 256.
    pub regions_max: u32,
    /// How often a piece is tried, in all, before its stripe fails. Default 3.
    pub attempts_max: u8,
    /// How long one attempt of a piece may take before it is given up. Default 30 s.
    pub io_timeout: Duration,
    /// How long a cancelled piece may take to come back before its connection is torn down for
    /// it. Default 100 ms.
    pub cancel_grace: Duration,
    /// How long after that its memory may stay in doubt before the read ends as `Stuck`.
    /// Default 5 s.
    pub quiet_bound: Duration,
    /// First cooldown of a rail after a fault; doubles with each fault that follows, up to
    /// 64 times this. Default 100 ms.
    pub cooldown: Duration,
    /// Staging memory of each rail and size class, in bytes; see the stats. Default 4 MiB.
    pub staging_bytes: u64,
    /// Block tables kept by each poller, in bytes. Default 32 MiB.
    pub table_cache_bytes: u64,
    /// How pollers wait. Default: adaptive, 10 us: over file rails, longer spinning cost reads per
    /// second (0, 3, 10, 30, 100, 1000 us gave 39, 40, 48, 32, 42, 25 k/s at 4 KiB and depth 32 on
    /// two busy cores; `cargo test --release -p railring-file --test it -- --ignored throughput`).
    pub waiting: Waiting,
    /// Bounds.
    pub limits: Limits,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            policy: Policy::default(),
            piece_bytes_max: 4 << 20,
            reads_max: 4096,
            rings_max: 64,
            objects_max: 65_536,
            regions_max: 256,
            attempts_max: 3,
            io_timeout: Duration::from_secs(30),
            cancel_grace: Duration::from_millis(100),
            quiet_bound: Duration::from_secs(5),
            cooldown: Duration::from_millis(100),
            staging_bytes: 4 << 20,
            table_cache_bytes: 32 << 20,
            waiting: Waiting::Adaptive { spin: Duration::from_micros(10) },
            limits: Limits::default(),
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {value} was refused: {rule}")]
pub struct ConfigError {
    field: &'static str,
    value: u64,
    rule: &'static str,
}

impl EngineConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let at_least = |field, value: u64, least: u64, rule| {
            if value < least { Err(ConfigError { field, value, rule }) } else { Ok(()) }
        };
        let piece = "a piece is at least 64 KiB";
        at_least("piece_bytes_max", self.piece_bytes_max, 64 << 10, piece)?;
        at_least("reads_max", self.reads_max.into(), 1, "at least 1")?;
        at_least("rings_max", self.rings_max.into(), 1, "at least 1")?;
        at_least("objects_max", self.objects_max.into(), 1, "at least 1")?;
        at_least("attempts_max", self.attempts_max.into(), 1, "one attempt is needed")?;
        at_least("staging_bytes", self.staging_bytes, 2 << 20, "two blocks of 1 MiB must fit")?;
        let table = "a table of 1 MiB must fit";
        at_least("table_cache_bytes", self.table_cache_bytes, 2 << 20, table)?;
        at_least("limits.pieces_max", self.limits.pieces_max.into(), 1, "at least 1")?;
        at_least("limits.rail_pieces_max", self.limits.rail_pieces_max.into(), 1, "at least 1")?;
        at_least("limits.bytes_max", self.limits.bytes_max, 1, "at least 1")?;
        at_least("limits.rail_bytes_max", self.limits.rail_bytes_max, 1, "at least 1")?;
        if self.reads_max > 1 << 20 {
            let (value, rule) = (self.reads_max.into(), "at most 1,048,576");
            return Err(ConfigError { field: "reads_max", value, rule });
        }
        if self.rings_max > 4096 {
            let (value, rule) = (self.rings_max.into(), "at most 4,096");
            return Err(ConfigError { field: "rings_max", value, rule });
        }
        Ok(())
    }
}
