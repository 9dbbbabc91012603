//! The rail on a real device: reads, splits, refusals, sleeping.

use std::time::{Duration, Instant};

use railring_transport::{ConnectError, Link, Outcome, RailControl, Refused, SourceRef};
use railring_verbs::{MtuWish, PathMtu, VerbsRail, VerbsRailError, VerbsRailOptions, Waiting};
use rustix::event::{PollFd, PollFlags, Timespec};
use sq_cq::Status;

use crate::device_or_skip;
use crate::peer::{ANY_MTU, Peer};
use crate::reader::{Reader, is_right, now};

const BOUND: Duration = Duration::from_secs(30);

#[test]
fn chains_of_reads_come_right_with_one_doorbell_each() {
    let (device, port, _) = device_or_skip!("chains_of_reads_come_right_with_one_doorbell_each");
    let peer = Peer::new(&device, &port, 4 << 20, ANY_MTU);
    let waiting = Waiting::Polling;
    let options = VerbsRailOptions { waiting, ..VerbsRailOptions::new(&port.device) };
    let mut reader = Reader::new(&port, 4 << 20, options);
    let target = reader.open(&peer.endpoint);
    assert_eq!(reader.control.connections(), 1);
    let bytes = 64 << 10;
    for round in 0..4 {
        for slot in 0..16 {
            let part = reader.cut(bytes);
            let offset = (round * 16 + slot) as u64 * bytes as u64;
            reader.queue(slot as u32, target, offset, part);
        }
        reader.link.commit(now());
        for completion in reader.reap(16, BOUND) {
            assert_eq!(completion.outcome, Outcome::Done { bytes: bytes as u64 });
            let at = (round * 16 + completion.wr.slot as usize) * bytes;
            assert!(is_right(&completion.part, at));
            reader.loan.repay(completion.part).expect("it is of this loan");
        }
    }
    let stats = reader.link.stats();
    println!("{stats:?}");
    assert_eq!((stats.doorbells, stats.stale_completions), (4, 0));
    assert_eq!(stats.syscalls, if device.is_software() { 4 } else { 0 });
    assert!(stats.backend.contains("rnr timer 12") && stats.backend.contains("path MTU"));
    reader.control.disconnect(target);
    let part = reader.free.take().expect("what is left");
    let request = reader.request(0, target, 0, part);
    assert!(matches!(reader.link.queue(request), Err(Refused::Failed { .. })));
}

#[test]
fn reads_across_split_registrations_are_right() {
    let (device, port, _) = device_or_skip!("reads_across_split_registrations_are_right");
    let peer = Peer::new(&device, &port, 10 << 20, ANY_MTU);
    let options = VerbsRailOptions {
        registration_bytes_max: Some(1 << 20),
        ..VerbsRailOptions::new(&port.device)
    };
    let mut reader = Reader::new(&port, 10 << 20, options);
    assert_eq!(reader.link.limits().request_bytes_max, 1 << 20);
    let target = reader.open(&peer.endpoint);
    // Ends before, at, behind and far from a seam.
    let lengths = [900 << 10, (124 << 10) - 1, 1, 1, 300 << 10, 1 << 20, 1 << 20, 65_537];
    let mut at = 0;
    for bytes in lengths {
        let part = reader.cut(bytes);
        let completion = reader.read(target, at as u64, part);
        assert_eq!(completion.outcome, Outcome::Done { bytes: bytes as u64 }, "at {at}");
        assert!(is_right(&completion.part, at), "{bytes} B at {at}");
        at += bytes;
    }
}

