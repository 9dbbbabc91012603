//! One run: pollers and callers take turns as the seed has it, and time moves when nobody has work.

use std::sync::Arc;

use railring_core::{
    BuildError, CancelToken, EngineBuilder, InlineEngine, MemoryError, Object, PoolConfig,
    Progress, Rail, Ring,
};
use railring_dma::{HugePages, Pool};
use railring_sim::{FaultKind, SimConfigError, SimControl, SimWorld};
use railring_transport::{Nanos, RailControl};

use super::START;
use super::dice::Dice;
use super::foreign::{self, Own};
use super::logged::{Ceilings, LoggedLink, SharedLog};
use super::memory::Memories;
use super::scenario::{Mood, Scenario};
use super::sleep::Sleep;
use super::source::{self, Known, Names};
use super::trace::{About, What};
use super::tracked::Tracked;
use super::whims::Forgotten;

/// Steps after which a run is taken not to end.
const STEPS_MAX: u64 = 4_000_000;
/// Turns after which a poller is taken never to rest: a run has some thousands at most.
const TURNS_MAX: u64 = 100_000;
/// Turns in a row that find nothing to do though the engine says there is.
const EMPTY_TURNS_MAX: u32 = 2_000;
/// Time in which everything that can come back has come back, besides the engine's own bounds.
const SETTLE_NS: u64 = 500_000_000;

/// What is wrong, and with which read if it is one's.
#[derive(Clone, Debug)]
pub(crate) struct Wrong {
    pub(crate) read: Option<u64>,
    pub(crate) what: String,
}

impl Wrong {
    pub(crate) fn of(read: u64, what: impl Into<String>) -> Self {
        Wrong { read: Some(read), what: what.into() }
    }

    pub(crate) fn run(what: impl Into<String>) -> Self {
        Wrong { read: None, what: what.into() }
    }
}

/// A caller with its ring.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    pub(crate) ring: Option<Ring>,
    pub(crate) reads: Vec<Tracked>,
    /// The engine's time at the first push since the last submission.
    pub(crate) batch_at: Option<Nanos>,
}

/// What happened at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(pub(crate) u64);

/// Names of the marks, in the order of their bits.
pub(crate) const MARKS: &[&str] = &[
    "scatter",
    "stripe set",
    "quiet",
    "allow partial",
    "fail fast",
    "skip verify",
    "no-op",
    "empty range",
    "past deadline",
    "deadline hit",
    "cancelled",
    "token cancelled",
    "ring dropped",
    "object closed",
    "rail toggled",
    "stuck",
    "several attempts",
    "proof by blocks",
    "push full",
    "object overwritten",
    "stale open",
    "pool made",
    "registration refused",
    "completion queue cut short",
    "landed after it was given up",
    "post failed for pressure",
    "post failed by the path",
    "post failed by the caller",
    "post failed by the peer",
    "post failed for its data",
    "poller asleep",
    "no sleep after a second look",
    "caller asleep",
    "woken by its bell",
    "woken by a link",
    "woken by its timer",
    "poller panicked",
    "read failed by a panic",
    "others end well after a panic",
    "object closed under its reads",
    "rail switched off",
    "ring forgotten",
    "object forgotten",
    "deadline of 0",
    "no time at all",
    "least loaded",
    "endpoint affinity",
    "weighted round robin",
    "fixed rails",
    "huge weight",
    "pinned endpoint",
    "staged",
    "block table fetched",
    "piece stolen",
    "stripe read again",
    "rail cooled down",
    "rail back by a probe",
    "stripe out of reach",
    "engine's limits",
    "foreign memory",
    "traced",
];

const _: () = assert!(MARKS.len() <= 64, "each mark has a bit");

impl Marks {
    pub(crate) fn set(&mut self, name: &str) {
        let bit = MARKS.iter().position(|mark| *mark == name).expect("a mark of the list");
        self.0 |= 1 << bit;
    }
}

