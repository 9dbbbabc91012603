//! What a file rail can be asked for, and why it may not open.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use railring_uring::RingError;

use crate::inject::Injector;

/// Most reads in flight a rail can be asked for: the most entries a ring has.
pub(crate) const QUEUE_DEPTH_MAX: u32 = 32_768;

/// Whether reads bypass the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Yes, where the file system can.
    #[default]
    Try,
    /// Yes; a file system that cannot is refused.
    Require,
    /// No.
    Never,
}

/// Who makes the reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `io_uring`, or blocking workers where it is refused.
    #[default]
    Auto,
    /// `io_uring`; without it the rail does not open.
    IoUring,
    /// Threads that call pread(2).
    Workers,
}

/// What a file rail should be like.
#[derive(Clone, Debug)]
pub struct FileRailOptions {
    /// Reads queued or in flight at most; rounded up to a power of two, at most 32,768.
    pub queue_depth: u32,
    /// Whether reads bypass the page cache.
    pub direct: DirectIo,
    /// Who makes the reads.
    pub backend: Backend,
    /// Name of the rail; none: the directory.
    pub name: Option<String>,
    /// Static weight, at least 1.
    pub weight: u32,
    /// The memory node the disk is nearest to, where that is known.
    pub node: Option<u32>,
    /// Faults for tests.
    pub injector: Option<Arc<dyn Injector>>,
}

impl Default for FileRailOptions {
    /// 128 reads, O_DIRECT and `io_uring` if they can be had, named by directory, weight 1.
    fn default() -> Self {
        FileRailOptions {
            queue_depth: 128,
            direct: DirectIo::default(),
            backend: Backend::default(),
            name: None,
            weight: 1,
            node: None,
            injector: None,
        }
    }
}

/// Why a file rail did not open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileRailError {
    /// The directory cannot be opened.
    #[error("cannot open directory {}: {source}", directory.display())]
    Directory {
        /// The directory asked for.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The depth is 0 or beyond what a ring has.
    #[error("a queue depth of {asked} was refused; it must be from 1 to {limit}")]
    QueueDepth {
        /// The depth asked for.
        asked: u32,
        /// The most there is.
        limit: u32,
    },
    /// A weight of 0.
    #[error("a weight of 0 was refused; it must be at least 1")]
    Weight,
    /// A blank name.
    #[error("a blank rail name was refused; leave it out to use the directory's")]
    BlankName,
    /// O_DIRECT was required and cannot be had.
    #[error(
        "directory {} cannot be read with O_DIRECT: {why}; do not require it",
        directory.display()
    )]
    DirectRefused {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        why: String,
    },
    /// `io_uring` was required and cannot be had.
    #[error("{0}")]
    IoUring(#[from] RingError),
    /// The blocking workers could not be started.
    #[error("cannot start blocking workers: {source}; lower the queue depth or raise RLIMIT_NPROC")]
    Workers {
        /// The cause.
        source: io::Error,
    },
}
