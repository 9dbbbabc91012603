//! The capacity model: what rails of given rates can deliver of one striped object, in closed form,
//! beside which a simulation or a measurement can be laid.
//!
//! An object is cut into stripes, a stripe into pieces; a rail transfers its pieces one after the
//! other at its rate, and the last one's latency shows. Three rates are told apart:
//!
//! * *theoretical*: the sum of the rails' bandwidths;
//! * *balanced*: whole stripes dealt out evenly, as a fixed plan does; for r equal rails that is
//!   `rate * stripes / ceil(stripes / r)`;
//! * *aggregate*: each piece goes to the rail that will be through with it first (list scheduling;
//!   Graham, "Bounds on multiprocessing timing anomalies", 1969); latency, windows and
//!   verification included.

use std::collections::VecDeque;
use std::fmt;

/// Most pieces that the model deals out one by one.
pub const MODEL_PIECES_MAX: u64 = 1 << 22;

const NS_PER_SECOND: f64 = 1e9;

/// One rail of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelRail {
    /// Its bandwidth in bytes per second, not 0.
    pub bandwidth_bytes_per_second: u64,
    /// Time from a request to its first byte, in nanoseconds.
    pub latency_ns: u64,
    /// Pieces in flight at once, not 0.
    pub window_pieces: u32,
}

/// What is read, and over what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// Size of the object in bytes, not 0.
    pub object_bytes: u64,
    /// Size of its stripes in bytes, not 0; the last may be shorter.
    pub stripe_bytes: u64,
    /// Size of the pieces that are scheduled, in bytes, 1 to `stripe_bytes`.
    pub piece_bytes: u64,
    /// The rails, in the order in which they are added; not empty.
    pub rails: Vec<ModelRail>,
    /// How fast pieces are verified, in bytes per second, while others are still in flight; not 0.
    /// `None`: at once.
    pub verify_bytes_per_second: Option<u64>,
}

/// Why there is no model of something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Nothing to read over.
    #[error("a model without rails reads nothing; give it at least 1 rail")]
    NoRails,
    /// Nothing to read.
    #[error("a model of an empty object has no rate; give the object at least 1 byte")]
    EmptyObject,
    /// Stripes of no length.
    #[error("stripes of 0 bytes never cover an object; give them at least 1 byte")]
    EmptyStripe,
    /// Pieces of no length, or longer than stripes.
    #[error(
        "pieces of {piece_bytes} B do not cut stripes of {stripe_bytes} B; take 1 to \
         {stripe_bytes} B"
    )]
    PieceBytes {
        /// The length of a piece.
        piece_bytes: u64,
        /// The length of a stripe.
        stripe_bytes: u64,
    },
    /// More pieces than are dealt out one by one.
    #[error(
        "the object has {pieces} pieces, at most {MODEL_PIECES_MAX} are modelled; take longer ones"
    )]
    TooManyPieces {
        /// How many.
        pieces: u64,
    },
    /// A rail without bandwidth or window.
    #[error("rail {index} of the model has no bandwidth or no window; give it at least 1 of each")]
    IdleRail {
        /// Which, from 0.
        index: usize,
    },
    /// Verification that never ends.
    #[error("verification at 0 bytes per second never ends; leave it out or give it a rate")]
    NoVerification,
}

/// What takes the most time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bottleneck {
    /// The rails' rates: more or faster rails help.
    Network,
    /// Waiting for the first byte: larger reads or more of them at once help.
    Latency,
    /// Rails idle at the end while others still transfer: smaller pieces help.
    Scheduling,
    /// Checking what arrived: more helpers or another instruction set help.
    Verification,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bottleneck::Network => "network",
            Bottleneck::Latency => "latency",
            Bottleneck::Scheduling => "scheduling",
            Bottleneck::Verification => "verification",
        })
    }
}

