//! The data path of a file rail, and opening both halves.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use railring_transport::{
    Alignment, Completion, Link, LinkLimits, LinkStats, Nanos, Refused, WorkRequest, WrId,
};
use railring_uring::{RingError, RingOptions, Uring};
use sq_cq::Status;

use crate::control::{FileControl, Setup, Shared};
use crate::directory::{Direct, Directory};
use crate::options::{Backend, DirectIo, FileRailError, FileRailOptions, QUEUE_DEPTH_MAX};
use crate::ring::RingLink;
use crate::workers::WorkerLink;

/// Longest read: what a kernel registers as one buffer, and well below what it reads at once.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Opens file rails.
#[derive(Debug)]
pub struct FileRail;

impl FileRail {
    /// Opens the rail of one directory: a control half for any threads, and a link for one poller.
    /// Blocks on the disk for as long as opening a file does; reads nothing.
    ///
    /// # Errors
    /// The directory cannot be opened, the options make no sense, or something was required that
    /// cannot be had. What is only preferred is done without, and noted.
    pub fn open(
        directory: &Path,
        options: FileRailOptions,
    ) -> Result<(Arc<FileControl>, FileLink), FileRailError> {
        check(&options)?;
        let opened = Directory::open(directory).map_err(|source| FileRailError::Directory {
            directory: directory.to_owned(),
            source,
        })?;
        let (direct, how) = choose_direct(directory, &opened, &options)?;
        let shared = Arc::new(Shared::new());
        let limits = LinkLimits {
            outstanding_wrs_max: options.queue_depth.next_power_of_two(),
            request_bytes_max: REQUEST_BYTES_MAX,
            alignment: direct.unwrap_or(Alignment::NONE),
        };
        let (engine, tables, notes) = start(&options, &shared, limits, &how)?;
        let setup = Setup {
            name: options.name.unwrap_or_else(|| directory.display().to_string()),
            weight: options.weight,
            node: options.node,
            directory: opened,
            direct,
            wish: options.direct,
            injector: options.injector,
        };
        let limits = engine.limits(limits);
        let control = FileControl::new(setup, shared, tables);
        notes.into_iter().for_each(|line| control.say(line));
        if direct.is_none() && options.direct == DirectIo::Try {
            control.say(format!("reads go through the page cache: {how}"));
        }
        Ok((Arc::new(control), FileLink { engine, limits }))
    }
}

fn check(options: &FileRailOptions) -> Result<(), FileRailError> {
    if !(1..=QUEUE_DEPTH_MAX).contains(&options.queue_depth) {
        let (asked, limit) = (options.queue_depth, QUEUE_DEPTH_MAX);
        return Err(FileRailError::QueueDepth { asked, limit });
    }
    if options.weight == 0 {
        return Err(FileRailError::Weight);
    }
    if options.name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(FileRailError::BlankName);
    }
    Ok(())
}

/// The alignment if files are to be opened with O_DIRECT, and how reads are made, in words.
fn choose_direct(
    directory: &Path,
    opened: &Directory,
    options: &FileRailOptions,
) -> Result<(Option<Alignment>, String), FileRailError> {
    if options.direct == DirectIo::Never {
        return Ok((None, "buffered".to_owned()));
    }
    match opened.probe_direct(options.injector.as_deref()) {
        Direct::Yes(alignment) => Ok((Some(alignment), "O_DIRECT".to_owned())),
        Direct::No(why) if options.direct == DirectIo::Require => {
            Err(FileRailError::DirectRefused { directory: directory.to_owned(), why })
        }
        Direct::No(why) => Ok((None, format!("buffered (O_DIRECT: {why})"))),
    }
}

type Started = (Engine, Option<railring_uring::Tables>, Vec<String>);

/// Starts the backend that is wanted and can be had.
fn start(
    options: &FileRailOptions,
    shared: &Arc<Shared>,
    limits: LinkLimits,
    how: &str,
) -> Result<Started, FileRailError> {
    let refusal = match options.backend {
        Backend::Workers => None,
        Backend::IoUring => return Ok(start_ring(options, shared, limits, how)?),
        Backend::Auto => match start_ring(options, shared, limits, how) {
            Ok(started) => return Ok(started),
            Err(error) => Some(error),
        },
    };
    let why = refusal
        .as_ref()
        .map_or("asked for".to_owned(), |error| format!("io_uring: {}", error.cause()));
    let backend = format!("pread workers ({why}), {how}");
    let notes = refusal.iter().map(note_of_refusal).collect();
    let injector = options.injector.clone();
    let link = WorkerLink::new(Arc::clone(shared), limits, backend, injector)
        .map_err(|source| FileRailError::Workers { source })?;
    Ok((Engine::Workers(link), None, notes))
}

fn note_of_refusal(error: &RingError) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = match limit {
        Some(bytes) if error.cause() == "ENOMEM" => format!(" (RLIMIT_MEMLOCK is {bytes} B)"),
        _ => String::new(),
    };
    format!("reads are made by blocking workers: {error}{limit}")
}

