//! What makes a simulated rail, and what is refused before one is made.

use railring_transport::Alignment;

/// Highest static weight: beyond it weights are not ratios of rates but mistakes.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// Why a rail could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimConfigError {
    /// The name is empty or blank.
    #[error("a simulated rail has a blank name; give it one")]
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

impl SimConfigError {
    /// The checks that null and simulated rails share.
    pub(crate) fn check_rail(name: &str, weight: u32, alignment: Alignment) -> Result<(), Self> {
        if name.trim().is_empty() {
            return Err(SimConfigError::BlankName);
        }
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(SimConfigError::Weight { rail: name.into(), weight });
        }
        let Alignment { offset_bytes, length_bytes, memory_bytes } = alignment;
        for bytes in [offset_bytes, length_bytes, memory_bytes] {
            if !bytes.is_power_of_two() {
                return Err(SimConfigError::Alignment { rail: name.into(), bytes });
            }
        }
        Ok(())
    }
}
