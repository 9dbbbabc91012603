//! Owns the making of a ring pair: its size, its two ends, and what they share besides the slots.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use crate::cursor::Capacity;
use crate::doorbell::Bell;
use crate::event::Event;
use crate::padded::Padded;
use crate::reads::{LiveReads, RunningReads};
use crate::ring::{Indices, spsc};
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, fence};
use crate::{CallerEnd, PollerEnd};

/// The most CQ slots that one read can reserve, whatever the ring's size.
pub const SLOTS_PER_READ_MAX: u32 = u16::MAX as u32;

/// How large a ring pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Submission slots: reads pushed and not yet taken by the poller. A power of two, 1 to 2^20.
    pub sq_entries: u32,
    /// Completion slots: CQEs of all accepted reads, in flight or not popped. A power of two, 1 to
    /// 2^20.
    pub cq_entries: u32,
    /// Where the free-running indices begin, so that tests need not count to 2^32 to see them wrap.
    #[doc(hidden)]
    pub start_index: u32,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self { sq_entries: 256, cq_entries: 1024, start_index: 0 }
    }
}

/// Why a ring pair was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A capacity is not a power of two.
    #[error("{which} {entries} is not a power of two: use {below} or {above}")]
    NotPowerOfTwo {
        /// The field of [`RingConfig`].
        which: &'static str,
        /// What was asked for.
        entries: u32,
        /// The next valid capacity below.
        below: u32,
        /// The next valid capacity above.
        above: u32,
    },
    /// A capacity is zero or too large.
    #[error("{which} {entries} is out of range: use a power of two from 1 to {max}")]
    EntriesOutOfRange {
        /// The field of [`RingConfig`].
        which: &'static str,
        /// What was asked for.
        entries: u32,
        /// The largest capacity.
        max: u32,
    },
    /// The bell has no such source.
    #[error("source {source_index} is not one of the bell's {sources}: use one below that")]
    NoSuchSource {
        /// What was asked for.
        source_index: usize,
        /// How many the bell has.
        sources: usize,
    },
    /// There is no descriptor for the caller to wait on.
    #[error("no eventfd for the ring: raise RLIMIT_NOFILE or make fewer rings")]
    Event(#[source] io::Error),
}

/// What the two ends share besides the slots.
#[derive(Debug)]
pub(crate) struct Control {
    /// 1 while the caller waits, or is about to, for the poller to publish.
    armed: Padded<AtomicU32>,
    /// Pushes refused as full so far. Written by the caller only.
    full_answers: Padded<AtomicU64>,
    /// `CALLER_GONE`, `POLLER_GONE`: written once each, so it may share a line with what follows.
    gone: Padded<AtomicU32>,
    /// What the caller sleeps on.
    pub(crate) event: Event,
    pub(crate) bell: Arc<Bell>,
    pub(crate) source: usize,
}

const CALLER_GONE: u32 = 1;
const POLLER_GONE: u32 = 2;

impl Control {
    #[inline]
    pub(crate) fn is_caller_gone(&self) -> bool {
        // Pairs with the Release in `caller_leaves`.
        self.gone.load(Ordering::Acquire) & CALLER_GONE != 0
    }

    #[inline]
    pub(crate) fn is_poller_gone(&self) -> bool {
        // Pairs with the Release in `poller_leaves`.
        self.gone.load(Ordering::Acquire) & POLLER_GONE != 0
    }

    pub(crate) fn caller_leaves(&self) {
        // Pairs with the Acquire in `is_caller_gone`.
        self.gone.fetch_or(CALLER_GONE, Ordering::Release);
        self.bell.mark(self.source);
    }

    pub(crate) fn poller_leaves(&self) {
        // Pairs with the Acquire in `is_poller_gone`.
        self.gone.fetch_or(POLLER_GONE, Ordering::Release);
        self.wake_caller();
    }

    /// Says that the caller is about to wait; it must look once more before it does.
    #[inline]
    pub(crate) fn arm(&self) {
        self.armed.swap(1, Ordering::Relaxed);
        // Orders the flag before the caller's load of the CQ's tail; pairs with the fence in
        // `wake_caller`. The argument is the doorbell's, with the roles exchanged.
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn disarm(&self) {
        self.armed.swap(0, Ordering::Relaxed);
    }

    /// Wakes the caller if it waits. The poller calls it after it published.
    #[inline]
    pub(crate) fn wake_caller(&self) {
        // Orders the store of the CQ's tail before the load of the flag; pairs with the fence in
        // `arm`.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) != 0 && self.armed.swap(0, Ordering::Relaxed) != 0 {
            self.event.raise();
        }
    }

