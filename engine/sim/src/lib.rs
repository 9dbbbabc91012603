//! Simulated rails: the real engine runs over them in virtual time, with every fault a device can
//! have, from one seed; and the null rail, which costs next to nothing.
//!
//! * [`NullRail`] completes each request at the next reap and moves nothing. It is the zero of
//!   every measurement of the engine.
//! * [`SimWorld`] makes rails that move real bytes between its sources and registered memory, in
//!   virtual time. A rail is a pipe: transfers share its bandwidth one after the other, latencies
//!   overlap. What goes wrong, and when, is a [`FaultPlan`] per rail.
//! * [`capacity_rows`] says in closed form what rails can deliver of a striped object.
//!
//! The loop that drives a simulation gives every turn the time of a [`VirtualClock`] and, when
//! nothing is left to do, advances it to the earliest `next_event`.
#![forbid(unsafe_code)]

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
mod null;
mod pipe;
mod seed;
mod stats;
mod store;
mod targets;
mod world;

pub use clock::VirtualClock;
pub use config::{
    Cancelling, Misuse, Quiescing, RegistrationLimits, SimConfigError, SimRailConfig, WEIGHT_MAX,
    WINDOW_WRS_MAX,
};
pub use control::SimControl;
pub use fault::{Fault, FaultKind, FaultPlan, FaultRule, MILLION, When};
pub use latency::Latency;
pub use link::SimLink;
pub use model::{
    Bottleneck, CapacityRow, MODEL_PIECES_MAX, ModelConfig, ModelError, ModelRail, ModelTimes,
    capacity_rows,
};
pub use null::{NullConfig, NullControl, NullLink, NullRail};
pub use stats::{FiredFaults, SimStats};
pub use store::SourceContent;
pub use world::SimWorld;
