//! Reads what this process may use: affinity, cgroup cpuset and CPU quota, locked memory.

use super::Reader;
use super::cpus::{Online, node_list};
use super::mounts::{self, Mount};
use crate::cpuset::CpuSet;
use crate::id::NodeId;
use crate::machine::{CpuQuota, CpuUse, MemoryLimit};
use crate::pin;

/// Bit of `CAP_IPC_LOCK` in a capability mask (linux/capability.h).
const CAP_IPC_LOCK: u32 = 14;
/// Levels of a cgroup path that are walked; systemd and Kubernetes use fewer than ten.
const CGROUP_LEVELS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Limits {
    affinity: Option<CpuSet>,
    isolated: CpuSet,
    cpuset: Option<CpuSet>,
    memory_nodes: Option<Vec<NodeId>>,
    pub(super) quota: Option<CpuQuota>,
    pub(super) memlock: Option<MemoryLimit>,
    pub(super) ipc_lock: Option<bool>,
}

impl Limits {
    pub(super) fn cpus(&self, online: Online) -> CpuUse {
        CpuUse {
            online: online.online,
            offline: online.offline,
            isolated: self.isolated.clone(),
            affinity: self.affinity.clone(),
            cpuset: self.cpuset.clone(),
            memory_nodes: self.memory_nodes.clone(),
        }
    }
}

pub(super) fn read(reader: &Reader<'_>) -> Limits {
    let status = ["proc/thread-self/status", "proc/self/status"];
    let status = status.iter().find_map(|path| reader.tree.optional(path)).unwrap_or_default();
    let field = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    };
    let affinity = field("Cpus_allowed_list").and_then(|list| list.parse().ok());
    // The system call is nearer to the truth, and only speaks of the live machine.
    let live = reader.tree.is_live().then(|| pin::allowed_cpus().ok()).flatten();
    let cgroup = Cgroup::read(reader);
    let memory_nodes = field("Mems_allowed_list").and_then(|list| node_list(&list));
    let memory_nodes = memory_nodes.or_else(|| cgroup.memory_nodes(reader));
    Limits {
        affinity: live.or(affinity),
        isolated: reader.tree.value("sys/devices/system/cpu/isolated").unwrap_or_default(),
        cpuset: cgroup.cpuset(reader),
        memory_nodes: memory_nodes.filter(|nodes| !nodes.is_empty()),
        quota: cgroup.quota(reader),
        memlock: read_memlock(reader),
        ipc_lock: field("CapEff")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
            .map(|mask| mask >> CAP_IPC_LOCK & 1 == 1),
    }
}

fn read_memlock(reader: &Reader<'_>) -> Option<MemoryLimit> {
    let limits = reader.tree.optional("proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(MemoryLimit::Unlimited),
        soft => soft.parse().ok().map(MemoryLimit::Bytes),
    }
}

/// The folders of this process's cgroup, innermost first, per controller.
#[derive(Debug, Default)]
struct Cgroup {
    cpuset: Vec<String>,
    cpu: Vec<String>,
}

impl Cgroup {
    fn read(reader: &Reader<'_>) -> Self {
        let mounts = mounts::read(reader);
        let membership = reader.tree.optional("proc/self/cgroup").unwrap_or_default();
        let v1 = |controller: &str| {
            let mount = mounts.iter().find(|mount| mount_has(mount, controller))?;
            let path = path_of(&membership, controller);
            let path = path.or_else(|| reader.tree.optional("proc/self/cpuset"))?;
            Some(folders(reader, mount, &path))
        };
        let v2 = || {
            let mount = mounts.iter().find(|mount| mount.filesystem == "cgroup2")?;
            let path = path_of(&membership, "");
            let path = path.or_else(|| reader.tree.optional("proc/self/cpuset"))?;
            Some(folders(reader, mount, &path))
        };
        let of = |controller: &str| v1(controller).or_else(v2).unwrap_or_default();
        Self { cpuset: of("cpuset"), cpu: of("cpu") }
    }

