//! Creating a ring on whatever kernel and limits there are: less of it rather than none.

use std::io;
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode};

use crate::errno::errno_name;
use crate::inject::Injector;

/// Fewest entries a ring is tried with when the kernel has no memory for more.
const ENTRIES_MIN: u32 = 8;
/// Most entries a kernel gives (its `IORING_MAX_ENTRIES`).
const ENTRIES_MAX: u32 = 32_768;

/// When the kernel finishes a read that a device has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRun {
    /// At once, by interrupting the poller: a completion shows in the mapped ring without any
    /// system call.
    Interrupt,
    /// At the poller's next system call (`IORING_SETUP_COOP_TASKRUN`): fewer interrupts, and one
    /// system call to see completions when nothing was submitted.
    Cooperative,
}

/// What a ring should be like.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Reads in flight at most, rounded up to a power of two, at least 1 and at most 32,768. The
    /// submission queue has as many entries, the completion queue twice as many (a cancel has a
    /// completion of its own).
    pub entries: u32,
    /// When completions are made.
    pub task_run: TaskRun,
    /// Entries of the table of registered files; 0 for none.
    pub file_slots: u32,
    /// Entries of the table of registered buffers; 0 for none.
    pub buffer_slots: u16,
    /// Faults for tests.
    pub injector: Option<Arc<dyn Injector>>,
}

impl Default for RingOptions {
    /// 128 reads, completions at once, 1,024 files, 256 buffers, no faults.
    fn default() -> RingOptions {
        RingOptions {
            entries: 128,
            task_run: TaskRun::Interrupt,
            file_slots: 1024,
            buffer_slots: 256,
            injector: None,
        }
    }
}

/// Why there is no ring. The caller is expected to do without one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel, or whoever filters its system calls, refused.
    #[error("io_uring with {entries} entries was refused: {source}; {}", remedy(*errno))]
    Refused {
        /// The errno value; [`RingError::cause`] names it.
        errno: i32,
        /// How many entries were asked for last.
        entries: u32,
        /// The same as an error.
        source: io::Error,
    },
    /// The kernel's `io_uring` cannot do what a ring needs.
    #[error("this kernel's io_uring has no {operation}; Linux 5.6 or newer has")]
    MissingOperation {
        /// The operation by its kernel name.
        operation: &'static str,
    },
}

impl RingError {
    fn refused(error: io::Error, entries: u32) -> RingError {
        RingError::Refused { errno: error.raw_os_error().unwrap_or(0), entries, source: error }
    }

    /// The cause in a word, for statistics: `EPERM`, `no IORING_OP_READ`.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            RingError::Refused { errno, .. } => errno_name(*errno),
            RingError::MissingOperation { operation } => format!("no {operation}"),
        }
    }
}

fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EPERM | libc::EACCES => {
            "allow it (sysctl kernel.io_uring_disabled=0, the container's seccomp profile)"
        }
        libc::ENOSYS => "use a kernel that has it (5.6 or newer, CONFIG_IO_URING)",
        libc::ENOMEM => "raise RLIMIT_MEMLOCK or ask for fewer entries",
        libc::EMFILE | libc::ENFILE => "raise RLIMIT_NOFILE",
        _ => "use blocking reads instead",
    }
}

/// A ring as it was created.
pub(crate) struct Created {
    pub(crate) ring: IoUring,
    /// Reads in flight at most.
    pub(crate) entries: u32,
    /// What is less than was asked for, one line each.
    pub(crate) notes: Vec<String>,
}

/// The set-up flags of a rung of the ladder; a kernel that does not know one says EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    /// Everything asked for.
    Full,
    /// Without cooperative completions (Linux 5.19) and without submitting past a bad entry (5.18).
    Plain,
}

/// Creates a ring: entries are halved while there is no memory, flags dropped if they are unknown.
pub(crate) fn create(options: &RingOptions) -> Result<Created, RingError> {
    let asked = options.entries.clamp(1, ENTRIES_MAX).next_power_of_two();
    let mut entries = asked;
    let mut rung = Rung::Full;
    let mut notes = Vec::new();
    loop {
        let error = match attempt(options, entries, rung) {
            Ok(ring) => {
                require_operations(&ring)?;
                if entries != asked {
                    notes.push(format!(
                        "io_uring has {entries} entries instead of {asked} (ENOMEM; raise \
                         RLIMIT_MEMLOCK)"
                    ));
                }
                return Ok(Created { ring, entries, notes });
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::ENOMEM) if entries > ENTRIES_MIN => entries /= 2,
            Some(libc::EINVAL) if rung == Rung::Full => rung = Rung::Plain,
            _ => return Err(RingError::refused(error, entries)),
        }
    }
}

fn attempt(options: &RingOptions, entries: u32, rung: Rung) -> io::Result<IoUring> {
    if let Some(errno) = options.injector.as_ref().and_then(|faults| faults.create(entries)) {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let mut builder = IoUring::builder();
    builder.dontfork();
    // A read and its cancel each have a completion, so the completion queue cannot overflow.
    builder.setup_cqsize(entries * 2);
    if rung == Rung::Full {
        builder.setup_submit_all();
        if options.task_run == TaskRun::Cooperative {
            builder.setup_coop_taskrun();
            builder.setup_taskrun_flag();
        }
    }
    builder.build(entries)
}

/// Refuses a kernel without the operations that every ring uses.
fn require_operations(ring: &IoUring) -> Result<(), RingError> {
    let needed = [
        (opcode::Read::CODE, "IORING_OP_READ"),
        (opcode::ReadFixed::CODE, "IORING_OP_READ_FIXED"),
        (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
    ];
    let mut probe = Probe::new();
    if ring.submitter().register_probe(&mut probe).is_err() {
        // Older than 5.6, or registering is filtered: the reads would fail one by one.
        return Err(RingError::MissingOperation { operation: "IORING_REGISTER_PROBE" });
    }
    match needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, operation)) => Err(RingError::MissingOperation { operation }),
        None => Ok(()),
    }
}
