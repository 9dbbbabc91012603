//! What is refused before a rail of this crate is made, null or simulated.

use railring_transport::{Alignment, LinkLimits};

/// Highest static weight: beyond it weights are not ratios of rates but mistakes.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// Most requests that a simulated device can have in flight.
pub const WINDOW_WRS_MAX: u32 = 1 << 20;

/// Why a null rail, or a simulated one, could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailConfigError {
    /// The name is empty or blank.
    #[error("a rail has a blank name; give it one")]
    BlankName,
    /// The weight is 0 or too high.
    #[error("rail {rail} has weight {weight}; a weight is 1 to {WEIGHT_MAX}")]
    Weight {
        /// The rail.
        rail: String,
        /// What was asked for.
        weight: u32,
    },
    /// No request could ever be in flight.
    #[error("rail {rail} has no window; let at least 1 request be outstanding")]
    NoWindow {
        /// The rail.
        rail: String,
    },
    /// More requests in flight than are simulated.
    #[error("rail {rail} has a window of {wrs} requests; at most {WINDOW_WRS_MAX} are simulated")]
    WindowTooLarge {
        /// The rail.
        rail: String,
        /// What was asked for.
        wrs: u32,
    },
    /// An alignment is 0 or not a power of two.
    #[error("rail {rail} has alignment {bytes} B; an alignment is a power of two")]
    Alignment {
        /// The rail.
        rail: String,
        /// The offending alignment.
        bytes: u32,
    },
    /// The longest request is shorter than the shortest aligned one.
    #[error(
        "rail {rail} takes requests of at most {request_bytes_max} B, in multiples of \
         {length_bytes} B; no request fits, so raise the first or lower the second"
    )]
    RequestTooSmall {
        /// The rail.
        rail: String,
        /// The longest request, in bytes.
        request_bytes_max: u64,
        /// The alignment of lengths, in bytes.
        length_bytes: u32,
    },
}

impl RailConfigError {
    /// The checks that null and simulated rails share.
    pub(crate) fn check_rail(name: &str, weight: u32, alignment: Alignment) -> Result<(), Self> {
        if name.trim().is_empty() {
            return Err(RailConfigError::BlankName);
        }
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(RailConfigError::Weight { rail: name.into(), weight });
        }
        let Alignment { offset_bytes, length_bytes, memory_bytes } = alignment;
        for bytes in [offset_bytes, length_bytes, memory_bytes] {
            if !bytes.is_power_of_two() {
                return Err(RailConfigError::Alignment { rail: name.into(), bytes });
            }
        }
        Ok(())
    }

    /// Whether some requests, and not too many, can be in flight.
    pub(crate) fn check_window(name: &str, wrs: u32) -> Result<(), Self> {
        match wrs {
            0 => Err(RailConfigError::NoWindow { rail: name.into() }),
            1..=WINDOW_WRS_MAX => Ok(()),
            _ => Err(RailConfigError::WindowTooLarge { rail: name.into(), wrs }),
        }
    }

    /// Whether the shortest aligned request is within the limit.
    pub(crate) fn check_request_bytes(name: &str, limits: LinkLimits) -> Result<(), Self> {
        let (request_bytes_max, length_bytes) =
            (limits.request_bytes_max, limits.alignment.length_bytes);
        if request_bytes_max < u64::from(length_bytes) {
            let rail = name.into();
            return Err(RailConfigError::RequestTooSmall { rail, request_bytes_max, length_bytes });
        }
        Ok(())
    }
}
