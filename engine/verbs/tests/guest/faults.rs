//! What goes wrong on a real device: silent and dead peers, revoked and invented keys, small
//! limits. Every read that was posted ends, its memory is quiet, and the rail comes back.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use railring_dma::{MemlockLimit, RegionConfig, Regions};
use railring_transport::{Completion, Link, Outcome, RailControl, Refused, RegisterError};
use railring_verbs::ffi::Ended;
use railring_verbs::{Timers, VerbsRail, VerbsRailOptions};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use sq_cq::Status;

use crate::device_or_skip;
use crate::peer::{ANY_MTU, Peer};
use crate::reader::{Reader, is_right, now};

const BOUND: Duration = Duration::from_secs(30);
const PIECE: usize = 64 << 10;

/// Queues `count` reads, all with one doorbell.
fn queue_many(reader: &mut Reader, target: railring_transport::TargetId, count: u32) {
    for slot in 0..count {
        let part = reader.cut(PIECE);
        reader.queue(slot, target, u64::from(slot) * PIECE as u64, part);
    }
    reader.link.commit(now());
}

fn outcomes(came: &[Completion]) -> Vec<Outcome> {
    came.iter().map(|completion| completion.outcome).collect()
}

#[test]
fn a_read_that_nobody_answers_is_quiet_at_once_when_asked() {
    let (device, port, _) =
        device_or_skip!("a_read_that_nobody_answers_is_quiet_at_once_when_asked");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    peer.served.is_silent.store(true, Relaxed);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    queue_many(&mut reader, target, 8);
    assert!(reader.reap(1, Duration::from_millis(100)).is_empty(), "nobody answers");
    let wr = railring_transport::WrId { slot: 3, generation: 4 };
    let start = Instant::now();
    reader.link.cancel(wr, now());
    reader.link.quiesce(wr, now());
    let came = reader.reap(8, BOUND);
    let took = start.elapsed();
    println!("quiet after {took:?}");
    assert_eq!(came.len(), 8);
    assert!(took < Duration::from_millis(450), "it waited for the retries: {took:?}");
    for completion in came {
        let cancelled = Outcome::Failed { status: Status::CANCELLED, vendor: 0 };
        let expected = if completion.wr == wr { cancelled } else { Outcome::Flushed };
        assert_eq!(completion.outcome, expected, "{:?}", completion.wr);
        reader.free = Some(completion.part);
    }
    // The connection comes back by itself, and the last read's memory is used for the next at once.
    peer.served.is_silent.store(false, Relaxed);
    let part = reader.free.take().expect("the last one's");
    let part = reader.read_again(target, part);
    assert!(is_right(&part, 0));
    assert_eq!(reader.link.stats().stale_completions, 0);
}

#[test]
fn a_dead_peer_ends_every_read_within_the_retry_time() {
    let (device, port, _) = device_or_skip!("a_dead_peer_ends_every_read_within_the_retry_time");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let timers = Timers::new(12, 3, 12, 6).expect("in range");
    let options = VerbsRailOptions { timers, ..VerbsRailOptions::new(&port.device) };
    let mut reader = Reader::new(&port, 1 << 20, options);
    let target = reader.open(&peer.endpoint);
    // Its queue pair goes, its hello does not: only the retries can tell.
    peer.served.qps.lock().expect("no panic").clear();
    let start = Instant::now();
    queue_many(&mut reader, target, 8);
    let came = reader.reap(8, BOUND);
    let took = start.elapsed();
    println!("ended after {took:?}; bound {:?}", timers.gives_up_after());
    assert_eq!(came.len(), 8);
    assert!(took < timers.gives_up_after() + Duration::from_secs(1), "{took:?}");
    let all = outcomes(&came);
    let dead =
        |o: &Outcome| matches!(o, Outcome::Failed { status, .. } if *status == Status::from_wc(12));
    assert!(dead(&all[0]), "{all:?}");
    assert!(all[1..].iter().all(|outcome| *outcome == Outcome::Flushed), "{all:?}");
    let part = came.into_iter().next().expect("eight").part;
    assert!(is_right(&reader.read_again(target, part), 0));
    let notes = reader.control.info().notes.join("\n");
    assert!(notes.contains("RETRY_EXC_ERR"), "{notes}");
}