fn start_ring(
    options: &FileRailOptions,
    shared: &Arc<Shared>,
    mut limits: LinkLimits,
    how: &str,
) -> Result<Started, RingError> {
    let injector =
        options.injector.clone().map(|faults| faults as Arc<dyn railring_uring::Injector>);
    // Completions by interrupt, the default: cooperative ones were not measurably faster at a depth
    // of 1 or 32, and take a second system call in a turn that finds some and submits more.
    let ring =
        RingOptions { entries: limits.outstanding_wrs_max, injector, ..RingOptions::default() };
    let uring = Uring::new(&ring)?;
    limits.outstanding_wrs_max = uring.entries();
    let (tables, notes) = (uring.tables(), uring.notes().to_vec());
    let backend = format!("io_uring, {how}");
    let link = RingLink::new(uring, Arc::clone(shared), limits, backend);
    Ok((Engine::Ring(link), Some(tables), notes))
}

/// Who makes the reads.
#[derive(Debug)]
enum Engine {
    Ring(RingLink),
    Workers(WorkerLink),
}

impl Engine {
    /// The limits, with the number of requests that this engine really takes.
    fn limits(&self, asked: LinkLimits) -> LinkLimits {
        match self {
            Engine::Ring(link) => LinkLimits { outstanding_wrs_max: link.entries(), ..asked },
            Engine::Workers(_) => asked,
        }
    }
}

/// The data path of a file rail. It belongs to one poller.
///
/// A read that ends with `Status::SHORT_READ` has in `vendor` how many bytes there were. A
/// cancelled read of a regular file that the disk has begun usually ends as it would have.
#[derive(Debug)]
pub struct FileLink {
    engine: Engine,
    limits: LinkLimits,
}

impl FileLink {
    /// Whether a request can be made at all.
    fn is_sound(&self, request: &WorkRequest) -> bool {
        let LinkLimits { outstanding_wrs_max, request_bytes_max, alignment } = self.limits;
        let bytes = request.part.len() as u64;
        let address = request.part.address().as_ptr().addr() as u64;
        let aligned = |value: u64, to: u32| value & (u64::from(to) - 1) == 0;
        request.wr.slot < outstanding_wrs_max
            && bytes <= request_bytes_max
            && request.bytes_min <= bytes
            && request.offset <= (i64::MAX as u64) - bytes
            && aligned(request.offset, alignment.offset_bytes)
            && aligned(bytes, alignment.length_bytes)
            && aligned(address, alignment.memory_bytes)
    }
}

impl Link for FileLink {
    fn limits(&self) -> LinkLimits {
        self.limits
    }

    fn queue(&mut self, request: WorkRequest) -> Result<(), Refused> {
        if !self.is_sound(&request) {
            return Err(Refused::Failed { request, status: Status::INVALID_ARGUMENT });
        }
        match &mut self.engine {
            Engine::Ring(link) => link.queue(request),
            Engine::Workers(link) => link.queue(request),
        }
    }

    fn commit(&mut self, _now: Nanos) {
        match &mut self.engine {
            Engine::Ring(link) => link.commit(),
            Engine::Workers(link) => link.commit(),
        }
    }

    fn reap(&mut self, _now: Nanos, budget: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        match &mut self.engine {
            Engine::Ring(link) => link.reap(budget, sink),
            Engine::Workers(link) => link.reap(budget, sink),
        }
    }

    fn cancel(&mut self, wr: WrId, _now: Nanos) {
        match &mut self.engine {
            Engine::Ring(link) => link.cancel(wr),
            Engine::Workers(link) => link.cancel(wr),
        }
    }

    /// The same as [`Link::cancel`]: a file has no connection to tear down, and the completion of
    /// the original is the only proof there is.
    fn quiesce(&mut self, wr: WrId, now: Nanos) {
        self.cancel(wr, now);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.engine {
            Engine::Ring(link) => link.event_fd(),
            Engine::Workers(link) => link.event_fd(),
        })
    }

    fn arm(&mut self) -> bool {
        match &mut self.engine {
            Engine::Ring(link) => link.arm(),
            Engine::Workers(link) => link.arm(),
        }
    }

    fn sleep(&mut self, bell: BorrowedFd<'_>, at_most: Option<Duration>) -> Option<()> {
        match &mut self.engine {
            Engine::Ring(link) => link.sleep(bell, at_most),
            Engine::Workers(_) => None,
        }
    }

    fn can_sleep(&self) -> bool {
        match &self.engine {
            Engine::Ring(link) => link.can_sleep(),
            Engine::Workers(_) => false,
        }
    }

    fn stats(&self) -> LinkStats {
        match &self.engine {
            Engine::Ring(link) => link.stats(),
            Engine::Workers(link) => link.stats(),
        }
    }
}
