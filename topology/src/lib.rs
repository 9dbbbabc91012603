//! What this machine is made of, which of it are rails, and which core serves which rail.
//!
//! Data in, plan out. The crate opens no device; it reads text files and binds threads that ask.

pub mod cpuset;
pub mod id;
pub mod pin;

pub use cpuset::{CpuListError, CpuSet};
pub use id::{CpuId, NodeId, PciAddress};
pub use pin::{PinError, Pinned, allowed_cpus, pin_current_thread};
