//! Connecting: which endpoints and handles a rail takes, what it refuses, what it pins.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use railring_file::{Backend, FileRail, FileRailError, FileRailOptions, Injector};
use railring_transport::{
    ConnectError, Link, RailControl, RailKind, Refused, SourceRef, WorkRequest, WrId,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sq_cq::Status;

use crate::common::{Memory, Read, Rig, disk_directory, write_file};

#[test]
fn an_endpoint_is_the_same_directory_by_any_name() {
    let directory = disk_directory();
    let other = disk_directory();
    std::fs::create_dir(directory.path().join("sub")).expect("it is writable");
    symlink(directory.path(), other.path().join("link")).expect("it is writable");
    let rig = Rig::open(directory.path(), FileRailOptions::default());
    let text = |path: &Path| path.to_str().expect("plain name").to_owned();
    for same in [
        text(directory.path()),
        text(&directory.path().join("sub/..")),
        text(&other.path().join("link")),
        format!("{}/", text(directory.path())),
    ] {
        assert!(rig.control.reaches(&same), "{same}");
    }
    for different in [text(other.path()), text(&directory.path().join("sub")), String::new()] {
        assert!(!rig.control.reaches(&different), "{different}");
        let source = SourceRef { endpoint: &different, handle: "f", generation: 1 };
        assert!(matches!(rig.control.connect(source), Err(ConnectError::Unreachable { .. })));
    }
}

#[test]
fn handles_that_are_not_files_of_the_directory_are_refused() {
    let directory = disk_directory();
    let at = directory.path();
    write_file(at, "f", 10);
    std::fs::create_dir(at.join("sub")).expect("it is writable");
    write_file(&at.join("sub"), "g", 10);
    symlink("f", at.join("link")).expect("it is writable");
    symlink("/etc", at.join("etc")).expect("it is writable");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO can be made");
    for backend in [Backend::Auto, Backend::Workers] {
        let rig = Rig::open(at, FileRailOptions { backend, ..FileRailOptions::default() });
        let connect = |handle: &str| {
            let endpoint = &rig.endpoint;
            rig.control.connect(SourceRef { endpoint, handle, generation: 1 })
        };
        let long = "x/".repeat(5000);
        for bad in [
            "",
            "/etc/passwd",
            "../f",
            "sub/../f",
            "a\0b",
            "link",
            "etc/passwd",
            "fifo",
            "sub",
            &long,
        ] {
            let error = connect(bad).expect_err("it is refused");
            assert!(matches!(error, ConnectError::BadHandle { .. }), "{bad:?}: {error}");
        }
        assert!(matches!(connect("none"), Err(ConnectError::Stale { .. })));
        assert!(matches!(connect("sub/none"), Err(ConnectError::Stale { .. })));
        assert!(matches!(connect("f/g"), Err(ConnectError::Io { .. })));
        let target = connect("sub/g").expect("it is there");
        rig.control.disconnect(target);
        rig.control.disconnect(target);
    }
}

#[test]
fn a_disconnected_target_is_refused_with_the_request() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    for backend in [Backend::Auto, Backend::Workers] {
        let options = FileRailOptions { backend, ..FileRailOptions::default() };
        let mut rig = Rig::open(directory.path(), options);
        let memory = Memory::new(2, 4096);
        let gone = rig.connect("f");
        rig.control.disconnect(gone);
        let target = rig.connect("f");
        let (_rest, part, mut loan) = memory.part(0, 4096);
        let wr = WrId { slot: 0, generation: 1 };
        let request = WorkRequest { wr, target: gone, offset: 0, bytes_min: 1, part };
        let Err(Refused::Failed { request, status }) = rig.link.queue(request) else {
            panic!("a target that is gone was taken");
        };
        assert_eq!(status, Status::from_errno(9));
        loan.repay(request.part).expect("the part came back");
        rig.check(&memory, Read::new(target, 0, 4096));
    }
}

#[test]
fn nonsense_in_a_request_is_refused_with_the_request() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    let mut rig =
        Rig::open(directory.path(), FileRailOptions { queue_depth: 4, ..Default::default() });
    let (target, memory) = (rig.connect("f"), Memory::new(8, 4096));
    let sound = WrId { slot: 3, generation: 1 };
    for (wr, offset, bytes_min) in [
        (WrId { slot: 4, ..sound }, 0, 0),
        (sound, 0, 4097),
        (sound, u64::MAX - 4095, 0),
        (sound, 1 << 63, 0),
    ] {
        let (_, part, _loan) = memory.part(0, 4096);
        let request = WorkRequest { wr, target, offset, bytes_min, part };
        match rig.link.queue(request) {
            Err(Refused::Failed { status, .. }) => assert_eq!(status, Status::INVALID_ARGUMENT),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_connected_file_cannot_be_locked_by_a_remover() {
    let directory = disk_directory();
    let path = write_file(directory.path(), "f", 100);
    let remover = std::fs::File::open(path).expect("it is there");
    for backend in [Backend::Auto, Backend::Workers] {
        let rig = Rig::open(directory.path(), FileRailOptions { backend, ..Default::default() });
        let target = rig.connect("f");
        let attempt = || flock(&remover, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(attempt(), Err(Errno::WOULDBLOCK));
        rig.control.disconnect(target);
        assert_eq!(attempt(), Ok(()));
        // A remover that lets go within moments is waited for.
        let late = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| rig.connect("f"));
            std::thread::sleep(std::time::Duration::from_millis(20));
            flock(&remover, FlockOperation::Unlock).expect("it is ours");
            connecting.join().expect("it connects")
        });
        assert_eq!(attempt(), Err(Errno::WOULDBLOCK));
        rig.control.disconnect(late);
    }
}

