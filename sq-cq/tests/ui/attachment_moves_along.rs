//! What travels with a read is not the caller's while the read runs.

use sq_cq::{CallerEnd, Sqe};

fn keep(caller: &mut CallerEnd<Vec<u8>, Vec<u8>>, buffer: Vec<u8>) -> usize {
    let _ = caller.push(Sqe::nop(), 1, buffer);
    buffer.len()
}

fn main() {}
