//! How long a queue pair waits before it tries again or gives up; only bounds, never "for ever".
//!
//! The two codes and their meaning are the InfiniBand specification's (volume 1, chapter 9.7):
//! the acknowledge timeout is 4.096 µs times a power of two, receiver-not-ready waits come from a
//! table. Four of the values mean something else than they look like, and are refused: an
//! acknowledge timeout of 0 and 7 receiver-not-ready retries are "without end", so are 7 retries on
//! a software device (rxe counts all but 7 down), and receiver-not-ready code 0 is the longest wait
//! of all, 655 ms.

use std::time::Duration;

/// The retry settings of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timers {
    ack_timeout: u8,
    retries: u8,
    rnr_timer: u8,
    rnr_retries: u8,
}

/// Why timers are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// The acknowledge timeout is out of range.
    #[error("an acknowledge timeout of {code} was refused; it must be from 1 to 31, 0 is for ever")]
    AckTimeout {
        /// The exponent asked for.
        code: u8,
    },
    /// Too many retries.
    #[error("{retries} retries were refused; at most 6, 7 is for ever on software devices")]
    Retries {
        /// The number asked for.
        retries: u8,
    },
    /// The receiver-not-ready timer is out of range.
    #[error(
        "a receiver-not-ready timer of {code} was refused; it must be from 1 to 31, 0 is 655 ms"
    )]
    RnrTimer {
        /// The code asked for.
        code: u8,
    },
    /// Too many receiver-not-ready retries.
    #[error("{retries} receiver-not-ready retries were refused; at most 6, 7 is for ever")]
    RnrRetries {
        /// The number asked for.
        retries: u8,
    },
}

/// Microseconds of receiver-not-ready codes 1 to 31 (and 0).
const RNR_MICROSECONDS: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

impl Default for Timers {
    /// Timeout 14 (67 ms) and 6 retries; receiver-not-ready waits of 0.64 ms (code 12), 6 of them.
    fn default() -> Self {
        Timers { ack_timeout: 14, retries: 6, rnr_timer: 12, rnr_retries: 6 }
    }
}

impl Timers {
    /// Timers of these codes.
    ///
    /// # Errors
    /// One is out of range, or means "without end".
    pub fn new(
        ack_timeout: u8,
        retries: u8,
        rnr_timer: u8,
        rnr_retries: u8,
    ) -> Result<Timers, TimerError> {
        if !(1..=31).contains(&ack_timeout) {
            return Err(TimerError::AckTimeout { code: ack_timeout });
        }
        if retries > 6 {
            return Err(TimerError::Retries { retries });
        }
        if !(1..=31).contains(&rnr_timer) {
            return Err(TimerError::RnrTimer { code: rnr_timer });
        }
        if rnr_retries > 6 {
            return Err(TimerError::RnrRetries { retries: rnr_retries });
        }
        Ok(Timers { ack_timeout, retries, rnr_timer, rnr_retries })
    }

    /// The exponent of the acknowledge timeout, 1 to 31.
    #[must_use]
    pub const fn ack_timeout(self) -> u8 {
        self.ack_timeout
    }

    /// How often a request that was not acknowledged is sent again, 0 to 6.
    #[must_use]
    pub const fn retries(self) -> u8 {
        self.retries
    }

    /// The code of the wait that this end asks for when it is not ready to receive, 1 to 31.
    #[must_use]
    pub const fn rnr_timer(self) -> u8 {
        self.rnr_timer
    }

    /// How often a request that the receiver was not ready for is sent again, 0 to 6.
    #[must_use]
    pub const fn rnr_retries(self) -> u8 {
        self.rnr_retries
    }

    /// How long a request may go without an answer before it is sent again. The specification lets
    /// a device take up to four times as long.
    #[must_use]
    pub const fn ack_wait(self) -> Duration {
        Duration::from_nanos(4096 << self.ack_timeout)
    }

    /// The wait that this end asks for when it is not ready.
    #[must_use]
    pub const fn rnr_wait(self) -> Duration {
        Duration::from_micros(RNR_MICROSECONDS[self.rnr_timer as usize] as u64)
    }

    /// The latest that a request to a dead peer fails, as the specification bounds it: every
    /// attempt at four times the acknowledge timeout.
    #[must_use]
    pub const fn gives_up_after(self) -> Duration {
        self.ack_wait().saturating_mul(4 * (self.retries as u32 + 1))
    }
}

impl std::fmt::Display for Timers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "timeout {} ({:?}) x {} retries, rnr timer {} ({:?}) x {} retries",
            self.ack_timeout,
            self.ack_wait(),
            self.retries,
            self.rnr_timer,
            self.rnr_wait(),
            self.rnr_retries
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_without_end_is_refused() {
        assert_eq!(Timers::new(0, 6, 12, 6), Err(TimerError::AckTimeout { code: 0 }));
        assert_eq!(Timers::new(32, 6, 12, 6), Err(TimerError::AckTimeout { code: 32 }));
        assert_eq!(Timers::new(14, 7, 12, 6), Err(TimerError::Retries { retries: 7 }));
        assert_eq!(Timers::new(14, 6, 0, 6), Err(TimerError::RnrTimer { code: 0 }));
        assert_eq!(Timers::new(14, 6, 12, 7), Err(TimerError::RnrRetries { retries: 7 }));
        assert_eq!(Timers::new(14, 6, 12, 6), Ok(Timers::default()));
    }

    #[test]
    fn every_timer_that_is_accepted_ends() {
        for (ack, retries) in (1..=31).flat_map(|ack| (0..=6).map(move |retries| (ack, retries))) {
            let timers = Timers::new(ack, retries, 31, 6).expect("in range");
            assert!(timers.gives_up_after() < Duration::from_secs(4 * 8 * 8797));
            assert!(timers.gives_up_after() >= timers.ack_wait());
        }
        assert!(RNR_MICROSECONDS[1..].is_sorted());
    }

    #[test]
    fn the_defaults_are_short() {
        let timers = Timers::default();
        assert_eq!(timers.ack_wait(), Duration::from_nanos(67_108_864));
        assert_eq!(timers.rnr_wait(), Duration::from_micros(640));
        assert!(timers.gives_up_after() < Duration::from_secs(3));
        assert!(timers.to_string().contains("rnr timer 12 (640µs)"), "{timers}");
    }
}
