//! Reads that fail, and are quiet then: the CQE comes within its bound, its memory is used for
//! something else at once, and nothing of the failed read ever lands in it.

use std::time::{Duration, Instant};

use railring::{Completion, EngineConfig, Lease, Read, Status};
use railring_tests::memory_peer::{
    Command, Lie, MemoryPeer, Over, PeerConfig, PeerError, PeerProcess, Stage, Write,
};
use railring_tests::objects;
use railring_tests::stored::seed;
use railring_verbs::VerbsFaults;
use railring_verbs::{Timers, VerbsRailOptions};

use crate::rig::{DEVICE, Rig, SHAPE, STRIPE, Who, engine, hasty, options, peer, put};

const SENTINEL: u8 = 0xa5;
const LATE: u8 = 0x5a;
/// What an emulated guest may take for scheduling, besides the stated bounds.
const SLACK: Duration = Duration::from_secs(1);
/// Longer than any test waits.
const NEVER: Duration = Duration::from_secs(600);
const REMOTE_ACCESS: u8 = 10;

/// A second at the least until a read to a silent peer gives up by itself.
fn patient() -> VerbsRailOptions {
    let timers = Timers::new(18, 3, 12, 6).expect("within their ranges");
    VerbsRailOptions { timers, ..options() }
}

/// The bound of a read that is given up: its grace, and what tearing the queue pair down may take.
fn bound(config: &EngineConfig) -> Duration {
    config.cancel_grace + config.quiet_bound
}

/// The status of the read, and its lease.
fn ended(mut all: Vec<Completion>) -> (Status, Lease) {
    let last = all.pop().expect("a CQE");
    (last.ended().expect("the last ends it"), last.into_lease().expect("it brings the lease"))
}

/// Reads the whole object at `other` into `lease`, at once, and checks every byte.
fn reuse(rig: &mut Rig, lease: Lease, other: &objects::Known) {
    let object = rig.driven.open(&other.placement);
    rig.ring.push(Read::new(&object, 0..object.len(), lease)).expect("it fits");
    let (status, lease) = ended(rig.finish());
    assert!(status.is_ok(), "{status:?}");
    assert!(lease.as_slice()[..other.bytes.len()] == other.bytes, "bytes differ");
}

#[test]
fn a_read_that_times_out_is_quiet_within_its_bound() {
    let test = "a_read_that_times_out_is_quiet_within_its_bound";
    for who in [Who::Thread, Who::Caller] {
        let Some((silent, known)) = peer(test, "silent") else { return };
        silent.delay(Stage::Ready, NEVER);
        let sound = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("another");
        let other = put(&sound, "sound");
        let mut rig = Rig::new(engine(who, patient(), hasty()), silent, known);
        let (start, timeout) = (Instant::now(), Duration::from_millis(200));
        let all = rig.read(0..rig.object.len(), |read| read.timeout(timeout));
        let took = start.elapsed();
        let (status, lease) = ended(all);
        println!("{who:?}: {status} after {took:?}");
        assert_eq!(status, Status::TIMED_OUT);
        assert!(took >= timeout && took < timeout + bound(&hasty()) + SLACK, "{took:?}");
        reuse(&mut rig, lease, &other);
        assert_eq!(rig.driven.rail().stuck, 0);
    }
}

#[test]
fn a_cancelled_read_is_quiet_within_its_bound() {
    let test = "a_cancelled_read_is_quiet_within_its_bound";
    let Some((silent, known)) = peer(test, "silent") else { return };
    silent.delay(Stage::Ready, NEVER);
    let sound = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("another");
    let other = put(&sound, "sound");
    let config = EngineConfig { io_timeout: NEVER, ..hasty() };
    let mut rig = Rig::new(engine(Who::Thread, patient(), config.clone()), silent, known);
    let lease = rig.lease();
    let id = rig.ring.push(Read::new(&rig.object, 0..rig.object.len(), lease)).expect("it fits");
    assert_eq!(rig.driven.wait(&mut rig.ring, Duration::from_millis(100)), 0, "nobody answers");
    let start = Instant::now();
    assert!(rig.ring.cancel(id));
    let (status, lease) = ended(rig.finish());
    let took = start.elapsed();
    println!("{status} after {took:?}");
    assert_eq!(status, Status::CANCELLED);
    assert!(took < bound(&config) + SLACK, "{took:?}");
    reuse(&mut rig, lease, &other);
}

