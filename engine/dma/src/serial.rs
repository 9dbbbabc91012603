//! Serials: numbers that tell one lending of a byte from every other lending of the same address.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lends that one epoch covers before a lease needs a fresh one, as a power of two.
const COUNT_BITS: u32 = 16;

/// The next epoch. It is the one value this crate shares between registries: an address may be
/// mapped again by another registry, and a receipt kept from the first must not open the second.
/// Only distinctness matters; nothing can be learnt from it or set through it.
static EPOCHS: AtomicU64 = AtomicU64::new(1);

/// The serial of one lending. For each byte of memory, and over remappings of its address, the
/// serials it is lent under strictly grow: a lease counts up, a join takes the larger, a slot
/// and a region remember theirs, and a new region starts in a new epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Serial(u64);

impl Serial {
    /// The start of an epoch that nobody has used.
    #[cold]
    pub(crate) fn fresh() -> Serial {
        // Relaxed: atomicity alone makes the number unique.
        let epoch = EPOCHS.fetch_add(1, Ordering::Relaxed);
        if epoch >= 1 << (u64::BITS - COUNT_BITS) {
            // 2^48 epochs of a microsecond each are nine years; after them old receipts would lie.
            std::process::abort();
        }
        Serial(epoch << COUNT_BITS)
    }

    /// The serial after this one: a plain increment, except once in 2^16.
    #[inline]
    pub(crate) fn next(self) -> Serial {
        let next = self.0 + 1;
        if next & ((1 << COUNT_BITS) - 1) == 0 { Serial::fresh() } else { Serial(next) }
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn from_stored(stored: u64) -> Serial {
        Serial(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_grow_and_never_enter_the_epoch_of_another() {
        let mut one = Serial::fresh();
        let mut other = Serial::fresh();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..200_000 {
            let (a, b) = (one.next(), other.next());
            assert!(a > one && b > other);
            assert!(seen.insert(a.get()) && seen.insert(b.get()));
            (one, other) = (a, b);
        }
    }
}
