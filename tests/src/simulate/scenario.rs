//! What a run is made of, drawn from its seed: rails and their faults, pollers, rings, objects,
//! limits.

use std::time::Duration;

use railring_core::{EngineConfig, Limits, Policy, RingConfig};
use railring_sim::{
    Cancelling, Fault, FaultKind, FaultPlan, Latency, Quiescing, SimRailConfig, When,
};
use railring_transport::Alignment;
use sq_cq::Status;

use super::dice::Dice;
use super::extras::{self, Extras};
use super::sleep::SleepPlan;
use super::traced;

/// How much goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Nothing.
    Calm,
    /// Some kinds of fault, now and then.
    Usual,
    /// Many kinds, often.
    Storm,
}

/// What an object is like.
#[derive(Clone, Debug)]
pub struct ObjectPlan {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of its stripes.
    pub stripe_bytes: u64,
    /// Size of its blocks.
    pub block_bytes: u32,
    /// Owners of each stripe.
    pub copies: usize,
    /// Whether the placement has checksums of stripes.
    pub checksums: bool,
    /// Whether it has checksums of block tables, too.
    pub tables: bool,
}

/// One run, before it runs.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was drawn from.
    pub seed: u64,
    /// How much goes wrong.
    pub mood: Mood,
    /// The rails, in order.
    pub rails: Vec<SimRailConfig>,
    /// The poller of each rail.
    pub pollers: Vec<u32>,
    /// Endpoints that hold objects.
    pub endpoints: Vec<String>,
    /// The rings, which may be made again when they are dropped.
    pub rings: Vec<RingConfig>,
    /// The engine's settings.
    pub engine: EngineConfig,
    /// The objects.
    pub objects: Vec<ObjectPlan>,
    /// Leases of the pool.
    pub slots: usize,
    /// Reads to push.
    pub reads: u32,
    /// Whether rings, objects and rails come and go.
    pub restless: bool,
    /// What else there is.
    pub extras: Extras,
    /// Who sleeps.
    pub sleep: SleepPlan,
    /// Endpoints and the rails that they prefer under endpoint affinity.
    pub pinned: Vec<(String, String)>,
}

const KIB: u64 = 1024;
const MILLISECOND: u64 = 1_000_000;

impl Scenario {
    /// Draws a run.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut scenario = Scenario::draw_plain(seed);
        extras::enrich(&mut scenario);
        traced::enrich(&mut scenario);
        scenario
    }

    /// Draws a run without extras, as the first regression seeds were.
    #[must_use]
    pub fn draw_plain(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mood = *dice.pick(&[Mood::Calm, Mood::Usual, Mood::Usual, Mood::Usual, Mood::Storm]);
        let rail_count = dice.between(1, 6);
        let poller_count = dice.between(1, rail_count.min(4));
        let endpoints: Vec<String> =
            (0..dice.between(1, 4)).map(|index| format!("server{index}")).collect();
        let rails: Vec<SimRailConfig> =
            (0..rail_count).map(|index| rail(&mut dice, index, mood, &endpoints)).collect();
        let pollers = spread(&mut dice, rail_count, poller_count);
        let rings = (0..dice.between(1, 4)).map(|_| ring(&mut dice, poller_count)).collect();
        Scenario {
            seed,
            mood,
            rails,
            pollers,
            endpoints,
            rings,
            engine: engine(&mut dice, mood),
            objects: (0..dice.between(1, 5)).map(|_| object(&mut dice)).collect(),
            slots: dice.between(2, 8),
            reads: u32::try_from(dice.between(4, 40)).expect("small"),
            restless: dice.one_in(2),
            extras: Extras::default(),
            sleep: SleepPlan::default(),
            pinned: Vec::new(),
        }
    }

    /// Pollers of the run.
    #[must_use]
    pub fn poller_count(&self) -> usize {
        self.pollers.iter().max().map_or(1, |most| *most as usize + 1)
    }

    /// Most copies of a stripe.
    #[must_use]
    pub fn copies(&self) -> usize {
        let most = self.objects.iter().map(|object| object.copies).max().unwrap_or(1);
        most.min(self.endpoints.len())
    }

    /// Whether some rail has a rule for one of these kinds.
    #[must_use]
    pub fn has_fault(&self, kinds: &[FaultKind]) -> bool {
        let rules = self.rails.iter().flat_map(|rail| &rail.faults.rules);
        rules.into_iter().any(|rule| kinds.contains(&rule.fault.kind()))
    }

    /// Whether a rail may keep a piece for ever.
    #[must_use]
    pub fn may_keep_for_ever(&self) -> bool {
        let rules = self.rails.iter().flat_map(|rail| &rail.faults.rules);
        let keeps = |fault| matches!(fault, Fault::Hang { returns_after_ns: None });
        rules.into_iter().any(|rule| keeps(rule.fault))
    }
}

