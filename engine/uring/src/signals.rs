//! Threads that no signal reaches.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Calls `spawn` with all signals blocked in the calling thread, so that the threads it creates
/// never run a signal handler of the program, and then restores the calling thread's mask.
///
/// # Errors
/// The mask could not be changed; `spawn` was not called then.
pub fn with_signals_blocked<T>(spawn: impl FnOnce() -> T) -> io::Result<T> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is a sigset_t to be filled in; the call initialises it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` was initialised above, and `before` is a sigset_t to be filled in.
    let errno =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let _restore = Restore(before);
    Ok(spawn())
}

/// Puts the mask back even if `spawn` unwinds.
struct Restore(MaybeUninit<libc::sigset_t>);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: the mask was filled in by the call that succeeded before this was made. A valid
        // mask cannot be refused, so the result says nothing.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, self.0.as_ptr(), ptr::null_mut()) };
    }
}
