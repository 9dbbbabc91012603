//! The simulator: rails that move real bytes in virtual time, and what goes wrong on them.

mod agenda;
mod clock;
mod config;
mod control;
mod device;
mod dice;
mod fault;
mod flight;
mod late;
mod latency;
mod link;
mod model;
mod pipe;
mod seed;
mod stats;
mod store;
mod world;

pub use clock::VirtualClock;
pub use config::{
    Cancelling, Misuse, Quiescing, RegistrationLimits, SimConfigError, SimRailConfig,
};
pub use control::SimControl;
pub use fault::{Fault, FaultKind, FaultPlan, FaultRule, MILLION, When};
pub use latency::Latency;
pub use link::SimLink;
pub use model::{
    Bottleneck, CapacityRow, MODEL_PIECES_MAX, ModelConfig, ModelError, ModelRail, ModelTimes,
    capacity_rows,
};
pub use stats::{FiredFaults, SimStats};
pub use store::SourceContent;
pub use world::SimWorld;
