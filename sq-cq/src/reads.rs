//! Owns what each end of a ring knows of its reads: which are live, running, cancelled. Plain data.
//!
//! A read slot's generation goes up by exactly one each time it is given out, and every id given
//! out is pushed. So the poller, which sees the pushes of a slot in order, can tell of any cancel
//! whether it is for a read that ended, that runs, or that is still in the submission ring.

use std::collections::VecDeque;

use crate::ReadId;

/// The caller's side: which reads were accepted and have not ended.
#[derive(Debug)]
pub(crate) struct LiveReads {
    states: Box<[LiveState]>,
    /// Slots that are free; last in, first out, to stay in cache.
    free: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct LiveState {
    generation: u32,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Live,
    CancelSent,
}

/// What became of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelOutcome {
    /// The poller was told. The read ends as cancelled, or as it would have if that was first.
    Sent,
    /// The poller had been told before.
    AlreadySent,
    /// No such read is live: it ended, or never was.
    NotLive,
}

impl LiveReads {
    pub(crate) fn new(entries: u32) -> Self {
        let state = LiveState { generation: 0, phase: Phase::Free };
        Self {
            states: vec![state; entries as usize].into_boxed_slice(),
            free: (0..entries).rev().collect(),
        }
    }

    /// A new id. There is one as long as each live read holds at least one of `entries` CQ slots.
    #[inline]
    pub(crate) fn begin(&mut self) -> ReadId {
        let slot = self.free.pop().expect("each live read holds a CQ slot, and there are no more");
        let state = &mut self.states[slot as usize];
        state.generation = state.generation.wrapping_add(1);
        state.phase = Phase::Live;
        ReadId { slot, generation: state.generation }
    }

    /// The read's last CQE was popped.
    #[inline]
    pub(crate) fn end(&mut self, id: ReadId) {
        debug_assert!(self.is_live(id));
        self.states[id.slot as usize].phase = Phase::Free;
        self.free.push(id.slot);
    }

    pub(crate) fn is_live(&self, id: ReadId) -> bool {
        self.states
            .get(id.slot as usize)
            .is_some_and(|state| state.generation == id.generation && state.phase != Phase::Free)
    }

    /// Notes that the poller is told, unless it was or need not be.
    pub(crate) fn cancel(&mut self, id: ReadId) -> CancelOutcome {
        if !self.is_live(id) {
            return CancelOutcome::NotLive;
        }
        let phase = &mut self.states[id.slot as usize].phase;
        match std::mem::replace(phase, Phase::CancelSent) {
            Phase::CancelSent => CancelOutcome::AlreadySent,
            Phase::Live | Phase::Free => CancelOutcome::Sent,
        }
    }

    /// Reads that are live.
    pub(crate) fn len(&self) -> u32 {
        // At most ENTRIES_MAX slots, so the difference fits.
        (self.states.len() - self.free.len()) as u32
    }
}

