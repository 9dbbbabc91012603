//! Making a home: how large its tables are, allocated once.

use std::collections::HashMap;
use std::sync::Arc;

use railring_catalog::checksum::StreamingChecksum;
use railring_transport::{Alignment, Nanos};

use super::queue::Queue;
use super::{Feed, HashCursor, Home, QUOTA, Rules, STAGED_MAX, cut, starve};
use crate::config::EngineConfig;
use crate::health::Standing;
use crate::plan::CutRules;
use crate::schedule::{Load, RailMask, Scheduler};
use crate::shared::Shared;
use crate::slab::{List, NONE, Slab};
use crate::stages::Tally;
use crate::staging::Staging;
use crate::tables::TableCache;
use crate::wheel::Wheel;

/// What a home needs to know of each rail when it is made.
#[derive(Debug)]
pub(crate) struct RailFacts {
    pub(crate) weight: u32,
    pub(crate) outstanding_wrs_max: u32,
    pub(crate) request_bytes_max: u64,
    pub(crate) alignment: Alignment,
    pub(crate) staging: Staging,
    pub(crate) is_disk: bool,
}

impl Home {
    /// Pieces of one home: what all rails can have staged and in flight, and a table fetch beside
    /// each.
    pub(crate) fn pieces_max(rails: &[RailFacts]) -> u32 {
        let each = |rail: &RailFacts| 2 * (STAGED_MAX + QUOTA + rail.outstanding_wrs_max);
        rails.iter().map(each).sum::<u32>() + 64
    }

    pub(crate) fn new(index: u16, shared: Arc<Shared>, rails: &[RailFacts], now: Nanos) -> Self {
        let config = &shared.config;
        let limits = config.limits;
        let pieces = Self::pieces_max(rails);
        let alignment =
            rails.iter().fold(Alignment::NONE, |all, rail| all.strictest(rail.alignment));
        let rules = Rules {
            alignment,
            piece_bytes_max: piece_bytes_max(config),
            request_bytes_max: rails.iter().map(|r| r.request_bytes_max).min().unwrap_or(u64::MAX),
            shared_bytes_max: cut::shared_bytes_max(&shared.config, rails),
            attempts_max: config.attempts_max,
            patience_ns: starve::patience_ns(config),
            grain: CutRules::grain_of(1, alignment),
            solo_bytes_max: 0,
        };
        let rules = Rules { solo_bytes_max: rules.whole_bytes_max(), ..rules };
        let feed = |rail: &RailFacts| Feed {
            staged: Queue::default(),
            waiters: List::default(),
            ordered: 0,
            ordered_bytes: 0,
            staged_bytes: 0,
            ordered_max: rail.outstanding_wrs_max.min(limits.rail_pieces_max),
            ordered_bytes_max: limits.rail_bytes_max,
            staging: rail.staging.clone(),
            is_disk: rail.is_disk,
            standing: Standing::Up,
            starves_since: Nanos::NEVER,
        };
        let load = |rail: &RailFacts| Load::new(rail.weight, 1);
        let words = (config.rings_max as usize).div_ceil(64);
        Home {
            index,
            rules,
            seats: (0..config.rings_max).map(|_| None).collect(),
            ready: vec![0; words],
            unpublished: vec![0; words],
            objects: Vec::new(),
            reads: Slab::new(config.reads_max),
            corked: 0,
            reads_max: config.reads_max,
            stripes: Slab::new(pieces),
            pieces: Slab::new(pieces),
            solos: Slab::new(config.reads_max),
            feeds: rails.iter().map(feed).collect(),
            loads: rails.iter().map(load).collect(),
            busy: RailMask::default(),
            rates_until: Nanos(0),
            scheduler: Scheduler::new(config.policy, rails.len()),
            tables: TableCache::new(usize::try_from(config.table_cache_bytes).unwrap_or(1 << 25)),
            wheel: Wheel::new(now),
            fired: Vec::with_capacity(config.reads_max as usize),
            tokens: HashMap::with_capacity(config.reads_max as usize),
            hashing: List::default(),
            hash: HashCursor { state: Box::new(StreamingChecksum::new()), piece: NONE, at: 0 },
            hungry: None,
            claims: false,
            starved: false,
            draining: List::default(),
            stopping: false,
            tally: Tally::default(),
            hashed_bytes: 0,
            now,
            shared,
        }
    }

    /// Piece ids a rail may be given: those of pieces, and those of solos behind them.
    pub(crate) fn piece_ids_max(rails: &[RailFacts], reads_max: u32) -> u32 {
        Self::pieces_max(rails) + reads_max
    }
}

/// Longest piece that fits the limits on bytes in flight; where those are smaller than any piece,
/// the smallest: one is always let through.
fn piece_bytes_max(config: &EngineConfig) -> u64 {
    let limit = config.limits.bytes_max.min(config.limits.rail_bytes_max);
    config.piece_bytes_max.min(limit.max(cut::PIECE_BYTES_MIN))
}