#[test]
fn the_end_of_the_target_and_unknown_memory_are_told() {
    let (device, port, _) = device_or_skip!("the_end_of_the_target_and_unknown_memory_are_told");
    let peer = Peer::new(&device, &port, 10_000, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    let part = reader.cut(4096);
    let mut request = reader.request(0, target, 9_000, part);
    request.bytes_min = 1_000;
    reader.link.queue(request).expect("it is complete with 1000 bytes");
    reader.link.commit(now());
    let completion = reader.reap(1, BOUND).remove(0);
    assert_eq!(completion.outcome, Outcome::Done { bytes: 1_000 });
    let mut request = reader.request(0, target, 9_000, completion.part);
    request.bytes_min = 1_001;
    let Err(Refused::Failed { request, status }) = reader.link.queue(request) else {
        panic!("there are only 1000 bytes");
    };
    assert_eq!(status, Status::SHORT_READ);
    reader.control.unregister(reader.region.id());
    let request = reader.request(0, target, 0, request.part);
    let refused = reader.link.queue(request);
    let Err(Refused::Failed { status, .. }) = refused else { panic!("not registered") };
    assert_eq!(status, Status::from_errno(14));
}

#[test]
fn refusals_of_the_peer_are_told_apart() {
    let (device, port, _) = device_or_skip!("refusals_of_the_peer_are_told_apart");
    let peer = Peer::new(&device, &port, 4096, ANY_MTU);
    let reader = Reader::new(&port, 4096, VerbsRailOptions::new(&port.device));
    let connect = |endpoint: &str, handle: &str, generation| {
        let source = SourceRef { endpoint, handle, generation };
        reader.control.connect(source).expect_err("it is refused")
    };
    let missing = connect(&peer.endpoint, "missing", 1);
    assert!(matches!(missing, ConnectError::Stale { .. }), "{missing}");
    let stale = connect(&peer.endpoint, "a", 2);
    assert!(matches!(stale, ConnectError::Stale { .. }), "{stale}");
    let revoked = peer.served.mr.lock().expect("no panic").take();
    let refused = connect(&peer.endpoint, "a", 1);
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused}");
    drop(revoked);
    // Nobody listens at port 1, and "nowhere" is no endpoint at all.
    let absent = connect("127.0.0.1:1", "a", 1);
    assert!(absent.to_string().contains("is its server running?"), "{absent}");
    let unreachable = connect("nowhere", "a", 1);
    assert!(matches!(unreachable, ConnectError::Unreachable { .. }), "{unreachable}");
    let long = connect(&peer.endpoint, &"x".repeat(2000), 1);
    assert!(matches!(long, ConnectError::BadHandle { .. }), "{long}");
}

#[test]
fn two_mtus_give_the_smaller_or_a_clear_refusal() {
    let (device, port, _) = device_or_skip!("two_mtus_give_the_smaller_or_a_clear_refusal");
    let active = device.port(port.port).expect("it is there").mtu.expect("one of five");
    let small = Peer::new(&device, &port, 1 << 16, MtuWish::AtMost(PathMtu::B512));
    let mut reader = Reader::new(&port, 1 << 16, VerbsRailOptions::new(&port.device));
    let target = reader.open(&small.endpoint);
    let part = reader.cut(1 << 16);
    let completion = reader.read(target, 0, part);
    assert!(is_right(&completion.part, 0));
    assert!(reader.link.stats().backend.contains("path MTU 512 B"));

    let mtu = Some(active);
    let options = VerbsRailOptions { mtu, ..VerbsRailOptions::new(&port.device) };
    let reader = Reader::new(&port, 4096, options);
    let source = SourceRef { endpoint: &small.endpoint, handle: "a", generation: 1 };
    let refused = reader.control.connect(source).expect_err("512 is less").to_string();
    assert!(refused.contains("path MTUs differ") && refused.contains("512 B"), "{refused}");
    if active < PathMtu::B4096 {
        let mtu = Some(PathMtu::B4096);
        let options = VerbsRailOptions { mtu, ..VerbsRailOptions::new(&port.device) };
        let refused = VerbsRail::open(options).expect_err("the port has less");
        assert!(matches!(refused, VerbsRailError::Mtu { .. }), "{refused}");
    }
}

