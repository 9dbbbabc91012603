//! A rail as its own poller sees it: what is in flight, since when, and what is being given up.
//!
//! Every piece is in one of four phases, each in posting order, so that what is overdue is always
//! at a list's front and nothing is scanned:
//!
//! ```text
//!   posted ──io_timeout, or the home cancels──► cancelling ──grace──► quiescing ──bound──► stuck
//!      └──────────────┴───────── its completion ───────────┴──────────────┘
//! ```

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use railring_dma::Part;
use railring_transport::{Completion, Link, Nanos, Refused, WorkRequest, WrId};
use sq_cq::Status;

use crate::config::EngineConfig;
use crate::health::Standing;
use crate::home::Piece;
use crate::mail::{Done, Hash, News, Order};
use crate::poller::rate::RateMeter;
use crate::shared::RailShared;
use crate::slab::{Id, Linked, Links, List, NONE, Slab};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Posted,
    Cancelling,
    Quiescing,
    Stuck,
}

const FLIGHTS: usize = 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    home: u16,
    piece: Id<Piece>,
    bytes: u64,
    /// With fewer it is not done.
    pub(super) bytes_min: u64,
    pub(super) hash: Hash,
    pub(super) posted_at: Nanos,
    /// When the present phase began.
    since: Nanos,
    phase: Phase,
    /// Why it is being given up.
    pub(super) cause: Status,
    links: Links,
}

impl Linked<FLIGHTS> for Flight {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Where a home's piece is on this rail.
const BACKLOGGED: u32 = NONE - 1;

/// A completion that waits for its hash and its way home.
#[derive(Debug)]
pub(crate) struct Reaped {
    pub(crate) completion: Completion,
}

#[derive(Debug)]
pub(super) struct Bounds {
    io_timeout_ns: u64,
    cancel_grace_ns: u64,
    quiet_bound_ns: u64,
    pub(super) cooldown_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Port<L> {
    pub(crate) rail: u16,
    pub(crate) link: L,
    pub(super) flights: Slab<Flight>,
    posted: List<FLIGHTS>,
    cancelling: List<FLIGHTS>,
    quiescing: List<FLIGHTS>,
    /// Orders that found no room, oldest first, since when.
    pub(super) backlog: VecDeque<(Nanos, Order)>,
    /// Per home: the flight, or backlog, of each of its piece slots.
    by_home: Vec<Box<[u32]>>,
    in_flight_bytes: u64,
    /// What the counters say is in flight: requests and bytes.
    shown_in_flight: (u32, u64),
    in_flight_bytes_max: u64,
    /// Flights that were reported as stuck.
    pub(super) stuck: u32,
    /// The rail stands otherwise than before, and the homes were not told yet.
    pub(super) changed: bool,
    /// The link panicked twice: it is not asked any more.
    pub(super) dead: bool,
    /// Its poller has panicked, and it was looked through since.
    pub(super) haunted: bool,
    /// Something was queued since the last commit, or a cancel asked for.
    dirty: bool,
    pub(crate) reaped: VecDeque<Reaped>,
    /// Pieces that ended otherwise than by a completion, on their way home.
    pub(crate) news: VecDeque<(u16, Done)>,
    /// Bytes hashed, and completions taken from the link, since the turn began.
    pub(crate) hashed_bytes: u64,
    reaped_in_turn: usize,
    pub(super) rate: RateMeter,
    pub(super) bounds: Bounds,
    pub(super) faults: u32,
    pub(super) doublings: u32,
    pub(super) cooling_until: Nanos,
    /// When a probe that was taken and never came is offered again.
    pub(super) probe_again_at: Nanos,
    pub(crate) shared: Arc<RailShared>,
}

impl<L: Link> Port<L> {
    pub(crate) fn new(
        rail: u16,
        link: L,
        config: &EngineConfig,
        homes: usize,
        pieces: u32,
        shared: Arc<RailShared>,
    ) -> Self {
        let limits = link.limits();
        let wrs_max = limits.outstanding_wrs_max.min(config.limits.rail_pieces_max);
        let wrs = limits.outstanding_wrs_max as usize;
        let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Port {
            rail,
            link,
            // All homes share the window, so it is here that it is kept.
            flights: Slab::new(wrs_max),
            posted: List::default(),
            cancelling: List::default(),
            quiescing: List::default(),
            backlog: VecDeque::with_capacity(wrs * homes),
            by_home: (0..homes).map(|_| vec![NONE; pieces as usize].into()).collect(),
            in_flight_bytes: 0,
            shown_in_flight: (0, 0),
            in_flight_bytes_max: config.limits.rail_bytes_max,
            stuck: 0,
            changed: false,
            dead: false,
            haunted: false,
            dirty: false,
            reaped: VecDeque::with_capacity(wrs),
            news: VecDeque::with_capacity(wrs),
            hashed_bytes: 0,
            reaped_in_turn: 0,
            rate: RateMeter::default(),
            bounds: Bounds {
                io_timeout_ns: nanos(config.io_timeout),
                cancel_grace_ns: nanos(config.cancel_grace),
                quiet_bound_ns: nanos(config.quiet_bound),
                cooldown_ns: nanos(config.cooldown),
            },
            faults: 0,
            doublings: 0,
            cooling_until: Nanos(0),
            probe_again_at: Nanos(0),
            shared,
        }
    }

