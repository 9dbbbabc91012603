//! Reads striped objects over several I/O paths at once, through an io_uring-style pair of rings.
//!
//! A caller pushes [`Read`]s into a [`Ring`] it owns. Each is cut into pieces that go over all
//! *rails* (one per disk or port) at once; every finished stripe is verified and becomes one
//! completion, published only when nothing can write its bytes any more. Nothing on this path
//! allocates or locks.
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//! use railring::store::PutOptions;
//! use railring::{Engine, PoolConfig, RailSet, Read, RingConfig, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! // An object, in a store over two directories: say, two disks.
//! let disks = [home.path().join("disk0"), home.path().join("disk1")];
//! let store = Store::create(&disks)?;
//! let bytes: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
//! let options = PutOptions { stripe_bytes: 65_536, ..PutOptions::default() };
//! let mut go_on = |_| ControlFlow::Continue(());
//! let put = store.put(&"demo/object".parse()?, &mut &bytes[..], &options, &mut go_on)?;
//!
//! // One rail per directory, memory, and a ring for this thread.
//! let engine = Engine::builder().rails(RailSet::directories(&disks)?).build()?;
//! let object = engine.open(&put.placement)?;
//! let memory = PoolConfig { slots: 4, slot_bytes: 256 << 10, ..PoolConfig::default() };
//! let pool = engine.buffer_pool(memory)?;
//! let mut ring = engine.ring(RingConfig::default())?;
//!
//! let lease = pool.take().ok_or("all memory is in use")?;
//! let id = ring.push(Read::new(&object, 0..object.len(), lease).user_data(7))
//!     .map_err(|refused| refused.why)?; // a refused read comes back, lease and all
//! let mut stripes = 0;
//! while ring.is_live(id) {
//!     ring.wait(1, Duration::from_secs(5))?; // submits first
//!     while let Some(cqe) = ring.pop() {
//!         assert!(cqe.status().is_ok() && cqe.user_data() == 7);
//!         let start = usize::from(cqe.stripe()) * 65_536;
//!         let stripe = ring.bytes(&cqe).ok_or("this stripe failed")?; // before the read ends
//!         assert_eq!(stripe, &bytes[start..start + stripe.len()]);
//!         stripes += 1;
//!         if let Some(lease) = cqe.into_lease() {
//!             drop(lease); // only the last CQE of a read brings it; its pool has it back now
//!         }
//!     }
//! }
//! assert_eq!(stripes, 4);
//! # Ok(())
//! # }
//! ```
//!
//! # Which way to read
//!
//! | you have | use |
//! |---|---|
//! | many reads at once, a thread for them | [`Ring`] and [`Engine`] |
//! | few cores, or a loop that should do the work itself | [`InlineEngine`] |
//! | an event loop | [`Ring::arm`] and the ring's descriptor |
//! | futures, of any runtime | [`Reader`] |
//! | one read at a time, into a slice | [`BlockingReader`] |
//!
//! Blocking reads leave the slice alone unless everything verified:
//!
//! ```no_run
//! # fn read(engine: &railring::Engine, object: &railring::Object)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use railring::{BlockingReader, BlockingReaderConfig, ReadOptions};
//!
//! let mut reader = BlockingReader::new(engine, BlockingReaderConfig::default())?;
//! let mut header = [0; 512];
//! reader.read_into(object, 0..512, &mut header, ReadOptions::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! The exact meaning of every flag and field is in `docs/semantics.md` of the repository.
#![forbid(unsafe_code)]

mod builder;
mod discover;
mod link;
mod place;
mod rails;
mod reader;
mod seats;

pub use builder::{Engine, EngineBuilder, EngineError, InlineEngine, Pinning, Strictness};
pub use link::AnyLink;
pub use rails::{RailError, RailSet};
pub use reader::{ReadBytes, ReadFuture, Reader, ReaderConfig, ReaderError};
pub use seats::Seat;

pub use railring_catalog as catalog;
pub use railring_dma as dma;
pub use railring_file as file;
pub use railring_sim as sim;
pub use railring_store as store;
pub use railring_topology as topology;
pub use railring_transport as transport;
#[cfg(feature = "verbs")]
pub use railring_verbs as verbs;

pub use railring_catalog::{ObjectKey, Placement};
pub use railring_core::{
    BlockingReader, BlockingReaderConfig, BlockingReaderError, Bottleneck, BuildError, CancelToken,
    CancelledBy, ClassStats, Completion, ConfigError, Destination, Drive, EngineConfig,
    EngineStats, HeldBy, Latencies, Limits, MemoryError, NoSuchRail, Object, OpenError, Policy,
    PollerStart, PollerStats, PoolConfig, PoolNode, Progress, PublishGate, PushError,
    PushWaitError, RailErrors, RailHealth, RailStats, Read, ReadClass, ReadIntoError, ReadOptions,
    ReadTrace, Recheck, Refused, Ring, RingConfig, RingMakeError, RingStats, Scatter,
    StripeFailure, Threads, TraceConfig, TraceKind, TraceOf, TraceRail, TraceRecord, TraceStages,
    Verification, WaitError, WaitRefused, Waiting,
};
pub use railring_dma::{Lease, Pool};
pub use railring_store::Store;
pub use sq_cq::{Cqe, Proof, ReadId, Status};

/// The program of the README, so that it is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
