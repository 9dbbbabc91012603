//! Object keys, placements and checksums: plain data that says what an object is and where it lies.
//!
//! Nothing here does I/O. A [`Placement`] is what a store or a catalog service hands out; every
//! field of it is untrusted until [`Placement::validate`] turned it into a [`ValidPlacement`], the
//! compiled form that the engine plans from. [`checksum`] is the only place that computes
//! XXH3-64, so that every rail, store and tool agrees on seed, byte order and table format.
#![forbid(unsafe_code)]

pub mod checksum;
mod key;
mod placement;
mod valid;
mod validate;

pub use key::{KEY_BYTES_MAX, KeyError, NAMESPACE_BYTES_MAX, ObjectKey};
pub use placement::{
    BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_PER_STRIPE_MAX, EXTENT_ALIGN,
    EXTENT_END_MAX, OWNERS_PER_STRIPE_MAX, Owner, Placement, STRIPE_BYTES_MAX, STRIPES_MAX, Source,
    StripePlacement,
};
pub use valid::ValidPlacement;
pub use validate::{ExtentKind, Geometry, GeometryError, PlacementError};
