//! Options of `railring topo`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use railring::topology::{RailSpec, parse_rails};

use super::place::PlaceArgs;

/// Show this machine: memory nodes, cores, NICs, disks, which of it are rails, which core polls
/// each, and why.
///
/// Anything that cannot be read is unknown, never an error. Warnings say what costs speed, and what
/// to do about it.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  railring topo
  railring topo --directory /disk0/rr --directory /disk1/rr
  railring topo --explain mlx5_0:1
  railring topo --svg machine.svg
  railring topo capture -o machine.tar.gz --mask
  railring topo --sysfs-root machine.tar.gz --json | jq .plan.rails

Exit status: 0 also for a machine without rails; 1 if a source cannot be read or what was asked for
is not there."
)]
pub(crate) struct TopoArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TopoCommand>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Print the machine and the plan as JSON (docs/topology-schema.md).
    #[arg(long, group = "form")]
    pub(crate) json: bool,
    /// Draw the machine and the plan as SVG, to standard output without FILE.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        default_missing_value = "-",
        group = "form",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) svg: Option<PathBuf>,
    /// Explain one rail, by name or number.
    #[arg(long, value_name = "RAIL", group = "form")]
    pub(crate) explain: Option<String>,
    /// A rail given by hand, as in mlx5_0:1 or file:/disk0 (docs/topology.md); with any, no others
    /// are looked for.
    #[arg(long = "rail", value_name = "SPEC")]
    pub(crate) given: Vec<String>,
    /// Only these devices are rails.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) only: Vec<String>,
    /// These devices are no rails.
    #[arg(long, value_name = "DEVICE")]
    pub(crate) except: Vec<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// Where the machine is read from.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Read the sysfs and procfs below this folder, or in this archive made by `topo capture`,
    /// instead of this machine's.
    #[arg(long, value_name = "DIR|FILE.tar.gz", value_hint = ValueHint::AnyPath)]
    pub(crate) sysfs_root: Option<PathBuf>,
    /// Read hwloc's XML; with --sysfs-root as a second source. Needs the feature `hwloc`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "hwloc")]
    pub(crate) hwloc_xml: Option<PathBuf>,
    /// Ask hwloc about this machine as a second source. Needs the feature `hwloc`.
    #[arg(long, conflicts_with = "sysfs_root")]
    pub(crate) hwloc: bool,
    /// Find the disk and the node of this directory, and make it a file rail; may be given several
    /// times.
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TopoCommand {
    Capture(CaptureArgs),
}

/// Write everything `topo` reads into an archive, to look at the machine elsewhere.
///
/// `railring topo --sysfs-root FILE.tar.gz` shows it again; attach the file to a report of a
/// problem. Names of devices, directories' mount points and IP addresses stay in it.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  railring topo capture -o machine.tar.gz --mask")]
pub(crate) struct CaptureArgs {
    /// The archive; `-` is standard output.
    #[arg(long, short, value_name = "FILE.tar.gz", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// Replace hardware addresses (MAC, GUID, and what is made of them) by numbers.
    #[arg(long)]
    pub(crate) mask: bool,
    /// Capture the tree below this folder instead of this machine.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) sysfs_root: Option<PathBuf>,
    /// Also what is needed to find the disk and the node of this directory; may be given several
    /// times.
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Vec<PathBuf>,
}

impl TopoArgs {
    /// The rails given by hand.
    pub(crate) fn specs(&self) -> Result<Vec<RailSpec>, crate::UsageError> {
        let texts: Vec<&str> = self.given.iter().map(String::as_str).collect();
        parse_rails(&texts).map_err(|error| crate::UsageError(error.to_string()))
    }
}
