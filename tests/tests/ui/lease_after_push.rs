//! The lease is gone once it was pushed: its bytes may be written.

use railring::{Lease, Object, Read, Ring};

fn push(ring: &mut Ring, object: &Object, lease: Lease) {
    let _ = ring.push(Read::new(object, 0..1, lease));
    println!("{}", lease.as_slice()[0]);
}

fn main() {}
