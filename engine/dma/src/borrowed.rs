//! A borrowed slice as a region, for as long as a call lasts: foreign memory without a promise to
//! keep.
//!
//! Unsafe here rests on this: the call that borrows the slice does not end, neither by returning
//! nor by unwinding, before the region's last owner is gone.

use std::ptr::NonNull;
use std::time::Duration;

use crate::region::{Region, RegionError};
use crate::registry::Regions;

const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Ends its region when it is dropped, however long that takes.
struct UntilQuiet(Option<Region>);

impl Drop for UntilQuiet {
    fn drop(&mut self) {
        let mut pause = PAUSE_MIN;
        let mut held = self.0.take();
        while let Some(region) = held.take() {
            held = region.unregister().err();
            if held.is_some() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

impl Regions {
    /// Runs `body` with `memory` as a region. Safe, unlike [`Regions::foreign`], because it does
    /// not come back before everything that owns some of the bytes is gone: a lease, a loan, a part
    /// that a device may still write, another handle of the region. Whoever leaks one of them, or
    /// puts one into `R`, waits here for ever, also while unwinding: the borrow is the only thing
    /// that keeps others from the bytes.
    ///
    /// # Errors
    /// As [`Regions::foreign`]; `body` was not run.
    pub fn with_borrowed<R>(
        &self,
        memory: &mut [u8],
        body: impl FnOnce(&Region) -> R,
    ) -> Result<R, RegionError> {
        let bytes = memory.len();
        let base = NonNull::from(memory).cast::<u8>();
        // SAFETY: the slice is exclusively borrowed and initialised for all of this call, which
        // `UntilQuiet` keeps from ending while the region exists.
        let region = unsafe { self.foreign(base, bytes)? };
        let held = UntilQuiet(Some(region));
        let done = body(held.0.as_ref().expect("taken by its drop only"));
        drop(held);
        Ok(done)
    }
}
