//! What came to runs after the first regression seeds were found, drawn from a stream of its own so
//! that those seeds stay the runs they were: objects that are overwritten, pools that come and go,
//! rails that cannot register everything, posts that fail in every form.

use railring_core::{MemoryError, OpenError, PoolConfig};
use railring_dma::{HugePages, Pool};
use railring_sim::{Fault, RegistrationLimits, SimRailConfig, When};
use railring_transport::RailControl;
use sq_cq::Status;

use super::dice::Dice;
use super::run::{Run, Wrong};
use super::scenario::{Mood, Scenario};
use super::sleep::SleepPlan;
use super::source;
use super::trace::{About, What};

/// What a run has of these. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Objects are overwritten while they are read.
    pub overwrites: bool,
    /// Pools are made and dropped while the engine runs.
    pub pools: bool,
    /// Some rail cannot register everything.
    pub tight: bool,
    /// Blocks are as large as stripes, so that edges and what they wait for share a few buffers.
    pub large_blocks: bool,
    /// Rings and objects are forgotten: their callers neither use nor drop them.
    pub forgets: bool,
    /// The memory is the caller's own.
    pub foreign: bool,
    /// Deadlines of nothing, of 0 and of the present moment.
    pub at_once: bool,
}

/// Pools that a run has beside its own.
const POOLS_MAX: usize = 3;

/// One errno or more of each class: pressure, interrupted, the path, the caller, the peer, stale,
/// cancelled, data, some with the sign of a system call's return value, and one without a name.
const ERRNOS: &[i32] = &[11, 12, 105, 4, 5, 107, 22, 14, 1, 13, 116, 125, 74, -5, -22, 4000];

/// Any of them.
fn errno(dice: &mut Dice) -> Status {
    Status::from_errno(*dice.pick(ERRNOS))
}

/// Adds the extras of the scenario's seed to it.
pub(crate) fn enrich(scenario: &mut Scenario) {
    let dice = &mut Dice::new(scenario.seed ^ 0xe874_a5e4_7a5e_0002);
    scenario.extras = Extras {
        overwrites: dice.one_in(3),
        pools: dice.one_in(3),
        tight: dice.one_in(3),
        ..Extras::default()
    };
    if scenario.extras.tight {
        let rail = dice.below(scenario.rails.len());
        scenario.rails[rail].registration = tight(dice);
    }
    let (pollers, rings, rails) =
        (scenario.poller_count(), scenario.rings.len(), scenario.rails.len());
    scenario.sleep = SleepPlan::draw(dice, pollers, rings, rails);
    scenario.extras.foreign = Dice::new(scenario.seed ^ 0xf04e_1611_f04e_0004).one_in(4);
    scenario.extras.forgets = dice.one_in(4);
    scenario.extras.at_once = dice.one_in(3);
    scenario.reads += dice.below_u32(24);
    if dice.one_in(5) {
        scenario.extras.large_blocks = true;
        for object in &mut scenario.objects {
            object.block_bytes = *dice.pick(&[65_536, 262_144, 1 << 20]);
        }
    }
    if dice.one_in(6) {
        let rail = &mut scenario.rails[dice.below(rails)];
        let when = match dice.below(4) {
            0 => When::Chance { per_million: dice.below_u32(5_000) + 500 },
            1 => When::At(super::START.after(dice.up_to(5_000_000))),
            _ => When::Nth(dice.up_to(300)),
        };
        rail.faults = std::mem::take(&mut rail.faults).with(Fault::Panic, when);
        // Not drawn, so that runs stay what they were: room that is kept is missed where it is
        // short.
        if scenario.seed % 4 == 3 {
            scenario.engine.limits.pieces_max = 1;
        }
    }
    for rail in 0..rails {
        if dice.one_in(6) {
            let endpoint = dice.pick(&scenario.endpoints).clone();
            scenario.pinned.push((endpoint, scenario.rails[rail].name.clone()));
        }
    }
    let odds = match scenario.mood {
        Mood::Calm => return,
        Mood::Usual => 6,
        Mood::Storm => 3,
    };
    for rail in &mut scenario.rails {
        fail_posts(rail, odds, dice);
        if dice.one_in(odds) {
            // Tables are fetched seldom, so the few requests for them are worth corrupting.
            let when = When::Chance { per_million: 200_000 + dice.below_u32(400_000) };
            rail.faults = std::mem::take(&mut rail.faults).with(Fault::CorruptTable, when);
        }
    }
}

