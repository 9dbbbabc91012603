//! The checks of the doctor: kernel, io_uring, memory, cores. Each reads the system, judges apart.

use std::fs;
use std::path::{Path, PathBuf};

use io_uring::IoUring;
use railring::dma::{MemlockBudget, MemlockLimit};
use railring::topology::allowed_cpus;
use rustix::process::{Resource, getrlimit};

use super::{Finding, State};
use crate::units::{Bytes, plural};

/// Every check, in the order of importance.
pub(super) fn all() -> Vec<Finding> {
    vec![
        kernel(rustix::system::uname().release().to_string_lossy().as_ref()),
        uring(),
        memlock(),
        huge_pages(),
        transparent(read("/sys/kernel/mm/transparent_hugepage/enabled").as_deref()),
        cores(),
        quota(&quotas()),
        descriptors(getrlimit(Resource::Nofile).current),
    ]
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let newer = "use a kernel of version 6.1 or newer";
    if version >= (6, 1) {
        let meaning = "has io_uring with registered buffers and files, and tells how direct I/O \
                       must be aligned";
        return Finding::new("kernel", State::Good, format!("Linux {release}"), meaning);
    }
    let meaning = if version >= (5, 6) {
        "has io_uring, but does not tell how direct I/O must be aligned: 4 KiB is assumed"
    } else {
        "is too old for io_uring: reads are made by threads with pread, at more CPU per byte"
    };
    Finding::new("kernel", State::Slower, format!("Linux {release}"), meaning).mend(newer)
}

/// Makes a ring, because a sysctl, a seccomp filter or a security module may refuse it.
fn uring() -> Finding {
    let sysctl = read("/proc/sys/kernel/io_uring_disabled");
    let group = read("/proc/sys/kernel/io_uring_group").unwrap_or_default();
    let made = IoUring::new(8).map(drop).map_err(|error| error.raw_os_error());
    judge_uring(made, sysctl.as_deref(), &group)
}

fn judge_uring(made: Result<(), Option<i32>>, sysctl: Option<&str>, group: &str) -> Finding {
    let setting = match sysctl {
        Some(value) => format!("kernel.io_uring_disabled = {value}"),
        None => "no kernel.io_uring_disabled on this kernel".to_owned(),
    };
    let Err(errno) = made else {
        let meaning = "file rails hand all reads of a turn to the kernel with one system call";
        return Finding::new(
            "io_uring",
            State::Good,
            format!("a ring was made; {setting}"),
            meaning,
        );
    };
    let errno =
        errno.map_or_else(|| "an unknown error".to_owned(), |errno| format!("errno {errno}"));
    let meaning = "reads are made by threads with pread instead: everything works and is \
                   verified, at more CPU per byte and more latency";
    let mend = match sysctl {
        Some("2") => "sysctl kernel.io_uring_disabled=0".to_owned(),
        Some("1") => format!(
            "sysctl kernel.io_uring_disabled=0, or join the group kernel.io_uring_group ({group})"
        ),
        _ => "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile \
              (containers: --security-opt seccomp=...)"
            .to_owned(),
    };
    let found = format!("no ring could be made ({errno}); {setting}");
    Finding::new("io_uring", State::Slower, found, meaning).mend(mend)
}

fn memlock() -> Finding {
    match MemlockLimit::read() {
        Ok(limit) => judge_memlock(limit),
        Err(error) => {
            let meaning = "registered memory is used as far as the kernel lets it";
            Finding::new("memlock", State::Slower, error.to_string(), meaning)
                .mend("allow capget in the seccomp profile")
        }
    }
}

fn judge_memlock(limit: MemlockLimit) -> Finding {
    let enough = 256 << 20;
    let shown = match limit.limit_bytes {
        Some(bytes) => format!("RLIMIT_MEMLOCK is {}", Bytes(bytes)),
        None => "RLIMIT_MEMLOCK is unlimited".to_owned(),
    };
    let budget = match limit.budget() {
        MemlockBudget::Unlimited if limit.limit_bytes.is_some() => {
            let found = format!("{shown}, which does not count: the process has CAP_IPC_LOCK");
            let meaning = "any amount of memory can be registered with the rails; without the \
                           capability it would be 80 % of the limit";
            return Finding::new("memlock", State::Good, found, meaning);
        }
        MemlockBudget::Unlimited => {
            let meaning = "any amount of memory can be registered with the rails";
            return Finding::new("memlock", State::Good, shown, meaning);
        }
        MemlockBudget::Bytes(budget) => budget,
    };
    let meaning = format!(
        "Railring registers at most 80 % of it, {}, with its rails, and leaves the rest to what \
         the process locks besides; pools beyond that are read without registered buffers, at \
         more CPU per byte",
        Bytes(budget)
    );
    if budget >= enough {
        return Finding::new("memlock", State::Good, shown, meaning);
    }
    Finding::new("memlock", State::Slower, shown, meaning).mend(
        "ulimit -l unlimited; or LimitMEMLOCK=infinity in the systemd unit; or a 'memlock' line \
         in /etc/security/limits.conf; containers: --ulimit memlock=-1",
    )
}

