//! A caller of one link: memory to read into, and a loop that drives virtual time.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;

use railring_dma::{Lease, Loan, Part, Region, RegionConfig, Regions};
use railring_sim::{SimControl, SimLink, SimRailConfig, SimWorld, SourceContent};
use railring_transport::{
    Completion, Link, Nanos, Outcome, RailControl, Refused, SourceRef, TargetId, WorkRequest, WrId,
};

/// The only endpoint and handle that these tests need.
pub(crate) const ENDPOINT: &str = "server0";
/// See [`ENDPOINT`].
pub(crate) const HANDLE: &str = "object";
/// The generation that is stored.
pub(crate) const GENERATION: u64 = 1;

/// Bytes that are right at no other offset.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(0xBEEF);
    let mut content = vec![0; bytes];
    rng.fill(&mut content);
    content
}

/// A request that came back.
#[derive(Debug)]
pub(crate) struct Ended {
    /// When it was reaped.
    pub(crate) at: Nanos,
    /// Which.
    pub(crate) wr: WrId,
    /// How.
    pub(crate) outcome: Outcome,
    /// Its memory.
    pub(crate) part: Part,
}

impl Ended {
    /// The bytes that came, if it is done.
    pub(crate) fn done(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Done { bytes } => Some(bytes),
            _ => None,
        }
    }
}

/// One rail, one source of `bytes`, and memory of the same size.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) world: SimWorld,
    pub(crate) regions: Regions,
    pub(crate) region: Region,
    pub(crate) control: Arc<SimControl>,
    pub(crate) link: SimLink,
    pub(crate) target: TargetId,
    pub(crate) content: Vec<u8>,
    pub(crate) loan: Loan,
    pub(crate) rest: Option<Part>,
    pub(crate) now: Nanos,
}

impl Rig {
    /// A world of `seed` with one rail, connected and registered.
    pub(crate) fn new(seed: u64, bytes: usize, config: SimRailConfig) -> Rig {
        let content = pattern(bytes);
        let mut world = SimWorld::new(seed);
        world.put(ENDPOINT, HANDLE, SourceContent::new(GENERATION, content.clone()));
        let (control, link) = world.add_rail(config).expect("a valid rail");
        let regions = Regions::new(4);
        world.late_writes_into(&regions);
        let region = regions.allocate(RegionConfig::new(bytes)).expect("memory for a test");
        control.register(&region).expect("within the limits");
        let mut lease = Lease::whole(&region).expect("nothing else holds the region");
        lease.as_mut_slice().fill(0xEE);
        let (loan, part) = lease.lend();
        let source = SourceRef { endpoint: ENDPOINT, handle: HANDLE, generation: GENERATION };
        let target = control.connect(source).expect("stored above");
        let rest = Some(part);
        let now = Nanos(0);
        Rig { world, regions, region, control, link, target, content, loan, rest, now }
    }

    /// The next `bytes` of the memory, as a request for the same bytes of the source.
    pub(crate) fn request(&mut self, slot: u32, bytes: usize) -> WorkRequest {
        let rest = self.rest.take().expect("memory is left");
        let offset = (self.content.len() - rest.len()) as u64;
        let (part, rest) = rest.split_at(bytes);
        self.rest = Some(rest);
        let wr = WrId { slot, generation: 1 };
        WorkRequest { wr, target: self.target, offset, bytes_min: part.len() as u64, part }
    }

    /// Queues `count` requests of `bytes`, as ids from 0, and rings the doorbell.
    pub(crate) fn post(&mut self, count: u32, bytes: usize) {
        for slot in 0..count {
            let request = self.request(slot, bytes);
            self.link.queue(request).expect("there is room");
        }
        self.link.commit(self.now);
    }

    /// What is done by now.
    pub(crate) fn reap(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        let at = self.now;
        let mut sink = |Completion { wr, part, outcome }: Completion| {
            ended.push(Ended { at, wr, outcome, part });
        };
        while self.link.reap(at, 3, &mut sink) > 0 {}
        ended
    }

    /// Lets time pass until `until` or until nothing more will happen, committing and reaping at
    /// each event.
    pub(crate) fn run_until(&mut self, until: Nanos) -> Vec<Ended> {
        let mut ended = self.reap();
        while let Some(next) = self.link.next_event().filter(|next| *next <= until) {
            self.now = self.world.clock().advance_to(next);
            self.link.commit(self.now);
            ended.extend(self.reap());
        }
        if until < Nanos::NEVER {
            self.now = self.world.clock().advance_to(until);
            ended.extend(self.reap());
        }
        ended
    }

    /// Lets time pass until nothing more will happen.
    pub(crate) fn run(&mut self) -> Vec<Ended> {
        self.run_until(Nanos::NEVER)
    }

    /// Whether `part` holds the bytes of the source that belong there.
    pub(crate) fn is_exact(&self, part: &Part) -> bool {
        part.as_slice() == self.expected(part)
    }

    /// The bytes of the source that belong into `part`.
    pub(crate) fn expected(&self, part: &Part) -> &[u8] {
        let start = part.address().addr().get() - self.region.base().addr().get();
        &self.content[start..start + part.len()]
    }
}

/// The request of a refusal.
pub(crate) fn refused(result: Result<(), Refused>) -> (WorkRequest, Option<sq_cq::Status>) {
    match result.expect_err("refused") {
        Refused::Full(request) => (request, None),
        Refused::Failed { request, status } => (request, Some(status)),
    }
}
