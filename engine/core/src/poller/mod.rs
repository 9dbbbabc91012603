//! One poller: the home of some rings and the driver of some rails, moved forward by `turn`.

mod blame;
mod ghost;
mod port;
mod rate;
mod sleep;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use railring_transport::{Link, Nanos};
use sq_cq::{Bell, Handle, Status};

use crate::home::{CallerSide, Courier, Home, Piece, RingEnd};
use crate::mail::{Mail, Order, SOURCE_CONTROL, SOURCE_MAIL, SOURCE_RINGS};
use crate::object::ObjectInner;
use crate::schedule::RailMask;
use crate::shared::{Desk, Shared, lock};
use crate::slab::Id;

pub(crate) use port::Port;

/// Completions taken from one rail in a turn.
const REAP_PER_TURN: usize = 256;
/// Bytes hashed in a turn, about: a tenth of a millisecond's work.
const HASH_BYTES_PER_TURN: u64 = 1 << 20;
/// A turn that hashed so much did mostly that: it takes longer than all else a turn may do.
const HASHING_BYTES: u64 = 64 << 10;

/// Messages that are not about single pieces.
#[derive(Debug)]
pub(crate) enum Control {
    Ring {
        seat: usize,
        end: Box<RingEnd>,
        sq_entries: u32,
        cq_entries: u32,
    },
    /// A caller dropped its ring with reads on it.
    Orphan {
        seat: usize,
        end: Box<CallerSide>,
    },
    Learn(Arc<ObjectInner>),
    Close(Handle),
    Cancel(u64),
    Enable {
        rail: u16,
        on: bool,
    },
    ShareStats,
    Stop,
}

/// Whether a turn found something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It did something.
    Worked,
    /// There was nothing to do.
    Idle,
}

/// Whether a poller still has anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    /// Told to stop; reads are being ended.
    Stopping,
    /// No reads of its own are left.
    Draining,
    /// It has panicked.
    Ghost {
        /// It was told to stop.
        stops: bool,
    },
}

/// A poller's whole state; whoever calls [`Poller::turn`] decides the mode.
pub(crate) struct Poller<L> {
    index: u16,
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    bell: Arc<Bell>,
    home: Home,
    ports: Vec<Port<L>>,
    /// The port of each rail, for rails of this poller.
    local: Vec<Option<usize>>,
    /// Ports that are not still, by their index: what others there are costs nothing.
    awake: RailMask,
    life: Life,
    turns: u64,
    /// What came last in a turn may let stages before it go on: the next turn is due at once.
    restless: bool,
    /// The caller sleeps after this turn: that rings the doorbell, where a link can.
    sleeps_next: bool,
    /// The first rail to be reaped: rotates, so that no rail is always last.
    first_port: usize,
    /// The last turn, if something was under way after it; else `NEVER`.
    busy_since: Nanos,
    /// Bytes of this turn that ports hashed.
    hashed_bytes: u64,
}

/// Orders go to a port of this poller, or to another poller's inbox.
struct Post<'a, L> {
    index: u16,
    now: Nanos,
    ports: &'a mut [Port<L>],
    local: &'a [Option<usize>],
    awake: &'a mut RailMask,
    shared: &'a Shared,
}

impl<L: Link> Courier for Post<'_, L> {
    #[inline]
    fn order(&mut self, rail: usize, order: Order) {
        match self.local[rail] {
            Some(port) => {
                *self.awake = self.awake.with(RailMask::of(port));
                self.ports[port].accept(order, self.now);
            }
            None => self.mail(rail, |rail| Mail::Order { rail, order }),
        }
    }

    fn cancel(&mut self, rail: usize, piece: Id<Piece>) {
        let home = self.index;
        match self.local[rail] {
            Some(port) => {
                *self.awake = self.awake.with(RailMask::of(port));
                self.ports[port].cancel(home, piece, self.now);
            }
            None => self.mail(rail, |rail| Mail::Cancel { rail, home, piece }),
        }
    }
}