fn huge_pages() -> Finding {
    let mut sizes = Vec::new();
    for entry in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kib = name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(kib) = kib.and_then(|kib| kib.parse::<u64>().ok()) else { continue };
        let number = |file: &str| read(entry.path().join(file)).and_then(|n| n.parse().ok());
        sizes.push((kib << 10, number("free_hugepages"), number("nr_hugepages")));
    }
    sizes.sort_unstable();
    judge_huge_pages(&sizes)
}

/// `sizes`: bytes of a page, how many are free, how many there are.
fn judge_huge_pages(sizes: &[(u64, Option<u64>, Option<u64>)]) -> Finding {
    let of = |&(bytes, free, all): &(u64, Option<u64>, Option<u64>)| {
        let (free, all) = (free.unwrap_or(0), all.unwrap_or(0));
        format!("{free} of {all} free at {}", Bytes(bytes))
    };
    let found = match sizes {
        [] => "the kernel has none".to_owned(),
        sizes => sizes.iter().map(of).collect::<Vec<_>>().join(", "),
    };
    if sizes.iter().any(|(_, free, _)| free.is_some_and(|free| free > 0)) {
        let meaning = "buffer pools are made of reserved huge pages: fewer TLB misses, and memory \
                       that registers quickly";
        return Finding::new("huge pages", State::Good, found, meaning);
    }
    let meaning = "none is reserved, so pools ask for transparent ones, and else use small pages; \
                   large pools then take longer to register";
    Finding::new("huge pages", State::Slower, found, meaning)
        .mend("sysctl vm.nr_hugepages=128 reserves 256 MiB in pages of 2 MiB")
}

fn transparent(enabled: Option<&str>) -> Finding {
    let name = "transparent";
    let chosen = enabled.and_then(|text| text.split(['[', ']']).nth(1));
    match chosen {
        Some(chosen @ ("always" | "madvise")) => {
            let meaning = "pools without reserved huge pages ask for transparent ones";
            Finding::new(name, State::Good, format!("huge pages: {chosen}"), meaning)
        }
        Some(chosen) => {
            let meaning = "pools without reserved huge pages are made of small pages";
            Finding::new(name, State::Slower, format!("huge pages: {chosen}"), meaning)
                .mend("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        }
        None => {
            let meaning =
                "the kernel has none: pools are made of reserved huge pages or small ones";
            Finding::new(name, State::Slower, "huge pages: not there", meaning)
                .mend("reserve huge pages, as above")
        }
    }
}

fn cores() -> Finding {
    let allowed = match allowed_cpus() {
        Ok(allowed) => allowed,
        Err(error) => {
            let meaning = "pollers run where the scheduler puts them";
            return Finding::new("cores", State::Slower, error.to_string(), meaning)
                .mend("allow sched_getaffinity in the seccomp profile");
        }
    };
    let online = read("/sys/devices/system/cpu/online").unwrap_or_else(|| "unknown".to_owned());
    judge_cores(allowed.len(), &format!("{allowed}"), &online)
}

fn judge_cores(allowed: usize, which: &str, online: &str) -> Finding {
    let count = plural(allowed as u64, "core", "cores");
    let found = format!("{count} allowed ({which}), online: {online}");
    if allowed < 2 {
        let meaning = "a poller would share the one core with its caller: it runs unpinned; an \
                       inline engine is the better choice here";
        return Finding::new("cores", State::Slower, found, meaning)
            .mend("allow more cores (taskset, cpuset of the cgroup, --cpus of the container)");
    }
    let pollers = plural(allowed as u64 - 1, "core", "cores");
    let meaning = format!(
        "{pollers} for pollers, each pinned, one for the caller; with more rails than that, \
         rails share pollers"
    );
    Finding::new("cores", State::Good, found, meaning)
}

/// A CPU quota of a control group: microseconds per period.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Quota {
    file: PathBuf,
    quota_us: u64,
    period_us: u64,
}

/// The quotas of this process's control groups and all above them, version 2 and version 1.
fn quotas() -> Vec<Quota> {
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let mut quotas = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let roots: &[&str] = match controllers {
            "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            list if list.split(',').any(|name| name == "cpu") => {
                &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
            }
            _ => continue,
        };
        for root in roots {
            for group in Path::new(path).ancestors() {
                let below = group.strip_prefix("/").unwrap_or(group);
                quotas.extend(quota_of(&Path::new(root).join(below)));
            }
        }
    }
    quotas
}

