//! Tests of the store's public interface, on a file system in memory and on real directories.

mod common;
mod crash;
mod damage;
mod disk;
mod faults;
mod footprint;
mod laws;
mod memory;
mod races;
