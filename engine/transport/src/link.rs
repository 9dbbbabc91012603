//! The data path of one rail: what is queued, what comes back, and the `Link` trait between.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use railring_dma::Part;
use sq_cq::Status;

/// A point on the monotonic clock, in nanoseconds. All time in the data path comes from the `now`
/// that a turn is given, so that a simulator can run it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The end of time: no deadline.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// This point moved `nanoseconds` later, at most to [`Nanos::NEVER`].
    #[must_use]
    pub const fn after(self, nanoseconds: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanoseconds))
    }

    /// Nanoseconds from `earlier` to this point; 0 if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Identity of a work request in flight on one rail: a slot of the core's table and its
/// generation. Never a pointer, so that a completion of an earlier use of the slot is told apart
/// and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WrId {
    /// Index below [`LinkLimits::outstanding_wrs_max`].
    pub slot: u32,
    /// Which use of that slot.
    pub generation: u32,
}

impl WrId {
    /// The 64 bits a device carries around: generation high, slot low.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        ((self.generation as u64) << 32) | self.slot as u64
    }

    /// The inverse of [`WrId::to_bits`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each half is 32 bits")]
    pub const fn from_bits(bits: u64) -> Self {
        WrId { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl fmt::Debug for WrId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrId({}.{})", self.slot, self.generation)
    }
}

/// A source (a file, a remote memory window, a server's object) that a rail is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetId {
    /// Index into the rail's table of targets.
    pub slot: u32,
    /// Which use of that index.
    pub generation: u32,
}

/// One read that a rail is asked to make: `part.len()` bytes at `offset` of `target`, into `part`.
#[derive(Debug)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub wr: WrId,
    /// Where to read.
    pub target: TargetId,
    /// Byte offset within the target; a multiple of [`Alignment::offset_bytes`].
    pub offset: u64,
    /// A read that ends early (end of file) with at least so many bytes is complete. The rest of
    /// the part is then unspecified.
    pub bytes_min: u64,
    /// Where the bytes land; owned by the link until its completion.
    pub part: Part,
}

/// Why a work request was not queued. It comes back whole.
#[derive(Debug)]
pub enum Refused {
    /// No room now. Not a failure: reap and try again.
    Full(WorkRequest),
    /// This request cannot be made (unknown target, misaligned, connection gone).
    Failed {
        /// The request, part and all.
        request: WorkRequest,
        /// Why.
        status: Status,
    },
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes are in the part.
    Done {
        /// Bytes that landed: at least the request's `bytes_min`.
        bytes: u64,
    },
    /// It failed. Only these fields are defined then; the part's bytes are unspecified.
    Failed {
        /// The cause.
        status: Status,
        /// The device's own code, 0 if it has none.
        vendor: u32,
    },
    /// It was thrown back because another request's quiescence tore the connection down. It did
    /// nothing wrong and may be queued again at no cost.
    Flushed,
}

/// One finished work request. Its part is quiet.
#[derive(Debug)]
pub struct Completion {
    /// Which request.
    pub wr: WrId,
    /// Its memory, which nothing writes any more.
    pub part: Part,
    /// How it ended.
    pub outcome: Outcome,
}

/// What a link's requests must be multiples of, in bytes; each a power of two, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Of `WorkRequest::offset`.
    pub offset_bytes: u32,
    /// Of `WorkRequest::part.len()`.
    pub length_bytes: u32,
    /// Of the part's address.
    pub memory_bytes: u32,
}

impl Alignment {
    /// No restriction.
    pub const NONE: Alignment = Alignment { offset_bytes: 1, length_bytes: 1, memory_bytes: 1 };

