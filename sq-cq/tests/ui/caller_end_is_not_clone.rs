//! There is one caller's end of a ring.

use sq_cq::CallerEnd;

fn twice(caller: &CallerEnd<u64, u64>) -> (CallerEnd<u64, u64>, CallerEnd<u64, u64>) {
    (caller.clone(), caller.clone())
}

fn main() {}
