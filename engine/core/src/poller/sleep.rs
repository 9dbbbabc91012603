//! How a poller sleeps: on its bell, its links' descriptors and its next timer.
//!
//! Lying down and getting up are steps of their own, so that whoever has no threads, a simulator,
//! makes a poller sleep by the same decisions.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use railring_transport::{Link, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Life, Poller, Progress};
use crate::schedule::RAILS_MAX;

impl<L: Link> Poller<L> {
    /// Sleeps until something happens. Returns at once if something has.
    pub(crate) fn park(&mut self, now: Nanos, at_most: Option<Duration>) {
        let Some(next) = self.lie_down(now) else {
            self.ring_doorbells(now);
            return;
        };
        let timer = (next != Nanos::NEVER).then(|| Duration::from_nanos(next.since(now)));
        let limit = match (timer, at_most) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.desk.counters.sleeps.add(1);
        if self.sleep_in_link(limit) {
            self.get_up();
            return;
        }
        self.ring_doorbells(now);
        // On the stack: an engine that sleeps between reads does not allocate either.
        let bell = self.bell_fd();
        let mut fds: [PollFd<'_>; RAILS_MAX + 1] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(bell, PollFlags::IN));
        let mut count = 1;
        for fd in self.awake_ports().filter_map(super::Port::event_fd) {
            fds[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // EINTR and everything else ends the sleep; the next turn looks for itself.
        let _ = poll(&mut fds[..count], limit.as_ref());
        // A completion woke it most often: the bell's descriptor is read only if it rang.
        if fds[0].revents().contains(PollFlags::IN) {
            self.bell.clear();
        } else {
            self.bell.cancel_sleep();
        }
    }

    /// Sleeps in the one link that it waits for, which rings the doorbell as well; `false`: there
    /// is none that can.
    fn sleep_in_link(&mut self, at_most: Option<Duration>) -> bool {
        let Some(at) = self.sleeper() else { return false };
        let bell = std::os::fd::AsFd::as_fd(&*self.bell);
        self.ports[at].sleep(bell, at_most).is_some()
    }

    /// The port in whose link the poller can sleep for everything: no other has anything to do.
    pub(super) fn sleeper(&self) -> Option<usize> {
        let at = self.awake.0.trailing_zeros() as usize;
        (self.awake.count() == 1 && self.ports[at].can_sleep()).then_some(at)
    }

    /// One turn that leaves the doorbell to the sleep after it, if it can be left to that. Either
    /// [`Poller::park`] or [`Poller::ring_doorbells`] comes next.
    pub(crate) fn turn_before_sleep(&mut self, now: Nanos) -> Progress {
        self.sleeps_next = true;
        let progress = self.turn(now);
        self.sleeps_next = false;
        progress
    }

    /// Whether a doorbell was left to the sleep.
    pub(crate) fn left_a_doorbell(&self) -> bool {
        self.awake_ports().any(super::Port::is_dirty)
    }

    /// There is no sleep after all.
    pub(crate) fn ring_doorbells(&mut self, now: Nanos) {
        if !matches!(self.life, Life::Ghost { .. }) {
            self.commit(now);
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
        self.awake.iter().all(|at| {
            let port = &mut self.ports[at];
            !port.has_flights() || (port.link.event_fd().is_some() && port.link.arm())
        })
    }
}

impl<L> Poller<L> {
    pub(super) fn bell_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.bell)
    }
}
