//! Requests come back: once each, as many as were granted, given up or not.

use std::time::{Duration, Instant};

use railring_dma::Lease;
use railring_transport::{Completion, Link, Outcome, Refused, WrId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sq_cq::Status;

use super::rig::{Landed, wr};
use super::{Kept, Rig, Transport};

const DEPTH: u32 = 8;

fn queue<T: Transport>(rig: &mut Rig<T>, wr: WrId, offset: usize, bytes: usize) -> (WrId, Kept) {
    let (request, kept) = rig.request(wr, offset, bytes, 0);
    rig.queue(request);
    (wr, kept)
}

/// Takes out what was kept for a completion: nothing comes back twice, or unasked.
fn kept_for(kept: &mut Vec<(WrId, Kept)>, completion: &Completion) -> Kept {
    let at = kept.iter().position(|(wr, _)| *wr == completion.wr);
    let at = at.unwrap_or_else(|| panic!("{:?} came back and is not out", completion.wr));
    kept.swap_remove(at).1
}

/// Random batches, slots used again at once with the next generation, random order of everything.
pub fn each_request_comes_back_exactly_once<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    let seed = crate::stored::seed("each_request_comes_back_exactly_once");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut generations = vec![0; room as usize];
    let mut out: Vec<(WrId, Kept)> = Vec::new();
    let (mut asked, mut back) = (0, 0);
    while back < 400 {
        for _ in 0..rng.u32(0..=room) {
            let free = (0..room).find(|slot| out.iter().all(|(wr, _)| wr.slot != *slot));
            let Some(slot) = free.filter(|_| asked < 400) else { break };
            generations[slot as usize] += 1;
            let wr = WrId { slot, generation: generations[slot as usize] };
            let bytes = grain * rng.usize(1..=8);
            let kept = queue(&mut rig, wr, grain * rng.usize(0..16), bytes);
            out.push(kept);
            asked += 1;
        }
        if rng.bool() {
            rig.commit();
        }
        let budget = rng.usize(1..=4);
        let came = rig.reap(budget);
        back += came.len();
        for completion in came {
            let kept = kept_for(&mut out, &completion);
            assert!(matches!(completion.outcome, Outcome::Done { .. }), "{completion:?}");
            rig.repay(kept, completion.part);
        }
        rig.commit();
        rig.pass_time();
    }
    assert!(asked == 400 && out.is_empty());
    rig.expect_quiet();
}

/// The limit is what it says: so many are taken, the next is no failure and comes back whole.
pub fn all_that_is_granted_can_be_queued_and_one_more_comes_back_whole<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    assert_eq!(room, rig.link.limits().outstanding_wrs_max, "a test has memory for all");
    assert!((1..=DEPTH).contains(&room));
    let mut out: Vec<_> = (0..room).map(|slot| queue(&mut rig, wr(slot), 0, grain)).collect();
    let extra = WrId { slot: 0, generation: 2 };
    let (request, kept) = rig.request(extra, grain, grain, 0);
    let address = request.part.address();
    let request = match rig.link.queue(request) {
        Err(Refused::Full(request)) => request,
        other => panic!("{room} are out, and one more is {other:?}"),
    };
    assert_eq!((request.wr, request.part.address()), (extra, address));
    for completion in rig.wait(room as usize) {
        let kept = kept_for(&mut out, &completion);
        rig.repay(kept, completion.part);
    }
    rig.queue(request);
    let completion = rig.wait(1).pop().expect("one");
    assert_eq!(completion.wr, extra);
    rig.repay(kept, completion.part);
}

/// A budget is kept, and what is left over comes next time.
pub fn no_more_is_reaped_than_was_asked_for<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    let mut out: Vec<_> = (0..room).map(|slot| queue(&mut rig, wr(slot), 0, grain)).collect();
    rig.commit();
    // All of them have completed, so that there is more than is asked for.
    rig.let_finish();
    let begun = Instant::now();
    while !out.is_empty() {
        let came = rig.reap(1);
        assert!(came.len() <= 1, "{} came of a budget of 1", came.len());
        assert!(begun.elapsed() < Duration::from_secs(30));
        for completion in came {
            let kept = kept_for(&mut out, &completion);
            rig.repay(kept, completion.part);
        }
        rig.commit();
        rig.pass_time();
    }
    assert!(rig.reap(0).is_empty());
}

/// Doorbells and looks without requests do nothing.
pub fn an_idle_link_stays_idle<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    rig.expect_quiet();
    assert!(!rig.link.has_uncommitted());
    let grain = rig.grain();
    let (_, kept) = queue(&mut rig, wr(0), 0, grain);
    let completion = rig.wait(1).pop().expect("one");
    rig.repay(kept, completion.part);
    rig.expect_quiet();
}

/// When everything is back, nothing waits for another doorbell.
pub fn what_is_committed_is_not_uncommitted<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain();
    for generation in 1..20 {
        let (_, kept) = queue(&mut rig, WrId { slot: 0, generation }, 0, grain);
        let begun = Instant::now();
        loop {
            rig.commit();
            if !rig.link.has_uncommitted() {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "it is never committed");
            rig.pass_time();
        }
        let completion = rig.wait(1).pop().expect("one");
        rig.repay(kept, completion.part);
        assert!(!rig.link.has_uncommitted());
    }
}

