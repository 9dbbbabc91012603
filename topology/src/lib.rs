//! What this machine is made of, which of it are rails, and which core serves which rail.
//!
//! Data in, plan out. The crate opens no device; it reads text files and binds threads that ask.

pub mod assign;
pub mod capture;
pub mod cpuset;
pub mod discover;
pub mod gid;
pub mod hwloc;
pub mod id;
pub mod machine;
mod merge;
pub mod pin;
pub mod plan;
pub mod railspec;
pub mod render;
mod sysfs;
pub mod tree;
pub mod units;
mod warn;

pub use assign::{AssignError, Policy, assign};
pub use cpuset::{CpuListError, CpuSet};
pub use discover::{DiscoverError, Discovery};
pub use gid::choose_gid;
pub use id::{CpuId, NodeId, PciAddress};
pub use machine::Machine;
pub use pin::{PinError, Pinned, allowed_cpus, pin_current_thread};
pub use plan::Plan;
pub use railspec::{RailSpec, parse_rails};
