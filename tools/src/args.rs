//! The command line as it is typed: commands, options, help and examples.

mod place;
mod topo;

use std::path::PathBuf;

pub(crate) use place::{PlaceArgs, RailCount};
pub(crate) use topo::{CaptureArgs, SourceArgs, TopoArgs, TopoCommand};

use clap::{ArgAction, Args, Parser, Subcommand, ValueHint};
use railring::ObjectKey;

use crate::output::Format;
use crate::units::{ByteRange, Size, Span};

const AFTER: &str = "\
Sizes take a unit: 4096, 64K or 64KiB (powers of 1,024), 1MB (powers of 1,000).

Exit status: 0 success, 1 the work failed, 2 the command line makes no sense. Ctrl-C once stops and
cleans up, twice ends at once.";

/// Store large objects as stripes over several disks, and read them back over all of them at once.
#[derive(Debug, Parser)]
#[command(name = "railring", version, after_help = AFTER, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Put(PutArgs),
    Get(GetArgs),
    Ls(LsArgs),
    Stat(StatArgs),
    Rm(RmArgs),
    Verify(VerifyArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    Topo(Box<TopoArgs>),
    Bench(BenchArgs),
    Model(ModelArgs),
    Completions(CompletionsArgs),
}

/// The directories of a store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The store's directories, one per disk, always in the same order.
    #[arg(
        long = "store",
        short = 's',
        value_name = "DIR[,DIR...]",
        value_delimiter = ',',
        required = true,
        value_hint = ValueHint::DirPath
    )]
    pub(crate) directories: Vec<PathBuf>,
}

/// The directories of a store that is only read.
#[derive(Debug, Args)]
pub(crate) struct ReadStoreArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Read what is left when directories are lost; stripes with a copy elsewhere are found there.
    #[arg(long)]
    pub(crate) degraded: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FormatArgs {
    /// Print JSON, one value per line.
    #[arg(long, action = ArgAction::SetTrue)]
    json: bool,
}

impl FormatArgs {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

/// Put files into a store, each as an object striped over the store's directories.
///
/// The store is made if all directories are new or empty. A put is all or nothing: whatever
/// happens, the object is what it was before, or complete. Putting a key again makes a new
/// generation of it; readers of the old one are not disturbed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring put model.safetensors --store /disk0/rr,/disk1/rr
  railring put model.safetensors --store /disk0/rr,/disk1/rr --key models/llama --stripe 8M
  railring put a.bin b.bin --store /disk0/rr,/disk1/rr --key models/ --copies 2
  tar c dir | railring put - --store /disk0/rr,/disk1/rr --key backups/dir.tar")]
pub(crate) struct PutArgs {
    /// The files; `-` is standard input.
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The object's name, or with a `/` at its end the beginning of the objects' names; without it
    /// FILE becomes `files/FILE`.
    #[arg(long, short, value_name = "NS/KEY")]
    pub(crate) key: Option<String>,
    /// Bytes per stripe, 1 to 4 GiB.
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = stripe)]
    pub(crate) stripe: Size,
    /// Bytes per block, the unit that is checked when a stripe is read in part: a power of two
    /// from 4 KiB to 1 MiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = block)]
    pub(crate) block: u32,
    /// In how many of the directories each stripe lies.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub(crate) copies: u16,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Read an object, or a range of it, over one rail per directory, every byte verified.
///
/// Nothing is written before it was verified. A file appears under its name when it is complete.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring get models/llama --store /disk0/rr,/disk1/rr -o llama.safetensors
  railring get models/llama --store /disk0/rr,/disk1/rr --range 1M..1088K -o - | xxd
  railring get models/llama --store /disk0/rr,/disk1/rr -o - | sha256sum
  railring get models/llama --store /disk0/rr,/disk1/rr -o /dev/null --trace")]
