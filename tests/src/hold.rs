//! A disk that answers when the test says so: completions of a file rail are held back.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use railring_file::Injector;

/// Holds back every completion between [`Holding::hold`] and [`Holding::release`], and can make
/// reads fail.
#[derive(Debug, Default)]
pub struct Holding {
    held: AtomicBool,
    /// The errno with which reads fail; 0: they do not.
    errno: AtomicI32,
}

impl Holding {
    /// From now on reads do not complete.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// They complete again, those held back too.
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// From now on reads fail with this errno; 0: no more.
    pub fn fail(&self, errno: i32) {
        self.errno.store(errno, Ordering::Release);
    }
}

impl railring_uring::Injector for Holding {
    fn result(&self, _key: u64, result: i32, _fixed: bool) -> i32 {
        match self.errno.load(Ordering::Acquire) {
            0 => result,
            errno => -errno,
        }
    }

    fn holds(&self, _key: u64) -> bool {
        self.held.load(Ordering::Acquire)
    }
}

impl Injector for Holding {}
