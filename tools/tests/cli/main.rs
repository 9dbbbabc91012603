//! The command itself, run as a user runs it: statuses, messages, JSON, damage, kills, signals.

mod bad_input;
mod bench;
mod crash;
mod damage;
mod model;
mod placement;
mod rig;
mod signals;
mod topo;
mod work;
