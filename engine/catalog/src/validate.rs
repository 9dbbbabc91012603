//! The rules a placement must keep before anything is read by it, and its compilation.

use crate::checksum::{block_count, table_bytes};
use crate::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_PER_STRIPE_MAX, EXTENT_ALIGN, EXTENT_END_MAX,
    OWNERS_PER_STRIPE_MAX, Owner, Placement, STRIPE_BYTES_MAX, STRIPES_MAX, StripePlacement,
    ValidPlacement,
};
use std::collections::HashMap;
use std::fmt;

/// What an extent of a source holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtentKind {
    /// A stripe's bytes.
    Data,
    /// A stripe's block table.
    Table,
}

impl fmt::Display for ExtentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Table => "block table",
        })
    }
}

/// Why an object cannot be cut that way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The stripe size is 0.
    #[error("stripe size is 0: give at least 1 byte")]
    StripeBytesZero,
    /// The stripe size is above [`STRIPE_BYTES_MAX`].
    #[error("stripe size is {stripe_bytes}, the limit is {STRIPE_BYTES_MAX} (4 GiB)")]
    StripeBytesTooLarge {
        /// Size given.
        stripe_bytes: u64,
    },
    /// The block size is not a power of two, or out of bounds.
    #[error(
        "block size is {block_bytes}: give a power of two from \
            {BLOCK_BYTES_MIN} to {BLOCK_BYTES_MAX}"
    )]
    BlockBytes {
        /// Size given.
        block_bytes: u32,
    },
    /// The block table of a stripe would be too long.
    #[error(
        "a stripe of {stripe_bytes} bytes has {blocks} blocks of {block_bytes} \
            bytes, the limit is {BLOCKS_PER_STRIPE_MAX}: use larger blocks or \
            smaller stripes"
    )]
    TooManyBlocks {
        /// Stripe size given.
        stripe_bytes: u64,
        /// Block size given.
        block_bytes: u32,
        /// Blocks of a full stripe.
        blocks: u64,
    },
    /// The object would have more stripes than [`STRIPES_MAX`].
    #[error("the object has {stripes} stripes, the limit is {STRIPES_MAX}: use larger stripes")]
    TooManyStripes {
        /// Stripes needed.
        stripes: u64,
    },
}

