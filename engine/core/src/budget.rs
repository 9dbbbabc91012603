//! Bounds on what is in flight over all rails, and whose turn it is when they are reached.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A bound that all pollers share.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Budget { limit, used: AtomicU64::new(0) }
    }

    /// Takes `amount`. One request is always let through when nothing else is in use, so that no
    /// limit can stop an engine for good.
    #[inline]
    pub(crate) fn take(&self, amount: u64) -> bool {
        if self.limit == u64::MAX {
            return true;
        }
        // Relaxed: the count bounds nothing but itself.
        let take = |used: u64| {
            (used == 0 || used.saturating_add(amount) <= self.limit).then_some(used + amount)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    #[inline]
    pub(crate) fn is_bounded(&self) -> bool {
        self.limit != u64::MAX
    }

    #[inline]
    pub(crate) fn give_back(&self, amount: u64) {
        if self.limit != u64::MAX {
            self.used.fetch_sub(amount, Ordering::Relaxed);
        }
    }
}

/// For which poller's piece room is kept. Pollers whose pieces found none take turns.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// That poller, plus one; 0 if it is nobody's turn.
    holder: AtomicU32,
    /// Pollers whose oldest piece found no room, one bit each.
    wanting: AtomicU64,
}

impl Claim {
    #[inline]
    pub(crate) fn is_anothers(&self, poller: u16) -> bool {
        // Relaxed: it is about who goes first, not about what is seen.
        let holder = self.holder.load(Ordering::Relaxed);
        holder != 0 && holder != u32::from(poller) + 1
    }

    /// `poller` wants room. It is its turn if it is nobody's.
    pub(crate) fn want(&self, poller: u16) {
        self.wanting.fetch_or(1 << poller, Ordering::SeqCst);
        self.swap(0, u32::from(poller) + 1);
    }

    /// `poller` wants none any more. Says whose turn it became by that.
    pub(crate) fn release(&self, poller: u16) -> Option<u16> {
        self.wanting.fetch_and(!(1 << poller), Ordering::SeqCst);
        let mut from = poller;
        loop {
            let next = self.after(from);
            let holder = next.map_or(0, |next| u32::from(next) + 1);
            if !self.swap(u32::from(from) + 1, holder) {
                return None; // It was another's turn.
            }
            // Whoever stopped wanting before it was its turn could not pass it on.
            match next {
                Some(next) if self.wanting.load(Ordering::SeqCst) >> next & 1 == 0 => from = next,
                next => return next,
            }
        }
    }

    fn swap(&self, from: u32, to: u32) -> bool {
        self.holder.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The next poller that wants room, in a circle.
    fn after(&self, poller: u16) -> Option<u16> {
        let wanting = self.wanting.load(Ordering::SeqCst);
        let turned = wanting.rotate_right(u32::from(poller) + 1);
        let step = u16::try_from(turned.trailing_zeros()).ok()?;
        (wanting != 0).then_some((poller + 1 + step) % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_want_room_take_turns() {
        let claim = Claim::default();
        assert!(!claim.is_anothers(3));
        for poller in [3, 63, 0, 7] {
            claim.want(poller);
        }
        let mut order = vec![3];
        for _ in 0..3 {
            let holder = order[order.len() - 1];
            assert!((0..64).all(|poller| claim.is_anothers(poller) == (poller != holder)));
            order.push(claim.release(holder).expect("others want"));
        }
        assert_eq!(order, [3, 7, 63, 0]);
        assert_eq!(claim.release(0), None);
        assert!((0..64).all(|poller| !claim.is_anothers(poller)));
    }

    #[test]
    fn who_is_not_on_turn_can_stop_wanting() {
        let claim = Claim::default();
        claim.want(1);
        claim.want(2);
        assert_eq!(claim.release(2), None);
        assert_eq!(claim.release(1), None);
        assert!(!claim.is_anothers(5));
    }

    /// However releases and wants of threads interleave, nobody's turn is left behind.
    #[test]
    fn a_turn_is_never_left_with_one_who_does_not_want_it() {
        let claim = Claim::default();
        std::thread::scope(|scope| {
            for poller in 0..4 {
                let claim = &claim;
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        claim.want(poller);
                        claim.release(poller);
                    }
                });
            }
        });
        assert!((0..64).all(|poller| !claim.is_anothers(poller)));
    }
}
