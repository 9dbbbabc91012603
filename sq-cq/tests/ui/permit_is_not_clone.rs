//! Completion slots are not made by copying them.

use sq_cq::Permit;

fn twice(permit: &Permit) -> Permit {
    Permit::clone(permit)
}

fn main() {}
