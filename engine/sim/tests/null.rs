//! Laws of the null rail: every part comes back once, in order, only after its doorbell, untouched.

use railring_dma::{Lease, Loan, Part, Region, RegionConfig, Regions};
use railring_sim::{NullConfig, NullRail, RailConfigError};
use railring_transport::{
    Alignment, Completion, Link, Nanos, Outcome, RailControl, RailKind, Refused, SourceRef,
    TargetId, WorkRequest, WrId,
};

const NOW: Nanos = Nanos(1);

fn memory(bytes: usize) -> (Region, Loan, Part) {
    let region = Regions::new(1).allocate(RegionConfig::new(bytes)).expect("a small region");
    let mut lease = Lease::whole(&region).expect("nothing else holds the region");
    lease.as_mut_slice().fill(0xEE);
    let (loan, part) = lease.lend();
    (region, loan, part)
}

fn request(slot: u32, target: TargetId, part: Part) -> WorkRequest {
    WorkRequest { wr: WrId { slot, generation: 3 }, target, offset: 0, bytes_min: 0, part }
}

#[test]
fn parts_come_back_once_in_order_after_the_doorbell_and_untouched() {
    let (control, mut link) = NullRail::new(NullConfig::new("null0")).expect("valid");
    let source = SourceRef { endpoint: "anywhere", handle: "anything", generation: 1 };
    let target = control.connect(source).expect("reaches all");
    let (_region, mut loan, mut rest) = memory(4096);
    for slot in 0..4 {
        let part;
        (part, rest) = rest.split_at(1000 + slot as usize);
        link.queue(request(slot, target, part)).expect("there is room");
    }
    let mut reaped = Vec::new();
    let mut sink = |completion: Completion| reaped.push(completion);
    assert_eq!(link.reap(NOW, 9, &mut sink), 0, "nothing completes before its doorbell");
    link.commit(NOW);
    assert_eq!(link.next_event(), Some(Nanos(0)));
    assert_eq!(link.reap(NOW, 3, &mut sink), 3);
    assert_eq!(link.reap(NOW, 3, &mut sink), 1);
    assert_eq!(link.reap(NOW, 3, &mut sink), 0);
    assert_eq!((link.next_event(), link.stats().doorbells), (None, 1));
    for (slot, completion) in (0..).zip(reaped) {
        assert_eq!(completion.wr, WrId { slot, generation: 3 });
        assert_eq!(completion.outcome, Outcome::Done { bytes: 1000 + u64::from(slot) });
        assert!(completion.part.as_slice().iter().all(|byte| *byte == 0xEE));
        loan.repay(completion.part).expect("of this loan");
    }
    loan.repay(rest).expect("of this loan");
    drop(loan.settle().expect("everything came back"));
}

#[test]
fn a_full_link_gives_the_request_back_and_takes_it_after_a_reap() {
    let config = NullConfig { outstanding_wrs_max: 1, ..NullConfig::new("null0") };
    let (control, mut link) = NullRail::new(config).expect("valid");
    let source = SourceRef { endpoint: "e", handle: "h", generation: 1 };
    let target = control.connect(source).expect("reaches all");
    let (_region, mut loan, part) = memory(4096);
    let (first, second) = part.split_at(1);
    link.queue(request(0, target, first)).expect("there is room");
    let Err(Refused::Full(refused)) = link.queue(request(1, target, second)) else {
        panic!("a second request found room for one");
    };
    link.commit(NOW);
    let mut repay = |completion: Completion| {
        loan.repay(completion.part).expect("of this loan");
    };
    assert_eq!(link.reap(NOW, 1, &mut repay), 1);
    link.queue(refused).expect("there is room again");
    link.quiesce(WrId { slot: 1, generation: 3 }, NOW);
    assert_eq!(link.reap(NOW, 1, &mut repay), 1);
    drop(loan.settle().expect("everything came back"));
}

#[test]
fn a_ring_goes_round_any_number_of_times() {
    let config = NullConfig { outstanding_wrs_max: 3, ..NullConfig::new("null0") };
    let (control, mut link) = NullRail::new(config).expect("valid");
    let source = SourceRef { endpoint: "e", handle: "h", generation: 1 };
    let target = control.connect(source).expect("reaches all");
    let (_region, _loan, mut rest) = memory(3);
    let mut parts = Vec::new();
    for _ in 0..3 {
        let part;
        (part, rest) = rest.split_at(1);
        parts.push(part);
    }
    let (mut queued, mut reaped) = (0..1_000, 0);
    while reaped < 1_000 {
        while let Some(part) = parts.pop() {
            let Some(slot) = queued.next() else { break };
            link.queue(request(slot, target, part)).expect("no more than three");
        }
        link.commit(NOW);
        link.reap(NOW, 1 + reaped as usize % 3, &mut |completion: Completion| {
            assert_eq!(completion.wr.slot, reaped);
            reaped += 1;
            parts.push(completion.part);
        });
    }
    assert!(link.arm() && link.next_event().is_none());
}

#[test]
fn connections_are_told_apart_and_bad_configurations_are_refused() {
    let (control, _link) = NullRail::new(NullConfig::new("null0")).expect("valid");
    assert_eq!(control.info().kind, RailKind::Null);
    assert!(control.reaches("anything"));
    let source = SourceRef { endpoint: "e", handle: "h", generation: 1 };
    let first = control.connect(source).expect("reaches all");
    control.disconnect(first);
    assert_ne!(first, control.connect(source).expect("reaches all"));

    let refuse = |change: fn(&mut NullConfig)| {
        let mut config = NullConfig::new("null0");
        change(&mut config);
        NullRail::new(config).expect_err("refused")
    };
    assert_eq!(refuse(|config| config.name = " ".into()), RailConfigError::BlankName);
    let rail = || String::from("null0");
    let weight = u32::MAX;
    assert_eq!(refuse(|c| c.weight = 0), RailConfigError::Weight { rail: rail(), weight: 0 });
    assert_eq!(refuse(|c| c.weight = u32::MAX), RailConfigError::Weight { rail: rail(), weight });
    assert_eq!(refuse(|c| c.outstanding_wrs_max = 0), RailConfigError::NoWindow { rail: rail() });
    assert_eq!(
        refuse(|c| c.alignment = Alignment { memory_bytes: 3, ..Alignment::NONE }),
        RailConfigError::Alignment { rail: rail(), bytes: 3 }
    );
    assert_eq!(
        refuse(|c| c.request_bytes_max = 0),
        RailConfigError::RequestTooSmall { rail: rail(), request_bytes_max: 0, length_bytes: 1 }
    );
}
