//! What makes a simulated rail, and what is refused before one is made.

use railring_transport::{Alignment, LinkLimits};

use crate::refusal::RailConfigError;
use crate::simulated::fault::{Fault, FaultKind, FaultPlan, MILLION, When};
use crate::simulated::latency::Latency;

/// What a simulated rail is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRailConfig {
    /// Its name, unique in its world. The rail's random numbers depend on it and on the world's
    /// seed only.
    pub name: String,
    /// Static weight, 1 to [`WEIGHT_MAX`](crate::WEIGHT_MAX).
    pub weight: u32,
    /// The memory node it claims to be nearest to.
    pub node: Option<u32>,
    /// The endpoints it reaches; `None`: all.
    pub endpoints: Option<Vec<String>>,
    /// Bandwidth in bytes per second, not 0.
    pub bandwidth_bytes_per_second: u64,
    /// Time a request and its answer travel.
    pub latency: Latency,
    /// Requests that may be queued or in flight, 1 to [`WINDOW_WRS_MAX`](crate::WINDOW_WRS_MAX).
    pub window_wrs: u32,
    /// Size of the completion queue that the device grants, if that is smaller than the window.
    pub completion_queue_entries: Option<u32>,
    /// Longest request in bytes.
    pub request_bytes_max: u64,
    /// What requests must be aligned to; this rail checks.
    pub alignment: Alignment,
    /// Most sources it is connected to at once.
    pub targets_max: u32,
    /// What it can register.
    pub registration: RegistrationLimits,
    /// What happens when a request is cancelled.
    pub cancel: Cancelling,
    /// What happens when a request's part is wanted back.
    pub quiesce: Quiescing,
    /// What happens when the limits are not kept.
    pub misuse: Misuse,
    /// What goes wrong.
    pub faults: FaultPlan,
}

impl SimRailConfig {
    /// A rail of 125 MB/s (1 Gbit/s) and 100 us +- 20 us, that has no limit worth the name and no
    /// fault.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        SimRailConfig {
            name: name.into(),
            weight: 1,
            node: None,
            endpoints: None,
            bandwidth_bytes_per_second: 125_000_000,
            latency: Latency::Uniform { mean_ns: 100_000, spread_ns: 20_000 },
            window_wrs: 256,
            completion_queue_entries: None,
            request_bytes_max: 1 << 30,
            alignment: Alignment::NONE,
            targets_max: 1 << 20,
            registration: RegistrationLimits::default(),
            cancel: Cancelling::Honoured { after_ns: 10_000 },
            quiesce: Quiescing::WireCancel { after_ns: 10_000 },
            misuse: Misuse::Panic,
            faults: FaultPlan::none(),
        }
    }

    /// What the device grants.
    #[must_use]
    pub fn limits(&self) -> LinkLimits {
        let entries = self.completion_queue_entries.unwrap_or(u32::MAX);
        LinkLimits {
            outstanding_wrs_max: self.window_wrs.min(entries),
            request_bytes_max: self.request_bytes_max,
            alignment: self.alignment,
        }
    }

    /// Whether a rail can be made of it.
    ///
    /// # Errors
    /// One variant per thing that makes no sense.
    pub fn check(&self) -> Result<(), SimConfigError> {
        RailConfigError::check_rail(&self.name, self.weight, self.alignment)?;
        let rail = || self.name.clone();
        let limits = self.limits();
        if self.bandwidth_bytes_per_second == 0 {
            return Err(SimConfigError::NoBandwidth { rail: rail() });
        }
        RailConfigError::check_window(&self.name, limits.outstanding_wrs_max)?;
        RailConfigError::check_request_bytes(&self.name, limits)?;
        if !self.latency.is_valid() {
            return Err(SimConfigError::BadLatency { rail: rail(), latency: self.latency });
        }
        if self.endpoints.as_ref().is_some_and(Vec::is_empty) || self.targets_max == 0 {
            return Err(SimConfigError::ReachesNothing { rail: rail() });
        }
        if cfg!(not(feature = "fault")) && matches!(self.quiesce, Quiescing::Lie { .. }) {
            return Err(SimConfigError::FaultFeature { rail: rail() });
        }
        self.faults.rules.iter().try_for_each(|rule| self.check_rule(rule.fault, rule.when))
    }

    fn check_rule(&self, fault: Fault, when: When) -> Result<(), SimConfigError> {
        let rail = || self.name.clone();
        let sensible = match fault {
            Fault::TransferError { status, .. }
            | Fault::PostError { status }
            | Fault::PostRefused { status } => !status.is_ok(),
            Fault::Flap { down_ns, up_ns } => down_ns > 0 && up_ns > 0,
            Fault::Rate { bytes_per_second } => bytes_per_second > 0,
            _ => true,
        };
        if !sensible {
            return Err(SimConfigError::BadFault { rail: rail(), fault });
        }
        let possible = match when {
            When::Chance { per_million } => per_million <= MILLION,
            When::Every(period) => period > 0,
            When::Nth(_) | When::At(_) => true,
        };
        if !possible {
            return Err(SimConfigError::BadWhen { rail: rail(), fault: fault.kind(), when });
        }
        if cfg!(not(feature = "fault")) && fault.kind() == FaultKind::LateWrite {
            return Err(SimConfigError::FaultFeature { rail: rail() });
        }
        Ok(())
    }
}

