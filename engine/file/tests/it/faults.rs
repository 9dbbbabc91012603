//! Refusals and faults of the kernel, injected: each is survived, counted and named.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;

use railring_file::{Backend, FileRail, FileRailError, FileRailOptions, Injector};
use railring_transport::{Link, Outcome, RailControl, WorkRequest, WrId};
use sq_cq::Status;

use crate::common::{Memory, Read, Rig, bytes_at, disk_directory, write_file};

/// A script of faults.
#[derive(Debug, Default)]
struct Faults {
    create: Option<i32>,
    create_above: u32,
    /// Results in the order of completions; none: the real one.
    results: Mutex<VecDeque<Option<i32>>>,
    /// What reads into registered buffers give, for ever.
    fixed: Option<i32>,
}

impl railring_uring::Injector for Faults {
    fn create(&self, entries: u32) -> Option<i32> {
        self.create.filter(|_| entries > self.create_above)
    }

    fn result(&self, _key: u64, result: i32, fixed: bool) -> i32 {
        if let (true, Some(errno)) = (fixed, self.fixed) {
            return -errno;
        }
        let next = self.results.lock().expect("no test panics with it").pop_front();
        // A short result must not claim bytes that did not come.
        next.flatten().map_or(result, |fault| fault.min(result))
    }
}

impl Injector for Faults {}

fn scripted(results: &[i32]) -> Faults {
    let results = results.iter().map(|result| Some(*result)).collect();
    Faults { results: Mutex::new(results), ..Faults::default() }
}

fn rig(directory: &std::path::Path, backend: Backend, faults: Faults) -> Rig {
    let injector: Option<Arc<dyn Injector>> = Some(Arc::new(faults));
    Rig::open(directory, FileRailOptions { backend, injector, ..FileRailOptions::default() })
}

#[test]
fn each_refusal_of_io_uring_leads_to_workers_that_name_it() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 20_480);
    for (errno, cause) in [
        (1, "EPERM"),
        (38, "ENOSYS"),
        (95, "EOPNOTSUPP"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (22, "EINVAL"),
        (517, "errno 517"),
    ] {
        let refuse = || Faults { create: Some(errno), ..Faults::default() };
        let mut rig = rig(directory.path(), Backend::Auto, refuse());
        let backend = rig.link.stats().backend;
        assert!(backend.starts_with(&format!("pread workers (io_uring: {cause})")), "{backend}");
        let notes = rig.control.info().notes;
        assert!(notes.iter().any(|note| note.contains("blocking workers")), "{notes:?}");
        let (target, memory) = (rig.connect("f"), Memory::new(1, 20_480));
        rig.control.register(&memory.region).expect("workers need none");
        rig.check(&memory, Read::new(target, 0, 20_480));
        rig.check(&memory, Read::new(target, 4096, 4096));
        let insisting = FileRailOptions {
            backend: Backend::IoUring,
            injector: Some(Arc::new(refuse())),
            ..FileRailOptions::default()
        };
        let error = FileRail::open(directory.path(), insisting).map(drop);
        assert!(matches!(error, Err(FileRailError::IoUring(_))), "{error:?}");
    }
}

#[test]
fn a_ring_that_memory_is_too_small_for_is_smaller_and_said() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    let faults = Faults { create: Some(12), create_above: 64, ..Faults::default() };
    let mut rig = rig(directory.path(), Backend::Auto, faults);
    if rig.link.stats().backend.starts_with("pread") {
        return println!("SKIP a_ring_that_memory_is_too_small_for: {}", rig.link.stats().backend);
    }
    assert_eq!(rig.link.limits().outstanding_wrs_max, 64);
    let notes = rig.control.info().notes;
    assert!(notes.iter().any(|note| note.contains("64 entries instead of 128")), "{notes:?}");
    let (target, memory) = (rig.connect("f"), Memory::new(1, 4096));
    rig.check(&memory, Read::new(target, 4096, 4096));
}

