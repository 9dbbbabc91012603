//! `cargo xtask guest`: a command in a guest with software RDMA, or in two that are joined.

mod initrd;
mod kernel;
mod machine;

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::packages::{self, Install};
use crate::proc::stop_signal;
use kernel::Kernel;
use machine::{Accelerator, Machine, Plan, Shape};

const JOB: &str = include_str!("guest/job.sh");
/// The command took longer than its limit.
const STATUS_TIMED_OUT: u8 = 124;
/// The guest never ran the command.
const STATUS_NOT_RUN: u8 = 125;

/// Run a command in a guest with software RDMA; the guest sees this machine's files.
///
/// The guest has two NUMA nodes. NIC n hangs below a PCIe root of node n mod 2, is called nicN,
/// has the address 10.7.n.G in guest G, and carries the RDMA device rxeN. Files written in the
/// guest are gone with it, except below $RAILRING_GUEST_OUT, which is the folder of --out. The
/// exit status is the command's; 124 after a time-out; 125 if the guest never ran it.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Boot two guests joined by a link per NIC; both run COMMAND, with $RAILRING_GUEST 1 and 2
    #[arg(long)]
    pair: bool,
    /// What the second guest of a pair runs instead; it is ended with the first one's command
    #[arg(long, value_name = "COMMAND", requires = "pair")]
    peer: Option<String>,
    /// Seconds until the guests are ended, boot included
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// What runs the guest's processors
    #[arg(long, value_enum, default_value = "tcg")]
    accel: Accelerator,
    /// Rails per guest
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    nics: u32,
    /// Processors per guest
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(2..=64))]
    cpus: u32,
    /// Memory per guest, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(512..))]
    memory_mib: u32,
    /// The folder that the guests write results to, made if missing
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Where the downloaded kernel is kept [default: railring-guest in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Install no package; say what is missing
    #[arg(long)]
    no_install: bool,
    /// One word is a line for the guest's shell; several are a program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Whether this machine is of the kind that guests are.
pub(crate) fn is_possible_here() -> bool {
    std::env::consts::ARCH == "x86_64"
}

/// Downloads the kernel for guests unless it is in the cache already.
pub(crate) fn fetch_kernel() -> Result<()> {
    kernel_in(&default_cache()?).map(drop)
}

fn kernel_in(cache: &Path) -> Result<Kernel> {
    std::fs::create_dir_all(cache).with_context(|| format!("no {}", cache.display()))?;
    Kernel::provide(&cache.canonicalize().context("the cache has no path")?)
}

/// Boots, runs, and returns the exit status that the module's arguments describe.
pub(crate) fn run(arguments: &Arguments) -> Result<u8> {
    ensure!(is_possible_here(), "guests are x86-64 machines, this one is not");
    let install = if arguments.no_install { Install::Never } else { Install::WhenMissing };
    let missing = packages::provide(packages::for_guest()?, install)?;
    let missing: Vec<_> = missing.iter().map(|wanted| &*wanted.name).collect();
    ensure!(missing.is_empty(), "not installed: {}", missing.join(" "));
    let cache = arguments.cache.clone().map_or_else(default_cache, Ok)?;
    let kernel = kernel_in(&cache)?;

    let folder = RunFolder::new()?;
    let initrd = folder.0.join("initrd");
    initrd::write(&kernel, &initrd)?;
    let out = arguments.out.clone().unwrap_or_else(|| folder.0.join("out"));
    std::fs::create_dir_all(&out).with_context(|| format!("no {}", out.display()))?;
    let out = out.canonicalize().context("the folder for results has no path")?;

    let start = Instant::now();
    let mut machines = Vec::new();
    for (number, links) in (1..).zip(links(arguments)?) {
        let job = folder.0.join(format!("job{number}"));
        write_job(&job, arguments, number)?;
        machines.push(Machine::start(Plan {
            number,
            shape: Shape {
                cpus: arguments.cpus,
                memory_mib: arguments.memory_mib,
                nics: arguments.nics,
                accelerator: arguments.accel,
            },
            kernel: &kernel.image(),
            initrd: &initrd,
            job,
            out: &out,
            links,
            prefix: if arguments.pair { format!("[{number}] ") } else { String::new() },
        })?);
    }
    let in_time = wait(&mut machines, arguments, start)?;
    verdict(&machines, arguments, in_time)
}

/// Waits until the guests are through, the time is up or a signal came, then ends what is left.
/// Returns whether they came to an end by themselves.
fn wait(machines: &mut [Machine], arguments: &Arguments, start: Instant) -> Result<bool> {
    let limit = Duration::from_secs(arguments.timeout);
    let mut announced = vec![false; machines.len()];
    let in_time = loop {
        for (machine, announced) in machines.iter().zip(&mut announced) {
            if let Some(seconds) = machine.started().filter(|_| !*announced) {
                let real = start.elapsed().as_secs_f64();
                eprintln!("guest: command started after {seconds} s ({real:.1} s of real time)");
                *announced = true;
            }
        }
        let mut ended = Vec::new();
        for machine in machines.iter() {
            ended.push(machine.has_ended()?);
        }
        // A peer with a command of its own is there for the first guest's sake.
        let done = if arguments.peer.is_some() { ended[0] } else { ended.iter().all(|&e| e) };
        if done || start.elapsed() > limit || stop_signal().is_some() {
            break done;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    for machine in machines {
        machine.end()?;
    }
    if let Some(signal) = stop_signal() {
        bail!("stopped by signal {signal}");
    }
    Ok(in_time)
}

/// The status of the whole: the first that is not 0.
fn verdict(machines: &[Machine], arguments: &Arguments, in_time: bool) -> Result<u8> {
    let mut all = 0;
    for (number, machine) in (1..).zip(machines) {
        let ended_by_us = number == 2 && arguments.peer.is_some();
        let status = match machine.status() {
            Some(status) => status,
            None if ended_by_us && machine.started().is_some() => 0,
            None if machine.started().is_some() || !in_time => {
                eprintln!("guest {number}: ended after {} s", arguments.timeout);
                STATUS_TIMED_OUT
            }
            None => STATUS_NOT_RUN,
        };
        if [STATUS_TIMED_OUT, STATUS_NOT_RUN].contains(&status) {
            eprintln!("guest {number}: its console's end:\n{}", machine.console_tail());
        }
        if all == 0 {
            all = status;
        }
    }
    Ok(all)
}

/// Both ends of one stream socket pair per NIC, or nothing for a single guest. They have no name
/// or port, so nothing can be left behind and nobody else can connect.
fn links(arguments: &Arguments) -> Result<Vec<Vec<OwnedFd>>> {
    if !arguments.pair {
        return Ok(vec![Vec::new()]);
    }
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..arguments.nics {
        let (one, other) = UnixStream::pair().context("cannot make a link")?;
        first.push(OwnedFd::from(one));
        second.push(OwnedFd::from(other));
    }
    Ok(vec![first, second])
}

/// Writes what a guest is to do into its job folder.
fn write_job(job: &Path, arguments: &Arguments, number: u32) -> Result<()> {
    std::fs::create_dir(job).context("cannot make a job folder")?;
    let here = std::env::current_dir().context("there is no current folder")?;
    let mut environment = String::new();
    let mut export = |name: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(environment, "export {name}={}", quoted(value));
    };
    for (name, value) in std::env::vars() {
        let wanted = ["PATH", "HOME", "LANG", "RUST_LOG", "RUST_BACKTRACE"].contains(&&*name);
        if wanted || name.starts_with("RAILRING_") {
            export(&name, &value);
        }
    }
    export("PATH", &kernel::path_with_sbin());
    export("RAILRING_GUEST", &number.to_string());
    export("RAILRING_GUEST_NICS", &arguments.nics.to_string());
    export("RAILRING_GUEST_OUT", "/run/railring/out");
    export("RAILRING_GUEST_FOLDER", &here.to_string_lossy());
    if arguments.pair {
        export("RAILRING_GUEST_PEER", &(3 - number).to_string());
    }
    let command = match (&arguments.peer, number) {
        (Some(peer), 2) => peer.clone(),
        _ => shell_line(&arguments.command),
    };
    let write = |name: &str, text: &str| {
        std::fs::write(job.join(name), text).with_context(|| format!("cannot write {name}"))
    };
    write("environment", &environment)?;
    write("command", &command)?;
    write("job.sh", JOB)
}

/// One word as it is, several quoted each.
fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

/// `text` as one word for a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn default_cache() -> Result<PathBuf> {
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let folder = folder.filter(|folder| folder.is_absolute()).or_else(home);
    Ok(folder.context("there is no HOME: say --cache")?.join("railring-guest"))
}

/// The folder of one run, gone with it.
#[derive(Debug)]
struct RunFolder(PathBuf);

impl RunFolder {
    fn new() -> Result<RunFolder> {
        let name = format!("railring-guest-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // For us only: the guests' jobs lie in it.
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(RunFolder(folder))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("guest: {} stays: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let words = |list: &[&str]| list.iter().map(|&w| w.to_owned()).collect::<Vec<_>>();
        assert_eq!(shell_line(&words(&["a | b"])), "a | b");
        let line = shell_line(&words(&["printf", "%s,", "it's", "$HOME", "a b"]));
        let mut shell = std::process::Command::new("sh");
        let said = crate::proc::output_of(shell.args(["-c", &line])).expect("sh runs");
        assert_eq!(said, "it's,$HOME,a b,");
    }
}
