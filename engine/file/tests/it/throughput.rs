//! Raw throughput and CPU time of a link beside fio on the same file; run by hand.
//!
//! `cargo test --release -p railring-file -- --ignored --nocapture throughput`, with
//! `RAILRING_BENCH_FILE=/dir/file` (at least 64 MiB) and optionally `RAILRING_BENCH_SECONDS`.
//! With `RAILRING_BENCH_SLEEP` the poller sleeps while nothing is done, as fio does; else it spins.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use railring_dma::{Loan, Part};
use railring_file::FileRailOptions;
use railring_transport::{Link, Nanos, Outcome, RailControl, WorkRequest, WrId};
use rustix::event::{PollFd, PollFlags};

use crate::common::{Memory, Rig};

struct Load {
    name: &'static str,
    bytes: usize,
    depth: u32,
    random: bool,
}

const LOADS: [Load; 3] = [
    Load { name: "4k", bytes: 4096, depth: 32, random: true },
    Load { name: "1m", bytes: 1 << 20, depth: 16, random: false },
    Load { name: "lat", bytes: 4096, depth: 1, random: true },
];

#[derive(Clone, Copy, Debug)]
struct Measured {
    rate: f64,
    cpu_us: f64,
}

/// CPU time of this process, its kernel workers included.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Next read position.
struct Positions {
    random: fastrand::Rng,
    at: u64,
    blocks: u64,
    load: &'static Load,
}

impl Positions {
    fn next(&mut self) -> u64 {
        let block = if self.load.random { self.random.u64(..self.blocks) } else { self.at };
        self.at = (self.at + 1) % self.blocks;
        block * self.load.bytes as u64
    }
}

/// Reads per second, and CPU time per read in microseconds.
fn ours(path: &std::path::Path, load: &'static Load, seconds: f64) -> Measured {
    let directory = path.parent().expect("a file is in a directory");
    let options = FileRailOptions { queue_depth: load.depth, ..FileRailOptions::default() };
    let mut rig = Rig::open(directory, options);
    let target = rig.connect(path.file_name().and_then(|name| name.to_str()).expect("plain name"));
    let memory = Memory::new(load.depth as usize, load.bytes);
    rig.control.register(&memory.region).expect("it falls back");
    let blocks = std::fs::metadata(path).expect("it is there").len() / load.bytes as u64;
    let random = fastrand::Rng::with_seed(7);
    let mut positions = Positions { random, at: 0, blocks, load };
    let mut idle: Vec<(WrId, Part)> = Vec::new();
    let mut loans: Vec<Loan> = Vec::new();
    for slot in 0..load.depth {
        let (loan, part) = memory.pool.take().expect("one slot each").lend();
        loans.push(loan);
        idle.push((WrId { slot, generation: 1 }, part));
    }
    let sleep = std::env::var("RAILRING_BENCH_SLEEP").is_ok();
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let end = Duration::from_secs_f64(seconds);
    let (mut reads, mut turns, mut sum) = (0u64, 0u64, 0u64);
    while start.elapsed() < end {
        for _ in 0..64 {
            turns += u64::from(!idle.is_empty());
            for (wr, part) in idle.drain(..) {
                let offset = positions.next();
                let bytes_min = part.len() as u64;
                rig.link.queue(WorkRequest { wr, target, offset, bytes_min, part }).expect("room");
            }
            rig.link.commit(Nanos(0));
            if sleep && rig.link.arm() {
                let event = rig.link.event_fd().expect("file links have one");
                let mut polled = [PollFd::new(&event, PollFlags::IN)];
                let _ = rustix::event::poll(&mut polled, None);
            }
            rig.link.reap(Nanos(0), 64, &mut |done| {
                assert!(matches!(done.outcome, Outcome::Done { .. }), "{:?}", done.outcome);
                sum += u64::from(done.part.as_slice()[17]);
                reads += 1;
                let generation = done.wr.generation + 1;
                idle.push((WrId { generation, ..done.wr }, done.part));
            });
        }
    }
    let took = start.elapsed().as_secs_f64();
    let stats = rig.link.stats();
    println!(
        "    {} syscalls/turn {:.3} resubmissions {} (sum {sum})",
        stats.backend,
        stats.syscalls as f64 / turns as f64,
        stats.resubmissions
    );
    let cpu = cpu_seconds() - cpu_before;
    let _ = rig.wait(load.depth as usize - idle.len());
    Measured { rate: reads as f64 / took, cpu_us: cpu * 1e6 / reads as f64 }
}

fn fio(path: &std::path::Path, load: &Load, seconds: f64, direct: bool) -> Option<Measured> {
    let output = Command::new("fio")
        .args(["--name=a", "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1"])
        .args(["--time_based", "--gtod_reduce=1", "--output-format=terse", "--terse-version=3"])
        .args(std::env::var("RAILRING_BENCH_FIO").unwrap_or_default().split_whitespace())
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--rw={}", if load.random { "randread" } else { "read" }))
        .arg(format!("--bs={}", load.bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--runtime={seconds}"))
        .arg(format!("--direct={}", u8::from(direct)))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let field = |index: usize| -> Option<f64> {
        text.split(';').nth(index)?.trim_end_matches('%').parse().ok()
    };
    // fio(1), terse version 3: reads per second, then user and system time in percent.
    let rate = field(7)?;
    let cpu_us = (field(87)? + field(88)?) / 100.0 * 1e6 / rate;
    Some(Measured { rate, cpu_us })
}

#[test]
#[ignore = "a benchmark; see the head of the file"]
fn throughput() {
    let path = PathBuf::from(std::env::var("RAILRING_BENCH_FILE").expect("names the file to read"));
    let seconds = std::env::var("RAILRING_BENCH_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds = seconds.unwrap_or(2.0);
    let only = std::env::var("RAILRING_BENCH_LOAD").unwrap_or_default();
    let direct = !path.starts_with("/dev/shm");
    for load in LOADS.iter().filter(|load| load.name.contains(&only)) {
        let mut ratios = Vec::new();
        for _ in 0..5 {
            let (ours, Some(fio)) = (ours(&path, load, seconds), fio(&path, load, seconds, direct))
            else {
                return println!("SKIP throughput: fio does not run here");
            };
            let ratio = ours.rate / fio.rate;
            println!(
                "{} ours {:.0}/s {:.1} us fio {:.0}/s {:.1} us ratio {ratio:.3}",
                load.name, ours.rate, ours.cpu_us, fio.rate, fio.cpu_us
            );
            ratios.push(ratio);
        }
        ratios.sort_by(f64::total_cmp);
        println!("{} median ratio {:.3}", load.name, ratios[2]);
    }
}