/// Why a placement is refused. Where a stripe is at fault, it is named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// Sizes that no object may have.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The generation is 0.
    #[error("generation is 0: a placement names an existing generation")]
    GenerationZero,
    /// The layout version is 0.
    #[error("layout version is 0: a placement names the version of its layout rules")]
    LayoutVersionZero,
    /// The handle is empty.
    #[error("handle is empty")]
    HandleEmpty,
    /// More sources than an owner can refer to.
    #[error("placement has {sources} sources, the limit is 65535")]
    TooManySources {
        /// Sources given.
        sources: usize,
    },
    /// A source has no endpoint.
    #[error("source {source_index} has an empty endpoint")]
    EndpointEmpty {
        /// Index of the source.
        source_index: u16,
    },
    /// A source has no handle.
    #[error("source {source_index} has an empty handle")]
    SourceHandleEmpty {
        /// Index of the source.
        source_index: u16,
    },
    /// Two sources are the same, which would hide overlapping extents.
    #[error("sources {first} and {second} are the same")]
    DuplicateSource {
        /// Index of the first.
        first: u16,
        /// Index of the second.
        second: u16,
    },
    /// A stripe number at or past the object's stripe count.
    #[error("stripe {stripe} is out of range: the size gives {stripe_count} stripes")]
    StripeOutOfRange {
        /// The number given.
        stripe: u32,
        /// Stripes that the size gives.
        stripe_count: u32,
    },
    /// A stripe is given twice.
    #[error("stripe {stripe} is given twice")]
    DuplicateStripe {
        /// Its number.
        stripe: u32,
    },
    /// A stripe is not given.
    #[error("stripe {stripe} is missing")]
    MissingStripe {
        /// The lowest number that is missing.
        stripe: u32,
    },
    /// A stripe's length is not what the size and the stripe size give.
    #[error("stripe {stripe} has {len_bytes} bytes, the object's size gives {expected_bytes}")]
    LengthContradictsSize {
        /// Its number.
        stripe: u32,
        /// Length given.
        len_bytes: u64,
        /// Length that the size gives.
        expected_bytes: u64,
    },
    /// Nobody has the stripe.
    #[error("stripe {stripe} has no owner")]
    NoOwner {
        /// Its number.
        stripe: u32,
    },
    /// A stripe has more owners than [`OWNERS_PER_STRIPE_MAX`].
    #[error("stripe {stripe} has {owners} owners, the limit is {OWNERS_PER_STRIPE_MAX}")]
    TooManyOwners {
        /// Its number.
        stripe: u32,
        /// Owners given.
        owners: usize,
    },
    /// An owner refers to a source that is not there.
    #[error("stripe {stripe} refers to source {source_index}, the placement has {sources}")]
    SourceOutOfRange {
        /// Its number.
        stripe: u32,
        /// Index given.
        source_index: u16,
        /// Sources there are.
        sources: usize,
    },
    /// An extent ends past [`EXTENT_END_MAX`].
    #[error(
        "{kind} of stripe {stripe} in source {source_index} begins at {offset} \
            and ends past the largest offset"
    )]
    ExtentOverflow {
        /// Its number.
        stripe: u32,
        /// Data or table.
        kind: ExtentKind,
        /// Index of the source.
        source_index: u16,
        /// Where the extent begins.
        offset: u64,
    },
    /// Two extents of one source share bytes.
    #[error(
        "{kind} of stripe {stripe} overlaps {other_kind} of stripe {other} in source {source_index}"
    )]
    OverlappingExtents {
        /// The later stripe.
        stripe: u32,
        /// What it has there.
        kind: ExtentKind,
        /// The stripe whose extent begins first.
        other: u32,
        /// What that one has there.
        other_kind: ExtentKind,
        /// Index of the source.
        source_index: u16,
    },
    /// Some stripes have a checksum, this one has none.
    #[error("stripe {stripe} has no checksum although others have: give all or none")]
    PartialChecksums {
        /// The lowest number without.
        stripe: u32,
    },
    /// Some stripes have a table checksum, this one has none.
    #[error("stripe {stripe} has no table checksum although others have: give all or none")]
    PartialTableChecksums {
        /// The lowest number without.
        stripe: u32,
    },
    /// A table checksum without a stripe checksum.
    #[error("stripe {stripe} has a table checksum but no checksum of its own")]
    TableWithoutChecksum {
        /// Its number.
        stripe: u32,
    },
}

/// How an object is cut; checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    size_bytes: u64,
    stripe_bytes: u64,
    block_bytes: u32,
}

impl Geometry {
    /// Checks the sizes alone, as a writer must before it starts. With `size_bytes` not known
    /// yet, give 0 and check again.
    ///
    /// # Errors
    /// The first size that is out of bounds.
    pub fn new(
        size_bytes: u64,
        stripe_bytes: u64,
        block_bytes: u32,
    ) -> Result<Self, GeometryError> {
        if stripe_bytes == 0 {
            return Err(GeometryError::StripeBytesZero);
        }
        if stripe_bytes > STRIPE_BYTES_MAX {
            return Err(GeometryError::StripeBytesTooLarge { stripe_bytes });
        }
        let bounds = BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX;
        if !block_bytes.is_power_of_two() || !bounds.contains(&block_bytes) {
            return Err(GeometryError::BlockBytes { block_bytes });
        }
        let blocks = block_count(stripe_bytes, block_bytes);
        if blocks > BLOCKS_PER_STRIPE_MAX {
            return Err(GeometryError::TooManyBlocks { stripe_bytes, block_bytes, blocks });
        }
        let stripes = size_bytes.div_ceil(stripe_bytes);
        if stripes > u64::from(STRIPES_MAX) {
            return Err(GeometryError::TooManyStripes { stripes });
        }
        Ok(Self { size_bytes, stripe_bytes, block_bytes })
    }

