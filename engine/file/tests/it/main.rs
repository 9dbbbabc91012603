//! Tests of the file rail against real files and the real kernel.
#![forbid(unsafe_code)]

mod common;
mod faults;
mod files;
mod flow;
mod memlock;
mod reads;
mod throughput;
