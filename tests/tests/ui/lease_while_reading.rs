//! Taking the lease out of a completion ends the look at its bytes.

use railring::Ring;

fn both(ring: &mut Ring) {
    let Some(completion) = ring.pop() else { return };
    let bytes = ring.bytes(&completion);
    drop(completion.into_lease());
    println!("{bytes:?}");
}

fn main() {}
