//! One rail of a transport, memory, and a source with known bytes: what behaviours of links act on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use railring_dma::{
    HugePages, Lease, Loan, Part, Pool, PoolOptions, Region, RegionConfig, Regions,
};
use railring_transport::{
    Alignment, Completion, Link, Nanos, RailControl, Refused, SourceRef, TargetId, WorkRequest,
    WrId,
};

use super::{Time, Transport};

/// A behaviour that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Virtual time begins here, and the clock's is counted from here.
const START: Nanos = Nanos(1_000_000_000);
/// Bytes of a slot of the memory.
const SLOT_BYTES: usize = 1 << 20;
const SLOTS: usize = 24;
/// What memory holds before something is read into it.
const SENTINEL: u8 = 0xa5;
/// Bytes of the source: not aligned to anything.
pub(crate) const SOURCE_BYTES: usize = (3 << 20) + 5 * 512 + 77;
pub(crate) const NAME: &str = "object";

/// The byte at `offset` of a source: no period that a block size divides.
fn byte_at(offset: usize) -> u8 {
    ((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// What a rail was given for one request, to be put together again when it comes back.
#[derive(Debug)]
pub struct Kept {
    pub(crate) loan: Loan,
    pub(crate) around: Vec<Part>,
}

/// The slot of a request that is over, and where its part is in it.
pub(crate) struct Landed {
    pub(crate) lease: Lease,
    pub(crate) at: usize,
}

/// A rail and what belongs to it.
pub struct Rig<T: Transport> {
    /// The peers.
    pub transport: T,
    pub(crate) control: Arc<dyn RailControl>,
    pub(crate) link: T::Link,
    pub(crate) regions: Regions,
    pub(crate) region: Region,
    pub(crate) pool: Pool,
    pub(crate) handle: String,
    pub(crate) target: TargetId,
    pub(crate) source: Vec<u8>,
    pub(crate) now: Nanos,
    begun: Instant,
}

impl<T: Transport> std::fmt::Debug for Rig<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("link", &self.link).finish_non_exhaustive()
    }
}

impl<T: Transport> Rig<T> {
    /// A rail with room for at most `depth` requests, memory registered, the source connected.
    pub(crate) fn new(mut transport: T, depth: u32) -> Self {
        let source: Vec<u8> = (0..SOURCE_BYTES).map(byte_at).collect();
        let handle = transport.put(0, NAME, &source);
        let (control, mut link) = transport.rail(0, depth);
        link.start();
        let regions = Regions::new(4);
        let mut config = RegionConfig::new(SLOTS * SLOT_BYTES);
        config.huge_pages = HugePages::Never;
        let region = regions.allocate(config).expect("memory for a test");
        control.register(&region).expect("so much can be registered");
        let pool = Pool::new(&region, SLOT_BYTES, PoolOptions::default()).expect("it fits");
        let endpoint = transport.endpoint(0);
        let target = control
            .connect(SourceRef { endpoint: &endpoint, handle: &handle, generation: 1 })
            .expect("it was just put there");
        let (now, begun) = (START, Instant::now());
        Rig { transport, control, link, regions, region, pool, handle, target, source, now, begun }
    }

    pub(crate) fn alignment(&self) -> Alignment {
        self.link.limits().alignment
    }

    /// The smallest length, and the smallest step of an offset, that the link takes.
    pub(crate) fn grain(&self) -> usize {
        let Alignment { offset_bytes, length_bytes, memory_bytes } = self.alignment();
        offset_bytes.max(length_bytes).max(memory_bytes) as usize
    }

    /// Requests that it takes at once, as far as there is memory.
    pub(crate) fn room(&self) -> u32 {
        self.link.limits().outstanding_wrs_max.min(SLOTS as u32)
    }

    pub(crate) fn connect(&self) -> TargetId {
        let (endpoint, handle) = (self.transport.endpoint(0), &*self.handle);
        let source = SourceRef { endpoint: &endpoint, handle, generation: 1 };
        self.control.connect(source).expect("it is there")
    }

    /// A request for `bytes` at `offset`, `skip` bytes into a slot that is full of sentinels.
    pub(crate) fn request(
        &self,
        wr: WrId,
        offset: usize,
        bytes: usize,
        skip: usize,
    ) -> (WorkRequest, Kept) {
        let mut lease = self.pool.take().expect("there is a slot for each request of a test");
        lease.as_mut_slice().fill(SENTINEL);
        let (loan, whole) = lease.lend();
        let (before, rest) = whole.split_at(skip);
        let (part, behind) = rest.split_at(bytes);
        let (target, offset) = (self.target, offset as u64);
        let request = WorkRequest { wr, target, offset, bytes_min: bytes as u64, part };
        (request, Kept { loan, around: vec![before, behind] })
    }

    /// Queues a request that there is room for, once the connection is back if it was torn down.
    pub(crate) fn queue(&mut self, mut request: WorkRequest) {
        let begun = Instant::now();
        loop {
            match self.link.queue(request) {
                Ok(()) => return,
                Err(Refused::Failed { request: back, status })
                    if status.is_retryable() && begun.elapsed() < PATIENCE =>
                {
                    request = back;
                    self.commit();
                    self.pass_time();
                }
                Err(refused) => panic!("not queued: {refused:?}"),
            }
        }
    }

    pub(crate) fn commit(&mut self) {
        self.link.commit(self.now);
    }

    /// What has completed by now, at most so many.
    pub(crate) fn reap(&mut self, budget: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        let mut sink = |completion| completions.push(completion);
        let count = self.link.reap(self.now, budget, &mut sink);
        assert_eq!(count, completions.len(), "reap miscounts");
        completions
    }

    /// Lets time pass: to the next event, or a little.
    pub(crate) fn pass_time(&mut self) {
        self.now = match T::TIME {
            Time::Virtual => {
                let next = self.link.next_event().unwrap_or(self.now.after(1_000));
                next.max(self.now.after(1))
            }
            Time::Real => {
                std::thread::sleep(Duration::from_micros(20));
                let elapsed = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                START.after(elapsed)
            }
        };
    }

    /// Lets so much time pass that everything in flight completes.
    pub(crate) fn let_finish(&mut self) {
        match T::TIME {
            Time::Virtual => self.now = self.now.after(1_000_000_000),
            Time::Real => std::thread::sleep(Duration::from_millis(20)),
        }
    }

    /// Commits and reaps until `count` requests came back.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        let begun = Instant::now();
        while completions.len() < count {
            self.commit();
            let came = self.reap(count - completions.len());
            if came.is_empty() {
                assert!(begun.elapsed() < PATIENCE, "{} of {count} came", completions.len());
                self.pass_time();
            }
            completions.extend(came);
        }
        completions
    }

    /// Lets time pass in which nothing may come back.
    pub(crate) fn expect_quiet(&mut self) {
        for _ in 0..50 {
            self.commit();
            let came = self.reap(8);
            assert!(came.is_empty(), "nothing is in flight, and {came:?} came back");
            self.pass_time();
        }
    }

    /// Puts a part back to its loan, which proves that it is the request's own; what its slot then
    /// holds, and where the part is in it.
    pub(crate) fn repay(&self, kept: Kept, part: Part) -> Landed {
        let start = part.address().as_ptr() as usize;
        let Kept { mut loan, around } = kept;
        loan.repay(part).expect("the part is of the request's own memory");
        for part in around {
            loan.repay(part).expect("it was kept");
        }
        let lease = loan.settle().expect("everything is back");
        let at = start - lease.address().as_ptr() as usize;
        Landed { lease, at }
    }

    /// Whether a slot holds `bytes` of the source from `offset` on at `at`, and nothing else.
    pub(crate) fn is_exact(&self, slot: &[u8], at: usize, offset: usize, bytes: usize) -> bool {
        let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == SENTINEL);
        slot[at..at + bytes] == self.source[offset..offset + bytes]
            && untouched(&slot[..at])
            && untouched(&slot[at + bytes..])
    }
}

/// The first use of a slot of the core's table.
pub(crate) fn wr(slot: u32) -> WrId {
    WrId { slot, generation: 1 }
}