#[test]
fn cancels_at_any_moment_leave_no_trace_in_the_lease() {
    let test = "cancels_at_any_moment_leave_no_trace_in_the_lease";
    let Some((first, known)) = peer(test, "first") else { return };
    let other = put(&first, "other");
    // Hardly any grace: what can be torn down is.
    let config = EngineConfig { cancel_grace: Duration::from_micros(100), ..hasty() };
    let mut rig = Rig::new(engine(Who::Thread, options(), config), first, known);
    let mut rng = fastrand::Rng::with_seed(seed(test));
    let mut cancelled = 0;
    for _ in 0..10 {
        let mut ids = Vec::new();
        for _ in 0..8 {
            let lease = rig.lease();
            let read = Read::new(&rig.object, 0..rig.object.len(), lease);
            ids.push(rig.ring.push(read).expect("it fits"));
        }
        rig.ring.submit();
        std::thread::sleep(Duration::from_micros(rng.u64(0..60_000)));
        ids.into_iter().for_each(|id| _ = rig.ring.cancel(id));
        let all: Vec<_> =
            rig.finish().into_iter().filter(|completion| completion.ended().is_some()).collect();
        let statuses: Vec<_> = all.iter().filter_map(Completion::ended).collect();
        let expected = [Status::OK, Status::CANCELLED];
        assert!(statuses.iter().all(|status| expected.contains(status)), "{statuses:?}");
        cancelled += statuses.iter().filter(|status| **status == Status::CANCELLED).count();
        // The last one ended while others' memory was just given back; the connection may have been
        // torn down, and is made anew meanwhile.
        let lease = all.into_iter().next_back().and_then(Completion::into_lease);
        reuse_when_back(&mut rig, lease.expect("each ends with its lease"), &other);
    }
    println!("{cancelled} of 80 were cancelled in time");
    assert!(cancelled > 0, "no cancel came in time: nothing was tested");
}

#[test]
fn a_peer_that_dies_fails_its_reads_within_the_retry_time() {
    let test = "a_peer_that_dies_fails_its_reads_within_the_retry_time";
    let Some((sound, other)) = peer(test, "sound") else { return };
    let mut dying = PeerProcess::start(env!("CARGO_BIN_EXE_memory_peer"), DEVICE).expect("starts");
    dying.tell(&Command::Object { name: "far".to_owned(), shape: SHAPE, seed: 9 }).expect("put");
    dying.tell(&Command::Delay(Stage::Ready, NEVER)).expect("it obeys");
    let (known, _) = objects::build("far", SHAPE, &[dying.endpoint().to_owned()], 9);
    let config = EngineConfig { io_timeout: NEVER, ..hasty() };
    let mut rig = Rig::new(engine(Who::Thread, patient(), config), sound, known);
    let lease = rig.lease();
    rig.ring.push(Read::new(&rig.object, 0..rig.object.len(), lease)).expect("it fits");
    assert_eq!(rig.driven.wait(&mut rig.ring, Duration::from_millis(100)), 0, "nobody answers");
    let start = Instant::now();
    dying.kill();
    let (status, lease) = ended(rig.finish());
    let took = start.elapsed();
    println!("{status} after {took:?}");
    assert!(!status.is_ok());
    assert!(took < patient().timers.gives_up_after() + SLACK, "{took:?}");
    reuse(&mut rig, lease, &other);
    // The next read of what is gone fails, too, and does not hang.
    let (status, _) = ended(rig.read(0..STRIPE, |read| read));
    assert!(!status.is_ok());
}

