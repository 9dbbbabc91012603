//! How much memory the process may lock, and how much of that Railring uses.

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// What the kernel lets this process lock in memory, read at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemlockLimit {
    /// The soft RLIMIT_MEMLOCK in bytes; nothing if it is infinite.
    pub limit_bytes: Option<u64>,
    /// Whether CAP_IPC_LOCK is held where the kernel looks for it, in the initial user namespace:
    /// it then does not count what the process locks.
    pub ipc_lock: bool,
}

/// How many bytes may be registered with rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemlockBudget {
    /// No limit applies.
    Unlimited,
    /// At most so many bytes.
    Bytes(u64),
}

/// Why the limit is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemlockError {
    /// The kernel did not tell the process its capabilities.
    #[error("reading the capabilities of the process failed: {0}; allow capget")]
    Capabilities(#[source] io::Error),
}

impl MemlockLimit {
    /// What holds for this process now.
    ///
    /// # Errors
    /// The kernel does not tell (a system-call filter).
    pub fn read() -> Result<MemlockLimit, MemlockError> {
        let held = capabilities(None).map_err(|errno| MemlockError::Capabilities(errno.into()))?;
        let ipc_lock = held.effective.contains(CapabilitySet::IPC_LOCK)
            && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_initial_namespace(&map));
        Ok(MemlockLimit { limit_bytes: getrlimit(Resource::Memlock).current, ipc_lock })
    }

    /// 80 % of a finite limit: the rest is for what the process locks besides. Without a limit, or
    /// with CAP_IPC_LOCK, all.
    pub fn budget(&self) -> MemlockBudget {
        match self.limit_bytes {
            Some(limit_bytes) if !self.ipc_lock => {
                MemlockBudget::Bytes(limit_bytes - limit_bytes / 5)
            }
            _ => MemlockBudget::Unlimited,
        }
    }
}

impl MemlockBudget {
    /// Whether so many bytes are within the budget.
    pub fn allows(&self, bytes: u64) -> bool {
        match *self {
            MemlockBudget::Unlimited => true,
            MemlockBudget::Bytes(budget_bytes) => bytes <= budget_bytes,
        }
    }
}

/// Whether a user-id map is that of the initial user namespace: every id stands for itself. In any
/// other, a capability says nothing about the limits of the machine (user_namespaces(7)).
fn is_initial_namespace(uid_map: &str) -> bool {
    let fields: Vec<&str> = uid_map.split_whitespace().collect();
    fields == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit_bytes: Option<u64>, ipc_lock: bool) -> MemlockBudget {
        MemlockLimit { limit_bytes, ipc_lock }.budget()
    }

    #[test]
    fn the_budget_is_four_fifths_of_a_finite_limit() {
        assert_eq!(budget(Some(8 << 20), false), MemlockBudget::Bytes(6_710_887));
        assert_eq!(budget(Some(64 << 10), false), MemlockBudget::Bytes(52_429));
        assert_eq!(budget(Some(0), false), MemlockBudget::Bytes(0));
        assert_eq!(budget(Some(u64::MAX), false), MemlockBudget::Bytes(u64::MAX / 5 * 4));
        assert_eq!(budget(None, false), MemlockBudget::Unlimited);
        assert_eq!(budget(Some(0), true), MemlockBudget::Unlimited);
        assert!(MemlockBudget::Bytes(5).allows(5) && !MemlockBudget::Bytes(5).allows(6));
        assert!(MemlockBudget::Unlimited.allows(u64::MAX));
    }

    #[test]
    fn only_the_initial_user_namespace_gives_the_capability_its_meaning() {
        assert!(is_initial_namespace("         0          0 4294967295\n"));
        assert!(!is_initial_namespace("         0       1000          1\n"));
        assert!(!is_initial_namespace("0 0 1000\n1000 1000 4294966295\n"));
        assert!(!is_initial_namespace(""));
    }

    #[test]
    fn the_limit_read_is_that_of_the_process() {
        let limit = MemlockLimit::read().expect("capget is allowed here");
        assert_eq!(limit.limit_bytes, getrlimit(Resource::Memlock).current);
    }
}
