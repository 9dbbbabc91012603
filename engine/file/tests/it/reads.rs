//! Reads give what pread(2) gives: each backend, each kind of file system, any depth.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use railring_dma::{Loan, Part};
use railring_file::{Backend, DirectIo, FileRailOptions};
use railring_transport::{Link, Outcome, RailControl, Refused, WorkRequest, WrId};
use sq_cq::Status;

use crate::common::{Memory, Read, Rig, bytes_at, directory_in, disk_directory, write_file};

const FILE_BYTES: usize = 300_000;

fn options(backend: Backend, direct: DirectIo) -> FileRailOptions {
    FileRailOptions { queue_depth: 32, backend, direct, ..FileRailOptions::default() }
}

/// Every way a rail can read.
fn ways() -> Vec<FileRailOptions> {
    let mut ways = Vec::new();
    for backend in [Backend::Auto, Backend::Workers] {
        for direct in [DirectIo::Try, DirectIo::Never] {
            ways.push(options(backend, direct));
        }
    }
    ways
}

/// A directory on each kind of file system there is here.
struct Place {
    name: &'static str,
    path: PathBuf,
    _temp: Option<tempfile::TempDir>,
    _mount: Option<Mount>,
}

/// A ramfs, unmounted at the end.
struct Mount(tempfile::TempDir);

impl Mount {
    fn ramfs() -> Result<Mount, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("mounting ramfs needs root".to_owned());
        }
        let at = tempfile::tempdir().map_err(|error| error.to_string())?;
        let output = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(at.path()).output();
        match output {
            Ok(output) if output.status.success() => Ok(Mount(at)),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a ring may let go of its files a moment after its rail.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn places(test: &str) -> Vec<Place> {
    let disk = disk_directory();
    let path = disk.path().to_owned();
    let mut places = vec![Place { name: "disk", path, _temp: Some(disk), _mount: None }];
    match directory_in("/dev/shm") {
        Ok(temp) => {
            let path = temp.path().to_owned();
            places.push(Place { name: "tmpfs", path, _temp: Some(temp), _mount: None });
        }
        Err(why) => println!("SKIP {test} on tmpfs: {why}"),
    }
    match Mount::ramfs() {
        Ok(mount) => {
            let path = mount.0.path().to_owned();
            places.push(Place { name: "ramfs", path, _temp: None, _mount: Some(mount) });
        }
        Err(why) => println!("SKIP {test} on ramfs: {why}"),
    }
    places
}

#[test]
fn odd_offsets_lengths_and_addresses_equal_pread() {
    for place in places("odd_offsets_lengths_and_addresses_equal_pread") {
        write_file(&place.path, "f", FILE_BYTES);
        for way in ways() {
            let mut rig = Rig::open(&place.path, way);
            let memory = Memory::new(2, 64 << 10);
            rig.control.register(&memory.region).expect("it falls back");
            let target = rig.connect("f");
            let align = rig.link.limits().alignment;
            let backend = rig.link.stats().backend;
            println!("{}: {backend}, {align:?}", place.name);
            assert_eq!(backend.ends_with("O_DIRECT"), align.offset_bytes > 1, "{backend}");
            let odd = [0, 1, 511, 512, 513, 4095, 4096, 4097];
            for (offset, bytes) in odd.iter().flat_map(|a| odd.map(|b| (*a as u64, b))) {
                for skip in [0, 1, 8, 512] {
                    let aligned = offset % u64::from(align.offset_bytes) == 0
                        && bytes % align.length_bytes as usize == 0
                        && skip % align.memory_bytes as usize == 0;
                    let read = Read { skip, ..Read::new(target, offset, bytes) };
                    if aligned {
                        rig.check(&memory, read);
                    } else {
                        refused_as_misaligned(&mut rig, &memory, read);
                    }
                }
            }
        }
    }
}

fn refused_as_misaligned(rig: &mut Rig, memory: &Memory, read: Read) {
    let (rest, part, mut loan) = memory.part(read.skip, read.bytes);
    let Read { target, offset, bytes_min, .. } = read;
    let wr = WrId { slot: 0, generation: 1 };
    let request = WorkRequest { wr, target, offset, bytes_min, part };
    let Err(Refused::Failed { request, status }) = rig.link.queue(request) else {
        panic!("{read:?} was not refused");
    };
    assert_eq!(status, Status::INVALID_ARGUMENT);
    repay(&mut loan, request.part, rest);
    drop(loan.settle().expect("everything came back"));
}

fn repay(loan: &mut Loan, part: Part, rest: Vec<Part>) {
    for part in rest.into_iter().chain([part]) {
        loan.repay(part).expect("it is the loan's");
    }
}

#[test]
fn the_end_of_the_file_is_told_from_a_short_read() {
    // Case: a stripe of 4,096 whose file has 4,864 bytes.
    let directory = disk_directory();
    write_file(directory.path(), "f", 4864);
    for way in ways() {
        let mut rig = Rig::open(directory.path(), way);
        let target = rig.connect("f");
        let memory = Memory::new(1, 8192);
        let last = Read { bytes_min: 768, ..Read::new(target, 4096, 4096) };
        let (outcome, bytes) = rig.read(&memory, last);
        assert_eq!(outcome, Outcome::Done { bytes: 768 });
        assert_eq!(bytes[..768], bytes_at(4096, 768));
        let (outcome, _) = rig.read(&memory, Read { bytes_min: 769, ..last });
        assert_eq!(outcome, Outcome::Failed { status: Status::SHORT_READ, vendor: 768 });
        let (outcome, _) =
            rig.read(&memory, Read { bytes_min: 1, ..Read::new(target, 8192, 4096) });
        assert_eq!(outcome, Outcome::Failed { status: Status::SHORT_READ, vendor: 0 });
        let (outcome, _) =
            rig.read(&memory, Read { bytes_min: 0, ..Read::new(target, 8192, 4096) });
        assert_eq!(outcome, Outcome::Done { bytes: 0 });
        rig.check(&memory, Read::new(target, 0, 4096));
    }
}

#[test]
fn o_direct_is_used_on_a_disk_and_its_constant_is_the_platforms() {
    assert_eq!(rustix::fs::OFlags::DIRECT.bits(), libc::O_DIRECT.unsigned_abs());
    let directory = disk_directory();
    write_file(directory.path(), "f", 8192);
    match railring_file::FileRail::open(directory.path(), options(Backend::Auto, DirectIo::Require))
    {
        Ok((_, link)) => {
            assert!(link.stats().backend.ends_with("O_DIRECT"), "{}", link.stats().backend);
            assert!(link.limits().alignment.offset_bytes >= 512);
        }
        Err(error) => {
            println!("SKIP o_direct: the build directory's file system has none: {error}")
        }
    }
}

#[test]
fn a_file_system_in_memory_is_read_without_o_direct_unless_that_is_required() {
    for place in places("a_file_system_in_memory").into_iter().skip(1) {
        let rig = Rig::open(&place.path, FileRailOptions::default());
        let backend = rig.link.stats().backend;
        assert!(backend.ends_with(&format!("buffered (O_DIRECT: {})", place.name)), "{backend}");
        assert!(rig.control.info().notes.iter().any(|note| note.contains(place.name)));
        let required = options(Backend::Auto, DirectIo::Require);
        let error =
            railring_file::FileRail::open(&place.path, required).expect_err("it is refused");
        assert!(error.to_string().contains(place.name), "{error}");
    }
}

#[test]
fn tmpfs_is_read_without_resubmissions() {
    let Ok(directory) = directory_in("/dev/shm") else {
        return println!("SKIP tmpfs_is_read_without_resubmissions: no /dev/shm");
    };
    write_file(directory.path(), "f", FILE_BYTES);
    let mut rig = Rig::open(directory.path(), FileRailOptions::default());
    let (target, memory) = (rig.connect("f"), Memory::new(1, 4096));
    for offset in 0..1000 {
        rig.check(&memory, Read::new(target, offset, 4096));
    }
    assert_eq!(rig.link.stats().resubmissions, 0);
}

/// One read of the script, in units of the link's alignment.
#[derive(Clone, Copy, Debug)]
struct Step {
    offset: u64,
    bytes: usize,
    slot: usize,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..FILE_BYTES as u64 + 9000, 0usize..40_000, 0usize..32)
        .prop_map(|(offset, bytes, slot)| Step { offset, bytes, slot });
    proptest::collection::vec(step, 1..400)
}

