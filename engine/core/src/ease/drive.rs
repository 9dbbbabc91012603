//! Who moves an engine on while a convenience blocks: its own threads, or the blocked caller.

use std::time::Duration;

use railring_transport::{Link, Nanos};

use crate::clock;
use crate::engine::InlineEngine;
use crate::poller::Progress;
use crate::ring::{Driver, Ring, WaitError};

/// Lets an engine go on while its caller is blocked. [`Threads`] for an engine with threads; an
/// [`InlineEngine`] for itself; a simulator brings its own, with its own time.
pub trait Drive {
    /// Waits until a CQE of `ring` can be popped, `stop` says so, or `timeout` has passed. May
    /// come back early: callers look again.
    ///
    /// # Errors
    /// Nothing can come any more: the engine is gone, or it is inline and this driver is not.
    fn wait(
        &mut self,
        ring: &mut Ring,
        timeout: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), WaitError>;
}

/// The engine has threads of its own: the caller only sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

impl Drive for Threads {
    fn wait(
        &mut self,
        ring: &mut Ring,
        timeout: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), WaitError> {
        if ring.driver() == Driver::Caller {
            return Err(WaitError::Inline);
        }
        if ring.wait_unless(timeout, stop) == 0 && ring.is_closed() {
            return Err(WaitError::EngineGone);
        }
        Ok(())
    }
}

/// Longest sleep of an inline engine's caller between two looks at `stop`.
const LOOK: Duration = Duration::from_millis(10);

impl<L: Link> Drive for InlineEngine<L> {
    fn wait(
        &mut self,
        ring: &mut Ring,
        timeout: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), WaitError> {
        ring.submit();
        let end = clock::now().after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        loop {
            let now = clock::now();
            let progress = self.turn_at(now);
            if ring.ready() > 0 || now >= end || stop() {
                return Ok(());
            }
            if progress == Progress::Idle {
                let left = Duration::from_nanos(Nanos(end.0).since(now));
                self.sleep_until_something(now, left.min(LOOK));
            }
        }
    }
}
