//! Simulated rails: the real engine runs over them in virtual time, with every fault a device can
//! have, from one seed; and the null rail, which costs next to nothing.
//!
//! * [`NullRail`] completes each request at the next reap and moves nothing. It is the zero of
//!   every measurement of the engine.
#![forbid(unsafe_code)]

mod clock;
mod config;
mod null;
mod targets;

pub use clock::VirtualClock;
pub use config::{SimConfigError, WEIGHT_MAX};
pub use null::{NullConfig, NullControl, NullLink, NullRail};
