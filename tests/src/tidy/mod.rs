//! What the tests of the source itself share: the files, a Rust masker, a manifest reader, the
//! rules.

pub mod manifest;
pub mod rules;
pub mod rust;
pub mod source;
