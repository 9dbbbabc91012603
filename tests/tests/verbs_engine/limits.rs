//! What a rail and its device grant: small completion queues, little lockable memory, GIDs and
//! ports that cannot be used.

use std::process::Command;

use railring::{Engine, EngineConfig, PoolConfig, RailSet, Read};
use railring_tests::guest;
use railring_tests::memory_peer::{MemoryPeer, PeerConfig};
use railring_verbs::VerbsRailOptions;

use crate::rig::{DEVICE, Rig, Who, engine, ip, options, peer, put};

const DEPTH: u32 = 8;

#[test]
fn a_small_completion_queue_is_never_overrun_by_several_queue_pairs() {
    let test = "a_small_completion_queue_is_never_overrun_by_several_queue_pairs";
    let Some((first, known)) = peer(test, "object") else { return };
    let more: Vec<MemoryPeer> =
        (0..3).map(|_| MemoryPeer::start(PeerConfig::on(DEVICE)).expect("another")).collect();
    let small = VerbsRailOptions { queue_depth: DEPTH, ..options() };
    let mut rig = Rig::new(engine(Who::Thread, small, Default::default()), first, known);
    let mut objects: Vec<_> = more
        .iter()
        .enumerate()
        .map(|(index, peer)| {
            let known = put(peer, &format!("object{index}"));
            (rig.driven.open(&known.placement), known)
        })
        .collect();
    objects.push((rig.driven.open(&rig.known.placement), rig.known.clone()));
    for round in 0..150_u64 {
        for lease in 0..rig.pool.slots() as u64 {
            let (object, _) = &objects[(lease % 4) as usize];
            let from = (round * 4096 + lease * 131) % (object.len() - 4096);
            let memory = rig.lease();
            let read = Read::new(object, from..from + 4096, memory).skip_verify();
            let read = read.user_data(lease << 32 | from);
            rig.ring.push(read).expect("it fits");
        }
        for completion in rig.finish() {
            assert!(completion.status().is_ok(), "{completion:?}");
            let (lease, from) = (completion.user_data() >> 32, completion.user_data() as u32);
            let (from, known) = (from as usize, &objects[(lease % 4) as usize].1);
            let Some(memory) = completion.into_lease() else { continue };
            assert!(memory.as_slice()[..4096] == known.bytes[from..from + 4096], "bytes differ");
        }
    }
    let stats = rig.driven.rail();
    println!("{} pieces, at most {} at once", stats.pieces, stats.in_flight_peak);
    assert_eq!((stats.in_flight_peak, stats.failed), (u64::from(DEPTH), 0));
    assert!(stats.info.notes.iter().all(|note| !note.contains("failed")), "{:?}", stats.info);
    assert!(more.iter().all(|peer| peer.greeted() == 1), "a queue pair was lost");
}

/// Runs a test of this binary in a process that may lock only so much memory.
fn with_memlock(test: &str, kib: u32) -> String {
    let me = std::env::current_exe().expect("it runs");
    let me = me.display();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "--", "bash", "-c"])
        .arg(format!("ulimit -l {kib}; {me} --ignored --exact --nocapture {test}"))
        .output()
        .expect("setpriv is in the base system");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn little_lockable_memory_is_an_error_that_names_the_limit() {
    if guest::rails("little_lockable_memory_is_an_error_that_names_the_limit").is_none() {
        return;
    }
    for (kib, bytes) in [(64, 65_536), (8192, 8_388_608)] {
        let said = with_memlock("limits::build_and_read_with_little_memory", kib);
        // Without the harness's own lines, which would count twice.
        let ours = said.lines().filter(|line| line.contains("rail") || line.contains("small"));
        ours.for_each(|line| println!("{kib} KiB: {line}"));
        assert!(said.contains(&format!("RLIMIT_MEMLOCK is {bytes} B")), "{said}");
    }
}

/// What the test above runs: an engine, or what stops it; then a pool too large, and one that is
/// not.
#[test]
#[ignore = "run by little_lockable_memory_is_an_error_that_names_the_limit"]
fn build_and_read_with_little_memory() {
    let config = EngineConfig { staging_bytes: 2 << 20, ..EngineConfig::default() };
    let rails = RailSet::new().verbs(options()).expect("a rail locks nothing");
    let engine = match Engine::builder().rails(rails).config(config).build() {
        Ok(engine) => engine,
        Err(why) => return println!("not built: {why}"),
    };
    let pool = |slots| {
        engine.buffer_pool(PoolConfig { slots, slot_bytes: 256 << 10, ..PoolConfig::default() })
    };
    match pool(32) {
        Ok(_) => panic!("8 MiB more than there may be"),
        Err(why) => println!("no pool: {why}"),
    }
    let small = pool(1).map(|pool| pool.slots());
    println!("a small one: {small:?}");
}

#[test]
fn ports_and_gids_that_cannot_be_used_are_refused_with_the_table() {
    let test = "ports_and_gids_that_cannot_be_used_are_refused_with_the_table";
    if guest::rails(test).is_none() {
        return;
    }
    let refused = |options: VerbsRailOptions| {
        let why = RailSet::new().verbs(options).expect_err("it cannot be used").to_string();
        println!("{why}");
        why
    };
    let why = refused(VerbsRailOptions { gid: Some(99), ..options() });
    assert!(why.contains("gid index 99") && why.contains("1: RoCE v2 10.7.0.1"), "{why}");
    let why = refused(VerbsRailOptions { port: Some(7), ..options() });
    assert!(why.contains("has no port 7"), "{why}");
    let why = refused(VerbsRailOptions::new("mlx5_9"));
    assert!(why.contains("mlx5_9") && why.contains("rxe0, rxe1"), "{why}");
    let why = refused(VerbsRailOptions { queue_depth: u32::MAX, ..options() });
    assert!(why.contains("queue depth"), "{why}");
    ip(&["link", "set", "nic1", "down"]);
    let why = refused(VerbsRailOptions::new("rxe1"));
    ip(&["link", "set", "nic1", "up"]);
    assert!(why.contains("active"), "{why}");
}

#[test]
fn an_endpoint_that_answers_nothing_or_nonsense_is_an_error_in_time() {
    use std::io::Write as _;
    let test = "an_endpoint_that_answers_nothing_or_nonsense_is_an_error_in_time";
    let Some((first, mut known)) = peer(test, "object") else { return };
    let driven = engine(Who::Thread, options(), EngineConfig::default());
    for answer in [&b""[..], b"HTTP/1.1 200 OK\r\n\r\n", &[0xff; 4096]] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        known.placement.sources[0].endpoint = format!("127.0.0.1:{port}");
        let start = std::time::Instant::now();
        let why = std::thread::scope(|scope| {
            scope.spawn(|| {
                // The rail may try twice.
                let (mut stream, _) = listener.accept().expect("it connects");
                let _ = stream.write_all(answer);
                // Longer than the rail's patience, where there is nothing to read.
                let stays = if answer.is_empty() { 2_500 } else { 0 };
                std::thread::sleep(std::time::Duration::from_millis(stays));
            });
            driven.try_open(&known.placement).expect_err("no peer")
        });
        println!("{why}");
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    }
    drop(first);
}
