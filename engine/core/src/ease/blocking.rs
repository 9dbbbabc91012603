//! Blocking reads into a slice: untouched unless everything verified, or directly into its bytes.
//!
//! `read_into` needs engine memory for the whole range, since its last act is one copy of verified
//! bytes. Verifying in a first pass and copying in a second would need less, but the second pass
//! would read again what could have changed or failed in between, at twice the I/O. So the range is
//! bounded by the reader's memory, and a larger one is refused by name; `read_into_direct` has no
//! such bound and no such promise.

use std::ops::Range;
use std::time::Duration;

use railring_dma::{Lease, Pool};
use railring_transport::{Link, Nanos};
use sq_cq::ReadId;

use crate::cancel::CancelToken;
use crate::ease::options::{CancelledBy, ReadIntoError, ReadOptions, Recheck, Verification};
use crate::ease::{Drive, Threads};
use crate::engine::{Engine, InlineEngine, MemoryError, RingMakeError};
use crate::object::Object;
use crate::places::PoolConfig;
use crate::push::PushError;
use crate::read::Read;
use crate::ring::{Ring, RingConfig};

/// Failed stripes that a read is told of singly.
const FAILURES_MAX: u32 = 7;
/// How often a blocked reader looks around although nothing happened.
const LOOK: Duration = Duration::from_secs(1);

/// What a blocking reader has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockingReaderConfig {
    /// Largest range of one `read_into`, in bytes. Default 64 MiB. Pages are touched when used.
    pub read_bytes_max: usize,
    /// Buffers of that size: one is used at a time, the others stand in for one that is impounded
    /// after a stuck read. Default 2.
    pub slots: usize,
    /// Its ring.
    pub ring: RingConfig,
}

impl Default for BlockingReaderConfig {
    fn default() -> Self {
        let ring = RingConfig { sq_entries: 64, cq_entries: 512, ..RingConfig::default() };
        BlockingReaderConfig { read_bytes_max: 64 << 20, slots: 2, ring }
    }
}

/// Why there is no blocking reader.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockingReaderError {
    /// No ring.
    #[error(transparent)]
    Ring(#[from] RingMakeError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Reads ranges into slices, one at a time, blocking its caller. `Send`; make one per thread.
#[derive(Debug)]
pub struct BlockingReader {
    ring: Ring,
    pool: Pool,
    /// Reads of the range under way, and their memory once they have ended; kept for their
    /// allocations.
    ids: Vec<ReadId>,
    back: Vec<Option<Lease>>,
}

/// What all reads of one range share.
struct Terms<'a> {
    object: &'a Object,
    range: Range<u64>,
    deadline: Nanos,
    token: Option<&'a CancelToken>,
    verification: Verification,
}

impl BlockingReader {
    /// A reader of `engine`'s objects.
    ///
    /// # Errors
    /// No ring or no memory is to be had.
    pub fn new(engine: &Engine, config: BlockingReaderConfig) -> Result<Self, BlockingReaderError> {
        let pool = engine.buffer_pool(memory(config))?;
        Ok(Self::of(engine.ring(config.ring)?, pool))
    }

    /// A reader of an inline engine's objects: read with the `_driven` methods and the engine.
    ///
    /// # Errors
    /// No ring or no memory is to be had.
    pub fn new_inline<L: Link>(
        engine: &InlineEngine<L>,
        config: BlockingReaderConfig,
    ) -> Result<Self, BlockingReaderError> {
        let pool = engine.buffer_pool(memory(config))?;
        Ok(Self::of(engine.ring(config.ring)?, pool))
    }

    fn of(ring: Ring, pool: Pool) -> Self {
        BlockingReader { ring, pool, ids: Vec::new(), back: Vec::new() }
    }

    /// Buffers that are not impounded: at least one is needed for [`BlockingReader::read_into`].
    #[must_use]
    pub fn buffers_free(&self) -> usize {
        self.pool.free()
    }

