//! What the tests of the workspace share: so far, the rules of tidiness.

pub mod tidy;
