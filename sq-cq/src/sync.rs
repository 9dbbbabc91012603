//! Owns the choice between the standard atomics and loom's: the only `cfg(loom)` in the crate.

#[cfg(loom)]
pub(crate) use self::modelled::{Signal, UnsafeCell};
#[cfg(not(loom))]
pub(crate) use self::real::{Signal, UnsafeCell};

#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
mod real {
    /// The standard cell with the access functions of loom's, so that loom can watch every access.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            access(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }
    }

    /// Nothing: outside of loom the kernel's eventfd is the signal.
    #[derive(Debug)]
    pub(crate) struct Signal;

    impl Signal {
        pub(crate) fn new() -> Self {
            Self
        }

        /// Whether the signal stood in for the eventfd.
        #[inline(always)]
        pub(crate) fn raise(&self) -> bool {
            false
        }

        /// Whether the signal stood in for the eventfd.
        #[inline(always)]
        pub(crate) fn lower(&self) -> bool {
            false
        }

        /// Whether the signal stood in for the eventfd.
        #[inline(always)]
        pub(crate) fn wait(&self) -> bool {
            false
        }
    }
}

#[cfg(loom)]
mod modelled {
    pub(crate) use loom::cell::UnsafeCell;
    use loom::sync::{Condvar, Mutex};

    /// What an eventfd does, in a form loom can see into.
    #[derive(Debug)]
    pub(crate) struct Signal {
        raised: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        pub(crate) fn new() -> Self {
            Self { raised: Mutex::new(false), changed: Condvar::new() }
        }

        pub(crate) fn raise(&self) -> bool {
            *self.raised.lock().expect("no thread of a model panics holding it") = true;
            self.changed.notify_all();
            true
        }

        pub(crate) fn lower(&self) -> bool {
            *self.raised.lock().expect("no thread of a model panics holding it") = false;
            true
        }

        pub(crate) fn wait(&self) -> bool {
            let mut raised = self.raised.lock().expect("no thread of a model panics holding it");
            while !*raised {
                raised = self.changed.wait(raised).expect("no thread of a model panics holding it");
            }
            true
        }
    }
}