/// Where the time of a read goes, in nanoseconds; the parts add up to all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelTimes {
    /// What the bytes take at the theoretical rate.
    pub network_ns: f64,
    /// The latency of the rail that is last, and what it idled because its window was too small.
    pub latency_ns: f64,
    /// What the last rail takes longer than if all ended together.
    pub scheduling_ns: f64,
    /// What verification takes longer than the transfer.
    pub verification_ns: f64,
}

impl ModelTimes {
    /// All of it.
    #[must_use]
    pub fn total_ns(&self) -> f64 {
        self.network_ns + self.latency_ns + self.scheduling_ns + self.verification_ns
    }

    /// The largest part.
    #[must_use]
    pub fn bottleneck(&self) -> Bottleneck {
        let mut largest = (self.network_ns, Bottleneck::Network);
        for part in [
            (self.latency_ns, Bottleneck::Latency),
            (self.scheduling_ns, Bottleneck::Scheduling),
            (self.verification_ns, Bottleneck::Verification),
        ] {
            if part.0 > largest.0 {
                largest = part;
            }
        }
        largest.1
    }
}

/// The model of a read over the first so many rails. Rates are in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityRow {
    /// How many.
    pub rails: usize,
    /// What pieces by list scheduling reach.
    pub aggregate_bytes_per_second: f64,
    /// What whole stripes dealt out evenly reach, latency and verification aside.
    pub balanced_bytes_per_second: f64,
    /// The sum of the rails' bandwidths.
    pub theoretical_bytes_per_second: f64,
    /// The aggregate rate over that of the first rail alone.
    pub speed_up: f64,
    /// Where the time goes.
    pub times: ModelTimes,
    /// What takes the most of it.
    pub bottleneck: Bottleneck,
}

/// One row for the first rail, one for the first two, and so on to all of them.
///
/// # Errors
/// One [`ModelError`] per thing in `config` that makes no sense.
///
/// ```
/// use railring_sim::{ModelConfig, ModelRail, capacity_rows};
///
/// let rail =
///     ModelRail { bandwidth_bytes_per_second: 125_000_000, latency_ns: 0, window_pieces: 16 };
/// let rows = capacity_rows(&ModelConfig {
///     object_bytes: 64 << 20,
///     stripe_bytes: 4 << 20,
///     piece_bytes: 256 << 10,
///     rails: vec![rail; 3],
///     verify_bytes_per_second: None,
/// })?;
/// let share = |rate: f64| (100.0 * rate / rows[2].theoretical_bytes_per_second).round();
/// assert_eq!(share(rows[2].balanced_bytes_per_second), 89.0);
/// assert_eq!(share(rows[2].aggregate_bytes_per_second), 99.0);
/// # Ok::<(), railring_sim::ModelError>(())
/// ```
pub fn capacity_rows(config: &ModelConfig) -> Result<Vec<CapacityRow>, ModelError> {
    check(config)?;
    let mut rows: Vec<CapacityRow> = Vec::with_capacity(config.rails.len());
    for count in 1..=config.rails.len() {
        let mut row = row(config, &config.rails[..count]);
        if let Some(first) = rows.first() {
            row.speed_up = row.aggregate_bytes_per_second / first.aggregate_bytes_per_second;
        }
        rows.push(row);
    }
    Ok(rows)
}

fn check(config: &ModelConfig) -> Result<(), ModelError> {
    let ModelConfig { object_bytes, stripe_bytes, piece_bytes, .. } = *config;
    if config.rails.is_empty() {
        return Err(ModelError::NoRails);
    }
    if object_bytes == 0 {
        return Err(ModelError::EmptyObject);
    }
    if stripe_bytes == 0 {
        return Err(ModelError::EmptyStripe);
    }
    if !(1..=stripe_bytes).contains(&piece_bytes) {
        return Err(ModelError::PieceBytes { piece_bytes, stripe_bytes });
    }
    let pieces_a_stripe = stripe_bytes.min(object_bytes).div_ceil(piece_bytes);
    let pieces = object_bytes.div_ceil(stripe_bytes).saturating_mul(pieces_a_stripe);
    if pieces > MODEL_PIECES_MAX {
        return Err(ModelError::TooManyPieces { pieces });
    }
    let idle = |rail: &ModelRail| rail.bandwidth_bytes_per_second == 0 || rail.window_pieces == 0;
    if let Some(index) = config.rails.iter().position(idle) {
        return Err(ModelError::IdleRail { index });
    }
    if config.verify_bytes_per_second == Some(0) {
        return Err(ModelError::NoVerification);
    }
    Ok(())
}

