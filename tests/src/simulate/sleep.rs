//! Sleep: pollers and callers that wait as threads do, and act again only when what they wait for
//! has come. A wake-up that is lost is then a run that stands still.
//!
//! ```text
//!   awake ──turn found nothing──► lies down: says so, looks again ──► asleep
//!     ▲                                                                 │
//!     └──── its bell was rung, a link's event came, its time is over ───┘
//! ```

use railring_core::{Progress, Ring};
use railring_transport::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::dice::Dice;
use super::logged::Tells;
use super::run::{Run, Wrong};
use super::trace::{About, What};

/// Who sleeps in a run. The default is nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepPlan {
    /// Pollers that sleep, one bit each; the others are always busy.
    pub pollers: u64,
    /// Callers that wait for completions, one bit each; the others look when they like.
    pub callers: u64,
    /// Rails with a descriptor, one bit each.
    pub with_event: u64,
    /// Rails that do not say when their events are.
    pub without_time: u64,
}

/// Some of so many.
fn some(dice: &mut Dice, count: usize, of_ten: usize) -> u64 {
    (0..count).fold(0, |bits, bit| bits | u64::from(dice.below(10) < of_ten) << bit)
}

fn has(bits: u64, at: usize) -> bool {
    bits >> at & 1 == 1
}

impl SleepPlan {
    /// Of a run with so many pollers, callers and rails.
    pub(crate) fn draw(dice: &mut Dice, pollers: usize, callers: usize, rails: usize) -> Self {
        if dice.one_in(4) {
            return SleepPlan::default();
        }
        SleepPlan {
            pollers: some(dice, pollers, 8),
            callers: some(dice, callers, 6),
            with_event: some(dice, rails, 9),
            without_time: some(dice, rails, 6),
        }
    }

    pub(crate) fn tells(self, rail: usize) -> Tells {
        match (has(self.with_event, rail), has(self.without_time, rail)) {
            (false, _) => Tells::Time,
            (true, false) => Tells::TimeAndEvent,
            (true, true) => Tells::Event,
        }
    }
}

/// Who sleeps now.
#[derive(Debug)]
pub(crate) struct Sleep {
    plan: SleepPlan,
    dice: Dice,
    /// Whether each poller's last turn found nothing.
    drowsy: Vec<bool>,
    /// Until when each poller sleeps.
    until: Vec<Option<Nanos>>,
    /// Whether each caller waits.
    waits: Vec<bool>,
}

impl Sleep {
    pub(crate) fn new(plan: SleepPlan, seed: u64, pollers: usize, callers: usize) -> Self {
        let dice = Dice::new(seed ^ 0x51ee_9e25_51ee_9003);
        let (drowsy, until) = (vec![false; pollers], vec![None; pollers]);
        Sleep { plan, dice, drowsy, until, waits: vec![false; callers] }
    }

    /// Chances that came to runs later, from a stream of their own.
    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.dice.one_in(n)
    }
}

