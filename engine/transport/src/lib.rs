//! The trait a rail implements, and nothing else: work requests go in, completions come out, and
//! the memory a device may write is owned by whoever may write it.
//!
//! A rail has two halves, because its calls have two speeds:
//!
//! * [`RailControl`] is shared by any threads and may block: register memory, connect to a source.
//! * [`Link`] is the data path. It belongs to one poller and never blocks: queue, commit, reap,
//!   cancel, quiesce (the words of fio's engine interface).
//!
//! ```text
//!   core                          link                        device
//!    │ queue(WorkRequest{part}) ──►│ holds the part              │
//!    │ queue(..) queue(..)         │                             │
//!    │ commit() ──────────────────►│ one doorbell ──────────────►│ may write the part
//!    │ reap(..) ◄── Completion{part}│ ◄─────────────── completion │ never again: quiet
//! ```
//!
//! A [`Part`](railring_dma::Part) moves into `queue` and comes back in a [`Completion`], once and
//! only when nothing can write it any more. A late or repeated completion has no part to bring, so
//! it cannot be expressed to the core: the link's [`PartTable`] counts it as stale. A link that is
//! dropped leaks the parts it holds.
#![forbid(unsafe_code)]

mod control;
mod link;
mod notes;
mod parts;

pub use control::{
    ConnectError, ConnectionCounts, ControlStats, RailControl, RailInfo, RailKind, RegisterError,
    SourceRef,
};
pub use link::{
    Alignment, Completion, Link, LinkLimits, LinkStats, Nanos, Outcome, Refused, Registration,
    TargetId, WorkRequest, WrId,
};
pub use notes::Notes;
pub use parts::PartTable;
