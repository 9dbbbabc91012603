//! Where an engine's pollers and memory go: by the machine's plan, as asked for, read back.

use std::fs;
use std::path::PathBuf;

use railring::dma::Placement as Memory;
use railring::file::FileRailOptions;
use railring::sim::NullConfig;
use railring::topology::assign::{AssignError, Placement, Policy, Rails, Strictness as Strict};
use railring::topology::machine::{Directory, Locality, LocalityFrom, Node};
use railring::topology::{
    CpuId, CpuSet, Discovery, Machine, NodeId, allowed_cpus, parse_rails, pin_current_thread,
};
use railring::{
    Engine, EngineError, Pinning, PoolConfig, PoolNode, RailError, RailHealth, RailSet, Strictness,
};

fn allowed() -> CpuSet {
    allowed_cpus().expect("readable here")
}

fn two() -> Option<(CpuId, CpuId)> {
    let allowed = allowed();
    let (first, last) = (allowed.first()?, allowed.last()?);
    (first != last).then_some((first, last))
}

fn null_rails(count: usize) -> RailSet {
    let add = |set: RailSet, index| set.null(NullConfig::new(format!("n{index}")));
    (0..count).try_fold(RailSet::new(), add).expect("null rails")
}

fn directories(count: usize) -> (tempfile::TempDir, Vec<PathBuf>) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let make = |index| {
        let directory = home.path().join(format!("d{index}"));
        fs::create_dir(&directory).expect("made");
        directory
    };
    let made = (0..count).map(make).collect();
    (home, made)
}

/// What the kernel says of this process's threads of that name.
fn thread_cpus(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").expect("there").flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            let status = read("status");
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.push(list.unwrap_or("?").trim().to_owned());
        }
    }
    found
}

/// Bindings belong to threads, so a test that changes its own has one to itself.
fn on_a_thread(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(body).join().expect("the test's thread ended well");
}

/// The running machine, but with each of two CPUs on a node of its own, and with directories that
/// lie on disks of those nodes.
fn two_nodes(cpus: (CpuId, CpuId), directories: &[PathBuf]) -> Machine {
    let mut machine = Discovery::live().read().expect("this machine");
    let node = |id: u16, cpus: CpuSet| Node {
        id: NodeId(id),
        cpus,
        memory_bytes: Some(1 << 30),
        distances: [(NodeId(id), 10), (NodeId(1 - id), 21)].into(),
        huge_pages: Vec::new(),
        implied: false,
    };
    let rest = machine.cpus.online.difference(&cpus.1.into());
    machine.nodes = vec![node(0, rest), node(1, cpus.1.into())];
    machine.cpus.memory_nodes = None;
    let lies = |(index, path): (usize, &PathBuf)| {
        let node = &machine.nodes[index % 2];
        Directory {
            path: path.display().to_string(),
            mount_point: None,
            filesystem: None,
            disk: None,
            locality: Locality {
                node: Some(node.id),
                cpus: node.cpus.clone(),
                from: LocalityFrom::NumaNode,
            },
            why_unknown: None,
        }
    };
    machine.directories = directories.iter().enumerate().map(lies).collect();
    machine
}

#[test]
fn rails_of_a_directory_are_found_and_their_pollers_bound_near_them() {
    let Some(cpus) = two() else {
        println!(
            "SKIP rails_of_a_directory_are_found_and_their_pollers_bound_near_them: needs two cpus"
        );
        return;
    };
    let (_home, directories) = directories(2);
    let machine = two_nodes(cpus, &directories);
    let policy = Policy { rails: Rails::File, ..Policy::default() };
    let set = RailSet::planned(machine, &policy).expect("two rails");
    let before = allowed();
    let engine = Engine::builder().rails(set).build().expect("it starts");
    assert_eq!(allowed(), before, "the caller's own affinity changed");
    let plan = engine.plan().expect("it was built by one");
    assert_eq!(plan.rails.len(), 2);
    for (number, (rail, seat)) in engine.rail_stats().iter().zip(engine.seats()).enumerate() {
        let number = u32::try_from(number).expect("small");
        assert_eq!((rail.node, rail.memory_node), (Some(number), Some(number)));
        assert_eq!(rail.poller, number);
        let planned = plan.pollers[rail.poller as usize].cpu.expect("a cpu");
        assert_eq!(rail.asked_cpu, Some(u32::from(planned.0)));
        assert_eq!(rail.pinned_cpu, rail.asked_cpu, "read back");
        assert_eq!(seat.got, Some(planned.into()));
        assert!(seat.is_exact() && seat.rails == [rail.info.name.clone()]);
        assert!(rail.to_string().contains(&format!("on cpu {planned}")), "{rail}");
    }
    assert_eq!(engine.rail_stats()[1].pinned_cpu, Some(u32::from(cpus.1.0)), "node 1's only cpu");
    // Rails that want their memory on different nodes: the user of a pool decides.
    let pool = engine.buffer_pool(PoolConfig::default()).expect("memory");
    assert_eq!(pool.region().placement(), Memory::FirstTouch);
}

