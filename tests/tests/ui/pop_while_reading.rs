//! Popping can end the read whose bytes are looked at.

use railring::Ring;

fn both(ring: &mut Ring) {
    let Some(completion) = ring.pop() else { return };
    let bytes = ring.bytes(&completion);
    let _ = ring.pop();
    println!("{bytes:?}");
}

fn main() {}
