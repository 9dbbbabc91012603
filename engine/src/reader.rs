//! The async reader: futures over one ring, for any runtime and none.
//!
//! A future's first poll pushes its read, on the polling thread. One thread of the reader's own
//! sleeps on the ring's descriptor and wakes the futures whose reads have ended. A future that is
//! dropped cancels its read; its buffer is parked until it is quiet, then used again.

use std::fmt;
use std::future::Future;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use railring_core::{
    BlockingReaderError, Completion, Object, PoolConfig, Read, ReadIntoError, Ring, RingConfig,
    WaitError,
};
use railring_dma::{Lease, Pool};
use railring_uring::with_signals_blocked;
use rustix::event::{PollFd, PollFlags};
use sq_cq::{CallerWaker, ReadId};

use crate::builder::Engine;

/// What a reader has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderConfig {
    /// Largest range of one read, in bytes. Default 4 MiB.
    pub read_bytes_max: usize,
    /// Buffers of that size: reads in flight, and results that are still held. Further futures wait
    /// for one. Default 32.
    pub buffers: usize,
    /// Its ring.
    pub ring: RingConfig,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        ReaderConfig { read_bytes_max: 4 << 20, buffers: 32, ring: RingConfig::default() }
    }
}

/// Reads asynchronously. `Send + Sync + Clone`: clones share the ring and its thread, which end
/// with the last clone and the last future.
#[derive(Clone, Debug)]
pub struct Reader {
    handle: Arc<Handle>,
}

/// Bytes that were read. Dropping it gives the buffer back to its reader.
pub struct ReadBytes {
    lease: Option<Lease>,
    bytes: usize,
    inner: Arc<Inner>,
}

/// A read to be awaited. It does nothing until it is polled; dropped, it cancels.
#[must_use = "a future does nothing until it is polled"]
pub struct ReadFuture {
    handle: Arc<Handle>,
    stage: Stage,
}

enum Stage {
    New(Wanted),
    Running(usize),
    Done,
}

struct Wanted {
    object: Object,
    range: Range<u64>,
    timeout: Option<Duration>,
    skip_verify: bool,
}

/// What clones and futures share; its drop ends the thread.
struct Handle {
    inner: Arc<Inner>,
    waker: CallerWaker,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    pool: Pool,
    state: Mutex<State>,
}

struct State {
    /// Gone once the engine is, or the reader.
    ring: Option<Ring>,
    reads: Vec<Slot>,
    free: Vec<usize>,
    /// Futures that found no buffer or no room in the ring.
    waiting: Vec<Waker>,
}

enum Slot {
    Free,
    Running {
        id: ReadId,
        bytes: usize,
        waker: Waker,
        failure: Option<ReadIntoError>,
    },
    /// Its future was dropped.
    Abandoned,
    Done(Result<ReadBytes, ReadIntoError>),
}

impl Reader {
    /// A reader of `engine`'s objects, with a ring, buffers and a thread of its own.
    ///
    /// # Errors
    /// No ring, no memory or no thread is to be had.
    pub fn new(engine: &Engine, config: ReaderConfig) -> Result<Self, ReaderError> {
        let pool = engine.buffer_pool(PoolConfig {
            slots: config.buffers.max(1),
            slot_bytes: config.read_bytes_max.max(1),
            ..PoolConfig::default()
        });
        let pool = pool.map_err(BlockingReaderError::from)?;
        let ring = engine.ring(config.ring).map_err(BlockingReaderError::from)?;
        let descriptor = ring.as_fd().try_clone_to_owned()?;
        let waker = ring.waker();
        let (reads, free, waiting) = (Vec::new(), Vec::new(), Vec::new());
        let state = Mutex::new(State { ring: Some(ring), reads, free, waiting });
        let inner = Arc::new(Inner { pool, state });
        let dispatching = Arc::clone(&inner);
        let thread = with_signals_blocked(|| {
            std::thread::Builder::new()
                .name("railring-reader".to_owned())
                .spawn(move || dispatching.dispatch_until_gone(&descriptor))
        })??;
        let handle = Handle { inner, waker, thread: Mutex::new(Some(thread)) };
        Ok(Reader { handle: Arc::new(handle) })
    }

