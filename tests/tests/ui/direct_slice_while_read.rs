//! The slice of a direct read is the reader's for the call.

use railring::{BlockingReader, Object, ReadOptions};

fn read(reader: &mut BlockingReader, object: &Object, slice: &mut [u8]) {
    let first = &slice[0];
    let _ = reader.read_into_direct(object, 0..1, slice, ReadOptions::default());
    println!("{first}");
}

fn main() {}