/// What a simulated device can register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationLimits {
    /// Most regions at once.
    pub regions_max: u32,
    /// Longest region in bytes.
    pub region_bytes_max: u64,
    /// Most bytes at once, as a limit on locked memory.
    pub bytes_max: u64,
    /// Most pages at once, as a limit on the device's translations.
    pub pages_max: u64,
    /// Size of one of its pages in bytes, not 0.
    pub page_bytes: u32,
}

impl Default for RegistrationLimits {
    /// No limit, 4 KiB pages.
    fn default() -> Self {
        RegistrationLimits {
            regions_max: u32::MAX,
            region_bytes_max: u64::MAX,
            bytes_max: u64::MAX,
            pages_max: u64::MAX,
            page_bytes: 4096,
        }
    }
}

/// What a device does when a request is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelling {
    /// It drops the request, so much later.
    Honoured {
        /// How much.
        after_ns: u64,
    },
    /// It goes on with the request.
    Ignored,
}

/// What a device does when a request's part is wanted back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quiescing {
    /// The peer confirms, so much later, that it will not write; nothing else is touched.
    WireCancel {
        /// How much.
        after_ns: u64,
    },
    /// The connection is torn down: the request fails, the innocent ones are flushed.
    TearDown {
        /// Until everything is back.
        after_ns: u64,
        /// From then until the device takes requests again.
        reconnect_ns: u64,
    },
    /// The part is given back at once and written later: the wrong device, to prove that tests
    /// for quiet are tests. Needs the `fault` feature.
    Lie {
        /// How much later.
        writes_after_ns: u64,
    },
}

/// What a link does when more is queued than it granted, or a slot that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misuse {
    /// It panics: a completion queue would overflow. For tests that credits are kept.
    Panic,
    /// It says that it is full, or that the request is invalid.
    Refuse,
}

/// Why a rail could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimConfigError {
    /// What is wrong with it is wrong for any rail of this crate.
    #[error(transparent)]
    Rail(#[from] RailConfigError),
    /// The world has a rail of that name.
    #[error("there is a rail {rail} in this world already; give this one another name")]
    NameTaken {
        /// The rail.
        rail: String,
    },
    /// Nothing would ever arrive.
    #[error("rail {rail} has no bandwidth; give it at least 1 byte per second")]
    NoBandwidth {
        /// The rail.
        rail: String,
    },
    /// A spread beyond the mean or a probability beyond one.
    #[error(
        "rail {rail} has {latency:?}; keep the spread within the mean, the share within 1000000"
    )]
    BadLatency {
        /// The rail.
        rail: String,
        /// The latency.
        latency: Latency,
    },
    /// No endpoint, or no target.
    #[error("rail {rail} reaches nothing; name an endpoint and allow a target")]
    ReachesNothing {
        /// The rail.
        rail: String,
    },
    /// A fault with parameters that mean nothing.
    #[error("rail {rail} has {fault:?}; a status must not be ok, a rate and a time not 0")]
    BadFault {
        /// The rail.
        rail: String,
        /// The fault.
        fault: Fault,
    },
    /// A fault that could not be decided.
    #[error(
        "rail {rail} has {when:?} for {}; a chance is at most {MILLION}, a period not 0",
        fault.name()
    )]
    BadWhen {
        /// The rail.
        rail: String,
        /// The kind of fault.
        fault: FaultKind,
        /// When it was to strike.
        when: When,
    },
    /// Late writes were not compiled in.
    #[error("rail {rail} writes into memory that was given back; that needs the fault feature")]
    FaultFeature {
        /// The rail.
        rail: String,
    },
}
