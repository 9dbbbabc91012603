//! Traces of reads: their stages are the read's latency, their rails' bytes the read's bytes, and
//! what there is no room for is counted.

mod scene;

use std::time::Duration;

use railring_core::{
    Completion, EngineConfig, Object, Progress, PushError, Read, ReadTrace, RingConfig, Scatter,
    TraceConfig, TraceKind, TraceOf,
};
use railring_sim::{Fault, FaultPlan, When};
use scene::{KIB, MS, Scene, config, fault, rail, shape};
use sq_cq::Status;

fn two_rails() -> Vec<railring_sim::SimRailConfig> {
    vec![rail("a", FaultPlan::none()), rail("b", FaultPlan::none())]
}

/// A scene whose ring has room for `reads` traces.
fn traced(rails: Vec<railring_sim::SimRailConfig>, config: EngineConfig, reads: u32) -> Scene {
    let mut scene = Scene::with_leases(rails, config, 4, 8 << 20);
    scene.ring = ring(&scene, TraceConfig { reads, ..TraceConfig::default() });
    scene
}

fn ring(scene: &Scene, trace: TraceConfig) -> railring_core::Ring {
    scene.engine.ring(RingConfig { trace, ..RingConfig::default() }).expect("a ring")
}

/// What holds of every trace.
fn check(trace: &ReadTrace, last: &Completion) {
    assert_eq!(trace.latency_ns(), u64::from(last.latency_ns()), "{trace}");
    assert_eq!(Some(trace.status), last.ended());
    assert_eq!((trace.bytes, trace.user_data), (last.total_bytes(), last.user_data()));
    let landed: u64 = trace.rails.iter().map(|rail| rail.bytes).sum();
    assert!(landed >= trace.bytes, "{trace}");
    assert!(trace.stages.lone_ns <= trace.stages.transfer_ns(), "{trace}");
    for rail in &trace.rails {
        assert_eq!(rail.attempts, rail.pieces + rail.failures, "{trace}");
        assert!(rail.busy_ns <= trace.latency_ns() && rail.bytes <= rail.moved_bytes, "{trace}");
        assert_eq!(rail.span_ns.is_some(), rail.attempts > 0);
    }
    let ends: Vec<u64> = trace.records.iter().map(|record| record.to_ns).collect();
    assert!(ends.iter().all(|&end| end <= trace.latency_ns()), "{trace}");
    assert!(trace.records.iter().all(|record| record.from_ns <= record.to_ns), "{trace}");
}

/// Reads traced, alone, and gives the trace.
fn run(scene: &mut Scene, read: Read<'_>) -> ReadTrace {
    scene.push(read.traced().user_data(5));
    let last = scene.finish().pop().expect("an end");
    let trace = scene.ring.trace(&last).expect("it was traced").clone();
    check(&trace, &last);
    trace
}

fn count(trace: &ReadTrace, kind: TraceKind) -> usize {
    trace.records.iter().filter(|record| record.kind == kind).count()
}

