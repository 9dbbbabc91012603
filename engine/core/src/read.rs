//! The typed read: what to read, into which memory, under which conditions. It owns its lease.

use std::ops::Range;
use std::time::Duration;

use railring_dma::{Lease, Loan};
use railring_transport::Nanos;
use sq_cq::SqeFlags;

use crate::cancel::CancelToken;
use crate::memory::PartList;
use crate::object::Object;

/// Most leases of one scattered read.
pub const SCATTER_LEASES_MAX: usize = 64;

/// Several leases that one read fills in order. Makes its lists once; reading into it again with
/// the same number of leases allocates nothing.
#[derive(Debug, Default)]
pub struct Scatter {
    pub(crate) leases: Vec<Lease>,
    pub(crate) loans: Vec<Loan>,
    pub(crate) parts: Box<PartList>,
}

impl Scatter {
    /// Leases to fill, the first with the first bytes.
    #[must_use]
    pub fn new(leases: impl IntoIterator<Item = Lease>) -> Self {
        let leases: Vec<Lease> = leases.into_iter().collect();
        let (loans, parts) = (Vec::with_capacity(leases.len()), Vec::with_capacity(leases.len()));
        Scatter { leases, loans, parts: Box::new(PartList { parts, trace: None }) }
    }

    /// Bytes of all leases.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.leases.iter().map(|lease| lease.len() as u64).sum()
    }

    /// The leases, in order. Fewer than were given if the memory of one is impounded.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The leases, in order.
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }
}

/// Where a read lands.
#[derive(Debug)]
pub enum Destination {
    /// One lease; it may be longer than the read.
    Lease(Lease),
    /// Several leases, filled in order. For byte ranges only.
    Scatter(Scatter),
}

/// When a read is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    Never,
    At(Nanos),
    /// Nanoseconds after the push.
    After(u64),
}

impl Deadline {
    /// The point in time for the ring, 0 for never.
    #[inline]
    pub(crate) fn at(self, now: Nanos) -> u64 {
        match self {
            Deadline::Never => 0,
            Deadline::At(at) => at.0.max(1),
            Deadline::After(nanoseconds) => now.after(nanoseconds).0.max(1),
        }
    }
}

/// Which bytes of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Range { offset: u64, end: u64 },
    Stripes { first: u32, mask: u64 },
    Nop,
}

/// A read about to be pushed. If the push is refused it comes back, lease and all.
#[derive(Debug)]
#[must_use = "a read does nothing until it is pushed"]
pub struct Read<'o> {
    pub(crate) object: Option<&'o Object>,
    pub(crate) what: What,
    pub(crate) into: Option<Destination>,
    pub(crate) user_data: u64,
    pub(crate) deadline: Deadline,
    pub(crate) flags: SqeFlags,
    pub(crate) failures_max: u16,
    pub(crate) token: Option<CancelToken>,
}

impl<'o> Read<'o> {
    fn of(object: Option<&'o Object>, what: What, into: Option<Destination>) -> Self {
        Read {
            object,
            what,
            into,
            user_data: 0,
            deadline: Deadline::Never,
            flags: SqeFlags::empty(),
            failures_max: 7,
            token: None,
        }
    }

    /// Bytes `range` of `object`, into the start of `lease`.
    pub fn new(object: &'o Object, range: Range<u64>, lease: Lease) -> Self {
        let what = What::Range { offset: range.start, end: range.end };
        Read::of(Some(object), what, Some(Destination::Lease(lease)))
    }

    /// Bytes `range` of `object`, filling the leases of `scatter` in order.
    pub fn scattered(object: &'o Object, range: Range<u64>, scatter: Scatter) -> Self {
        let what = What::Range { offset: range.start, end: range.end };
        Read::of(Some(object), what, Some(Destination::Scatter(scatter)))
    }

    /// The stripes `first + i` for each bit `i` of `mask`. Each lands as far behind the start of
    /// `lease` as it lies behind stripe `first` in the object; what lies between is not touched.
    pub fn stripes(object: &'o Object, first: u32, mask: u64, lease: Lease) -> Self {
        Read::of(Some(object), What::Stripes { first, mask }, Some(Destination::Lease(lease)))
    }

    /// Reads nothing and completes with one CQE.
    pub fn nop() -> Self {
        Read::of(None, What::Nop, None)
    }

    /// The number that comes back in each CQE. Default 0.
    pub fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }

    /// The read ends as `TimedOut` if it is not done so long after its push. Default: never.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        let nanoseconds = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.deadline = Deadline::After(nanoseconds);
        self
    }

    /// The read ends as `TimedOut` if it is not done by this point of the monotonic clock.
    pub fn deadline(mut self, deadline: Nanos) -> Self {
        self.deadline = Deadline::At(deadline);
        self
    }

    /// Does not verify: every CQE's proof is `None`.
    pub fn skip_verify(mut self) -> Self {
        self.flags |= SqeFlags::SKIP_VERIFY;
        self
    }

    /// No CQE for a stripe that succeeded, except the read's last, and at most `failures_max` for
    /// those that failed (the rest is counted in the last). Takes `failures_max` + 1 CQ slots.
    pub fn quiet(mut self, failures_max: u16) -> Self {
        self.flags |= SqeFlags::QUIET;
        self.failures_max = failures_max;
        self
    }

    /// A stripe that finally fails does not stop the others.
    pub fn allow_partial(mut self) -> Self {
        self.flags |= SqeFlags::ALLOW_PARTIAL;
        self
    }

    /// A piece that fails is not tried again.
    pub fn fail_fast(mut self) -> Self {
        self.flags |= SqeFlags::FAIL_FAST;
        self
    }

    /// Writes down where its time goes, for [`Ring::trace`](crate::Ring::trace). The ring must be
    /// made with room for traces (`RingConfig::trace`); such a read takes the general way through
    /// the engine, never the short one of small reads.
    pub fn traced(mut self) -> Self {
        self.flags |= SqeFlags::TRACE;
        self
    }

    /// Can be cancelled by `token`, alone or with others.
    pub fn cancelled_by(mut self, token: &CancelToken) -> Self {
        self.token = Some(token.clone());
        self
    }

    /// The memory, if the read is not to be pushed after all.
    #[must_use]
    pub fn into_destination(self) -> Option<Destination> {
        self.into
    }

    /// The lease, if it has one.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        match self.into {
            Some(Destination::Lease(lease)) => Some(lease),
            _ => None,
        }
    }
}
