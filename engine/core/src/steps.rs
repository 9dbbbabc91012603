//! Single steps of an inline engine: for simulators, which pick the order of pollers, and let them
//! sleep as threads do.

use railring_transport::{Link, Nanos};

use crate::engine::InlineEngine;
use crate::poller::{Poller, Progress};

/// Pollers are numbered from 0; a number that no poller has panics.
impl<L: Link> InlineEngine<L> {
    /// One turn of one poller at a given time, which must not run backwards. A panic is contained
    /// as that of a thread is: the poller's reads end as failed.
    pub fn turn_poller_at(&mut self, poller: usize, now: Nanos) -> Progress {
        self.core.shared.clock.set(now);
        self.pollers[poller].turn_contained(now)
    }

    /// The present time, as its rings stamp their reads with; of a virtual engine the end of its
    /// last turn.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.core.shared.clock.now()
    }

    /// When a turn next has something to do if nothing is submitted: at once (time 0), at a time,
    /// or never.
    #[must_use]
    pub fn next_event(&self) -> Nanos {
        self.pollers.iter().map(Poller::next_event).fold(Nanos::NEVER, Nanos::min)
    }

    /// The same of one poller.
    #[must_use]
    pub fn next_event_of(&self, poller: usize) -> Nanos {
        self.pollers[poller].next_event()
    }

    /// Puts a poller to sleep as its thread would be after a turn that found nothing to do: it says
    /// that it sleeps, looks once more, and asks its links for their events. Gives the time at
    /// which it must be woken if neither its bell nor a link does; `None`: something has come, and
    /// it does not sleep.
    ///
    /// A poller that sleeps is not to be turned before [`rouse_poller`](Self::rouse_poller).
    pub fn park_poller_at(&mut self, poller: usize, now: Nanos) -> Option<Nanos> {
        self.pollers[poller].lie_down(now)
    }

    /// Whether the bell of a poller that sleeps was rung, as its thread would see it.
    #[must_use]
    pub fn is_called(&self, poller: usize) -> bool {
        self.pollers[poller].is_called()
    }

    /// Ends the sleep of a poller.
    pub fn rouse_poller(&mut self, poller: usize) {
        self.pollers[poller].get_up();
    }
}
