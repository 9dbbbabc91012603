//! Bytes are the source's, wherever they are asked for; what makes no sense is refused by name.

use railring_dma::Part;
use railring_transport::{
    Completion, ConnectError, Link, Outcome, Refused, SourceRef, TargetId, WorkRequest, WrId,
};
use sq_cq::{Blame, Status};

use super::rig::{Landed, SOURCE_BYTES, wr};
use super::{Kept, Rig, Transport};

const DEPTH: u32 = 8;

/// How a request ended, and its part.
type Ended = (Result<u64, Status>, Part);

/// One request from start to end: refused at once, or by its completion, or done.
fn read<T: Transport>(rig: &mut Rig<T>, request: WorkRequest) -> Ended {
    match rig.link.queue(request) {
        Ok(()) => {
            let Completion { outcome, part, .. } = rig.wait(1).pop().expect("one");
            match outcome {
                Outcome::Done { bytes } => (Ok(bytes), part),
                Outcome::Failed { status, .. } => (Err(status), part),
                Outcome::Flushed => panic!("nothing was torn down"),
            }
        }
        Err(Refused::Failed { request, status }) => (Err(status), request.part),
        Err(Refused::Full(_)) => panic!("nothing else is in flight"),
    }
}

/// A request that makes no sense: how it failed.
fn fails<T: Transport>(
    rig: &mut Rig<T>,
    name: WrId,
    (offset, bytes, skip): (usize, usize, usize),
) -> Status {
    let (request, kept) = rig.request(name, offset, bytes, skip);
    let (result, part) = read(rig, request);
    rig.repay(kept, part);
    let status = result.expect_err("it makes no sense");
    assert!(!status.is_ok());
    status
}

fn read_well<T: Transport>(rig: &mut Rig<T>, name: WrId, offset: usize, bytes: usize, skip: usize) {
    let (request, kept): (_, Kept) = rig.request(name, offset, bytes, skip);
    let (result, part) = read(rig, request);
    let what = format!("{bytes} bytes at {offset}, {skip} into the slot");
    assert_eq!(result, Ok(bytes as u64), "{what}");
    let Landed { lease, at } = rig.repay(kept, part);
    assert!(rig.is_exact(lease.as_slice(), at, offset, bytes), "wrong bytes: {what}");
}

/// The first and last bytes of the source, the shortest and the longest requests, any place in a
/// slot; nothing beside them is touched.
pub fn bytes_are_right_at_every_border<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain();
    let whole = SOURCE_BYTES / grain * grain;
    let longest = usize::try_from(rig.link.limits().request_bytes_max).unwrap_or(usize::MAX);
    let longest = longest.min(1 << 20) / grain * grain;
    let mut generation = 0;
    for bytes in [grain, 2 * grain, 4096.max(grain), 65_536, 65_536 + grain, longest] {
        for offset in [0, grain, 4096.max(grain), whole / grain / 2 * grain, whole - bytes] {
            for skip in [0, grain, 3 * grain] {
                generation += 1;
                let skip = if bytes + skip > 1 << 20 { 0 } else { skip };
                read_well(&mut rig, WrId { slot: 0, generation }, offset, bytes, skip);
            }
        }
    }
}

/// A request beyond the end of the source is complete if what is there is enough, and else failed
/// for the data's sake.
pub fn a_short_source_is_enough_or_is_not<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain().max(4096);
    let offset = SOURCE_BYTES / grain * grain;
    let there = SOURCE_BYTES - offset;
    for (generation, enough) in [(1, 1), (2, there), (3, there + 1), (4, 2 * grain)] {
        let (request, kept) = rig.request(WrId { slot: 0, generation }, offset, 2 * grain, 0);
        let request = WorkRequest { bytes_min: enough as u64, ..request };
        let (result, part) = read(&mut rig, request);
        let Landed { lease, at } = rig.repay(kept, part);
        match result {
            Ok(bytes) => {
                assert!(enough <= there && bytes >= enough as u64, "{bytes} of {enough}");
                let landed = &lease.as_slice()[at..at + enough];
                assert!(landed == &rig.source[offset..offset + enough], "wrong bytes");
            }
            Err(status) => {
                assert!(enough > there, "{enough} of {there} bytes were there: {status}");
                assert_eq!(status.blame(), Blame::Data, "{status}");
            }
        }
    }
}