    #[cold]
    pub(crate) fn count_full_answer(&self) {
        // One writer, so load and store lose nothing.
        let count = self.full_answers.load(Ordering::Relaxed);
        self.full_answers.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    pub(crate) fn full_answers(&self) -> u64 {
        self.full_answers.load(Ordering::Relaxed)
    }
}

/// The two ends of a ring pair.
pub type Pair<A, B> = (CallerEnd<A, B>, PollerEnd<A, B>);

/// Makes a caller's end and a poller's end of one ring pair. `A` travels with each SQE to the
/// poller, `B` with each CQE back. The poller is told of submissions through `bell`, as `source`.
///
/// # Errors
/// Typed, when a capacity is no power of two or out of range, the bell has no such source, or no
/// eventfd is to be had.
pub fn pair<A, B>(
    config: RingConfig,
    bell: Arc<Bell>,
    source: usize,
) -> Result<Pair<A, B>, RingError> {
    let sq_capacity = Capacity::new("sq_entries", config.sq_entries)?;
    let cq_capacity = Capacity::new("cq_entries", config.cq_entries)?;
    if source >= bell.sources() {
        return Err(RingError::NoSuchSource { source_index: source, sources: bell.sources() });
    }
    let event = Event::new().map_err(RingError::Event)?;
    let control = Arc::new(Control {
        armed: Padded::new(AtomicU32::new(0)),
        full_answers: Padded::new(AtomicU64::new(0)),
        gone: Padded::new(AtomicU32::new(0)),
        event,
        bell,
        source,
    });
    let (sq_producer, sq_consumer) = spsc(sq_capacity, config.start_index);
    let (cq_producer, cq_consumer) = spsc(cq_capacity, config.start_index);
    // Twice the reads that can be live: see `PollerEnd::publish` for why that is enough.
    let (cancel_producer, cancel_consumer) = spsc(cq_capacity.doubled(), config.start_index);
    let cq_entries = cq_capacity.entries();
    let caller = CallerEnd {
        sq: sq_producer,
        cq: cq_consumer,
        cancels: cancel_producer,
        reads: LiveReads::new(cq_entries),
        slots_free: cq_entries,
        cq_entries,
        control: Arc::clone(&control),
        one_thread_at_a_time: PhantomData,
    };
    let poller = PollerEnd {
        sq: sq_consumer,
        cq: cq_producer,
        cancels: cancel_consumer,
        reads: RunningReads::new(cq_entries),
        control,
    };
    Ok((caller, poller))
}

/// Makes an end `Send` and not `Sync`: it may move between threads, and is used by one at a time.
pub(crate) type OneThreadAtATime = PhantomData<Cell<()>>;

/// A view of a ring pair for statistics, from any thread, at any time. Values are exact when both
/// ends are quiet, and within bounds while they are not.
#[derive(Debug, Clone)]
pub struct Gauges {
    pub(crate) sq: Arc<Indices>,
    pub(crate) cq: Arc<Indices>,
    pub(crate) control: Arc<Control>,
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
}

impl Gauges {
    /// SQEs submitted and not yet taken by the poller.
    pub fn sq_len(&self) -> u32 {
        self.sq.len(self.sq_entries)
    }

    /// CQEs published and, as far as the caller has told, not popped.
    pub fn cq_len(&self) -> u32 {
        self.cq.len(self.cq_entries)
    }

    /// Pushes refused as full since the ring was made. Only ever grows.
    pub fn full_answers(&self) -> u64 {
        self.control.full_answers()
    }
}

/// Where the indices that the two threads write lie in memory, for checking that no two share a
/// cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexAddresses {
    /// Of the submission ring's head.
    pub sq_head: usize,
    /// Of the submission ring's tail.
    pub sq_tail: usize,
    /// Of the completion ring's head.
    pub cq_head: usize,
    /// Of the completion ring's tail.
    pub cq_tail: usize,
}
