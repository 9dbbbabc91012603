//! Each fault happens when it should, does what it says, and is counted.

mod support;

use railring_sim::{Cancelling, Fault, FaultKind, FaultPlan, Latency, SimRailConfig, When};
use railring_transport::{Link, Nanos, Outcome};
use sq_cq::Status;
use support::{Ended, Rig};

const BYTES: usize = 1000;
/// 1,000 B at 1 GB/s.
const PIPE_NS: u64 = 1_000;
const LATENCY_NS: u64 = 500;
const CANCEL_NS: u64 = 10_000;

fn config(faults: FaultPlan) -> SimRailConfig {
    SimRailConfig {
        bandwidth_bytes_per_second: 1_000_000_000,
        latency: Latency::Fixed { latency_ns: LATENCY_NS },
        faults,
        ..SimRailConfig::new("rail0")
    }
}

/// A rail with `fault` for request 1 of those it is given.
fn rig(fault: Fault) -> Rig {
    Rig::new(11, 16 * BYTES, config(FaultPlan::none().with(fault, When::Nth(1))))
}

/// Posts `count` requests and lets them run; sorted by slot.
fn run(rig: &mut Rig, count: u32) -> Vec<Ended> {
    rig.post(count, BYTES);
    let mut ended = rig.run();
    ended.sort_by_key(|end| end.wr.slot);
    ended
}

fn fired(rig: &Rig, kind: FaultKind) -> u64 {
    rig.control.stats().fired.of(kind)
}

fn failed(status: Status) -> Outcome {
    Outcome::Failed { status, vendor: 0 }
}

/// When request `slot` of those posted at once at 0 completes if nothing goes wrong.
fn due(slot: u32) -> Nanos {
    Nanos(u64::from(slot + 1) * PIPE_NS + LATENCY_NS)
}

#[test]
fn a_lost_request_comes_back_only_when_it_is_given_up() {
    let mut rig = rig(Fault::Lost);
    let ended = run(&mut rig, 3);
    assert_eq!(ended.iter().map(|end| end.wr.slot).collect::<Vec<_>>(), [0, 2]);
    assert_eq!((rig.link.next_event(), fired(&rig, FaultKind::Lost)), (None, 1));
    let wr = railring_transport::WrId { slot: 1, generation: 1 };
    rig.link.quiesce(wr, rig.now);
    rig.link.quiesce(wr, rig.now);
    let asked = rig.now;
    let ended = rig.run();
    assert_eq!((ended.len(), ended[0].wr), (1, wr));
    assert_eq!(ended[0].outcome, failed(Status::CANCELLED));
    assert_eq!(ended[0].at, asked.after(CANCEL_NS));
}

#[test]
fn a_delayed_request_is_late_by_the_delay_and_nobody_else_is() {
    let mut rig = rig(Fault::Delay { delay_ns: 1_000_000 });
    let ended = run(&mut rig, 3);
    let at: Vec<Nanos> = ended.iter().map(|end| end.at).collect();
    assert_eq!(at, [due(0), due(1).after(1_000_000), due(2)]);
    assert!(ended.iter().all(|end| rig.is_exact(&end.part)));
    assert_eq!(fired(&rig, FaultKind::Delay), 1);
}

#[test]
fn a_reordered_request_is_overtaken_once_or_waits_in_vain() {
    let mut rig = rig(Fault::Reorder { hold_ns: 5_000 });
    rig.post(3, BYTES);
    let order: Vec<u32> = rig.run().iter().map(|end| end.wr.slot).collect();
    assert_eq!((order, fired(&rig, FaultKind::Reorder)), (vec![0, 2, 1], 1));

    let mut rig = self::rig(Fault::Reorder { hold_ns: 5_000 });
    let ended = run(&mut rig, 2);
    assert_eq!(ended[1].at, due(1).after(5_000));
    assert_eq!(fired(&rig, FaultKind::Reorder), 0);
}

#[test]
fn a_short_delivery_is_told_and_a_silent_one_is_not() {
    let mut rig = rig(Fault::ShortDelivery);
    let ended = run(&mut rig, 3);
    assert_eq!(ended[1].outcome, failed(Status::SHORT_READ));
    assert_eq!(fired(&rig, FaultKind::ShortDelivery), 1);

    let faults = FaultPlan::none().with(Fault::ShortDelivery, When::ALWAYS);
    let mut rig = Rig::new(11, BYTES, config(faults));
    let mut request = rig.request(0, BYTES);
    request.bytes_min = 0;
    rig.link.queue(request).expect("there is room");
    rig.link.commit(rig.now);
    let ended = rig.run();
    let bytes = usize::try_from(ended[0].done().expect("any length will do")).expect("short");
    assert!(bytes < BYTES);
    assert_eq!(ended[0].part.as_slice()[..bytes], rig.content[..bytes]);
    assert!(ended[0].part.as_slice()[bytes..].iter().all(|byte| *byte == 0xEE));

    let mut rig = self::rig(Fault::SilentTruncation);
    let ended = run(&mut rig, 3);
    assert_eq!(ended[1].done(), Some(BYTES as u64));
    assert!(!rig.is_exact(&ended[1].part) && rig.is_exact(&ended[2].part));
    assert_eq!(fired(&rig, FaultKind::SilentTruncation), 1);
}

