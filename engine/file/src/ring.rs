//! The link over `io_uring`: reads pushed into a ring, completions judged as they are popped.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use railring_dma::Part;
use railring_transport::{Completion, LinkLimits, LinkStats, Outcome, Refused, WorkRequest, WrId};
use railring_uring::{FileRef, Finished, ReadAt, ReadRefused, Unread, Uring};
use rustix::io::Errno;
use sq_cq::Status;

use crate::control::Shared;
use crate::progress::{Next, Progress};

/// What travels with a part.
#[derive(Debug)]
pub(crate) struct Asked {
    file: FileRef,
    offset: u64,
    progress: Progress,
    /// Whether this attempt is into a registered buffer.
    fixed: bool,
    /// Whether attempts may be.
    may_be_fixed: bool,
    /// Cancelled while it waited for room in the submission queue.
    cancelled: bool,
}

/// The link over a ring.
#[derive(Debug)]
pub(crate) struct RingLink {
    uring: Uring<Part, Asked>,
    shared: Arc<Shared>,
    limits: LinkLimits,
    backend: String,
    /// Reads to be continued that found the submission queue full.
    waiting: Vec<(u64, Part, Asked)>,
    /// Something was pushed, or refused by the kernel, since the last doorbell that took
    /// everything.
    bell_due: bool,
    resubmissions: u64,
    fixed_fallbacks: u64,
}

impl RingLink {
    pub(crate) fn new(
        uring: Uring<Part, Asked>,
        shared: Arc<Shared>,
        limits: LinkLimits,
        backend: String,
    ) -> Self {
        let waiting = Vec::with_capacity(uring.entries() as usize);
        RingLink {
            uring,
            shared,
            limits,
            backend,
            waiting,
            bell_due: false,
            resubmissions: 0,
            fixed_fallbacks: 0,
        }
    }