fn row(config: &ModelConfig, rails: &[ModelRail]) -> CapacityRow {
    let bytes = config.object_bytes as f64;
    let theoretical: f64 = rails.iter().map(|rail| rail.bandwidth_bytes_per_second as f64).sum();
    let network_ns = bytes / theoretical * NS_PER_SECOND;
    let last = list_schedule(config, rails);
    let verification_ns = match config.verify_bytes_per_second {
        None => 0.0,
        Some(rate) => verification(config, rails, rate as f64, last.done_ns()),
    };
    let latency_ns = last.latency_ns + last.idle_ns;
    // Rounding may put the last rail a hair before the ideal.
    let scheduling_ns = (last.end_ns - last.idle_ns - network_ns).max(0.0);
    let times = ModelTimes { network_ns, latency_ns, scheduling_ns, verification_ns };
    CapacityRow {
        rails: rails.len(),
        aggregate_bytes_per_second: bytes / times.total_ns() * NS_PER_SECOND,
        balanced_bytes_per_second: balanced(config, rails),
        theoretical_bytes_per_second: theoretical,
        speed_up: 1.0,
        times,
        bottleneck: times.bottleneck(),
    }
}

/// The lengths of all pieces, in order.
fn pieces(config: &ModelConfig) -> impl Iterator<Item = u64> {
    let ModelConfig { object_bytes, stripe_bytes, piece_bytes, .. } = *config;
    let cut = |whole: u64, part: u64| {
        (0..whole.div_ceil(part)).map(move |index| part.min(whole - index * part))
    };
    cut(object_bytes, stripe_bytes).flat_map(move |stripe| cut(stripe, piece_bytes))
}

/// A rail while pieces are dealt out.
#[derive(Clone, Debug)]
struct Dealt {
    ns_per_byte: f64,
    latency_ns: f64,
    window: usize,
    /// When the bytes of its last pieces have left, as many as fit into the window.
    ends_ns: VecDeque<f64>,
    end_ns: f64,
    idle_ns: f64,
}

impl Dealt {
    fn new(rail: &ModelRail) -> Self {
        Dealt {
            ns_per_byte: NS_PER_SECOND / rail.bandwidth_bytes_per_second as f64,
            latency_ns: rail.latency_ns as f64,
            window: rail.window_pieces as usize,
            ends_ns: VecDeque::new(),
            end_ns: 0.0,
            idle_ns: 0.0,
        }
    }

    /// When it can begin with another piece: when the pipe is free, and a place in the window.
    fn start_ns(&self) -> f64 {
        let oldest = self.ends_ns.front().filter(|_| self.ends_ns.len() == self.window);
        oldest.map_or(self.end_ns, |end_ns| self.end_ns.max(end_ns + self.latency_ns))
    }

    fn end_with(&self, bytes: u64) -> f64 {
        self.start_ns() + bytes as f64 * self.ns_per_byte
    }

    fn take(&mut self, bytes: u64) {
        let end_ns = self.end_with(bytes);
        self.idle_ns += self.start_ns() - self.end_ns;
        self.end_ns = end_ns;
        if self.ends_ns.len() == self.window {
            self.ends_ns.pop_front();
        }
        self.ends_ns.push_back(end_ns);
    }

