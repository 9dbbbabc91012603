//! One type for the links of all transports, so that one engine can mix them.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use railring_file::FileLink;
use railring_sim::NullLink;
use railring_transport::{
    Completion, Link, LinkLimits, LinkStats, Nanos, Refused, WorkRequest, WrId,
};

/// A link of any transport that is built in. The match costs a predictable branch per call.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyLink {
    /// A local directory.
    File(Box<FileLink>),
    /// Completes at once and moves nothing.
    Null(NullLink),
    /// An RDMA port.
    #[cfg(feature = "verbs")]
    Verbs(Box<railring_verbs::VerbsLink>),
}

macro_rules! each {
    ($self:ident, $link:ident => $call:expr) => {
        match $self {
            AnyLink::File($link) => $call,
            AnyLink::Null($link) => $call,
            #[cfg(feature = "verbs")]
            AnyLink::Verbs($link) => $call,
        }
    };
}

impl Link for AnyLink {
    fn limits(&self) -> LinkLimits {
        each!(self, link => link.limits())
    }

    fn start(&mut self) {
        each!(self, link => link.start());
    }

    #[inline]
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        each!(self, link => link.queue(request))
    }

    #[inline]
    fn commit(&mut self, now: Nanos) {
        each!(self, link => link.commit(now));
    }

    fn has_uncommitted(&self) -> bool {
        each!(self, link => link.has_uncommitted())
    }

    #[inline]
    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        each!(self, link => link.reap(now, budget, sink))
    }

    fn cancel(&mut self, wr: WrId, now: Nanos) {
        each!(self, link => link.cancel(wr, now));
    }

    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        each!(self, link => link.quiesce(wr, now));
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, link => link.event_fd())
    }

    fn arm(&mut self) -> bool {
        each!(self, link => link.arm())
    }

    fn next_event(&self) -> Option<Nanos> {
        each!(self, link => link.next_event())
    }

    fn sleep(&mut self, bell: BorrowedFd<'_>, at_most: Option<Duration>) -> Option<()> {
        each!(self, link => link.sleep(bell, at_most))
    }

    fn can_sleep(&self) -> bool {
        each!(self, link => link.can_sleep())
    }

    fn stats(&self) -> LinkStats {
        each!(self, link => link.stats())
    }
}
