//! The measured rate of a rail: bytes that landed per time in which it had something to do.

use railring_transport::Nanos;

use crate::stats::Counter;

/// A sample covers at least so much busy time...
const SAMPLE_NS: u64 = 200_000;
/// ...and counts for a quarter: a rail that slows down is believed after a few samples.
const WEIGHT_LOG2: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct RateMeter {
    last_landed: Nanos,
    busy_ns: u64,
    bytes: u64,
    rate: u64,
}

impl RateMeter {
    /// A piece landed. Time counts from its posting or from the landing before it, whichever is
    /// later, so that overlapping pieces share it and idle time is nobody's.
    #[inline]
    pub(crate) fn landed(&mut self, bytes: u64, posted: Nanos, now: Nanos, published: &Counter) {
        self.busy_ns += now.since(posted.max(self.last_landed));
        self.last_landed = now;
        self.bytes += bytes;
        if self.busy_ns >= SAMPLE_NS {
            self.sample(published);
        }
    }

    fn sample(&mut self, published: &Counter) {
        let sample = u128::from(self.bytes) * 1_000_000 / u128::from(self.busy_ns);
        let sample = u64::try_from(sample).unwrap_or(u64::MAX).max(1);
        self.rate = if self.rate == 0 {
            sample
        } else {
            self.rate - (self.rate >> WEIGHT_LOG2) + (sample >> WEIGHT_LOG2)
        }
        .max(1);
        self.busy_ns = 0;
        self.bytes = 0;
        published.set(self.rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of 1 MB, one a millisecond, is 1 MB per millisecond, however they overlap and
    /// however long the rail idles in between.
    #[test]
    fn idle_time_is_not_counted() {
        let (mut meter, rate) = (RateMeter::default(), Counter::default());
        let mut now = Nanos(0);
        for burst in 0..20 {
            let posted = now.after(burst * 50_000_000);
            now = posted;
            for _ in 0..4 {
                now = now.after(1_000_000);
                meter.landed(1_000_000, posted, now, &rate);
            }
        }
        let error = rate.get().abs_diff(1_000_000);
        assert!(error < 10_000, "{}", rate.get());
    }
}
