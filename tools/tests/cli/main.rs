//! The command itself, run as a user runs it: exit statuses, messages, JSON, damage, crashes, signals.

mod bad_input;
mod bench;
mod crash;
mod damage;
mod rig;
mod signals;
mod work;