/// Reads all steps, as many at once as there are free slots, and compares with pread.
fn differential(rig: &mut Rig, memory: &Memory, path: &Path, script: &[Step]) {
    let file = std::fs::File::open(path).expect("it is there");
    let target = rig.connect("f");
    let align = rig.link.limits().alignment;
    let (unit, memory_unit) = (u64::from(align.offset_bytes), align.memory_bytes as usize);
    let mut waiting = script.iter();
    let mut flying = Vec::new();
    let mut generation = 0;
    loop {
        while flying.len() < 32 {
            let Some(step) = waiting.next() else { break };
            let offset = step.offset / unit * unit;
            let bytes = step.bytes / unit as usize * unit as usize;
            let (rest, part, loan) = memory.part(step.slot / memory_unit * memory_unit, bytes);
            let taken: Vec<u32> = flying.iter().map(|(wr, ..): &(WrId, _, _, _)| wr.slot).collect();
            let slot = (0..32).find(|slot| !taken.contains(slot)).expect("32 slots");
            generation += 1;
            let wr = WrId { slot, generation };
            rig.queue(WorkRequest { wr, target, offset, bytes_min: 0, part });
            flying.push((wr, offset, rest, loan));
        }
        if flying.is_empty() {
            break;
        }
        let completion = rig.wait(1).pop().expect("one came");
        let index = flying.iter().position(|(wr, ..)| *wr == completion.wr).expect("it was asked");
        let (_, offset, rest, mut loan) = flying.swap_remove(index);
        let mut expected = vec![0; completion.part.len()];
        let there = file.read_at(&mut expected, offset).expect("it is readable");
        assert_eq!(completion.outcome, Outcome::Done { bytes: there as u64 });
        assert!(
            completion.part.as_slice()[..there] == expected[..there],
            "wrong bytes at {offset}"
        );
        repay(&mut loan, completion.part, rest);
        drop(loan.settle().expect("everything came back"));
    }
    rig.control.disconnect(target);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 6,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn thousands_of_reads_at_depth_equal_pread(script in steps(), register in any::<bool>()) {
        let mut directories = vec![disk_directory()];
        directories.extend(directory_in("/dev/shm").ok());
        for directory in directories {
            let path = write_file(directory.path(), "f", FILE_BYTES);
            for way in ways() {
                let mut rig = Rig::open(directory.path(), way);
                let memory = Memory::new(32, 64 << 10);
                if register {
                    rig.control.register(&memory.region).expect("it falls back");
                }
                differential(&mut rig, &memory, &path, &script);
                rig.control.unregister(memory.region.id());
                differential(&mut rig, &memory, &path, &script[..script.len() / 10]);
            }
        }
    }
}
