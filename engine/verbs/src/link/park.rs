//! Reads that wait for a connection that was lost: never posted, so they end whenever asked to.
//!
//! A connection that worked is likely to come back within milliseconds, and the reads that it took
//! along when it was torn down did nothing wrong. They wait for the first attempt to reconnect; if
//! that fails they fail.

use railring_dma::Part;
use railring_transport::{Completion, Link, Nanos, Outcome, Refused, WorkRequest, WrId};
use sq_cq::Status;

use super::{NOT_CONNECTED, ROUND_NS, VerbsLink};

/// How long a read may wait for its connection to be made again.
const PARK_NS: u64 = 900_000_000;

/// A read that waits for its connection.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) request: WorkRequest,
    pub(super) since: Nanos,
}

impl VerbsLink {
    /// Posts what waited for a connection that is there again; gives up what waited too long, or
    /// for nothing.
    pub(super) fn unpark(&mut self) {
        self.unpark_at = self.now.after(ROUND_NS);
        let mut at = 0;
        while at < self.parked.len() {
            let parked = self.parked.swap_remove(at);
            if let Some(parked) = self.retry(parked) {
                self.park_again(at, parked);
                at += 1;
            }
        }
        self.commit(self.now);
    }

    /// Puts a read that was taken out of the list back where it was.
    fn park_again(&mut self, at: usize, parked: Parked) {
        self.parked.push(parked);
        let last = self.parked.len() - 1;
        self.parked.swap(at, last);
    }

    /// Pushes a read that waited, or ends it; gives it back if it must go on waiting.
    fn retry(&mut self, parked: Parked) -> Option<Parked> {
        let Parked { request, since } = parked;
        let may_wait = self.now.since(since) < PARK_NS;
        let wr = request.wr;
        let (request, status) = match self.examine(&request) {
            // Its row is written just now.
            Err(NOT_CONNECTED) if may_wait => return Some(Parked { request, since }),
            Err(status) => (request, status),
            Ok((target, bytes)) if self.follow(target.connection as usize) => {
                match self.push(request, target, bytes) {
                    Ok(()) => return None,
                    Err(Refused::Full(request)) => return Some(Parked { request, since }),
                    Err(Refused::Failed { request, status }) => (request, status),
                }
            }
            Ok((target, _)) => match self.refusal(target.connection as usize) {
                Status::OK if may_wait => return Some(Parked { request, since }),
                Status::OK => (request, NOT_CONNECTED),
                status => (request, status),
            },
        };
        self.give_back(wr, request.part, status);
        None
    }

    /// Ends a read that was never posted.
    fn give_back(&mut self, wr: WrId, part: Part, status: Status) {
        self.uses[wr.slot as usize].in_flight = false;
        let outcome = Outcome::Failed { status, vendor: 0 };
        self.ready.push_back(Completion { wr, part, outcome });
    }

    /// Ends a read that waits for its connection, if it does.
    pub(super) fn unpark_one(&mut self, wr: WrId) -> bool {
        let Some(at) = self.parked.iter().position(|parked| parked.request.wr == wr) else {
            return false;
        };
        let Parked { request, .. } = self.parked.swap_remove(at);
        self.give_back(wr, request.part, Status::CANCELLED);
        true
    }
}
