//! Group `verbs`: one RDMA rail beside perftest, on one device with itself.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use railring::topology::Discovery;
use railring::verbs::{LocalPort, VerbsRailOptions};
use railring::{Placement, RailSet};

use super::Bench;
use super::disk::{Between, Disk, How, Order, Stored, Verify};
use super::perftest::{self, Job};
use super::rig::quantile;
use super::row::{Pairs, Row, Target, median};
use crate::args::VerbsBenchOptions;
use crate::heap::allocations_during;
use crate::units::{Count, ratio};

const OBJECT_BYTES: u64 = 16 << 20;
/// Reads under way at once.
const DEPTH: usize = 16;
const COUNTED_READS: usize = 1_000_000;
const COUNTED_READS_FEW: usize = 2_000;

const LARGE: How = How {
    depth: DEPTH,
    read_bytes: 1 << 20,
    order: Order::Sequential,
    verify: Verify::Off,
    between: Between::Adaptive,
};
const SMALL: How = How {
    depth: 1,
    read_bytes: 4096,
    order: Order::Random,
    verify: Verify::On,
    between: Between::Spin,
};

/// The process that serves the object; ended when this is dropped.
struct Peer {
    child: Child,
    /// It ends when its input does.
    _input: Option<ChildStdin>,
    endpoint: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Starts `program --device DEVICE --serve DIRECTORY` and waits for its line `ready ENDPOINT`.
    fn start(program: &Path, device: &str, directory: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["--device", device, "--serve"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("the peer {} does not start; see --peer-command", program.display())
            })?;
        let output = child.stdout.take().context("a pipe")?;
        let input = child.stdin.take();
        let mut peer = Peer { child, _input: input, endpoint: String::new() };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let Some(endpoint) = line.trim_end().strip_prefix("ready ") else {
            bail!("the peer {} did not get ready: {}", program.display(), line.trim_end());
        };
        peer.endpoint = endpoint.to_owned();
        Ok(peer)
    }
}

/// What all rows of the group share.
struct Group<'a, 'b> {
    bench: &'a mut Bench<'b>,
    local: LocalPort,
    placement: Placement,
    /// perftest's version, or why there is none.
    perftest: Result<String, String>,
    _stored: Stored,
    _peer: Peer,
}

pub(super) fn run(bench: &mut Bench<'_>, given: &VerbsBenchOptions) -> Result<()> {
    bench.take_place()?;
    let machine = Discovery::live().read()?;
    let device = match &given.device {
        Some(device) => device.clone(),
        None => machine.rdma.first().context("no RDMA device; see railring doctor")?.name.clone(),
    };
    let local = LocalPort::find(&machine, &device, None, None)?;
    bench.begin("verbs: writing the object")?;
    let memory = tempfile::Builder::new().prefix("railring-bench-").tempdir_in("/dev/shm");
    let place = memory.or_else(|_| bench.place())?;
    let stored = Stored::new(place, OBJECT_BYTES, bench.stop)?;
    let directory = stored.directory();
    let peer = Peer::start(&peer_command(given)?, &device, directory)?;
    let mut placement = stored.placement().clone();
    for source in &mut placement.sources {
        source.endpoint.clone_from(&peer.endpoint);
    }
    let perftest = perftest::version().map_err(|error| error.to_string());
    let mut group = Group { bench, local, placement, perftest, _stored: stored, _peer: peer };
    group.pull("verbs-pull-256k", 256 << 10)?;
    group.pull("verbs-pull-1m", 1 << 20)?;
    group.latency()?;
    group.allocations()?;
    group.syscalls()
}

/// What was given, or what was built beside this program.
fn peer_command(given: &VerbsBenchOptions) -> Result<std::path::PathBuf> {
    if let Some(command) = &given.peer_command {
        return Ok(command.clone());
    }
    let me = std::env::current_exe().context("this program has no path")?;
    let beside = me.with_file_name("memory_peer");
    if !beside.is_file() {
        bail!(
            "there is no {}; build it (cargo build --release -p railring-tests --features verbs \
             --bin memory_peer) or say --peer-command",
            beside.display()
        );
    }
    Ok(beside)
}

impl Group<'_, '_> {
    fn open(&self, how: How) -> Result<Disk> {
        let options = VerbsRailOptions {
            port: Some(self.local.port.into()),
            gid: Some(self.local.gid.index),
            ..VerbsRailOptions::new(&self.local.device)
        };
        let rails = RailSet::new().verbs(options)?;
        Disk::over(&self.bench.places, rails, &self.placement, how)
    }

