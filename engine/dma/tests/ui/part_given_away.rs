//! A part that was given away cannot be written any more.

use railring_dma::{Loan, Part};

fn repaid(mut loan: Loan, mut part: Part) {
    let _ = loan.repay(part);
    part.as_mut_slice().fill(0);
}

fn split(mut part: Part) {
    let (_head, _tail) = part.split_at(1);
    part.as_mut_slice().fill(0);
}

fn copied(part: &Part) -> Part {
    Clone::clone(part)
}

fn main() {}