    /// Reads bytes `range` of `object` into the start of `slice`, which stays untouched unless all
    /// of them came, verified, in time, uncancelled, and of an object that is still the same.
    ///
    /// # Errors
    /// One variant per kind; the slice is untouched.
    pub fn read_into(
        &mut self,
        object: &Object,
        range: Range<u64>,
        slice: &mut [u8],
        options: ReadOptions<'_>,
    ) -> Result<(), ReadIntoError> {
        self.read_into_driven(&mut Threads, object, range, slice, options)
    }

    /// [`BlockingReader::read_into`], with the engine moved on by `drive`.
    ///
    /// # Errors
    /// As [`BlockingReader::read_into`].
    pub fn read_into_driven(
        &mut self,
        drive: &mut impl Drive,
        object: &Object,
        range: Range<u64>,
        slice: &mut [u8],
        options: ReadOptions<'_>,
    ) -> Result<(), ReadIntoError> {
        let bytes = check(object, &range, slice.len(), &options)?;
        let limit = self.pool.slot_bytes();
        if bytes > limit {
            let (bytes, limit) = (bytes as u64, limit as u64);
            return Err(ReadIntoError::TooLarge { bytes, limit });
        }
        let slots = self.pool.slots();
        let buffer = self.pool.take().ok_or(ReadIntoError::NoMemory { slots })?;
        let ReadOptions { timeout, cancelled_by, verification, recheck } = options;
        let (deadline, token) = (self.deadline(timeout), token_of(cancelled_by));
        let terms = Terms { object, range, deadline, token, verification };
        let transferred = self.transfer(drive, &terms, buffer);
        let outcome = transferred
            .and_then(|()| self.confirm(object, recheck, deadline))
            .and_then(|()| decide(cancelled_by))
            .map(|()| self.publish(&mut slice[..bytes]));
        self.back.clear();
        outcome
    }

    /// Reads bytes `range` of `object` directly into the start of `slice`: no copy, no engine
    /// memory, and no promise about the slice after an error. The slice's memory is registered for
    /// the call with rails that need that.
    ///
    /// Comes back when nothing can write the slice any more, *whenever that is*: a read that ended
    /// as stuck keeps its caller until the kernel lets go of the memory, since nothing else would
    /// be sound. Use [`BlockingReader::read_into`] where a caller must come back in time.
    ///
    /// # Errors
    /// One variant per kind; the slice's bytes are then unspecified.
    pub fn read_into_direct(
        &mut self,
        object: &Object,
        range: Range<u64>,
        slice: &mut [u8],
        options: ReadOptions<'_>,
    ) -> Result<(), ReadIntoError> {
        self.read_into_direct_driven(&mut Threads, object, range, slice, options)
    }

    /// [`BlockingReader::read_into_direct`], with the engine moved on by `drive`.
    ///
    /// # Errors
    /// As [`BlockingReader::read_into_direct`].
    pub fn read_into_direct_driven(
        &mut self,
        drive: &mut impl Drive,
        object: &Object,
        range: Range<u64>,
        slice: &mut [u8],
        options: ReadOptions<'_>,
    ) -> Result<(), ReadIntoError> {
        let bytes = check(object, &range, slice.len(), &options)?;
        if bytes == 0 {
            return decide(options.cancelled_by);
        }
        let ReadOptions { timeout, cancelled_by, verification, recheck } = options;
        let (deadline, token) = (self.deadline(timeout), token_of(cancelled_by));
        let terms = Terms { object, range, deadline, token, verification };
        let shared = std::sync::Arc::clone(self.ring.shared());
        shared.regions.with_borrowed(&mut slice[..bytes], |region| {
            shared.register_briefly(region)?;
            let lease = Lease::whole(region).expect("nobody else knows the region");
            let transferred = self.transfer(drive, &terms, lease);
            self.back.clear();
            while region.has_other_owners() {
                // Whatever this says, the memory has to come back: see above.
                if drive.wait(&mut self.ring, Duration::from_millis(1), &|| false).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                while self.ring.pop().is_some() {}
            }
            shared.unregister(region.id());
            transferred
                .and_then(|()| self.confirm(object, recheck, deadline))
                .and_then(|()| decide(cancelled_by))
        })?
    }

