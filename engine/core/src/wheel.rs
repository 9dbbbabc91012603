//! Deadlines of reads: a hashed timing wheel (Varghese and Lauck, 1987, scheme 6).
//!
//! Arming and disarming cost the same whatever the number of deadlines. A slot holds every
//! deadline that falls into its tick of any rotation; visiting it puts those of later rotations
//! back. Nothing fires early; a deadline fires at most one tick late, plus the length of a turn.

use railring_transport::Nanos;

use crate::slab::{Linked, List, Slab};

/// Length of a tick, in nanoseconds: 1 ms, far below any deadline worth setting on a read and far
/// above the length of a turn.
const TICK_NS: u64 = 1_000_000;
const SLOTS: usize = 1024;
const WORDS: usize = SLOTS / 64;

/// The list tag of wheel membership.
pub(crate) const WHEEL: usize = 7;

/// An entry that may have a deadline.
pub(crate) trait Timed: Linked<WHEEL> {
    /// When it fires. Constant while armed.
    fn fires_at(&self) -> Nanos;
}

#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Box<[List<WHEEL>]>,
    occupied: [u64; WORDS],
    /// The next tick to visit.
    tick: u64,
    armed: u32,
}

impl Wheel {
    pub(crate) fn new(now: Nanos) -> Self {
        Wheel {
            slots: vec![List::default(); SLOTS].into_boxed_slice(),
            occupied: [0; WORDS],
            tick: now.0 / TICK_NS,
            armed: 0,
        }
    }

    /// Arms an entry. `false`: its tick was visited already, so it has passed (or is about to
    /// within the tick) and the caller must act on it at once.
    #[must_use]
    pub(crate) fn arm<T: Timed>(&mut self, slab: &mut Slab<T>, entry: u32) -> bool {
        let tick = Self::tick_of(slab, entry);
        if tick < self.tick {
            return false;
        }
        let slot = Self::slot_of(tick);
        self.slots[slot].push_back(slab, entry);
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.armed += 1;
        true
    }

    /// Takes an entry out before it fires. Does nothing if it is not armed.
    pub(crate) fn disarm<T: Timed>(&mut self, slab: &mut Slab<T>, entry: u32) {
        if !slab.at(entry).links().is_linked() {
            return;
        }
        let slot = Self::slot_of(Self::tick_of(slab, entry));
        self.slots[slot].remove(slab, entry);
        if self.slots[slot].len() == 0 {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        self.armed -= 1;
    }

    /// The first tick at whose start the entry's time has passed.
    fn tick_of<T: Timed>(slab: &Slab<T>, entry: u32) -> u64 {
        slab.peek(entry).fires_at().0.div_ceil(TICK_NS)
    }

    fn slot_of(tick: u64) -> usize {
        usize::try_from(tick % SLOTS as u64).expect("below SLOTS")
    }

    /// Moves time to `now`, passing each entry whose deadline has passed to `fired`.
    pub(crate) fn advance<T: Timed>(
        &mut self,
        slab: &mut Slab<T>,
        now: Nanos,
        mut fired: impl FnMut(u32),
    ) {
        let end = now.0 / TICK_NS;
        if self.armed == 0 {
            self.tick = self.tick.max(end + 1);
            return;
        }
        // One rotation visits every slot: a longer jump needs no more.
        let first = self.tick.max((end + 1).saturating_sub(SLOTS as u64));
        for tick in first..=end {
            let slot = Self::slot_of(tick);
            if self.occupied[slot / 64] & (1 << (slot % 64)) != 0 {
                self.visit(slab, slot, now, &mut fired);
            }
        }
        self.tick = self.tick.max(end + 1);
    }

    fn visit<T: Timed>(
        &mut self,
        slab: &mut Slab<T>,
        slot: usize,
        now: Nanos,
        fired: &mut impl FnMut(u32),
    ) {
        for _ in 0..self.slots[slot].len() {
            let Some(entry) = self.slots[slot].pop_front(slab) else { break };
            if slab.peek(entry).fires_at() <= now {
                self.armed -= 1;
                fired(entry);
            } else {
                self.slots[slot].push_back(slab, entry);
            }
        }
        if self.slots[slot].len() == 0 {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// When the next visit may fire something; `None` when nothing is armed. Looks at the bitmap
    /// only, so it may be a rotation early.
    pub(crate) fn next(&self) -> Option<Nanos> {
        if self.armed == 0 {
            return None;
        }
        let start = Self::slot_of(self.tick);
        let offset = (0..=WORDS).find_map(|step| {
            let word = (start / 64 + step) % WORDS;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (start % 64);
            } else if step == WORDS {
                bits &= !(u64::MAX << (start % 64));
            }
            (bits != 0).then(|| {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                (slot + SLOTS - start) % SLOTS
            })
        })?;
        Some(Nanos((self.tick + offset as u64) * TICK_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Links;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug)]
    struct Timer {
        at: Nanos,
        links: Links,
    }
    impl Linked<WHEEL> for Timer {
        fn links(&mut self) -> &mut Links {
            &mut self.links
        }
    }
    impl Timed for Timer {
        fn fires_at(&self) -> Nanos {
            self.at
        }
    }

    proptest! {
        /// Against a sorted map: nothing fires early, nothing is forgotten, and what fires is
        /// never more than a tick late at the time of the visit.
        #[test]
        fn a_wheel_is_a_sorted_map(
            script in prop::collection::vec((0u8..3, 0u64..3_000_000_000, 0usize..64), 1..200)
        ) {
            let mut slab = Slab::new(512);
            let mut wheel = Wheel::new(Nanos(0));
            let mut oracle: BTreeMap<u32, Nanos> = BTreeMap::new();
            let mut now = Nanos(0);
            for (op, amount, pick) in script {
                match op {
                    0 => {
                        let at = now.after(amount);
                        let timer = Timer { at, links: Links::default() };
                        let Ok(id) = slab.insert(timer) else { continue };
                        if wheel.arm(&mut slab, id.slot) {
                            oracle.insert(id.slot, at);
                        } else {
                            prop_assert!(at <= now.after(TICK_NS), "refused too soon");
                            slab.remove_at(id.slot);
                        }
                    }
                    1 if !oracle.is_empty() => {
                        let (&slot, _) =
                            oracle.iter().nth(pick % oracle.len()).expect("not empty");
                        wheel.disarm(&mut slab, slot);
                        slab.remove_at(slot);
                        oracle.remove(&slot);
                    }
                    _ => {
                        now = now.after(amount / 50);
                        let mut fired = Vec::new();
                        wheel.advance(&mut slab, now, |slot| fired.push(slot));
                        for slot in fired {
                            let at = oracle.remove(&slot).expect("armed");
                            prop_assert!(at <= now, "fired early");
                            slab.remove_at(slot);
                        }
                        let late = now.0.saturating_sub(TICK_NS);
                        prop_assert!(oracle.values().all(|at| at.0 > late), "forgotten");
                    }
                }
                match (wheel.next(), oracle.values().min()) {
                    (None, None) => {}
                    (Some(next), Some(first)) => prop_assert!(next.0 <= first.0 + TICK_NS),
                    (next, first) => prop_assert!(false, "{:?} {:?}", next, first),
                }
            }
        }
    }
}
