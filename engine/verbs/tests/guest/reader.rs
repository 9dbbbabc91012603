//! A rail driven by hand, as a poller does: memory, requests, completions.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use railring_dma::{Loan, Part, Region};
use railring_transport::{
    Completion, Link, Nanos, Outcome, RailControl, Refused, SourceRef, TargetId, WorkRequest, WrId,
};
use railring_verbs::{LocalPort, VerbsControl, VerbsLink, VerbsRail, VerbsRailOptions};

use crate::peer::{byte_at, region};

pub(crate) struct Reader {
    pub(crate) control: Arc<VerbsControl>,
    pub(crate) link: VerbsLink,
    pub(crate) region: Region,
    pub(crate) loan: Loan,
    pub(crate) free: Option<Part>,
    generation: u32,
}

pub(crate) fn now() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = START.get_or_init(Instant::now).elapsed();
    Nanos(u64::try_from(since.as_nanos()).expect("not for ever"))
}

impl Reader {
    /// A rail with `bytes` registered bytes.
    pub(crate) fn new(port: &LocalPort, bytes: usize, options: VerbsRailOptions) -> Reader {
        assert_eq!(options.device, port.device);
        let (control, link) = VerbsRail::open(options).expect("the device is there");
        let (region, pool) = region(bytes, |_| 0);
        control.register(&region).expect("it may be locked");
        let (loan, part) = pool.take().expect("one slot").lend();
        Reader { control, link, region, loan, free: Some(part), generation: 0 }
    }

    pub(crate) fn open(&self, endpoint: &str) -> TargetId {
        let source = SourceRef { endpoint, handle: "a", generation: 1 };
        self.control.connect(source).expect("the peer serves it")
    }

    /// The next `bytes` bytes of the memory.
    pub(crate) fn cut(&mut self, bytes: usize) -> Part {
        let (part, rest) = self.free.take().expect("there is more").split_at(bytes);
        assert_eq!(part.len(), bytes);
        self.free = Some(rest);
        part
    }

    pub(crate) fn request(
        &mut self,
        slot: u32,
        target: TargetId,
        offset: u64,
        part: Part,
    ) -> WorkRequest {
        self.generation += 1;
        let bytes_min = part.len() as u64;
        let wr = WrId { slot, generation: self.generation };
        WorkRequest { wr, target, offset, bytes_min, part }
    }

    /// Queues a read, commits nothing.
    pub(crate) fn queue(&mut self, slot: u32, target: TargetId, offset: u64, part: Part) -> WrId {
        let request = self.request(slot, target, offset, part);
        let wr = request.wr;
        self.link.queue(request).expect("there is room and a connection");
        wr
    }

    /// Reaps until `count` came or `bound` has passed.
    pub(crate) fn reap(&mut self, count: usize, bound: Duration) -> Vec<Completion> {
        let until = Instant::now() + bound;
        let mut came = Vec::new();
        while came.len() < count && Instant::now() < until {
            self.link.reap(now(), 64, &mut |completion| came.push(completion));
            if self.link.has_uncommitted() {
                self.link.commit(now());
            }
            std::thread::yield_now();
        }
        came
    }

    /// One read and its outcome.
    pub(crate) fn read(&mut self, target: TargetId, offset: u64, part: Part) -> Completion {
        let wr = self.queue(0, target, offset, part);
        self.link.commit(now());
        let mut came = self.reap(1, Duration::from_secs(30));
        assert_eq!(came.len(), 1, "nothing came");
        let completion = came.remove(0);
        assert_eq!(completion.wr, wr);
        completion
    }

    /// Reads until it works: after a connection was lost.
    pub(crate) fn read_again(&mut self, target: TargetId, mut part: Part) -> Part {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < until, "{:?}", self.control.info().notes);
            let request = self.request(0, target, 0, part);
            match self.link.queue(request) {
                Ok(()) => {
                    self.link.commit(now());
                    let mut came = self.reap(1, Duration::from_secs(30));
                    let completion = came.pop().expect("it ends");
                    if let Outcome::Done { .. } = completion.outcome {
                        return completion.part;
                    }
                    part = completion.part;
                }
                Err(Refused::Failed { request, .. } | Refused::Full(request)) => {
                    part = request.part;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether the bytes are those that a peer serves from `offset` on.
pub(crate) fn is_right(part: &Part, offset: usize) -> bool {
    part.as_slice().iter().enumerate().all(|(at, byte)| *byte == byte_at(offset + at))
}
