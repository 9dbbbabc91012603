//! A simulated device: requests go through its pipe and come to its completion queue, in virtual
//! time.
//!
//! ```text
//!   post ──► pipe (bandwidth, first in first out) ──► travel (latency) ──► land ──► completion
//!     │                                                 ▲ agenda
//!     ├──► lost, hung                                    │
//!     └──► answered without bytes ──────────────────────┘
//! ```
//!
//! A request takes its turn in the pipe and then travels, so bandwidth serialises and latency
//! overlaps. Whatever happens, happens at its own time: `advance` takes the events up to `now` in
//! order, those of one time in a fixed order (script, flap, pipe, agenda, hold, late writes).

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use railring_transport::{Nanos, Outcome, PartTable, WrId};
use sq_cq::Status;

use crate::simulated::agenda::{Agenda, Event};
use crate::simulated::config::{Cancelling, Quiescing};
use crate::simulated::control::RailShared;
use crate::simulated::dice::{Dice, Opportunity};
use crate::simulated::fault::{Fault, FaultKind, Site};
use crate::simulated::flight::{Fate, Flight, Ghost, Half, Stage};
use crate::simulated::late::LateWrites;
use crate::simulated::pipe::Pipe;
use crate::simulated::seed;
use crate::simulated::stats::bump;

const ECONNRESET: i32 = 104;
const CANCELLED: Outcome = Outcome::Failed { status: Status::CANCELLED, vendor: 0 };

/// A completion as the device writes it: there may be nobody to whom it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCompletion {
    pub(crate) wr: WrId,
    pub(crate) outcome: Outcome,
}

/// A completion that waits to be overtaken.
#[derive(Clone, Copy, Debug)]
struct Held {
    completion: DeviceCompletion,
    until: Nanos,
}

/// A connection that breaks again and again.
#[derive(Clone, Copy, Debug)]
struct Flapping {
    next: Nanos,
    down_ns: u64,
    up_ns: u64,
}

/// What happens next, in the order in which things of one time happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Script,
    Flap,
    Pipe,
    Agenda,
    Hold,
    LateWrite,
}

/// The device and its connection.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Arc<RailShared>,
    /// The requests it has, parts and all.
    pub(crate) parts: PartTable<Flight>,
    /// Their ids by slot, to walk them.
    live: Box<[Option<WrId>]>,
    pub(crate) completed: VecDeque<DeviceCompletion>,
    pipe: Pipe,
    agenda: Agenda,
    script: VecDeque<(Nanos, Fault)>,
    flapping: Option<Flapping>,
    held: Option<Held>,
    late: LateWrites,
    pub(crate) dice: Dice,
    latency_rng: Rng,
    /// Which of the requests on a broken connection name the cause.
    cause_rng: Rng,
    /// The time it was advanced to.
    pub(crate) now: Nanos,
    /// The connection is broken until then.
    pub(crate) down_until: Nanos,
    /// The connection is set up again until then.
    pub(crate) reconnecting_until: Nanos,
    tearing_down: bool,
    /// Something was posted since the connection was last lost.
    is_connected: bool,
    posted: u64,
    /// Requests that hang.
    hung: u32,
}

impl Device {
    pub(crate) fn new(shared: Arc<RailShared>, seed: u64) -> Self {
        let config = &shared.config;
        let slots = config.limits().outstanding_wrs_max;
        let (dice, timed) = Dice::new(config.faults.clone(), seed, &config.name);
        Device {
            parts: PartTable::new(slots),
            live: vec![None; slots as usize].into(),
            // Ghosts come on top; what they need beyond this they allocate.
            completed: VecDeque::with_capacity(slots as usize),
            pipe: Pipe::new(config.bandwidth_bytes_per_second, slots),
            agenda: Agenda::new(2 * slots as usize),
            script: timed.into(),
            flapping: None,
            held: None,
            late: LateWrites::default(),
            dice,
            latency_rng: seed::stream(seed, &config.name, "latency", 0),
            cause_rng: seed::stream(seed, &config.name, "cause", 0),
            now: Nanos(0),
            down_until: Nanos(0),
            reconnecting_until: Nanos(0),
            tearing_down: false,
            is_connected: false,
            posted: 0,
            hung: 0,
            shared,
        }
    }