pub(crate) struct GetArgs {
    /// The object.
    #[arg(value_name = "NS/KEY")]
    pub(crate) key: ObjectKey,
    #[command(flatten)]
    pub(crate) store: ReadStoreArgs,
    /// The bytes to read: A..B without B itself, A.. to the end, ..B from the start.
    #[arg(long, value_name = "A..B")]
    pub(crate) range: Option<ByteRange>,
    /// Where to write; `-` is standard output, which is also the default unless it is a terminal.
    #[arg(long, short, value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Also show where the time went: stages, rails, what the reads waited for, and the slowest
    /// read step by step; on standard error if the object goes to standard output.
    #[arg(long)]
    pub(crate) trace: bool,
    /// Also show what each rail did: bytes, rate, latencies, retries, errors by kind, connections;
    /// on standard error if the object goes to standard output.
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print a summary as JSON, on standard error if the object goes to standard output.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// List the objects of a store.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring ls --store /disk0/rr,/disk1/rr
  railring ls models/ --store /disk0/rr,/disk1/rr --json | jq .size_bytes

Up to 10,000 objects are sorted by name, more come in the order they are found.")]
pub(crate) struct LsArgs {
    /// What names begin with.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) store: ReadStoreArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Show one object: how it is cut, where its stripes lie, and whether its files are there.
///
/// The bytes are not read; `railring verify` does that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring stat models/llama --store /disk0/rr,/disk1/rr
  railring stat models/llama --store /disk0/rr,/disk1/rr --json | jq .placement.stripes[0]")]
pub(crate) struct StatArgs {
    /// The object.
    #[arg(value_name = "NS/KEY")]
    pub(crate) key: ObjectKey,
    #[command(flatten)]
    pub(crate) store: ReadStoreArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Remove objects with all their generations.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  railring rm models/llama --store /disk0/rr,/disk1/rr")]
pub(crate) struct RmArgs {
    /// The objects.
    #[arg(value_name = "NS/KEY", required = true)]
    pub(crate) keys: Vec<ObjectKey>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Read everything, every copy of every stripe, and name what does not match its checksum.
///
/// Exit status 1 if anything is damaged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring verify --store /disk0/rr,/disk1/rr
  railring verify models/ --store /disk0/rr,/disk1/rr --json")]
pub(crate) struct VerifyArgs {
    /// What the names of the objects begin with.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) store: ReadStoreArgs,
    /// Also show what each rail did: bytes, rate, latencies, retries, errors by kind, connections.
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Show what this is for: store a large file over two directories and read it back over two rails.
///
/// Everything is made in a temporary directory and removed again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring demo
  railring demo video.mp4 --dir /disk0")]
pub(crate) struct DemoArgs {
    /// The file; without it, a large one of the Rust toolchain.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Where to make the two directories; by default $TMPDIR, or beside this program.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Look at this machine: what it lets Railring do, what that means, and how to mend it.
///
/// Exit status 1 if something does not work at all.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring doctor
  railring doctor --store /disk0/rr,/disk1/rr
  railring doctor --rdma-selftest")]
pub(crate) struct DoctorArgs {
    /// Also look at the rails these directories would be.
    #[arg(
        long = "store",
        short = 's',
        value_name = "DIR[,DIR...]",
        value_delimiter = ',',
        value_hint = ValueHint::DirPath
    )]
    pub(crate) directories: Vec<PathBuf>,
    /// Also let each active RDMA port read from itself and compare; ten seconds at most.
    #[arg(long)]
    pub(crate) rdma_selftest: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Show what 1 to N rails deliver of one object: the real engine on simulated rails, beside theory.
///
/// Bytes are really moved and verified, only time is virtual: the answer does not depend on this
/// machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring model
  railring model --rails 4 --rate 12500MB --latency 20us --object 256M --svg model.svg
  railring model --rail 125MB,125MB,125MB,31MB --json")]
pub(crate) struct ModelArgs {
    /// How many rails there are at most.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u8).range(1..=64)
    )]
    pub(crate) rails: u8,
    /// What each rail carries in a second.
    #[arg(long, value_name = "SIZE", default_value = "125MB")]
    pub(crate) rate: Size,
    /// Rails that are not equal: what each carries in a second, instead of --rails and --rate.
    #[arg(
        long,
        value_name = "SIZE[,SIZE...]",
        value_delimiter = ',',
        num_args = 1..=64,
        conflicts_with_all = ["rails", "rate"]
    )]
    pub(crate) rail: Vec<Size>,
    /// Size of the object.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) object: Size,
    /// Bytes per stripe.
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = stripe)]
    pub(crate) stripe: Size,
    /// Longest piece, from 64 KiB on; the engine cuts finer where that lets rails end together.
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = piece)]
    pub(crate) piece: Size,
    /// How long a request and its answer travel.
    #[arg(long, value_name = "TIME", default_value = "100us")]
    pub(crate) latency: Span,
    /// By how much that is off, one way or the other.
    #[arg(long, value_name = "TIME", default_value = "20us")]
    pub(crate) jitter: Span,
    /// Requests a rail has in flight at most.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub(crate) window: u32,
    /// What one core verifies in a second; without it, verification takes no time.
    #[arg(long, value_name = "SIZE")]
    pub(crate) verify: Option<Size>,
    /// What the latencies and the bytes are drawn from.
    #[arg(long, value_name = "SEED", default_value_t = 11)]
    pub(crate) seed: u64,
    /// Also draw a chart.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// Measure this machine: Railring beside its peers, in one run on the same cores, in turn.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring bench ring
  railring bench file --dir /disk0 --json > file.jsonl
  railring bench all --pairs 9 --seconds 2