    /// Reads bytes `range` of `object`, once the future is polled.
    pub fn read(&self, object: &Object, range: Range<u64>) -> ReadFuture {
        let object = object.clone();
        let wanted = Wanted { object, range, timeout: None, skip_verify: false };
        ReadFuture { handle: Arc::clone(&self.handle), stage: Stage::New(wanted) }
    }

    /// Buffers that hold neither a read nor a result.
    #[must_use]
    pub fn buffers_free(&self) -> usize {
        self.handle.inner.pool.free()
    }
}

/// Why there is no reader.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// No ring or no memory.
    #[error(transparent)]
    Make(#[from] BlockingReaderError),
    /// No descriptor or no thread.
    #[error("the reader's thread could not be set up: {0}")]
    Io(#[from] io::Error),
}

impl ReadFuture {
    /// Fails as timed out if the read is not done so long after it was pushed. To be set before the
    /// first poll. Default: never.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let Stage::New(wanted) = &mut self.stage {
            wanted.timeout = Some(timeout);
        }
        self
    }

    /// Does not verify. To be set before the first poll.
    pub fn skip_verify(mut self) -> Self {
        if let Stage::New(wanted) = &mut self.stage {
            wanted.skip_verify = true;
        }
        self
    }
}

impl Future for ReadFuture {
    type Output = Result<ReadBytes, ReadIntoError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let inner = &this.handle.inner;
        let mut state = inner.lock();
        match &this.stage {
            Stage::New(wanted) => match inner.start(&mut state, wanted, context.waker()) {
                Start::Running(slot) => {
                    this.stage = Stage::Running(slot);
                    Poll::Pending
                }
                Start::NoRoom => {
                    state.wait(context.waker());
                    Poll::Pending
                }
                Start::Failed(error) => {
                    this.stage = Stage::Done;
                    Poll::Ready(Err(error))
                }
            },
            Stage::Running(slot) => {
                let slot = *slot;
                if let Slot::Running { waker, .. } = &mut state.reads[slot] {
                    waker.clone_from(context.waker());
                    return Poll::Pending;
                }
                this.stage = Stage::Done;
                match state.release(slot) {
                    Slot::Done(outcome) => Poll::Ready(outcome),
                    _ => Poll::Ready(Err(WaitError::EngineGone.into())),
                }
            }
            Stage::Done => panic!("a future was polled after it was ready"),
        }
    }
}

impl Drop for ReadFuture {
    fn drop(&mut self) {
        let Stage::Running(slot) = self.stage else { return };
        let mut state = self.handle.inner.lock();
        let result = match &state.reads[slot] {
            Slot::Running { id, .. } => {
                let id = *id;
                state.reads[slot] = Slot::Abandoned;
                if let Some(ring) = &mut state.ring {
                    ring.cancel(id);
                }
                None
            }
            _ => Some(state.release(slot)),
        };
        // A result gives its buffer back, which takes the lock itself.
        drop(state);
        drop(result);
    }
}

