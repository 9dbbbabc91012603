//! Group `sim`: the real engine on simulated rails in virtual time, beside what rails can carry.
//!
//! Nothing here depends on the machine; each pair is another seed.

use anyhow::{Result, ensure};
use railring::EngineConfig;
use railring::transport::Nanos;
use railring_sim::{Fault, FaultPlan, SimRailConfig, When};

use super::Bench;
use super::row::{Pairs, Row, Target};
use crate::simulated::{Reads, START, Simulated};
use crate::units::{Bytes, Time, ratio};

/// Bytes per second of a rail.
const RATE: u64 = 125_000_000;
const RAILS_MAX: usize = 8;
const UNIT: &str = "bytes/s";
/// A time that nothing here lives to see.
const FOR_EVER_NS: u64 = 3_600_000_000_000;

fn reads(seed: u64) -> Reads {
    Reads {
        object_bytes: 64 << 20,
        stripe_bytes: 4 << 20,
        piece_bytes_max: EngineConfig::default().piece_bytes_max,
        verify_bytes_per_second: None,
        seed,
    }
}

fn rails(count: usize) -> Vec<SimRailConfig> {
    (0..count).map(|index| SimRailConfig::new(format!("rail{index}"))).collect()
}

/// Two reads after each other.
struct Timed {
    cold_ns: u64,
    warm_ns: u64,
    rail_bytes: Vec<u64>,
}

fn time(seed: u64, rails: Vec<SimRailConfig>) -> Result<Timed> {
    let mut simulated = Simulated::new(&reads(seed), rails)?;
    let cold_ns = simulated.read()?;
    let before: Vec<u64> = simulated.rails().iter().map(|rail| rail.bytes).collect();
    let warm_ns = simulated.read()?;
    let after = simulated.rails();
    let rail_bytes = after.iter().zip(before).map(|(rail, before)| rail.bytes - before).collect();
    Ok(Timed { cold_ns, warm_ns, rail_bytes })
}

/// Bytes per second of a read that took so long.
fn rate(nanoseconds: u64) -> f64 {
    ratio(reads(0).object_bytes, nanoseconds.max(1)) * 1e9
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    const NAMES: [&str; RAILS_MAX] =
        ["model-1", "model-2", "model-3", "model-4", "model-5", "model-6", "model-7", "model-8"];
    for (name, count) in NAMES.into_iter().zip(1..) {
        bench.begin(name)?;
        let capacity = ratio(RATE * count as u64, 1);
        let against = format!("{count} x 125 MB/s");
        carried(bench, name, || rails(count), capacity, (against, 0.99))?;
    }
    bench.begin("slow-rail")?;
    let slow = || {
        let mut four = rails(4);
        four[2].bandwidth_bytes_per_second = RATE / 4;
        four
    };
    let against = "3.25 x 125 MB/s".to_owned();
    carried(bench, "slow-rail", slow, 3.25 * ratio(RATE, 1), (against, 0.97))?;
    dead_rail(bench)
}

/// A row of what rails carry beside what they can.
fn carried(
    bench: &mut Bench<'_>,
    name: &'static str,
    rails: impl Fn() -> Vec<SimRailConfig>,
    capacity: f64,
    (against, least): (String, f64),
) -> Result<()> {
    let (mut pairs, mut cold, mut shares) = (Pairs::default(), Vec::new(), Vec::new());
    for seed in seeds(bench) {
        bench.stop.check()?;
        let timed = time(seed, rails())?;
        pairs.ours.push(rate(timed.warm_ns));
        pairs.theirs.push(capacity);
        cold.push(rate(timed.cold_ns) / capacity);
        shares = timed.rail_bytes;
    }
    let cold = super::row::median(&cold).unwrap_or(0.0);
    let shares: Vec<String> = shares.into_iter().map(|bytes| Bytes(bytes).to_string()).collect();
    let note = format!(
        "virtual time, each pair a seed; the first read of an engine reaches {cold:.3}; of the \
         last, the rails carried {}",
        shares.join(", ")
    );
    let row = Row::new(name, UNIT, against, Target::RatioAtLeast(least), &pairs);
    bench.row(row.note(note).simulated())
}

fn seeds(bench: &Bench<'_>) -> std::ops::RangeInclusive<u64> {
    1..=bench.options.pairs as u64
}

/// How a rail dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// Its connection breaks, which the device tells.
    Told,
    /// It answers nothing any more; only the time limit of a piece tells.
    Silent,
}

impl Death {
    /// One of `four` dies at `at`.
    fn of(self, mut four: Vec<SimRailConfig>, at: Nanos) -> Vec<SimRailConfig> {
        let plan = FaultPlan::none();
        four[1].faults = match self {
            Death::Told => plan.with(Fault::Disconnect { down_ns: FOR_EVER_NS }, When::At(at)),
            Death::Silent => plan.with(Fault::Rate { bytes_per_second: 1 }, When::At(at)),
        };
        four
    }

    /// How long nobody can know of it: the limit of one attempt.
    fn detection_ns(self) -> u64 {
        match self {
            Death::Told => 0,
            Death::Silent => {
                u64::try_from(EngineConfig::default().io_timeout.as_nanos()).unwrap_or(u64::MAX)
            }
        }
    }
}

fn dead_rail(bench: &mut Bench<'_>) -> Result<()> {
    let name = "dead-rail";
    bench.begin(name)?;
    let (mut pairs, mut silent) = (Pairs::default(), Vec::new());
    for seed in seeds(bench) {
        bench.stop.check()?;
        let three_ns = time(seed, rails(3))?.warm_ns;
        let whole = time(seed, rails(4))?;
        // In the middle of the second read.
        let at = START.after(whole.cold_ns + whole.warm_ns / 2);
        let dies = |death: Death| -> Result<f64> {
            let took_ns = time(seed, death.of(rails(4), at))?.warm_ns;
            ensure!(took_ns > whole.warm_ns, "the rail died after the read");
            Ok(ratio(took_ns.saturating_sub(death.detection_ns()), 1_000_000))
        };
        let three_ms = ratio(three_ns, 1_000_000);
        pairs.ours.push(dies(Death::Told)?);
        pairs.theirs.push(three_ms);
        silent.push(dies(Death::Silent)? / three_ms);
    }
    let silent = super::row::median(&silent).unwrap_or(0.0);
    let detection = Time::from_ns(Death::Silent.detection_ns());
    let note = format!(
        "virtual time, each pair a seed; the connection breaks half-way, which the device tells at \
         once; a rail that falls silent is found after {detection} (io_timeout) while the others \
         go on, and the read takes {silent:.3} times that on three rails besides"
    );
    let against = "the read on three rails";
    let row = Row::new(name, "ms", against, Target::RatioAtMost(1.15), &pairs);
    bench.row(row.note(note).simulated())
}
