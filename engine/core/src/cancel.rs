//! Cancelling from any thread: a token that stands for one read or a group of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sq_cq::CallerWaker;

use crate::poller::Control;
use crate::shared::{Shared, lock};

struct Inner {
    id: u64,
    cancelled: AtomicBool,
    shared: Arc<Shared>,
    /// Callers that wait for something else than a read of this token, each under its own key.
    waiting: Mutex<Vec<(u64, CallerWaker)>>,
}

/// Cancels every read that was pushed with it, from any thread; reads pushed with it later end as
/// cancelled too. `Send + Sync + Clone`. A cancelled read ends as any other does: once, and when
/// its memory is quiet.
#[derive(Clone)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("id", &self.inner.id)
            .field("cancelled", &self.is_cancelled())
            .finish()
    }
}

impl CancelToken {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        // Relaxed: ids only have to differ.
        let id = shared.tokens.fetch_add(1, Ordering::Relaxed);
        let inner = Inner {
            id,
            cancelled: AtomicBool::new(false),
            shared: Arc::clone(shared),
            waiting: Mutex::default(),
        };
        CancelToken { inner: Arc::new(inner) }
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// Cancels. Idempotent; returns whether this call was the first.
    pub fn cancel(&self) -> bool {
        // Release pairs with the Acquire in `is_cancelled`; the message below is what wakes.
        let first = !self.inner.cancelled.swap(true, Ordering::Release);
        if first {
            for desk in &self.inner.shared.desks {
                desk.tell(Control::Cancel(self.inner.id));
            }
            for (_, waker) in &*lock(&self.inner.waiting) {
                waker.wake();
            }
        }
        first
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Wakes `waker` when this token is cancelled, until the alarm is dropped. Look at
    /// [`CancelToken::is_cancelled`] after this and before sleeping.
    pub(crate) fn wake(&self, waker: CallerWaker) -> Alarm<'_> {
        let mut waiting = lock(&self.inner.waiting);
        let key = waiting.last().map_or(0, |(key, _)| key + 1);
        waiting.push((key, waker));
        Alarm { token: self, key }
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.inner.shared, shared)
    }
}

/// A caller that a token wakes.
#[derive(Debug)]
pub(crate) struct Alarm<'t> {
    token: &'t CancelToken,
    key: u64,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        lock(&self.token.inner.waiting).retain(|(key, _)| *key != self.key);
    }
}
