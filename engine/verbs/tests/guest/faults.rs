//! What goes wrong on a real device: silent and dead peers, revoked and invented keys, small
//! limits. Every read that was posted ends, its memory is quiet, and the rail comes back.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use railring_dma::{MemlockLimit, RegionConfig, Regions};
use railring_transport::{Completion, Link, Outcome, RailControl, Refused, RegisterError};
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
            Ok(()) => panic!("there is nothing to read"),
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