fn fail_posts(rail: &mut SimRailConfig, odds: u32, dice: &mut Dice) {
    for _ in 0..2 {
        if dice.one_in(odds) {
            let when = When::Chance { per_million: dice.below_u32(100_000) + 5_000 };
            let fault = Fault::PostError { status: errno(dice) };
            rail.faults = std::mem::take(&mut rail.faults).with(fault, when);
        }
    }
    if dice.one_in(odds) {
        let when = When::Chance { per_million: dice.below_u32(200_000) + 5_000 };
        let fault = Fault::PostRefused { status: errno(dice) };
        rail.faults = std::mem::take(&mut rail.faults).with(fault, when);
    }
}

/// Limits that some runs need more than.
fn tight(dice: &mut Dice) -> RegistrationLimits {
    let mut limits = RegistrationLimits::default();
    match dice.below(4) {
        0 => limits.regions_max = dice.below_u32(12),
        1 => limits.region_bytes_max = 1 << (14 + dice.up_to(11)),
        2 => limits.bytes_max = 1 << (20 + dice.up_to(6)),
        _ => limits.pages_max = 1 << (8 + dice.up_to(6)),
    }
    limits
}

impl Scenario {
    /// The same without limits on what rails can register: a caller that was refused asks for less.
    pub(crate) fn with_room(mut self) -> Self {
        for rail in &mut self.rails {
            rail.registration = RegistrationLimits::default();
        }
        self
    }
}

impl Run {
    /// Makes another pool, or drops one. What a rail has no room for is refused before any effect.
    pub(crate) fn change_pools(&mut self) -> Result<(), Wrong> {
        if self.pools.len() >= POOLS_MAX || (!self.pools.is_empty() && self.dice.one_in(3)) {
            drop(self.pools.remove(0));
            self.note(About::Run, What::PoolDropped, 0, 0);
            return Ok(());
        }
        let config = PoolConfig {
            slots: self.dice.between(1, 4),
            slot_bytes: 4096 * self.dice.between(1, 128),
            huge_pages: HugePages::Never,
            ..PoolConfig::default()
        };
        let bytes = (config.slots * config.slot_bytes) as u64;
        let made: Result<Pool, MemoryError> = self.engine.buffer_pool(config);
        self.note(About::Run, What::PoolMade, bytes, u64::from(made.is_ok()));
        match made {
            Ok(pool) => {
                self.marks.set("pool made");
                self.pools.push(pool);
            }
            Err(MemoryError::Register(_)) if self.scenario.extras.tight => {
                self.marks.set("registration refused");
            }
            Err(error) => return Err(Wrong::run(format!("a sensible pool was refused: {error}"))),
        }
        self.check_registered()
    }

    /// Every region is registered with all rails or with none.
    pub(crate) fn check_registered(&self) -> Result<(), Wrong> {
        let all: Vec<u64> = self.controls.iter().map(|rail| rail.registered_bytes()).collect();
        if all.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(());
        }
        let names: Vec<String> = self.controls.iter().map(|rail| rail.info().name).collect();
        Err(Wrong::run(format!("rails {names:?} have registered {all:?} bytes")))
    }

    /// Puts another generation where an object was: what is read of the old one is stale.
    pub(crate) fn overwrite(&mut self) -> Result<(), Wrong> {
        let Some(index) = self.any_object() else { return Ok(()) };
        if self.known[index].overwritten {
            return Ok(());
        }
        let (known, endpoints) = (&self.known[index], &self.scenario.endpoints);
        let (plan, name) = (known.plan.clone(), known.name);
        let generation = known.placement.generation + 1;
        let names = source::Names { object: name, generation };
        let fresh = source::put(&self.world, names, &plan, endpoints, &mut self.dice);
        self.known[index].overwritten = true;
        self.known.push(fresh);
        self.objects.push(None);
        self.marks.set("object overwritten");
        self.note(About::Run, What::Overwritten, index as u64, generation);
        match self.engine.open(&self.known[index].placement) {
            Err(OpenError::Stale { .. }) => self.marks.set("stale open"),
            Err(OpenError::NoRail { .. } | OpenError::TooManyObjects { .. }) => {}
            Err(OpenError::ShuttingDown) if self.panicked() => {}
            Ok(_) => return Err(Wrong::run(format!("object {index} opens and is overwritten"))),
            Err(error) => return Err(Wrong::run(error.to_string())),
        }
        Ok(())
    }

    /// An object that is what its placement says, or sometimes one that was overwritten and is
    /// still open.
    pub(crate) fn any_object(&mut self) -> Option<usize> {
        let index = self.dice.below(self.known.len());
        let may = |at: usize| !self.known[at].overwritten || self.objects[at].is_some();
        (index..self.known.len()).chain(0..index).find(|at| may(*at))
    }
}