    fn deadline(&self, timeout: Option<Duration>) -> Nanos {
        let nanoseconds = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        timeout.map_or(Nanos::NEVER, |timeout| self.ring.now().after(nanoseconds(timeout)))
    }

    /// Reads the whole range into `buffer`, whose parts are in `back` afterwards. When it comes
    /// back, no read of the ring is under way.
    fn transfer(
        &mut self,
        drive: &mut impl Drive,
        terms: &Terms<'_>,
        buffer: Lease,
    ) -> Result<(), ReadIntoError> {
        self.ids.clear();
        self.back.clear();
        let mut left = Some(buffer);
        let mut at = terms.range.start;
        let mut failure = None;
        while let Some(buffer) = left.take() {
            let end = self.cut(terms, at);
            let bytes = usize::try_from(end - at).expect("at most a buffer's length");
            let (mine, rest) = buffer.split_at(bytes).expect("the buffer holds the range");
            let pushed = self.push(drive, terms, at..end, mine, &mut failure);
            if let Err(error) = pushed {
                failure.get_or_insert(error);
            }
            if failure.is_some() || end == terms.range.end {
                break;
            }
            (left, at) = (Some(rest), end);
        }
        self.await_all(drive, &mut failure);
        failure.map_or(Ok(()), Err)
    }

    /// Where the read that begins at `at` ends: all that one read may have, whole stripes if it can
    /// be, so that they are proved whole.
    fn cut(&self, terms: &Terms<'_>, at: u64) -> u64 {
        let limit = self.ring.shared().config.limits.read_bytes_max.max(1);
        let end = terms.range.end.min(at.saturating_add(limit));
        let placement = terms.object.placement();
        let stripe = end / placement.stripe_bytes() * placement.stripe_bytes();
        let block = u64::from(placement.block_bytes());
        let within = (end - stripe) / block * block + stripe;
        match () {
            () if end == terms.range.end => end,
            () if stripe > at => stripe,
            () if within > at => within,
            () => end,
        }
    }

    fn push(
        &mut self,
        drive: &mut impl Drive,
        terms: &Terms<'_>,
        range: Range<u64>,
        lease: Lease,
        failure: &mut Option<ReadIntoError>,
    ) -> Result<(), ReadIntoError> {
        let quiet = FAILURES_MAX.min(self.ring.stripes_max() - 1);
        let mut read = Read::new(terms.object, range, lease)
            .user_data(self.back.len() as u64)
            .quiet(u16::try_from(quiet).expect("at most 7"));
        if terms.deadline != Nanos::NEVER {
            read = read.deadline(terms.deadline);
        }
        if terms.verification == Verification::Skipped {
            read = read.skip_verify();
        }
        if let Some(token) = terms.token {
            read = read.cancelled_by(token);
        }
        loop {
            read = match self.ring.push(read) {
                Ok(id) => {
                    self.ids.push(id);
                    self.back.push(None);
                    return Ok(());
                }
                Err(refused) if refused.is_full() => refused.read,
                Err(refused) => return Err(refused.why.into()),
            };
            self.pop_all(failure);
            if failure.is_some() {
                return Ok(());
            }
            drive.wait(&mut self.ring, Duration::from_millis(1), &|| false)?;
        }
    }