    /// Remembers that `wr` is in the table.
    pub(crate) fn enlist(&mut self, wr: WrId) {
        self.live[wr.slot as usize] = Some(wr);
    }

    /// Forgets `wr`, which has left the table.
    pub(crate) fn discharge(&mut self, wr: WrId) {
        self.live[wr.slot as usize] = None;
    }

    /// Takes a queued request.
    pub(crate) fn post(&mut self, wr: WrId) {
        let (now, mut fate) = (self.now, Fate::default());
        if !std::mem::replace(&mut self.is_connected, true) {
            self.shared.connections.made();
        }
        let Some((_, flight)) = self.parts.get_mut(wr) else { return };
        let endpoint = Some(flight.target.source.endpoint.as_str());
        let opportunity = |site| Opportunity { site, now, endpoint };
        self.dice.roll(opportunity(Site::Request), |fault, salt| fate.add(fault, salt));
        let mut strikes = Vec::new();
        self.dice.roll(opportunity(Site::Rail), |fault, _| strikes.push(fault));
        fate.latency_ns = self.shared.config.latency.sample(&mut self.latency_rng);
        self.posted += 1;
        (flight.fate, flight.posted) = (fate, self.posted);
        bump(&self.shared.counters.posted, 1);
        self.launch(wr, fate);
        for fault in strikes {
            self.strike(now, fault);
        }
    }

    /// Sends a posted request on its way.
    fn launch(&mut self, wr: WrId, fate: Fate) {
        let counters = &self.shared.counters;
        let Some((part, flight)) = self.parts.get_mut(wr) else { return };
        if let Some(returns_after_ns) = fate.hang {
            counters.fire(FaultKind::Hang);
            flight.stage = Stage::Hung;
            self.hung += 1;
            if let Some(after_ns) = returns_after_ns {
                self.agenda.plan(self.now.after(after_ns), Event::Returns(wr));
            }
        } else if fate.lost {
            counters.fire(FaultKind::Lost);
            flight.stage = Stage::Lost;
        } else if let Some((kind, status, vendor)) = fate.failure {
            counters.fire(kind);
            flight.stage = Stage::Travelling;
            let at = self.now.after(fate.latency_ns);
            let outcome = Outcome::Failed { status, vendor };
            self.agenda.plan(at, Event::Ends(wr, outcome));
        } else {
            flight.stage = Stage::Piped;
            self.pipe.push(self.now, wr, part.len() as u64);
        }
    }

