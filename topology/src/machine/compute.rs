//! The part of a machine that computes: memory nodes, cores, and what this process may use of them.

use crate::cpuset::CpuSet;
use crate::id::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A memory node. It may have no CPUs (HBM, CXL, a GPU's memory) or no memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The kernel's number.
    pub id: NodeId,
    /// Its online CPUs.
    pub cpus: CpuSet,
    /// Its memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Distance to each node, as the firmware gives it: 10 is the node itself, 20 twice as far.
    pub distances: BTreeMap<NodeId, u32>,
    /// Its pools of huge pages, by page size.
    pub huge_pages: Vec<HugePages>,
    /// True when the machine lists no nodes and this one stands for all of it.
    pub implied: bool,
}

/// One node's pool of huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HugePages {
    /// Bytes of one page.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages of them that are free.
    pub free: u64,
}

/// What sort of core it is, where the machine has several.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CoreKind {
    /// All cores are alike, or nothing is known.
    #[default]
    Unknown,
    /// A performance core of a hybrid machine.
    Performance,
    /// An efficiency core of a hybrid machine.
    Efficiency,
}

/// A physical core with its online hardware threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Its online CPUs (SMT siblings).
    pub cpus: CpuSet,
    /// The package ("socket") it is in. Some machines number packages below zero or sparsely.
    pub package: Option<i64>,
    /// The core's number, unique within its package at best.
    pub core_id: Option<i64>,
    /// Its kind on a hybrid machine.
    pub kind: CoreKind,
}

/// Which CPUs there are, and which this process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUse {
    /// CPUs that are online.
    pub online: CpuSet,
    /// CPUs that are present and switched off.
    pub offline: CpuSet,
    /// CPUs kept free of the scheduler by `isolcpus=`; usable by those who name them.
    pub isolated: CpuSet,
    /// The calling thread's affinity mask when the machine was read.
    pub affinity: Option<CpuSet>,
    /// The CPUs of this process's cgroup.
    pub cpuset: Option<CpuSet>,
    /// The memory nodes this process may allocate from.
    pub memory_nodes: Option<Vec<NodeId>>,
}

impl CpuUse {
    /// Online CPUs that are in the affinity mask and in the cpuset, where these are known.
    #[must_use]
    pub fn allowed(&self) -> CpuSet {
        self.within(self.within(self.online.clone(), &self.affinity), &self.cpuset)
    }

    /// CPUs this process may bind a thread to when told so by number: the cpuset is a wall, the
    /// affinity mask is only what it started with.
    #[must_use]
    pub fn bindable(&self) -> CpuSet {
        self.within(self.online.clone(), &self.cpuset)
    }

    fn within(&self, set: CpuSet, wall: &Option<CpuSet>) -> CpuSet {
        wall.as_ref().map_or_else(|| set.clone(), |wall| set.intersection(wall))
    }
}

/// CPU time a cgroup may use per period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// Time that may be used per period, in microseconds.
    pub quota_us: u64,
    /// The period, in microseconds.
    pub period_us: u64,
    /// The file that says so.
    pub path: String,
}

impl CpuQuota {
    /// Threads that can run all the time without being stopped: whole CPUs, at least one.
    #[must_use]
    pub fn busy_threads_max(&self) -> usize {
        let whole = self.quota_us / self.period_us.max(1);
        usize::try_from(whole).unwrap_or(usize::MAX).max(1)
    }
}

/// A resource limit of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryLimit {
    /// At most so many bytes.
    Bytes(u64),
    /// No limit.
    Unlimited,
}