/// Each poller has a rail; the others are dealt out.
fn spread(dice: &mut Dice, rails: usize, pollers: usize) -> Vec<u32> {
    let poller = |index: usize| u32::try_from(index).expect("few");
    let mut spread: Vec<u32> = (0..rails)
        .map(|rail| if rail < pollers { poller(rail) } else { poller(dice.below(pollers)) })
        .collect();
    dice.shuffle(&mut spread);
    spread
}

fn ring(dice: &mut Dice, pollers: usize) -> RingConfig {
    RingConfig {
        sq_entries: *dice.pick(&[1, 2, 4, 16, 64]),
        cq_entries: *dice.pick(&[16, 64, 64, 256]),
        poller: Some(u32::try_from(dice.below(pollers)).expect("few")),
        ..RingConfig::default()
    }
}

fn engine(dice: &mut Dice, mood: Mood) -> EngineConfig {
    let policies = [
        Policy::LeastLoaded,
        Policy::LeastLoaded,
        Policy::EndpointAffinity,
        Policy::WeightedRoundRobin,
        Policy::Fixed,
    ];
    let milliseconds = |dice: &mut Dice, most: u64| Duration::from_millis(dice.up_to(most) + 1);
    let calm = mood == Mood::Calm;
    // Without faults nothing may be given up, however long the queues are.
    let io_timeout = if calm { Duration::from_secs(1000) } else { milliseconds(dice, 40) };
    let quiet_bound = if calm { Duration::from_secs(1) } else { milliseconds(dice, 30) };
    EngineConfig {
        policy: *dice.pick(&policies),
        piece_bytes_max: *dice.pick(&[64 * KIB, 64 * KIB, 100_000, 256 * KIB, 4096 * KIB]),
        reads_max: *dice.pick(&[1024, 1024, 1024, 1024, 1, 3]),
        rings_max: 8,
        objects_max: 16,
        regions_max: 16,
        attempts_max: *dice.pick(&[1, 2, 3, 3, 5]),
        io_timeout,
        cancel_grace: milliseconds(dice, 10),
        quiet_bound,
        cooldown: milliseconds(dice, 20),
        staging_bytes: 2 << 20,
        table_cache_bytes: 2 << 20,
        limits: limits(dice),
        ..EngineConfig::default()
    }
}

fn limits(dice: &mut Dice) -> Limits {
    let mut limits = Limits::default();
    if dice.one_in(4) {
        limits.pieces_max = *dice.pick(&[1, 2, 7, 24]);
    }
    if dice.one_in(4) {
        limits.rail_pieces_max = *dice.pick(&[1, 2, 5, 16]);
    }
    if dice.one_in(4) {
        limits.bytes_max = *dice.pick(&[1, 64 * KIB, 200_000, 1 << 20]);
    }
    if dice.one_in(4) {
        limits.rail_bytes_max = *dice.pick(&[1, 64 * KIB, 150_000, 1 << 20]);
    }
    limits
}

fn object(dice: &mut Dice) -> ObjectPlan {
    let block_bytes = *dice.pick(&[4096, 4096, 16_384, 65_536]);
    let aligned = dice.one_in(2);
    let stripe_bytes = match dice.below(6) {
        0 => dice.up_to(4 * KIB) + 1,
        1 | 2 => dice.up_to(32 * KIB) + 1,
        3 => 64 * KIB,
        4 => dice.up_to(200 * KIB) + 1,
        _ => 192 * KIB,
    };
    let stripe_bytes = if aligned { stripe_bytes.next_multiple_of(4096) } else { stripe_bytes };
    let stripes = 1 + if stripe_bytes > 100 * KIB { dice.up_to(4) } else { dice.up_to(24) };
    let off = dice.up_to(stripe_bytes * 2).saturating_sub(stripe_bytes);
    let checksums = !dice.one_in(6);
    ObjectPlan {
        size_bytes: (stripe_bytes * stripes).saturating_sub(off),
        stripe_bytes,
        block_bytes,
        copies: dice.between(1, 3),
        checksums,
        tables: checksums && !dice.one_in(5),
    }
}

