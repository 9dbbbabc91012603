//! Virtual time: one clock that every rail of a simulated world and the loop that drives it share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use railring_transport::Nanos;

/// A clock that moves only when it is told to, and never backwards. Cloning it gives another
/// handle to the same clock; any thread may read or advance it.
///
/// A test loop gives `clock.now()` to every `turn`, and when nothing is left to do advances the
/// clock to the earliest [`next_event`](railring_transport::Link::next_event) of its links:
///
/// ```text
///   loop { for poller { poller.turn(clock.now()) }  if idle { clock.advance_to(min next_event) } }
/// ```
#[derive(Clone, Debug, Default)]
pub struct VirtualClock {
    now_ns: Arc<AtomicU64>,
}

impl VirtualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn starting_at(start: Nanos) -> Self {
        VirtualClock { now_ns: Arc::new(AtomicU64::new(start.0)) }
    }

    /// The time it shows.
    #[must_use]
    pub fn now(&self) -> Nanos {
        // Relaxed: the clock orders nothing; a simulation has one thread.
        Nanos(self.now_ns.load(Ordering::Relaxed))
    }

    /// Moves it to `time`, or leaves it where it is if it is there or later already. Returns the
    /// time it then shows.
    pub fn advance_to(&self, time: Nanos) -> Nanos {
        let before = self.now_ns.fetch_max(time.0, Ordering::Relaxed);
        Nanos(before.max(time.0))
    }

    /// Moves it `nanoseconds` on, at most to [`Nanos::NEVER`]. Returns the time it then shows.
    pub fn advance_by(&self, nanoseconds: u64) -> Nanos {
        self.advance_to(self.now().after(nanoseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_runs_backwards_and_its_clones_are_the_same_clock() {
        let clock = VirtualClock::starting_at(Nanos(10));
        let other = clock.clone();
        assert_eq!(clock.advance_by(5), Nanos(15));
        assert_eq!(other.advance_to(Nanos(12)), Nanos(15));
        assert_eq!(other.now(), Nanos(15));
        assert_eq!(clock.advance_to(Nanos::NEVER), Nanos::NEVER);
        assert_eq!(clock.advance_by(1), Nanos::NEVER);
    }
}