    /// Number of stripes.
    pub fn stripe_count(&self) -> u32 {
        self.size_bytes.div_ceil(self.stripe_bytes) as u32
    }

    /// Length of stripe `index`; 0 past the last.
    pub fn stripe_len(&self, index: u32) -> u64 {
        let start = u64::from(index).saturating_mul(self.stripe_bytes);
        self.size_bytes.saturating_sub(start).min(self.stripe_bytes)
    }
}

impl Placement {
    /// Checks every rule and compiles the placement. Costs time and memory in proportion to the
    /// stripes and owners given, plus 4 bytes for each stripe that `size_bytes` claims (at most
    /// [`STRIPES_MAX`]).
    ///
    /// # Errors
    /// One rule that is broken: the object's own fields first, then the sources, then the
    /// stripes in the order given, then what only all of them together show.
    pub fn validate(&self) -> Result<ValidPlacement, PlacementError> {
        let geometry = Geometry::new(self.size_bytes, self.stripe_bytes, self.block_bytes)?;
        self.check_identity()?;
        self.check_sources()?;
        let order = self.order(&geometry)?;
        let stripes = || order.iter().map(|&i| &self.stripes[i as usize]);
        check_checksums(stripes)?;
        self.check_extents()?;
        let mut owner_ends = Vec::with_capacity(order.len());
        let mut owners = Vec::new();
        for stripe in stripes() {
            owners.extend_from_slice(&stripe.owners);
            owner_ends.push(owners.len() as u32);
        }
        Ok(ValidPlacement {
            key: self.key.clone(),
            generation: self.generation,
            etag: self.etag.clone(),
            handle: self.handle.clone(),
            layout_version: self.layout_version,
            size_bytes: self.size_bytes,
            stripe_bytes: self.stripe_bytes,
            block_bytes: self.block_bytes,
            sources: self.sources.clone(),
            stripe_count: geometry.stripe_count(),
            owner_ends,
            owners,
            checksums: stripes().filter_map(|s| s.checksum).collect(),
            table_checksums: stripes().filter_map(|s| s.table_checksum).collect(),
        })
    }

    fn check_identity(&self) -> Result<(), PlacementError> {
        if self.generation == 0 {
            return Err(PlacementError::GenerationZero);
        }
        if self.layout_version == 0 {
            return Err(PlacementError::LayoutVersionZero);
        }
        if self.handle.is_empty() {
            return Err(PlacementError::HandleEmpty);
        }
        Ok(())
    }

    fn check_sources(&self) -> Result<(), PlacementError> {
        let sources = self.sources.len();
        if sources > usize::from(u16::MAX) {
            return Err(PlacementError::TooManySources { sources });
        }
        let mut seen = HashMap::with_capacity(sources);
        for (source_index, source) in (0u16..).zip(&self.sources) {
            if source.endpoint.is_empty() {
                return Err(PlacementError::EndpointEmpty { source_index });
            }
            if source.handle.is_empty() {
                return Err(PlacementError::SourceHandleEmpty { source_index });
            }
            if let Some(first) = seen.insert(source, source_index) {
                return Err(PlacementError::DuplicateSource { first, second: source_index });
            }
        }
        Ok(())
    }

    /// Positions in `self.stripes` by stripe number, each stripe checked by itself.
    fn order(&self, geometry: &Geometry) -> Result<Vec<u32>, PlacementError> {
        const NOT_SEEN: u32 = u32::MAX;
        // Bounded by STRIPES_MAX, which Geometry checked.
        let stripe_count = geometry.stripe_count();
        let mut order = vec![NOT_SEEN; stripe_count as usize];
        for (position, s) in (0u32..).zip(&self.stripes) {
            let stripe = s.index;
            let Some(slot) = order.get_mut(stripe as usize) else {
                return Err(PlacementError::StripeOutOfRange { stripe, stripe_count });
            };
            // More stripes than fit are duplicates long before `position` could wrap.
            if std::mem::replace(slot, position) != NOT_SEEN {
                return Err(PlacementError::DuplicateStripe { stripe });
            }
            let expected_bytes = geometry.stripe_len(stripe);
            if s.len_bytes != expected_bytes {
                let len_bytes = s.len_bytes;
                return Err(PlacementError::LengthContradictsSize {
                    stripe,
                    len_bytes,
                    expected_bytes,
                });
            }
            self.check_owners(s)?;
        }
        match order.iter().position(|&p| p == NOT_SEEN) {
            Some(stripe) => Err(PlacementError::MissingStripe { stripe: stripe as u32 }),
            None => Ok(order),
        }
    }