    /// Waits until nothing is under way any more; after a failure, what is gets cancelled first.
    fn await_all(&mut self, drive: &mut impl Drive, failure: &mut Option<ReadIntoError>) {
        let mut cancelled = false;
        loop {
            self.pop_all(failure);
            if self.ring.in_flight() == 0 {
                return;
            }
            if failure.is_some() && !std::mem::replace(&mut cancelled, true) {
                for id in &self.ids {
                    self.ring.cancel(*id);
                }
            }
            if let Err(error) = drive.wait(&mut self.ring, LOOK, &|| false) {
                // Nothing comes any more. What is lent stays lent: it is never used again.
                failure.get_or_insert(error.into());
                return;
            }
        }
    }

    fn pop_all(&mut self, failure: &mut Option<ReadIntoError>) {
        while let Some(completion) = self.ring.pop() {
            let failed = ReadIntoError::of(&completion);
            if let (None, Some(error)) = (&failure, failed) {
                *failure = Some(error);
            }
            let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            if completion.ended().is_some()
                && let Some(slot) = self.back.get_mut(index)
            {
                *slot = completion.into_lease();
            }
        }
    }

    /// After everything verified: the object must still be the one that was read.
    fn confirm(
        &self,
        object: &Object,
        recheck: Option<Recheck<'_>>,
        deadline: Nanos,
    ) -> Result<(), ReadIntoError> {
        let Some(recheck) = recheck else { return Ok(()) };
        let now = recheck().map_err(ReadIntoError::Recheck)?;
        let generation = now.as_ref().map(|placement| placement.generation);
        let same = now.and_then(|placement| placement.validate().ok());
        if same.as_ref() != Some(object.placement()) {
            let read = object.placement().generation();
            return Err(ReadIntoError::VersionChanged { read, now: generation });
        }
        if self.ring.now() > deadline { Err(ReadIntoError::TimedOut) } else { Ok(()) }
    }

    /// The one place where the caller's memory is written.
    fn publish(&self, mut slice: &mut [u8]) {
        for lease in self.back.iter().flatten() {
            let (now, later) = slice.split_at_mut(lease.len());
            now.copy_from_slice(lease.as_slice());
            slice = later;
        }
        debug_assert!(slice.is_empty(), "every read brought its memory back");
    }
}

fn memory(config: BlockingReaderConfig) -> PoolConfig {
    PoolConfig {
        slots: config.slots.max(1),
        slot_bytes: config.read_bytes_max.max(1),
        ..PoolConfig::default()
    }
}

fn token_of(cancelled_by: CancelledBy<'_>) -> Option<&CancelToken> {
    match cancelled_by {
        CancelledBy::Nobody => None,
        CancelledBy::Token(token) => Some(token),
        CancelledBy::Gate(gate) => Some(gate.token()),
    }
}

/// From here on the read is published, or it never is.
fn decide(cancelled_by: CancelledBy<'_>) -> Result<(), ReadIntoError> {
    let published = match cancelled_by {
        CancelledBy::Nobody => true,
        CancelledBy::Token(token) => !token.is_cancelled(),
        CancelledBy::Gate(gate) => !gate.token().is_cancelled() && gate.publish(),
    };
    if published { Ok(()) } else { Err(ReadIntoError::Cancelled) }
}

fn check(
    object: &Object,
    range: &Range<u64>,
    have: usize,
    options: &ReadOptions<'_>,
) -> Result<usize, ReadIntoError> {
    let (offset, end, size) = (range.start, range.end, object.len());
    if offset > end || end > size {
        return Err(PushError::OutOfRange { offset, end, size }.into());
    }
    let need = end - offset;
    let Some(bytes) = usize::try_from(need).ok().filter(|&bytes| bytes <= have) else {
        return Err(PushError::BufferTooSmall { need, have: have as u64 }.into());
    };
    let verified = options.verification == Verification::Required;
    if verified && bytes > 0 && !object.placement().has_checksums() {
        return Err(ReadIntoError::NothingToVerifyBy);
    }
    match options.cancelled_by {
        CancelledBy::Gate(gate) if !gate.is_open() && !gate.token().is_cancelled() => {
            Err(ReadIntoError::GateSpent)
        }
        _ => Ok(bytes),
    }
}
