//! The bytes of one owner cannot be borrowed by two writers, nor read while they are written.

use railring_dma::{Lease, Loan, Part, Receipt};

fn lease(mut lease: Lease) {
    let one = lease.as_mut_slice();
    let two = lease.as_mut_slice();
    one[0] = two[0];
}

fn part(mut part: Part) -> u8 {
    let reader = part.as_slice();
    part.as_mut_slice()[0] = 1;
    reader[0]
}

fn settled_under_a_reader(loan: Loan, receipt: Receipt) -> u8 {
    let reader = loan.bytes(&receipt).expect("its own");
    let _lease = loan.settle();
    reader[0]
}

fn main() {}
