//! The link without `io_uring`: threads that call pread(2) into the parts they own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use railring_transport::{Completion, LinkLimits, LinkStats, Outcome, Refused, WorkRequest, WrId};
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use sq_cq::Status;

use crate::control::Shared;
use crate::inject::Injector;
use crate::progress::{Next, Progress};

/// Reads made at once. Each is a thread that waits for a disk; more than this gain nothing on one
/// disk without a queue of its own.
const WORKERS_MAX: u32 = 8;
/// How often a read that the injector keeps back is looked at.
const HOLD_PAUSE: Duration = Duration::from_millis(1);

/// What link and workers share.
#[derive(Debug)]
struct Crew {
    shared: Arc<Shared>,
    alignment_bytes: u32,
    injector: Option<Arc<dyn Injector>>,
    jobs: Mutex<Jobs>,
    work: Condvar,
    done: Mutex<VecDeque<Completion>>,
    /// Length of `done`, to look at without the lock.
    done_count: AtomicUsize,
    /// Readable when something is done while the link is armed.
    event: OwnedFd,
    armed: AtomicBool,
    syscalls: AtomicU64,
    resubmissions: AtomicU64,
}

#[derive(Debug)]
struct Jobs {
    waiting: VecDeque<WorkRequest>,
    closing: bool,
}

/// The link over blocking workers. Its part of a turn takes two short locks and no system call but
/// waking threads.
#[derive(Debug)]
pub(crate) struct WorkerLink {
    crew: Arc<Crew>,
    limits: LinkLimits,
    backend: String,
    /// Queued and not committed.
    queued: Vec<WorkRequest>,
    /// Done, taken from the crew and not reaped.
    ready: VecDeque<Completion>,
    held: u32,
    /// Whether the event may have been raised since it was last cleared.
    event_due: bool,
    doorbells: u64,
    event_reads: u64,
}

