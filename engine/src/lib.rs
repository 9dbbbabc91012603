//! Reads striped objects over several I/O paths at once, through an io_uring-style pair of rings.
#![forbid(unsafe_code)]

mod builder;
mod link;
mod rails;
mod reader;

pub use builder::{Engine, EngineBuilder, EngineError, InlineEngine, Pinning, Strictness};
pub use link::AnyLink;
pub use rails::{RailError, RailSet};
pub use reader::{ReadBytes, ReadFuture, Reader, ReaderConfig, ReaderError};

pub use railring_catalog as catalog;
pub use railring_dma as dma;
pub use railring_file as file;
pub use railring_sim as sim;
pub use railring_store as store;
pub use railring_topology as topology;
pub use railring_transport as transport;

pub use railring_catalog::{ObjectKey, Placement};
pub use railring_core::{
    BlockingReader, BlockingReaderConfig, BlockingReaderError, BuildError, CancelToken,
    CancelledBy, Completion, ConfigError, Destination, Drive, EngineConfig, EngineStats, HeldBy,
    Latencies, Limits, MemoryError, NoSuchRail, Object, OpenError, Policy, PollerStart, PoolConfig,
    Progress, PublishGate, PushError, PushWaitError, RailHealth, RailStats, Read, ReadIntoError,
    ReadOptions, Recheck, Refused, Ring, RingConfig, RingMakeError, Scatter, StripeFailure,
    Threads, Verification, WaitError, WaitRefused, Waiting,
};
pub use railring_dma::{Lease, Pool};
pub use railring_store::Store;
pub use sq_cq::{Cqe, Proof, ReadId, Status};