#[test]
fn rails_share_pollers_as_the_plan_says() {
    let set = RailSet::discover_with(
        &Discovery::live(),
        &Policy {
            rails: Rails::Given(parse_rails(&["null:a", "null:b", "null:c"]).expect("rails")),
            ..Policy::default()
        },
    );
    let set = set.expect("three rails");
    let engine = Engine::builder().rails(set).pollers(1).build().expect("it starts");
    assert_eq!(engine.seats().len(), 1);
    assert_eq!(engine.seats()[0].rails, ["a", "b", "c"]);
    assert!(engine.rail_stats().iter().all(|rail| rail.poller == 0));
}

#[test]
fn a_narrow_caller_can_have_pollers_elsewhere() {
    let Some((first, last)) = two() else {
        println!("SKIP a_narrow_caller_can_have_pollers_elsewhere: needs two cpus");
        return;
    };
    on_a_thread(move || {
        pin_current_thread(first).expect("an allowed cpu");
        let engine = Engine::builder().rails(null_rails(1)).cpus(last.into()).build();
        let engine = engine.expect("it starts");
        assert_eq!(engine.rail_stats()[0].pinned_cpu, Some(u32::from(last.0)));
        assert!(thread_cpus("railring-0").contains(&last.to_string()));
        assert_eq!(allowed(), first.into(), "the caller's own affinity changed");
    });
}

#[test]
fn every_override_of_the_builder_is_obeyed() {
    let Some((first, last)) = two() else {
        println!("SKIP every_override_of_the_builder_is_obeyed: needs two cpus");
        return;
    };
    let number = |cpu: CpuId| Some(u32::from(cpu.0));
    let engine = Engine::builder().rails(null_rails(2)).pin("n1", first).pin("0", last);
    let engine = engine.build().expect("it starts");
    let rails = engine.rail_stats();
    assert_eq!((rails[0].pinned_cpu, rails[1].pinned_cpu), (number(last), number(first)));
    let compact = Engine::builder().rails(null_rails(3)).placement(Placement::Compact);
    assert_eq!(compact.build().expect("it starts").pollers(), 1);
    let confined = Engine::builder().rails(null_rails(1)).cpus(last.into());
    let confined = confined.placement(Placement::Unpinned).build().expect("it starts");
    let seat = &confined.seats()[0];
    assert_eq!((&seat.asked, &seat.got), (&Some(last.into()), &Some(last.into())));
    let on_node = Engine::builder().rails(null_rails(1)).node(NodeId(60)).build();
    assert!(matches!(on_node, Err(EngineError::Assign(AssignError::NoSuchNode { .. }))));
    let engine = Engine::builder().rails(null_rails(1)).memory_node(NodeId(0)).build();
    let engine = engine.expect("node 0 has memory");
    let pool = |node| engine.buffer_pool(PoolConfig { slots: 1, node, ..PoolConfig::default() });
    let placed = |node| pool(node).expect("memory").region().placement();
    assert_eq!(placed(PoolNode::FirstTouch), Memory::FirstTouch);
    let (planned, named) = (placed(PoolNode::Planned), placed(PoolNode::Node(0)));
    assert_eq!(planned, named);
    if engine.stats().regions_misplaced == 0 {
        assert_eq!(planned, Memory::Node(0));
        assert_eq!(engine.rail_stats()[0].memory, Memory::Node(0));
    }
}