#[test]
fn a_revoked_key_fails_one_read_and_flushes_the_rest() {
    let (device, port, _) = device_or_skip!("a_revoked_key_fails_one_read_and_flushes_the_rest");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    drop(peer.served.mr.lock().expect("no panic").take());
    queue_many(&mut reader, target, 8);
    let came = reader.reap(8, BOUND);
    let all = outcomes(&came);
    assert_eq!(all.len(), 8);
    let refused = Status::from_wc(10);
    assert!(
        matches!(all[0], Outcome::Failed { status, .. } if status == refused),
        "the peer's memory is gone: {all:?}"
    );
    assert!(all[1..].iter().all(|outcome| *outcome == Outcome::Flushed), "{all:?}");
    // After the reconnect the peer says no: the target tells so, whatever is asked of it.
    let mut part = came.into_iter().next().expect("eight").part;
    let until = Instant::now() + BOUND;
    loop {
        assert!(Instant::now() < until, "{:?}", reader.control.info().notes);
        let request = reader.request(0, target, 0, part);
        match reader.link.queue(request) {
            Err(Refused::Failed { request, status }) => {
                part = request.part;
                if status == Status::from_wire(7) {
                    break;
                }
            }
            Err(Refused::Full(request)) => part = request.part,
            // It waits for the connection to be made again, and is then told the same.
            Ok(()) => {
                let ended = reader.reap(1, BOUND).pop().expect("it ends");
                assert!(!matches!(ended.outcome, Outcome::Done { .. }), "there is nothing to read");
                part = ended.part;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_invented_key_harms_nobody_else() {
    let (device, port, _) = device_or_skip!("an_invented_key_harms_nobody_else");
    let honest = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let liar = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    liar.served.key_lie.store(0x1234_5600, Relaxed);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let (good, bad) = (reader.open(&honest.endpoint), reader.open(&liar.endpoint));
    for slot in 0..8 {
        let part = reader.cut(PIECE);
        let target = if slot % 2 == 0 { good } else { bad };
        reader.queue(slot, target, 0, part);
    }
    reader.link.commit(now());
    let came = reader.reap(8, BOUND);
    assert_eq!(came.len(), 8);
    for completion in came {
        if completion.wr.slot % 2 == 0 {
            assert_eq!(completion.outcome, Outcome::Done { bytes: PIECE as u64 });
            assert!(is_right(&completion.part, 0));
        } else {
            assert!(!matches!(completion.outcome, Outcome::Done { .. }));
        }
    }
}

#[test]
fn reconnects_back_off_while_the_peer_is_away() {
    let (device, port, _) = device_or_skip!("reconnects_back_off_while_the_peer_is_away");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    // Every connection fails at its first read.
    peer.served.key_lie.store(77 << 8, Relaxed);
    let mut part = reader.cut(4096);
    let (mut failed, mut refused) = (0, 0);
    let until = Instant::now() + Duration::from_secs(3);
    peer.served.qps.lock().expect("no panic").clear();
    while Instant::now() < until {
        let request = reader.request(0, target, 0, part);
        part = match reader.link.queue(request) {
            Ok(()) => {
                reader.link.commit(now());
                failed += 1;
                reader.reap(1, BOUND).remove(0).part
            }
            Err(Refused::Failed { request, .. } | Refused::Full(request)) => {
                refused += 1;
                request.part
            }
        };
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{failed} reads were made and failed, {refused} refused at once");
    // 10, 20, 40 ... ms: nine pauses are five seconds.
    assert!((2..=11).contains(&failed), "{failed} connections in three seconds");
    assert!(refused > 100);
}

#[test]
fn memory_beyond_the_lock_limit_is_refused_with_the_limit() {
    let (device, port, _) =
        device_or_skip!("memory_beyond_the_lock_limit_is_refused_with_the_limit");
    // Capabilities are a thread's own; the limit is the process's, and harms no test beside, since
    // their threads keep the capability that frees them of it.
    let before = MemlockLimit::read().expect("capget is allowed");
    if before.limit_bytes.is_none_or(|limit| limit > 64 << 10) {
        let small = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
        setrlimit(Resource::Memlock, small).expect("lowering is allowed");
    }
    let mut held = capabilities(None).expect("capget is allowed");
    held.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, held).expect("dropping is allowed");
    let (control, _link) =
        VerbsRail::open(VerbsRailOptions::new(device.name())).expect("the rail itself is small");
    let regions = Regions::new(2);
    let region = regions.allocate(RegionConfig::new(1 << 20)).expect("memory");
    let refused = control.register(&region).expect_err("it is more than may be locked");
    assert!(
        matches!(refused, RegisterError::MemlockLimit { limit_bytes, bytes, .. }
            if limit_bytes == 64 << 10 && bytes >= 1 << 20),
        "{refused}"
    );
    assert_eq!(port.device, device.name());
    assert_eq!(control.registration().bytes, 0);
}

#[test]
fn a_peer_that_ends_while_nothing_is_read_is_found_again() {
    let (device, port, _) =
        device_or_skip!("a_peer_that_ends_while_nothing_is_read_is_found_again");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    let part = reader.cut(4096);
    let mut part = reader.read(target, 0, part).part;
    for round in 0..3 {
        // Nobody reaps now: the rail's own threads see it, and connect again.
        peer.served.hang_up();
        let until = Instant::now() + BOUND;
        while peer.served.qps.lock().expect("no panic").is_empty() {
            assert!(Instant::now() < until, "round {round}: it never came back");
            std::thread::sleep(Duration::from_millis(1));
        }
        part.as_mut_slice().fill(0);
        part = reader.read_again(target, part);
        assert!(is_right(&part, 0), "round {round}");
    }
    let stats = reader.link.stats();
    assert_eq!((stats.stale_completions, stats.doorbells), (0, 4), "no read was lost on the way");
}

#[cfg(feature = "fault")]
#[test]
fn a_chain_that_is_taken_in_part_is_continued_where_it_stopped() {
    let (device, port, _) =
        device_or_skip!("a_chain_that_is_taken_in_part_is_continued_where_it_stopped");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let crate::wrappers::ByHand { mut reads, cq, pd, mut talk } =
        crate::wrappers::connect(&device, &port, &peer.endpoint, 8);
    let opened = crate::wrappers::open(&mut talk);
    let (memory, pool) = crate::peer::region(1 << 20, |_| 0);
    let mr = railring_verbs::ffi::Mr::register(
        &pd,
        &memory,
        0..1 << 20,
        railring_verbs::ffi::Access::LocalWrite,
    )
    .expect("memory");
    let (_loan, mut rest) = pool.take().expect("free").lend();
    let mut parts = Vec::new();
    for _ in 0..8 {
        let (part, after) = rest.split_at(PIECE);
        (rest, _) = (after, parts.push(part));
    }
    // From another place in the ring each time.
    for refused in 0..8_u32 {
        for (slot, mut part) in parts.drain(..).enumerate() {
            part.as_mut_slice().fill(0);
            let read = crate::wrappers::read(slot as u32, refused, part, &mr, opened);
            reads.push(read).expect("there is room");
        }
        reads.spoil_unposted(refused);
        let (taken, error) = reads.post().expect_err("one of them makes no sense");
        assert_eq!((taken, error.raw_os_error()), (refused, Some(22)));
        let mut gone = Vec::new();
        reads.give_up_unposted(22, &mut |wr, part, ended| gone.push((wr.slot, part, ended)));
        let (slot, part, ended) = gone.pop().expect("the one that was refused");
        assert_eq!((slot, ended), (refused, Ended::Refused { errno: 22 }));
        parts.push(part);
        // Behind the last one a read of nothing tells that those before it are over.
        assert_eq!(reads.post().expect("the others are in order"), (7 - refused).max(1));
        let mut done = crate::wrappers::finish(&cq, &mut reads, 7);
        done.sort_by_key(|(slot, _)| *slot);
        let expected: Vec<u32> = (0..8).filter(|slot| *slot != refused).collect();
        assert_eq!(done.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), expected);
        for (slot, part) in done {
            assert!(is_right(&part, slot as usize * PIECE), "{slot} of the round of {refused}");
            parts.push(part);
        }
        assert!(reads.is_empty());
        parts.rotate_left(1);
    }
}

#[test]
fn memory_comes_back_when_the_queue_pair_is_destroyed() {
    let (device, port, _) = device_or_skip!("memory_comes_back_when_the_queue_pair_is_destroyed");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    peer.served.is_silent.store(true, Relaxed);
    let crate::wrappers::ByHand { mut reads, pd, mut talk, .. } =
        crate::wrappers::connect(&device, &port, &peer.endpoint, 8);
    let opened = crate::wrappers::open(&mut talk);
    let (memory, pool) = crate::peer::region(PIECE, |_| 0);
    let access = railring_verbs::ffi::Access::LocalWrite;
    let mr = railring_verbs::ffi::Mr::register(&pd, &memory, 0..PIECE, access).expect("memory");
    let (mut loan, part) = pool.take().expect("free").lend();
    reads.push(crate::wrappers::read(0, 1, part, &mr, opened)).expect("there is room");
    assert_eq!(reads.post().expect("it is taken"), 1);
    let start = Instant::now();
    let mut back = Vec::new();
    reads.end_without_queue_pair(&mut |wr, part, ended| back.push((wr.slot, part, ended)));
    println!("destroyed after {:?}", start.elapsed());
    let (slot, part, ended) = back.pop().expect("the one read");
    assert_eq!((slot, ended), (0, Ended::Flushed));
    loan.repay(part).expect("it is of this loan");
    drop(loan.settle().expect("nothing is out"));
}

#[test]
fn those_that_a_torn_connection_takes_along_only_wait() {
    let (device, port, _) = device_or_skip!("those_that_a_torn_connection_takes_along_only_wait");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    let part = reader.cut(PIECE);
    assert!(is_right(&reader.read(target, 0, part).part, 0), "the connection has worked");
    // Nobody answers any more, and one of the reads is wanted back.
    peer.served.qps.lock().expect("no panic").clear();
    queue_many(&mut reader, target, 8);
    let wanted = railring_transport::WrId { slot: 3, generation: 5 };
    reader.link.quiesce(wanted, now());
    let came = reader.reap(8, BOUND);
    assert_eq!(came.len(), 8);
    let innocent: Vec<_> =
        came.into_iter().filter(|completion| completion.outcome == Outcome::Flushed).collect();
    assert_eq!(innocent.len(), 7);
    // All of them are taken again at once, wait for the new connection, and are read over it.
    for completion in innocent {
        let slot = completion.wr.slot;
        reader.queue(slot, target, u64::from(slot) * PIECE as u64, completion.part);
    }
    reader.link.commit(now());
    assert!(reader.link.next_event().is_some(), "a sleeper must look at what waits");
    let came = reader.reap(7, BOUND);
    assert_eq!(came.len(), 7);
    for completion in came {
        assert_eq!(completion.outcome, Outcome::Done { bytes: PIECE as u64 });
        assert!(is_right(&completion.part, completion.wr.slot as usize * PIECE));
    }
}

#[test]
fn what_waits_for_a_connection_can_be_had_back_at_once() {
    let (device, port, _) = device_or_skip!("what_waits_for_a_connection_can_be_had_back_at_once");
    let peer = Peer::new(&device, &port, 1 << 20, ANY_MTU);
    let mut reader = Reader::new(&port, 1 << 20, VerbsRailOptions::new(&port.device));
    let target = reader.open(&peer.endpoint);
    let part = reader.cut(PIECE);
    let part = reader.read(target, 0, part).part;
    let until = Instant::now() + BOUND;
    let mut part = Some(part);
    let (mut cancelled, mut turn) = (0, 0);
    while cancelled < 4 {
        assert!(Instant::now() < until, "only {cancelled} were caught waiting");
        // The reader's own end goes first, so that a read finds no connection and waits.
        peer.served.hang_up();
        std::thread::sleep(Duration::from_millis(turn % 7));
        turn += 1;
        let wr = reader.queue(0, target, 0, part.take().expect("it came back"));
        if turn % 2 == 0 {
            reader.link.cancel(wr, now())
        } else {
            reader.link.quiesce(wr, now())
        }
        reader.link.commit(now());
        let ended = reader.reap(1, BOUND).pop().expect("it ends");
        cancelled +=
            u32::from(ended.outcome == Outcome::Failed { status: Status::CANCELLED, vendor: 0 });
        part = Some(reader.read_again(target, ended.part));
    }
}