#[test]
fn more_files_than_the_ring_has_entries_are_read_by_descriptor() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    let mut rig = Rig::open(directory.path(), FileRailOptions::default());
    let memory = Memory::new(1, 4096);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < 1200) {
        println!("SKIP more_files_than_the_ring_has_entries: RLIMIT_NOFILE is {limit:?}");
        return;
    }
    let targets: Vec<_> = (0..1100).map(|_| rig.connect("f")).collect();
    for target in [targets[0], targets[1023], targets[1024], targets[1099]] {
        rig.check(&memory, Read::new(target, 4096, 4096));
    }
    targets.into_iter().for_each(|target| rig.control.disconnect(target));
    let target = rig.connect("f");
    rig.check(&memory, Read::new(target, 0, 4096));
}

#[test]
fn options_without_sense_are_refused() {
    let directory = disk_directory();
    let open = |options| FileRail::open(directory.path(), options).map(drop);
    let base = FileRailOptions::default;
    for queue_depth in [0, 32_769, u32::MAX] {
        let error = open(FileRailOptions { queue_depth, ..base() });
        assert!(matches!(error, Err(FileRailError::QueueDepth { .. })));
    }
    assert!(matches!(open(FileRailOptions { weight: 0, ..base() }), Err(FileRailError::Weight)));
    let blank = FileRailOptions { name: Some(" ".to_owned()), ..base() };
    assert!(matches!(open(blank), Err(FileRailError::BlankName)));
    let missing = FileRail::open(&directory.path().join("none"), base()).map(drop);
    assert!(matches!(missing, Err(FileRailError::Directory { .. })));
    write_file(directory.path(), "f", 1);
    let file = FileRail::open(&directory.path().join("f"), base()).map(drop);
    assert!(matches!(file, Err(FileRailError::Directory { .. })));
}

#[test]
fn a_rail_says_what_it_is() {
    let directory = disk_directory();
    let options = FileRailOptions {
        queue_depth: 100,
        name: Some("disk-7".to_owned()),
        weight: 3,
        node: Some(1),
        ..FileRailOptions::default()
    };
    let rig = Rig::open(directory.path(), options);
    let info = rig.control.info();
    assert_eq!((info.kind, info.name.as_str()), (RailKind::File, "disk-7"));
    assert_eq!((info.weight, info.node), (3, Some(1)));
    assert_eq!(rig.link.limits().outstanding_wrs_max, 128);
    let unnamed = Rig::open(directory.path(), FileRailOptions::default());
    assert_eq!(unnamed.control.info().name, directory.path().display().to_string());
}

/// Refuses O_DIRECT once it is switched on.
#[derive(Debug, Default)]
struct NoDirect(AtomicBool);

impl railring_uring::Injector for NoDirect {}

impl Injector for NoDirect {
    fn open_direct(&self) -> Option<i32> {
        self.0.load(Ordering::Relaxed).then_some(22)
    }
}

#[test]
fn a_file_that_refuses_o_direct_is_read_buffered_and_said_once() {
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    let faults = Arc::new(NoDirect::default());
    let options = FileRailOptions { injector: Some(faults.clone()), ..FileRailOptions::default() };
    let mut rig = Rig::open(directory.path(), options.clone());
    let before = rig.control.info().notes.len();
    faults.0.store(true, Ordering::Relaxed);
    let memory = Memory::new(1, 4096);
    for _ in 0..3 {
        let target = rig.connect("f");
        rig.check(&memory, Read::new(target, 4096, 4096));
    }
    if rig.link.stats().backend.ends_with("O_DIRECT") {
        assert_eq!(rig.control.info().notes.len(), before + 1, "{:?}", rig.control.info().notes);
    }
    // And a rail that is opened now is a buffered one from the start.
    let rig = Rig::open(directory.path(), options);
    assert!(rig.link.stats().backend.ends_with("buffered (O_DIRECT: EINVAL)"));
    assert_eq!(rig.link.limits().alignment.offset_bytes, 1);
}