    fn job(&self, how: How, reads: usize) -> Job<'_> {
        let (device, gid_index) = (&*self.local.device, self.local.gid.index);
        // perftest wants at least five, and a full queue.
        let reads = reads.max(2 * how.depth).max(5);
        Job { device, gid_index, bytes: how.read_bytes, depth: how.depth, reads }
    }

    fn against(&self, program: &str, how: How) -> String {
        let version = self.perftest.as_deref().unwrap_or("perftest");
        let depth = how.depth;
        format!("{program} ({version}), same size, depth {depth} and device, both ends here")
    }

    fn pull(&mut self, name: &'static str, read_bytes: u64) -> Result<()> {
        self.bench.begin(name)?;
        let how = How { read_bytes, ..LARGE };
        let mut plain = self.open(how)?;
        let mut checked = self.open(How { verify: Verify::On, ..how })?;
        let time = self.bench.time();
        let mut pairs = Pairs::default();
        let (mut verified, mut our_cpu, mut their_cpu) = (Vec::new(), Vec::new(), Vec::new());
        let mut missing = self.perftest.as_ref().err().cloned();
        for _ in 0..self.bench.options.pairs {
            self.bench.stop.check()?;
            let before = super::cpu_time();
            let (reads, elapsed) = plain.run(time)?;
            let cpu = super::cpu_time().saturating_sub(before);
            let bytes = ratio(reads as u64 * read_bytes, 1);
            pairs.ours.push(bytes / elapsed.as_secs_f64());
            our_cpu.push(cpu.as_secs_f64() / (bytes / f64::from(1 << 30)));
            if missing.is_none() {
                match perftest::read_bw(&self.job(how, reads)) {
                    Ok(theirs) => {
                        pairs.theirs.push(theirs.bytes_per_s);
                        their_cpu.push(theirs.cpu_s_per_gib);
                    }
                    Err(error) => missing = Some(format!("{error:#}")),
                }
            }
            verified.push(checked.bytes_per_second(time)?);
        }
        let target = Target::RatioAtLeast(0.95);
        let row = Row::new(name, "bytes/s", self.against("ib_read_bw", how), target, &pairs);
        let row = row.note(missing.unwrap_or_else(|| plain.backend().unwrap_or_default()));
        let shown = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        let note = format!(
            "verified: {:.2} MB/s; CPU s/GiB: ours {:.2}, theirs {:.2}",
            shown(&verified) / 1e6,
            shown(&our_cpu),
            shown(&their_cpu),
        );
        self.bench.row(row.note(note))
    }

    fn latency(&mut self) -> Result<()> {
        self.bench.begin("verbs-lat")?;
        let mut disk = self.open(SMALL)?;
        let time = self.bench.time();
        let mut pairs = Pairs::default();
        let mut p99 = Vec::new();
        let mut missing = self.perftest.as_ref().err().cloned();
        for _ in 0..self.bench.options.pairs {
            self.bench.stop.check()?;
            let latencies = disk.latencies(time)?;
            pairs.ours.push(ratio(quantile(&latencies, 0.5).unwrap_or(0), 1000));
            p99.push(ratio(quantile(&latencies, 0.99).unwrap_or(0), 1000));
            if missing.is_none() {
                match perftest::read_lat(&self.job(SMALL, latencies.len())) {
                    Ok(typical) => pairs.theirs.push(typical),
                    Err(error) => missing = Some(format!("{error:#}")),
                }
            }
        }
        let target = Target::RatioAtMost(1.3);
        let row = Row::new("verbs-lat", "us", self.against("ib_read_lat", SMALL), target, &pairs);
        let p99 = median(&p99).unwrap_or(f64::NAN);
        let note = format!("p50 of 4 KiB, verified, inline; p99 is {p99:.0} us");
        let row = row.note(note);
        self.bench.row(missing.into_iter().fold(row, Row::note))
    }

    fn counted_reads(&self) -> usize {
        if self.bench.options.seconds < 0.5 { COUNTED_READS_FEW } else { COUNTED_READS }
    }

    fn allocations(&mut self) -> Result<()> {
        self.bench.begin("allocations")?;
        let reads = self.counted_reads();
        let mut disk = self.open(How { depth: 32, between: Between::Adaptive, ..SMALL })?;
        disk.reads(1000)?;
        let mut result = Ok(());
        let during = allocations_during(|| result = disk.reads(reads));
        result?;
        let pairs = Pairs { ours: vec![ratio(during, 1)], theirs: Vec::new() };
        let target = Target::OursAtMost(0.0);
        let row = Row::new("allocations", "allocations", "zero", target, &pairs);
        let note = format!(
            "verbs pull: in {} verified reads of 4 KiB at depth 32, all threads of the process",
            Count(reads as u64)
        );
        self.bench.row(row.note(note))
    }

    fn syscalls(&mut self) -> Result<()> {
        self.bench.begin("syscalls")?;
        let mut disk = self.open(How { depth: 32, ..SMALL })?;
        disk.reads(1000)?;
        let (before, turns_before) = disk.counters()?;
        disk.reads(self.counted_reads() / 10)?;
        let (after, turns_after) = disk.counters()?;
        let calls = after.link.syscalls - before.link.syscalls;
        let doorbells = after.link.doorbells - before.link.doorbells;
        let pairs = Pairs { ours: vec![ratio(calls, doorbells.max(1))], theirs: Vec::new() };
        let against = "software RDMA: one per doorbell; hardware: 0";
        let row = Row::new("syscalls", "calls/doorbell", against, Target::OursAtMost(1.0), &pairs);
        let note = format!(
            "verbs pull, by the rail's own counters: {} calls for {} doorbells in {} turns with \
             work ({})",
            Count(calls),
            Count(doorbells),
            Count(turns_after - turns_before),
            after.link.backend
        );
        self.bench.row(row.note(note))
    }
}
