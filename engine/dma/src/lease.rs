//! Leases: exclusive ownership of a range of a region's bytes.
//!
//! Unsafe here rests on the crate's invariant: a lease is the one owner of its bytes.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::loan::Loan;
use crate::part::Part;
use crate::pool::{Pool, PoolError, PoolOptions, PoolRef};
use crate::region::Region;
use crate::registry::{RegionId, RegistryInner};
use crate::serial::Serial;

/// Exclusive ownership of a range of bytes: only who has the lease reads or writes them. Dropping
/// it gives the bytes back to the pool, whose slot is free once all that was split from it is
/// back.
#[must_use = "dropping a lease gives its bytes back"]
pub struct Lease {
    holding: Holding,
}

/// What a lease holds, without the giving back: also what a loan keeps.
pub(crate) struct Holding {
    pub(crate) pool: PoolRef,
    pub(crate) base: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(crate) slot: u32,
    /// At least every serial that a byte of the range was lent under.
    pub(crate) serial: Serial,
}

// SAFETY: the bytes at `base` belong to this value, not to a thread.
unsafe impl Send for Holding {}
// SAFETY: a shared reference only reads them.
unsafe impl Sync for Holding {}

/// A split beyond the end of a lease; the lease comes back.
#[derive(Debug, thiserror::Error)]
#[error("a split at {mid} of a lease of {} bytes was refused; split within it", lease.len())]
pub struct SplitError {
    /// The lease, unchanged.
    pub lease: Lease,
    /// Where it was to be split.
    pub mid: usize,
}

/// Two leases that cannot be one; both come back.
#[derive(Debug, thiserror::Error)]
#[error(
    "joining two leases was refused; the second must begin where the first ends, in the same pool \
     slot"
)]
pub struct JoinError {
    /// The lease that was to be the first part.
    pub first: Lease,
    /// The lease that was to be the second part.
    pub second: Lease,
}

impl Lease {
    #[inline]
    pub(crate) fn new(holding: Holding) -> Lease {
        Lease { holding }
    }

    /// The whole of a region, as a pool of one slot would give it; the bytes go back to the region.
    ///
    /// # Errors
    /// [`PoolError::RegionInUse`] while a pool or another lease holds the region.
    pub fn whole(region: &Region) -> Result<Lease, PoolError> {
        let pool = Pool::new(region, region.bytes(), PoolOptions { alignment: 1 })?;
        pool.take().ok_or(PoolError::RegionInUse { region: region.id() })
    }

    /// The holding, which the caller now has to release.
    #[inline]
    fn into_holding(self) -> Holding {
        let this = ManuallyDrop::new(self);
        Holding { ..this.holding }
    }

    pub(crate) fn holding_registry(&self) -> &RegistryInner {
        self.holding.pool.region().registry()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.holding.bytes
    }

    /// Whether the lease has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.holding.bytes == 0
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the lease owns the bytes (crate invariant), which are mapped and initialised as
        // long as its pool lives.
        unsafe { std::slice::from_raw_parts(self.holding.base.as_ptr(), self.holding.bytes) }
    }

    /// The bytes, to write.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the lease is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.holding.base.as_ptr(), self.holding.bytes) }
    }

    /// Address of the first byte.
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        self.holding.base
    }

    /// The region the bytes are of.
    #[inline]
    pub fn region(&self) -> RegionId {
        self.holding.pool.region().id()
    }

    /// Distance in bytes from the start of the region.
    #[inline]
    pub fn region_offset(&self) -> usize {
        self.holding.region_offset()
    }

    /// Two leases: the first `mid` bytes, and the rest. Either may be empty.
    ///
    /// # Errors
    /// `mid` is beyond the end; the lease comes back.
    pub fn split_at(self, mid: usize) -> Result<(Lease, Lease), SplitError> {
        if mid > self.len() {
            return Err(SplitError { lease: self, mid });
        }
        let mut first = self.into_holding();
        first.pool.add_holder(first.slot);
        // SAFETY: `mid` is at most the length of the range, so the address is in it or just behind.
        let base = unsafe { first.base.add(mid) };
        let second = Holding { base, bytes: first.bytes - mid, ..first };
        first.bytes = mid;
        Ok((Lease::new(first), Lease::new(second)))
    }

    /// One lease of both, where `second` begins where this one ends, in the same slot.
    ///
    /// # Errors
    /// They are not neighbours in that order; both come back.
    pub fn join(self, second: Lease) -> Result<Lease, JoinError> {
        let (one, two) = (&self.holding, &second.holding);
        let adjacent = one.end_address() == two.base.as_ptr() as usize;
        if !adjacent || one.slot != two.slot || one.pool != two.pool {
            return Err(JoinError { first: self, second });
        }
        let (mut one, two) = (self.into_holding(), second.into_holding());
        one.bytes += two.bytes;
        one.serial = one.serial.max(two.serial);
        one.pool.merge_holder(one.slot);
        Ok(Lease::new(one))
    }

    /// Parts with the bytes: the part is the right to read and write them, the loan is the way to
    /// get them back. No allocation and no atomic operation.
    #[inline]
    pub fn lend(self) -> (Loan, Part) {
        let mut holding = self.into_holding();
        holding.serial = holding.serial.next();
        let region = holding.pool.region().id();
        let part = Part::new(holding.base, holding.bytes, region, holding.serial);
        (Loan::new(holding), part)
    }
}

impl Holding {
    #[inline]
    pub(crate) fn end_address(&self) -> usize {
        self.base.as_ptr() as usize + self.bytes
    }

    #[inline]
    pub(crate) fn region_offset(&self) -> usize {
        self.base.as_ptr() as usize - self.pool.region().base().as_ptr() as usize
    }

    /// Gives the bytes back to the pool. Once, by whoever the holding belongs to, who does not
    /// use it again.
    #[inline]
    pub(crate) fn release(&self) {
        self.pool.release(self.slot, self.serial);
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        self.holding.release();
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("region", &self.region())
            .field("region_offset", &self.region_offset())
            .field("bytes", &self.len())
            .finish()
    }
}