    /// The stricter of the two, field by field.
    #[must_use]
    pub fn strictest(self, other: Alignment) -> Alignment {
        Alignment {
            offset_bytes: self.offset_bytes.max(other.offset_bytes),
            length_bytes: self.length_bytes.max(other.length_bytes),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// What the device really granted, which may be less than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Work requests that may be queued or in flight at once. `WrId::slot` stays below it.
    pub outstanding_wrs_max: u32,
    /// Longest part of one request, in bytes.
    pub request_bytes_max: u64,
    /// What requests must be aligned to.
    pub alignment: Alignment,
}

/// Whether a rail transfers into pinned (registered) memory, and why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Bytes registered with the device on this rail.
    pub bytes: u64,
    /// Why some region is used unregistered, when one is.
    pub unregistered_because: Option<String>,
}

/// Counters only a link can keep. All monotone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// How the bytes move, for people: `io_uring, O_DIRECT` or `pread workers (EPERM)`.
    pub backend: String,
    /// Completions of an earlier use of a slot, counted and ignored.
    pub stale_completions: u64,
    /// Requests continued after a short read or retried after EINTR or EAGAIN.
    pub resubmissions: u64,
    /// Requests that fell back from fixed to plain buffers.
    pub fixed_fallbacks: u64,
    /// System calls made on the data path.
    pub syscalls: u64,
    /// Doorbells rung (batches handed to the device).
    pub doorbells: u64,
}

/// The data path of one rail. It belongs to one poller; nothing here blocks or allocates.
///
/// A part that was queued comes back through [`Link::reap`] exactly once, when it is quiet. If a
/// device never gives it up, it never comes back: the core reports `Stuck` after its bound and the
/// part is impounded if it returns later.
pub trait Link: Send {
    /// What the device granted. Constant while the link lives.
    fn limits(&self) -> LinkLimits;

    /// Called once on the poller's own thread, after it was pinned and before anything is queued,
    /// so that what is allocated here is local to the poller's node.
    fn start(&mut self) {}

    /// Takes a request for the next doorbell.
    ///
    /// # Errors
    /// [`Refused::Full`] (not a failure) or [`Refused::Failed`]; both give the request back.
    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused>;

    /// Hands everything queued to the device: one doorbell. What the device did not accept stays
    /// queued for the next commit; what it refused for good comes back through `reap`.
    fn commit(&mut self, now: Nanos);

    /// Whether requests wait for another commit, because the device took only some at the last.
    fn has_uncommitted(&self) -> bool {
        false
    }

    /// Passes at most `budget` finished requests to `sink` and returns how many.
    fn reap(&mut self, now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize;

    /// The core no longer wants this request. Cheap and best-effort: if the device can drop it, it
    /// completes sooner, as `Failed` with `Status::CANCELLED`. Its completion still comes.
    fn cancel(&mut self, wr: WrId, now: Nanos);

    /// The core needs this request's part back even if the connection must be torn down for it.
    /// Its completion comes as soon as no transfer can touch the part; the innocent requests of a
    /// torn connection come back as [`Outcome::Flushed`].
    fn quiesce(&mut self, wr: WrId, now: Nanos);

    /// A descriptor that becomes readable when `reap` has something to do, for a poller that wants
    /// to sleep. `None`: this link must be polled.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for the event. Returns `false` if there is already something to reap, so that the
    /// poller must not sleep.
    fn arm(&mut self) -> bool {
        true
    }

    /// Sleeps until `reap` may have something to do, `bell` is readable, or `at_most` has passed
    /// (without it, for ever), and hands over what is queued in the same system call. For a poller
    /// that armed this link and sleeps for no other. `None`: it did not sleep and cannot; the
    /// poller waits for the descriptor.
    fn sleep(&mut self, bell: BorrowedFd<'_>, at_most: Option<Duration>) -> Option<()> {
        let _ = (bell, at_most);
        None
    }

    /// Whether [`Link::sleep`] is likely to sleep, so that a doorbell may be left to it.
    fn can_sleep(&self) -> bool {
        false
    }

    /// When `reap` will next have something to do, where the link itself knows (virtual time).
    fn next_event(&self) -> Option<Nanos> {
        None
    }

    /// Counters for people.
    fn stats(&self) -> LinkStats;
}
