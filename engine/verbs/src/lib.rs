//! The verbs rail: RDMA READs from a peer's memory, over one port of one RDMA device (RoCE v2).
//!
//! Without the cargo feature `verbs` this crate needs no library and is its pure parts: the
//! [`hello`] that two ends exchange, path MTUs, [`Timers`], the meanings of work completions
//! ([`wc`]), and the choice of a port and GID ([`LocalPort`]). With it, [`ffi`] wraps libibverbs,
//! and `VerbsRail` is the rail.
//!
//! # How a connection is made
//!
//! An endpoint is the `host:port` of the peer's TCP hello (byte grid: `docs/verbs-hello.md`):
//!
//! ```text
//!  rail                                             peer
//!   TCP connect ───────────────────────────────────► accept
//!   Qp::new, init(LocalWrite)
//!   ClientHello{qpn, psn, gid, mtu, nonce...} ──────► theirs.agree → Agreement
//!                                                     Qp::new, init(RemoteRead),
//!                                                     ready_to_receive, ready_to_send
//!   ours.agree → the same Agreement ◄─────────────── ServerHello{... the same nonce}
//!   ready_to_receive, ready_to_send
//!   Open{handle, generation} ───────────────────────► finds it, checks the generation
//!   reads address.. with rkey ◄───────────────────── Opened{address, bytes, generation, rkey}
//!                                                     or Refused{status, text}
//! ```
//!
//! The TCP connection lives as long as the queue pair.
//!
//! # How a passive peer is built from this crate
//!
//! A peer needs no link and no rail, only [`ffi`] and [`hello`]:
//!
//! 1. `LocalPort::find(&Discovery::live().read()?, "rxe0", None, None)` names port and GID;
//!    `Device::open`, `Pd::new`, and one `Cq::new(&device, 16, Wake::Never)` for its queue pairs
//!    (a peer that only serves RDMA READs never gets a completion).
//! 2. Memory: a [`railring_dma::Region`], filled through a pool's leases; then
//!    `Mr::register(&pd, &region, 0..region.mapped_bytes(), Access::RemoteRead)`. An object at
//!    byte `n` of the region is at `mr.address() + n`, key `mr.rkey()`. Dropping the `Mr` revokes
//!    the key at once.
//! 3. For each TCP connection: `Talk::over(stream, patience)`, `receive()` the `ClientHello`. Make
//!    `Qp::new(&pd, &cq, QpCaps { send_wrs: 1, sges: 1 })`, `.init(port, Access::RemoteRead)`. Its
//!    own [`hello::Hello`] has the client's nonce, `gid` from `device.gid(port, index)` (equal to
//!    `local.gid.address.octets()`), `mtu: MtuWish::AtMost(device.port(port)?.mtu)`, `reads_in:
//!    device.limits().reads_in`, `reads_out: 0`, a random `psn`. `ours.agree(&theirs)` gives the
//!    `Agreement`, or the reason to send `Message::Refused(Refusal::new(..))`. Then
//!    `.ready_to_receive(route, &theirs, agreed, timers)`, `.ready_to_send(psn, agreed, timers)`,
//!    and only then `send` the `ServerHello`.
//! 4. Loop over `talk.receive_whenever()`: answer `Message::Open` with `Message::Opened` or a
//!    refusal (`Status::NOT_FOUND`, `Status::STALE`, `Status::REFUSED`); at any error drop the
//!    queue pair.
//!
//! Faults: keep the `Qp` from answering by `qp.fail()` (shut the queue pair), drop the `Mr`
//! (revoke), drop everything (exit), sleep before an answer (delay). With cargo feature `fault`,
//! `Qp::<ReadyToSend>::post_write` writes into the reader's memory; make such a peer's queue pair
//! with a `Cq` of its own and poll it with `Cq::poll` for the outcome.
#![deny(unsafe_code)]

#[cfg(feature = "verbs")]
mod control;
#[cfg(feature = "verbs")]
mod dial;
#[cfg(feature = "verbs")]
pub mod ffi;
pub mod hello;
#[cfg(feature = "verbs")]
mod keeper;
#[cfg(feature = "verbs")]
mod link;
#[cfg(feature = "verbs")]
mod memory;
mod mtu;
#[cfg(feature = "verbs")]
mod options;
mod port;
#[cfg(feature = "verbs")]
mod rail;
#[cfg(feature = "verbs")]
mod shared;
#[cfg(feature = "verbs")]
mod targets;
mod timers;
pub mod wc;

pub use mtu::{MtuError, MtuWish, PathMtu};
pub use port::{LocalPort, PortError};
pub use timers::{TimerError, Timers};

#[cfg(feature = "verbs")]
pub use control::VerbsControl;
#[cfg(feature = "verbs")]
pub use link::VerbsLink;
#[cfg(all(feature = "verbs", feature = "fault"))]
pub use options::VerbsFaults;
#[cfg(feature = "verbs")]
pub use options::{Endpoint, VerbsRailError, VerbsRailOptions, Waiting};
#[cfg(feature = "verbs")]
pub use rail::VerbsRail;
