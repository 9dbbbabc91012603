//! Pieces whose rail has no staging memory for them: they wait for some to come back, and not for
//! ever. What a device keeps for good never does.

use railring_transport::Nanos;
use sq_cq::Status;

use super::{Courier, Home, PieceKind};
use crate::config::EngineConfig;
use crate::staging::StagedFor;

/// After so long what a device has is back, or known to be stuck.
pub(super) fn patience_ns(config: &EngineConfig) -> u64 {
    let patience = config.io_timeout + config.cancel_grace + config.quiet_bound;
    u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)
}

impl Home {
    /// The oldest piece that waits for `rail` found no staging memory there.
    pub(super) fn note_starving(&mut self, rail: usize) {
        let feed = &mut self.feeds[rail];
        if feed.starves_since == Nanos::NEVER {
            feed.starves_since = self.now;
        }
    }

    /// When a rail's pieces have starved for long enough.
    pub(super) fn starved_until(&self) -> Nanos {
        let until = |rail: usize| self.feeds[rail].starves_since.after(self.rules.patience_ns);
        self.busy.iter().map(until).fold(Nanos::NEVER, Nanos::min)
    }

    /// What starved for too long tries another rail, or fails; says whether anything did.
    pub(super) fn end_starving(&mut self, now: Nanos, courier: &mut impl Courier) -> bool {
        if self.starved_until() > now {
            return false;
        }
        let mut any = false;
        for rail in self.busy.iter() {
            if self.feeds[rail].starves_since.after(self.rules.patience_ns) > now {
                continue;
            }
            for _ in 0..self.feeds[rail].staged.len() {
                let starving = self.feeds[rail].staged.front().filter(|&slot| self.lacks(slot));
                let Some(slot) = starving else { break };
                self.unstage(slot);
                self.again_elsewhere(slot, Status::RAIL_DOWN, now, courier);
                any = true;
            }
            self.feeds[rail].starves_since = Nanos::NEVER;
        }
        any
    }

    /// Whether the rail of a piece that waits has no staging memory for it.
    pub(super) fn lacks(&self, slot: u32) -> bool {
        let piece = self.pieces.peek(slot);
        let wanted_for = match piece.kind {
            PieceKind::Direct => return false,
            PieceKind::Staged => StagedFor::Bytes,
            PieceKind::Table => StagedFor::Table,
        };
        let staging = &self.feeds[usize::from(piece.rail)].staging;
        staging.take(piece.shape.read_bytes, wanted_for).is_none()
    }
}
