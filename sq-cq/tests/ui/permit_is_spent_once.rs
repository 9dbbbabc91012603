//! A read ends once.

use sq_cq::{Cqe, Permit, PollerEnd};

fn twice(poller: &mut PollerEnd<u64, u64>, permit: Permit, cqe: Cqe) {
    poller.finish(permit, cqe, 0);
    poller.finish(permit, cqe, 0);
}

fn main() {}