    /// Whether nothing is in flight but what is stuck.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.len() == self.stuck && self.backlog.is_empty() && self.reaped.is_empty()
    }

    /// Whether nothing is in flight, on its way, or waited for.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        self.flights.is_empty()
            && self.backlog.is_empty()
            && self.reaped.is_empty()
            && self.news.is_empty()
            && !self.dirty
            && !self.changed
            && !matches!(self.shared.state.get(), Standing::Cooling | Standing::Probed)
    }

    /// Whether anything is in the link's hands.
    #[inline]
    pub(crate) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// What to wait for while something is in flight.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.has_flights() { self.link.event_fd() } else { None }
    }

    /// Takes an order from a home. It is posted now or as soon as the link has room.
    #[inline]
    pub(crate) fn accept(&mut self, order: Order, now: Nanos) {
        if self.backlog.is_empty() && self.has_room(&order) {
            self.post(order, now, now);
        } else {
            self.by_home[order.home as usize][order.piece.slot as usize] = BACKLOGGED;
            self.backlog.push_back((now, order));
        }
    }

    /// Whether the window has room; one request is always let through.
    #[inline]
    fn has_room(&self, order: &Order) -> bool {
        let bytes = order.part.len() as u64;
        !self.flights.is_full()
            && (self.flights.is_empty()
                || self.in_flight_bytes.saturating_add(bytes) <= self.in_flight_bytes_max)
    }

    #[inline]
    fn post(&mut self, order: Order, accepted_at: Nanos, now: Nanos) {
        let Order { home, piece, target, offset, bytes_min, part, hash } = order;
        let bytes = part.len() as u64;
        let flight = Flight {
            home,
            piece,
            bytes,
            bytes_min,
            hash,
            posted_at: now,
            since: now,
            phase: Phase::Posted,
            cause: Status::OK,
            links: Links::default(),
        };
        let id = self.flights.put(flight);
        let wr = WrId { slot: id.slot, generation: id.generation };
        let request = WorkRequest { wr, target, offset, bytes_min, part };
        if let Err(refused) = self.link.queue(request) {
            self.unpost(id.slot, refused, accepted_at, now);
            return;
        }
        self.dirty = true;
        self.posted.push_back(&mut self.flights, id.slot);
        self.by_home[home as usize][piece.slot as usize] = id.slot;
        self.in_flight_bytes += bytes;
    }

    /// The link did not take what was being posted.
    #[cold]
    fn unpost(&mut self, slot: u32, refused: Refused, accepted_at: Nanos, now: Nanos) {
        let Flight { home, piece, hash, .. } = self.flights.remove_at(slot);
        match refused {
            Refused::Full(WorkRequest { target, offset, bytes_min, part, .. }) => {
                let order = Order { home, piece, target, offset, bytes_min, part, hash };
                self.by_home[home as usize][piece.slot as usize] = BACKLOGGED;
                self.backlog.push_front((accepted_at, order));
            }
            Refused::Failed { request, status } => {
                self.by_home[home as usize][piece.slot as usize] = NONE;
                self.note_fault(status, now);
                self.shared.counters.fail(status);
                let news_of = News::Failed { status };
                let done = self.done(piece, Some(request.part), news_of);
                self.news.push_back((home, done));
            }
        }
    }

    /// Posts what waited for room, as far as there is room.
    pub(crate) fn post_backlog(&mut self, now: Nanos) {
        for _ in 0..self.backlog.len() {
            if !self.backlog.front().is_some_and(|(_, order)| self.has_room(order)) {
                return;
            }
            let Some((accepted_at, order)) = self.backlog.pop_front() else { return };
            let waiting = self.backlog.len();
            self.post(order, accepted_at, now);
            if self.backlog.len() > waiting {
                return; // The link is full.
            }
        }
    }

    /// A home no longer wants its piece.
    pub(crate) fn cancel(&mut self, home: u16, piece: Id<Piece>, now: Nanos) {
        match self.by_home[home as usize][piece.slot as usize] {
            NONE => {}
            BACKLOGGED => {
                let wanted =
                    |(_, order): &(Nanos, Order)| order.home == home && order.piece == piece;
                let at = self.backlog.iter().position(wanted);
                if let Some((_, order)) = at.and_then(|at| self.backlog.remove(at)) {
                    self.shared.counters.cancelled.add(1);
                    self.decline(order, News::Failed { status: Status::CANCELLED });
                }
            }
            slot => {
                let flight = self.flights.at(slot);
                if flight.piece == piece && flight.home == home && flight.phase == Phase::Posted {
                    self.give_up(slot, Status::CANCELLED, now);
                }
            }
        }
    }

    /// Gives up everything that was posted.
    pub(super) fn call_all_back(&mut self, cause: Status, now: Nanos) {
        while let Some(slot) = self.posted.front() {
            self.give_up(slot, cause, now);
        }
    }

    fn wr(&self, slot: u32) -> WrId {
        WrId { slot, generation: self.flights.id_of(slot).generation }
    }

    fn give_up(&mut self, slot: u32, cause: Status, now: Nanos) {
        self.posted.remove(&mut self.flights, slot);
        self.enter(slot, Phase::Cancelling, now);
        self.flights.at(slot).cause = cause;
        self.cancelling.push_back(&mut self.flights, slot);
        self.link.cancel(self.wr(slot), now);
        self.dirty = true;
    }

    /// Gives up what takes too long; each list's front is its oldest.
    #[inline]
    pub(crate) fn timers(&mut self, now: Nanos) {
        let in_order = self.backlog.is_empty()
            && self.flights.len() == self.posted.len()
            && self.shared.state.get() == Standing::Up;
        if !in_order || self.overdue(self.posted, self.bounds.io_timeout_ns, now).is_some() {
            self.every_timer(now);
        }
    }

    fn every_timer(&mut self, now: Nanos) {
        self.give_up_waiting(now);
        while let Some(slot) = self.overdue(self.posted, self.bounds.io_timeout_ns, now) {
            self.shared.counters.timeouts.add(1);
            self.note_fault(Status::TIMED_OUT, now);
            self.give_up(slot, Status::TIMED_OUT, now);
        }
        while let Some(slot) = self.overdue(self.cancelling, self.bounds.cancel_grace_ns, now) {
            self.cancelling.remove(&mut self.flights, slot);
            self.enter(slot, Phase::Quiescing, now);
            self.quiescing.push_back(&mut self.flights, slot);
            self.link.quiesce(self.wr(slot), now);
            self.dirty = true;
        }
        while let Some(slot) = self.overdue(self.quiescing, self.bounds.quiet_bound_ns, now) {
            self.quiescing.remove(&mut self.flights, slot);
            self.enter(slot, Phase::Stuck, now);
            self.stuck += 1;
            self.shared.counters.stuck.add(1);
            self.note_fault(Status::STUCK, now);
            let flight = self.flights.at(slot);
            let (home, piece) = (flight.home, flight.piece);
            let cause = flight.cause;
            self.by_home[home as usize][piece.slot as usize] = NONE;
            let done = self.done(piece, None, News::Stuck { cause });
            self.news.push_back((home, done));
        }
        self.time_probes(now);
    }

    /// Orders that wait for room longer than an attempt may take fail, as do all when nothing but
    /// stuck requests is left in the window.
    fn give_up_waiting(&mut self, now: Nanos) {
        let hopeless = self.stuck > 0 && self.stuck == self.flights.len();
        while let Some((since, order)) = self.backlog.front() {
            let late = now.since(*since) >= self.bounds.io_timeout_ns;
            if !(late || (hopeless && !self.has_room(order))) {
                return;
            }
            let Some((_, order)) = self.backlog.pop_front() else { return };
            let status = if late { Status::TIMED_OUT } else { Status::RAIL_DOWN };
            self.shared.counters.fail(status);
            self.decline(order, News::Failed { status });
        }
    }

    fn overdue(&mut self, list: List<FLIGHTS>, after_ns: u64, now: Nanos) -> Option<u32> {
        let slot = list.front()?;
        (now.since(self.flights.at(slot).since) >= after_ns).then_some(slot)
    }

    /// When [`Port::timers`] next has something to do.
    pub(crate) fn next_timer(&self) -> Nanos {
        let due = |list: &List<FLIGHTS>, after_ns: u64| {
            list.front().map_or(Nanos::NEVER, |slot| self.flights.peek(slot).since.after(after_ns))
        };
        let cooling =
            if self.cooling_until == Nanos(0) { Nanos::NEVER } else { self.cooling_until };
        let waiting = self
            .backlog
            .front()
            .map_or(Nanos::NEVER, |(since, _)| since.after(self.bounds.io_timeout_ns));
        // A link that holds nothing of ours may still have completions that belong to nobody.
        let link = if self.flights.is_empty() && self.backlog.is_empty() {
            None
        } else {
            self.link.next_event()
        };
        due(&self.posted, self.bounds.io_timeout_ns)
            .min(waiting)
            .min(due(&self.cancelling, self.bounds.cancel_grace_ns))
            .min(due(&self.quiescing, self.bounds.quiet_bound_ns))
            .min(cooling)
            .min(if self.probe_is_lost() { self.probe_again_at } else { Nanos::NEVER })
            .min(link.unwrap_or(Nanos::NEVER))
    }

    /// One doorbell for everything queued; says whether there was anything.
    #[inline]
    pub(crate) fn commit(&mut self, now: Nanos) -> bool {
        let rings = self.dirty;
        if rings {
            self.link.commit(now);
            self.dirty = self.link.has_uncommitted();
        }
        self.show_in_flight();
        rings
    }

    /// Whether its link waits for something and can sleep until it is there.
    pub(crate) fn can_sleep(&self) -> bool {
        self.has_flights() && self.link.can_sleep()
    }

    /// Whether its doorbell is still to be rung.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Sleeps in its link, which rings the doorbell as well.
    pub(crate) fn sleep(&mut self, bell: BorrowedFd<'_>, at_most: Option<Duration>) -> Option<()> {
        self.link.sleep(bell, at_most)?;
        self.dirty = self.link.has_uncommitted();
        Some(())
    }

    /// Says how much is in flight.
    #[inline]
    pub(crate) fn show_in_flight(&mut self) {
        // Also after the last completion, so that an idle rail shows nothing in flight.
        let (in_flight, bytes) = (self.flights.len(), self.in_flight_bytes);
        if self.shown_in_flight != (in_flight, bytes) {
            self.shown_in_flight = (in_flight, bytes);
            let counters = &self.shared.counters;
            counters.in_flight.set(in_flight.into());
            counters.in_flight_peak.raise_to(in_flight.into());
            counters.in_flight_bytes.set(bytes);
            counters.in_flight_bytes_peak.raise_to(bytes);
        }
    }

    /// Collects completions, so that they are at most `most` in a turn; says how many.
    #[inline]
    pub(crate) fn reap(&mut self, now: Nanos, most: usize) -> usize {
        let Port { link, reaped, reaped_in_turn, .. } = self;
        let sink = &mut |completion| reaped.push_back(Reaped { completion });
        let count = link.reap(now, most.saturating_sub(*reaped_in_turn), sink);
        *reaped_in_turn += count;
        count
    }

    /// The next turn has its own budgets.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        (self.reaped_in_turn, self.hashed_bytes) = (0, 0);
    }

    /// Hashes one completion if its home asked for that, and makes the news of it.
    #[inline]
    pub(crate) fn settle(&mut self, reaped: Reaped, now: Nanos) -> Option<(u16, Done)> {
        let Completion { wr, part, outcome } = reaped.completion;
        let id = Id::new(wr.slot, wr.generation);
        let Some(&mut flight) = self.flights.get_mut(id) else {
            // A link brought a part it was not given under this name: a bug in the transport. The
            // part is dropped, which leaks its memory rather than hand it to the wrong read.
            self.shared.counters.strays.add(1);
            return None;
        };
        match flight.phase {
            Phase::Posted => self.posted.remove(&mut self.flights, wr.slot),
            Phase::Cancelling => self.cancelling.remove(&mut self.flights, wr.slot),
            Phase::Quiescing => self.quiescing.remove(&mut self.flights, wr.slot),
            Phase::Stuck => {
                // Its home was told long ago: the memory goes back to where it was impounded.
                self.flights.free_at(wr.slot);
                self.in_flight_bytes -= flight.bytes;
                self.stuck -= 1;
                self.shared.impound.repay(part);
                return None;
            }
        }
        self.flights.free_at(wr.slot);
        self.in_flight_bytes -= flight.bytes;
        self.by_home[flight.home as usize][flight.piece.slot as usize] = NONE;
        let news = self.judge(&flight, &part, outcome, now);
        let done = self.done(flight.piece, Some(part), news);
        Some((flight.home, done))
    }
}

