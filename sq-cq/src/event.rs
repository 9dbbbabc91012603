//! Owns one eventfd: what a thread that has nothing to do sleeps on. See eventfd(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::sync::Signal;

/// A level-triggered event: readable from `raise` until `clear`.
#[derive(Debug)]
pub(crate) struct Event {
    fd: OwnedFd,
    signal: Signal,
}

/// Why `Event::wait` came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The event was raised.
    Raised,
    /// The time is over.
    TimedOut,
}

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, signal: Signal::new() })
    }

    /// Makes the descriptor readable. One system call.
    #[cold]
    pub(crate) fn raise(&self) {
        if self.signal.raise() {
            return;
        }
        // EAGAIN means that the counter is at its maximum, so the descriptor is readable already.
        while rustix::io::write(&self.fd, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Makes the descriptor unreadable again. One system call.
    pub(crate) fn clear(&self) {
        if self.signal.lower() {
            return;
        }
        // EAGAIN means that nobody raised it.
        while rustix::io::read(&self.fd, &mut [0_u8; 8]) == Err(Errno::INTR) {}
    }

    /// Blocks until the event is raised; `None` waits for ever. Signals do not end the wait early
    /// (`EINTR` is returned to the caller's loop as `Raised`, which re-checks).
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Woken {
        if self.signal.wait() {
            return Woken::Raised;
        }
        // A timeout that does not fit is longer than any machine's life.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Woken::TimedOut,
            Ok(_) | Err(Errno::INTR) => Woken::Raised,
            Err(_) => {
                // poll(2): ENOMEM is left. The loop of whoever waits re-checks and comes back.
                std::thread::sleep(Duration::from_millis(1));
                Woken::Raised
            }
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
