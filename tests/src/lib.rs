//! What the tests share: objects with known bytes, and engines over simulated rails in virtual
//! time.

pub mod guest;
pub mod hold;
pub mod objects;
pub mod simulate;
pub mod stored;
pub mod tidy;
pub mod virtual_engine;
