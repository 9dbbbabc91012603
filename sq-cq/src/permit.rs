//! Owns the permit: the completion slots that an accepted read holds, spent one CQE at a time.

use crate::ReadId;

/// The CQ slots of one accepted read. [`PollerEnd::pop`](crate::PollerEnd::pop) gives it out with
/// the SQE; [`complete`](crate::PollerEnd::complete) spends one slot of it and
/// [`finish`](crate::PollerEnd::finish) the rest. It is how "each accepted read ends exactly once"
/// is said in types: it cannot be copied, and a path that forgets it panics.
///
/// # Panics
/// Dropping a permit that was not spent panics, since its read would never end. While the thread
/// unwinds already it is dropped silently: an unwinding poller has failed, and its reads are ended
/// by whoever catches that (a second panic would abort the process instead).
#[derive(Debug)]
// Aligned so that it moves in whole words: with 4 bytes it is copied by wider loads than it was
// stored with, and the stalls cost more than everything else in a read (timing test: 42 -> 26 ns).
#[repr(align(8))]
#[must_use = "an unspent permit panics when dropped: finish the read or abandon it"]
pub struct Permit {
    read: ReadId,
    /// Zero only once it is spent.
    slots_left: u32,
    /// The ring it belongs to.
    source: u32,
    cancelled: bool,
}

impl Permit {
    #[inline]
    pub(crate) fn new(read: ReadId, slots: u32, source: u32, cancelled: bool) -> Self {
        Self { read, slots_left: slots, source, cancelled }
    }

    /// Which read it belongs to.
    #[inline]
    pub fn read_id(&self) -> ReadId {
        self.read
    }

    /// CQEs that the read can still give. The last of them is for `finish`.
    #[inline]
    pub fn slots_left(&self) -> u32 {
        self.slots_left
    }

    /// Whether the caller had cancelled the read before it was popped.
    /// [`PollerEnd::pop_cancel`](crate::PollerEnd::pop_cancel) does not tell of it again.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Gives the read up without a CQE. Its caller never hears of it and never gets the slots back:
    /// only for an engine that is being torn down, whose ring ends are dropped with it.
    pub fn abandon(mut self) {
        self.slots_left = 0;
    }

    #[inline]
    pub(crate) fn source(&self) -> u32 {
        self.source
    }

    /// Spends one slot and keeps at least one.
    #[inline]
    pub(crate) fn spend_one(&mut self) {
        assert!(self.slots_left > 1, "the last slot of a read is for finish()");
        self.slots_left -= 1;
    }

    /// Spends all slots and says how many they were.
    #[inline]
    pub(crate) fn spend_rest(self) -> u32 {
        let slots = self.slots_left;
        // Nothing in it needs dropping, and the check that drop makes is answered.
        std::mem::forget(self);
        slots
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        if self.slots_left != 0 {
            unspent(self.read);
        }
    }
}

#[cold]
fn unspent(read: ReadId) {
    assert!(std::thread::panicking(), "the permit of {read:?} was dropped unspent");
}
