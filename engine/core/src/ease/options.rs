//! What a blocking read can be asked for, and why it may fail.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use railring_catalog::Placement;
use railring_dma::RegionError;
use railring_transport::RegisterError;
use sq_cq::{Cqe, Status};

use crate::cancel::CancelToken;
use crate::ease::PublishGate;
use crate::push::PushError;
use crate::ring::{Completion, WaitError};

/// Who may cancel a blocking read.
#[derive(Clone, Copy, Debug, Default)]
pub enum CancelledBy<'a> {
    /// Nobody.
    #[default]
    Nobody,
    /// A token, alone or with others. A cancel that comes while the bytes are being copied is late,
    /// and is not told so.
    Token(&'a CancelToken),
    /// A gate of this read's own, whose canceller learns who was first.
    Gate(&'a PublishGate),
}

/// Whether bytes are checked before they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// Every byte, against the placement's checksums; a placement without any is refused.
    #[default]
    Required,
    /// None.
    Skipped,
}

/// Looks an object up again: its placement as it is now, or nothing if it is gone.
pub type Recheck<'a> =
    &'a mut dyn FnMut() -> Result<Option<Placement>, Box<dyn Error + Send + Sync>>;

/// How a blocking read is made. `ReadOptions::default()`: no timeout, verified, not rechecked.
#[derive(Default)]
pub struct ReadOptions<'a> {
    /// How long it may take in all, the recheck included.
    pub timeout: Option<Duration>,
    /// Who may cancel it.
    pub cancelled_by: CancelledBy<'a>,
    /// Whether bytes are checked.
    pub verification: Verification,
    /// Called after everything verified and before anything is published: a placement that is not
    /// the one that was read fails the read as [`ReadIntoError::VersionChanged`].
    pub recheck: Option<Recheck<'a>>,
}

impl fmt::Debug for ReadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOptions")
            .field("timeout", &self.timeout)
            .field("cancelled_by", &self.cancelled_by)
            .field("verification", &self.verification)
            .field("recheck", &self.recheck.is_some())
            .finish()
    }
}

/// The first stripe of a read that finally failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeFailure {
    /// Why.
    pub status: Status,
    /// Which stripe.
    pub stripe: u16,
    /// The rail of the last attempt, if there was one.
    pub rail: Option<u8>,
    /// How many attempts were made.
    pub attempts: u8,
    /// After a checksum mismatch, the checksum of what came.
    pub checksum: u64,
}

impl StripeFailure {
    pub(crate) fn of(cqe: &Cqe) -> Self {
        StripeFailure {
            status: cqe.status(),
            stripe: cqe.stripe(),
            rail: cqe.rail(),
            attempts: cqe.attempts(),
            checksum: cqe.checksum(),
        }
    }
}

/// Why a blocking read failed. The memory of [`read_into`](crate::BlockingReader::read_into) is as
/// it was before; that of [`read_into_direct`](crate::BlockingReader::read_into_direct) is
/// unspecified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadIntoError {
    /// It was refused before any I/O.
    #[error(transparent)]
    Refused(#[from] PushError),
    /// The range is larger than the memory that its bytes are verified in.
    #[error(
        "a range of {bytes} B is over the limit of {limit} B (read_bytes_max of the reader); make \
         a reader with more, read less, or use read_into_direct"
    )]
    TooLarge {
        /// Bytes of the range.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// All of the reader's memory is impounded: earlier reads ended as stuck.
    #[error(
        "all {slots} buffers of the reader are impounded by stuck reads; wait until the rail lets \
         go of them, or make another reader"
    )]
    NoMemory {
        /// Buffers there are.
        slots: usize,
    },
    /// Verification was asked for and the placement has no checksums.
    #[error("the placement has no checksums to verify by; skip verification, or put it with some")]
    NothingToVerifyBy,
    /// A stripe failed.
    #[error("stripe {} failed after {} attempts: {}", .0.stripe, .0.attempts, .0.status)]
    Failed(StripeFailure),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// It was not done in time.
    #[error("timed out")]
    TimedOut,
    /// The object is not any more what was read: look it up again.
    #[error("the object changed while generation {read} was read; look it up again")]
    VersionChanged {
        /// The generation that was read.
        read: u64,
        /// The generation there is now, if there is one.
        now: Option<u64>,
    },
    /// The object could not be looked up again.
    #[error("cannot look the object up again: {0}")]
    Recheck(#[source] Box<dyn Error + Send + Sync>),
    /// The gate has decided about another read already.
    #[error("the gate was used for an earlier read; make one per read")]
    GateSpent,
    /// The caller's memory could not be made a region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A rail could not register the caller's memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Nothing can come any more.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

impl ReadIntoError {
    /// What a CQE says against its read, if it does.
    #[must_use]
    pub fn of(completion: &Completion) -> Option<Self> {
        let status = match completion.ended() {
            Some(ended) if completion.status().is_ok() => ended,
            _ => completion.status(),
        };
        match status {
            Status::OK => None,
            Status::CANCELLED => Some(ReadIntoError::Cancelled),
            Status::TIMED_OUT => Some(ReadIntoError::TimedOut),
            status => {
                let failure = StripeFailure { status, ..StripeFailure::of(completion) };
                Some(ReadIntoError::Failed(failure))
            }
        }
    }

    /// What a ring would have said: the stripe's status, `CANCELLED`, `TIMED_OUT`,
    /// `VERSION_CHANGED`; `None` for what was refused before any I/O.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            ReadIntoError::Failed(failure) => Some(failure.status),
            ReadIntoError::Cancelled => Some(Status::CANCELLED),
            ReadIntoError::TimedOut => Some(Status::TIMED_OUT),
            ReadIntoError::VersionChanged { .. } => Some(Status::VERSION_CHANGED),
            ReadIntoError::Wait(_) => Some(Status::ENGINE_FAILED),
            _ => None,
        }
    }
}
