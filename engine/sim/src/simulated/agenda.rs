//! What a simulated device will do, in order of time; what is due at one time, in the order in
//! which it was planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use railring_transport::{Nanos, Outcome, WrId};

/// Something that will happen to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The second half of its bytes lands.
    TailLands(WrId),
    /// Its bytes land, and it completes.
    Lands(WrId),
    /// It completes without bytes.
    Ends(WrId, Outcome),
    /// The device lets go of it after all.
    Returns(WrId),
    /// A completion comes that nothing waits for.
    Ghost(WrId),
    /// The connection is torn down.
    Teardown,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Nanos,
    /// How many were planned before it.
    number: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> (Nanos, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Events to come.
#[derive(Debug)]
pub(crate) struct Agenda {
    entries: BinaryHeap<Reverse<Entry>>,
    planned: u64,
    stalled_until: Nanos,
}

impl Agenda {
    /// An empty one that takes `events` events without allocating.
    pub(crate) fn new(events: usize) -> Self {
        Agenda { entries: BinaryHeap::with_capacity(events), planned: 0, stalled_until: Nanos(0) }
    }

    /// Plans `event` for `at`, or for the end of a stall if that is later.
    pub(crate) fn plan(&mut self, at: Nanos, event: Event) {
        self.planned += 1;
        let at = at.max(self.stalled_until);
        self.entries.push(Reverse(Entry { at, number: self.planned, event }));
    }

    /// When the next event is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes out the next event.
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// Puts everything that is planned off, since nothing happens from `now` on for `stall_ns`;
    /// what an earlier stall covers is put off once.
    pub(crate) fn stall(&mut self, now: Nanos, stall_ns: u64) {
        let until = now.after(stall_ns);
        let shift_ns = until.since(now.max(self.stalled_until));
        self.stalled_until = self.stalled_until.max(until);
        let mut entries = std::mem::take(&mut self.entries).into_vec();
        for Reverse(entry) in &mut entries {
            entry.at = entry.at.after(shift_ns);
        }
        self.entries = BinaryHeap::from(entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_those_of_one_time_as_planned() {
        let mut agenda = Agenda::new(8);
        for (slot, at) in [(0, 30), (1, 10), (2, 20), (3, 10), (4, 10)] {
            agenda.plan(Nanos(at), Event::Lands(WrId { slot, generation: 1 }));
        }
        let order = std::iter::from_fn(|| agenda.pop()).map(|(at, event)| match event {
            Event::Lands(wr) => (at.0, wr.slot),
            other => panic!("{other:?} was not planned"),
        });
        assert_eq!(Vec::from_iter(order), [(10, 1), (10, 3), (10, 4), (20, 2), (30, 0)]);
    }

    #[test]
    fn stalls_that_overlap_put_off_once_what_both_cover() {
        let mut agenda = Agenda::new(8);
        agenda.plan(Nanos(100), Event::Teardown);
        agenda.stall(Nanos(50), 1_000);
        agenda.stall(Nanos(250), 1_000);
        assert_eq!(agenda.next(), Some(Nanos(1_300)));
        agenda.plan(Nanos(300), Event::Teardown);
        assert_eq!(agenda.next(), Some(Nanos(1_250)));
    }
}
