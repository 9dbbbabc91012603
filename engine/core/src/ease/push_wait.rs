//! Pushing with patience: waits for room in the ring, and says which limit held it if none came.

use std::fmt;
use std::time::Duration;

use railring_transport::{Link, Nanos};
use sq_cq::ReadId;

use crate::ease::{Drive, Threads};
use crate::engine::InlineEngine;
use crate::push::{self, PushError};
use crate::read::Read;
use crate::ring::{Completion, Ring, WaitError};

/// How often room in the submission ring is looked for: the poller tells nobody that it took an
/// SQE, since nobody but a full ring's caller would want to know.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(1);

/// The limit that kept a read out of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBy {
    /// CQ slots: reads in flight hold them until their CQEs are popped.
    CqEntries {
        /// Slots the read needs.
        needed: u32,
        /// Slots that are free.
        free: u32,
        /// Slots in all.
        entries: u32,
    },
    /// SQ slots: the poller has not taken what was pushed before, since it works on `reads_max`
    /// reads already or is busy.
    SqEntries {
        /// Reads that wait there, which are as many as fit.
        entries: u32,
        /// `EngineConfig::reads_max`.
        reads_max: u32,
    },
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldBy::CqEntries { needed, free, entries } => {
                write!(f, "cq_entries = {entries}: {needed} slots are needed and {free} are free")
            }
            HeldBy::SqEntries { entries, reads_max } => write!(
                f,
                "sq_entries = {entries}: none was taken, the poller works on at most reads_max = \
                 {reads_max} reads"
            ),
        }
    }
}

/// Why a read was not accepted although its caller was ready to wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushWaitError {
    /// It was refused for a reason that waiting does not change; never [`PushError::Full`].
    #[error(transparent)]
    Refused(PushError),
    /// There was no room in time.
    #[error("no room within {waited:?}, held by {held_by}; make a larger ring or wait longer")]
    TimedOut {
        /// How long the caller waited.
        waited: Duration,
        /// The limit.
        held_by: HeldBy,
    },
    /// The read's token was cancelled while its caller waited.
    #[error("cancelled while waiting for room")]
    Cancelled,
    /// Nothing can make room any more.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// A read that was not accepted, and why. It comes back whole.
#[derive(Debug)]
pub struct WaitRefused<'o> {
    /// The cause.
    pub why: PushWaitError,
    /// The read, lease and all.
    pub read: Read<'o>,
}

impl fmt::Display for WaitRefused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl std::error::Error for WaitRefused<'_> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

impl Ring {
    /// Accepts a read, waiting for room for at most `timeout`. Submits what was pushed before if it
    /// has to wait.
    ///
    /// Only popping frees CQ slots, so completions that arrive meanwhile are popped here and given
    /// to `on_completion`, in order, with the ring to ask for their bytes. Cancelling the read's
    /// token ends the wait.
    ///
    /// # Errors
    /// The read comes back with the reason: after a timeout, the limit that held it.
    #[expect(clippy::result_large_err, reason = "a refused read comes back whole, lease and all")]
    pub fn push_wait<'o>(
        &mut self,
        read: Read<'o>,
        timeout: Duration,
        on_completion: impl FnMut(&Ring, Completion),
    ) -> Result<ReadId, WaitRefused<'o>> {
        self.push_wait_driven(&mut Threads, read, timeout, on_completion)
    }

    /// [`Ring::push_wait`], with the engine moved on by `drive`.
    ///
    /// # Errors
    /// As [`Ring::push_wait`].
    #[expect(clippy::result_large_err, reason = "a refused read comes back whole, lease and all")]
    pub fn push_wait_driven<'o>(
        &mut self,
        drive: &mut impl Drive,
        mut read: Read<'o>,
        timeout: Duration,
        mut on_completion: impl FnMut(&Ring, Completion),
    ) -> Result<ReadId, WaitRefused<'o>> {
        let start = self.now();
        let end = start.after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let token = read.token.clone();
        // Made before the token is first looked at, so that no cancel falls between.
        let mut alarm = None;
        loop {
            read = match self.push(read) {
                Ok(id) => return Ok(id),
                Err(refused) if refused.is_full() => refused.read,
                Err(refused) => {
                    let why = PushWaitError::Refused(refused.why);
                    return Err(WaitRefused { why, read: refused.read });
                }
            };
            if self.pop_all(&mut on_completion) {
                continue;
            }
            let is_cancelled = || token.as_ref().is_some_and(|token| token.is_cancelled());
            if let Some(token) = &token {
                alarm.get_or_insert_with(|| token.wake(self.waker()));
            }
            let now = self.now();
            let held_by = self.held_by(&read);
            let why = if is_cancelled() {
                Some(PushWaitError::Cancelled)
            } else if now >= end {
                let waited = Duration::from_nanos(now.since(start));
                Some(PushWaitError::TimedOut { waited, held_by })
            } else {
                drive.wait(self, pause(held_by, now, end), &is_cancelled).err().map(Into::into)
            };
            if let Some(why) = why {
                return Err(WaitRefused { why, read });
            }
        }
    }

    /// Whether there was anything to pop.
    fn pop_all(&mut self, on_completion: &mut impl FnMut(&Ring, Completion)) -> bool {
        let mut any = false;
        while let Some(completion) = self.pop() {
            on_completion(self, completion);
            any = true;
        }
        any
    }

    /// What keeps out a read that was refused as `Full` a moment ago.
    fn held_by(&self, read: &Read<'_>) -> HeldBy {
        let free = self.free_slots();
        let needed = push::check(read, self.shared(), u32::MAX).map_or(1, |checked| checked.slots);
        if free < needed {
            let entries = free + self.outstanding();
            HeldBy::CqEntries { needed, free, entries }
        } else {
            let reads_max = self.shared().config.reads_max;
            HeldBy::SqEntries { entries: self.sq_waiting(), reads_max }
        }
    }
}

fn pause(held_by: HeldBy, now: Nanos, end: Nanos) -> Duration {
    let left = Duration::from_nanos(end.since(now));
    match held_by {
        HeldBy::CqEntries { .. } => left,
        HeldBy::SqEntries { .. } => left.min(LOOK_FOR_ROOM),
    }
}

impl<L: Link> InlineEngine<L> {
    /// [`Ring::push_wait`] for this engine's rings: makes turns until there is room.
    ///
    /// # Errors
    /// As [`Ring::push_wait`].
    #[expect(clippy::result_large_err, reason = "a refused read comes back whole, lease and all")]
    pub fn push_wait<'o>(
        &mut self,
        ring: &mut Ring,
        read: Read<'o>,
        timeout: Duration,
        on_completion: impl FnMut(&Ring, Completion),
    ) -> Result<ReadId, WaitRefused<'o>> {
        ring.push_wait_driven(self, read, timeout, on_completion)
    }
}
