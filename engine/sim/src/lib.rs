//! Simulated rails: the real engine runs over them in virtual time, with every fault a device can
//! have, from one seed; and the null rail, which costs next to nothing.
//!
//! * [`NullRail`] completes each request at the next reap and moves nothing. It is the zero of
//!   every measurement of the engine.
//! * `SimWorld` makes rails that move real bytes between its sources and registered memory, in
//!   virtual time. A rail is a pipe: transfers share its bandwidth one after the other, latencies
//!   overlap. What goes wrong, and when, is a `FaultPlan` per rail.
//! * `capacity_rows` says in closed form what rails can deliver of a striped object.
//!
//! All but the null rail needs the cargo feature `simulator`: programs that measure or test ask for
//! it, the library `railring` does not.
//!
//! The loop that drives a simulation gives every turn the time of a `VirtualClock` and, when
//! nothing is left to do, advances it to the earliest `next_event`.
#![forbid(unsafe_code)]

mod null;
mod refusal;
#[cfg(feature = "simulator")]
mod simulated;
mod targets;

pub use null::{NullConfig, NullControl, NullLink, NullRail};
pub use refusal::{RailConfigError, WEIGHT_MAX, WINDOW_WRS_MAX};
#[cfg(feature = "simulator")]
pub use simulated::*;
