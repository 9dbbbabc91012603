//! The one decision between publishing a read's bytes and cancelling the read.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::cancel::CancelToken;

const OPEN: u8 = 0;
const CANCELLED: u8 = 1;
const PUBLISHED: u8 = 2;

/// Belongs to one blocking read, and is shared with whoever may cancel it. Exactly one of the two
/// wins: either [`PublishGate::cancel`] returns `true` and the caller's memory stays as it was, or
/// the read's bytes are published and it returns `false`. `Send + Sync`.
#[derive(Debug)]
pub struct PublishGate {
    state: AtomicU8,
    token: CancelToken,
}

impl PublishGate {
    /// A gate for one read. `token` stops its transfers once the gate is cancelled; take a fresh
    /// one from the engine.
    #[must_use]
    pub fn new(token: CancelToken) -> Self {
        PublishGate { state: AtomicU8::new(OPEN), token }
    }

    /// Cancels the read unless its bytes are published already. Idempotent. Returns whether the
    /// memory is guaranteed to stay untouched.
    pub fn cancel(&self) -> bool {
        let won = self.decide(CANCELLED);
        if won {
            self.token.cancel();
        }
        won
    }

    pub(crate) fn token(&self) -> &CancelToken {
        &self.token
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OPEN
    }

    pub(crate) fn publish(&self) -> bool {
        self.is_open() && self.decide(PUBLISHED)
    }

    /// Whether the gate now stands as wanted. One word and read-modify-write: both sides see the
    /// same winner without any order between other accesses.
    fn decide(&self, wanted: u8) -> bool {
        match self.state.compare_exchange(OPEN, wanted, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(stands) => stands == wanted,
        }
    }
}