    /// When its last piece has arrived.
    fn done_ns(&self) -> f64 {
        self.end_ns + self.latency_ns
    }
}

/// Deals out all pieces; gives the rail whose last piece arrives last.
fn list_schedule(config: &ModelConfig, rails: &[ModelRail]) -> Dealt {
    let mut rails: Vec<Dealt> = rails.iter().map(Dealt::new).collect();
    for piece in pieces(config) {
        let mut first = 0;
        for rail in 1..rails.len() {
            if rails[rail].end_with(piece) < rails[first].end_with(piece) {
                first = rail;
            }
        }
        rails[first].take(piece);
    }
    rails
        .into_iter()
        .filter(|rail| rail.end_ns > 0.0)
        .reduce(|last, rail| if rail.done_ns() > last.done_ns() { rail } else { last })
        .expect("an object has a byte, which some rail took")
}

/// What verification adds to a transfer of `transfer_ns`: at least the last piece's, at most what
/// is left when all that arrived from the first piece on had to wait for it.
fn verification(
    config: &ModelConfig,
    rails: &[ModelRail],
    verify_rate: f64,
    transfer_ns: f64,
) -> f64 {
    let piece = config.piece_bytes.min(config.object_bytes) as f64;
    let of = |bytes: f64| bytes / verify_rate * NS_PER_SECOND;
    let first_ns = rails
        .iter()
        .map(Dealt::new)
        .map(|rail| rail.latency_ns + piece * rail.ns_per_byte)
        .fold(f64::INFINITY, f64::min);
    of(piece).max(first_ns + of(config.object_bytes as f64) - transfer_ns)
}

