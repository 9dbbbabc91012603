//! The file rail: reads of the files of one directory, over `io_uring` or blocking workers.
//!
//! [`FileRail::open`] gives the two halves of a rail for one directory (one disk). [`FileControl`]
//! opens files and registers memory, from any thread. [`FileLink`] belongs to one poller: a read is
//! pushed into the ring, one system call hands over all reads of a turn, and completions are read
//! from mapped memory.
//!
//! What a kernel, a container or a file system refuses is done without, and said in
//! `RailInfo::notes` and `LinkStats::backend`:
//!
//! | refused | instead |
//! |---|---|
//! | `io_uring` (EPERM, ENOSYS, EOPNOTSUPP, ENOMEM, EACCES, EINVAL) | blocking workers |
//! | O_DIRECT (EINVAL; tmpfs and ramfs have no use for it) | reads through the page cache |
//! | registered memory (ENOMEM under RLIMIT_MEMLOCK) | the same memory, not registered |
//! | registered files (no table, or a full one) | file descriptors |
//!
//! ```
//! use railring_file::{FileRail, FileRailOptions};
//! use railring_transport::{Link, RailControl, SourceRef};
//!
//! let directory = std::env::temp_dir().join(format!("railring-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&directory)?;
//! std::fs::write(directory.join("hello.data"), b"hello")?;
//!
//! let (control, link) = FileRail::open(&directory, FileRailOptions::default())?;
//! let endpoint = directory.to_str().expect("a temporary directory has a plain name");
//! assert!(control.reaches(endpoint));
//! let target =
//!     control.connect(SourceRef { endpoint, handle: "hello.data", generation: 1 })?;
//! println!("{}", link.stats().backend); // io_uring, O_DIRECT
//! control.disconnect(target);
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod control;
mod directory;
mod inject;
mod link;
mod memory;
mod options;
mod progress;
mod ring;
mod targets;
mod workers;

pub use control::FileControl;
pub use inject::Injector;
pub use link::{FileLink, FileRail};
pub use options::{Backend, DirectIo, FileRailError, FileRailOptions};