fn rail(dice: &mut Dice, index: usize, mood: Mood, endpoints: &[String]) -> SimRailConfig {
    let mut rail = SimRailConfig::new(format!("rail{index}"));
    rail.weight = *dice.pick(&[1, 1, 1, 2, 4, 1_000_000]);
    if dice.one_in(4) {
        let some = endpoints.iter().filter(|_| dice.one_in(2)).cloned().collect::<Vec<_>>();
        rail.endpoints = Some(some).filter(|some| !some.is_empty());
    }
    rail.bandwidth_bytes_per_second = *dice.pick(&[10_000_000, 125_000_000, 1_000_000_000]);
    let mean_ns = *dice.pick(&[1_000, 20_000, 200_000]);
    rail.latency = match dice.below(3) {
        0 => Latency::Fixed { latency_ns: mean_ns },
        1 => Latency::Uniform { mean_ns, spread_ns: mean_ns },
        _ => Latency::Tailed {
            mean_ns,
            spread_ns: mean_ns / 2,
            tail_ns: 5 * MILLISECOND,
            tail_per_million: 50_000,
        },
    };
    rail.window_wrs = *dice.pick(&[1, 2, 3, 8, 32, 256]);
    if dice.one_in(4) {
        rail.completion_queue_entries = Some(*dice.pick(&[1, 2, 5, 16]));
    }
    rail.request_bytes_max = *dice.pick(&[1 << 20, 1 << 30]);
    let bytes = *dice.pick(&[1, 1, 1, 512, 4096]);
    rail.alignment = Alignment { offset_bytes: bytes, length_bytes: bytes, memory_bytes: bytes };
    if dice.one_in(3) {
        rail.cancel = Cancelling::Ignored;
    }
    let after_ns = *dice.pick(&[1_000, 100_000, 3 * MILLISECOND]);
    rail.quiesce = if dice.one_in(2) {
        Quiescing::WireCancel { after_ns }
    } else {
        Quiescing::TearDown { after_ns, reconnect_ns: dice.up_to(5 * MILLISECOND) }
    };
    rail.faults = faults(dice, mood);
    rail
}

fn faults(dice: &mut Dice, mood: Mood) -> FaultPlan {
    let (odds, most_per_million) = match mood {
        Mood::Calm => return FaultPlan::none(),
        Mood::Usual => (10, 60_000),
        Mood::Storm => (3, 200_000),
    };
    let mut plan = FaultPlan::none();
    // A kind that is drawn among the extras would shift what is drawn after it.
    let extra = [FaultKind::PostRefused, FaultKind::Panic];
    for kind in FaultKind::ALL.iter().filter(|kind| !extra.contains(kind)) {
        if !dice.one_in(odds) {
            continue;
        }
        let when = match dice.below(5) {
            0 => When::Nth(dice.up_to(20)),
            1 => When::Every(dice.up_to(20) + 2),
            2 => When::At(super::START.after(dice.up_to(20 * MILLISECOND))),
            _ => When::Chance { per_million: dice.below_u32(most_per_million) + 1_000 },
        };
        if let Some(fault) = fault(dice, *kind) {
            plan = plan.with(fault, when);
        }
    }
    plan
}

fn fault(dice: &mut Dice, kind: FaultKind) -> Option<Fault> {
    let short = dice.up_to(3 * MILLISECOND) + 1;
    let long = dice.up_to(100 * MILLISECOND) + 1;
    Some(match kind {
        FaultKind::Lost => Fault::Lost,
        FaultKind::Delay => Fault::Delay { delay_ns: long },
        FaultKind::Reorder => Fault::Reorder { hold_ns: short },
        FaultKind::ShortDelivery => Fault::ShortDelivery,
        FaultKind::SilentTruncation => Fault::SilentTruncation,
        FaultKind::FlippedByte => Fault::FlippedByte,
        FaultKind::CorruptTable => Fault::CorruptTable,
        FaultKind::TailFirst => Fault::TailFirst { gap_ns: short },
        FaultKind::Hang => {
            Fault::Hang { returns_after_ns: if dice.one_in(3) { None } else { Some(long) } }
        }
        FaultKind::DuplicateCompletion => Fault::DuplicateCompletion { after_ns: short },
        FaultKind::UnknownCompletion => Fault::UnknownCompletion,
        FaultKind::OldCompletion => Fault::OldCompletion,
        FaultKind::StaleAnswer => Fault::StaleAnswer,
        FaultKind::NotFoundAnswer => Fault::NotFoundAnswer,
        FaultKind::RefusedAnswer => Fault::RefusedAnswer,
        FaultKind::TransferError => {
            let statuses = [12, 1, 4, 9, 10, 19, 99].map(Status::from_wc);
            Fault::TransferError { status: *dice.pick(&statuses), vendor: 0xdead }
        }
        FaultKind::PartialPost => Fault::PartialPost,
        FaultKind::PostError => {
            let statuses = [5, 11, 12, 22, 107, 4000].map(Status::from_errno);
            Fault::PostError { status: *dice.pick(&statuses) }
        }
        FaultKind::SpuriousFull => Fault::SpuriousFull,
        FaultKind::Disconnect => Fault::Disconnect { down_ns: short },
        FaultKind::Flap => Fault::Flap { down_ns: short, up_ns: long },
        FaultKind::Stall => Fault::Stall { stall_ns: long },
        FaultKind::Rate => Fault::Rate { bytes_per_second: 1_000_000 + dice.up_to(100_000_000) },
        // A device that writes into memory it gave back is no device: see the sentinel tests.
        _ => return None,
    })
}