#[test]
fn stages_add_up_to_the_latency_and_rails_bring_the_bytes() {
    let mut scene = traced(two_rails(), config(), 1);
    let (object, _) = scene.object("x", shape(4, 512 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    let trace = run(&mut scene, read);
    assert_eq!((trace.status, trace.bytes, trace.retries), (Status::OK, 2 << 20, 0));
    assert_eq!(trace.rails.iter().map(|rail| rail.bytes).sum::<u64>(), 2 << 20);
    assert!(trace.rails.iter().all(|rail| rail.bytes > 0 && rail.busy_ns > 0), "{trace}");
    let names: Vec<&str> = trace.rails.iter().map(|rail| &*rail.name).collect();
    assert_eq!(names, ["a", "b"]);
    let pieces: u32 = trace.rails.iter().map(|rail| rail.pieces).sum();
    assert_eq!(count(&trace, TraceKind::Wire), pieces as usize);
    assert_eq!(count(&trace, TraceKind::Queue), pieces as usize);
    assert_eq!((count(&trace, TraceKind::Plan), count(&trace, TraceKind::Disk)), (1, 0));
    assert_eq!(count(&trace, TraceKind::Publish), 4);
    // The class of reads that it is the only one of says the same.
    let class = scene.engine.stats().classes[1];
    assert_eq!((class.wall_ns, class.wire_ns), (trace.latency_ns(), trace.stages.wire_ns));
    assert_eq!((class.lone_ns, class.bottleneck()), (trace.stages.lone_ns, trace.bottleneck()));
    // Each piece's time on its rail is in the rail's.
    let busy: u64 = trace.rails.iter().map(|rail| rail.busy_ns).max().unwrap_or(0);
    assert!(busy <= trace.stages.wire_ns);
}

#[test]
fn a_small_read_is_traced_like_any_other() {
    let mut scene = traced(two_rails(), config(), 1);
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object);
    let trace = run(&mut scene, read);
    assert_eq!(trace.rails[0].bytes + trace.rails[1].bytes, 64 * KIB);
    assert_eq!(trace.last_rail(), None, "one rail is not the last of several");
}

#[test]
fn what_went_wrong_is_in_the_trace() {
    let lost = fault(Fault::Lost, When::Nth(0));
    let mut scene = traced(vec![rail("a", lost), rail("b", FaultPlan::none())], config(), 1);
    let (object, _) = scene.object("x", shape(2, 64 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    let trace = run(&mut scene, read);
    assert_eq!((trace.status, trace.retries), (Status::OK, 1), "{trace}");
    assert_eq!((trace.rails[0].failures, trace.rails[1].failures), (1, 0), "{trace}");
    let failed = trace.records.iter().find(|record| !record.status.is_ok()).expect("told");
    assert_eq!((failed.status, failed.rail), (Status::TIMED_OUT, Some(0)));
    assert_eq!((failed.kind, failed.of, failed.attempt), (TraceKind::Wire, TraceOf::Piece, 1));
    assert!(failed.to_ns - failed.from_ns >= 10 * MS, "it was given up after io_timeout");
    let again = trace.records.iter().any(|record| record.attempt == 2 && record.rail == Some(1));
    assert!(again, "{trace}");
    let text = trace.to_string();
    assert!(text.contains("attempt 2") && text.contains("timed out"), "{text}");
}

#[test]
fn pieces_that_an_idle_rail_took_over_are_counted_for_it() {
    let mut slow = rail("a", FaultPlan::none());
    slow.bandwidth_bytes_per_second /= 20;
    let config = EngineConfig { io_timeout: Duration::from_secs(1), ..config() };
    let mut scene = traced(vec![slow, rail("b", FaultPlan::none())], config, 2);
    let (object, _) = scene.object("x", shape(16, 512 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    let trace = run(&mut scene, read);
    let stolen: u32 = trace.rails.iter().map(|rail| rail.steals).sum();
    assert!(stolen > 0, "{trace}");
    assert_eq!(u64::from(stolen), scene.engine.stats().steals);
    assert_eq!(trace.last_rail(), Some(0), "{trace}");
}

#[test]
fn tables_and_blocks_are_told_apart_from_the_bytes_of_the_read() {
    let mut scene = traced(two_rails(), config(), 1);
    let (object, _) = scene.object("x", shape(1, 256 * KIB, 1), 0..1);
    let lease = scene.pool.take().expect("a lease");
    let trace = run(&mut scene, Read::new(&object, 5000..30_000, lease));
    let sum = |of: fn(&railring_core::TraceRail) -> u64| trace.rails.iter().map(of).sum::<u64>();
    assert_eq!(sum(|rail| rail.bytes), 25_000);
    // Blocks of 4 KiB, from that of byte 5,000 to that of byte 30,000, and a table of 64 sums.
    assert_eq!(sum(|rail| rail.moved_bytes), 32_768 - 4096 + 512);
    assert!(trace.records.iter().any(|record| record.of == TraceOf::Table), "{trace}");
}

#[test]
fn a_cpu_that_hashes_slowly_shows_in_the_trace() {
    let mut fast = rail("a", FaultPlan::none());
    fast.bandwidth_bytes_per_second = 100_000_000_000;
    let config = EngineConfig { piece_bytes_max: 1 << 20, ..config() };
    let mut scene = traced(vec![fast], config, 1);
    let (object, _) = scene.object("x", shape(1, 8 * 1024 * KIB, 1), 0..1);
    let read = scene.whole(&object).traced();
    scene.push(read);
    while scene.ring.ready() == 0 {
        let worked = scene.engine.turn_at(scene.now) == Progress::Worked;
        let next = if worked { scene.now.after(MS / 2) } else { scene.engine.next_event() };
        scene.now = scene.now.max(next);
    }
    let last = scene.next();
    let trace = scene.ring.trace(&last).expect("it was traced");
    check(trace, &last);
    assert_eq!(trace.bottleneck(), Some(railring_core::Bottleneck::Verification), "{trace}");
    let hashing = trace.records.iter().find(|record| record.kind == TraceKind::Verify);
    let hashing = hashing.expect("a stripe was hashed");
    assert_eq!(hashing.to_ns - hashing.from_ns, trace.stages.verify_ns, "{trace}");
}

#[test]
fn every_kind_of_read_has_a_trace_that_adds_up() {
    let mut scene = traced(two_rails(), config(), 1);
    let (object, _) = scene.object("x", shape(5, 64 * KIB, 2), 0..2);
    let lease = |scene: &Scene| scene.pool.take().expect("a lease");
    let reads: Vec<Read<'_>> = vec![
        Read::nop(),
        Read::new(&object, 0..0, lease(&scene)),
        Read::stripes(&object, 1, 0b1101, lease(&scene)),
        Read::new(&object, 7..200_000, lease(&scene)).quiet(2),
        Read::new(&object, 0..300_000, lease(&scene)).timeout(Duration::from_nanos(1)),
    ];
    for read in reads {
        let _ = run(&mut scene, read);
    }
    let leases = [lease(&scene), lease(&scene)].map(|lease| {
        let (front, rest) = lease.split_at(100_000).expect("long enough");
        drop(rest);
        front
    });
    let trace = run(&mut scene, Read::scattered(&object, 10..150_010, Scatter::new(leases)));
    assert_eq!(trace.bytes, 150_000);
    let read = scene.whole(&object).traced();
    let id = scene.push(read);
    scene.ring.cancel(id);
    let last = scene.finish().pop().expect("an end");
    check(scene.ring.trace(&last).expect("traced"), &last);
    assert_eq!(last.ended(), Some(Status::CANCELLED));
    assert_eq!(scene.ring.traces_dropped(), 0);
}

#[test]
fn a_ring_without_room_for_traces_refuses_them() {
    let mut scene = Scene::new(two_rails(), config());
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let read = scene.whole(&object).traced();
    let refused = scene.ring.push(read).expect_err("no room was made");
    assert_eq!(refused.why, PushError::NoTraces);
    assert!(refused.read.into_lease().is_some(), "the lease comes back");
    assert_eq!(scene.ring.traces().count(), 0);
    let read = scene.whole(&object);
    scene.push(read);
    let last = scene.finish().pop().expect("an end");
    assert_eq!(scene.ring.trace(&last), None);
    let trace = TraceConfig { reads: u32::MAX, records: u32::MAX };
    let refused = scene.engine.ring(RingConfig { trace, ..RingConfig::default() });
    assert!(refused.expect_err("far too much").to_string().contains("RingConfig::trace"));
}

fn push_three(scene: &mut Scene, object: &Object) {
    for number in 0..3 {
        let lease = scene.pool.take().expect("a lease");
        let read = Read::new(object, 0..object.len(), lease).traced().user_data(number);
        scene.ring.push(read).expect("accepted, traced or not");
    }
    scene.ring.submit();
}

#[test]
fn reads_beyond_the_room_for_traces_are_counted_and_the_last_traces_kept() {
    let mut scene = traced(two_rails(), config(), 2);
    let (object, _) = scene.object("x", shape(2, 64 * KIB, 2), 0..2);
    for round in 1..=3 {
        push_three(&mut scene, &object);
        let mut ends: Vec<Completion> = Vec::new();
        while ends.len() < 3 {
            ends.extend(scene.finish().pop());
        }
        ends.sort_by_key(|end| end.user_data());
        let kept: Vec<bool> = ends.iter().map(|end| scene.ring.trace(end).is_some()).collect();
        assert_eq!(kept, [true, true, false], "those pushed first have the room");
        assert_eq!(scene.ring.traces_dropped(), round);
        assert_eq!(scene.ring.traces().count(), 2);
        for end in &ends[..2] {
            check(scene.ring.trace(end).expect("kept"), end);
        }
    }
}

#[test]
fn records_beyond_the_room_are_counted_and_the_sums_are_whole() {
    let mut scene = traced(two_rails(), config(), 1);
    scene.ring = ring(&scene, TraceConfig { reads: 1, records: 5 });
    let (object, _) = scene.object("x", shape(8, 512 * KIB, 2), 0..2);
    let read = scene.whole(&object);
    let trace = run(&mut scene, read);
    assert_eq!(trace.records.len(), 5);
    let pieces: u64 = trace.rails.iter().map(|rail| u64::from(rail.pieces)).sum();
    assert_eq!(trace.records_dropped, 1 + 2 * pieces + 8 + 8 - 5, "{trace}");
    assert_eq!(trace.rails.iter().map(|rail| rail.bytes).sum::<u64>(), 4 << 20);
    assert!(trace.to_string().contains("found no room"));
}

#[test]
fn a_push_that_was_refused_gives_its_room_back() {
    let mut scene = Scene::with_leases(two_rails(), config(), 2, 1 << 20);
    let trace = TraceConfig { reads: 1, ..TraceConfig::default() };
    let sizes = RingConfig { sq_entries: 1, cq_entries: 1, trace, ..RingConfig::default() };
    scene.ring = scene.engine.ring(sizes).expect("a ring");
    let (object, _) = scene.object("x", shape(1, 64 * KIB, 1), 0..1);
    let (first, second) = (scene.whole(&object), scene.whole(&object).traced());
    scene.push(first);
    let refused = scene.ring.push(second).expect_err("the ring is full");
    assert!(refused.is_full());
    let _ = scene.finish();
    scene.push(refused.read);
    let last = scene.finish().pop().expect("an end");
    check(scene.ring.trace(&last).expect("there is room again"), &last);
    assert!(last.into_lease().is_some());
}
