//! Objects on local disks: the crash-safe store over a list of directories of `docs/store.md`.
//!
//! ```
//! use railring_store::{OpenOptions, PutOptions, Store};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let root = tempfile::tempdir()?;
//! let disks = [root.path().join("disk0"), root.path().join("disk1")];
//! let store = Store::create(&disks)?;
//! let key = "models/tiny".parse()?;
//! let options = PutOptions { copies: 2, ..PutOptions::default() };
//! store.put(&key, &mut &b"weights"[..], &options, &mut |_| ControlFlow::Continue(()))?;
//!
//! let store = Store::open(&disks, OpenOptions::default())?;
//! let pin = store.pin(&key)?.expect("just put");
//! assert_eq!(pin.placement().size_bytes, 7);
//! # Ok(())
//! # }
//! ```
//!
//! The store hands out placements; the bytes are read by rails. A placement's sources have the
//! canonical path of a directory as endpoint and a file name relative to it as handle.
#![forbid(unsafe_code)]

mod backend;
mod directory;
mod error;
mod format;
mod list;
mod lookup;
mod manifest;
mod names;
mod pin;
mod publish;
mod put;
mod store;
mod tidy;

pub use backend::{DiskBackend, FileLock, StorageBackend, StoreFile};
pub use error::{
    CreateError, FileError, LookupError, OpenError, PutError, RemoveError, StoreWarning,
};
pub use format::{FORMAT_VERSION, FormatError, StoreId};
pub use list::{DataFileStat, List, ListEntry, ObjectStat, ObjectSummary};
pub use lookup::Found;
pub use pin::Pin;
pub use put::{PutOptions, PutProgress, PutReport, STRIPE_BYTES_DEFAULT};
pub use store::{DIRECTORIES_MAX, OpenMode, OpenOptions, Store};
pub use tidy::{Removed, TidyReport};
