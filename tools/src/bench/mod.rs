//! `railring bench`: Railring beside its peers, in one run on the same cores, in turn.

mod disk;
mod file;
mod fio;
mod gate;
mod idle;
mod nop;
mod peers;
#[cfg(feature = "verbs")]
mod perftest;
mod places;
mod rig;
mod ring;
mod ring_counts;
mod row;
mod scale;
mod sim;
#[cfg(feature = "verbs")]
mod verbs;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use railring::topology::{allowed_cpus, pin_current_thread};
use serde::Serialize;

use crate::args::{BenchArgs, BenchCommand, BenchOptions, Group, VerbsBenchOptions};
use crate::bench::places::Places;
use crate::bench::row::Row;
use crate::output::{Format, Out, note};
use crate::signals::Stop;
use crate::units::date;
use crate::{Context, output};

/// Groups that cannot run, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("tcp", "there is no TCP rail yet"),
    ("verbs", "it needs an RDMA device and a peer: railring bench verbs, in cargo xtask guest"),
    ("designs", "it compares over TCP and verbs rails, which are not there yet"),
];

/// What every measurement is told.
pub(crate) struct Bench<'a> {
    options: &'a BenchOptions,
    stop: &'a Stop,
    out: &'a mut Out,
    places: Places,
    rows: Vec<Row>,
}

/// The line before the rows.
#[derive(Debug, Serialize)]
struct Header {
    bench: &'static str,
    command: String,
    version: &'static str,
    commit: &'static str,
    machine: String,
    time: String,
    pairs: usize,
    seconds: f64,
}

pub(crate) fn run(args: &BenchArgs, context: &mut Context) -> Result<()> {
    let mut verbs = None;
    let (group, options) = match &args.command {
        BenchCommand::Gate(args) => return gate::run(args),
        BenchCommand::Ring(options) => (Group::Ring, options),
        BenchCommand::File(options) => (Group::File, options),
        BenchCommand::Idle(options) => (Group::Idle, options),
        BenchCommand::Sim(options) => (Group::Sim, options),
        BenchCommand::All(options) => (Group::All, options),
        BenchCommand::Verbs(given) => {
            verbs = Some(given);
            (Group::Verbs, &given.bench)
        }
    };
    let allowed = allowed_cpus()?;
    let places = Places::of(&options.place, group, &allowed)?;
    let Context { out, stop } = context;
    let mut bench = Bench { options, stop, out, places, rows: Vec::new() };
    bench.header(group)?;
    let result = match verbs {
        Some(given) => bench.verbs(given),
        None => bench.groups(group),
    };
    // Whatever comes after must not be confined to the cores of the measurement.
    pin_current_thread(allowed)?;
    result?;
    bench.finish(group)
}

impl Bench<'_> {
    /// Puts this thread where it measures.
    fn take_place(&self) -> Result<()> {
        places::pin(self.places.caller())?;
        self.places.check()
    }

    #[cfg(feature = "verbs")]
    fn verbs(&mut self, given: &VerbsBenchOptions) -> Result<()> {
        verbs::run(self, given)
    }

    #[cfg(not(feature = "verbs"))]
    fn verbs(&mut self, given: &VerbsBenchOptions) -> Result<()> {
        let VerbsBenchOptions { device, .. } = given;
        let device = device.as_deref().unwrap_or("an RDMA device");
        anyhow::bail!(
            "{device} cannot be measured: this command was built without the feature verbs; build \
             with cargo build --release --features verbs"
        )
    }

    fn groups(&mut self, group: Group) -> Result<()> {
        if matches!(group, Group::Ring | Group::All) {
            ring::run(self)?;
        }
        if matches!(group, Group::Idle | Group::All) {
            idle::run(self)?;
        }
        if matches!(group, Group::File | Group::All) {
            file::run(self)?;
        }
        if matches!(group, Group::Sim | Group::All) {
            sim::run(self)?;
        }
        Ok(())
    }

    fn header(&mut self, group: Group) -> Result<()> {
        let header = Header {
            bench: group.name(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("RAILRING_COMMIT"),
            machine: machine(),
            time: date(now_ns()),
            pairs: self.options.pairs,
            seconds: self.options.seconds,
        };
        if self.format() == Format::Json {
            self.out.json(&header)?;
        } else {
            self.out.line(format_args!("{}", header.command))?;
            self.out.line(format_args!(
                "railring {} ({}), {}, {}",
                header.version, header.commit, header.machine, header.time
            ))?;
            self.out.line(format_args!(
                "{} pairs, measured in turn for {} s each; median, and the spread of the ratio\n",
                header.pairs, header.seconds
            ))?;
        }
        Ok(self.out.flush()?)
    }

    fn format(&self) -> Format {
        self.options.format.format()
    }

    /// A row is done. JSON is printed at once, the table at the end.
    fn row(&mut self, row: Row) -> Result<()> {
        let row = row.placed(self.places.of_row());
        if self.format() == Format::Json {
            self.out.json(&row)?;
            self.out.flush()?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Says on a terminal what is being measured.
    fn begin(&self, row: &str) -> Result<()> {
        self.stop.check()?;
        self.places.begin_row();
        if output::is_terminal() {
            note(format_args!("measuring {row}"));
        }
        Ok(())
    }

    fn finish(&mut self, group: Group) -> Result<()> {
        if self.format() == Format::Text {
            row::print(&self.rows, self.out)?;
        }
        if group == Group::All {
            for (name, reason) in ELSEWHERE {
                match self.format() {
                    Format::Json => {
                        self.out.json(&serde_json::json!({ "group": name, "not_run": reason }))?;
                    }
                    Format::Text => {
                        self.out.line(format_args!("group {name} cannot run: {reason}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// For how long each measurement runs.
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds)
    }

    /// Where files are put that must lie on a disk.
    fn place(&self) -> Result<tempfile::TempDir> {
        let parent = match &self.options.dir {
            Some(dir) => dir.clone(),
            None => std::env::current_exe()
                .ok()
                .and_then(|program| program.parent().map(PathBuf::from))
                .unwrap_or_else(std::env::temp_dir),
        };
        let made = tempfile::Builder::new().prefix("railring-bench-").tempdir_in(&parent);
        made.with_context(|| format!("cannot use {}; give --dir", parent.display()))
    }
}

/// CPU that this process has used, all threads.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanoseconds)
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The processor, how many of its cores may be used, and the kernel.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = allowed_cpus().map_or(0, |cpus| cpus.len());
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    format!("{model}, {cores} cores, Linux {kernel}")
}
