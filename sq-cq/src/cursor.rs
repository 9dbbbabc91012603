//! Owns the arithmetic of ring indices: free-running `u32` counters, no memory, no atomics.
//!
//! A counter is never reduced modulo the capacity; it runs through all of `u32` and wraps. Since a
//! capacity is a power of two it divides 2^32, so a position and its slot stay in step across the
//! wrap, all N slots are usable, and `tail - head` (wrapping) is the length without a special case.

use crate::RingError;

/// The largest capacity of a ring, in entries.
pub const ENTRIES_MAX: u32 = 1 << 20;

/// A power-of-two number of slots, 1 to [`ENTRIES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity(u32);

impl Capacity {
    pub(crate) fn new(which: &'static str, entries: u32) -> Result<Self, RingError> {
        if entries == 0 || entries > ENTRIES_MAX {
            return Err(RingError::EntriesOutOfRange { which, entries, max: ENTRIES_MAX });
        }
        if !entries.is_power_of_two() {
            let above = entries.next_power_of_two();
            return Err(RingError::NotPowerOfTwo { which, entries, below: above / 2, above });
        }
        Ok(Self(entries))
    }

    #[inline]
    pub(crate) const fn entries(self) -> u32 {
        self.0
    }

    /// Twice as many slots, for a ring that no caller sizes.
    pub(crate) const fn doubled(self) -> Self {
        Self(self.0 * 2)
    }
}

/// A free-running position in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor(pub(crate) u32);

impl Cursor {
    /// The position after this one.
    #[inline]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// How many positions lie from `earlier` up to this one.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The slot of this position in a ring of `mask + 1` slots.
    #[inline]
    pub(crate) const fn slot(self, mask: u32) -> usize {
        (self.0 & mask) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_powers_of_two_down_to_one() {
        for shift in 0..=20 {
            let capacity = Capacity::new("cq_entries", 1 << shift).expect("a power of two");
            assert_eq!(capacity.entries(), 1 << shift);
        }
        let refused = Capacity::new("cq_entries", 1000).expect_err("1000 is none");
        assert_eq!(refused.to_string(), "cq_entries 1000 is not a power of two: use 512 or 1024");
        for entries in [0, ENTRIES_MAX + 1, u32::MAX] {
            let refused = Capacity::new("sq_entries", entries).expect_err("out of range");
            let text = "is out of range: use a power of two from 1 to 1048576";
            assert_eq!(refused.to_string(), format!("sq_entries {entries} {text}"));
        }
    }

    #[test]
    fn positions_and_slots_stay_in_step_across_the_wrap() {
        for mask in [0, 1, 3, 1023] {
            let start = Cursor(u32::MAX - 3);
            let (mut cursor, mut slot) = (start, start.slot(mask));
            for passed in 1..=4096 {
                cursor = cursor.next();
                slot = (slot + 1) % (mask as usize + 1);
                assert_eq!(cursor.slot(mask), slot);
                assert_eq!(cursor.since(start), passed);
            }
        }
    }
}