fn quota_of(group: &Path) -> Option<Quota> {
    if let Some(text) = read(group.join("cpu.max")) {
        let (quota_us, period_us) = parse_cpu_max(&text)?;
        return Some(Quota { file: group.join("cpu.max"), quota_us, period_us });
    }
    let file = group.join("cpu.cfs_quota_us");
    // -1, no quota, is not a number of this type.
    let quota_us = read(&file)?.parse().ok()?;
    let period_us = read(group.join("cpu.cfs_period_us"))?.parse().ok()?;
    Some(Quota { file, quota_us, period_us })
}

/// `cpu.max` of a version 2 control group: quota and period, or nothing for `max`.
fn parse_cpu_max(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok()?))
}

fn quota(quotas: &[Quota]) -> Finding {
    let cores = |quota: &&Quota| crate::units::ratio(quota.quota_us, quota.period_us.max(1));
    let Some(least) = quotas.iter().min_by(|a, b| cores(a).total_cmp(&cores(b))) else {
        let meaning = "nothing throttles the pollers";
        return Finding::new("cpu quota", State::Good, "none", meaning);
    };
    let found = format!("{:.2} cores ({})", cores(&least), least.file.display());
    let meaning = "when the quota of a period is used up, pollers and callers stand still until \
                   the next one, and reads wait; busy polling uses it up fastest";
    Finding::new("cpu quota", State::Slower, found, meaning).mend(
        "use adaptive waiting (the default), and a quota of at least one core per poller \
               and caller, or a cpuset instead of a quota",
    )
}

fn descriptors(limit: Option<u64>) -> Finding {
    let found = match limit {
        None => "RLIMIT_NOFILE is unlimited".to_owned(),
        Some(limit) => format!("RLIMIT_NOFILE is {limit}"),
    };
    let meaning = "an open object takes a descriptor per data file, a ring one, a rail a few";
    let state = if limit.is_none_or(|limit| limit >= 4096) { State::Good } else { State::Slower };
    let finding = Finding::new("descriptors", state, found, meaning);
    if state == State::Good { finding } else { finding.mend("ulimit -n 65536") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_said_with_a_way_out() {
        let disabled = judge_uring(Err(Some(1)), Some("2"), "-1");
        assert_eq!(disabled.state, State::Slower);
        assert!(disabled.mend.is_some_and(|mend| mend.contains("io_uring_disabled=0")));
        let filtered = judge_uring(Err(Some(38)), Some("0"), "-1");
        assert!(filtered.mend.is_some_and(|mend| mend.contains("seccomp")));
        assert_eq!(judge_uring(Ok(()), None, "").state, State::Good);
    }

    #[test]
    fn the_memlock_budget_is_four_fifths() {
        let limited = MemlockLimit { limit_bytes: Some(10 << 20), ipc_lock: false };
        let finding = judge_memlock(limited);
        assert!(finding.meaning.contains("8 MiB"), "{}", finding.meaning);
        assert_eq!(finding.state, State::Slower);
        assert_eq!(judge_memlock(MemlockLimit { ipc_lock: true, ..limited }).state, State::Good);
    }

    #[test]
    fn kernels_and_quotas_are_read() {
        assert_eq!(kernel("6.18.44-x").state, State::Good);
        assert_eq!(kernel("5.15.0").state, State::Slower);
        assert_eq!(kernel("nonsense").state, State::Slower);
        assert_eq!(parse_cpu_max("150000 100000"), Some((150_000, 100_000)));
        assert_eq!(parse_cpu_max("max 100000"), None);
        let quota_us = |quota_us| Quota { file: "f".into(), quota_us, period_us: 100 };
        assert!(quota(&[quota_us(300), quota_us(150)]).found.starts_with("1.50 cores"));
        assert_eq!(judge_cores(1, "0", "0-1").state, State::Slower);
        assert_eq!(transparent(Some("always madvise [never]")).state, State::Slower);
    }
}
