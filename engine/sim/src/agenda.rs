//! What a simulated device will do, in order of time; what is due at one time, in the order in which it
//! was planned.

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

/// Which planned event; a request remembers the one that counts, so that those planned before it was
/// cancelled mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Nanos,
    ticket: Ticket,
    event: Event,
}

impl Entry {
    fn key(&self) -> (Nanos, Ticket) {
        (self.at, self.ticket)
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
    tickets: u64,
    stalled_until: Nanos,
}

impl Agenda {
    /// An empty one that takes `events` events without allocating.
    pub(crate) fn new(events: usize) -> Self {
        Agenda { entries: BinaryHeap::with_capacity(events), tickets: 0, stalled_until: Nanos(0) }
    }

    /// Plans `event` for `at`, or for the end of a stall if that is later.
    pub(crate) fn plan(&mut self, at: Nanos, event: Event) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let at = at.max(self.stalled_until);
        self.entries.push(Reverse(Entry { at, ticket, event }));
        ticket
    }

    /// When the next event is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes out the next event.
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Ticket, Event)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.ticket, entry.event))
    }

    /// Puts everything that is planned off, since nothing happens from `now` on for `stall_ns`; what
    /// an earlier stall covers is put off once.
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