#[test]
fn what_was_not_bound_is_shown_and_refused_when_strict() {
    // No machine here has it, and it is beyond what a fixed-size mask holds.
    for absent in [999_u32, 2000, 70_000] {
        let build = |strictness| {
            let builder = Engine::builder().rails(null_rails(1)).strictness(strictness);
            builder.pinning(Pinning::Cpus(vec![absent])).build()
        };
        let engine = build(Strictness::BestEffort).expect("it runs unpinned");
        let rail = &engine.rail_stats()[0];
        assert_eq!(rail.pinned_cpu, None);
        assert_eq!(rail.asked_cpu, Some(absent).filter(|cpu| *cpu < 65_536));
        assert!(!engine.seats()[0].is_exact() && engine.seats()[0].why.is_some());
        assert!(absent > 65_535 || rail.to_string().contains("not pinned"), "{rail}");
        drop(engine);
        let refused = build(Strictness::Strict);
        assert!(matches!(refused, Err(EngineError::NotPinned { poller: 0, .. })), "{refused:?}");
    }
    // By a plan: what is dropped is warned of, what is all dropped refused, strictly all refused.
    let wide: CpuSet = "0-999".parse().expect("a list");
    let place = Policy { cpus: Some(wide), ..Policy::default() };
    let engine = Engine::builder().rails(null_rails(1)).place(place.clone()).build();
    assert!(!engine.expect("it starts").plan().expect("by a plan").dropped_cpus.is_empty());
    let strict = Policy { strictness: Strict::Strict, ..place };
    let refused = Engine::builder().rails(null_rails(1)).place(strict).build();
    assert!(matches!(refused, Err(EngineError::Assign(AssignError::Dropped { .. }))));
    let none = Engine::builder().rails(null_rails(1)).cpus(CpuId(999).into()).build();
    assert!(matches!(none, Err(EngineError::Assign(AssignError::NoCpus { .. }))));
    assert!(thread_cpus("railring-0").len() < 8, "threads of refused engines are left");
}

#[test]
fn rails_by_hand_are_used_as_they_are_written_or_refused() {
    let (_home, directories) = directories(1);
    let directory = directories[0].display();
    let set = |specs: &[String]| {
        let rails = Rails::Given(parse_rails(specs).expect("rails"));
        RailSet::discover_with(&Discovery::live(), &Policy { rails, ..Policy::default() })
    };
    let last = allowed().last().expect("a cpu");
    let off = format!("file:{directory},name=slow,weight=3,enabled=off");
    let rails = set(&[format!("null:fast,cpu={last}"), off]).expect("two rails");
    let engine = Engine::builder().rails(rails).build().expect("it starts");
    let stats = engine.rail_stats();
    assert_eq!((&*stats[0].info.name, &*stats[1].info.name), ("fast", "slow"));
    assert_eq!(stats[0].pinned_cpu, Some(u32::from(last.0)));
    assert_eq!(stats[1].info.weight, 3);
    let disabled = || engine.rail_stats()[1].health == RailHealth::Disabled;
    let waited = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        disabled()
    });
    assert!(waited, "the rail that is off is used");
    for bad in ["sim:a".to_owned(), format!("file:{directory}@host:1")] {
        assert!(matches!(set(&[bad]), Err(RailError::Unsupported { .. })));
    }
}

#[test]
fn what_this_build_cannot_use_is_listed_and_no_engine_is_built_of_it() {
    let set = RailSet::discover().expect("this machine can be read");
    if !set.is_empty() {
        println!(
            "SKIP what_this_build_cannot_use_is_listed_and_no_engine_is_built_of_it: it can use \
             the rails of this machine"
        );
        return;
    }
    let listed = set.unused().len() + set.passed_over().len();
    let refused = Engine::builder().rails(set).build();
    match refused {
        Err(EngineError::NoUsableRails { why }) => assert!(listed > 0 && !why.is_empty()),
        Err(EngineError::Build(railring::BuildError::NoRails)) => assert_eq!(listed, 0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hand_made_rails_without_wishes_need_no_plan() {
    let (_home, directories) = directories(1);
    let set = RailSet::new().file(&directories[0], FileRailOptions::default()).expect("a rail");
    let engine = Engine::builder().rails(set).build().expect("it starts");
    assert!(engine.plan().is_none());
    assert!(engine.seats()[0].is_exact());
    assert_eq!(engine.rail_stats()[0].memory_node, None);
}
