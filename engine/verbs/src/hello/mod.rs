//! What two ends say to each other over TCP before, and beside, RDMA: a bounded, versioned codec.
//!
//! The byte grid is in `docs/verbs-hello.md`. Both ends use this module: the rail as the client,
//! a peer as the server. A connection carries first one [`Message::ClientHello`], answered by a
//! [`Message::ServerHello`] or a [`Message::Refused`]; then any number of [`Message::Open`], each
//! answered by [`Message::Opened`] or [`Message::Refused`]. The TCP connection stays open for as
//! long as the queue pair lives; when it closes, either end lets the queue pair go.
//!
//! Nothing that comes from the other end is trusted: a length is checked before anything is read or
//! kept for it, every field has its range, and what is left over is an error.

mod codec;
mod message;
mod talk;

pub use codec::{DecodeError, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, VERSION};
pub use message::{
    Agreement, HANDLE_BYTES_MAX, Hello, HelloError, Message, OpenRequest, Opened, Refusal,
    TEXT_BYTES_MAX,
};
pub use talk::{Talk, TalkError};
