//! Which rail: the policies that give each piece to one of the rails that reach an owner of it.
//! Pure: the loads come in, a choice goes out.

/// How pieces are given to rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The rail that would finish it first, by measured rate (from static weight until there is
    /// one); an idle rail steals. The default.
    #[default]
    LeastLoaded,
    /// All pieces of an endpoint go to the rail that prefers it (same subnet, same disk, or a
    /// pinned list); least loaded among equals.
    EndpointAffinity,
    /// Rails take turns, as many in a row as their weight; an idle rail steals.
    WeightedRoundRobin,
    /// Exactly by weight, in bytes, whatever the rails' speed: whole stripes, no stealing.
    Fixed,
}

impl std::str::FromStr for Policy {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        match name.to_ascii_lowercase().replace('_', "-").as_str() {
            "least-loaded" | "leastloaded" => Ok(Policy::LeastLoaded),
            "endpoint-affinity" | "affinity" => Ok(Policy::EndpointAffinity),
            "weighted-round-robin" | "round-robin" | "rr" => Ok(Policy::WeightedRoundRobin),
            "fixed" => Ok(Policy::Fixed),
            _ => Err(PolicyError { name: name.to_owned() }),
        }
    }
}

/// A policy name that is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown policy {name:?}; use least-loaded, endpoint-affinity, weighted-round-robin or fixed"
)]
pub struct PolicyError {
    name: String,
}

/// A set of rails, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RailMask(pub(crate) u64);

/// Most rails of one engine: the width of [`RailMask`].
pub const RAILS_MAX: usize = 64;

impl RailMask {
    pub(crate) const fn of(rail: usize) -> Self {
        RailMask(1 << rail)
    }
    pub(crate) const fn contains(self, rail: usize) -> bool {
        self.0 >> rail & 1 == 1
    }
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub(crate) const fn count(self) -> u32 {
        self.0.count_ones()
    }
    pub(crate) const fn and(self, other: Self) -> Self {
        RailMask(self.0 & other.0)
    }
    pub(crate) const fn without(self, other: Self) -> Self {
        RailMask(self.0 & !other.0)
    }
    pub(crate) const fn with(self, other: Self) -> Self {
        RailMask(self.0 | other.0)
    }
    /// Its rails, from `first` on in a circle.
    #[inline]
    pub(crate) fn iter_from(self, first: usize) -> impl Iterator<Item = usize> {
        let below = RailMask(if first < RAILS_MAX { (1 << first) - 1 } else { u64::MAX });
        self.without(below).iter().chain(self.and(below).iter())
    }

    /// Its rails, lowest first.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let rail = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            (rail < RAILS_MAX).then_some(rail)
        })
    }
}

/// What a choice depends on, for one rail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Bytes given to it and not back yet.
    pub(crate) outstanding_bytes: u64,
    /// Bytes per millisecond, measured or estimated; at least 1.
    pub(crate) rate: u64,
    ms_per_byte: f64,
    /// Static weight; at least 1.
    pub(crate) weight: u32,
}

impl Load {
    pub(crate) fn new(weight: u32, rate: u64) -> Self {
        let mut load = Load { outstanding_bytes: 0, rate, ms_per_byte: 0.0, weight };
        load.set_rate(rate);
        load
    }

    #[expect(clippy::cast_precision_loss, reason = "a part in 2^53 decides nothing")]
    pub(crate) fn set_rate(&mut self, rate: u64) {
        self.rate = rate.max(1);
        self.ms_per_byte = 1.0 / self.rate as f64;
    }

    /// Milliseconds until it would have brought `bytes` more.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "a part in 2^53 decides nothing")]
    fn finishes(&self, bytes: u64) -> f64 {
        // Signed numbers are converted by one instruction.
        (self.outstanding_bytes + bytes).cast_signed() as f64 * self.ms_per_byte
    }
}

/// The memory of the policies that have one.
#[derive(Debug)]
pub(crate) struct Scheduler {
    policy: Policy,
    assigned_bytes: Vec<u64>,
    turn: u64,
}