/// How many bits of a request's bytes are wrong.
fn wrong_bits(rig: &Rig, end: &Ended) -> u32 {
    let pairs = end.part.as_slice().iter().zip(rig.expected(&end.part));
    pairs.map(|(got, right)| (got ^ right).count_ones()).sum()
}

#[test]
fn a_flipped_byte_is_one_bit_and_a_corrupt_table_only_in_tables() {
    let mut rig = rig(Fault::FlippedByte);
    let ended = run(&mut rig, 3);
    let wrong: Vec<u32> = ended.iter().map(|end| wrong_bits(&rig, end)).collect();
    assert_eq!((wrong, fired(&rig, FaultKind::FlippedByte)), (vec![0, 1, 0], 1));

    let faults = FaultPlan::none().with(Fault::CorruptTable, When::ALWAYS);
    let mut rig = Rig::new(11, 3 * BYTES, config(faults));
    let content = railring_sim::SourceContent::new(support::GENERATION, rig.content.clone());
    rig.world.put(support::ENDPOINT, support::HANDLE, content.with_tables(1900..2100));
    let ended = run(&mut rig, 3);
    let wrong: Vec<u32> = ended.iter().map(|end| wrong_bits(&rig, end)).collect();
    assert_eq!((wrong, fired(&rig, FaultKind::CorruptTable)), (vec![0, 1, 1], 2));
    assert_eq!(ended[1].part.as_slice()[..900], rig.content[1000..1900]);
    assert_eq!(ended[2].part.as_slice()[100..], rig.content[2100..]);
}

#[test]
fn a_tail_lands_before_its_head_and_neither_is_the_completion() {
    let mut rig = rig(Fault::TailFirst { gap_ns: 10_000 });
    rig.post(2, BYTES);
    let ended = rig.run_until(due(1).after(9_999));
    assert_eq!(ended.iter().map(|end| end.wr.slot).collect::<Vec<_>>(), [0]);
    assert_eq!(fired(&rig, FaultKind::TailFirst), 1);
    let ended = rig.run();
    assert_eq!(ended[0].at, due(1).after(10_000));
    assert!(rig.is_exact(&ended[0].part));

    // Given up between the two: the tail is there, the head may not be.
    let faults = FaultPlan::none()
        .with(Fault::TailFirst { gap_ns: 10_000 }, When::ALWAYS)
        .with(Fault::Disconnect { down_ns: 1 }, When::At(Nanos(6_000)));
    let mut rig = Rig::new(11, BYTES, config(faults));
    let ended = run(&mut rig, 1);
    let (head, tail) = ended[0].part.as_slice().split_at(BYTES / 2);
    assert!(head.iter().all(|byte| *byte == 0xEE));
    assert_eq!(tail, &rig.content[BYTES / 2..]);
}

#[test]
fn a_hung_request_never_comes_back_or_very_late() {
    let wr = railring_transport::WrId { slot: 1, generation: 1 };
    let mut rig = rig(Fault::Hang { returns_after_ns: None });
    assert_eq!(run(&mut rig, 3).len(), 2);
    rig.link.cancel(wr, rig.now);
    rig.link.quiesce(wr, rig.now);
    assert!(rig.run().is_empty());
    assert_eq!((rig.control.stats().outstanding, fired(&rig, FaultKind::Hang)), (1, 1));

    for unwanted in [false, true] {
        let late = Fault::Hang { returns_after_ns: Some(5_000_000_000) };
        let mut rig = self::rig(late);
        rig.post(3, BYTES);
        assert_eq!(rig.run_until(Nanos(4_000_000_000)).len(), 2);
        if unwanted {
            rig.link.quiesce(wr, rig.now);
        }
        let ended = rig.run();
        assert_eq!((ended.len(), ended[0].at), (1, Nanos(5_000_000_000)));
        assert_eq!(ended[0].done().is_none(), unwanted);
        assert_eq!(rig.is_exact(&ended[0].part), !unwanted);
    }
}

#[test]
fn completions_that_belong_to_nobody_are_counted_and_bring_nothing() {
    let ghosts = [
        Fault::DuplicateCompletion { after_ns: 10 },
        Fault::DuplicateCompletion { after_ns: 100_000 },
        Fault::UnknownCompletion,
        Fault::OldCompletion,
    ];
    for ghost in ghosts {
        let mut rig = rig(ghost);
        assert_eq!(run(&mut rig, 3).len(), 3);
        assert_eq!(rig.link.stats().stale_completions, 1, "{ghost:?}");
        assert_eq!(fired(&rig, ghost.kind()), 1);
    }
}

