//! A link that tells what is asked of it and what it answers, and counts what it holds.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use railring_sim::SimLink;
use railring_transport::{
    Completion, Link, LinkLimits, LinkStats, Nanos, Outcome, Refused, WorkRequest, WrId,
};
use sq_cq::Blame;

use super::trace::{About, Trace, What};

/// What rails do, seen from outside of the engine.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) trace: Trace,
    pub(crate) rails: Vec<Holding>,
    /// What the turn in progress has asked of each rail.
    pub(crate) turn: Vec<Used>,
    /// By whose fault requests were refused when they were queued or posted.
    pub(crate) post_failures: Vec<Blame>,
    /// Addresses of the memory of reads: start, end, read.
    pub(crate) reads: Vec<(usize, usize, u64)>,
    /// The first promise that was broken, if one was.
    pub(crate) broken: Option<String>,
    pub(crate) limits: Ceilings,
}

/// What a rail holds now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    pub(crate) wrs: u32,
    pub(crate) bytes: u64,
    /// Where each request will be written: WR, start, end.
    pub(crate) out: Vec<(WrId, usize, usize)>,
    /// Longest request so far.
    pub(crate) request_bytes_max: u64,
    pub(crate) flushed: u64,
    pub(crate) ever: u64,
    /// When its descriptor becomes readable, if the engine is not told the time.
    pub(crate) event_at: Option<Nanos>,
    /// Its poller sleeps on its descriptor.
    pub(crate) armed: bool,
}

/// What one turn asked of a rail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    queued: u32,
    refused: u32,
    doorbells: u32,
    looks: u32,
    reaped: u32,
}

/// Completions that one turn takes from a rail at most.
const REAP_PER_TURN: u32 = 256;
/// Doorbells of one turn on a rail: for what was staged, and for what timers let go on.
const DOORBELLS_PER_TURN: u32 = 2;
/// Looks of one turn at a rail: before anything goes out, and behind the doorbell.
const LOOKS_PER_TURN: u32 = 2;

impl Used {
    /// What a turn did more often than it may, if it did.
    pub(crate) fn over(&self, window_wrs: u32) -> Option<String> {
        let Used { queued, doorbells, looks, reaped, .. } = *self;
        let limits = [
            // Only what came back makes room.
            ("queued to", queued, window_wrs + reaped),
            ("rang", doorbells, DOORBELLS_PER_TURN),
            ("looked at", looks, LOOKS_PER_TURN),
            ("took completions of", reaped, REAP_PER_TURN),
        ];
        let over = limits.into_iter().find(|(_, is, most)| is > most)?;
        Some(format!("{} {} times (at most {})", over.0, over.1, over.2))
    }
}

/// What must not be exceeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    pub(crate) rail_pieces_max: u32,
    pub(crate) rail_bytes_max: u64,
    pub(crate) pieces_max: u32,
    pub(crate) bytes_max: u64,
}

impl Default for Ceilings {
    fn default() -> Self {
        Ceilings {
            rail_pieces_max: u32::MAX,
            rail_bytes_max: u64::MAX,
            pieces_max: u32::MAX,
            bytes_max: u64::MAX,
        }
    }
}

impl Log {
    fn note(&mut self, rail: usize, what: What, wr: WrId, (from, to): (usize, usize)) {
        let mine = |(start, end, _): &&(usize, usize, u64)| (*start..*end).contains(&from);
        let (about, bytes) = match self.reads.iter().find(mine) {
            Some((start, _, read)) => (About::Read(*read), (from - start, to - start)),
            None => (About::Run, (0, to - from)),
        };
        self.trace.note_transfer(about, what, (rail as u64, wr.to_bits()), bytes);
    }

    fn used(&mut self, rail: usize) -> &mut Used {
        if self.turn.len() <= rail {
            self.turn.resize(rail + 1, Used::default());
        }
        &mut self.turn[rail]
    }

    fn refused(&mut self, rail: usize, refused: &Refused) {
        self.used(rail).refused += 1;
        if let Refused::Failed { status, .. } = refused {
            self.post_failures.push(status.blame());
        }
    }

    fn take(&mut self, rail: usize, wr: WrId, start: usize, end: usize) {
        self.used(rail).queued += 1;
        let overlaps = |(_, from, to): &(WrId, usize, usize)| *from < end && start < *to;
        let twice = self.rails.iter().any(|rail| rail.out.iter().any(overlaps));
        let holding = &mut self.rails[rail];
        holding.wrs += 1;
        holding.ever += 1;
        holding.bytes += (end - start) as u64;
        holding.request_bytes_max = holding.request_bytes_max.max((end - start) as u64);
        holding.out.push((wr, start, end));
        if twice {
            self.broken.get_or_insert(format!("{wr:?} of rail {rail}: two writers of one memory"));
        }
        self.check_limits(rail);
    }