impl<L> Port<L> {
    fn done(&self, piece: Id<Piece>, part: Option<Part>, news: News) -> Done {
        Done { rail: self.rail, piece, part, news }
    }

    /// Gives an order back that was never posted: its memory was never in doubt.
    fn decline(&mut self, order: Order, news: News) {
        self.by_home[order.home as usize][order.piece.slot as usize] = NONE;
        let done = self.done(order.piece, Some(order.part), news);
        self.news.push_back((order.home, done));
    }

    /// What the link holds and what waits for it, as far as that is known.
    pub(super) fn flights_known(&self) -> (u32, usize) {
        (self.flights.len() - self.stuck.min(self.flights.len()), self.backlog.len())
    }

    /// Gives back what waits for room, because the rail's poller has failed.
    pub(super) fn return_backlog_as(&mut self, status: Status) {
        while let Some((_, order)) = self.backlog.pop_front() {
            self.decline(order, News::Failed { status });
        }
    }

    fn enter(&mut self, slot: u32, phase: Phase, now: Nanos) {
        let flight = self.flights.at(slot);
        flight.phase = phase;
        flight.since = now;
    }

    /// What was being posted, or settled, when the poller panicked is in no list: it is made quiet.
    pub(super) fn list_the_unlisted(&mut self, cause: Status, now: Nanos) {
        for slot in self.flights.taken() {
            let flight = self.flights.at(slot);
            if flight.phase == Phase::Stuck || flight.links.is_linked() {
                continue;
            }
            flight.cause = cause;
            self.enter(slot, Phase::Quiescing, now);
            self.quiescing.push_back(&mut self.flights, slot);
        }
    }

    /// Says of everything in flight that it is stuck.
    pub(super) fn call_all_stuck(&mut self, cause: Status) {
        for slot in self.flights.taken() {
            let flight = self.flights.at(slot);
            if std::mem::replace(&mut flight.phase, Phase::Stuck) == Phase::Stuck {
                continue;
            }
            let (home, piece) = (flight.home, flight.piece);
            self.by_home[home as usize][piece.slot as usize] = NONE;
            let done = self.done(piece, None, News::Stuck { cause });
            self.news.push_back((home, done));
        }
    }

    /// Gives back what waits for room: other rails may have some.
    pub(super) fn return_backlog(&mut self) {
        while let Some((_, order)) = self.backlog.pop_front() {
            self.decline(order, News::Flushed);
        }
    }
}
