//! The verbs library, wrapped so that nothing outside this folder needs `unsafe`: owned objects
//! that free what they hold in the right order, and queues that own the memory they write.
//!
//! A queue pair keeps its protection domain and completion queue, those their device; so nothing is
//! freed below something that uses it. Memory in a device's hands is a [`Part`] inside a
//! [`ReadQueue`], and comes out only for a completion ([`Wc`], which only polling makes) or when
//! the queue pair is gone.
//!
//! [`Part`]: railring_dma::Part
#![allow(unsafe_code, reason = "the library is C; each block says why it holds")]

mod cq;
mod device;
mod events;
mod memory;
mod qp;
mod reads;
mod signals;
#[cfg(feature = "fault")]
mod write;

pub use cq::{Cq, CqError, Wake, Wc, WcBatch};
pub use device::{Device, DeviceError, DeviceLimits, PortFacts, PortQueryError, devices};
pub use events::{AsyncEvent, EventKind};
pub use memory::{Access, Mr, MrError, Pd, PdError};
pub use qp::{
    Breaker, Errored, Init, Qp, QpCaps, QpError, QpStep, ReadyToReceive, ReadyToSend, Reset, Route,
};
pub use reads::{Ended, Keys, PushRefused, Read, ReadQueue};
pub use signals::with_signals_blocked;

/// The value of errno, positive, of a call that failed just now on this thread.
fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}