A row is a ratio of two things measured A B A B; absolute figures mean little on a shared machine.
The exit status says whether the benchmark ran, not whether targets are met.")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// The engine itself over null rails, beside raw io_uring and a plain queue.
    Ring(BenchOptions),
    /// One file rail beside fio, on the same file and core.
    File(BenchOptions),
    /// What an idle engine costs, and how fast it wakes.
    Idle(BenchOptions),
    /// The engine on simulated rails in virtual time, beside what the rails can carry. Each pair is
    /// a seed; --seconds and --dir are of no matter.
    Sim(BenchOptions),
    /// One RDMA rail beside perftest, on one device with itself, from a peer in another process.
    Verbs(VerbsBenchOptions),
    /// Every group that can run here; the others are named with the reason.
    All(BenchOptions),
    /// Exactly so many idle turns or reads, for counting instructions.
    #[command(hide = true)]
    Gate(GateArgs),
}

/// A group of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Ring,
    File,
    Idle,
    Sim,
    Verbs,
    All,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Group::Ring => "ring",
            Group::File => "file",
            Group::Idle => "idle",
            Group::Sim => "sim",
            Group::Verbs => "verbs",
            Group::All => "all",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example, on a machine without an RDMA card:
  cargo build --release --features verbs -p railring-tools -p railring-tests --bins
  cargo xtask guest -- target/release/railring bench verbs

The peer is any program that, run as PROGRAM --device DEVICE --serve DIR, serves the files below DIR
over the hello of docs/verbs-hello.md, prints 'ready HOST:PORT', and ends when its input does.")]
pub(crate) struct VerbsBenchOptions {
    /// The RDMA device; by default the first.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// The peer's program; by default memory_peer beside this one.
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    pub(crate) peer_command: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) bench: BenchOptions,
}

#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    /// How many pairs of measurements.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = pairs)]
    pub(crate) pairs: usize,
    /// How long each measurement runs; below 0.5 it is a trial that proves nothing.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Where files to read are made (1 GiB); by default beside this program.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct GateArgs {
    /// Turns with nothing to do.
    #[arg(long, value_name = "N")]
    pub(crate) idle_turns: Option<u64>,
    /// Reads of one stripe.
    #[arg(long, value_name = "N")]
    pub(crate) reads: Option<u64>,
}

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  railring completions bash > ~/.local/share/bash-completion/completions/railring
  railring completions fish > ~/.config/fish/completions/railring.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

fn stripe(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|e: crate::units::SizeError| e.to_string())?;
    let most = railring::catalog::STRIPE_BYTES_MAX;
    if (1..=most).contains(&size.0) {
        Ok(size)
    } else {
        Err(format!("a stripe has 1 to {most} bytes (4 GiB), not {}", size.0))
    }
}

fn piece(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|e: crate::units::SizeError| e.to_string())?;
    if size.0 >= 64 << 10 {
        Ok(size)
    } else {
        Err(format!("a piece has at least 65536 bytes (64 KiB), not {}", size.0))
    }
}

fn block(text: &str) -> Result<u32, String> {
    let size: Size = text.parse().map_err(|e: crate::units::SizeError| e.to_string())?;
    let legal = railring::catalog::BLOCK_BYTES_MIN..=railring::catalog::BLOCK_BYTES_MAX;
    match u32::try_from(size.0) {
        Ok(bytes) if legal.contains(&bytes) && bytes.is_power_of_two() => Ok(bytes),
        _ => Err(format!("a block is a power of two from 4 KiB to 1 MiB, not {} bytes", size.0)),
    }
}

fn pairs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(pairs) if (1..=1000).contains(&pairs) => Ok(pairs),
        _ => Err("a number of pairs from 1 to 1000".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.001 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
