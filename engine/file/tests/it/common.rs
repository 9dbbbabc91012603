//! What the tests share: files with known bytes, memory, and a driver that reads through a link.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use railring_dma::{Loan, Part, Pool, PoolOptions, Region, RegionConfig, Regions};
use railring_file::{FileControl, FileLink, FileRail, FileRailOptions};
use railring_transport::{
    Completion, Link, Nanos, Outcome, RailControl, Refused, SourceRef, TargetId, WorkRequest, WrId,
};
use sq_cq::Status;

/// A test that takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The byte at `offset` of each test file: no period that a block size divides.
pub(crate) fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The bytes of a test file from `offset` on.
pub(crate) fn bytes_at(offset: u64, bytes: usize) -> Vec<u8> {
    (offset..offset + bytes as u64).map(byte_at).collect()
}

/// A temporary directory under `base`, or the reason why there is none.
pub(crate) fn directory_in(base: &str) -> Result<tempfile::TempDir, String> {
    tempfile::Builder::new()
        .prefix("railring-file-")
        .tempdir_in(base)
        .map_err(|error| format!("{base} is not writable: {error}"))
}

/// A directory on a disk: below the build's target directory, which is not a memory file system as
/// /tmp may be.
pub(crate) fn disk_directory() -> tempfile::TempDir {
    directory_in(env!("CARGO_TARGET_TMPDIR")).expect("the target directory is writable")
}

/// Writes a test file and gives its path.
pub(crate) fn write_file(directory: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, bytes_at(0, bytes)).expect("the directory is writable");
    path
}

/// A pool of its own region, and the registry.
pub(crate) struct Memory {
    pub(crate) region: Region,
    pub(crate) pool: Pool,
    pub(crate) regions: Regions,
}

impl Memory {
    pub(crate) fn new(slots: usize, slot_bytes: usize) -> Memory {
        let regions = Regions::new(8);
        let region = regions
            .allocate(RegionConfig::new(slots * slot_bytes))
            .expect("there is memory for a test");
        let pool = Pool::new(&region, slot_bytes, PoolOptions::default())
            .expect("the region holds the slots");
        Memory { region, pool, regions }
    }

    /// A part of `bytes` that starts `skip` bytes into a slot, and the loan it comes back to.
    pub(crate) fn part(&self, skip: usize, bytes: usize) -> (Vec<Part>, Part, Loan) {
        let lease = self.pool.take().expect("the pool has as many slots as the test uses");
        let (loan, whole) = lease.lend();
        let (head, rest) = whole.split_at(skip);
        let (part, tail) = rest.split_at(bytes);
        (vec![head, tail], part, loan)
    }
}

/// A rail with one poller: the test.
pub(crate) struct Rig {
    pub(crate) control: Arc<FileControl>,
    pub(crate) link: FileLink,
    pub(crate) endpoint: String,
}

impl Rig {
    pub(crate) fn open(directory: &Path, options: FileRailOptions) -> Rig {
        let (control, mut link) = FileRail::open(directory, options).expect("the rail opens");
        link.start();
        let endpoint = directory.to_str().expect("test directories have plain names").to_owned();
        Rig { control, link, endpoint }
    }

    pub(crate) fn connect(&self, handle: &str) -> TargetId {
        self.control
            .connect(SourceRef { endpoint: &self.endpoint, handle, generation: 1 })
            .expect("the file is there")
    }

    pub(crate) fn queue(&mut self, request: WorkRequest) {
        if let Err(refused) = self.link.queue(request) {
            panic!("not queued: {refused:?}");
        }
    }

    /// Reaps until `count` completions came, committing before each look.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        let start = Instant::now();
        while completions.len() < count {
            self.link.commit(Nanos(0));
            let want = count - completions.len();
            self.link.reap(Nanos(0), want, &mut |completion| completions.push(completion));
            assert!(start.elapsed() < PATIENCE, "{} of {count} came", completions.len());
            std::thread::yield_now();
        }
        completions
    }

    /// One read from start to end.
    pub(crate) fn read(&mut self, memory: &Memory, read: Read) -> (Outcome, Vec<u8>) {
        let (rest, part, mut loan) = memory.part(read.skip, read.bytes);
        let wr = WrId { slot: 0, generation: 1 };
        let Read { target, offset, bytes_min, .. } = read;
        self.queue(WorkRequest { wr, target, offset, bytes_min, part });
        let completion = self.wait(1).pop().expect("one came");
        assert_eq!(completion.wr, wr);
        let bytes = completion.part.as_slice().to_vec();
        loan.repay(completion.part).expect("it is the loan's");
        for part in rest {
            loan.repay(part).expect("it is the loan's");
        }
        drop(loan.settle().expect("everything came back"));
        (completion.outcome, bytes)
    }

    /// Reads and compares with what the test file has there.
    pub(crate) fn check(&mut self, memory: &Memory, read: Read) {
        let (outcome, bytes) = self.read(memory, read);
        assert_eq!(outcome, Outcome::Done { bytes: read.bytes as u64 }, "{read:?}");
        assert!(bytes == bytes_at(read.offset, read.bytes), "wrong bytes of {read:?}");
    }
}

/// One read of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) target: TargetId,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) bytes_min: u64,
    /// How far into its slot the part starts.
    pub(crate) skip: usize,
}

impl Read {
    /// All of `bytes` at `offset`, into the start of a slot.
    pub(crate) fn new(target: TargetId, offset: u64, bytes: usize) -> Read {
        Read { target, offset, bytes, bytes_min: bytes as u64, skip: 0 }
    }
}

/// The status of a failure.
pub(crate) fn failure(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Failed { status, .. } => status,
        other => panic!("expected a failure, got {other:?}"),
    }
}

/// The request of a refusal for want of room.
pub(crate) fn full(result: Result<(), Refused>) -> WorkRequest {
    match result {
        Err(Refused::Full(request)) => request,
        other => panic!("expected Full, got {other:?}"),
    }
}