/// Whether a ring's descriptor is readable.
fn is_readable(ring: &Ring) -> bool {
    let mut fds = [PollFd::new(ring, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|count| count > 0)
}

impl Run {
    /// Whether a poller may make a turn; wakes it if something has come.
    pub(crate) fn is_up(&mut self, poller: usize) -> bool {
        let Some(until) = self.sleep.until[poller] else { return true };
        let by = if self.engine.is_called(poller) {
            "woken by its bell"
        } else if self.link_event_of(poller) <= self.now {
            "woken by a link"
        } else if until <= self.now {
            "woken by its timer"
        } else {
            return false;
        };
        self.marks.set(by);
        self.rouse(poller);
        true
    }

    /// Wakes a poller, whatever it waits for.
    pub(crate) fn rouse(&mut self, poller: usize) {
        self.sleep.drowsy[poller] = false;
        if self.sleep.until[poller].take().is_some() {
            self.engine.rouse_poller(poller);
            self.note(About::Run, What::Woke, poller as u64, 0);
            let pollers = &self.scenario.pollers;
            let rails = &mut self.log.lock().rails;
            let of = |(_, of): &(_, &u32)| **of as usize == poller;
            rails.iter_mut().zip(pollers).filter(of).for_each(|(rail, _)| rail.armed = false);
        }
    }

    /// A poller whose last turn found nothing may lie down instead of the next. Others may have
    /// done something since. Says whether it lies.
    pub(crate) fn may_sleep(&mut self, poller: usize) -> bool {
        let drowsy = std::mem::take(&mut self.sleep.drowsy[poller]);
        if !drowsy || self.sleep.dice.one_in(3) {
            return false;
        }
        let Some(until) = self.engine.park_poller_at(poller, self.now) else {
            self.marks.set("no sleep after a second look");
            return false;
        };
        self.sleep.until[poller] = Some(until);
        self.marks.set("poller asleep");
        self.note(About::Run, What::Slept, poller as u64, until.0);
        true
    }

    /// A poller had a turn.
    pub(crate) fn had_turn(&mut self, poller: usize, progress: Progress) {
        let idle = progress == Progress::Idle;
        self.sleep.drowsy[poller] = idle && has(self.sleep.plan.pollers, poller);
    }

    /// When a descriptor that a poller sleeps on, or would look at, becomes readable.
    fn link_event_of(&self, poller: usize) -> Nanos {
        if self.failed >> poller & 1 == 1 {
            // It trusts no event, and a link that panicked twice, whose events nobody takes, is not
            // asked any more. It looks now and then.
            return Nanos::NEVER;
        }
        let asleep = self.sleep.until[poller].is_some();
        let log = self.log.lock();
        let rails = log.rails.iter().zip(&self.scenario.pollers);
        let mine = rails.filter(|(rail, of)| {
            **of as usize == poller && rail.wrs > 0 && (rail.armed || !asleep)
        });
        mine.filter_map(|(rail, _)| rail.event_at).fold(Nanos::NEVER, Nanos::min)
    }

    /// When something happens next if nobody asks for anything.
    pub(crate) fn next_event(&mut self) -> Result<Nanos, Wrong> {
        let mut next = Nanos::NEVER;
        for poller in 0..self.sleep.until.len() {
            let own = self.engine.next_event_of(poller);
            let of_links = self.link_event_of(poller);
            next = next.min(of_links);
            match self.sleep.until[poller] {
                None => next = next.min(own),
                Some(_) if self.engine.is_called(poller) => next = Nanos(0),
                Some(until) if self.failed >> poller & 1 == 1 => next = next.min(until),
                Some(until) if own <= self.now && self.now < until.min(of_links) => {
                    let what = format!("poller {poller} sleeps and has something to do");
                    return Err(Wrong::run(what));
                }
                Some(until) => next = next.min(until),
            }
        }
        Ok(next)
    }

    /// Whether a caller may act. One that waits may when its descriptor says so.
    pub(crate) fn may_act(&mut self, caller: usize) -> Result<bool, Wrong> {
        if !self.sleep.waits[caller] {
            return Ok(true);
        }
        let Some(ring) = &mut self.callers[caller].ring else { return Ok(true) };
        let ready = ring.ready();
        if ready == 0 {
            return Ok(false);
        }
        if !is_readable(ring) {
            let what = format!("caller {caller} sleeps and {ready} CQEs can be popped");
            return Err(Wrong::run(what));
        }
        ring.clear_event();
        self.sleep.waits[caller] = false;
        Ok(true)
    }

    /// A caller that has asked for something may wait for what comes of it.
    pub(crate) fn may_wait(&mut self, caller: usize) {
        if !has(self.sleep.plan.callers, caller) || !self.sleep.dice.one_in(6) {
            return;
        }
        let state = &mut self.callers[caller];
        let Some(ring) = state.ring.as_mut().filter(|ring| ring.in_flight() > 0) else { return };
        self.sleep.waits[caller] = !ring.arm();
        state.submitted(self.now);
        if self.sleep.waits[caller] {
            self.marks.set("caller asleep");
        }
        self.note(About::Run, What::Waits, caller as u64, self.sleep.waits[caller].into());
        self.stir();
    }
}
