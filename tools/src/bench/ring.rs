//! Group `ring`: the engine itself over null rails, beside raw io_uring and a plain queue.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::peers::Echo;
use super::rig::{BATCH, Inline, Threaded, quantile};
use super::row::{Pairs, Row, Target};
use super::{Bench, nop, ring_counts, scale};

const NOP: &str = "io_uring NOP in batches of 32, same thread";
const ECHO: &str = "crossbeam ArrayQueue echo of 64-byte items, same cores";
const ROUND_TRIP: &str = "crossbeam ArrayQueue round trip, same cores";
/// Reads, or items, under way in the threaded rows.
const DEPTH: usize = 1024;
/// Reads on their own between two looks at the time that is left.
const TRIPS: usize = 1000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.take_place()?;
    inline(bench)?;
    threaded(bench)?;
    round_trip(bench)?;
    scale::run(bench)?;
    ring_counts::run(bench)
}

fn inline(bench: &mut Bench<'_>) -> Result<()> {
    let (name, unit, target) = ("ring-inline", "reads/s", Target::RatioAtLeast(2.0));
    bench.begin(name)?;
    let time = bench.time();
    let mut rig = Inline::new(&bench.places, bench.places.rails(), 1, BATCH)?;
    let row = match nop::rate(Duration::from_millis(1)) {
        Ok(_) => {
            let pairs =
                Pairs::measure(bench.options.pairs, || rig.rate(1, time), || nop::rate(time))?;
            Row::new(name, unit, NOP, target, &pairs)
        }
        Err(error) => {
            let mut pairs = Pairs::default();
            for _ in 0..bench.options.pairs {
                pairs.ours.push(rig.rate(1, time)?);
            }
            Row::new(name, unit, NOP, target, &pairs).note(format!("io_uring is refused: {error}"))
        }
    };
    bench.row(row)
}

/// Why a row with two threads was not measured.
fn one_core(
    bench: &mut Bench<'_>,
    name: &'static str,
    unit: &'static str,
    against: &str,
    target: Target,
) -> Result<()> {
    let reason = "it needs two cores, this process may use one";
    bench.row(Row::without(name, unit, against, target, reason))
}

fn threaded(bench: &mut Bench<'_>) -> Result<()> {
    let (name, unit, target) = ("ring-threaded", "reads/s", Target::RatioAtLeast(0.5));
    bench.begin(name)?;
    let Some(other) = bench.places.other().cloned() else {
        return one_core(bench, name, unit, ECHO, target);
    };
    let (time, places) = (bench.time(), &bench.places);
    // Each is made for its turn: the other one's thread would spin on the same core.
    let pairs = Pairs::measure(
        bench.options.pairs,
        || Threaded::new(places, places.rails(), DEPTH)?.rate(time),
        || Echo::start(&other, DEPTH)?.rate(time),
    )?;
    bench.row(Row::new(name, unit, ECHO, target, &pairs))
}

fn round_trip(bench: &mut Bench<'_>) -> Result<()> {
    let (name, unit, target) = ("round-trip", "ns", Target::RatioAtMost(2.0));
    bench.begin(name)?;
    let Some(other) = bench.places.other().cloned() else {
        return one_core(bench, name, unit, ROUND_TRIP, target);
    };
    let (time, places) = (bench.time(), &bench.places);
    let pairs = Pairs::measure(
        bench.options.pairs,
        || {
            let mut rig = Threaded::new(places, places.rails(), DEPTH)?;
            p50(time, || rig.round_trip())
        },
        || {
            let echo = Echo::start(&other, DEPTH)?;
            p50(time, || echo.round_trip())
        },
    )?;
    bench.row(
        Row::new(name, unit, ROUND_TRIP, target, &pairs).note("p50, both with two clock reads"),
    )
}

/// The median time of one `trip`, in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "some hundred nanoseconds")]
fn p50(time: Duration, mut trip: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut trips: Vec<u64> = Vec::new();
    for _ in 0..TRIPS {
        trip()?;
    }
    let begun = Instant::now();
    while begun.elapsed() < time {
        trips.reserve(TRIPS);
        for _ in 0..TRIPS {
            let begun = Instant::now();
            trip()?;
            trips.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    trips.sort_unstable();
    Ok(quantile(&trips, 0.5).unwrap_or(0) as f64)
}
