//! A benchmark of where things run: the same reads with pollers, caller and memory on each memory
//! node in turn, near the disks and far from them, each place read back from the kernel.
//!
//! `cargo run --release -p railring-examples --example pinned_bench -- \
//!     [--seconds S] [--mib N] [DIR...]`
//!
//! One rail per DIR, which is best a disk each; without any, two in the temporary directory.

use std::error::Error;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use railring::store::PutOptions;
use railring::topology::assign::{Placement as Pollers, Policy, Rails};
use railring::topology::{CpuSet, Discovery, Machine, NodeId, allowed_cpus, pin_current_thread};
use railring::{Engine, Placement, PoolConfig, RailSet, Read, RingConfig, Store, Strictness};

const READ_BYTES: u64 = 1 << 20;
const IN_FLIGHT: usize = 16;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

struct Options {
    time: Duration,
    bytes: u64,
    directories: Vec<PathBuf>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options =
            Options { time: Duration::from_millis(50), bytes: 8 << 20, directories: Vec::new() };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
            match &*word {
                "--seconds" => options.time = Duration::try_from_secs_f64(value()?.parse()?)?,
                "--mib" => options.bytes = value()?.parse::<u64>()?.max(1) << 20,
                _ if word.starts_with('-') => return Err(format!("unknown option {word}").into()),
                _ => options.directories.push(word.into()),
            }
        }
        Ok(options)
    }
}

/// What one placement gave.
struct Measured {
    bytes_per_s: f64,
    p50_us: u64,
    p99_us: u64,
    pollers: Vec<String>,
    caller: CpuSet,
    memory: String,
}

/// One case per pair of nodes, besides what the plan would do by itself and no binding at all.
fn cases(machine: &Machine) -> Vec<(String, Policy)> {
    let files = Policy { rails: Rails::File, ..Policy::default() };
    let mut cases = vec![("plan".to_owned(), files.clone())];
    let usable = machine.allowed();
    let runs = machine.nodes.iter().filter(|node| node.cpus.intersects(&usable));
    let runs: Vec<NodeId> = runs.map(|node| node.id).collect();
    for &node in runs.iter().filter(|_| machine.nodes.len() > 1) {
        for memory_node in machine.memory_nodes() {
            let name = format!("node {node}, memory {memory_node}");
            let (node, memory_node) = (Some(node), Some(memory_node));
            cases.push((name, Policy { node, memory_node, ..files.clone() }));
        }
    }
    let unpinned = Policy { placement: Pollers::Unpinned, ..files };
    cases.push(("not bound".to_owned(), unpinned));
    cases
}

/// A CPU for the caller: of the pollers' node, if one is free there.
fn caller_cpus(machine: &Machine, engine: &Engine) -> CpuSet {
    let Some(plan) = engine.plan() else { return machine.allowed() };
    let taken: CpuSet = plan.pollers.iter().filter_map(|poller| poller.cpu).collect();
    if taken.is_empty() {
        return machine.allowed();
    }
    let nodes = plan.pollers.iter().filter_map(|poller| machine.node(poller.node?));
    let near = nodes.fold(CpuSet::new(), |cpus, node| cpus.union(&node.cpus));
    let free = machine.allowed().difference(&taken);
    let cpu = near.intersection(&free).first().or(free.first()).or(machine.allowed().first());
    cpu.map_or(machine.allowed(), CpuSet::from)
}

/// Reads the object round and round for `time`, from a thread of its own that is bound, too.
fn measure(
    machine: &Machine,
    policy: &Policy,
    placement: &Placement,
    time: Duration,
) -> Result<Measured> {
    let rails = RailSet::planned(machine.clone(), policy)?;
    let engine = Engine::builder().rails(rails).strictness(Strictness::Strict).build()?;
    pin_current_thread(caller_cpus(machine, &engine))?;
    let object = engine.open(placement)?;
    let memory =
        PoolConfig { slots: IN_FLIGHT, slot_bytes: READ_BYTES as usize, ..PoolConfig::default() };
    let pool = engine.buffer_pool(memory)?;
    let mut ring = engine.ring(RingConfig::default())?;
    let (begun, mut next, mut bytes) = (Instant::now(), 0, 0);
    while begun.elapsed() < time || ring.in_flight() > 0 {
        while begun.elapsed() < time
            && let Some(lease) = pool.take()
        {
            let end = object.len().min(next + READ_BYTES);
            ring.push(Read::new(&object, next..end, lease)).map_err(|refused| refused.why)?;
            next = if end == object.len() { 0 } else { end };
        }
        ring.submit();
        ring.wait(1, Duration::from_secs(1))?;
        while let Some(cqe) = ring.pop() {
            if !cqe.status().is_ok() {
                return Err(format!("stripe {}: {}", cqe.stripe(), cqe.status()).into());
            }
            bytes += cqe.bytes();
        }
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let rails = engine.rail_stats();
    let slowest = |quantile| {
        let us = |ns: Option<u64>| ns.unwrap_or(0) / 1000;
        rails.iter().map(|rail| us(rail.latency.quantile_ns(quantile))).max().unwrap_or(0)
    };
    let seats = engine.seats().iter();
    Ok(Measured {
        bytes_per_s: bytes as f64 / elapsed,
        p50_us: slowest(0.5),
        p99_us: slowest(0.99),
        pollers: seats.map(|seat| seat.got.clone().unwrap_or_default().to_string()).collect(),
        caller: allowed_cpus()?,
        memory: format!("{:?}", pool.region().placement()),
    })
}

/// An object of bytes without a pattern, in stripes that lie on the directories in turn.
fn put(directories: &[PathBuf], bytes: u64) -> Result<Placement> {
    let store = Store::create(directories)?;
    let options = PutOptions { stripe_bytes: READ_BYTES, ..PutOptions::default() };
    let mut noise = std::fs::File::open("/dev/urandom")?.take(bytes);
    let mut go_on = |_| ControlFlow::Continue(());
    Ok(store.put(&"bench/pinned".parse()?, &mut noise, &options, &mut go_on)?.placement)
}

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let temporary = std::env::temp_dir();
    let parents: Vec<&Path> = match options.directories.as_slice() {
        [] => vec![&temporary, &temporary],
        given => given.iter().map(PathBuf::as_path).collect(),
    };
    let homes =
        parents.into_iter().map(tempfile::tempdir_in).collect::<std::io::Result<Vec<_>>>()?;
    let directories: Vec<PathBuf> = homes.iter().map(|home| home.path().join("disk")).collect();
    let placement = put(&directories, options.bytes)?;
    let discovery = directories.iter().fold(Discovery::live(), |d, path| d.directory(path));
    let machine = discovery.read()?;
    println!("{:<18} {:>10} {:>8} {:>8}  where", "placement", "MB/s", "p50 us", "p99 us");
    for (name, policy) in cases(&machine) {
        let run = || measure(&machine, &policy, &placement, options.time);
        let measured = std::thread::scope(|scope| scope.spawn(run).join());
        let measured = measured.map_err(|_| "the measuring thread panicked")??;
        println!(
            "{name:<18} {:>10.0} {:>8} {:>8}  pollers on cpus {}, caller on {}, memory {}",
            measured.bytes_per_s / 1e6,
            measured.p50_us,
            measured.p99_us,
            measured.pollers.join("; "),
            measured.caller,
            measured.memory
        );
    }
    Ok(())
}
