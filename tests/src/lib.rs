//! What the tests share: objects with known bytes, and engines over simulated rails in virtual
//! time.

pub mod conformance;
pub mod guest;
pub mod hold;
#[cfg(feature = "verbs")]
pub mod memory_peer;
pub mod mutations;
pub mod objects;
#[cfg(feature = "verbs")]
pub mod raw_reader;
pub mod simulate;
pub mod stored;
pub mod tidy;
pub mod virtual_engine;
