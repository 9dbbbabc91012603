//! Faults on purpose, for tests of what is built on a ring.

use std::fmt::Debug;

/// Decides which faults a ring shows. Every method has a default that injects nothing. A ring
/// without an injector pays one branch per completion and per doorbell.
///
/// Called on the thread that creates or drives the ring.
pub trait Injector: Send + Sync + Debug {
    /// The errno with which creating a ring of `entries` is refused.
    fn create(&self, entries: u32) -> Option<i32> {
        let _ = entries;
        None
    }

    /// The errno that an `io_uring_enter` gives instead of being made.
    fn enter(&self) -> Option<i32> {
        None
    }

    /// What the read `key` is said to have given (bytes, or the negative errno) when the kernel
    /// gave
    /// `result`. `fixed`: it was a read into a registered buffer.
    fn result(&self, key: u64, result: i32, fixed: bool) -> i32 {
        let _ = (key, fixed);
        result
    }

    /// Whether the finished read `key` is still kept back. It is asked again at every
    /// [`Uring::pop`](crate::Uring::pop) until it says no.
    fn holds(&self, key: u64) -> bool {
        let _ = key;
        false
    }
}
