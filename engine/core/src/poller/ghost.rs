//! What is left of a poller that panicked: it works on no reads, and goes on answering those who
//! gave it pieces, until the engine ends.
//!
//! Nothing is known about its state, so every step is contained by itself. A link that panics once
//! more is not touched again: what it holds is said to be stuck, because nobody can tell when it is
//! quiet.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use railring_transport::{Link, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sq_cq::Status;

use super::port::Port;
use super::{Control, Life, Poller, Progress, REAP_PER_TURN};
use crate::clock;
use crate::health::Standing;
use crate::mail::{Done, Mail, News};

/// How often it looks after requests that are still out.
const LOOK_EVERY_NS: u64 = 1_000_000;
/// For how long it sleeps at most.
const NAP: Duration = Duration::from_secs(1);
/// Panics outside of any link after which it is given up altogether.
const PANICS_MAX: u32 = 1000;

/// Runs a step that may panic; says whether it did not.
fn contained(step: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(step)).is_ok()
}

impl<L: Link> Poller<L> {
    /// The poller panicked: its reads fail, their budgets are returned, the engine says so. Memory
    /// that a device may still write is never given back. Others' pieces go back to them, now or
    /// when they are quiet, and nothing goes to its rails any more.
    pub(crate) fn fail(&mut self) {
        self.shared.failed.store(true, Ordering::Release);
        self.shared.failed_pollers.fetch_add(1, Ordering::Relaxed);
        for port in &mut self.ports {
            port.cooling_until = Nanos(0);
            port.shared.state.cool_until(Nanos(0));
            port.shared.state.set(Standing::Failed);
        }
        if self.life != Life::Draining {
            self.shared.idle_homes.fetch_add(1, Ordering::AcqRel);
        }
        let stops = self.life != Life::Running;
        self.life = Life::Ghost { stops };
        contained(|| self.home.fail_all());
        contained(|| self.home.publish_all());
        self.desk.counters.reads_in_progress.set(0);
        self.shared.desks.iter().for_each(|desk| {
            desk.inbox.ring();
            desk.bell.wake();
        });
    }

    /// One turn whose panic is contained.
    pub(crate) fn turn_contained(&mut self, now: Nanos) -> Progress {
        if let Life::Ghost { .. } = self.life {
            return self.haunt(now);
        }
        match catch_unwind(AssertUnwindSafe(|| self.turn(now))) {
            Ok(progress) => progress,
            Err(_) => {
                self.fail();
                Progress::Worked
            }
        }
    }

    /// One turn of a poller that has failed.
    pub(crate) fn haunt(&mut self, now: Nanos) -> Progress {
        let mut any = self.bell.any_ready();
        self.bell.take_ready(|_| ());
        any |= self.obey_little();
        while let Some(mail) = self.desk.inbox.receive() {
            any = true;
            self.answer(mail);
        }
        contained(|| self.home.fail_pushed());
        for at in 0..self.ports.len() {
            let port = &mut self.ports[at];
            let before = port.flights_known();
            if !port.dead && !contained(|| port.haunt(now)) {
                port.give_up_for_good();
            }
            any |= port.flights_known() != before;
            while let Some((home, done)) = self.ports[at].news.pop_front() {
                any = true;
                self.send_home(home, done);
            }
        }
        if any { Progress::Worked } else { Progress::Idle }
    }

    /// Of what it is told it does only what it must.
    fn obey_little(&mut self) -> bool {
        let messages = self.desk.take();
        let any = !messages.is_empty();
        for message in messages {
            match message {
                Control::Learn(object) => self.shared.bury(object),
                Control::Stop => self.life = Life::Ghost { stops: true },
                // Ends of rings are dropped, which tells their callers that nobody is here.
                Control::Ring { .. } | Control::Orphan { .. } => {}
                Control::Close(_)
                | Control::Cancel(_)
                | Control::Enable { .. }
                | Control::ShareStats => {}
            }
        }
        any
    }

    fn answer(&mut self, mail: Mail) {
        match mail {
            Mail::Order { rail, order } => {
                let news = News::Failed { status: Status::ENGINE_FAILED };
                let done = Done { rail, piece: order.piece, part: Some(order.part), news };
                self.send_home(order.home, done);
            }
            Mail::Cancel { .. } => {} // All of it has been.
            Mail::Done(done) => self.send_home(self.index, done),
        }
    }

    /// Its own home has failed: what comes for it is quiet, and goes to where its lease waits.
    fn send_home(&mut self, home: u16, done: Done) {
        if home != self.index {
            let desk = &self.shared.desks[usize::from(home)];
            desk.inbox.send(Mail::Done(done));
            desk.inbox.ring();
        } else if let Some(part) = done.part {
            self.shared.impound.repay(part);
        }
    }

    /// Whether nobody needs its answers any more.
    fn may_vanish(&self) -> bool {
        self.life == Life::Ghost { stops: true }
            && self.shared.idle_homes.load(Ordering::Acquire) >= self.shared.desks.len()
            && self.ports.iter().all(|port| port.dead || port.is_idle())
    }

    /// The rest of its thread's life.
    pub(crate) fn haunt_to_the_end(&mut self) {
        let mut panics = 0;
        while !self.may_vanish() && panics < PANICS_MAX {
            let mut progress = Progress::Idle;
            if !contained(|| progress = self.haunt(clock::now())) {
                panics += 1;
            }
            if progress == Progress::Idle {
                self.doze();
            }
        }
    }

    /// When it looks after requests that are still out; never if there are none.
    pub(super) fn looks_next(&self, now: Nanos) -> Nanos {
        let waits = self.ports.iter().any(|port| !port.dead && !port.is_idle());
        if waits { now.after(LOOK_EVERY_NS) } else { Nanos::NEVER }
    }

    /// Sleeps until the bell rings.
    fn doze(&mut self) {
        let Some(next) = self.lie_down(Nanos(0)) else { return };
        let mut fds = [PollFd::from_borrowed_fd(self.bell_fd(), PollFlags::IN)];
        // What may have been missed by a poller that panicked waits no longer than this.
        let limit = Timespec::try_from(Duration::from_nanos(next.0).min(NAP)).ok();
        // EINTR and everything else ends the sleep; the next turn looks for itself.
        let _ = poll(&mut fds, limit.as_ref());
        self.get_up();
    }
}

impl<L: Link> Port<L> {
    /// Makes quiet what the link holds, gives back what it does not, and starts nothing.
    fn haunt(&mut self, now: Nanos) {
        self.return_backlog_as(Status::ENGINE_FAILED);
        if !std::mem::replace(&mut self.haunted, true) {
            self.list_the_unlisted(Status::ENGINE_FAILED, now);
        }
        self.call_all_back(Status::ENGINE_FAILED, now);
        self.end_turn();
        self.reap(now, REAP_PER_TURN);
        while let Some(reaped) = self.reaped.pop_front() {
            if let Some(news) = self.settle(reaped, now) {
                self.news.push_back(news);
            }
        }
        self.timers(now);
        self.commit(now);
    }

    /// The link panicked again: it is not asked any more, so nothing that it holds can be known to
    /// be quiet.
    fn give_up_for_good(&mut self) {
        self.dead = true;
        self.reaped.clear();
        contained(|| self.return_backlog_as(Status::ENGINE_FAILED));
        contained(|| self.call_all_stuck(Status::ENGINE_FAILED));
    }
}