    fn first<T>(folders: &[String], read: impl Fn(&str) -> Option<T>) -> Option<T> {
        folders.iter().find_map(|folder| read(folder))
    }

    fn cpuset(&self, reader: &Reader<'_>) -> Option<CpuSet> {
        let files = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus"];
        Self::first(&self.cpuset, |folder| {
            let set = |file| reader.tree.value::<CpuSet>(&format!("{folder}/{file}"));
            files.into_iter().filter_map(set).find(|set| !set.is_empty())
        })
    }

    fn memory_nodes(&self, reader: &Reader<'_>) -> Option<Vec<NodeId>> {
        let files = ["cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems", "mems"];
        Self::first(&self.cpuset, |folder| {
            let nodes = |file| node_list(&reader.tree.optional(&format!("{folder}/{file}"))?);
            files.into_iter().filter_map(nodes).find(|nodes| !nodes.is_empty())
        })
    }

    /// The tightest quota of the process's cgroup and those above it.
    fn quota(&self, reader: &Reader<'_>) -> Option<CpuQuota> {
        let quotas = self.cpu.iter().filter_map(|folder| quota_of(reader, folder));
        quotas.min_by_key(|quota| {
            u128::from(quota.quota_us) * 1_000_000 / u128::from(quota.period_us)
        })
    }
}

fn quota_of(reader: &Reader<'_>, folder: &str) -> Option<CpuQuota> {
    let path = format!("{folder}/cpu.max");
    let (quota, period, path) = match reader.tree.optional(&path) {
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            (quota.to_owned(), period.to_owned(), path)
        }
        None => {
            let path = format!("{folder}/cpu.cfs_quota_us");
            let quota = reader.tree.optional(&path)?;
            (quota, reader.tree.optional(&format!("{folder}/cpu.cfs_period_us"))?, path)
        }
    };
    // "max" and -1 mean no limit, and are no numbers here.
    let (quota_us, period_us): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (period_us > 0).then(|| CpuQuota { quota_us, period_us, path: format!("/{path}") })
}

fn mount_has(mount: &Mount, controller: &str) -> bool {
    let is_v1 = mount.filesystem == "cgroup";
    let named = mount.options.split(',').any(|option| option == controller);
    (is_v1 && named) || (mount.filesystem == "cpuset" && controller == "cpuset")
}

/// The path in a `4:cpu,cpuacct:/path` line for a controller, or in `0::/path` for none.
fn path_of(membership: &str, controller: &str) -> Option<String> {
    membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers.split(',').any(|c| c == controller).then(|| path.to_owned())
    })
}

/// The cgroup's folder and those above it up to the mount point, innermost first. In a container
/// the mount shows only a part of the hierarchy, so the path may start above it.
fn folders(reader: &Reader<'_>, mount: &Mount, path: &str) -> Vec<String> {
    let point = mount.point.trim_matches('/');
    let root = mount.root.trim_end_matches('/');
    let below = path.strip_prefix(root).unwrap_or(path).trim_matches('/');
    let mut folder = format!("{point}/{below}").trim_end_matches('/').to_owned();
    if below.split('/').any(|part| part == "..") || !reader.tree.exists(&folder) {
        folder = point.to_owned();
    }
    let mut folders = Vec::new();
    while folder.len() >= point.len() && folders.len() < CGROUP_LEVELS_MAX {
        folders.push(folder.clone());
        folder = folder.rsplit_once('/').map_or("", |(up, _)| up).to_owned();
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_lines_of_both_versions_are_read() {
        let both = "9:cpuset:/a\n7:cpu,cpuacct:/b:c\n0::/user.slice/x\n";
        assert_eq!(path_of(both, "cpuset").as_deref(), Some("/a"));
        assert_eq!(path_of(both, "cpu").as_deref(), Some("/b:c"));
        assert_eq!(path_of(both, "").as_deref(), Some("/user.slice/x"));
        assert_eq!(path_of("", "cpu"), None);
    }
}
