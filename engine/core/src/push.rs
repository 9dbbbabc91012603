//! What is refused at push, before any I/O, and what is not.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use railring_dma::Lease;
use sq_cq::{Handle, Sqe, SqeFlags};

use crate::object::ObjectInner;
use crate::read::{Destination, Read, SCATTER_LEASES_MAX, What};
use crate::shared::Shared;

/// Why a read was not accepted. Nothing happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// No room now: pop some completions (or wait) and push again. Means only that.
    #[error("the ring is full; pop some completions and push again")]
    Full,
    /// The read could never fit this ring.
    #[error(
        "a read of {stripes} stripes cannot fit a ring of {capacity} CQ entries; make a larger \
         ring, read a shorter range, or read quietly"
    )]
    TooManyStripes {
        /// CQ slots the read needs: its stripes, and one per border of leases it straddles.
        stripes: u32,
        /// CQ slots one read of this ring can have.
        capacity: u32,
    },
    /// The range is not within the object.
    #[error("bytes {offset}..{end} are not within an object of {size} B")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// End, exclusive.
        end: u64,
        /// Size of the object.
        size: u64,
    },
    /// A stripe set names stripes that the object does not have, or none.
    #[error("stripes {first} + {mask:#x} are not stripes of an object of {stripes}")]
    NoSuchStripes {
        /// First stripe.
        first: u32,
        /// Mask from it on.
        mask: u64,
        /// Stripes of the object.
        stripes: u32,
    },
    /// The memory is shorter than what is to be read.
    #[error("the memory has {have} B, the read needs {need} B")]
    BufferTooSmall {
        /// Bytes to be read, gaps between stripes included.
        need: u64,
        /// Bytes of the lease or leases.
        have: u64,
    },
    /// Too many leases, or a stripe set into several.
    #[error("a scattered read takes 1 to {limit} leases and a byte range")]
    BadScatter {
        /// Most leases.
        limit: usize,
    },
    /// The object was opened, or the token made, by another engine.
    #[error("the object or the cancel token is another engine's")]
    OtherEngine,
    /// The memory is not registered with this engine.
    #[error("the memory is not registered with this engine; take it from one of its pools")]
    UnregisteredMemory,
    /// Larger than the configured limit.
    #[error("a read of {bytes} B is over the limit of {limit} B (limits.read_bytes_max); split it")]
    ReadTooLarge {
        /// Bytes of the read.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Part of a stripe was asked for, verified, and the placement has nothing to verify it by.
    #[error(
        "stripe {stripe} is read in part and the placement has no block tables to verify it by; \
         read whole stripes, or skip verification"
    )]
    CannotVerify {
        /// The stripe.
        stripe: u32,
    },
    /// A traced read, and the ring has no room for any trace.
    #[error("the ring keeps no traces; make it with RingConfig::trace, or do not trace the read")]
    NoTraces,
    /// The engine has failed or is shutting down.
    #[error("the engine is gone")]
    EngineGone,
}

impl From<sq_cq::PushError> for PushError {
    fn from(error: sq_cq::PushError) -> Self {
        match error {
            sq_cq::PushError::Full => PushError::Full,
            sq_cq::PushError::TooManyStripes { slots, capacity } => {
                PushError::TooManyStripes { stripes: slots, capacity }
            }
            _ => PushError::EngineGone,
        }
    }
}

/// A read that was not accepted, and why. It comes back whole.
#[derive(Debug)]
pub struct Refused<'o> {
    /// The cause.
    pub why: PushError,
    /// The read, lease and all.
    pub read: Read<'o>,
}

impl Refused<'_> {
    /// Whether it is worth pushing again later.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.why == PushError::Full
    }
}

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl std::error::Error for Refused<'_> {}

/// What goes onto the ring for a read that makes sense.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) sqe: Sqe,
    pub(crate) slots: u32,
    /// Bytes of memory it needs, gaps included.
    pub(crate) bytes: u64,
}

struct Extent {
    bytes: u64,
    stripes: u32,
}

