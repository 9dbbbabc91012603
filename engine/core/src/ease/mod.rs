//! Conveniences on top of the ring, for callers that would rather block than keep a loop of their
//! own.
//!
//! Everything here uses the ring as any caller does; nothing of the engine knows of it.

mod blocking;
mod drive;
mod gate;
mod options;
mod push_wait;

pub use blocking::{BlockingReader, BlockingReaderConfig, BlockingReaderError};
pub use drive::{Drive, Threads};
pub use gate::PublishGate;
pub use options::{CancelledBy, ReadIntoError, ReadOptions, Recheck, StripeFailure, Verification};
pub use push_wait::{HeldBy, PushWaitError, WaitRefused};
