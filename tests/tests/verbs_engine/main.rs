//! The whole engine over one verbs rail, from a passive peer: right bytes, quiet failures, limits.

mod device;
mod limits;
mod quiet;
mod reads;
mod rig;
