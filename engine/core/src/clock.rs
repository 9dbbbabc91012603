//! Where time comes from: the kernel, or whoever makes the turns.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use railring_transport::Nanos;

/// Where time comes from.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The kernel's monotonic clock.
    Kernel,
    /// The time of the last turn: virtual time.
    Turns(AtomicU64, Hashing),
}

/// What hashing takes in virtual time, in which everything else that a CPU does takes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hashing {
    /// No time.
    #[default]
    Free,
    /// So many bytes take a second of a poller.
    BytesPerSecond(NonZeroU64),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Clock::Kernel => now(),
            Clock::Turns(at, _) => Nanos(at.load(Ordering::Relaxed)),
        }
    }

    /// The time after a turn that began at `begun` and has hashed so much.
    pub(crate) fn after_hashing(&self, begun: Nanos, bytes: u64) -> Nanos {
        if let Clock::Turns(_, Hashing::BytesPerSecond(rate)) = self {
            let takes = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
            self.set(begun.after(u64::try_from(takes).unwrap_or(u64::MAX)));
        }
        self.now()
    }

    pub(crate) fn set(&self, now: Nanos) {
        if let Clock::Turns(at, _) = self {
            at.store(now.0, Ordering::Relaxed);
        }
    }
}

/// Monotonic time, from the kernel's clock.
#[must_use]
pub(crate) fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos(seconds * 1_000_000_000 + nanoseconds)
}