impl<L> Post<'_, L> {
    fn mail(&self, rail: usize, mail: impl FnOnce(u16) -> Mail) {
        let desk = &self.shared.desks[usize::from(self.shared.route[rail])];
        desk.inbox.send(mail(u16::try_from(rail).expect("at most 64 rails")));
        desk.inbox.ring();
    }
}

macro_rules! post {
    ($poller:expr, $now:expr) => {
        Post {
            index: $poller.index,
            now: $now,
            ports: &mut $poller.ports,
            local: &$poller.local,
            awake: &mut $poller.awake,
            shared: &$poller.shared,
        }
    };
}

impl<L: Link> Poller<L> {
    pub(crate) fn new(index: u16, shared: Arc<Shared>, home: Home, ports: Vec<Port<L>>) -> Self {
        let desk = Arc::clone(&shared.desks[usize::from(index)]);
        let mut local = vec![None; shared.rails.len()];
        for (at, port) in ports.iter().enumerate() {
            local[usize::from(port.rail)] = Some(at);
        }
        let bell = Arc::clone(&desk.bell);
        let awake = RailMask::default();
        let (life, turns, restless, first_port) = (Life::Running, 0, false, 0);
        let (busy_since, hashed_bytes) = (Nanos::NEVER, 0);
        let sleeps_next = false;
        Poller {
            index,
            shared,
            desk,
            bell,
            home,
            ports,
            local,
            awake,
            life,
            turns,
            restless,
            sleeps_next,
            first_port,
            busy_since,
            hashed_bytes,
        }
    }

    /// Called on the poller's own thread before its first turn.
    pub(crate) fn start(&mut self) {
        for port in &mut self.ports {
            port.link.start();
        }
    }

    /// One turn. Each stage does a bounded amount of work; completions come before submissions,
    /// because they free what those need.
    pub(crate) fn turn(&mut self, now: Nanos) -> Progress {
        if self.is_still() {
            self.busy_since = Nanos::NEVER;
            self.count(false);
            return Progress::Idle;
        }
        self.home.hashed_bytes = 0;
        self.home.now = now;
        let mut worked = self.listen(now);
        worked |= self.reap(now);
        worked |= self.home.hash(HASH_BYTES_PER_TURN, now, &mut post!(self, now));
        worked |= self.home.drain(now);
        worked |= self.home.admit(now, &mut post!(self, now));
        worked |= self.stage(now);
        if self.commit(now) {
            worked |= self.reap_at_once(now);
        }
        self.restless = self.timers(now) | self.home.has_starved() | self.spread_changes();
        worked |= self.restless;
        self.home.publish();
        self.end_turn_of_ports();
        self.account(now);
        self.count(worked);
        if worked { Progress::Worked } else { Progress::Idle }
    }

    /// Counts what is under way, the time since the last turn if something was, and what of this
    /// turn went into hashing.
    #[inline]
    fn account(&mut self, now: Nanos) {
        let counters = &self.desk.counters;
        counters.reads_in_progress.set(self.home.reads_in_progress().into());
        if self.busy_since != Nanos::NEVER {
            counters.busy.add(now.since(self.busy_since));
        }
        self.busy_since = now;
        let hashed = std::mem::take(&mut self.hashed_bytes) + self.home.hashed_bytes;
        if hashed >= HASHING_BYTES {
            self.busy_since = self.shared.clock.after_hashing(now, hashed);
            let took = self.busy_since.since(now);
            counters.busy.add(took);
            counters.hashing.add(took);
        }
    }

