//! A caller's end belongs to one thread at a time.

use sq_cq::CallerEnd;

fn share<T: Sync>() {}

fn main() {
    share::<CallerEnd<u64, u64>>();
}