impl WorkerLink {
    /// Starts the threads.
    pub(crate) fn new(
        shared: Arc<Shared>,
        limits: LinkLimits,
        backend: String,
        injector: Option<Arc<dyn Injector>>,
    ) -> io::Result<Self> {
        let depth = limits.outstanding_wrs_max;
        let capacity = depth as usize;
        let alignment = limits.alignment;
        let crew = Arc::new(Crew {
            shared,
            alignment_bytes: alignment.offset_bytes.max(alignment.memory_bytes),
            injector,
            jobs: Mutex::new(Jobs { waiting: VecDeque::with_capacity(capacity), closing: false }),
            work: Condvar::new(),
            done: Mutex::new(VecDeque::with_capacity(capacity)),
            done_count: AtomicUsize::new(0),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            armed: AtomicBool::new(false),
            syscalls: AtomicU64::new(0),
            resubmissions: AtomicU64::new(0),
        });
        // Made first, so that dropping it ends the threads there are if one more cannot be had.
        let link = WorkerLink {
            crew: Arc::clone(&crew),
            limits,
            backend,
            queued: Vec::with_capacity(capacity),
            ready: VecDeque::with_capacity(capacity),
            held: 0,
            event_due: false,
            doorbells: 0,
            event_reads: 0,
        };
        railring_uring::with_signals_blocked(|| start(&crew, depth.min(WORKERS_MAX)))??;
        Ok(link)
    }

    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.crew.event.as_fd()
    }

    pub(crate) fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        if self.held >= self.limits.outstanding_wrs_max {
            return Err(Refused::Full(request));
        }
        if self.crew.shared.targets.find(request.target).is_none() {
            let status = Status::from_errno(Errno::BADF.raw_os_error());
            return Err(Refused::Failed { request, status });
        }
        self.held += 1;
        self.queued.push(request);
        Ok(())
    }

    pub(crate) fn commit(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let one = self.queued.len() == 1;
        self.crew.jobs().waiting.extend(self.queued.drain(..));
        self.doorbells += 1;
        if one { self.crew.work.notify_one() } else { self.crew.work.notify_all() }
    }

    pub(crate) fn reap(&mut self, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        self.clear_event();
        // Acquire: pairs with the Release in `Crew::finish`.
        if self.ready.is_empty() && self.crew.done_count.load(Ordering::Acquire) > 0 {
            let mut done = self.crew.done();
            std::mem::swap(&mut *done, &mut self.ready);
            self.crew.done_count.store(0, Ordering::Relaxed);
        }
        let count = budget.min(self.ready.len());
        for completion in self.ready.drain(..count) {
            self.held -= 1;
            sink(completion);
        }
        count
    }

    fn clear_event(&mut self) {
        if !self.event_due {
            return;
        }
        self.event_due = false;
        self.crew.armed.store(false, Ordering::Relaxed);
        self.event_reads += 1;
        let mut count = [0; 8];
        // EAGAIN: it was not raised after all.
        let _ = rustix::io::read(&self.crew.event, &mut count);
    }

    /// A request that no worker has begun ends now; one in pread(2) cannot be called back.
    pub(crate) fn cancel(&mut self, wr: WrId) {
        let found = match self.queued.iter().position(|request| request.wr == wr) {
            Some(index) => Some(self.queued.remove(index)),
            None => {
                let mut jobs = self.crew.jobs();
                let index = jobs.waiting.iter().position(|request| request.wr == wr);
                index.and_then(|index| jobs.waiting.remove(index))
            }
        };
        if let Some(WorkRequest { wr, part, .. }) = found {
            let outcome = Outcome::Failed { status: Status::CANCELLED, vendor: 0 };
            self.ready.push_back(Completion { wr, part, outcome });
        }
    }

    pub(crate) fn arm(&mut self) -> bool {
        if !self.ready.is_empty() || !self.queued.is_empty() {
            return false;
        }
        self.event_due = true;
        self.crew.armed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Crew::finish`: either that sees `armed`, or this sees the count.
        fence(Ordering::SeqCst);
        self.crew.done_count.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            backend: self.backend.clone(),
            resubmissions: self.crew.resubmissions.load(Ordering::Relaxed),
            syscalls: self.crew.syscalls.load(Ordering::Relaxed) + self.event_reads,
            doorbells: self.doorbells,
            ..LinkStats::default()
        }
    }
}

impl Drop for WorkerLink {
    /// Ends the threads, without waiting for one that hangs: it owns its part and leaks it.
    fn drop(&mut self) {
        let mut jobs = self.crew.jobs();
        jobs.closing = true;
        jobs.waiting.clear();
        drop(jobs);
        self.crew.work.notify_all();
    }
}

fn start(crew: &Arc<Crew>, workers: u32) -> io::Result<()> {
    for index in 0..workers {
        let crew = Arc::clone(crew);
        thread::Builder::new().name(format!("rr-pread-{index}")).spawn(move || crew.work())?;
    }
    Ok(())
}

impl Crew {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // Requests are moved whole, so the queue is sound whatever its last holder did.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of a worker.
    fn work(&self) {
        while let Some(request) = self.next() {
            let completion = self.read(request);
            self.finish(completion);
        }
    }

    fn next(&self) -> Option<WorkRequest> {
        let mut jobs = self.jobs();
        loop {
            if jobs.closing {
                return None;
            }
            if let Some(request) = jobs.waiting.pop_front() {
                return Some(request);
            }
            jobs = self.work.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, completion: Completion) {
        let mut done = self.done();
        done.push_back(completion);
        // Release: pairs with the Acquire in `reap`. Under the lock, so that it is the length.
        self.done_count.store(done.len(), Ordering::Release);
        drop(done);
        // Pairs with the fence in `arm`.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::Relaxed) {
            self.syscalls.fetch_add(1, Ordering::Relaxed);
            // The counter cannot be full: it is read at every reap after an arm.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Reads until the part is full, the file ends or the read fails.
    fn read(&self, request: WorkRequest) -> Completion {
        let WorkRequest { wr, target, offset, bytes_min, mut part } = request;
        let Some(file) = self.shared.targets.descriptor(target) else {
            let status = Status::from_errno(Errno::BADF.raw_os_error());
            return Completion { wr, part, outcome: Outcome::Failed { status, vendor: 0 } };
        };
        let mut progress = Progress::new(part.len() as u64, bytes_min, self.alignment_bytes);
        loop {
            let from = progress.from();
            self.syscalls.fetch_add(1, Ordering::Relaxed);
            let bytes = &mut part.as_mut_slice()[from as usize..];
            let result = match rustix::io::pread(&file, bytes, offset + from) {
                // A part is at most 1 GiB long.
                Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
                Err(errno) => -errno.raw_os_error(),
            };
            match progress.after(self.injected(wr, result)) {
                Next::Over(outcome) => return Completion { wr, part, outcome },
                Next::Again => self.resubmissions.fetch_add(1, Ordering::Relaxed),
            };
        }
    }

    fn injected(&self, wr: WrId, result: i32) -> i32 {
        let Some(faults) = &self.injector else { return result };
        while faults.holds(wr.to_bits()) {
            thread::sleep(HOLD_PAUSE);
        }
        faults.result(wr.to_bits(), result, false)
    }
}
