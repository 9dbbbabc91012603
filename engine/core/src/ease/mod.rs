//! Conveniences on top of the ring, for callers that would rather block than keep a loop of their own.
//!
//! Everything here uses the ring as any caller does; nothing of the engine knows of it.

mod drive;
mod push_wait;

pub use drive::{Drive, Threads};
pub use push_wait::{HeldBy, PushWaitError, WaitRefused};
