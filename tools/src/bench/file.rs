//! Group `file`: one file rail beside fio, on the same file and the same core.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::disk::{Between, Disk, How, Order, Stored, Verify};
use super::fio::{self, Job, Report};
use super::places::Places;
use super::rig::quantile;
use super::row::{Pairs, Row, Target, median};
use crate::units::{Time, ratio};

/// Far more than a disk's own cache; direct I/O does not see the page cache.
const OBJECT_BYTES: u64 = 1 << 30;
const OBJECT_BYTES_SMALL: u64 = 64 << 20;
const MEMORY_BYTES: u64 = 256 << 20;

const SMALL: How = How {
    depth: 32,
    read_bytes: 4096,
    order: Order::Random,
    verify: Verify::On,
    between: Between::Adaptive,
};
const LARGE: How = How {
    depth: 16,
    read_bytes: 1 << 20,
    order: Order::Sequential,
    verify: Verify::On,
    between: Between::Sleep,
};

/// What all rows of the group share.
struct Group<'a, 'b> {
    bench: &'a mut Bench<'b>,
    stored: Stored,
    /// fio's version, or why there is none.
    peer: Result<String, String>,
    time: Duration,
    is_direct: bool,
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.take_place()?;
    let time = bench.time();
    let is_trial = bench.options.seconds < 0.5;
    let bytes = if is_trial { OBJECT_BYTES_SMALL } else { OBJECT_BYTES };
    bench.begin("file: writing the file")?;
    let stored = Stored::new(bench.place()?, bytes, bench.stop)?;
    let peer = fio::version().map_err(|error| error.to_string());
    let is_direct = is_direct(&bench.places, &stored)?;
    let mut group = Group { bench, stored, peer, time, is_direct };
    group.random("file-4k", Target::RatioAtLeast(0.97))?;
    group.sequential()?;
    group.cpu()?;
    group.latency()?;
    group.verify_cost()?;
    let Group { bench, peer, .. } = group;
    in_memory(bench, peer, time, if is_trial { OBJECT_BYTES_SMALL } else { MEMORY_BYTES })
}

fn is_direct(places: &Places, stored: &Stored) -> Result<bool> {
    let mut disk = Disk::open(places, stored, How { depth: 1, ..SMALL })?;
    Ok(disk.counters()?.0.link.backend.contains("O_DIRECT") && !backend_is_buffered(&mut disk)?)
}

fn backend_is_buffered(disk: &mut Disk) -> Result<bool> {
    Ok(disk.counters()?.0.link.backend.contains("buffered"))
}

/// The same on a file in memory, where the CPU is the limit.
fn in_memory(
    bench: &mut Bench<'_>,
    peer: Result<String, String>,
    time: Duration,
    bytes: u64,
) -> Result<()> {
    let (name, target) = ("file-4k-memory", Target::RatioAtLeast(1.1));
    let memory = Path::new("/dev/shm");
    let place = match tempfile::Builder::new().prefix("railring-bench-").tempdir_in(memory) {
        Ok(place) => place,
        Err(error) => {
            let reason = format!("no tmpfs to write to at {}: {error}", memory.display());
            return bench.row(Row::without(name, "reads/s", "fio", target, reason));
        }
    };
    let stored = Stored::new(place, bytes, bench.stop)?;
    let is_direct = is_direct(&bench.places, &stored)?;
    Group { bench, stored, peer, time, is_direct }.random(name, target)
}

impl Group<'_, '_> {
    /// A row against fio; without fio, our own figures and the reason.
    fn against_fio(
        &mut self,
        (name, unit, target): (&'static str, &'static str, Target),
        how: How,
        mut ours: impl FnMut(&mut Disk, Duration) -> Result<f64>,
        theirs: impl Fn(&Report) -> f64,
    ) -> Result<(Row, Vec<Report>)> {
        self.bench.begin(name)?;
        let mut disk = Disk::open(&self.bench.places, &self.stored, how)?;
        let file = self.stored.file()?;
        let job = Job {
            file: &file,
            cpus: self.bench.places.caller(),
            pattern: if how.order == Order::Random { "randread" } else { "read" },
            block_bytes: how.read_bytes,
            depth: how.depth,
            is_direct: self.is_direct,
            time: self.time,
        };
        let mut pairs = Pairs::default();
        let mut reports = Vec::new();
        let mut missing = self.peer.as_ref().err().cloned();
        for _ in 0..self.bench.options.pairs {
            self.bench.stop.check()?;
            pairs.ours.push(ours(&mut disk, self.time)?);
            if missing.is_some() {
                continue;
            }
            match fio::run(&job) {
                Ok(report) => {
                    pairs.theirs.push(theirs(&report));
                    reports.push(report);
                }
                Err(error) => missing = Some(format!("{error:#}")),
            }
        }
        let peer = self.peer.as_deref().unwrap_or("fio");
        let against = format!("{peer} io_uring, fixed buffers, same file, depth and core");
        let backend = disk.counters()?.0.link.backend;
        let row = Row::new(name, unit, against, target, &pairs);
        let row = match missing {
            Some(reason) => row.note(reason),
            None => row.note(format!("ours inline, {backend}")),
        };
        Ok((row, reports))
    }

