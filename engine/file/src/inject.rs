//! Faults on purpose, for tests of the file rail and of what is built on it.

use std::fmt::Debug;

/// Decides which faults a file rail shows, in addition to those of its ring. The blocking workers
/// show `result` and `holds` of the ring's faults as well. A rail without an injector pays one
/// branch per completion.
pub trait Injector: railring_uring::Injector + Debug {
    /// The errno with which opening a file with O_DIRECT is refused.
    fn open_direct(&self) -> Option<i32> {
        None
    }

    /// Whether a handle may name something else than a regular file, such as a FIFO whose reads
    /// do not end.
    fn special_files(&self) -> bool {
        false
    }
}
