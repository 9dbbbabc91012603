//! Threads of a library take no signals: those are for the program's own threads.

use std::io;
use std::mem::MaybeUninit;

/// Runs `body` with every signal blocked on this thread, so that threads it starts begin so; the
/// mask is as before afterwards.
///
/// # Errors
/// The mask cannot be changed.
pub fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> io::Result<T> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to a local that outlives the call, which fills it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both are locals; the first was filled above, the second is filled by the call.
    let status =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status));
    }
    let result = body();
    // SAFETY: the mask was filled by the first call.
    let status =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    if status == 0 { Ok(result) } else { Err(io::Error::from_raw_os_error(status)) }
}