    /// When something will happen, if nothing is asked of it before.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        if !self.completed.is_empty() {
            return Some(self.now);
        }
        self.next_source().map(|(at, _)| at)
    }

    fn next_source(&self) -> Option<(Nanos, Source)> {
        // Script and flapping matter only to what is in flight: an idle rail has no events.
        let busy = self.parts.held() > 0;
        let script = self.script.front().map(|(at, _)| *at).filter(|_| busy);
        let flap = self.flapping.map(|flapping| flapping.next).filter(|_| busy);
        [
            (script, Source::Script),
            (flap, Source::Flap),
            (self.pipe.next_finish(), Source::Pipe),
            (self.agenda.next(), Source::Agenda),
            (self.held.map(|held| held.until), Source::Hold),
            (self.late.next(), Source::LateWrite),
        ]
        .into_iter()
        .filter_map(|(at, source)| Some((at?, source)))
        .min()
    }

    /// Lets everything happen that happens until `now`.
    pub(crate) fn advance(&mut self, now: Nanos) {
        self.catch_up_idle(now);
        while let Some((at, source)) = self.next_source().filter(|(at, _)| *at <= now) {
            self.now = self.now.max(at);
            match source {
                Source::Script => self.run_script(),
                Source::Flap => self.run_flap(),
                Source::Pipe => self.leave_pipe(now),
                Source::Agenda => self.run_agenda(),
                Source::Hold => self.release_held(),
                Source::LateWrite => bump(&self.shared.counters.late_writes, self.late.run(at)),
            }
        }
        self.catch_up_idle(now);
        self.now = self.now.max(now);
    }

    /// What is scripted for a time when nothing was in flight happens without being an event.
    fn catch_up_idle(&mut self, now: Nanos) {
        if self.parts.held() > 0 {
            return;
        }
        while self.script.front().is_some_and(|(at, _)| *at <= now) {
            self.run_script();
        }
        if let Some(flapping) = self.flapping.filter(|flapping| flapping.next <= now) {
            // Only the last break before now can still be felt.
            let period_ns = flapping.down_ns.saturating_add(flapping.up_ns);
            let skipped_ns = now.since(flapping.next) / period_ns * period_ns;
            self.flapping = Some(Flapping { next: flapping.next.after(skipped_ns), ..flapping });
            self.run_flap();
        }
    }

    fn run_script(&mut self) {
        if let Some((at, fault)) = self.script.pop_front() {
            self.strike(at, fault);
        }
    }

    fn run_flap(&mut self) {
        let Some(Flapping { next, down_ns, up_ns }) = self.flapping else { return };
        let again = next.after(down_ns.saturating_add(up_ns));
        // At the end of time there is no next break.
        self.flapping = (again < Nanos::NEVER).then_some(Flapping { next: again, down_ns, up_ns });
        self.shared.counters.fire(FaultKind::Flap);
        self.break_connection(next, down_ns);
    }

    /// Lets a fault of the rail happen.
    fn strike(&mut self, at: Nanos, fault: Fault) {
        self.shared.counters.fire(fault.kind());
        match fault {
            Fault::Disconnect { down_ns } => self.break_connection(at, down_ns),
            Fault::Flap { down_ns, up_ns } => {
                let next = at.after(down_ns.saturating_add(up_ns));
                self.flapping = Some(Flapping { next, down_ns, up_ns });
                self.break_connection(at, down_ns);
            }
            Fault::Stall { stall_ns } => {
                self.pipe.stall(at, at.after(stall_ns));
                self.agenda.stall(at, stall_ns);
            }
            Fault::Rate { bytes_per_second } => self.pipe.set_rate(at, bytes_per_second),
            // Not the rail's: `FaultKind::site` keeps them away.
            _ => {}
        }
    }

    /// The connection is gone: the first request in flight fails with the cause, each of the others
    /// with it or as flushed, as devices differ in how many they name.
    fn break_connection(&mut self, at: Nanos, down_ns: u64) {
        self.down_until = self.down_until.max(at.after(down_ns));
        let reset = Outcome::Failed { status: Status::from_errno(ECONNRESET), vendor: 0 };
        for (index, wr) in self.lose_connection().into_iter().enumerate() {
            let flushed = index > 0 && self.cause_rng.bool();
            self.complete(wr, if flushed { Outcome::Flushed } else { reset });
        }
    }

    /// Tears the connection down so that what was asked back becomes quiet.
    fn tear_down(&mut self) {
        self.tearing_down = false;
        bump(&self.shared.counters.teardowns, 1);
        let Quiescing::TearDown { reconnect_ns, .. } = self.shared.config.quiesce else { return };
        self.reconnecting_until = self.now.after(reconnect_ns);
        for wr in self.lose_connection() {
            let unwanted = self.parts.get_mut(wr).is_some_and(|(_, flight)| flight.unwanted);
            self.complete(wr, if unwanted { CANCELLED } else { Outcome::Flushed });
        }
    }

    /// The requests that a lost connection gives back, in the order in which they were posted.
    fn lose_connection(&mut self) -> Vec<WrId> {
        self.pipe.clear(self.now);
        if std::mem::take(&mut self.is_connected) {
            self.shared.connections.retired();
        }
        let mut victims = Vec::new();
        for wr in self.live.iter().flatten() {
            let Some((_, flight)) = self.parts.get_mut(*wr) else { continue };
            match flight.stage {
                Stage::Queued | Stage::Hung | Stage::Completed => {}
                Stage::Piped | Stage::Travelling | Stage::Lost | Stage::Ending => {
                    victims.push((flight.posted, *wr));
                }
            }
        }
        victims.sort_unstable_by_key(|(posted, _)| *posted);
        victims.into_iter().map(|(_, wr)| wr).collect()
    }

    /// The first load is through the pipe: it travels on.
    fn leave_pipe(&mut self, now: Nanos) {
        let Some((at, wr)) = self.pipe.finish(now) else { return };
        let Some((_, flight)) = self.parts.get_mut(wr) else { return };
        let fate = flight.fate;
        let mut lands = at.after(fate.latency_ns);
        if let Some(delay_ns) = fate.delay_ns {
            self.shared.counters.fire(FaultKind::Delay);
            lands = lands.after(delay_ns);
        }
        flight.stage = Stage::Travelling;
        let event = if fate.tail_gap_ns.is_some() { Event::TailLands } else { Event::Lands };
        self.agenda.plan(lands, event(wr));
    }

    fn run_agenda(&mut self) {
        let Some((at, event)) = self.agenda.pop() else { return };
        match event {
            Event::TailLands(wr) if self.is_flying(wr) => self.land_tail(wr, at),
            // A request that is being given up completes as whichever comes first.
            Event::Lands(wr) if self.is_flying(wr) => self.land(wr),
            Event::Ends(wr, outcome) if self.is_flying(wr) => self.end(wr, outcome),
            Event::Returns(wr) if self.is_flying(wr) => self.let_go(wr),
            Event::Ghost(wr) => {
                // A repetition never comes before what it repeats.
                if self.held.is_some_and(|held| held.completion.wr == wr) {
                    self.release_held();
                }
                self.haunt(FaultKind::DuplicateCompletion, wr);
            }
            Event::Teardown => self.tear_down(),
            // Of a request that came back since.
            Event::TailLands(_) | Event::Lands(_) | Event::Ends(..) | Event::Returns(_) => {}
        }
    }

    fn is_flying(&mut self, wr: WrId) -> bool {
        self.parts.get_mut(wr).is_some_and(|(_, flight)| flight.stage != Stage::Completed)
    }

    fn land_tail(&mut self, wr: WrId, at: Nanos) {
        let Some((part, flight)) = self.parts.get_mut(wr) else { return };
        self.shared.counters.fire(FaultKind::TailFirst);
        flight.land_half(part, Half::Second);
        let lands = at.after(flight.fate.tail_gap_ns.unwrap_or(0));
        self.agenda.plan(lands, Event::Lands(wr));
    }

    fn land(&mut self, wr: WrId) {
        let Some((part, flight)) = self.parts.get_mut(wr) else { return };
        let outcome = flight.land(part, &self.shared.counters);
        self.complete(wr, outcome);
    }

    /// A hung request comes back after all: with its bytes, unless nobody wants them any more.
    fn let_go(&mut self, wr: WrId) {
        match self.parts.get_mut(wr) {
            Some((_, flight)) if flight.unwanted => self.complete(wr, CANCELLED),
            _ => self.land(wr),
        }
    }

    /// Whether something hangs.
    pub(crate) fn has_hung(&self) -> bool {
        self.hung > 0
    }

    /// All that hangs comes back now.
    pub(crate) fn let_all_go(&mut self) {
        for slot in 0..self.live.len() {
            let Some(wr) = self.live[slot].filter(|_| self.hung > 0) else { continue };
            if self.parts.get_mut(wr).is_some_and(|(_, flight)| flight.stage == Stage::Hung) {
                self.let_go(wr);
            }
        }
    }

    /// A request ends without its bytes; if it was given up on the way, some of them have landed.
    fn end(&mut self, wr: WrId, outcome: Outcome) {
        if let Some((part, flight)) = self.parts.get_mut(wr)
            && flight.stage == Stage::Ending
        {
            flight.land_half(part, Half::First);
            bump(&self.shared.counters.landed_unwanted, 1);
        }
        self.complete(wr, outcome);
    }

    /// Writes the completion of `wr`, and what its fate puts around it.
    fn complete(&mut self, wr: WrId, outcome: Outcome) {
        let now = self.now;
        let Some((part, flight)) = self.parts.get_mut(wr) else { return };
        self.hung -= u32::from(flight.stage == Stage::Hung);
        flight.stage = Stage::Completed;
        let fate = flight.fate;
        if let (Some(after_ns), Outcome::Done { .. }) = (fate.late_write_ns, outcome) {
            self.shared.counters.fire(FaultKind::LateWrite);
            self.late.plan(now.after(after_ns), flight, part, &self.shared.regions);
        }
        let completion = DeviceCompletion { wr, outcome };
        match fate.hold_ns {
            Some(hold_ns) if self.held.is_none() => {
                self.held = Some(Held { completion, until: now.after(hold_ns) });
            }
            _ => {
                self.completed.push_back(completion);
                if self.held.is_some() {
                    self.shared.counters.fire(FaultKind::Reorder);
                    self.release_held();
                }
            }
        }
        match fate.ghost {
            None => {}
            Some(Ghost::Duplicate { after_ns }) => {
                self.agenda.plan(now.after(after_ns), Event::Ghost(wr));
            }
            Some(Ghost::Old) => {
                let generation = wr.generation.wrapping_sub(1);
                self.haunt(FaultKind::OldCompletion, WrId { generation, ..wr });
            }
            Some(Ghost::Unknown) => {
                let slot = u32::MAX - wr.slot;
                self.haunt(FaultKind::UnknownCompletion, WrId { slot, ..wr });
            }
        }
    }

    fn release_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.completed.push_back(held.completion);
        }
    }

    /// Writes a completion that belongs to nobody.
    fn haunt(&mut self, kind: FaultKind, wr: WrId) {
        self.shared.counters.fire(kind);
        self.completed.push_back(DeviceCompletion { wr, outcome: Outcome::Done { bytes: 0 } });
    }

    /// Drops a request, if it can.
    pub(crate) fn cancel(&mut self, wr: WrId) {
        if let Cancelling::Honoured { after_ns } = self.shared.config.cancel {
            self.give_up(wr, after_ns);
        }
    }

    /// Makes a request quiet, as this device does that.
    pub(crate) fn quiesce(&mut self, wr: WrId) {
        let Some((_, flight)) = self.parts.get_mut(wr) else { return };
        flight.unwanted = true;
        if flight.stage == Stage::Completed {
            return;
        }
        match self.shared.config.quiesce {
            Quiescing::Lie { writes_after_ns } => self.lie(wr, writes_after_ns),
            Quiescing::WireCancel { after_ns } => self.give_up(wr, after_ns),
            Quiescing::TearDown { after_ns, .. } => {
                if !std::mem::replace(&mut self.tearing_down, true) {
                    self.agenda.plan(self.now.after(after_ns), Event::Teardown);
                }
            }
        }
    }

    /// Plans the end of a request that is no longer wanted.
    fn give_up(&mut self, wr: WrId, after_ns: u64) {
        let Some((_, flight)) = self.parts.get_mut(wr) else { return };
        match flight.stage {
            Stage::Queued | Stage::Hung | Stage::Ending | Stage::Completed => {}
            Stage::Piped | Stage::Travelling | Stage::Lost => {
                self.pipe.remove(self.now, wr);
                flight.stage = Stage::Ending;
                let at = self.now.after(after_ns);
                self.agenda.plan(at, Event::Ends(wr, CANCELLED));
            }
        }
    }

    /// Gives the part back though its bytes will still be written.
    fn lie(&mut self, wr: WrId, writes_after_ns: u64) {
        let Some((part, flight)) = self.parts.get_mut(wr) else { return };
        let at = self.now.after(writes_after_ns);
        self.late.plan(at, flight, part, &self.shared.regions);
        bump(&self.shared.counters.lies, 1);
        self.pipe.remove(self.now, wr);
        self.complete(wr, CANCELLED);
    }

    /// Gives back a queued request that the device never saw.
    pub(crate) fn return_queued(&mut self, wr: WrId, status: Status) {
        self.complete(wr, Outcome::Failed { status, vendor: 0 });
    }
}