#[test]
fn a_sleeper_is_woken_by_the_completion_channel() {
    let (device, port, _) = device_or_skip!("a_sleeper_is_woken_by_the_completion_channel");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    let mut part = reader.cut(256 << 10);
    for round in 0..40 {
        reader.queue(0, target, 0, part);
        reader.link.commit(now());
        let until = Instant::now() + BOUND;
        let completion = loop {
            assert!(Instant::now() < until, "round {round} was never woken");
            if reader.link.arm() {
                let fd = reader.link.event_fd().expect("adaptive");
                let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                let bound = Timespec { tv_sec: 20, tv_nsec: 0 };
                let woken = rustix::event::poll(&mut fds, Some(&bound)).expect("a descriptor");
                assert_eq!(woken, 1, "round {round} slept through its completion");
            }
            let mut came = Vec::new();
            reader.link.reap(now(), 8, &mut |completion| came.push(completion));
            if let Some(completion) = came.pop() {
                break completion;
            }
        };
        assert!(is_right(&completion.part, 0));
        part = completion.part;
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let (_, port, _) = device_or_skip!("options_that_make_no_sense_are_refused");
    let good = || VerbsRailOptions::new(&port.device);
    for bad in [
        VerbsRailOptions { queue_depth: 0, ..good() },
        VerbsRailOptions { queue_depth: 1 << 20, ..good() },
        VerbsRailOptions { hop_limit: 0, ..good() },
        VerbsRailOptions { weight: 0, ..good() },
        VerbsRailOptions { registration_bytes_max: Some(100), ..good() },
    ] {
        let refused = VerbsRail::open(bad).expect_err("it makes no sense");
        assert!(matches!(refused, VerbsRailError::Number { .. }), "{refused}");
    }
    let wrong_gid = VerbsRail::open(VerbsRailOptions { gid: Some(77), ..good() });
    let wrong_gid = wrong_gid.expect_err("no such entry").to_string();
    assert!(wrong_gid.contains("gid index 77 is not in use") && wrong_gid.contains("RoCE v2"));
    let wrong_port = VerbsRail::open(VerbsRailOptions { port: Some(9), ..good() });
    let wrong_port = wrong_port.expect_err("no such port").to_string();
    assert!(wrong_port.contains("it has: 1 (active)"), "{wrong_port}");
}

#[test]
fn many_short_reads_over_several_connections_all_come_right() {
    let (device, port, _) =
        device_or_skip!("many_short_reads_over_several_connections_all_come_right");
    let peers: Vec<_> = (0..4).map(|_| Peer::new(&device, &port, 1 << 20, ANY_MTU)).collect();
    let depth = 16;
    let options = VerbsRailOptions { queue_depth: depth, ..VerbsRailOptions::new(&port.device) };
    let mut reader = Reader::new(&port, 1 << 20, options);
    assert_eq!(reader.link.limits().outstanding_wrs_max, depth);
    let targets: Vec<_> = peers.iter().map(|peer| reader.open(&peer.endpoint)).collect();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut idle: Vec<_> = (0..depth).map(|slot| (slot, reader.cut(20_000))).collect();
    let mut asked: Vec<_> = (0..depth).map(|_| (0_usize, None)).collect();
    let (mut queued, mut done, reads) = (0, 0, 6_000);
    let until = Instant::now() + Duration::from_secs(120);
    while done < reads {
        assert!(Instant::now() < until, "{done} of {reads} came; seed {seed}");
        for _ in 0..dice.usize(0..=idle.len()) {
            if queued == reads {
                break;
            }
            let (slot, part) = idle.swap_remove(dice.usize(..idle.len()));
            let (part, rest) = part.split_at(dice.usize(1..20_000));
            let offset = dice.usize(..(1 << 20) - 20_000);
            asked[slot as usize] = (offset, Some(rest));
            reader.queue(slot, targets[dice.usize(..4)], offset as u64, part);
            queued += 1;
        }
        reader.link.commit(now());
        let mut came = Vec::new();
        reader.link.reap(now(), dice.usize(1..20), &mut |completion| came.push(completion));
        for completion in came {
            let bytes = completion.part.len() as u64;
            assert_eq!(completion.outcome, Outcome::Done { bytes }, "seed {seed}");
            let slot = completion.wr.slot;
            let (offset, rest) = std::mem::take(&mut asked[slot as usize]);
            assert!(is_right(&completion.part, offset), "seed {seed}");
            let rest = rest.expect("it was in flight once");
            idle.push((slot, completion.part.join(rest).expect("neighbours")));
            done += 1;
        }
    }
    let stats = reader.link.stats();
    println!("{} doorbells for {reads} reads", stats.doorbells);
    assert_eq!(stats.stale_completions, 0);
    assert_eq!(reader.control.info().notes, [""; 0], "nothing happened on the side");
}
