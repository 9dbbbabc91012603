//! Loans: the lender's side of a lent lease, to which its parts come back.
//!
//! Unsafe here rests on the crate's invariant: bytes that came back are the loan's until it
//! settles.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::lease::{Holding, Lease};
use crate::part::Part;
use crate::registry::RegionId;
use crate::serial::Serial;

/// What the lender of a lease keeps while the parts are away. It collects them, shows the bytes
/// that are back, and becomes the lease again when all are. `Send + Sync`; nothing allocates, and
/// only dropping is more than plain arithmetic.
///
/// Dropped with bytes still out, a loan leaks: the memory stays mapped for ever, counted in
/// [`crate::RegionsStats::leaked_bytes`]. [`Loan::impound`] keeps the way open for late parts.
#[must_use = "dropping a loan before its parts are back leaks its memory"]
pub struct Loan {
    holding: Holding,
    returned_bytes: usize,
}

/// Proof that some bytes of one lending came back. It opens [`Loan::bytes`] of that loan only,
/// never those of a later loan of the same memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    start_address: usize,
    bytes: usize,
    serial: Serial,
}

/// A loan put aside because its parts may come back very late, or never. Held by the engine,
/// counted in [`crate::RegionsStats::impounded_bytes`]. Dropping it leaks as dropping a loan
/// does.
#[must_use = "dropping impounded memory leaks it"]
#[derive(Debug)]
pub struct Impounded {
    /// Empty once the lease was handed out.
    loan: Option<Loan>,
}

impl Loan {
    #[inline]
    pub(crate) fn new(holding: Holding) -> Loan {
        Loan { holding, returned_bytes: 0 }
    }

    /// The holding, which the caller now has to release.
    #[inline]
    fn into_holding(self) -> Holding {
        let this = ManuallyDrop::new(self);
        Holding { ..this.holding }
    }

    #[inline]
    fn contains(&self, start_address: usize, end_address: usize, serial: Serial) -> bool {
        let holding = &self.holding;
        serial == holding.serial
            && start_address >= holding.base.as_ptr() as usize
            && end_address <= holding.end_address()
    }

    /// Takes a part back; its bytes are readable from now on, with the receipt.
    ///
    /// # Errors
    /// The part is of another loan; it comes back.
    #[inline]
    pub fn repay(&mut self, part: Part) -> Result<Receipt, Part> {
        let (start_address, serial) = (part.start_address(), part.serial());
        if !self.contains(start_address, part.end_address(), serial) {
            return Err(part);
        }
        let bytes = part.len();
        self.returned_bytes += bytes;
        Ok(Receipt { start_address, bytes, serial })
    }

    /// The bytes that a receipt of this loan stands for; nothing if it is of another one.
    #[inline]
    pub fn bytes(&self, receipt: &Receipt) -> Option<&[u8]> {
        let end_address = receipt.start_address + receipt.bytes;
        if !self.contains(receipt.start_address, end_address, receipt.serial) {
            return None;
        }
        let offset = receipt.start_address - self.holding.base.as_ptr() as usize;
        // SAFETY: the check above keeps the offset within the loan's range.
        let start = unsafe { self.holding.base.add(offset) };
        // SAFETY: the serial says that the receipt is of this lending (see `Serial`), so these
        // bytes came back and are the loan's, which lends them out no more.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), receipt.bytes) })
    }

    /// Length of the lent lease in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.holding.bytes
    }

    /// Whether the lent lease has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.holding.bytes == 0
    }

    /// Bytes that have not come back.
    #[inline]
    pub fn outstanding_bytes(&self) -> usize {
        self.holding.bytes - self.returned_bytes
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

    /// The lease again.
    ///
    /// # Errors
    /// Bytes are still out; the loan comes back.
    #[inline]
    pub fn settle(self) -> Result<Lease, Loan> {
        if self.outstanding_bytes() > 0 {
            return Err(self);
        }
        Ok(Lease::new(self.into_holding()))
    }

    /// Puts the loan aside and counts it as impounded; late parts can still be repaid.
    pub fn impound(self) -> Impounded {
        let registry = self.holding.pool.region().registry();
        registry.impounded_bytes.fetch_add(self.len() as u64, Ordering::Relaxed);
        Impounded { loan: Some(self) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.outstanding_bytes() == 0 {
            self.holding.release();
            return;
        }
        // A transfer may still write the bytes. Not given back, the slot stays taken, and so its
        // pool and region stay, for ever.
        let registry = self.holding.pool.region().registry();
        registry.leaked_bytes.fetch_add(self.len() as u64, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loan")
            .field("region", &self.region())
            .field("region_offset", &self.region_offset())
            .field("bytes", &self.len())
            .field("outstanding_bytes", &self.outstanding_bytes())
            .finish()
    }
}

impl Receipt {
    /// Length in bytes of what came back.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte that came back, to find it in the lease once the loan is settled.
    #[inline]
    pub fn address(&self) -> usize {
        self.start_address
    }

    /// Whether nothing came back: the part was empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// One receipt for both, where `next` begins where this one ends in the same lending; so that a
    /// stripe that came in pieces is read as one. Nothing if they are not neighbours in that order.
    #[inline]
    pub fn join(self, next: Receipt) -> Option<Receipt> {
        let adjacent = self.start_address + self.bytes == next.start_address;
        let bytes = self.bytes + next.bytes;
        (adjacent && self.serial == next.serial).then_some(Receipt { bytes, ..self })
    }
}

impl Impounded {
    /// Takes a late part back. Gives the lease when this was the last; then the impounded is empty.
    ///
    /// # Errors
    /// The part is of another loan; it comes back.
    pub fn repay(&mut self, part: Part) -> Result<Option<Lease>, Part> {
        let Some(loan) = &mut self.loan else { return Err(part) };
        loan.repay(part)?;
        Ok(self.take_settled())
    }

    /// The lease, if everything is back already.
    ///
    /// # Errors
    /// Bytes are still out, or the lease was handed out before; the impounded comes back.
    pub fn settle(mut self) -> Result<Lease, Impounded> {
        self.take_settled().ok_or(self)
    }

    /// Bytes that have not come back.
    pub fn outstanding_bytes(&self) -> usize {
        self.loan.as_ref().map_or(0, Loan::outstanding_bytes)
    }

    /// Length in bytes of the impounded lease; 0 once it was handed out.
    pub fn bytes(&self) -> usize {
        self.loan.as_ref().map_or(0, Loan::len)
    }

    fn take_settled(&mut self) -> Option<Lease> {
        match self.loan.take()?.settle() {
            Ok(lease) => {
                uncount(&lease.holding_registry().impounded_bytes, lease.len());
                Some(lease)
            }
            Err(loan) => {
                self.loan = Some(loan);
                None
            }
        }
    }
}

impl Drop for Impounded {
    fn drop(&mut self) {
        if let Some(loan) = &self.loan {
            uncount(&loan.holding.pool.region().registry().impounded_bytes, loan.len());
        }
    }
}

fn uncount(counter: &std::sync::atomic::AtomicU64, bytes: usize) {
    counter.fetch_sub(bytes as u64, Ordering::Relaxed);
}
