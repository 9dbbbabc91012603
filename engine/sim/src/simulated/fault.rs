//! Everything that can go wrong on a simulated rail, and when it does.

use railring_transport::Nanos;
use sq_cq::Status;

/// Probabilities are counted in millionths, so that no float rounds differently somewhere.
pub const MILLION: u32 = 1_000_000;

/// One thing that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The request never completes of itself; it comes back only when it is cancelled or quiesced.
    Lost,
    /// The request completes so much later.
    Delay {
        /// How much.
        delay_ns: u64,
    },
    /// The request's completion is overtaken by the next one, if that comes within a time.
    Reorder {
        /// How long it waits to be overtaken.
        hold_ns: u64,
    },
    /// Fewer bytes come than were asked for, and the rail says so: `Done` with what came if that
    /// reaches the request's `bytes_min`, else `Failed` with [`Status::SHORT_READ`].
    ShortDelivery,
    /// Fewer bytes come than the completion says. Only verification can tell.
    SilentTruncation,
    /// One bit of the delivered bytes is wrong.
    FlippedByte,
    /// One bit is wrong in what is delivered of a block table.
    CorruptTable,
    /// The second half of the bytes lands first, and the rest later with the completion.
    TailFirst {
        /// Time between the halves.
        gap_ns: u64,
    },
    /// The request hangs in the device: neither cancel nor quiesce nor a lost connection brings it
    /// back.
    Hang {
        /// When it comes back after all, from its posting on; `None`: never.
        returns_after_ns: Option<u64>,
    },
    /// The request's completion comes twice.
    DuplicateCompletion {
        /// How much later the second time.
        after_ns: u64,
    },
    /// Beside the request's completion comes one for a slot that does not exist.
    UnknownCompletion,
    /// Beside the request's completion comes one for an earlier use of its slot.
    OldCompletion,
    /// The request's bytes land once more after it was given back, which no rail may do: for tests
    /// of tests. Needs the `fault` feature.
    LateWrite {
        /// How much later than the completion.
        after_ns: u64,
    },
    /// The owner says that it has another generation.
    StaleAnswer,
    /// The owner says that it does not have the object.
    NotFoundAnswer,
    /// The owner says that it will not serve the request.
    RefusedAnswer,
    /// The transfer fails on the way.
    TransferError {
        /// The cause, not ok.
        status: Status,
        /// The device's own code.
        vendor: u32,
    },
    /// The device takes only some of a doorbell's requests; the rest stay queued.
    PartialPost,
    /// The device takes the requests of a doorbell up to one that it refuses, which comes back as
    /// failed; those behind it stay queued.
    PostRefused {
        /// The cause, not ok.
        status: Status,
    },
    /// A request is refused when it is queued.
    PostError {
        /// The cause, not ok.
        status: Status,
    },
    /// A request finds no room when it is queued, though there is some.
    SpuriousFull,
    /// The rail loses all its connections. What is in flight fails or is flushed; what is posted
    /// until they are back fails with ENETDOWN.
    Disconnect {
        /// How long it stays broken.
        down_ns: u64,
    },
    /// The connection breaks again and again, from then on.
    Flap {
        /// How long it stays broken each time; not 0.
        down_ns: u64,
        /// How long it works in between; not 0.
        up_ns: u64,
    },
    /// Nothing on the rail makes progress for a time; then it goes on where it was.
    Stall {
        /// How long.
        stall_ns: u64,
    },
    /// A call of the link panics before it has any effect, as a driver with a bug does. The panic
    /// is not shown.
    Panic,
    /// The rail has another bandwidth from then on, and tells nobody.
    Rate {
        /// The bandwidth; not 0.
        bytes_per_second: u64,
    },
}

/// What decides about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// A call of `queue`.
    Queue,
    /// A call of `commit` with something queued.
    Doorbell,
    /// A call of `queue`, `commit` or `reap`.
    Call,
    /// A request that the device takes; its own fate.
    Request,
    /// A request that the device takes, or a time; the fate of the rail.
    Rail,
}

/// Declares the kinds of fault once: the name of each and where it is decided.
macro_rules! kinds {
    ($($kind:ident, $name:literal, $site:ident;)+) => {
        /// A fault without its parameters: what is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FaultKind {
            $(#[doc = concat!("See [`Fault::", stringify!($kind), "`].")] $kind,)+
        }

        impl FaultKind {
            /// All kinds, in the order of their counters.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$kind,)+];

            /// Its name, for tables of coverage.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(FaultKind::$kind => $name,)+ }
            }

            pub(crate) const fn site(self) -> Site {
                match self { $(FaultKind::$kind => Site::$site,)+ }
            }
        }

        impl Fault {
            /// Its kind.
            #[must_use]
            pub const fn kind(self) -> FaultKind {
                match self { $(Fault::$kind { .. } => FaultKind::$kind,)+ }
            }
        }
    };
}

kinds! {
    Lost, "lost", Request;
    Delay, "delay", Request;
    Reorder, "reorder", Request;
    ShortDelivery, "short-delivery", Request;
    SilentTruncation, "silent-truncation", Request;
    FlippedByte, "flipped-byte", Request;
    CorruptTable, "corrupt-table", Request;
    TailFirst, "tail-first", Request;
    Hang, "hang", Request;
    DuplicateCompletion, "duplicate-completion", Request;
    UnknownCompletion, "unknown-completion", Request;
    OldCompletion, "old-completion", Request;
    LateWrite, "late-write", Request;
    StaleAnswer, "stale-answer", Request;
    NotFoundAnswer, "not-found-answer", Request;
    RefusedAnswer, "refused-answer", Request;
    TransferError, "transfer-error", Request;
    PartialPost, "partial-post", Doorbell;
    PostError, "post-error", Queue;
    SpuriousFull, "spurious-full", Queue;
    Disconnect, "disconnect", Rail;
    Flap, "flap", Rail;
    Stall, "stall", Rail;
    Rate, "rate", Rail;
    PostRefused, "post-refused", Doorbell;
    Panic, "panic", Call;
}

/// When a fault strikes. An *opportunity* is a request that the device takes; for the faults of
/// queueing it is a call of `queue`, for a partial post a doorbell, for a panic any call that moves
/// requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// At each opportunity with this probability, in millionths.
    Chance {
        /// The probability, at most [`MILLION`].
        per_million: u32,
    },
    /// Once, at the opportunity with this number, from 0.
    Nth(u64),
    /// At each opportunity whose number is a multiple of this; not 0.
    Every(u64),
    /// Once, at this time; a request's fault at the first opportunity from then on.
    At(Nanos),
}

impl When {
    /// At every opportunity.
    pub const ALWAYS: When = When::Chance { per_million: MILLION };
}

/// A fault, when it strikes, and whose requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What goes wrong.
    pub fault: Fault,
    /// When.
    pub when: When,
    /// Only requests to this endpoint are opportunities, if one is named.
    pub endpoint: Option<String>,
}

/// All that goes wrong on one rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// In the order in which they are decided.
    pub rules: Vec<FaultRule>,
}

impl FaultPlan {
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        FaultPlan::default()
    }

    /// And `fault`, for any endpoint.
    #[must_use]
    pub fn with(mut self, fault: Fault, when: When) -> Self {
        self.rules.push(FaultRule { fault, when, endpoint: None });
        self
    }

    /// And `fault`, for requests to `endpoint`.
    #[must_use]
    pub fn with_at(mut self, endpoint: impl Into<String>, fault: Fault, when: When) -> Self {
        self.rules.push(FaultRule { fault, when, endpoint: Some(endpoint.into()) });
        self
    }
}