    fn random(&mut self, name: &'static str, target: Target) -> Result<()> {
        let head = (name, "reads/s", target);
        let (row, _) = self.against_fio(head, SMALL, Disk::reads_per_second, |r| r.reads_per_s)?;
        self.bench.row(row)
    }

    fn sequential(&mut self) -> Result<()> {
        let head = ("file-1m", "bytes/s", Target::RatioAtLeast(0.97));
        let (row, _) = self.against_fio(head, LARGE, Disk::bytes_per_second, |r| r.bytes_per_s)?;
        self.bench.row(row)
    }

    fn cpu(&mut self) -> Result<()> {
        let head = ("file-cpu", "s/GiB", Target::RatioAtMost(1.15));
        // Taken off exactly: without verification the same reads are made and nothing is hashed.
        let how = How { verify: Verify::Off, ..LARGE };
        let (row, _) = self.against_fio(head, how, Disk::cpu_per_gib, |r| r.cpu_s_per_gib)?;
        let hash = hash_s_per_gib(self.time.min(Duration::from_millis(200)));
        let note = format!("hash time is taken off by not verifying; it is {hash:.3} s/GiB here");
        self.bench.row(row.note(note))
    }

    fn latency(&mut self) -> Result<()> {
        let head = ("file-lat", "us", Target::RatioAtMost(1.1));
        let how = How { depth: 1, between: Between::Spin, ..SMALL };
        let mut p99 = Vec::new();
        let ours = |disk: &mut Disk, time| {
            let latencies = disk.latencies(time)?;
            p99.push(ratio(quantile(&latencies, 0.99).unwrap_or(0), 1000));
            Ok(ratio(quantile(&latencies, 0.5).unwrap_or(0), 1000))
        };
        let (row, reports) = self.against_fio(head, how, ours, |r| r.p50_ns / 1e3)?;
        let theirs: Vec<f64> = reports.iter().map(|report| report.p99_ns / 1e3).collect();
        let shown = |values: &[f64]| {
            median(values).map_or("unknown".to_owned(), |us| {
                Time(Duration::from_secs_f64(us / 1e6)).to_string()
            })
        };
        let note = format!("p50; p99 is {}, fio's {}", shown(&p99), shown(&theirs));
        let row = if reports.is_empty() { row } else { row.note(note) };
        self.bench.row(row)
    }

    fn verify_cost(&mut self) -> Result<()> {
        self.bench.begin("verify-cost")?;
        let mut with = Disk::open(&self.bench.places, &self.stored, LARGE)?;
        let mut without =
            Disk::open(&self.bench.places, &self.stored, How { verify: Verify::Off, ..LARGE })?;
        let time = self.time;
        let pairs = Pairs::measure(
            self.bench.options.pairs,
            || with.bytes_per_second(time),
            || without.bytes_per_second(time),
        )?;
        let target = Target::RatioAtLeast(0.95);
        self.bench.row(Row::new("verify-cost", "bytes/s", "file-1m without verify", target, &pairs))
    }
}

/// CPU seconds to hash a GiB in stripes of 1 MiB that are not in cache.
fn hash_s_per_gib(time: Duration) -> f64 {
    let stripe = 1 << 20;
    let mut buffer = vec![0; 64 * stripe];
    fastrand::Rng::with_seed(3).fill(&mut buffer);
    let (begun, before, mut bytes) = (std::time::Instant::now(), super::cpu_time(), 0);
    while begun.elapsed() < time {
        for stripe in buffer.chunks(stripe) {
            std::hint::black_box(railring::catalog::checksum::stripe_checksum(stripe));
            bytes += stripe.len() as u64;
        }
    }
    let cpu = super::cpu_time().saturating_sub(before);
    cpu.as_secs_f64() / ratio(bytes, 1 << 30)
}