    /// Requests that may be in flight at once.
    pub(crate) fn entries(&self) -> u32 {
        self.uring.entries()
    }

    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.uring.fd()
    }

    pub(crate) fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        let WorkRequest { wr, target, offset, bytes_min, part } = request;
        let Some(file) = self.shared.targets.find(target) else {
            let request = WorkRequest { wr, target, offset, bytes_min, part };
            let status = Status::from_errno(Errno::BADF.raw_os_error());
            return Err(Refused::Failed { request, status });
        };
        let alignment = self.limits.alignment;
        let align = alignment.offset_bytes.max(alignment.memory_bytes);
        let progress = Progress::new(part.len() as u64, bytes_min, align);
        let asked =
            Asked { file, offset, progress, fixed: false, may_be_fixed: true, cancelled: false };
        match self.push(wr.to_bits(), part, asked) {
            Ok(()) => Ok(()),
            Err(Unread { buffer: part, why, .. }) => {
                let request = WorkRequest { wr, target, offset, bytes_min, part };
                Err(refused(request, why))
            }
        }
    }

    /// Pushes the next attempt of a read.
    fn push(&mut self, key: u64, part: Part, mut asked: Asked) -> Result<(), Unread<Part, Asked>> {
        let registered =
            if asked.may_be_fixed { self.shared.memory.buffer_of(&part) } else { None };
        asked.fixed = registered.is_some();
        let from = asked.progress.from();
        let read = ReadAt {
            file: asked.file,
            offset: asked.offset + from,
            // Both are at most the part's length, which was checked against the limit of 1 GiB.
            start: from as usize,
            bytes: asked.progress.left() as u32,
            registered,
        };
        self.uring.push_read(key, read, part, asked)
    }

    pub(crate) fn commit(&mut self) {
        self.push_waiting();
        self.uring.commit();
        self.bell_due = !self.waiting.is_empty() || self.uring.has_uncommitted();
    }

    fn push_waiting(&mut self) {
        while let Some((key, part, asked)) = self.waiting.pop() {
            let cancelled = asked.cancelled;
            if let Err(unread) = self.push(key, part, asked) {
                self.waiting.push((key, unread.buffer, unread.extra));
                return;
            }
            if cancelled {
                self.uring.cancel(key);
            }
        }
    }

    pub(crate) fn reap(&mut self, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if self.bell_due {
            // The poller had nothing of its own to commit since.
            self.commit();
        }
        let mut reaped = 0;
        while reaped < budget {
            let Some(finished) = self.uring.pop() else { break };
            if let Some(completion) = self.judge(finished) {
                sink(completion);
                reaped += 1;
            }
        }
        reaped
    }

    /// The completion that a finished attempt is, or none if the read goes on.
    fn judge(&mut self, finished: Finished<Part, Asked>) -> Option<Completion> {
        let Finished { key, buffer: part, extra: mut asked, result, cancelled } = finished;
        let wr = WrId::from_bits(key);
        // Some kernels refuse reads into registered buffers that are in order (axboe/liburing#994).
        let refused = [Errno::FAULT, Errno::INVAL].map(|errno| -errno.raw_os_error());
        let next = if asked.fixed && refused.contains(&result) {
            self.fixed_fallbacks += 1;
            asked.may_be_fixed = false;
            Next::Again
        } else {
            asked.progress.after(result)
        };
        match next {
            Next::Over(outcome) => Some(Completion { wr, part, outcome }),
            Next::Again if cancelled => {
                let outcome = Outcome::Failed { status: Status::CANCELLED, vendor: 0 };
                Some(Completion { wr, part, outcome })
            }
            Next::Again => {
                self.resubmissions += 1;
                self.go_on(key, part, asked)
            }
        }
    }

    fn go_on(&mut self, key: u64, part: Part, asked: Asked) -> Option<Completion> {
        self.bell_due = true;
        let Unread { buffer: part, extra: asked, why } = self.push(key, part, asked).err()?;
        let status = match why {
            ReadRefused::Full => {
                self.waiting.push((key, part, asked));
                return None;
            }
            ReadRefused::Broken { errno } => Status::from_errno(errno),
            _ => Status::INVALID_ARGUMENT,
        };
        let outcome = Outcome::Failed { status, vendor: 0 };
        Some(Completion { wr: WrId::from_bits(key), part, outcome })
    }

    /// Asks the kernel to give the read up; also the only way to quiet it.
    pub(crate) fn cancel(&mut self, wr: WrId) {
        let key = wr.to_bits();
        match self.waiting.iter_mut().find(|(waiting, ..)| *waiting == key) {
            Some((_, _, asked)) => asked.cancelled = true,
            None => self.uring.cancel(key),
        }
        self.bell_due = true;
    }

    pub(crate) fn arm(&mut self) -> bool {
        !self.bell_due && !self.uring.has_completions()
    }

    /// Waits in the call that hands over what was pushed.
    pub(crate) fn sleep(&mut self, bell: BorrowedFd<'_>, at_most: Option<Duration>) -> Option<()> {
        let slept = self.uring.sleep(bell, at_most).then_some(());
        self.bell_due |= self.uring.has_uncommitted();
        slept
    }

    pub(crate) fn can_sleep(&self) -> bool {
        self.uring.can_sleep()
    }

    pub(crate) fn stats(&self) -> LinkStats {
        let ring = self.uring.stats();
        LinkStats {
            backend: self.backend.clone(),
            stale_completions: ring.stale,
            resubmissions: self.resubmissions,
            fixed_fallbacks: self.fixed_fallbacks,
            syscalls: ring.syscalls,
            doorbells: ring.doorbells,
        }
    }
}

fn refused(request: WorkRequest, why: ReadRefused) -> Refused {
    match why {
        ReadRefused::Full => Refused::Full(request),
        ReadRefused::Broken { errno } => {
            Refused::Failed { request, status: Status::from_errno(errno) }
        }
        _ => Refused::Failed { request, status: Status::INVALID_ARGUMENT },
    }
}
