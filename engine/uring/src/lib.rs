//! The `io_uring` loop that the file and TCP rails share: a ring, its tables of registered files
//! and buffers, and the memory that the kernel may write.
//!
//! A [`Uring`] belongs to one poller. Its [`Tables`] are shared by any threads, which register
//! files and memory while the poller runs. The memory of a read moves into the ring with
//! [`Uring::push_read`] and comes back in a [`Finished`], once, when its completion was seen: safe
//! code on top of this crate cannot let the kernel write bytes that somebody else owns.
//!
//! ```text
//!   poller                      Uring                              kernel
//!    │ push_read(key, buffer) ──►│ table[slot of key] = buffer       │
//!    │ commit() ────────────────►│ at most one io_uring_enter ──────►│ may write the buffer
//!    │ pop() ◄── Finished{buffer}│ ◄──────────── completion (mapped) │ never again
//! ```
//!
//! A ring that is dropped with reads in flight cancels them, waits a bounded time and then leaks
//! what the kernel still holds.

mod bytes;
mod create;
mod errno;
mod in_flight;
mod inject;
mod reads;
mod ring;
mod signals;
mod tables;

pub use bytes::StableBytes;
pub use create::{RingError, RingOptions, TaskRun};
pub use errno::errno_name;
pub use inject::Injector;
pub use reads::{FileRef, Finished, ReadAt, ReadRefused, Unread};
pub use ring::{RingStats, Uring};
pub use signals::with_signals_blocked;
pub use tables::{BufferSlot, FileSlot, TableError, Tables};
