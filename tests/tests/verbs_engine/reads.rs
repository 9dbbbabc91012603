//! Reads that succeed: threaded and inline, polled and sleeping, verified or not, from one peer or
//! several.

use railring::{Proof, Read};
use railring_tests::guest;
use railring_tests::memory_peer::{Command, MemoryPeer, PeerConfig, PeerProcess};
use railring_tests::objects;
use railring_tests::stored::seed;
use railring_verbs::{PathMtu, VerbsRailOptions, Waiting};

use crate::rig::{DEVICE, Rig, SHAPE, STRIPE, Who, engine, options, peer, put, waiting};

#[test]
fn every_way_of_driving_reads_the_right_bytes() {
    let test = "every_way_of_driving_reads_the_right_bytes";
    for who in [Who::Thread, Who::Caller] {
        for rail in [Waiting::Adaptive, Waiting::Polling] {
            let Some((peer, known)) = peer(test, "object") else { return };
            let (options, config) = waiting(rail);
            let mut rig = Rig::new(engine(who, options, config), peer, known);
            println!("{who:?}, {rail:?}");
            rig.is_right();
            let size = rig.object.len();
            for range in [0..1, size - 1..size, 1..STRIPE + 1, 70_001..200_000, 5..4096] {
                for verify in [true, false] {
                    reads_range(&mut rig, range.clone(), verify);
                }
            }
            let whole = rig.read(0..STRIPE, |read| read);
            assert_eq!(whole[0].proof(), Proof::Stripe);
            let stats = rig.driven.rail();
            assert_eq!((stats.failed, stats.rail_faults, stats.link.stale_completions), (0, 0, 0));
            assert_eq!(rig.peer.greeted(), 1, "one queue pair is enough");
        }
    }
}

fn reads_range(rig: &mut Rig, range: std::ops::Range<u64>, verify: bool) {
    let mut all = rig.read(range.clone(), |read| if verify { read } else { read.skip_verify() });
    for completion in &all {
        assert!(completion.status().is_ok(), "{range:?}: {completion:?}");
        assert_eq!(completion.proof() != Proof::None, verify, "{range:?}: {completion:?}");
    }
    let lease = all.pop().and_then(railring::Completion::into_lease).expect("the last brings it");
    let (from, to) = (range.start as usize, range.end as usize);
    assert!(lease.as_slice()[..to - from] == rig.known.bytes[from..to], "{range:?}: bytes differ");
}

#[test]
fn many_reads_at_once_are_each_right() {
    let test = "many_reads_at_once_are_each_right";
    let Some((peer, known)) = peer(test, "object") else { return };
    let mut rig = Rig::new(engine(Who::Thread, options(), Default::default()), peer, known);
    let mut rng = fastrand::Rng::with_seed(seed(test));
    let size = rig.object.len();
    for _ in 0..20 {
        let mut ranges = Vec::new();
        for index in 0..rig.pool.slots() {
            let from = rng.u64(0..size);
            let to = (from + rng.u64(1..=200_000)).min(size);
            let lease = rig.lease();
            let read = Read::new(&rig.object, from..to, lease).user_data(index as u64);
            rig.ring.push(read).expect("it fits");
            ranges.push(from as usize..to as usize);
        }
        for completion in rig.finish() {
            assert!(completion.status().is_ok(), "{completion:?}");
            let range = ranges[usize::try_from(completion.user_data()).expect("small")].clone();
            if let Some(lease) = completion.into_lease() {
                assert!(lease.as_slice()[..range.len()] == rig.known.bytes[range], "bytes differ");
            }
        }
    }
}

#[test]
fn one_rail_reads_from_several_peers() {
    let Some((first, known)) = peer("one_rail_reads_from_several_peers", "first") else { return };
    let second = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("another");
    let other = put(&second, "second");
    let mut rig = Rig::new(engine(Who::Thread, options(), Default::default()), first, known);
    rig.is_right();
    let (object, known) = (rig.object, rig.known);
    rig.object = rig.driven.open(&other.placement);
    rig.known = other;
    rig.is_right();
    (rig.object, rig.known) = (object, known);
    rig.is_right();
    assert_eq!((rig.peer.greeted(), second.greeted()), (1, 1));
}

#[test]
fn a_peer_in_another_process_is_as_good() {
    if guest::rails("a_peer_in_another_process_is_as_good").is_none() {
        return;
    }
    let mut far = PeerProcess::start(env!("CARGO_BIN_EXE_memory_peer"), DEVICE).expect("starts");
    far.tell(&Command::Object { name: "far".to_owned(), shape: SHAPE, seed: 9 }).expect("put");
    let (known, _) = objects::build("far", SHAPE, &[far.endpoint().to_owned()], 9);
    let near = MemoryPeer::start(PeerConfig::on(DEVICE)).expect("a peer");
    let mut rig = Rig::new(engine(Who::Caller, options(), Default::default()), near, known);
    rig.is_right();
    assert_eq!(far.tell(&Command::Connections).expect("it answers"), "1");
}

#[test]
fn both_ends_use_the_smaller_mtu() {
    let Some((peer, known)) = peer("both_ends_use_the_smaller_mtu", "object") else { return };
    let small = VerbsRailOptions { mtu: Some(PathMtu::B1024), ..options() };
    let mut rig = Rig::new(engine(Who::Thread, small, Default::default()), peer, known);
    rig.is_right();
    let backend = rig.driven.rail().link.backend;
    assert!(backend.contains("1024"), "{backend}");
}

#[test]
fn connecting_and_reading_at_once_never_waits_for_the_peer_to_be_ready() {
    let test = "connecting_and_reading_at_once_never_waits_for_the_peer_to_be_ready";
    let Some((mut peer, mut known)) = peer(test, "object") else { return };
    for _ in 0..25 {
        let mut rig = Rig::new(engine(Who::Caller, options(), Default::default()), peer, known);
        rig.is_right();
        let stats = rig.driven.rail();
        assert_eq!((stats.failed, stats.timeouts), (0, 0));
        let Rig { peer: same, known: again, .. } = rig;
        (peer, known) = (same, again);
    }
    assert_eq!(peer.greeted(), 25);
}