/// Names of requests that came back, or never were, mean nothing, whatever their slots hold now.
pub fn an_old_or_unknown_name_cancels_nothing<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    let old = wr(0);
    let (_, kept) = queue(&mut rig, old, 0, grain);
    let completion = rig.wait(1).pop().expect("one");
    rig.repay(kept, completion.part);
    let new = WrId { slot: 0, generation: 2 };
    for given_up in [T::Link::cancel, T::Link::quiesce] {
        let (request, kept) = rig.request(new, 0, grain, 0);
        rig.queue(request);
        for name in [old, WrId { slot: room - 1, generation: 9 }, WrId { generation: 3, ..new }] {
            given_up(&mut rig.link, name, rig.now);
        }
        rig.commit();
        for name in [old, WrId { generation: 0, ..new }] {
            given_up(&mut rig.link, name, rig.now);
        }
        let completion = rig.wait(1).pop().expect("one");
        assert_eq!(completion.wr, new);
        assert!(matches!(completion.outcome, Outcome::Done { .. }), "{completion:?}");
        rig.repay(kept, completion.part);
    }
    rig.expect_quiet();
}

/// Cancelled before and after the doorbell: done or cancelled, and back once.
pub fn what_is_cancelled_comes_back_once<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    for generation in 1..20 {
        let name = |slot| WrId { slot, generation };
        let mut out: Vec<_> =
            (0..room).map(|slot| queue(&mut rig, name(slot), 0, 4 * grain)).collect();
        rig.link.cancel(name(0), rig.now);
        rig.commit();
        (0..room).for_each(|slot| rig.link.cancel(name(slot), rig.now));
        for completion in rig.wait(room as usize) {
            let kept = kept_for(&mut out, &completion);
            match completion.outcome {
                Outcome::Done { .. } => {}
                Outcome::Failed { status, .. } => assert_eq!(status, Status::CANCELLED),
                Outcome::Flushed => panic!("nothing was torn down"),
            }
            rig.repay(kept, completion.part);
        }
    }
    rig.expect_quiet();
}

/// Quiesced in flight: back soon, in any state, and quiet from then on.
pub fn what_is_quiesced_comes_back_and_nothing_writes_it_any_more<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    let mut resting: Vec<Lease> = Vec::new();
    for generation in 1..6 {
        let name = |slot| WrId { slot, generation };
        let mut out: Vec<_> =
            (0..room).map(|slot| queue(&mut rig, name(slot), 0, 64 * grain)).collect();
        rig.commit();
        (0..room).step_by(2).for_each(|slot| rig.link.quiesce(name(slot), rig.now));
        for completion in rig.wait(room as usize) {
            let kept = kept_for(&mut out, &completion);
            let Landed { mut lease, .. } = rig.repay(kept, completion.part);
            if resting.len() < 8 {
                lease.as_mut_slice().fill(0xee);
                resting.push(lease);
            }
        }
    }
    rig.expect_quiet();
    let quiet = |lease: &Lease| lease.as_slice().iter().all(|byte| *byte == 0xee);
    assert!(resting.iter().all(quiet), "memory was written after it came back");
}

/// A poller that sleeps on the link's descriptor wakes for each completion.
pub fn no_wake_up_is_lost<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain();
    let sleeps = rig.link.event_fd().is_some();
    for generation in 1..=300 {
        let name = WrId { slot: 0, generation };
        let (_, kept) = queue(&mut rig, name, 0, grain);
        rig.commit();
        let completion = loop {
            if let Some(completion) = rig.reap(1).pop() {
                break completion;
            }
            // Where nothing can wake a sleeper, the link itself knows when to look.
            if !sleeps {
                assert!(rig.link.next_event().is_some(), "nothing will ever say that it is done");
                rig.pass_time();
                continue;
            }
            if !rig.link.arm() {
                continue;
            }
            let fd = rig.link.event_fd().expect("asked before");
            let limit = Timespec::try_from(Duration::from_secs(20)).expect("short");
            let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit));
            assert!(ready != Ok(0), "slept for 20 s on request {generation}");
        };
        assert_eq!(completion.wr, name);
        rig.repay(kept, completion.part);
    }
}

/// What it held stays owed for ever; everything else is as before, and a new rail works.
pub fn a_dropped_link_leaks_its_parts_and_nothing_else<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (room, grain) = (rig.room(), rig.grain());
    let out: Vec<_> = (0..room).map(|slot| queue(&mut rig, wr(slot), 0, grain)).collect();
    rig.commit();
    let (control, link) = rig.transport.rail(1, DEPTH);
    let (old_control, old_link) =
        (std::mem::replace(&mut rig.control, control), std::mem::replace(&mut rig.link, link));
    drop(old_link);
    for (_, Kept { loan, around }) in out {
        let mut loan = loan;
        for part in around {
            loan.repay(part).expect("it was kept");
        }
        assert_eq!(loan.outstanding_bytes(), grain, "the part is gone with the link");
        assert!(loan.settle().is_err());
    }
    old_control.disconnect(rig.target);
    old_control.unregister(rig.region.id());
    drop(old_control);
    assert_eq!(rig.pool.free(), rig.pool.slots() - room as usize);
    rig.link.start();
    rig.control.register(&rig.region).expect("as before");
    let (endpoint, source) = (rig.transport.endpoint(1), rig.source.clone());
    let handle = rig.transport.put(1, "other", &source);
    let other =
        railring_transport::SourceRef { endpoint: &endpoint, handle: &handle, generation: 1 };
    rig.target = rig.control.connect(other).expect("it is there");
    let (_, kept) = queue(&mut rig, wr(0), 0, grain);
    let completion = rig.wait(1).pop().expect("one");
    assert!(matches!(completion.outcome, Outcome::Done { .. }), "{completion:?}");
    rig.repay(kept, completion.part);
}