#[test]
fn eintr_eagain_and_short_results_are_invisible() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 1 << 16);
    for backend in [Backend::Auto, Backend::Workers] {
        let faults = scripted(&[-4, -11, 4096, -4, 8192, 512, -11, -4, 1]);
        let mut rig = rig(directory.path(), backend, faults);
        let (target, memory) = (rig.connect("f"), Memory::new(1, 1 << 16));
        rig.check(&memory, Read::new(target, 0, 1 << 16));
        assert_eq!(rig.link.stats().resubmissions, 9, "{backend:?}");
        rig.check(&memory, Read::new(target, 4096, 4096));
        assert_eq!(rig.link.stats().resubmissions, 9);
    }
}

#[test]
fn an_error_that_stays_is_reported_as_itself() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    for backend in [Backend::Auto, Backend::Workers] {
        for (results, errno) in [(vec![-5], 5), (vec![-11; 17], 11), (vec![-4; 17], 4)] {
            let mut rig = rig(directory.path(), backend, scripted(&results));
            let (target, memory) = (rig.connect("f"), Memory::new(1, 4096));
            let (outcome, _) = rig.read(&memory, Read::new(target, 0, 4096));
            let status = Status::from_errno(errno);
            assert_eq!(outcome, Outcome::Failed { status, vendor: 0 });
            rig.check(&memory, Read::new(target, 0, 4096));
        }
    }
}

#[test]
fn a_fixed_read_that_is_refused_is_made_once_more_unregistered() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    for errno in [14, 22] {
        let faults = Faults { fixed: Some(errno), ..Faults::default() };
        let mut rig = rig(directory.path(), Backend::Auto, faults);
        let (target, memory) = (rig.connect("f"), Memory::new(1, 4096));
        rig.control.register(&memory.region).expect("it falls back");
        if rig.control.registration().bytes == 0 {
            return println!("SKIP a_fixed_read: {:?}", rig.control.registration());
        }
        rig.check(&memory, Read::new(target, 4096, 4096));
        let stats = rig.link.stats();
        assert_eq!((stats.fixed_fallbacks, stats.resubmissions), (1, 1));
        // An unregistered read that gives the same is a failure, not a loop.
        rig.control.unregister(memory.region.id());
        rig.check(&memory, Read::new(target, 4096, 4096));
        assert_eq!(rig.link.stats().fixed_fallbacks, 1);
    }
    for backend in [Backend::Auto, Backend::Workers] {
        let mut rig = rig(directory.path(), backend, scripted(&[-14]));
        let (target, memory) = (rig.connect("f"), Memory::new(1, 4096));
        let (outcome, _) = rig.read(&memory, Read::new(target, 0, 4096));
        let status = Status::from_errno(14);
        assert_eq!(outcome, Outcome::Failed { status, vendor: 0 });
    }
}

#[test]
fn a_batch_into_one_registered_buffer_is_right_at_every_offset() {
    // axboe/liburing#994: from 3 on, at buffer offset 4,096.
    let directory = disk_directory();
    write_file(directory.path(), "f", 8 * 4096);
    let mut rig = rig(directory.path(), Backend::Auto, Faults::default());
    let (target, memory) = (rig.connect("f"), Memory::new(1, 8 * 4096));
    rig.control.register(&memory.region).expect("it falls back");
    let lease = memory.pool.take().expect("one slot");
    let (mut loan, mut rest) = lease.lend();
    for slot in 0..8 {
        let (part, tail) = rest.split_at(4096);
        rest = tail;
        let wr = WrId { slot, generation: 1 };
        let offset = u64::from(slot) * 4096;
        rig.queue(WorkRequest { wr, target, offset, bytes_min: 4096, part });
    }
    for completion in rig.wait(8) {
        assert_eq!(completion.outcome, Outcome::Done { bytes: 4096 });
        let offset = u64::from(completion.wr.slot) * 4096;
        assert!(completion.part.as_slice() == bytes_at(offset, 4096));
        loan.repay(completion.part).expect("it is the loan's");
    }
    let stats = rig.link.stats();
    assert_eq!(stats.fixed_fallbacks, 0);
    if stats.backend.starts_with("io_uring") {
        assert_eq!((stats.syscalls, stats.doorbells), (1, 1));
    }
}