#[inline]
pub(crate) fn check(
    read: &Read<'_>,
    shared: &Arc<Shared>,
    slots_max: u32,
) -> Result<Checked, PushError> {
    if shared.closing.load(Ordering::Relaxed) || shared.failed.load(Ordering::Relaxed) {
        return Err(PushError::EngineGone);
    }
    if read.token.as_ref().is_some_and(|token| !token.is_of(shared)) {
        return Err(PushError::OtherEngine);
    }
    let Some(object) = read.object else {
        let sqe = Sqe::nop().user_data(read.user_data).flags(read.flags & SqeFlags::TRACE);
        return Ok(Checked { sqe, slots: 1, bytes: 0 });
    };
    if !Arc::ptr_eq(&object.opened.shared, shared) {
        return Err(PushError::OtherEngine);
    }
    let inner = &object.opened.inner;
    let buffer = Handle { slot: 0, generation: 0 };
    let (extent, sqe) = match read.what {
        What::Range { offset, end } => {
            let extent = check_range(inner, offset, end)?;
            (extent, Sqe::read(inner.handle, buffer, offset, end - offset))
        }
        What::Stripes { first, mask } => {
            let extent = check_stripes(inner, first, mask)?;
            (extent, Sqe::stripes(inner.handle, buffer, first.into(), mask))
        }
        What::Nop => (Extent { bytes: 0, stripes: 0 }, Sqe::nop()),
    };
    let limit = shared.config.limits.read_bytes_max;
    if extent.bytes > limit {
        return Err(PushError::ReadTooLarge { bytes: extent.bytes, limit });
    }
    let borders = check_memory(read, extent.bytes)?;
    check_proof(read, inner)?;
    let shown = if read.flags.contains(SqeFlags::QUIET) {
        extent.stripes.min(u32::from(read.failures_max) + 1)
    } else {
        extent.stripes
    };
    let slots = shown.max(1) + borders;
    if slots > slots_max {
        return Err(PushError::TooManyStripes { stripes: slots, capacity: slots_max });
    }
    let sqe = sqe.user_data(read.user_data).flags(read.flags);
    Ok(Checked { sqe, slots, bytes: extent.bytes })
}

#[inline]
fn check_range(object: &ObjectInner, offset: u64, end: u64) -> Result<Extent, PushError> {
    let size = object.layout.size_bytes;
    if offset > end || end > size {
        return Err(PushError::OutOfRange { offset, end, size });
    }
    let bytes = end - offset;
    let stripes = if bytes == 0 { 0 } else { object.layout.stripes(offset, bytes).1 };
    Ok(Extent { bytes, stripes })
}

fn check_stripes(object: &ObjectInner, first: u32, mask: u64) -> Result<Extent, PushError> {
    let stripes = object.placement.stripe_count();
    let last = u64::from(first) + u64::from(63 - mask.leading_zeros().min(63));
    if mask == 0 || last >= u64::from(stripes) {
        return Err(PushError::NoSuchStripes { first, mask, stripes });
    }
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    let layout = &object.layout;
    let bytes = u64::from(last - first) * layout.stripe_bytes + layout.stripe_len(last);
    Ok(Extent { bytes, stripes: mask.count_ones() })
}

/// Borders between leases that the read may straddle.
#[inline(always)]
fn check_memory(read: &Read<'_>, need: u64) -> Result<u32, PushError> {
    let (have, borders) = match &read.into {
        None => (0, 0),
        Some(Destination::Lease(lease)) => (lease.len() as u64, 0),
        Some(Destination::Scatter(scatter)) => {
            let leases = scatter.leases.len();
            let range = matches!(read.what, What::Range { .. });
            if leases == 0 || leases > SCATTER_LEASES_MAX || !range {
                return Err(PushError::BadScatter { limit: SCATTER_LEASES_MAX });
            }
            (scatter.bytes(), borders_of(&scatter.leases, need))
        }
    };
    if have < need { Err(PushError::BufferTooSmall { need, have }) } else { Ok(borders) }
}

/// Borders between the leases that `need` bytes reach into; empty ones have none.
fn borders_of(leases: &[Lease], need: u64) -> u32 {
    let mut left = need;
    let mut used = 0_u32;
    for bytes in leases.iter().map(|lease| lease.len() as u64) {
        let taken = bytes.min(left);
        used += u32::from(taken > 0);
        left -= taken;
    }
    used.saturating_sub(1)
}

/// Never silently less than was asked: without tables, only whole stripes can be verified.
#[inline(always)]
fn check_proof(read: &Read<'_>, object: &ObjectInner) -> Result<(), PushError> {
    let placement = &object.placement;
    if read.flags.contains(SqeFlags::SKIP_VERIFY)
        || !placement.has_checksums()
        || placement.has_tables()
    {
        return Ok(());
    }
    let What::Range { offset, end } = read.what else { return Ok(()) };
    if offset == end {
        return Ok(());
    }
    let layout = &object.layout;
    let (first, count) = layout.stripes(offset, end - offset);
    let partial = |index: u32| {
        let cut = layout.cut(index, offset, end - offset);
        cut.from > 0 || cut.to < layout.stripe_len(index)
    };
    match [first, first + count - 1].into_iter().find(|&index| partial(index)) {
        Some(stripe) => Err(PushError::CannotVerify { stripe }),
        None => Ok(()),
    }
}
