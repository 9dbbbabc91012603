//! How a poller sleeps: on its bell, its links' descriptors and its next timer.
//!
//! Lying down and getting up are steps of their own, so that whoever has no threads, a simulator,
//! makes a poller sleep by the same decisions.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use railring_transport::{Link, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Life, Poller};
use crate::schedule::RAILS_MAX;

impl<L: Link> Poller<L> {
    /// Sleeps until something happens. Returns at once if something has.
    pub(crate) fn park(&mut self, now: Nanos, at_most: Option<Duration>) {
        let Some(next) = self.lie_down(now) else { return };
        // On the stack: an engine that sleeps between reads does not allocate either.
        let bell = self.bell_fd();
        let mut fds: [PollFd<'_>; RAILS_MAX + 1] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(bell, PollFlags::IN));
        let mut count = 1;
        for fd in self.ports.iter().filter_map(super::Port::event_fd) {
            fds[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        let timer = (next != Nanos::NEVER).then(|| Duration::from_nanos(next.since(now)));
        let limit = match (timer, at_most) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        self.desk.counters.sleeps.add(1);
        // EINTR and everything else ends the sleep; the next turn looks for itself.
        let _ = poll(&mut fds[..count], limit.as_ref());
        // A completion woke it most often: the bell's descriptor is read only if it rang.
        if fds[0].revents().contains(PollFlags::IN) {
            self.bell.clear();
        } else {
            self.bell.cancel_sleep();
        }
    }

    /// Says that it sleeps, and looks once more. Gives the time at which it must be woken if
    /// neither its bell nor a link does; `None`: something has come, it must not sleep.
    pub(crate) fn lie_down(&mut self, now: Nanos) -> Option<Nanos> {
        self.bell.prepare_sleep();
        if let Life::Ghost { .. } = self.life {
            if self.bell.any_ready() {
                self.bell.cancel_sleep();
                return None;
            }
            return Some(self.looks_next(now));
        }
        // Another poller's end can be what this one waits for, and it rang before the line above.
        if self.next_event() <= now || self.may_drain() || self.may_end() || !self.arm_links() {
            self.bell.cancel_sleep();
            return None;
        }
        Some(self.next_event())
    }

    /// Ends the sleep of a poller that lay down, whatever woke it.
    pub(crate) fn get_up(&mut self) {
        if self.bell.is_asleep() {
            self.bell.cancel_sleep();
        } else {
            self.bell.clear();
        }
    }

    /// Whether the bell of a poller that lay down was rung: its descriptor is readable.
    pub(crate) fn is_called(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.bell_fd(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !self.bell.is_asleep() && poll(&mut fds, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    /// Asks every link with something in flight for its event. `false`: one has something already,
    /// or cannot wake anybody.
    fn arm_links(&mut self) -> bool {
        self.ports
            .iter_mut()
            .all(|port| !port.has_flights() || (port.link.event_fd().is_some() && port.link.arm()))
    }
}

impl<L> Poller<L> {
    pub(super) fn bell_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.bell)
    }
}