/// The poller's side: which reads were popped from the submission ring and are not finished.
#[derive(Debug)]
pub(crate) struct RunningReads {
    states: Box<[RunningState]>,
    /// Slots with a cancel to tell of, each at most once.
    cancels: VecDeque<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct RunningState {
    /// Of the last read popped from this slot.
    generation: u32,
    running: bool,
    /// The running read was cancelled, and nobody was told yet.
    due: bool,
    /// The read after this one was cancelled, and is not popped yet.
    next_cancelled: bool,
    /// The slot is in `cancels`.
    queued: bool,
}

impl RunningReads {
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            states: vec![RunningState::default(); entries as usize].into_boxed_slice(),
            cancels: VecDeque::with_capacity(entries as usize),
        }
    }

    /// A read was popped; says whether it was cancelled before that.
    #[inline]
    pub(crate) fn begin(&mut self, id: ReadId) -> bool {
        let state = &mut self.states[id.slot as usize];
        let cancelled = state.next_cancelled;
        *state = RunningState {
            generation: id.generation,
            running: true,
            due: false,
            next_cancelled: false,
            queued: state.queued,
        };
        cancelled
    }

    /// A read was finished.
    #[inline]
    pub(crate) fn end(&mut self, id: ReadId) {
        let state = &mut self.states[id.slot as usize];
        state.running = false;
        state.due = false;
    }

    /// The caller cancelled this read at some time; it may have ended since, or not be popped yet.
    pub(crate) fn cancel(&mut self, id: ReadId) {
        let state = &mut self.states[id.slot as usize];
        if id.generation == state.generation.wrapping_add(1) {
            state.next_cancelled = true;
        } else if id.generation == state.generation && state.running {
            state.due = true;
            if !std::mem::replace(&mut state.queued, true) {
                self.cancels.push_back(id.slot);
            }
        }
    }

    /// The next running read whose cancel was not told of.
    pub(crate) fn next_cancel(&mut self) -> Option<ReadId> {
        while let Some(slot) = self.cancels.pop_front() {
            let state = &mut self.states[slot as usize];
            state.queued = false;
            if std::mem::take(&mut state.due) {
                return Some(ReadId { slot, generation: state.generation });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_stale_ones_are_not_live() {
        let mut live = LiveReads::new(2);
        let (a, b) = (live.begin(), live.begin());
        assert_ne!(a, b);
        live.end(a);
        assert!(!live.is_live(a) && live.is_live(b));
        let c = live.begin();
        assert_eq!(c, ReadId { slot: a.slot, generation: a.generation + 1 });
        assert_eq!(live.cancel(a), CancelOutcome::NotLive);
        assert_eq!(live.cancel(c), CancelOutcome::Sent);
        assert_eq!(live.cancel(c), CancelOutcome::AlreadySent);
        assert_eq!(live.cancel(ReadId { slot: 9, generation: 1 }), CancelOutcome::NotLive);
        assert_eq!(live.cancel(ReadId::default()), CancelOutcome::NotLive);
        assert_eq!(live.len(), 2);
    }

    #[test]
    fn a_cancel_before_its_read_waits_for_it() {
        let mut running = RunningReads::new(1);
        running.cancel(ReadId { slot: 0, generation: 1 });
        assert_eq!(running.next_cancel(), None);
        assert!(running.begin(ReadId { slot: 0, generation: 1 }));
        assert_eq!(running.next_cancel(), None, "begin() told of it");
    }

    #[test]
    fn a_cancel_after_its_read_is_ignored() {
        let mut running = RunningReads::new(1);
        assert!(!running.begin(ReadId { slot: 0, generation: 1 }));
        running.end(ReadId { slot: 0, generation: 1 });
        running.cancel(ReadId { slot: 0, generation: 1 });
        assert!(!running.begin(ReadId { slot: 0, generation: 2 }));
        running.cancel(ReadId { slot: 0, generation: 1 });
        assert_eq!(running.next_cancel(), None);
    }

    #[test]
    fn a_cancel_noted_and_not_fetched_dies_with_its_read() {
        let mut running = RunningReads::new(1);
        running.begin(ReadId { slot: 0, generation: 1 });
        running.cancel(ReadId { slot: 0, generation: 1 });
        running.end(ReadId { slot: 0, generation: 1 });
        running.begin(ReadId { slot: 0, generation: 2 });
        running.cancel(ReadId { slot: 0, generation: 2 });
        assert_eq!(running.next_cancel(), Some(ReadId { slot: 0, generation: 2 }));
        assert_eq!(running.next_cancel(), None);
    }

    /// The slot still waits in the queue for a read that ended, and is of another read by now.
    #[test]
    fn a_cancel_told_of_at_the_pop_is_not_told_of_again() {
        let mut running = RunningReads::new(1);
        running.begin(ReadId { slot: 0, generation: 1 });
        running.cancel(ReadId { slot: 0, generation: 1 });
        running.end(ReadId { slot: 0, generation: 1 });
        running.cancel(ReadId { slot: 0, generation: 2 });
        assert!(running.begin(ReadId { slot: 0, generation: 2 }));
        assert_eq!(running.next_cancel(), None);
    }
}
