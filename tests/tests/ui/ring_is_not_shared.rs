//! A ring belongs to one thread at a time.

use railring::Ring;

fn share(ring: &Ring) {
    std::thread::scope(|scope| {
        scope.spawn(|| ring.in_flight());
    });
}

fn main() {}
