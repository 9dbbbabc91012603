//! The engine: reads are planned, scheduled over rails, verified and completed. No transport and
//! no unsafe code.
//!
//! ```text
//!   Ring ──SQE──► home poller ──plan──► pieces ──schedule──► rail's poller ──► Link
//!    ▲             (home/)               plan.rs  schedule.rs  (poller/port)     │
//!    └────CQE────── finish ◄──── land ◄────────────────────── settle ◄───────────┘
//! ```
#![forbid(unsafe_code)]

mod budget;
mod build;
mod cancel;
mod clock;
mod config;
mod ease;
mod engine;
mod health;
mod home;
mod loans;
mod mail;
mod memory;
mod object;
mod places;
mod plan;
mod poller;
mod push;
mod rail_errors;
mod read;
mod ring;
mod schedule;
mod shared;
mod slab;
mod snapshot;
mod stages;
mod staging;
mod stats;
mod steps;
mod tables;
mod trace;
mod wheel;

pub use build::{BuildError, EngineBuilder, Rail};
pub use cancel::CancelToken;
pub use clock::Hashing;
pub use config::{ConfigError, EngineConfig, Limits, Waiting};
pub use ease::{
    BlockingReader, BlockingReaderConfig, BlockingReaderError, CancelledBy, Drive, HeldBy,
    PublishGate, PushWaitError, ReadIntoError, ReadOptions, Recheck, StripeFailure, Threads,
    Verification, WaitRefused,
};
pub use engine::{
    Engine, InlineEngine, MemoryError, NoSuchRail, PollerStart, RingMakeError, StartHook,
};
pub use health::RailHealth;
pub use object::{Object, OpenError};
pub use places::{NodeHook, PoolConfig, PoolNode, RailPlace};
pub use poller::Progress;
pub use push::{PushError, Refused};
pub use rail_errors::RailErrors;
pub use read::{Destination, Read, SCATTER_LEASES_MAX, Scatter};
pub use ring::{Completion, Ring, RingConfig, RingStats, WaitError};
pub use schedule::{Policy, PolicyError, RAILS_MAX};

pub use stages::{Bottleneck, ClassStats, ReadClass};
pub use staging::StagingError;
pub use stats::{EngineStats, Latencies, PollerStats, RailStats};
pub use trace::{
    ReadTrace, TraceConfig, TraceKind, TraceOf, TraceRail, TraceRecord, TraceStages, TraceTooLarge,
};