enum Start {
    Running(usize),
    NoRoom,
    Failed(ReadIntoError),
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Between any two statements that can panic the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, state: &mut State, wanted: &Wanted, waker: &Waker) -> Start {
        let Wanted { object, range, timeout, skip_verify } = wanted;
        let bytes = range.end.saturating_sub(range.start);
        let limit = self.pool.slot_bytes();
        let Some(length) = usize::try_from(bytes).ok().filter(|&bytes| bytes <= limit) else {
            let limit = limit as u64;
            return Start::Failed(ReadIntoError::TooLarge { bytes, limit });
        };
        if !skip_verify && length > 0 && !object.placement().has_checksums() {
            return Start::Failed(ReadIntoError::NothingToVerifyBy);
        }
        let Some(ring) = &mut state.ring else {
            return Start::Failed(WaitError::EngineGone.into());
        };
        let Some(lease) = self.pool.take() else { return Start::NoRoom };
        let slot = state.free.last().copied().unwrap_or(state.reads.len());
        let mut read = Read::new(object, range.clone(), lease).user_data(slot as u64).quiet(0);
        if let Some(timeout) = *timeout {
            read = read.timeout(timeout);
        }
        if *skip_verify {
            read = read.skip_verify();
        }
        match ring.push(read) {
            Ok(id) => {
                ring.submit();
                let running =
                    Slot::Running { id, bytes: length, waker: waker.clone(), failure: None };
                if state.free.pop().is_some() {
                    state.reads[slot] = running;
                } else {
                    state.reads.push(running);
                }
                Start::Running(slot)
            }
            Err(refused) if refused.is_full() => Start::NoRoom,
            Err(refused) => Start::Failed(refused.why.into()),
        }
    }

    /// The thread: sleeps on the ring, wakes futures.
    fn dispatch_until_gone(self: &Arc<Self>, descriptor: &OwnedFd) {
        let mut woken = Vec::new();
        loop {
            let gone = self.dispatch(&mut woken);
            // Without the lock: a waker may poll, and so may whoever it wakes.
            woken.drain(..).for_each(Waker::wake);
            if gone {
                return;
            }
            let mut fds = [PollFd::new(descriptor, PollFlags::IN)];
            // EINTR and everything else: the ring is looked at again.
            let _ = rustix::event::poll(&mut fds, None);
            if let Some(ring) = &mut self.lock().ring {
                ring.clear_event();
            }
        }
    }

    /// Settles what has ended. `true`: nothing can come any more.
    fn dispatch(self: &Arc<Self>, woken: &mut Vec<Waker>) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(ring) = &mut state.ring else { return true };
        loop {
            while let Some(completion) = ring.pop() {
                settle(self, &mut state.reads, &mut state.free, completion, woken);
                woken.append(&mut state.waiting);
            }
            if !ring.arm() {
                return false;
            }
            if ring.is_closed() && ring.ready() == 0 {
                break;
            }
        }
        state.ring = None;
        for slot in &mut state.reads {
            if let Slot::Running { .. } = slot {
                let gone = Slot::Done(Err(WaitError::EngineGone.into()));
                if let Slot::Running { waker, .. } = std::mem::replace(slot, gone) {
                    woken.push(waker);
                }
            }
        }
        woken.append(&mut state.waiting);
        true
    }
}

impl State {
    /// Once per task, however often it polls.
    fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    fn release(&mut self, slot: usize) -> Slot {
        self.free.push(slot);
        std::mem::replace(&mut self.reads[slot], Slot::Free)
    }
}

/// One CQE's effect on its future.
fn settle(
    inner: &Arc<Inner>,
    reads: &mut [Slot],
    free: &mut Vec<usize>,
    completion: Completion,
    woken: &mut Vec<Waker>,
) {
    let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
    let Some(slot) = reads.get_mut(index) else { return };
    let said = ReadIntoError::of(&completion);
    if completion.ended().is_none() {
        if let Slot::Running { failure, .. } = slot
            && failure.is_none()
        {
            *failure = said;
        }
        return;
    }
    match std::mem::replace(slot, Slot::Free) {
        Slot::Running { bytes, waker, failure, .. } => {
            let lease = completion.into_lease();
            let outcome = match failure.or(said) {
                Some(error) => Err(error),
                None => Ok(ReadBytes { lease, bytes, inner: Arc::clone(inner) }),
            };
            *slot = Slot::Done(outcome);
            woken.push(waker);
        }
        Slot::Abandoned => free.push(index),
        other => *slot = other,
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // All futures are gone; their reads are cancelled and go with the ring.
        let ring = self.inner.lock().ring.take();
        self.waker.wake();
        drop(ring);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A waker run by the thread may have dropped the last future there.
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            // It has nothing to say: it ended because it was told to.
            let _ = thread.join();
        }
    }
}

impl Deref for ReadBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.lease.as_ref().map_or(&[], |lease| &lease.as_slice()[..self.bytes])
    }
}

impl Drop for ReadBytes {
    fn drop(&mut self) {
        drop(self.lease.take());
        // The lease first: whoever is woken finds it.
        let waiting = std::mem::take(&mut self.inner.lock().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for ReadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBytes").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFuture").finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