/// What whole stripes reach that are dealt out evenly: the rail that ends last decides.
fn balanced(config: &ModelConfig, rails: &[ModelRail]) -> f64 {
    let stripes = config.object_bytes.div_ceil(config.stripe_bytes);
    let count = rails.len() as u64;
    let longest = |(index, rail): (u64, &ModelRail)| {
        let share = stripes / count + u64::from(index < stripes % count);
        let bytes = share.saturating_mul(config.stripe_bytes).min(config.object_bytes);
        bytes as f64 / rail.bandwidth_bytes_per_second as f64
    };
    let seconds = (0..).zip(rails).map(longest).fold(0.0_f64, f64::max);
    config.object_bytes as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn config(rails: Vec<ModelRail>, piece_bytes: u64) -> ModelConfig {
        ModelConfig {
            object_bytes: 64 * MIB,
            stripe_bytes: 4 * MIB,
            piece_bytes,
            rails,
            verify_bytes_per_second: None,
        }
    }

    fn rail(bandwidth_bytes_per_second: u64) -> ModelRail {
        ModelRail { bandwidth_bytes_per_second, latency_ns: 0, window_pieces: 64 }
    }

    fn close(actual: f64, expected: f64) -> bool {
        (actual / expected - 1.0).abs() < 1e-9
    }

    #[test]
    fn whole_stripes_follow_the_formula_and_pieces_do_not_fall_below_them() {
        let whole = capacity_rows(&config(vec![rail(125 * MB); 8], 4 * MIB)).expect("valid");
        let cut = capacity_rows(&config(vec![rail(125 * MB); 8], 64 << 10)).expect("valid");
        for (row, cut) in whole.iter().zip(&cut) {
            let rails = row.rails as u64;
            let balanced = (125 * MB * 16) as f64 / 16_u64.div_ceil(rails) as f64;
            assert!(close(row.balanced_bytes_per_second, balanced), "{row:?}");
            assert!(close(row.aggregate_bytes_per_second, balanced), "{row:?}");
            assert!(close(row.theoretical_bytes_per_second, (125 * MB * rails) as f64));
            assert!(cut.aggregate_bytes_per_second >= 0.99 * cut.theoretical_bytes_per_second);
            assert!(close(row.times.total_ns(), (64 * MIB) as f64 / balanced * NS_PER_SECOND));
        }
        assert!(close(whole[7].speed_up, 8.0) && close(whole[2].speed_up, 16.0 / 6.0));
    }

    #[test]
    fn a_slow_rail_ruins_a_fixed_plan_and_costs_list_scheduling_its_share_only() {
        let rails = vec![rail(125 * MB), rail(125 * MB), rail(125 * MB), rail(125 * MB / 4)];
        let rows = capacity_rows(&config(rails, 64 << 10)).expect("valid");
        let share = |rate: f64| rate / (3.25 * 125e6);
        assert!((share(rows[3].balanced_bytes_per_second) - 0.31).abs() < 0.005);
        assert!(share(rows[3].aggregate_bytes_per_second) > 0.97);
    }

    #[test]
    fn each_bottleneck_is_named_where_it_is_one() {
        let verdict = |config: &ModelConfig| {
            let rows = capacity_rows(config).expect("valid");
            rows[rows.len() - 1].bottleneck
        };
        let plain = config(vec![rail(125 * MB); 4], MIB);
        assert_eq!(verdict(&plain), Bottleneck::Network);
        let one_stripe =
            ModelConfig { object_bytes: 4 * MIB, piece_bytes: 4 * MIB, ..plain.clone() };
        assert_eq!(verdict(&one_stripe), Bottleneck::Scheduling);
        let verify_bytes_per_second = Some(100 * MB);
        let unverified = ModelConfig { verify_bytes_per_second, ..plain.clone() };
        assert_eq!(verdict(&unverified), Bottleneck::Verification);
        let far = ModelRail { latency_ns: 10_000_000_000, ..rail(125 * MB) };
        assert_eq!(verdict(&ModelConfig { rails: vec![far], ..plain }), Bottleneck::Latency);
    }

    #[test]
    fn a_small_window_caps_the_rate_and_verification_the_whole() {
        let far = ModelRail { latency_ns: 8_388_608, window_pieces: 1, ..rail(125 * MB) };
        let row = capacity_rows(&config(vec![far], MIB)).expect("valid")[0];
        assert!(close(row.aggregate_bytes_per_second, 62.5e6), "{row:?}");
        assert!(close(row.times.latency_ns, row.times.network_ns), "{row:?}");

        let mut verified = config(vec![rail(125 * MB); 8], MIB);
        verified.verify_bytes_per_second = Some(500 * MB);
        let rate = capacity_rows(&verified).expect("valid")[7].aggregate_bytes_per_second;
        assert!((0.9..=1.0).contains(&(rate / 500e6)), "{rate}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refuse = |change: fn(&mut ModelConfig)| {
            let mut config = config(vec![rail(1)], MIB);
            change(&mut config);
            capacity_rows(&config).expect_err("refused")
        };
        assert_eq!(refuse(|c| c.rails.clear()), ModelError::NoRails);
        assert_eq!(refuse(|c| c.object_bytes = 0), ModelError::EmptyObject);
        assert_eq!(refuse(|c| c.stripe_bytes = 0), ModelError::EmptyStripe);
        let stripe_bytes = 4 * MIB;
        let error = ModelError::PieceBytes { piece_bytes: 0, stripe_bytes };
        assert_eq!(refuse(|c| c.piece_bytes = 0), error);
        let error = ModelError::PieceBytes { piece_bytes: stripe_bytes + 1, stripe_bytes };
        assert_eq!(refuse(|c| c.piece_bytes = c.stripe_bytes + 1), error);
        assert_eq!(refuse(|c| c.rails[0].window_pieces = 0), ModelError::IdleRail { index: 0 });
        assert_eq!(refuse(|c| c.verify_bytes_per_second = Some(0)), ModelError::NoVerification);
        let pieces = 64 * MIB;
        assert_eq!(refuse(|c| c.piece_bytes = 1), ModelError::TooManyPieces { pieces });
    }
}
