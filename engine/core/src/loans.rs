//! Lending a read's memory to the engine and taking it back: the caller's side of each lease.

use railring_dma::{Lease, Loan, Receipt};

use crate::memory::Memory;
use crate::read::{Destination, Scatter};

/// What the caller keeps of the memory of one read.
#[derive(Debug)]
pub(crate) enum Loans {
    One(Loan),
    Many(Scatter),
}

#[inline]
pub(crate) fn repay(open: &mut Option<Loans>, part: railring_dma::Part) -> Option<Receipt> {
    match open.as_mut()? {
        Loans::One(loan) => loan.repay(part).ok(),
        Loans::Many(scatter) => {
            let mut part = part;
            for loan in &mut scatter.loans {
                match loan.repay(part) {
                    Ok(receipt) => return Some(receipt),
                    Err(back) => part = back,
                }
            }
            None
        }
    }
}

/// Lends exactly `bytes` of the destination; what is over stays with the loans.
#[inline]
pub(crate) fn lend(into: Option<Destination>, bytes: u64) -> (Memory, Option<Loans>) {
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    match into {
        None => (Memory::None, None),
        Some(Destination::Lease(lease)) => {
            let (loan, part) = lend_lease(lease, &mut left);
            (part.map_or(Memory::None, Memory::One), Some(Loans::One(loan)))
        }
        Some(Destination::Scatter(mut scatter)) => {
            let mut parts = std::mem::take(&mut scatter.parts);
            for lease in scatter.leases.drain(..) {
                let (loan, part) = lend_lease(lease, &mut left);
                scatter.loans.push(loan);
                parts.parts.extend(part);
            }
            parts.parts.reverse();
            (Memory::Many(parts), Some(Loans::Many(scatter)))
        }
    }
}

#[inline]
pub(crate) fn lend_lease(lease: Lease, left: &mut usize) -> (Loan, Option<railring_dma::Part>) {
    let (mut loan, part) = lease.lend();
    let (used, over) = if part.len() > *left {
        let (used, over) = part.split_at(*left);
        (used, Some(over))
    } else {
        (part, None)
    };
    *left -= used.len();
    if let Some(part) = over {
        let repaid = loan.repay(part);
        debug_assert!(repaid.is_ok(), "a part goes back to its own loan");
    }
    if used.is_empty() {
        let repaid = loan.repay(used);
        debug_assert!(repaid.is_ok(), "a part goes back to its own loan");
        return (loan, None);
    }
    (loan, Some(used))
}

/// Undoes [`lend`] for a push that was refused.
pub(crate) fn take_back(loans: Option<Loans>, memory: Memory) -> Option<Destination> {
    match (loans?, memory) {
        (Loans::One(mut loan), Memory::One(part)) => {
            let repaid = loan.repay(part);
            debug_assert!(repaid.is_ok(), "a part goes back to its own loan");
            loan.settle().ok().map(Destination::Lease)
        }
        (Loans::One(loan), _) => loan.settle().ok().map(Destination::Lease),
        (Loans::Many(mut scatter), memory) => {
            if let Memory::Many(mut parts) = memory {
                let mut open = Some(Loans::Many(scatter));
                for part in parts.parts.drain(..) {
                    let repaid = repay(&mut open, part);
                    debug_assert!(repaid.is_some(), "a part goes back to its own loan");
                }
                let Some(Loans::Many(back)) = open else { return None };
                scatter = back;
                scatter.parts = parts;
            }
            let settled = scatter.loans.drain(..).filter_map(|loan| loan.settle().ok());
            scatter.leases.extend(settled);
            Some(Destination::Scatter(scatter))
        }
    }
}