    /// Stuck requests count for their rail until they come back, and no longer for the engine.
    fn check_limits(&mut self, rail: usize) {
        let (limits, holding) = (self.limits, &self.rails[rail]);
        if holding.wrs > limits.rail_pieces_max {
            let text = format!("rail {rail} holds {} pieces (rail_pieces_max)", holding.wrs);
            self.broken.get_or_insert(text);
        }
        if holding.wrs > 1 && holding.bytes > limits.rail_bytes_max {
            let text = format!("rail {rail} holds {} bytes (rail_bytes_max)", holding.bytes);
            self.broken.get_or_insert(text);
        }
        let (wrs, bytes) = self
            .rails
            .iter()
            .fold((0, 0), |(wrs, bytes), rail| (wrs + rail.wrs, bytes + rail.bytes));
        if wrs > limits.pieces_max {
            self.broken.get_or_insert(format!("{wrs} pieces are in flight (pieces_max)"));
        }
        if wrs > 1 && bytes > limits.bytes_max {
            self.broken.get_or_insert(format!("{bytes} bytes are in flight (bytes_max)"));
        }
    }

    fn give_back(&mut self, rail: usize, completion: &Completion) {
        let wr = completion.wr;
        self.used(rail).reaped += 1;
        let holding = &mut self.rails[rail];
        if let Some(at) = holding.out.iter().position(|(out, _, _)| *out == wr) {
            let (_, start, end) = holding.out.swap_remove(at);
            holding.wrs -= 1;
            holding.bytes -= (end - start) as u64;
        }
        if completion.outcome == Outcome::Flushed {
            holding.flushed += 1;
        }
        let start = completion.part.address().as_ptr() as usize;
        self.note(rail, What::Reaped, wr, (start, start + completion.part.len()));
    }

    fn ask(&mut self, rail: usize, what: What, wr: WrId) {
        let out = self.rails[rail].out.iter().find(|(out, _, _)| *out == wr);
        let bytes = out.map_or((0, 0), |(_, start, end)| (*start, *end));
        self.note(rail, what, wr, bytes);
    }

    /// Whether some device still holds memory between these addresses.
    pub(crate) fn is_out(&self, start: usize, end: usize) -> bool {
        let overlaps = |(_, from, to): &(WrId, usize, usize)| *from < end && start < *to;
        self.rails.iter().any(|rail| rail.out.iter().any(overlaps))
    }
}

/// Shared by the links of a run and by the run itself; one thread has all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedLog(Arc<Mutex<Log>>);

impl SharedLog {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a link tells of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// It says when, and has no descriptor: its poller does not sleep while something is in flight.
    Time,
    /// It says when, and has a descriptor, too.
    TimeAndEvent,
    /// By its descriptor only, as devices do.
    Event,
}

/// Whom nobody waits for: time is virtual, and so is what makes a link's descriptor readable.
static DESCRIPTOR: LazyLock<File> =
    LazyLock::new(|| File::open("/dev/null").expect("every machine has it"));

/// A simulated link that keeps a log.
#[derive(Debug)]
pub(crate) struct LoggedLink {
    inner: SimLink,
    rail: usize,
    tells: Tells,
    log: SharedLog,
}

impl LoggedLink {
    pub(crate) fn new(inner: SimLink, rail: usize, tells: Tells, log: SharedLog) -> Self {
        LoggedLink { inner, rail, tells, log }
    }

    /// The harness knows what the engine is not told.
    fn plan(&self) {
        if self.tells != Tells::Time {
            self.log.lock().rails[self.rail].event_at = self.inner.next_event();
        }
    }
}

impl Link for LoggedLink {
    fn limits(&self) -> LinkLimits {
        self.inner.limits()
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        let (wr, start) = (request.wr, request.part.address().as_ptr() as usize);
        let end = start + request.part.len();
        let result = self.inner.queue(request);
        let mut log = self.log.lock();
        match &result {
            Ok(()) => {
                log.take(self.rail, wr, start, end);
                log.note(self.rail, What::Queued, wr, (start, end));
            }
            Err(refused) => {
                log.refused(self.rail, refused);
                log.note(self.rail, What::Refusal, wr, (start, end));
            }
        }
        result
    }

    fn commit(&mut self, now: Nanos) {
        let before = self.inner.stats().doorbells;
        self.inner.commit(now);
        let rung = self.inner.stats().doorbells - before;
        self.log.lock().used(self.rail).doorbells += u32::from(rung > 0);
        self.plan();
    }

    fn has_uncommitted(&self) -> bool {
        self.inner.has_uncommitted()
    }

    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let (rail, log) = (self.rail, &self.log);
        log.lock().used(rail).looks += 1;
        let reaped = self.inner.reap(now, budget, &mut |completion| {
            log.lock().give_back(rail, &completion);
            sink(completion);
        });
        self.plan();
        reaped
    }

    fn cancel(&mut self, wr: WrId, now: Nanos) {
        self.log.lock().ask(self.rail, What::CancelledWr, wr);
        self.inner.cancel(wr, now);
        self.plan();
    }

    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.log.lock().ask(self.rail, What::QuiescedWr, wr);
        self.inner.quiesce(wr, now);
        self.plan();
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        (self.tells != Tells::Time).then(|| DESCRIPTOR.as_fd())
    }

    fn arm(&mut self) -> bool {
        let armed = self.inner.arm();
        self.log.lock().rails[self.rail].armed = armed;
        armed
    }

    fn next_event(&self) -> Option<Nanos> {
        match self.tells {
            Tells::Event => self.inner.retries_at(),
            Tells::Time | Tells::TimeAndEvent => self.inner.next_event(),
        }
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}