#[test]
fn a_late_duplicate_does_not_finish_the_next_use_of_its_slot() {
    let faults = FaultPlan::none()
        .with(Fault::DuplicateCompletion { after_ns: 10_000 }, When::Nth(0))
        .with(Fault::Delay { delay_ns: 50_000 }, When::Nth(1));
    let mut rig = Rig::new(11, 2 * BYTES, config(faults));
    rig.post(1, BYTES);
    assert_eq!(rig.run_until(due(0)).len(), 1);
    let mut request = rig.request(0, BYTES);
    request.wr.generation = 2;
    rig.link.queue(request).expect("there is room");
    rig.link.commit(rig.now);
    let ended = rig.run();
    assert_eq!(ended.len(), 1);
    assert!(ended[0].at.since(due(0)) > 50_000 && rig.is_exact(&ended[0].part));
    assert_eq!(rig.link.stats().stale_completions, 1);
}

#[test]
fn the_peer_can_say_no_and_the_transfer_can_fail() {
    let error = Status::from_wc(12);
    let answers = [
        (Fault::StaleAnswer, failed(Status::STALE)),
        (Fault::NotFoundAnswer, failed(Status::NOT_FOUND)),
        (Fault::RefusedAnswer, failed(Status::REFUSED)),
        (
            Fault::TransferError { status: error, vendor: 129 },
            Outcome::Failed { status: error, vendor: 129 },
        ),
    ];
    for (fault, outcome) in answers {
        let mut rig = rig(fault);
        let ended = run(&mut rig, 3);
        assert_eq!(ended[1].outcome, outcome);
        assert_eq!(ended[1].at, Nanos(LATENCY_NS), "an answer has no bytes to wait for");
        assert!(ended[0].done().is_some() && ended[2].done().is_some());
        assert_eq!(fired(&rig, fault.kind()), 1);
    }
}

#[test]
fn an_object_that_changes_or_goes_is_stale_or_not_found() {
    let mut rig = Rig::new(11, 16 * BYTES, config(FaultPlan::none()));
    rig.post(1, BYTES);
    let other = railring_sim::SourceContent::new(2, vec![9; 16 * BYTES]);
    rig.world.put(support::ENDPOINT, support::HANDLE, other);
    let ended = rig.run();
    assert_eq!(ended[0].outcome, failed(Status::STALE));
    assert!(ended[0].part.as_slice().iter().all(|byte| *byte == 0xEE));
    rig.world.remove(support::ENDPOINT, support::HANDLE);
    let ended = run(&mut rig, 1);
    assert_eq!(ended[0].outcome, failed(Status::NOT_FOUND));
}

#[test]
fn a_cancelled_request_comes_back_sooner_unless_the_device_does_not_care() {
    let wr = railring_transport::WrId { slot: 0, generation: 1 };
    for cancel in [Cancelling::Honoured { after_ns: 10 }, Cancelling::Ignored] {
        let mut rig =
            Rig::new(11, 16 * BYTES, SimRailConfig { cancel, ..config(FaultPlan::none()) });
        rig.post(2, BYTES);
        rig.link.cancel(wr, Nanos(100));
        let mut ended = rig.run();
        ended.sort_by_key(|end| end.wr.slot);
        if cancel == Cancelling::Ignored {
            assert_eq!((ended[0].at, ended[1].at), (due(0), due(1)));
        } else {
            assert_eq!((ended[0].at, ended[0].outcome), (Nanos(110), failed(Status::CANCELLED)));
            // The second had the pipe to itself from then on.
            assert_eq!(ended[1].at, Nanos(100 + PIPE_NS + LATENCY_NS));
        }
    }
}

#[test]
fn a_request_that_is_given_up_completes_as_whichever_comes_first() {
    let wr = railring_transport::WrId { slot: 0, generation: 1 };
    for (cancel_ns, comes_first) in [(10, false), (LATENCY_NS, true)] {
        let cancel = Cancelling::Honoured { after_ns: cancel_ns };
        let mut rig =
            Rig::new(11, 16 * BYTES, SimRailConfig { cancel, ..config(FaultPlan::none()) });
        rig.post(1, BYTES);
        rig.link.cancel(wr, Nanos(PIPE_NS + 1));
        let ended = rig.run();
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].done().is_some(), comes_first);
        let at = if comes_first { due(0) } else { Nanos(PIPE_NS + 1 + cancel_ns) };
        assert_eq!(ended[0].at, at);
    }
}

#[test]
fn what_was_queued_but_not_posted_comes_back_at_once() {
    for cancel in [Cancelling::Honoured { after_ns: 10 }, Cancelling::Ignored] {
        let mut rig =
            Rig::new(11, 16 * BYTES, SimRailConfig { cancel, ..config(FaultPlan::none()) });
        for slot in 0..3 {
            let request = rig.request(slot, BYTES);
            rig.link.queue(request).expect("there is room");
        }
        rig.link.cancel(railring_transport::WrId { slot: 1, generation: 1 }, Nanos(0));
        rig.link.quiesce(railring_transport::WrId { slot: 2, generation: 1 }, Nanos(0));
        let ended = rig.reap();
        assert_eq!(ended.iter().map(|end| end.wr.slot).collect::<Vec<_>>(), [1, 2]);
        assert!(ended.iter().all(|end| end.outcome == failed(Status::CANCELLED)));
        rig.link.commit(rig.now);
        assert_eq!(rig.run().len(), 1);
    }
}
