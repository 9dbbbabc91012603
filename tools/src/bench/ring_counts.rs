//! Rows `allocations` and `syscalls`: what must not happen while reads go round.

use std::path::Path;

use anyhow::Result;
use railring_sim::SimRailConfig;

use super::Bench;
use super::disk::{Between, Disk, How, Order, Stored, Verify};
use super::rig::{BATCH, Inline, Threaded};
use super::row::{Pairs, Row, Target};
use crate::heap::allocations_during;
use crate::simulated::{Reads, Simulated};
use crate::units::{Count, ratio};

/// Enough for every stripe's table and then some.
const OBJECT_BYTES: u64 = 64 << 20;
const READS: usize = 1_000_000;
/// Where a measurement is only tried.
const READS_FEW: usize = 20_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let reads = if bench.options.seconds < 0.5 { READS_FEW } else { READS };
    let memory = Path::new("/dev/shm");
    let place = tempfile::Builder::new().prefix("railring-bench-").tempdir_in(memory);
    // In memory a million reads take seconds, and the engine does the same as on a disk.
    let place = place.or_else(|_| bench.place())?;
    let stored = Stored::new(place, OBJECT_BYTES, bench.stop)?;
    let how = How {
        depth: BATCH,
        read_bytes: 4096,
        order: Order::Random,
        verify: Verify::On,
        between: Between::Spin,
    };
    let mut disk = Disk::open(&bench.places, &stored, how)?;
    allocations(bench, &mut disk, reads)?;
    syscalls(bench, &mut disk, reads)
}

fn allocations(bench: &mut Bench<'_>, disk: &mut Disk, reads: usize) -> Result<()> {
    bench.begin("allocations")?;
    let mut result = Ok(());
    let mut counted = Vec::new();
    let mut inline = Inline::new(&bench.places, 1, 1, BATCH)?;
    inline.round(1)?;
    let rounds = reads / BATCH;
    let during = allocations_during(|| {
        result = (0..rounds).try_for_each(|_| inline.round(1).map(drop));
    });
    counted.push(("null, inline", during));
    if bench.places.other().is_some() {
        let mut threaded = Threaded::new(&bench.places, 1, 1024)?;
        threaded.reads(4096)?;
        let during = allocations_during(|| {
            result = threaded.reads(reads / BATCH * BATCH);
        });
        counted.push(("null, threaded", during));
    }
    result?;
    let mut result = Ok(());
    disk.reads(1000)?;
    let during = allocations_during(|| result = disk.reads(reads));
    result?;
    counted.push(("file", during));
    counted.push(("sim", simulated(reads)?));
    let all: u64 = counted.iter().map(|(_, count)| count).sum();
    let each: Vec<String> = counted.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let note = format!("in {} reads each, all threads: {}", Count(reads as u64), each.join(", "));
    let pairs = Pairs { ours: vec![ratio(all, 1)], theirs: Vec::new() };
    let row = Row::new("allocations", "allocations", "zero", Target::OursAtMost(0.0), &pairs);
    bench.row(row.note(note))
}

/// Allocations of so many verified reads over two simulated rails.
fn simulated(reads: usize) -> Result<u64> {
    let small = Reads {
        object_bytes: 4096,
        stripe_bytes: 4096,
        piece_bytes_max: 64 << 10,
        verify_bytes_per_second: None,
        seed: 1,
    };
    let rails = ["a", "b"].map(SimRailConfig::new).into();
    let mut simulated = Simulated::new(&small, rails)?;
    for _ in 0..1000 {
        simulated.read()?;
    }
    let mut result = Ok(());
    let during = allocations_during(|| {
        result = (0..reads).try_for_each(|_| simulated.read().map(drop));
    });
    result?;
    Ok(during)
}

fn syscalls(bench: &mut Bench<'_>, disk: &mut Disk, reads: usize) -> Result<()> {
    bench.begin("syscalls")?;
    let mut inline = Inline::new(&bench.places, 1, 1, BATCH)?;
    inline.round(1)?;
    for _ in 0..reads / BATCH {
        inline.round(1)?;
    }
    let _ = inline.engine.rail_stats();
    inline.engine.turn();
    let null: u64 = inline.engine.rail_stats().iter().map(|rail| rail.link.syscalls).sum();
    let (before, turns_before) = disk.counters()?;
    disk.reads(reads)?;
    let (after, turns_after) = disk.counters()?;
    let (calls, turns) = (after.link.syscalls - before.link.syscalls, turns_after - turns_before);
    let per_turn = ratio(calls, turns.max(1));
    let pairs = Pairs { ours: vec![per_turn], theirs: Vec::new() };
    let against = "null 0, file at most 1";
    let note = format!(
        "per turn with work, by the rails' own counters: null {null} in all; file {} in {} turns \
         with {} doorbells ({})",
        Count(calls),
        Count(turns),
        Count(after.link.doorbells - before.link.doorbells),
        after.link.backend
    );
    let row = Row::new("syscalls", "calls/turn", against, Target::OursAtMost(1.0), &pairs);
    bench.row(row.also(null == 0).note(note))
}