/// A run in progress.
pub(crate) struct Run {
    pub(crate) scenario: Scenario,
    pub(crate) dice: Dice,
    pub(crate) world: SimWorld,
    pub(crate) engine: InlineEngine<LoggedLink>,
    pub(crate) controls: Vec<Arc<SimControl>>,
    pub(crate) log: SharedLog,
    pub(crate) known: Vec<Known>,
    pub(crate) objects: Vec<Option<Object>>,
    pub(crate) memories: Memories,
    pub(crate) pools: Vec<Pool>,
    pub(crate) callers: Vec<Caller>,
    pub(crate) tokens: Vec<CancelToken>,
    pub(crate) now: Nanos,
    /// Time of the last turn: what the engine takes for now.
    pub(crate) turned_at: Nanos,
    pub(crate) left: u32,
    pub(crate) pushed: u64,
    pub(crate) next_name: u64,
    pub(crate) toggled: bool,
    pub(crate) ring_dropped: bool,
    pub(crate) marks: Marks,
    pub(crate) stripes: u64,
    pub(crate) sleep: Sleep,
    /// Pollers that have panicked, one bit each.
    pub(crate) failed: u64,
    pub(crate) forgotten: Forgotten,
    /// Dropped after the engine, which may not know that it is gone.
    pub(crate) own: Option<Own>,
    idle: Vec<bool>,
    empty_turns: u32,
    pub(crate) turns: u64,
}

impl Run {
    pub(crate) fn new(scenario: Scenario, log: SharedLog) -> Result<Run, Wrong> {
        let mut dice = Dice::new(scenario.seed ^ 0x5eed_0f7e_57ed_0001);
        let mut marks = Marks::default();
        let again = dice.clone();
        let mut built = Built::of(&scenario, &log, &mut dice);
        let mut scenario = scenario;
        if matches!(built, Err(Unbuilt::NoRoom)) {
            marks.set("registration refused");
            dice = again;
            scenario = scenario.with_room();
            *log.lock() = Default::default();
            built = Built::of(&scenario, &log, &mut dice);
        }
        let Built { world, engine, controls, known, pool, own } = match built {
            Ok(built) => built,
            Err(Unbuilt::NoRoom) => return Err(Wrong::run("no room where there is no limit")),
            Err(Unbuilt::Wrong(wrong)) => return Err(wrong),
        };
        let tokens = (0..3).map(|_| engine.cancel_token()).collect();
        let callers = scenario.rings.iter().map(|_| Caller::default()).collect();
        let pollers = scenario.poller_count();
        let sleep = Sleep::new(scenario.sleep, scenario.seed, pollers, scenario.rings.len());
        log.lock().limits = ceilings(&scenario);
        log.lock().trace.set_time(START);
        Ok(Run {
            left: scenario.reads,
            objects: known.iter().map(|_| None).collect(),
            scenario,
            dice,
            world,
            engine,
            controls,
            log,
            known,
            memories: Memories::new(pool),
            pools: Vec::new(),
            callers,
            tokens,
            now: START,
            turned_at: START,
            pushed: 0,
            next_name: 1,
            toggled: false,
            ring_dropped: false,
            marks,
            stripes: 0,
            sleep,
            failed: 0,
            forgotten: Forgotten::default(),
            own,
            idle: vec![false; pollers],
            empty_turns: 0,
            turns: 0,
        })
    }

    /// Runs to its end, and looks at what is left.
    pub(crate) fn run(&mut self) -> Result<(), Wrong> {
        let pollers = self.scenario.poller_count();
        let mut steps = 0;
        while !self.is_over() {
            steps += 1;
            if steps > STEPS_MAX || self.turns > TURNS_MAX {
                return Err(self.endless());
            }
            let actor = self.dice.below(pollers + self.callers.len());
            if actor < pollers {
                self.turn(actor)?;
            } else {
                self.call(actor - pollers)?;
            }
            self.pass_time()?;
        }
        self.wind_down()
    }

    fn is_over(&self) -> bool {
        self.left == 0 && self.callers.iter().all(|caller| caller.reads.is_empty())
    }

    pub(crate) fn note(&self, about: About, what: What, a: u64, b: u64) {
        self.log.lock().trace.note(about, what, a, b);
    }

    fn set_time(&mut self, now: Nanos) {
        self.now = now;
        self.log.lock().trace.set_time(now);
    }

    /// Something was asked of the engine: nobody is idle any more.
    pub(crate) fn stir(&mut self) {
        self.idle.fill(false);
    }