impl Scheduler {
    pub(crate) fn new(policy: Policy, rails: usize) -> Self {
        Scheduler { policy, assigned_bytes: vec![0; rails], turn: 0 }
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether an idle rail may take what was given to another.
    pub(crate) fn may_steal(&self) -> bool {
        matches!(self.policy, Policy::LeastLoaded | Policy::WeightedRoundRobin)
    }

    /// Picks one of `candidates` (not empty) for `bytes`. `preferred` are those that the endpoint
    /// prefers; it may be empty.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        candidates: RailMask,
        preferred: RailMask,
        bytes: u64,
        loads: &[Load],
    ) -> usize {
        let rail = if candidates.count() == 1 {
            candidates.0.trailing_zeros() as usize
        } else {
            match self.policy {
                Policy::LeastLoaded => least_loaded(candidates, bytes, loads),
                Policy::EndpointAffinity => {
                    let liked = candidates.and(preferred);
                    least_loaded(if liked.is_empty() { candidates } else { liked }, bytes, loads)
                }
                Policy::WeightedRoundRobin => self.round_robin(candidates, loads),
                Policy::Fixed => self.fixed(candidates, loads),
            }
        };
        self.assigned_bytes[rail] = self.assigned_bytes[rail].wrapping_add(bytes);
        rail
    }

    /// The turn counter picks a place among the candidates' weights laid end to end.
    fn round_robin(&mut self, candidates: RailMask, loads: &[Load]) -> usize {
        let sum: u64 = candidates.iter().map(|rail| u64::from(loads[rail].weight)).sum();
        let mut place = self.turn % sum;
        self.turn = self.turn.wrapping_add(1);
        for rail in candidates.iter() {
            let weight = u64::from(loads[rail].weight);
            if place < weight {
                return rail;
            }
            place -= weight;
        }
        unreachable!("the place is below the sum of the weights")
    }

    /// Least assigned bytes per weight, compared by cross-multiplication so that nothing is
    /// rounded; ties to the higher weight, then the lower rail.
    fn fixed(&self, candidates: RailMask, loads: &[Load]) -> usize {
        best(candidates, |a, b| {
            let left = u128::from(self.assigned_bytes[a]) * u128::from(loads[b].weight);
            let right = u128::from(self.assigned_bytes[b]) * u128::from(loads[a].weight);
            left < right || (left == right && loads[a].weight > loads[b].weight)
        })
    }
}

/// The rail that would finish `bytes` first: (outstanding + bytes) / rate. In floating point, which
/// is exact where loads are the same and costs least over many rails; ties go to the higher weight,
/// then the lower rail.
pub(crate) fn least_loaded(candidates: RailMask, bytes: u64, loads: &[Load]) -> usize {
    let mut rails = candidates.iter();
    let mut best = rails.next().expect("at least one candidate");
    let mut soonest = loads[best].finishes(bytes);
    for rail in rails {
        let finishes = loads[rail].finishes(bytes);
        if finishes > soonest || (finishes == soonest && loads[rail].weight <= loads[best].weight) {
            continue;
        }
        (best, soonest) = (rail, finishes);
    }
    best
}

