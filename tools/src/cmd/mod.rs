//! One module per command; each has a `run` that does what its arguments say.

pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod get;
pub(crate) mod ls;
pub(crate) mod model;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod stat;
pub(crate) mod topo;
pub(crate) mod verify;