    /// Whether nothing is under way here and nobody has called: most turns of an idle engine.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        !self.restless && !self.bell.any_ready() && self.awake.is_empty() && self.home.is_still()
    }

    /// Whatever gives a port something to do wakes it; here those with nothing fall asleep.
    #[inline]
    fn end_turn_of_ports(&mut self) {
        for at in self.awake.iter() {
            self.hashed_bytes += self.ports[at].hashed_bytes;
            self.ports[at].end_turn();
            if self.ports[at].is_still() {
                self.awake = self.awake.without(RailMask::of(at));
            }
        }
    }

    /// Control messages, mail of other pollers, and which rings have something.
    fn listen(&mut self, now: Nanos) -> bool {
        if !self.bell.any_ready() {
            return false;
        }
        let (mut control, mut mail) = (false, false);
        let home = &mut self.home;
        self.bell.take_ready(|source| match source {
            SOURCE_CONTROL => control = true,
            SOURCE_MAIL => mail = true,
            ring => home.mark_ready(ring - SOURCE_RINGS),
        });
        if control {
            self.obey(now);
        }
        if mail {
            self.read_mail(now);
        }
        true
    }

    fn obey(&mut self, now: Nanos) {
        for message in self.desk.take() {
            match message {
                Control::Ring { seat, end, sq_entries, cq_entries } => {
                    self.home.seat(seat, *end, sq_entries, cq_entries);
                }
                Control::Orphan { seat, end } => self.home.adopt(seat, end),
                Control::Learn(object) => self.home.learn(object),
                Control::Close(handle) => self.home.close(handle),
                Control::Cancel(token) => {
                    self.home.cancel_token(token, now, &mut post!(self, now));
                }
                Control::Enable { rail, on } => self.enable(usize::from(rail), on),
                Control::ShareStats => self.share_stats(),
                Control::Stop => {
                    self.life = Life::Stopping;
                    self.home.stop_all(Status::CANCELLED, now, &mut post!(self, now));
                }
            }
        }
    }

    fn enable(&mut self, rail: usize, on: bool) {
        if let Some(port) = self.local[rail] {
            self.awake = self.awake.with(RailMask::of(port));
            self.ports[port].enable(on);
        }
    }

    fn share_stats(&self) {
        for port in &self.ports {
            *lock(&port.shared.link) = port.link.stats();
        }
    }

    fn read_mail(&mut self, now: Nanos) {
        while let Some(mail) = self.desk.inbox.receive() {
            match mail {
                Mail::Order { rail, order } => {
                    if let Some(port) = self.local[usize::from(rail)] {
                        self.awake = self.awake.with(RailMask::of(port));
                        self.ports[port].accept(order, now);
                    }
                }
                Mail::Cancel { rail, home, piece } => {
                    if let Some(port) = self.local[usize::from(rail)] {
                        self.awake = self.awake.with(RailMask::of(port));
                        self.ports[port].cancel(home, piece, now);
                    }
                }
                Mail::Done(done) => self.home.receive(done, now, &mut post!(self, now)),
            }
        }
    }

    /// Completions become news for their homes; those of this poller are told at once.
    fn reap(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for at in self.awake.iter_from(self.first_port) {
            any |= self.collect(at, now);
            self.ports[at].post_backlog(now);
        }
        self.first_port += 1;
        if self.first_port >= self.ports.len() {
            self.first_port = 0;
        }
        any
    }

    /// What came back while it was handed over, as from a page cache, ends in the turn that began
    /// it.
    fn reap_at_once(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for at in self.awake.iter() {
            any |= self.collect(at, now);
        }
        any
    }

    fn collect(&mut self, at: usize, now: Nanos) -> bool {
        let port = &mut self.ports[at];
        let mut any = port.has_flights() && port.reap(now, REAP_PER_TURN) > 0;
        while self.ports[at].hashed_bytes + self.home.hashed_bytes < HASH_BYTES_PER_TURN {
            let Some(reaped) = self.ports[at].reaped.pop_front() else { break };
            any = true;
            match self.ports[at].settle(reaped, now) {
                Some((home, mut done)) => {
                    let here = home == self.index;
                    if !(here && self.home.end_solo(&mut done, now)) {
                        self.tell(home, done, now);
                    }
                }
                // Impounded memory came back, perhaps somebody's staging.
                None => self.shared.feed_starving(),
            }
        }
        any | self.tell_news(at, now)
    }

    #[inline]
    fn tell(&mut self, home: u16, done: crate::mail::Done, now: Nanos) {
        if home == self.index {
            self.home.receive(done, now, &mut post!(self, now));
        } else {
            let desk = &self.shared.desks[usize::from(home)];
            desk.inbox.send(Mail::Done(done));
            desk.inbox.ring();
        }
    }

    /// What ended otherwise than by a completion. Telling a home can make it order again, which
    /// can be refused again; attempts bound that.
    #[inline]
    fn tell_news(&mut self, at: usize, now: Nanos) -> bool {
        !self.ports[at].news.is_empty() && self.tell_all_news(at, now)
    }

    fn tell_all_news(&mut self, at: usize, now: Nanos) -> bool {
        let mut any = false;
        while let Some((home, done)) = self.ports[at].news.pop_front() {
            any = true;
            self.tell(home, done, now);
        }
        any
    }

    fn stage(&mut self, now: Nanos) -> bool {
        self.home.refresh_rates(now);
        self.home.stage(now, &mut post!(self, now))
    }

    /// One doorbell per rail that something was queued for; says whether there was one.
    fn commit(&mut self, now: Nanos) -> bool {
        let mut any = false;
        let sleeper = if self.sleeps_next { self.sleeper() } else { None };
        for at in self.awake.iter() {
            if sleeper == Some(at) {
                self.ports[at].show_in_flight();
            } else {
                any |= self.ports[at].commit(now);
            }
        }
        any
    }

    /// Says whether anything was ended by them.
    fn timers(&mut self, now: Nanos) -> bool {
        let mut any = self.home.deadlines(now, &mut post!(self, now));
        for at in self.awake.iter() {
            self.ports[at].timers(now);
            any |= self.tell_news(at, now);
        }
        self.commit(now);
        any
    }

    /// A rail of this poller stands otherwise than before: every home looks at what waits for it.
    fn spread_changes(&mut self) -> bool {
        let mut any = false;
        for at in self.awake.iter() {
            any |= std::mem::take(&mut self.ports[at].changed);
        }
        if any {
            self.shared.desks.iter().for_each(|desk| desk.inbox.ring());
        }
        any
    }

    fn count(&mut self, worked: bool) {
        self.turns += 1;
        let counters = &self.desk.counters;
        counters.turns.set(self.turns);
        if worked {
            counters.turns_with_work.add(1);
        }
    }

    /// Those of its ports that may have something to do.
    fn awake_ports(&self) -> impl Iterator<Item = &Port<L>> {
        self.awake.iter().map(|at| &self.ports[at])
    }

    /// When the next turn has something to do if nothing comes in: now, at a time, or never.
    pub(crate) fn next_event(&self) -> Nanos {
        if let Life::Ghost { .. } = self.life {
            let timers = self.ports.iter().filter(|port| !port.dead).map(Port::next_timer);
            let now = self.bell.any_ready();
            return if now { Nanos(0) } else { timers.fold(Nanos::NEVER, Nanos::min) };
        }
        let pending =
            self.awake_ports().any(|port| !port.reaped.is_empty() || !port.news.is_empty());
        if pending || self.restless || self.home.has_work() || self.bell.any_ready() {
            return Nanos(0);
        }
        let timers = self.awake_ports().map(Port::next_timer);
        timers.fold(self.home.next_deadline(), Nanos::min)
    }

    /// Whether it was told to stop and everything has come to its end. A poller goes on while
    /// another's reads may still need its rails.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.may_drain() {
            self.life = Life::Draining;
            // AcqRel: whoever sees the last count also sees the mail that came before it.
            self.shared.idle_homes.fetch_add(1, Ordering::AcqRel);
            self.shared.desks.iter().for_each(|desk| desk.bell.wake());
        }
        self.may_end()
    }

    /// Whether it was told to stop and no read is left, neither in progress nor on a ring.
    fn may_drain(&self) -> bool {
        self.life == Life::Stopping && self.home.is_still() && !self.bell.any_ready()
    }

    /// Whether no poller has reads left and nothing is in flight here.
    fn may_end(&self) -> bool {
        self.life == Life::Draining
            && self.shared.idle_homes.load(Ordering::Acquire) >= self.shared.desks.len()
            && self.ports.iter().all(Port::is_idle)
    }
}

impl<L> Poller<L> {
    /// Makes no turn any more: its reads end here and now.
    pub(crate) fn abandon(&mut self) {
        self.home.fail_all();
    }
}
