//! A lease cannot be read while it is lent, nor its slot be given back.

use railring_dma::Lease;

fn read(lease: Lease) -> u8 {
    let (_loan, _part) = lease.lend();
    lease.as_slice()[0]
}

fn give_back(lease: Lease) {
    let (_loan, _part) = lease.lend();
    drop(lease);
}

fn main() {}
