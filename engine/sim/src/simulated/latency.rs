//! How long a request and its answer travel, besides the time its bytes take in the pipe.

use fastrand::Rng;

/// A distribution of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Latency {
    /// Always the same.
    Fixed {
        /// The latency.
        latency_ns: u64,
    },
    /// Anything from `mean_ns - spread_ns` to `mean_ns + spread_ns`, evenly.
    Uniform {
        /// The middle.
        mean_ns: u64,
        /// The most it is off, at most `mean_ns`.
        spread_ns: u64,
    },
    /// As `Uniform`, but now and then `tail_ns` more.
    Tailed {
        /// The middle of the bulk.
        mean_ns: u64,
        /// The most the bulk is off, at most `mean_ns`.
        spread_ns: u64,
        /// What a straggler takes longer.
        tail_ns: u64,
        /// Stragglers in a million requests, at most a million.
        tail_per_million: u32,
    },
}

impl Latency {
    /// Draws one.
    pub(crate) fn sample(self, rng: &mut Rng) -> u64 {
        let uniform = |rng: &mut Rng, mean_ns: u64, spread_ns: u64| {
            rng.u64(mean_ns.saturating_sub(spread_ns)..=mean_ns.saturating_add(spread_ns))
        };
        match self {
            Latency::Fixed { latency_ns } => latency_ns,
            Latency::Uniform { mean_ns, spread_ns } => uniform(rng, mean_ns, spread_ns),
            Latency::Tailed { mean_ns, spread_ns, tail_ns, tail_per_million } => {
                let bulk_ns = uniform(rng, mean_ns, spread_ns);
                let straggler = rng.u32(0..1_000_000) < tail_per_million;
                bulk_ns.saturating_add(if straggler { tail_ns } else { 0 })
            }
        }
    }

    /// Whether the parameters make sense: no spread beyond the mean, no probability beyond one.
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Latency::Fixed { .. } => true,
            Latency::Uniform { mean_ns, spread_ns } => spread_ns <= mean_ns,
            Latency::Tailed { mean_ns, spread_ns, tail_per_million, .. } => {
                spread_ns <= mean_ns && tail_per_million <= 1_000_000
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 20_000;

    fn draws(latency: Latency) -> Vec<u64> {
        let mut rng = Rng::with_seed(7);
        (0..DRAWS).map(|_| latency.sample(&mut rng)).collect()
    }

    #[test]
    fn a_uniform_latency_fills_its_range_evenly() {
        let drawn = draws(Latency::Uniform { mean_ns: 100_000, spread_ns: 20_000 });
        let (least, most) = (drawn.iter().min().copied(), drawn.iter().max().copied());
        assert!(least.is_some_and(|ns| (80_000..81_000).contains(&ns)), "{least:?}");
        assert!(most.is_some_and(|ns| (119_000..=120_000).contains(&ns)), "{most:?}");
        let mean_ns = drawn.iter().sum::<u64>() / DRAWS;
        assert!(mean_ns.abs_diff(100_000) < 500, "{mean_ns}");
        let low = drawn.iter().filter(|ns| **ns < 90_000).count() as u64;
        assert!(low.abs_diff(DRAWS / 4) < DRAWS / 50, "{low}");
    }

    #[test]
    fn a_tail_has_the_stated_share() {
        let latency = Latency::Tailed {
            mean_ns: 100,
            spread_ns: 10,
            tail_ns: 1_000,
            tail_per_million: 50_000,
        };
        let stragglers = draws(latency).iter().filter(|ns| **ns >= 1_090).count() as u64;
        assert!(stragglers.abs_diff(DRAWS / 20) < DRAWS / 100, "{stragglers}");
    }
}
