//! What the caller may decide about a plan.

use crate::cpuset::CpuSet;
use crate::id::{CpuId, NodeId};
use crate::railspec::RailSpec;
use std::str::FromStr;

/// Where the rails come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rails {
    /// The usable RDMA ports; where there are none, the network devices; and the directories that
    /// the machine was asked about.
    #[default]
    Auto,
    /// The usable RDMA ports only.
    Rdma,
    /// The usable network devices only.
    Tcp,
    /// The directories that the machine was asked about only.
    File,
    /// These and no others.
    Given(Vec<RailSpec>),
}

/// How pollers are put on cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// One poller per rail on a core of its node.
    #[default]
    Near,
    /// One poller per node that has rails, on a core of that node.
    Compact,
    /// One poller per rail, bound to nothing.
    Unpinned,
}

/// Text that names no placement policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no placement policy; choose near, compact or unpinned")]
pub struct PlacementError {
    /// What was given.
    pub text: String,
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "near" => Ok(Self::Near),
            "compact" => Ok(Self::Compact),
            "unpinned" => Ok(Self::Unpinned),
            _ => Err(PlacementError { text: text.to_owned() }),
        }
    }
}

/// Whether several devices on one physical port may all be rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamePort {
    /// One rail per physical port.
    #[default]
    One,
    /// All of them.
    All,
}

/// What happens when the caller's wishes cannot be met in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// The plan does the next best thing and warns.
    #[default]
    Survive,
    /// The plan is refused.
    Strict,
}

/// `RAIL=CPU`: a rail's poller bound by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The rail's name or number.
    pub rail: String,
    /// The CPU of its poller.
    pub cpu: CpuId,
}

/// Text that is not of the form `RAIL=CPU`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not RAIL=CPU; write a rail's name or number and a cpu, as in mlx5_0:1=12")]
pub struct PinTextError {
    /// What was given.
    pub text: String,
}

impl FromStr for Pin {
    type Err = PinTextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (rail, cpu) = text.rsplit_once('=')?;
            let digits = !cpu.is_empty() && cpu.bytes().all(|b| b.is_ascii_digit());
            let cpu = digits.then(|| cpu.parse().ok().map(CpuId))??;
            (!rail.is_empty()).then(|| Self { rail: rail.to_owned(), cpu })
        };
        parse().ok_or_else(|| PinTextError { text: text.to_owned() })
    }
}

/// All that the caller decides. The default decides nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Where the rails come from.
    pub rails: Rails,
    /// At most so many rails (`--rails N`); those that add most bandwidth are chosen.
    pub rails_max: Option<usize>,
    /// Only these devices, when any are named.
    pub only: Vec<String>,
    /// Never these devices.
    pub except: Vec<String>,
    /// Whether several devices on one port may be rails.
    pub same_port: SamePort,
    /// Pollers run on these CPUs only (`--cpus`), also isolated ones.
    pub cpus: Option<CpuSet>,
    /// Pollers run on this node's CPUs only (`--node`).
    pub node: Option<NodeId>,
    /// Buffers lie on this node (`--memory-node`).
    pub memory_node: Option<NodeId>,
    /// Pollers bound by hand (`--pin`).
    pub pins: Vec<Pin>,
    /// At most so many pollers; at least one.
    pub pollers_max: Option<usize>,
    /// How pollers are put on cores (`--policy`).
    pub placement: Placement,
    /// What happens when a wish cannot be met in full.
    pub strictness: Strictness,
}