#[test]
fn a_revoked_key_is_a_remote_access_error_and_no_more() {
    let test = "a_revoked_key_is_a_remote_access_error_and_no_more";
    let Some((first, known)) = peer(test, "first") else { return };
    let other = put(&first, "other");
    let mut rig = Rig::new(engine(Who::Thread, options(), hasty()), first, known);
    rig.is_right();
    rig.peer.revoke(&rig.known.placement.handle.clone()).expect("there is one");
    let start = Instant::now();
    let (status, lease) = ended(rig.read(0..STRIPE, |read| read.fail_fast()));
    let took = start.elapsed();
    println!("{status} after {took:?}");
    assert_eq!(status, Status::from_wc(u32::from(REMOTE_ACCESS)));
    assert!(took < bound(&hasty()) + SLACK, "{took:?}");
    // The peer is well, and its other objects are: the connection comes back.
    reuse_when_back(&mut rig, lease, &other);
    let stats = rig.driven.rail();
    assert_eq!(stats.stuck, 0);
}

/// As [`reuse`], when the rail has reconnected: reads until then fail, and nothing else.
fn reuse_when_back(rig: &mut Rig, mut lease: Lease, other: &objects::Known) {
    let object = rig.driven.open(&other.placement);
    let start = Instant::now();
    loop {
        rig.ring.push(Read::new(&object, 0..object.len(), lease)).expect("it fits");
        let (status, back) = ended(rig.finish());
        lease = back;
        if status.is_ok() {
            assert!(lease.as_slice()[..other.bytes.len()] == other.bytes, "bytes differ");
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "it did not come back: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_queue_pair_that_is_shut_is_replaced() {
    let test = "a_queue_pair_that_is_shut_is_replaced";
    let Some((first, known)) = peer(test, "first") else { return };
    let timers = Timers::new(14, 3, 12, 6).expect("within their ranges");
    let quick = VerbsRailOptions { timers, ..options() };
    let config = EngineConfig { io_timeout: NEVER, ..hasty() };
    let mut rig = Rig::new(engine(Who::Thread, quick, config), first, known);
    rig.is_right();
    rig.peer.shut().expect("the device obeys");
    let start = Instant::now();
    let (status, lease) = ended(rig.read(0..STRIPE, |read| read.fail_fast()));
    let took = start.elapsed();
    println!("{status} after {took:?}");
    assert!(!status.is_ok());
    assert!(took < timers.gives_up_after() + SLACK, "{took:?}");
    let known = rig.known.clone();
    reuse_when_back(&mut rig, lease, &known);
    assert_eq!(rig.peer.greeted(), 2, "one more queue pair");
}

#[test]
fn peers_that_come_and_go_under_load_never_bring_wrong_bytes() {
    let test = "peers_that_come_and_go_under_load_never_bring_wrong_bytes";
    let Some((first, known)) = peer(test, "object") else { return };
    let port = first.endpoint().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let config = PeerConfig { listen: port.expect("host:port"), ..PeerConfig::on(DEVICE) };
    let timers = Timers::new(13, 2, 12, 6).expect("within their ranges");
    let quick = VerbsRailOptions { timers, ..options() };
    let mut rig = Rig::new(engine(Who::Thread, quick, hasty()), first, known);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..8 {
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            let all = rig.read(0..rig.object.len(), |read| read);
            let (status, lease) = ended(all);
            if status.is_ok() {
                assert!(lease.as_slice()[..rig.known.bytes.len()] == rig.known.bytes, "differ");
                good += 1;
            } else {
                bad += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // In the midst of a read.
        let lease = rig.lease();
        rig.ring.push(Read::new(&rig.object, 0..rig.object.len(), lease)).expect("it fits");
        rig.ring.submit();
        // Another takes its place first, so that its port is free when it comes again.
        rig.peer = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("a peer");
        rig.peer = MemoryPeer::start(config.clone()).expect("its port is free again");
        put(&rig.peer, "object");
        rig.finish();
    }
    println!("{good} reads were right, {bad} failed");
    assert!(good > 0);
    let (lease, known) = (rig.lease(), rig.known.clone());
    reuse_when_back(&mut rig, lease, &known);
}

/// A reader whose memory the peer may write gives up on a peer that is not ready; then the peer
/// comes up and answers, and writes, late. What the sentinel's bytes are then.
fn sentinel_after_late_writes(test: &str, faults: VerbsFaults) -> Option<(Vec<u8>, u32)> {
    let (late, known) = peer(test, "late")?;
    let ready = Duration::from_millis(1_500);
    late.delay(Stage::Ready, ready);
    late.keep_queue_pairs();
    let mut rig = Rig::from_parts(VerbsRailOptions { faults, ..patient() }, hasty(), late, known);
    let start = Instant::now();
    // No new connection: the late write comes over the one whose read was given up.
    rig.peer.delay(Stage::Hello, NEVER);
    let timeout = Duration::from_millis(200);
    let all = rig.read(0..STRIPE, |read| read.timeout(timeout).skip_verify().fail_fast());
    let (status, mut lease) = ended(all);
    assert_eq!(status, Status::TIMED_OUT);
    assert!(start.elapsed() < ready, "the peer was ready too soon: the test proves nothing");
    lease.as_mut_slice().fill(SENTINEL);
    let control = rig.control.as_ref().expect("from parts");
    let (address, rkey) = control.keys(lease.region()).expect("it is registered");
    let address = address + lease.region_offset() as u64;
    let write = Write { address: address + 2 * STRIPE, rkey, bytes: 4096, fill: LATE };
    let code = loop {
        match rig.peer.write(Over::Oldest, write) {
            Err(PeerError::Nothing(_)) => std::thread::sleep(Duration::from_millis(10)),
            code => break code.expect("a completion"),
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the peer does not come up");
    };
    // The late answers to the reads are sent again and again; a second is enough for two of them.
    std::thread::sleep(Duration::from_millis(2_500));
    Some((lease.as_slice().to_vec(), code))
}

#[test]
fn a_sentinel_survives_late_writes() {
    let faults = VerbsFaults { open_memory: true, quiesce_at_once: false };
    let Some((bytes, code)) = sentinel_after_late_writes("a_sentinel_survives_late_writes", faults)
    else {
        return;
    };
    assert_ne!(code, 0, "the late write was let in");
    assert!(bytes.iter().all(|byte| *byte == SENTINEL), "a late write landed");
}

#[test]
fn a_rail_that_claims_to_be_quiet_at_once_loses_the_sentinel() {
    let test = "a_rail_that_claims_to_be_quiet_at_once_loses_the_sentinel";
    let faults = VerbsFaults { open_memory: true, quiesce_at_once: true };
    let Some((bytes, code)) = sentinel_after_late_writes(test, faults) else { return };
    assert_eq!(code, 0, "the late write was not let in, so the other test proves nothing");
    let stripe = usize::try_from(STRIPE).expect("small");
    assert!(bytes[2 * stripe..2 * stripe + 4096].iter().all(|byte| *byte == LATE));
    let changed = bytes[..stripe].iter().filter(|byte| **byte != SENTINEL).count();
    assert!(changed > stripe / 2, "the late answer to the read did not land: {changed}");
}

#[test]
fn lies_about_memory_fail_one_object_and_nothing_else() {
    let test = "lies_about_memory_fail_one_object_and_nothing_else";
    for lie in [Lie::Key(0x1f00), Lie::Address(1 << 40)] {
        let Some((first, known)) = peer(test, "first") else { return };
        first.lie(lie);
        let mut rig = Rig::new(engine(Who::Thread, options(), hasty()), first, known);
        rig.peer.lie(Lie::Truth);
        let (status, lease) = ended(rig.read(0..STRIPE, |read| read.fail_fast()));
        println!("{lie:?}: {status}");
        assert_eq!(status, Status::from_wc(u32::from(REMOTE_ACCESS)));
        let other = put(&rig.peer, "other");
        reuse_when_back(&mut rig, lease, &other);
    }
    // A length or generation that is not what the placement says is found out before any read.
    for lie in [Lie::Generation(1), Lie::Length(1 << 60)] {
        let Some((first, known)) = peer(test, "first") else { return };
        first.lie(lie);
        let driven = engine(Who::Thread, options(), hasty());
        match driven.try_open(&known.placement) {
            Err(why) => println!("{lie:?}: {why}"),
            Ok(object) => {
                // Longer than it is: what the placement names is there all the same.
                assert_eq!(lie, Lie::Length(1 << 60), "a wrong generation was taken");
                let mut rig = Rig::new(driven, first, known);
                rig.object = object;
                rig.is_right();
            }
        }
    }
}
