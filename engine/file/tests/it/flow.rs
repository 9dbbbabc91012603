//! What goes in comes out once: full queues, signals, cancels, hung reads, dropped links, wake-ups.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use railring_dma::Loan;
use railring_file::{Backend, DirectIo, FileRailOptions, Injector};
use railring_transport::{
    Completion, Link, Nanos, Outcome, RailControl, Refused, TargetId, WorkRequest, WrId,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use sq_cq::Status;

use crate::common::{
    Memory, PATIENCE, Read, Rig, bytes_at, directory_in, disk_directory, failure, full, write_file,
};

const BACKENDS: [Backend; 2] = [Backend::Auto, Backend::Workers];

fn options(backend: Backend, queue_depth: u32) -> FileRailOptions {
    FileRailOptions { backend, queue_depth, ..FileRailOptions::default() }
}

/// Queues a read of 4,096 bytes and keeps its loan.
fn queue(
    rig: &mut Rig,
    memory: &Memory,
    wr: WrId,
    target: TargetId,
    loans: &mut Vec<(WrId, Loan)>,
) {
    let (_, part, loan) = memory.part(0, 4096);
    rig.queue(WorkRequest { wr, target, offset: 0, bytes_min: 1, part });
    loans.push((wr, loan));
}

/// Gives a completed part back to its loan, which proves that it is that read's own.
fn repay(loans: &mut Vec<(WrId, Loan)>, completion: Completion) -> (WrId, Outcome) {
    let index = loans.iter().position(|(wr, _)| *wr == completion.wr).expect("it was asked for");
    let (wr, mut loan) = loans.swap_remove(index);
    loan.repay(completion.part).expect("the part is of the read's own loan");
    drop(loan.settle().expect("everything came back"));
    (wr, completion.outcome)
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    for backend in BACKENDS {
        let mut rig = Rig::open(directory.path(), options(backend, 4));
        let (target, memory) = (rig.connect("f"), Memory::new(8, 4096));
        let mut loans = Vec::new();
        for slot in 0..4 {
            queue(&mut rig, &memory, WrId { slot, generation: 1 }, target, &mut loans);
        }
        let (_, part, mut loan) = memory.part(0, 4096);
        let wr = WrId { slot: 3, generation: 2 };
        let request = WorkRequest { wr, target, offset: 0, bytes_min: 1, part };
        let request = full(rig.link.queue(request));
        assert_eq!((request.wr, request.part.len()), (wr, 4096));
        for completion in rig.wait(4) {
            assert_eq!(repay(&mut loans, completion).1, Outcome::Done { bytes: 4096 });
        }
        rig.queue(request);
        let completion = rig.wait(1).pop().expect("one came");
        assert_eq!(completion.wr, wr);
        loan.repay(completion.part).expect("it is the loan's");
    }
}

#[test]
fn a_storm_of_signals_loses_nothing() {
    let directory = disk_directory();
    let path = write_file(directory.path(), "f", 1 << 20);
    drop(path);
    let signals = Arc::new(AtomicU64::new(0));
    // signal-hook installs with SA_RESTART; restarting is the caller's business for io_uring_enter,
    // which never restarts.
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGUSR1, Arc::clone(&flag)).expect("a handler can be set");
    let stop = Arc::new(AtomicBool::new(false));
    let storm = std::thread::spawn({
        let (stop, signals) = (Arc::clone(&stop), Arc::clone(&signals));
        move || {
            let own = rustix::process::getpid();
            while !stop.load(Ordering::Relaxed) {
                rustix::process::kill_process(own, rustix::process::Signal::USR1).expect("ours");
                signals.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for backend in BACKENDS {
        for direct in [DirectIo::Try, DirectIo::Never] {
            let mut rig =
                Rig::open(directory.path(), FileRailOptions { direct, ..options(backend, 2) });
            let (target, memory) = (rig.connect("f"), Memory::new(2, 4096));
            thousand_reads(&mut rig, &memory, target);
        }
    }
    stop.store(true, Ordering::Relaxed);
    storm.join().expect("it ends well");
    assert!(signals.load(Ordering::Relaxed) > 10 && flag.load(Ordering::Relaxed));
}

fn thousand_reads(rig: &mut Rig, memory: &Memory, target: TargetId) {
    let mut free = vec![0, 1];
    let mut loans: Vec<(WrId, u64, Loan)> = Vec::new();
    let (mut asked, mut came) = (0u32, 0);
    while came < 1000 {
        while let Some(slot) = if asked < 1000 { free.pop() } else { None } {
            let offset = u64::from(asked) % 255 * 4096;
            let (_, part, loan) = memory.part(0, 4096);
            let wr = WrId { slot, generation: asked };
            rig.queue(WorkRequest { wr, target, offset, bytes_min: 4096, part });
            loans.push((wr, offset, loan));
            asked += 1;
        }
        let completion = rig.wait(1).pop().expect("one came");
        let index = loans.iter().position(|(wr, ..)| *wr == completion.wr).expect("asked for");
        let (wr, offset, mut loan) = loans.swap_remove(index);
        assert_eq!(completion.outcome, Outcome::Done { bytes: 4096 });
        assert!(completion.part.as_slice() == bytes_at(offset, 4096), "wrong bytes at {offset}");
        loan.repay(completion.part).expect("it is the loan's");
        free.push(wr.slot);
        came += 1;
    }
}

/// Lets a handle name a FIFO, and keeps completions back while told to.
#[derive(Debug, Default)]
struct Hang {
    holding: AtomicBool,
    /// Whether doorbells are refused.
    busy: AtomicBool,
}

impl railring_uring::Injector for Hang {
    fn holds(&self, _key: u64) -> bool {
        self.holding.load(Ordering::Relaxed)
    }

    fn enter(&self) -> Option<i32> {
        self.busy.load(Ordering::Relaxed).then_some(libc::EAGAIN)
    }
}

impl Injector for Hang {
    fn special_files(&self) -> bool {
        true
    }
}

fn make_fifo(directory: &Path, name: &str) -> std::fs::File {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let path = directory.join(name);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO can be made");
    std::fs::File::options().read(true).write(true).open(&path).expect("it opens")
}

fn hanging_rig(directory: &Path, queue_depth: u32, faults: &Arc<Hang>) -> Rig {
    let injector: Arc<dyn Injector> = faults.clone();
    let options = FileRailOptions {
        injector: Some(injector),
        direct: DirectIo::Never,
        ..options(Backend::Auto, queue_depth)
    };
    Rig::open(directory, options)
}

/// A rail whose file "fifo" hangs until something is written, and the end to write to.
fn fifo_rig(directory: &Path) -> (Rig, std::fs::File) {
    let writer = make_fifo(directory, "fifo");
    (hanging_rig(directory, 8, &Arc::default()), writer)
}

#[test]
fn a_hung_read_comes_back_after_cancel_or_quiesce_and_no_other_does() {
    let directory = disk_directory();
    let (mut rig, writer) = fifo_rig(directory.path());
    if rig.link.stats().backend.starts_with("pread") {
        return println!("SKIP a_hung_read_comes_back: {}", rig.link.stats().backend);
    }
    let (target, memory) = (rig.connect("fifo"), Memory::new(8, 4096));
    let mut loans = Vec::new();
    let wr = |slot| WrId { slot, generation: 7 };
    for slot in 0..4 {
        queue(&mut rig, &memory, wr(slot), target, &mut loans);
    }
    rig.link.commit(Nanos(0));
    assert_eq!(rig.link.reap(Nanos(0), 8, &mut |_| panic!("nothing was written")), 0);
    rig.link.cancel(wr(2), Nanos(0));
    rig.link.quiesce(wr(1), Nanos(0));
    rig.link.cancel(WrId { slot: 0, generation: 6 }, Nanos(0)); // an earlier use
    assert!(!rig.link.arm(), "a cancel waits for its doorbell");
    let mut back: Vec<_> = rig.wait(2).into_iter().map(|done| repay(&mut loans, done)).collect();
    back.sort_by_key(|(wr, _)| wr.slot);
    assert_eq!(back.iter().map(|(wr, _)| wr.slot).collect::<Vec<_>>(), [1, 2]);
    assert!(back.iter().all(|(_, outcome)| failure(*outcome) == Status::CANCELLED));
    assert_eq!(rig.link.reap(Nanos(0), 8, &mut |_| panic!("others were not cancelled")), 0);
    for _ in 0..2 {
        rustix::io::write(&writer, &[5; 4096]).expect("it takes a page");
        let completion = rig.wait(1).pop().expect("one came");
        assert_eq!(completion.part.as_slice(), [5; 4096]);
        assert_eq!(repay(&mut loans, completion).1, Outcome::Done { bytes: 4096 });
    }
    let stats = rig.link.stats();
    assert_eq!((stats.stale_completions, stats.resubmissions), (0, 0));
}

#[test]
fn a_read_that_waits_to_be_continued_can_be_cancelled() {
    let directory = disk_directory();
    let faults = Arc::new(Hang::default());
    let writers = ["a", "b"].map(|name| make_fifo(directory.path(), name));
    let mut rig = hanging_rig(directory.path(), 2, &faults);
    if rig.link.stats().backend.starts_with("pread") {
        return println!("SKIP a_read_that_waits_to_be_continued: {}", rig.link.stats().backend);
    }
    let memory = Memory::new(2, 4096);
    let mut loans = Vec::new();
    let wr = |slot| WrId { slot, generation: 1 };
    for (slot, name) in [(0, "a"), (1, "b")] {
        let target = rig.connect(name);
        queue(&mut rig, &memory, wr(slot), target, &mut loans);
    }
    rig.link.commit(Nanos(0));
    let until_continued = |rig: &mut Rig, times: u64| {
        let start = Instant::now();
        while rig.link.stats().resubmissions < times {
            rig.link.reap(Nanos(0), 8, &mut |done| panic!("{done:?} was not whole"));
            assert!(start.elapsed() < PATIENCE);
        }
    };
    // The first is continued and its cancel wanted: both entries of the submission queue are taken.
    rustix::io::write(&writers[0], &[1; 10]).expect("it takes a few bytes");
    until_continued(&mut rig, 1);
    faults.busy.store(true, Ordering::Relaxed);
    rig.link.cancel(wr(0), Nanos(0));
    rig.link.commit(Nanos(0));
    // So the second has to wait.
    rustix::io::write(&writers[1], &[1; 10]).expect("it takes a few bytes");
    until_continued(&mut rig, 2);
    rig.link.cancel(wr(1), Nanos(0));
    assert!(!rig.link.arm());
    faults.busy.store(false, Ordering::Relaxed);
    for completion in rig.wait(2) {
        assert_eq!(failure(repay(&mut loans, completion).1), Status::CANCELLED);
    }
}

#[test]
fn a_cancel_is_rung_by_the_next_reap_if_nothing_is_committed() {
    let directory = disk_directory();
    let (mut rig, _writer) = fifo_rig(directory.path());
    if rig.link.stats().backend.starts_with("pread") {
        return println!("SKIP a_cancel_is_rung: {}", rig.link.stats().backend);
    }
    let (target, memory) = (rig.connect("fifo"), Memory::new(1, 4096));
    let mut loans = Vec::new();
    let wr = WrId { slot: 0, generation: 1 };
    queue(&mut rig, &memory, wr, target, &mut loans);
    rig.link.commit(Nanos(0));
    rig.link.cancel(wr, Nanos(0));
    let (start, mut back) = (Instant::now(), Vec::new());
    while back.is_empty() {
        rig.link.reap(Nanos(0), 8, &mut |completion| back.push(completion));
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(failure(back[0].outcome), Status::CANCELLED);
}

#[test]
fn workers_give_back_what_they_have_not_begun_and_hang_alone() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    let faults = Arc::new(Hang { holding: AtomicBool::new(true), ..Hang::default() });
    let options =
        FileRailOptions { injector: Some(faults.clone()), ..options(Backend::Workers, 16) };
    let mut rig = Rig::open(directory.path(), options);
    let (target, memory) = (rig.connect("f"), Memory::new(16, 4096));
    let mut loans = Vec::new();
    let wr = |slot| WrId { slot, generation: 1 };
    (0..15).for_each(|slot| queue(&mut rig, &memory, wr(slot), target, &mut loans));
    rig.link.commit(Nanos(0));
    // Eight are in pread(2), which hangs; wait until that is so.
    std::thread::sleep(Duration::from_millis(100));
    queue(&mut rig, &memory, wr(15), target, &mut loans);
    (0..16).for_each(|slot| rig.link.cancel(wr(slot), Nanos(0)));
    assert!(!rig.link.arm());
    for completion in rig.wait(8) {
        let (wr, outcome) = repay(&mut loans, completion);
        assert!(wr.slot >= 8, "{wr:?} was begun first");
        assert_eq!(failure(outcome), Status::CANCELLED);
    }
    assert_eq!(rig.link.reap(Nanos(0), 16, &mut |_| panic!("the rest hang")), 0);
    assert!(rig.link.arm());
    faults.holding.store(false, Ordering::Relaxed);
    for completion in rig.wait(8) {
        assert_eq!(repay(&mut loans, completion).1, Outcome::Done { bytes: 4096 });
    }
}

#[test]
fn a_dropped_link_leaks_its_parts_and_corrupts_nothing() {
    let directory = disk_directory();
    let (mut rig, writer) = fifo_rig(directory.path());
    let (target, memory) = (rig.connect("fifo"), Memory::new(8, 4096));
    let mut loans = Vec::new();
    for slot in 0..4 {
        queue(&mut rig, &memory, WrId { slot, generation: 1 }, target, &mut loans);
    }
    rig.link.commit(Nanos(0));
    let Rig { control, link, .. } = rig;
    let start = Instant::now();
    drop(link);
    assert!(start.elapsed() < Duration::from_secs(5), "dropping took {:?}", start.elapsed());
    // What is written now reaches no memory that anybody owns.
    rustix::io::write(&writer, &[0xee; 4096]).expect("it takes a page");
    while let Some(lease) = memory.pool.take() {
        assert!(!lease.as_slice().contains(&0xee));
        std::mem::forget(lease);
    }
    drop(loans);
    assert_eq!(memory.regions.stats().leaked_bytes, 4 * 4096);
    control.disconnect(target);
}

#[test]
fn control_threads_register_while_the_link_reads() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 1 << 20);
    write_file(directory.path(), "g", 4096);
    for backend in BACKENDS {
        let mut rig = Rig::open(directory.path(), options(backend, 8));
        let (target, memory) = (rig.connect("f"), Memory::new(1, 4096));
        let (control, endpoint) = (Arc::clone(&rig.control), rig.endpoint.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let other = std::thread::spawn(move || {
            let memory = Memory::new(4, 1 << 16);
            let mut rounds = 0;
            while !stopped.load(Ordering::Relaxed) {
                control.register(&memory.region).expect("it falls back");
                let source = railring_transport::SourceRef {
                    endpoint: &endpoint,
                    handle: "g",
                    generation: 1,
                };
                let targets: Vec<_> =
                    (0..8).map(|_| control.connect(source).expect("it is there")).collect();
                targets.into_iter().for_each(|target| control.disconnect(target));
                control.unregister(memory.region.id());
                rounds += 1;
            }
            rounds
        });
        let (start, mut reads) = (Instant::now(), 0u64);
        while start.elapsed() < Duration::from_millis(200) {
            match reads % 3 {
                0 => rig.control.register(&memory.region).expect("it falls back"),
                1 => {}
                _ => rig.control.unregister(memory.region.id()),
            }
            rig.check(&memory, Read::new(target, reads % 255 * 4096, 4096));
            reads += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let rounds = other.join().expect("it ends well");
        println!("{backend:?}: {rounds} rounds beside {reads} reads");
        assert!(rounds > 0 && reads > 0);
    }
}

#[test]
fn a_commit_with_work_is_one_system_call_and_one_without_is_none() {
    for directory in [Ok(disk_directory()), directory_in("/dev/shm")] {
        let Ok(directory) = directory else {
            println!("SKIP a_commit_with_work on tmpfs: no /dev/shm");
            continue;
        };
        write_file(directory.path(), "f", 1 << 20);
        let mut rig = Rig::open(directory.path(), options(Backend::Auto, 32));
        if rig.link.stats().backend.starts_with("pread") {
            return println!("SKIP a_commit_with_work: {}", rig.link.stats().backend);
        }
        let (target, memory) = (rig.connect("f"), Memory::new(32, 4096));
        rig.control.register(&memory.region).expect("it falls back");
        let mut free: Vec<_> = (0..32).collect();
        let mut loans = Vec::new();
        let (mut commits, mut came) = (0, 0u32);
        while came < 5000 {
            commits += u64::from(!free.is_empty());
            for slot in free.drain(..) {
                queue(&mut rig, &memory, WrId { slot, generation: came }, target, &mut loans);
            }
            for _ in 0..3 {
                rig.link.commit(Nanos(0));
            }
            rig.link.reap(Nanos(0), 64, &mut |completion| {
                came += 1;
                free.push(completion.wr.slot);
                let (_, outcome) = repay(&mut loans, completion);
                assert_eq!(outcome, Outcome::Done { bytes: 4096 });
            });
        }
        let stats = rig.link.stats();
        assert_eq!((stats.syscalls, stats.doorbells), (commits, commits), "{}", stats.backend);
    }
}

#[test]
fn the_event_wakes_a_poller_that_armed_it() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 1 << 20);
    for backend in BACKENDS {
        let mut rig = Rig::open(directory.path(), options(backend, 8));
        let (target, memory) = (rig.connect("f"), Memory::new(8, 4096));
        assert!(rig.link.arm(), "nothing was asked for");
        let mut loans = Vec::new();
        for generation in 0..500 {
            let count = generation as usize % 8 + 1;
            for slot in 0..count as u32 {
                queue(&mut rig, &memory, WrId { slot, generation }, target, &mut loans);
            }
            rig.link.commit(Nanos(0));
            let mut came = 0;
            while came < count {
                if rig.link.arm() {
                    let event = rig.link.event_fd().expect("file links have one");
                    let mut polled = [PollFd::new(&event, PollFlags::IN)];
                    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
                    let ready = rustix::event::poll(&mut polled, Some(&limit));
                    assert_ne!(ready, Ok(0), "{backend:?} slept through a completion");
                }
                came += rig.link.reap(Nanos(0), 3, &mut |completion| {
                    repay(&mut loans, completion);
                });
            }
        }
    }
}

#[test]
fn an_unsound_slot_of_a_request_in_flight_is_not_taken_twice() {
    let directory = disk_directory();
    let (mut rig, _writer) = fifo_rig(directory.path());
    if rig.link.stats().backend.starts_with("pread") {
        return println!("SKIP an_unsound_slot: {}", rig.link.stats().backend);
    }
    let (target, memory) = (rig.connect("fifo"), Memory::new(2, 4096));
    let mut loans = Vec::new();
    queue(&mut rig, &memory, WrId { slot: 0, generation: 1 }, target, &mut loans);
    let (_, part, _loan) = memory.part(0, 4096);
    let wr = WrId { slot: 0, generation: 2 };
    let again = rig.link.queue(WorkRequest { wr, target, offset: 0, bytes_min: 1, part });
    assert!(matches!(again, Err(Refused::Full(_))), "{again:?}");
}