    fn check_owners(&self, s: &StripePlacement) -> Result<(), PlacementError> {
        let (stripe, owners, sources) = (s.index, s.owners.len(), self.sources.len());
        if owners == 0 {
            return Err(PlacementError::NoOwner { stripe });
        }
        if owners > OWNERS_PER_STRIPE_MAX {
            return Err(PlacementError::TooManyOwners { stripe, owners });
        }
        for owner in &s.owners {
            let source_index = owner.source;
            if usize::from(source_index) >= sources {
                return Err(PlacementError::SourceOutOfRange { stripe, source_index, sources });
            }
            for (kind, offset, len) in self.extents(s, owner) {
                let fits = offset.checked_add(len + (EXTENT_ALIGN - 1));
                if fits.is_none_or(|end| end > EXTENT_END_MAX) {
                    return Err(PlacementError::ExtentOverflow {
                        stripe,
                        kind,
                        source_index,
                        offset,
                    });
                }
            }
        }
        Ok(())
    }

    /// What an owner keeps of a stripe: kind, offset, length.
    fn extents(
        &self,
        s: &StripePlacement,
        owner: &Owner,
    ) -> impl Iterator<Item = (ExtentKind, u64, u64)> {
        let table = s.table_checksum.map(|_| {
            (ExtentKind::Table, owner.table_offset, table_bytes(s.len_bytes, self.block_bytes))
        });
        std::iter::once((ExtentKind::Data, owner.offset, s.len_bytes)).chain(table)
    }

    /// Sorts all extents by source and offset; neighbours must not share bytes. No extent is
    /// empty: a stripe has at least one byte and its table one entry.
    fn check_extents(&self) -> Result<(), PlacementError> {
        let mut extents: Vec<(u16, u64, u64, u32, ExtentKind)> = Vec::new();
        for s in &self.stripes {
            for owner in &s.owners {
                extents.extend(
                    self.extents(s, owner).map(|(kind, start, len)| {
                        (owner.source, start, start + len, s.index, kind)
                    }),
                );
            }
        }
        extents.sort_unstable();
        for pair in extents.windows(2) {
            let (source_index, _, end, other, other_kind) = pair[0];
            let (source, start, _, stripe, kind) = pair[1];
            if source == source_index && start < end {
                return Err(PlacementError::OverlappingExtents {
                    stripe,
                    kind,
                    other,
                    other_kind,
                    source_index,
                });
            }
        }
        Ok(())
    }
}

/// All or none, for both kinds, and no table checksum alone.
fn check_checksums<'a, I: Iterator<Item = &'a StripePlacement>>(
    stripes: impl Fn() -> I,
) -> Result<(), PlacementError> {
    let bare = stripes().find(|s| s.table_checksum.is_some() && s.checksum.is_none());
    if let Some(s) = bare {
        return Err(PlacementError::TableWithoutChecksum { stripe: s.index });
    }
    let without = |has: fn(&StripePlacement) -> bool| {
        let missing = stripes().find(|s| !has(s));
        missing.filter(|_| stripes().any(has)).map(|s| s.index)
    };
    if let Some(stripe) = without(|s| s.checksum.is_some()) {
        return Err(PlacementError::PartialChecksums { stripe });
    }
    if let Some(stripe) = without(|s| s.table_checksum.is_some()) {
        return Err(PlacementError::PartialTableChecksums { stripe });
    }
    Ok(())
}