    fn turn(&mut self, poller: usize) -> Result<(), Wrong> {
        if !self.is_up(poller) || self.may_sleep(poller) {
            self.idle[poller] = true;
            return Ok(());
        }
        let progress = self.engine.turn_poller_at(poller, self.now);
        self.turned_at = self.now;
        self.turns += 1;
        if progress == Progress::Worked {
            self.stir();
            self.look_for_panic(poller);
        }
        self.idle[poller] = progress == Progress::Idle;
        let rails = std::mem::take(&mut self.log.lock().turn);
        let mut wrong = None;
        for (rail, used) in rails.iter().enumerate() {
            let window = self.scenario.rails[rail].limits().outstanding_wrs_max;
            let over = used.over(window);
            wrong = wrong.or(over.map(|what| format!("one turn {what} rail {rail}")));
        }
        if let Some(wrong) = wrong {
            return Err(Wrong::run(wrong));
        }
        let broken = self.log.lock().broken.take();
        self.had_turn(poller, progress);
        match broken {
            Some(what) => Err(Wrong::run(what)),
            None => Ok(()),
        }
    }

    /// Moves time to the next event when all pollers have come to rest; now and then a little past
    /// it, as a poller that is late, or not quite to it.
    fn pass_time(&mut self) -> Result<(), Wrong> {
        if self.dice.one_in(64) {
            let now = self.now.after(self.dice.up_to(2_000));
            self.set_time(now);
        }
        if !self.idle.iter().all(|idle| *idle) {
            return Ok(());
        }
        let next = self.next_event()?;
        if next <= self.now {
            self.empty_turns += 1;
            self.idle.fill(false);
            if self.empty_turns > EMPTY_TURNS_MAX {
                return Err(Wrong::run("the engine says it has work and does none"));
            }
            return Ok(());
        }
        self.empty_turns = 0;
        let to = if next == Nanos::NEVER {
            if self.is_waited_for() {
                return Err(self.forgotten());
            }
            self.now.after(self.dice.up_to(100_000))
        } else if self.dice.one_in(8) {
            next.after(self.dice.up_to(50_000))
        } else if self.dice.one_in(4) {
            self.now.after(self.dice.up_to(next.since(self.now)))
        } else {
            next
        };
        self.set_time(to.max(self.now));
        self.idle.fill(false);
        Ok(())
    }

    /// Whether some caller waits for the engine, and the engine not for it.
    fn is_waited_for(&self) -> bool {
        let waits = |caller: &Caller| {
            caller.ring.as_ref().is_some_and(|ring| {
                ring.in_flight() > 0 && ring.ready() == 0 && caller.batch_at.is_none()
            })
        };
        self.callers.iter().any(waits)
    }

    fn forgotten(&self) -> Wrong {
        let stuck = |caller: &Caller| caller.ring.as_ref().is_some_and(|ring| ring.ready() == 0);
        let read = self.callers.iter().filter(|c| stuck(c)).find_map(|caller| caller.reads.first());
        let what = "nothing will ever happen and a read has not ended".to_owned();
        Wrong { read: read.map(|read| read.name), what }
    }

    fn endless(&self) -> Wrong {
        let read = self.callers.iter().find_map(|caller| caller.reads.first());
        let turns = self.turns;
        let what = format!("the run does not end in {STEPS_MAX} steps or {turns} turns");
        Wrong { read: read.map(|read| read.name), what }
    }

    /// Whether bytes that were not verified may be wrong.
    pub(crate) fn bytes_may_lie(&self) -> bool {
        self.scenario.has_fault(&[FaultKind::FlippedByte, FaultKind::SilentTruncation])
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.scenario.mood == Mood::Calm
    }

    /// Turns all pollers until nothing will happen any more.
    pub(crate) fn settle(&mut self) -> Result<(), Wrong> {
        // A rail that keeps a request for ever may flap for ever.
        let bounds = &self.scenario.engine;
        let bound_ns = (bounds.cancel_grace + bounds.quiet_bound).as_nanos();
        let bound_ns = u64::try_from(bound_ns).expect("seconds at most");
        self.turn_until(self.now.after(SETTLE_NS + bound_ns))
    }

    /// Turns all pollers until none has work now.
    pub(crate) fn rest(&mut self) -> Result<(), Wrong> {
        self.turn_until(self.now)
    }

