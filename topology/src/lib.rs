//! What this machine is made of, which of it are rails, and which core serves which rail.
//!
//! Data in, plan out: a [`Discovery`] reads text files (or hwloc) into a [`Machine`], [`assign()`]
//! turns it and a [`Policy`] into a [`Plan`], [`render`] shows both, and [`pin_current_thread`]
//! puts a thread where the plan says. The crate opens no device and starts no thread.
//!
//! ```
//! use railring_topology::render::{TextOptions, text};
//! use railring_topology::{Discovery, Policy, assign};
//!
//! let machine = Discovery::live().directory("/").read()?;
//! let plan = assign(&machine, &Policy::default())?;
//! for rail in &plan.rails {
//!     let cpu = plan.poller_of(rail).and_then(|poller| poller.cpu);
//!     println!("{}: cpu {cpu:?}, memory on node {:?}", rail.name, rail.memory_node);
//! }
//! print!("{}", text(&machine, Some(&plan), TextOptions::default()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How it decides is written in `docs/topology.md`, the JSON document in `docs/topology-schema.md`.

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
mod tree;
pub mod units;
mod warn;

pub use assign::{AssignError, Policy, assign};
pub use cpuset::{CpuListError, CpuSet};
pub use discover::{DiscoverError, Discovery};
pub use gid::choose_gid;
pub use id::{CpuId, NodeId, PciAddress};
pub use machine::Machine;
pub use pin::{PinError, Pinned, allowed_cpus, current_cpu, pin_current_thread};
pub use plan::Plan;
pub use railspec::{RailSpec, parse_rails};