/// A name that was never given, and one that was given back.
pub fn a_target_that_is_not_connected_is_refused<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let (known, grain) = (rig.target, rig.grain());
    rig.control.disconnect(known);
    let never = TargetId { slot: known.slot + 1000, generation: 1 };
    let other = TargetId { generation: known.generation.wrapping_add(7), ..known };
    for (target, generation) in [(known, 1), (never, 2), (other, 3)] {
        rig.target = target;
        fails(&mut rig, WrId { slot: 0, generation }, (0, grain, 0));
    }
    rig.control.disconnect(never);
    rig.target = rig.connect();
    read_well(&mut rig, WrId { slot: 0, generation: 4 }, 0, grain, 0);
}

/// A place in the table of targets is used again under another name.
pub fn a_target_connects_again_and_its_old_name_does_not<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain();
    let mut generation = 0;
    let mut next = || {
        generation += 1;
        WrId { slot: 0, generation }
    };
    for _ in 0..20 {
        let old = rig.target;
        rig.control.disconnect(old);
        let new = rig.connect();
        assert_ne!(old, new);
        rig.target = old;
        fails(&mut rig, next(), (0, grain, 0));
        rig.target = new;
        read_well(&mut rig, next(), 0, grain, 0);
    }
    let second = rig.connect();
    rig.control.disconnect(rig.target);
    rig.target = second;
    read_well(&mut rig, next(), grain, grain, 0);
}

/// Unreachable endpoints and missing sources are told apart, and leave nothing connected.
pub fn what_is_not_there_does_not_connect<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let endpoint = rig.transport.endpoint(0);
    let handle = rig.handle.clone();
    assert!(rig.control.reaches(&endpoint) && !rig.control.reaches("nowhere at all"));
    for _ in 0..50 {
        let nowhere = SourceRef { endpoint: "nowhere at all", handle: &handle, generation: 1 };
        let error = rig.control.connect(nowhere).expect_err("it reaches no such endpoint");
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        let missing = SourceRef { endpoint: &endpoint, handle: "missing", generation: 1 };
        let error = rig.control.connect(missing).expect_err("there is no such object");
        let said = matches!(
            error,
            ConnectError::Stale { .. } | ConnectError::BadHandle { .. } | ConnectError::Io { .. }
        );
        assert!(said && error.to_string().contains("missing"), "{error}");
    }
    let grain = rig.grain();
    read_well(&mut rig, wr(0), 0, grain, 0);
}

/// Offsets, lengths and addresses off the grain, and requests beyond the longest.
pub fn what_is_misaligned_or_too_long_is_refused<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain();
    let alignment = rig.alignment();
    let longest = usize::try_from(rig.link.limits().request_bytes_max).unwrap_or(usize::MAX);
    let mut bad = Vec::new();
    if alignment.offset_bytes > 1 {
        bad.push((grain + 1, grain, 0));
        bad.push((alignment.offset_bytes as usize / 2, grain, 0));
    }
    if alignment.length_bytes > 1 {
        bad.push((0, grain + 1, 0));
        bad.push((0, grain - 1, 0));
    }
    if alignment.memory_bytes > 1 {
        bad.push((0, grain, 1));
    }
    if longest < 1 << 20 {
        bad.push((0, longest + grain, 0));
    }
    for (what, generation) in bad.into_iter().zip(1..) {
        let status = fails(&mut rig, WrId { slot: 0, generation }, what);
        let (offset, bytes, skip) = what;
        let what = format!("{bytes} bytes at {offset}, {skip} into the slot: {status}");
        assert_eq!(status.blame(), Blame::Caller, "{what}");
    }
    read_well(&mut rig, WrId { slot: 0, generation: 100 }, 0, grain, 0);
}

/// A region is known once however often it is registered, and again after it was forgotten. A rail
/// may use memory it does not know, or refuse it, and never do anything else.
pub fn registering_twice_is_once_and_forgotten_memory_is_known_again<T: Transport>(transport: T) {
    let mut rig = Rig::new(transport, DEPTH);
    let grain = rig.grain();
    let mut generation = 0;
    let mut next = || {
        generation += 1;
        WrId { slot: 0, generation }
    };
    for _ in 0..3 {
        rig.control.register(&rig.region).expect("it is known");
        read_well(&mut rig, next(), 0, grain, 0);
        rig.control.unregister(rig.region.id());
        rig.control.unregister(rig.region.id());
        let (request, kept) = rig.request(next(), 0, grain, 0);
        let (result, part) = read(&mut rig, request);
        let Landed { lease, at } = rig.repay(kept, part);
        assert!(result.is_err() || rig.is_exact(lease.as_slice(), at, 0, grain));
        rig.control.register(&rig.region).expect("as the first time");
        read_well(&mut rig, next(), 0, grain, 0);
    }
    assert_eq!(rig.regions.stats().leaked_bytes, 0);
}