    fn turn_until(&mut self, end: Nanos) -> Result<(), Wrong> {
        for _ in 0..STEPS_MAX {
            for poller in 0..self.scenario.poller_count() {
                self.turn(poller)?;
            }
            if self.idle.iter().all(|idle| *idle) {
                let next = self.next_event()?;
                if next == Nanos::NEVER || (self.now >= end && next > self.now) {
                    return Ok(());
                }
                let now = Nanos(next.0.max(self.now.0 + 1));
                self.set_time(now);
            }
        }
        Err(Wrong::run("the engine does not come to rest when all is done"))
    }
}

/// What a run runs on.
struct Built {
    world: SimWorld,
    engine: InlineEngine<LoggedLink>,
    controls: Vec<Arc<SimControl>>,
    known: Vec<Known>,
    pool: Pool,
    own: Option<Own>,
}

/// Why it was not built.
enum Unbuilt {
    /// A rail could not register so much.
    NoRoom,
    Wrong(Wrong),
}

impl From<SimConfigError> for Unbuilt {
    fn from(error: SimConfigError) -> Self {
        Unbuilt::Wrong(Wrong::run(error.to_string()))
    }
}

impl From<BuildError> for Unbuilt {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Register(_) => Unbuilt::NoRoom,
            error => Unbuilt::Wrong(Wrong::run(error.to_string())),
        }
    }
}

impl From<MemoryError> for Unbuilt {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Register(_) => Unbuilt::NoRoom,
            error => Unbuilt::Wrong(Wrong::run(error.to_string())),
        }
    }
}

impl Built {
    fn of(scenario: &Scenario, log: &SharedLog, dice: &mut Dice) -> Result<Built, Unbuilt> {
        let mut world = SimWorld::new(scenario.seed);
        let put = |(object, plan)| {
            let names = Names { object, generation: 1 };
            source::put(&world, names, plan, &scenario.endpoints, dice)
        };
        let known: Vec<Known> = scenario.objects.iter().enumerate().map(put).collect();
        let (mut rails, mut controls) = (Vec::new(), Vec::new());
        for (index, config) in scenario.rails.iter().enumerate() {
            let (control, link) = world.add_rail(config.clone())?;
            let link = LoggedLink::new(link, index, scenario.sleep.tells(index), log.clone());
            controls.push(Arc::clone(&control));
            let poller = scenario.pollers[index];
            rails.push(Rail { control: control as Arc<dyn RailControl>, link, poller });
            log.lock().rails.push(Default::default());
        }
        let config = scenario.engine.clone();
        let builder = EngineBuilder::new(rails).config(config);
        let pin = |builder: EngineBuilder<_>, (endpoint, rail): &(String, String)| {
            builder.pin_endpoint(endpoint.clone(), rail.clone())
        };
        let engine = scenario.pinned.iter().fold(builder, pin).build_virtual(START)?;
        world.late_writes_into(engine.regions());
        let largest = known.iter().map(|known| known.bytes.len()).max().unwrap_or(0);
        let slot_bytes = (largest + 3 * 4096).next_multiple_of(4096);
        let (pool, own) = if scenario.extras.foreign {
            let (pool, own) = foreign::pool(&engine, scenario.slots, slot_bytes)?;
            (pool, Some(own))
        } else {
            let (slots, huge_pages) = (scenario.slots, HugePages::Never);
            let config = PoolConfig { slots, slot_bytes, huge_pages, ..PoolConfig::default() };
            (engine.buffer_pool(config)?, None)
        };
        Ok(Built { world, engine, controls, known, pool, own })
    }
}

/// What links may be given. Requests that are stuck count for their rail and not for the engine, so
/// with rails that hang the engine's limits cannot be seen from outside.
fn ceilings(scenario: &Scenario) -> Ceilings {
    let limits = scenario.engine.limits;
    let mut ceilings = Ceilings {
        rail_pieces_max: limits.rail_pieces_max,
        rail_bytes_max: limits.rail_bytes_max,
        pieces_max: limits.pieces_max,
        bytes_max: limits.bytes_max,
    };
    if scenario.mood != Mood::Calm {
        (ceilings.pieces_max, ceilings.bytes_max) = (u32::MAX, u64::MAX);
    }
    ceilings
}
