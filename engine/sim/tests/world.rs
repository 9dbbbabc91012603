//! Laws of a world with everything going wrong: determinism, independence of rails, conservation;
//! and what is refused.

mod support;

use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;
use railring_sim::{
    Cancelling, Fault, FaultKind, FaultPlan, Latency, Quiescing, RailConfigError,
    RegistrationLimits, SimConfigError, SimRailConfig, SimWorld, SourceContent, When,
};
use railring_transport::{
    Alignment, ConnectError, Link, Nanos, Outcome, RailControl, RegisterError, SourceRef, WrId,
};
use sq_cq::Status;
use support::{ENDPOINT, Ended, HANDLE, Rig};

/// A caller that does everything a core may do, in an order that its own seed picks.
struct Caller {
    rig: Rig,
    rng: fastrand::Rng,
    generations: Vec<u32>,
    /// Ids in flight, by slot.
    flying: Vec<Option<WrId>>,
    refused: u32,
    trace: Vec<(u64, WrId, Outcome, u64)>,
}

const SLOTS: u32 = 16;
const PART_BYTES: usize = 257;
const STEPS: u32 = 600;

impl Caller {
    fn new(seed: u64, config: SimRailConfig) -> Caller {
        let bytes = PART_BYTES * STEPS as usize;
        Caller {
            rig: Rig::new(seed, bytes, SimRailConfig { window_wrs: SLOTS, ..config }),
            rng: fastrand::Rng::with_seed(!seed),
            generations: vec![0; SLOTS as usize],
            flying: vec![None; SLOTS as usize],
            refused: 0,
            trace: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.rng.u32(0..10) {
            0..=3 => self.queue(),
            4 | 5 => self.rig.link.commit(self.rig.now),
            6 => {
                if let Some(wr) = self.any_flying() {
                    self.rig.link.cancel(wr, self.rig.now);
                }
            }
            7 => {
                if let Some(wr) = self.any_flying() {
                    self.rig.link.quiesce(wr, self.rig.now);
                }
            }
            _ => {
                self.rig.now = self.rig.now.after(self.rng.u64(0..20_000));
                let ended = self.rig.reap();
                self.take(ended);
            }
        }
    }

    fn any_flying(&mut self) -> Option<WrId> {
        self.flying[self.rng.usize(0..SLOTS as usize)]
    }

    fn queue(&mut self) {
        let Some(slot) = self.flying.iter().position(Option::is_none) else { return };
        self.generations[slot] += 1;
        let mut request = self.rig.request(0, PART_BYTES);
        let slot_number = u32::try_from(slot).expect("16 slots");
        request.wr = WrId { slot: slot_number, generation: self.generations[slot] };
        let wr = request.wr;
        match self.rig.link.queue(request) {
            Ok(()) => self.flying[slot] = Some(wr),
            Err(_) => self.refused += 1,
        }
    }

    fn take(&mut self, ended: Vec<Ended>) {
        for end in ended {
            let flying = self.flying[end.wr.slot as usize].take();
            assert_eq!(flying, Some(end.wr), "came back twice, or was never given");
            assert_eq!(end.part.len(), PART_BYTES);
            let mut hasher = DefaultHasher::new();
            end.part.as_slice().hash(&mut hasher);
            self.trace.push((end.at.0, end.wr, end.outcome, hasher.finish()));
            if end.done().is_some() {
                assert!(self.rig.is_exact(&end.part), "done, and not exact");
            }
            self.rig.loan.repay(end.part).expect("of this loan");
        }
    }

    /// Does `STEPS` things, then asks for everything back.
    fn run(mut self) -> Caller {
        for _ in 0..STEPS {
            self.step();
        }
        for wr in self.flying.clone().into_iter().flatten() {
            self.rig.link.quiesce(wr, self.rig.now);
        }
        // Longer than any delay, break or answer in the plan; a flapping rail has events for ever.
        let ended = self.rig.run_until(self.rig.now.after(3_000_000));
        self.take(ended);
        self
    }

    fn hung(&self) -> u64 {
        self.flying.iter().flatten().count() as u64
    }
}

/// Everything that may go wrong without making bytes wrong, each in `per_million`.
fn all_honest_faults(per_million: u32) -> FaultPlan {
    let chance = When::Chance { per_million };
    let seldom = When::Chance { per_million: per_million / 10 };
    FaultPlan::none()
        .with(Fault::Lost, chance)
        .with(Fault::Delay { delay_ns: 300_000 }, chance)
        .with(Fault::Reorder { hold_ns: 20_000 }, chance)
        .with(Fault::ShortDelivery, chance)
        .with(Fault::TailFirst { gap_ns: 5_000 }, chance)
        .with(Fault::Hang { returns_after_ns: None }, seldom)
        .with(Fault::DuplicateCompletion { after_ns: 30_000 }, chance)
        .with(Fault::UnknownCompletion, chance)
        .with(Fault::OldCompletion, chance)
        .with(Fault::StaleAnswer, chance)
        .with(Fault::NotFoundAnswer, chance)
        .with_at(ENDPOINT, Fault::RefusedAnswer, chance)
        .with(Fault::TransferError { status: Status::from_errno(5), vendor: 7 }, chance)
        .with(Fault::PartialPost, chance)
        .with(Fault::PostError { status: Status::from_errno(12) }, chance)
        .with(Fault::PostRefused { status: Status::from_errno(12) }, seldom)
        .with(Fault::SpuriousFull, chance)
        .with(Fault::Disconnect { down_ns: 100_000 }, seldom)
        .with(Fault::Flap { down_ns: 10_000, up_ns: 400_000 }, When::At(Nanos(1_000_000)))
        .with(Fault::Stall { stall_ns: 100_000 }, seldom)
        .with(Fault::Rate { bytes_per_second: 50_000_000 }, When::At(Nanos(900_000)))
}

fn quiescing() -> impl Strategy<Value = Quiescing> {
    prop_oneof![
        Just(Quiescing::WireCancel { after_ns: 7_000 }),
        Just(Quiescing::TearDown { after_ns: 7_000, reconnect_ns: 40_000 }),
    ]
}

fn cancelling() -> impl Strategy<Value = Cancelling> {
    prop_oneof![Just(Cancelling::Ignored), Just(Cancelling::Honoured { after_ns: 3_000 })]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever goes wrong: a part comes back exactly once and exact if it is done, everything
    /// but what hangs becomes quiet, and the same seed gives the same run.
    #[test]
    fn with_everything_going_wrong_parts_come_back_once(
        seed: u64,
        per_million in 0u32..200_000,
        quiesce in quiescing(),
        cancel in cancelling(),
    ) {
        let config = SimRailConfig {
            latency: Latency::Tailed {
                mean_ns: 20_000, spread_ns: 5_000, tail_ns: 90_000, tail_per_million: 20_000,
            },
            faults: all_honest_faults(per_million),
            quiesce,
            cancel,
            ..SimRailConfig::new("rail0")
        };
        let first = Caller::new(seed, config.clone()).run();
        let stats = first.rig.control.stats();
        prop_assert_eq!(first.hung(), stats.outstanding);
        prop_assert_eq!(first.hung(), stats.fired.of(FaultKind::Hang));
        prop_assert_eq!(stats.completed + stats.failed + stats.flushed, first.trace.len() as u64);
        let ghosts = stats.fired.of(FaultKind::DuplicateCompletion)
            + stats.fired.of(FaultKind::UnknownCompletion)
            + stats.fired.of(FaultKind::OldCompletion);
        prop_assert_eq!(first.rig.link.stats().stale_completions, ghosts);
        if matches!(quiesce, Quiescing::WireCancel { .. }) {
            prop_assert_eq!(stats.teardowns, 0);
        }

        let second = Caller::new(seed, config).run();
        prop_assert_eq!(&first.trace, &second.trace);
        prop_assert_eq!(stats, second.rig.control.stats());
        prop_assert_eq!(first.rig.link.stats(), second.rig.link.stats());
        prop_assert_eq!(first.refused, second.refused);
    }
}

#[test]
fn every_kind_of_fault_fires_in_such_runs() {
    let mut fired = railring_sim::FiredFaults::default();
    for seed in 0..40 {
        let config =
            SimRailConfig { faults: all_honest_faults(50_000), ..SimRailConfig::new("rail0") };
        fired.add(&Caller::new(seed, config).run().rig.control.stats().fired);
    }
    let dishonest = [
        FaultKind::SilentTruncation,
        FaultKind::FlippedByte,
        FaultKind::CorruptTable,
        FaultKind::LateWrite,
        // Its caller would have to contain it: a test of its own.
        FaultKind::Panic,
    ];
    for (kind, count) in fired.iter().filter(|(kind, _)| !dishonest.contains(kind)) {
        assert!(count >= 5, "{} fired {count} times in 40 runs", kind.name());
    }
}

#[test]
fn other_seeds_and_names_give_other_runs_and_other_rails_do_not() {
    let run = |seed, name: &str| {
        let config =
            SimRailConfig { faults: all_honest_faults(50_000), ..SimRailConfig::new(name) };
        Caller::new(seed, config).run().trace
    };
    assert_ne!(run(1, "rail0"), run(2, "rail0"));
    assert_ne!(run(1, "rail0"), run(1, "rail1"));

    // A link of a world with more rails, added before it, draws the same latencies.
    let latencies = |others: u32| {
        let mut world = SimWorld::new(5);
        for other in 0..others {
            world.add_rail(SimRailConfig::new(format!("other{other}"))).expect("valid");
        }
        let mut rig = Rig::new(5, 8000, SimRailConfig::new("unused"));
        world.put(ENDPOINT, HANDLE, SourceContent::new(support::GENERATION, rig.content.clone()));
        let (control, link) = world.add_rail(SimRailConfig::new("rail0")).expect("valid");
        control.register(&rig.region).expect("no limit");
        let generation = support::GENERATION;
        let source = SourceRef { endpoint: ENDPOINT, handle: HANDLE, generation };
        rig.target = control.connect(source).expect("stored");
        (rig.link, rig.control) = (link, control);
        rig.post(8, 1000);
        rig.run().iter().map(|end| end.at).collect::<Vec<Nanos>>()
    };
    assert_eq!(latencies(0), latencies(3));
}

#[test]
fn registration_has_limits_in_number_length_bytes_and_pages() {
    let mut rig = Rig::new(1, 4096, SimRailConfig::new("rail0"));
    let other = rig.regions.allocate(railring_dma::RegionConfig::new(8192)).expect("small");
    let mut control = |name: &str, registration| {
        let config = SimRailConfig { registration, ..SimRailConfig::new(name) };
        rig.world.add_rail(config).expect("valid").0
    };
    let none = RegistrationLimits::default();

    let few = control("few", RegistrationLimits { regions_max: 1, ..none });
    few.register(&rig.region).expect("one fits");
    few.register(&rig.region).expect("and is known already");
    let error = few.register(&other).expect_err("a second is too many");
    assert!(matches!(error, RegisterError::TooManyRegions { limit: 1, .. }), "{error}");
    few.unregister(rig.region.id());
    few.register(&other).expect("there is room again");
    assert_eq!(few.registered_bytes(), 8192);

    let locked = control("locked", RegistrationLimits { bytes_max: 12_287, ..none });
    locked.register(&rig.region).expect("4096 fit");
    let error = locked.register(&other).expect_err("12288 do not");
    let is_memlock =
        matches!(error, RegisterError::MemlockLimit { bytes: 8192, limit_bytes: 12_287, .. });
    assert!(is_memlock, "{error}");

    for limits in [
        RegistrationLimits { region_bytes_max: 8191, ..none },
        RegistrationLimits { pages_max: 3, page_bytes: 2048, ..none },
    ] {
        let small = control(&format!("{limits:?}"), limits);
        let error = small.register(&other).expect_err("too long");
        assert!(matches!(error, RegisterError::Io { bytes: 8192, .. }), "{error}");
        small.register(&rig.region).expect("a small one fits");
    }
}

#[test]
fn a_rail_checks_what_is_queued_and_what_is_connected() {
    let config = SimRailConfig {
        alignment: Alignment { offset_bytes: 512, length_bytes: 512, memory_bytes: 512 },
        request_bytes_max: 1024,
        endpoints: Some(vec![ENDPOINT.into()]),
        targets_max: 1,
        ..SimRailConfig::new("rail0")
    };
    let mut rig = Rig::new(1, 16 << 10, config);
    let invalid = Some(Status::INVALID_ARGUMENT);
    let refuse = |rig: &mut Rig, bytes, offset| {
        let mut request = rig.request(0, bytes);
        request.offset = offset;
        support::refused(rig.link.queue(request)).1
    };
    assert_eq!(refuse(&mut rig, 1536, 0), invalid, "too long");
    assert_eq!(refuse(&mut rig, 512, 100), invalid, "misaligned offset");
    assert_eq!(refuse(&mut rig, 100, 0), invalid, "misaligned length");
    assert_eq!(refuse(&mut rig, 512, 0), invalid, "misaligned memory");
    rig.request(0, 412);
    let request = rig.request(0, 512);
    rig.control.unregister(rig.region.id());
    let (request, status) = support::refused(rig.link.queue(request));
    assert_eq!(status, Some(Status::from_errno(14)), "unregistered memory");
    rig.control.register(&rig.region).expect("no limit");
    rig.control.disconnect(rig.target);
    assert_eq!(support::refused(rig.link.queue(request)).1, invalid, "unknown target");

    let connect = |endpoint, handle, generation| {
        rig.control.connect(SourceRef { endpoint, handle, generation })
    };
    let error = connect("elsewhere", HANDLE, 1).expect_err("not reached");
    assert!(matches!(error, ConnectError::Unreachable { .. }));
    assert!(matches!(connect(ENDPOINT, "gone", 1), Err(ConnectError::Stale { .. })));
    assert!(matches!(connect(ENDPOINT, HANDLE, 9), Err(ConnectError::Stale { .. })));
    connect(ENDPOINT, HANDLE, 1).expect("one fits");
    let error = connect(ENDPOINT, HANDLE, 1).expect_err("a second does not");
    assert!(matches!(error, ConnectError::TooManyTargets { limit: 1, .. }));
}

#[test]
fn bad_configurations_are_refused_by_name() {
    fn refuse(change: impl FnOnce(&mut SimRailConfig)) -> SimConfigError {
        let mut config = SimRailConfig::new("rail0");
        change(&mut config);
        SimWorld::new(1).add_rail(config).expect_err("refused")
    }
    fn refuse_rail(change: impl FnOnce(&mut SimRailConfig)) -> RailConfigError {
        match refuse(change) {
            SimConfigError::Rail(error) => error,
            other => panic!("{other}"),
        }
    }
    let rail = || String::from("rail0");
    assert_eq!(refuse_rail(|c| c.name = String::new()), RailConfigError::BlankName);
    let weight = 1_000_001;
    assert_eq!(
        refuse_rail(|c| c.weight = weight),
        RailConfigError::Weight { rail: rail(), weight }
    );
    assert_eq!(refuse_rail(|c| c.weight = 0), RailConfigError::Weight { rail: rail(), weight: 0 });
    let none = SimConfigError::NoBandwidth { rail: rail() };
    assert_eq!(refuse(|c| c.bandwidth_bytes_per_second = 0), none);
    assert_eq!(refuse_rail(|c| c.window_wrs = 0), RailConfigError::NoWindow { rail: rail() });
    let entries = |c: &mut SimRailConfig| c.completion_queue_entries = Some(0);
    assert_eq!(refuse_rail(entries), RailConfigError::NoWindow { rail: rail() });
    let wrs = u32::MAX;
    assert_eq!(
        refuse_rail(|c| c.window_wrs = wrs),
        RailConfigError::WindowTooLarge { rail: rail(), wrs }
    );
    let too_small =
        RailConfigError::RequestTooSmall { rail: rail(), request_bytes_max: 0, length_bytes: 1 };
    assert_eq!(refuse_rail(|c| c.request_bytes_max = 0), too_small);
    let latency = Latency::Uniform { mean_ns: 1, spread_ns: 2 };
    assert_eq!(
        refuse(|c| c.latency = latency),
        SimConfigError::BadLatency { rail: rail(), latency }
    );
    let nothing = SimConfigError::ReachesNothing { rail: rail() };
    assert_eq!(refuse(|c| c.endpoints = Some(vec![])), nothing);
    assert_eq!(refuse(|c| c.targets_max = 0), nothing);
    for fault in [
        Fault::Rate { bytes_per_second: 0 },
        Fault::Flap { down_ns: 0, up_ns: 1 },
        Fault::PostError { status: Status::OK },
    ] {
        let error = refuse(|c| c.faults = FaultPlan::none().with(fault, When::ALWAYS));
        assert_eq!(error, SimConfigError::BadFault { rail: rail(), fault });
    }
    for when in [When::Chance { per_million: 1_000_001 }, When::Every(0)] {
        let error = refuse(|c| c.faults = FaultPlan::none().with(Fault::Lost, when));
        assert_eq!(error, SimConfigError::BadWhen { rail: rail(), fault: FaultKind::Lost, when });
    }
    let mut world = SimWorld::new(1);
    world.add_rail(SimRailConfig::new("rail0")).expect("valid");
    let error = world.add_rail(SimRailConfig::new("rail0")).expect_err("taken");
    assert_eq!(error, SimConfigError::NameTaken { rail: rail() });
}
