//! Rows `scale-*`: what a read costs when there is much else, by what it costs on its own.

use anyhow::Result;

use super::Bench;
use super::rig::{BATCH, Inline};
use super::row::{Pairs, Row, Target, median};

const TARGET: Target = Target::RatioAtMost(1.2);
const UNIT: &str = "ns/read";
const IN_FLIGHT: usize = 4096;
const RINGS: usize = 64;
const RAILS: usize = 16;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    in_flight(bench)?;
    rings(bench)?;
    rails(bench)
}

fn in_flight(bench: &mut Bench<'_>) -> Result<()> {
    bench.begin("scale-in-flight")?;
    let time = bench.time();
    let rig = |rails, rings, depth| Inline::new(&bench.places, rails, rings, depth);
    let (mut many, mut few) = (rig(1, 1, IN_FLIGHT)?, rig(1, 1, BATCH)?);
    let pairs =
        Pairs::measure(bench.options.pairs, || many.cost_ns(1, time), || few.cost_ns(1, time))?;
    let against = format!("{BATCH} in flight");
    let note = format!("{IN_FLIGHT} reads in flight");
    bench.row(Row::new("scale-in-flight", UNIT, against, TARGET, &pairs).note(note))
}

/// Two sets of pairs against the same; the row is the dearer one.
fn dearer(name: &'static str, against: &str, idle: (&str, Pairs), busy: (&str, Pairs)) -> Row {
    let ratio = |pairs: &Pairs| {
        let ratios: Vec<f64> =
            pairs.ours.iter().zip(&pairs.theirs).map(|(ours, theirs)| ours / theirs).collect();
        median(&ratios).unwrap_or(f64::INFINITY)
    };
    let (of_idle, of_busy) = (ratio(&idle.1), ratio(&busy.1));
    let worse = if of_idle > of_busy { &idle } else { &busy };
    let note = format!("the dearer one: {} {of_idle:.2}, {} {of_busy:.2}", idle.0, busy.0);
    Row::new(name, UNIT, against, TARGET, &worse.1).note(note)
}

fn rings(bench: &mut Bench<'_>) -> Result<()> {
    bench.begin("scale-rings")?;
    let time = bench.time();
    let rig = |rails, rings, depth| Inline::new(&bench.places, rails, rings, depth);
    let (mut many, mut one) = (rig(1, RINGS, BATCH)?, rig(1, 1, BATCH)?);
    let mut measure = |active| {
        Pairs::measure(bench.options.pairs, || many.cost_ns(active, time), || one.cost_ns(1, time))
    };
    let idle = ("1 active of 64", measure(1)?);
    let busy = ("64 active of 64", measure(RINGS)?);
    bench.row(dearer("scale-rings", "1 ring of 1", idle, busy))
}

fn rails(bench: &mut Bench<'_>) -> Result<()> {
    bench.begin("scale-rails")?;
    let time = bench.time();
    let rig = |rails, rings, depth| Inline::new(&bench.places, rails, rings, depth);
    let (mut many, mut one) = (rig(RAILS, 1, BATCH)?, rig(1, 1, BATCH)?);
    let switch = |rig: &mut Inline, on| {
        let all =
            (1..RAILS).try_for_each(|rail| rig.engine.set_enabled(&format!("null{rail}"), on));
        rig.engine.turn();
        all
    };
    let pairs = bench.options.pairs;
    switch(&mut many, false)?;
    let idle = Pairs::measure(pairs, || many.cost_ns(1, time), || one.cost_ns(1, time))?;
    switch(&mut many, true)?;
    let busy = Pairs::measure(pairs, || many.cost_ns(1, time), || one.cost_ns(1, time))?;
    let (idle, busy) = (("1 active of 16", idle), ("16 active of 16", busy));
    bench.row(dearer("scale-rails", "1 rail of 1", idle, busy))
}