fn best(candidates: RailMask, better: impl Fn(usize, usize) -> bool) -> usize {
    let mut rails = candidates.iter();
    let first = rails.next().expect("at least one candidate");
    rails.fold(first, |best, rail| if better(rail, best) { rail } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loads(weights: &[u32]) -> Vec<Load> {
        weights.iter().map(|&weight| Load::new(weight, weight.into())).collect()
    }

    fn split(policy: Policy, weights: &[u32], pieces: usize, bytes: u64) -> Vec<u64> {
        let mut scheduler = Scheduler::new(policy, weights.len());
        let all = RailMask((1 << weights.len()) - 1);
        let mut loads = loads(weights);
        let mut given = vec![0; weights.len()];
        for _ in 0..pieces {
            let rail = scheduler.choose(all, RailMask::default(), bytes, &loads);
            loads[rail].outstanding_bytes += bytes;
            given[rail] += bytes;
        }
        given
    }

    #[test]
    fn fixed_gives_ten_stripes_of_8_bytes_at_1_to_4_as_16_and_64() {
        assert_eq!(split(Policy::Fixed, &[1, 4], 10, 8), [16, 64]);
    }

    #[test]
    fn five_objects_of_512_mib_over_two_equal_rails_are_1280_mib_each() {
        let mib = 1 << 20;
        let given = split(Policy::Fixed, &[1, 1], 5 * 128, 4 * mib);
        assert_eq!(given, [1280 * mib, 1280 * mib]);
    }

    #[test]
    fn least_loaded_follows_the_rates() {
        assert_eq!(split(Policy::LeastLoaded, &[1, 4], 10, 8), [16, 64]);
        assert_eq!(split(Policy::LeastLoaded, &[1, 1, 1], 16, 4), [24, 20, 20]);
    }

    #[test]
    fn round_robin_takes_turns_by_weight() {
        let mut scheduler = Scheduler::new(Policy::WeightedRoundRobin, 2);
        let loads = loads(&[1, 2]);
        let all = RailMask(0b11);
        let order: Vec<usize> =
            (0..6).map(|_| scheduler.choose(all, RailMask::default(), 1, &loads)).collect();
        assert_eq!(order, [0, 1, 1, 0, 1, 1]);
    }

    #[test]
    fn affinity_keeps_an_endpoint_on_the_rail_that_prefers_it() {
        let mut scheduler = Scheduler::new(Policy::EndpointAffinity, 3);
        let mut loads = loads(&[1, 1, 1]);
        loads[2].outstanding_bytes = 1 << 30;
        let all = RailMask(0b111);
        assert_eq!(scheduler.choose(all, RailMask::of(2), 1, &loads), 2);
        assert_eq!(scheduler.choose(all, RailMask::default(), 1, &loads), 0);
        let reachable = RailMask(0b011);
        assert_eq!(scheduler.choose(reachable, RailMask::of(2), 1, &loads), 0);
    }

    #[test]
    fn rails_can_be_visited_in_a_circle() {
        let mask = RailMask(1 | 1 << 5 | 1 << 63);
        let from = |first| mask.iter_from(first).collect::<Vec<_>>();
        assert_eq!((from(0), from(1)), (vec![0, 5, 63], vec![5, 63, 0]));
        assert_eq!((from(63), from(64)), (vec![63, 0, 5], vec![0, 5, 63]));
    }

    #[test]
    fn policies_have_names_and_nothing_else_is_one() {
        assert_eq!("least_loaded".parse::<Policy>().expect("a name"), Policy::LeastLoaded);
        assert_eq!("rr".parse::<Policy>().expect("a name"), Policy::WeightedRoundRobin);
        assert_eq!("Fixed".parse::<Policy>().expect("a name"), Policy::Fixed);
        assert!("".parse::<Policy>().is_err());
        assert!("fastest".parse::<Policy>().is_err());
    }

    proptest! {
        /// Every policy picks a candidate, and fixed strays from its share by at most a piece
        /// per rail.
        #[test]
        fn choices_are_candidates(
            weights in prop::collection::vec(1u32..1000, 1..8),
            mask in 1u64..256, pieces in 1usize..300, bytes in 1u64..1_000_000,
        ) {
            let rails = weights.len();
            let all = RailMask((1 << rails) - 1);
            let candidates = RailMask(mask).and(all);
            prop_assume!(!candidates.is_empty());
            let loads = loads(&weights);
            for policy in [Policy::LeastLoaded, Policy::EndpointAffinity,
                           Policy::WeightedRoundRobin, Policy::Fixed] {
                let mut scheduler = Scheduler::new(policy, rails);
                let rail = scheduler.choose(candidates, RailMask::default(), bytes, &loads);
                prop_assert!(candidates.contains(rail));
            }
            let given = split(Policy::Fixed, &weights, pieces, bytes);
            let total: u64 = given.iter().sum();
            let sum: u64 = weights.iter().map(|&w| u64::from(w)).sum();
            for (rail, &weight) in weights.iter().enumerate() {
                let share = u128::from(total) * u128::from(weight) / u128::from(sum);
                let slack = u128::from(bytes) * rails as u128 + 1;
                prop_assert!(u128::from(given[rail]).abs_diff(share) <= slack);
            }
        }
    }
}
