//! The messages themselves, and what two hellos agree on.

use sq_cq::Status;

use crate::mtu::{MtuError, MtuWish, PathMtu};
use crate::timers::Timers;

/// Longest handle in an [`OpenRequest`], in bytes.
pub const HANDLE_BYTES_MAX: usize = 1024;
/// Longest text in a [`Refusal`], in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// One end of a queue pair to be. Both ends send one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of the sender's queue pair, 24 bits.
    pub qpn: u32,
    /// Number of the first packet that the sender will send, 24 bits.
    pub psn: u32,
    /// Where the sender's port is: its GID, in network order.
    pub gid: [u8; 16],
    /// The path MTU it takes.
    pub mtu: MtuWish,
    /// Its retry settings.
    pub timers: Timers,
    /// RDMA READs it may have under way at once, 0 to 255.
    pub reads_out: u8,
    /// RDMA READs it serves at once, 0 to 255.
    pub reads_in: u8,
    /// Chosen by the client, returned by the server: proof that the answer is to this hello.
    pub nonce: u64,
}

/// What both ends set their queue pairs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The path MTU.
    pub mtu: PathMtu,
    /// RDMA READs that this end may have under way at once.
    pub reads_out: u8,
    /// RDMA READs that the other end may have under way at this one.
    pub reads_in: u8,
}

/// Why two hellos do not make a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// No path MTU suits both.
    #[error(transparent)]
    Mtu(#[from] MtuError),
    /// The answer is to another hello.
    #[error("the peer answered nonce {theirs:#x} to {ours:#x}; it mixes connections up")]
    Nonce {
        /// What was sent.
        ours: u64,
        /// What came back.
        theirs: u64,
    },
    /// The peer serves no reads.
    #[error("the peer serves {theirs} RDMA READs at once and this end wants {ours}; it must be 1")]
    Reads {
        /// What this end wants.
        ours: u8,
        /// What the peer serves.
        theirs: u8,
    },
}

impl Hello {
    /// What this end and the other, having said `theirs`, set their queue pairs to. Each end
    /// computes it for itself; the two results mirror each other.
    ///
    /// # Errors
    /// They do not fit together.
    pub fn agree(&self, theirs: &Hello) -> Result<Agreement, HelloError> {
        if self.nonce != theirs.nonce {
            return Err(HelloError::Nonce { ours: self.nonce, theirs: theirs.nonce });
        }
        let mtu = self.mtu.agree(theirs.mtu)?;
        if self.reads_out > 0 && theirs.reads_in == 0 {
            return Err(HelloError::Reads { ours: self.reads_out, theirs: theirs.reads_in });
        }
        Ok(Agreement {
            mtu,
            reads_out: self.reads_out.min(theirs.reads_in),
            reads_in: self.reads_in.min(theirs.reads_out),
        })
    }
}

/// A client asks for an object's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// What to open; opaque to the client. At most [`HANDLE_BYTES_MAX`] bytes.
    pub handle: String,
    /// The generation that must be there.
    pub generation: u64,
}

/// Memory that the client may read with RDMA READ on this connection's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Address of the first byte, in the server's address space.
    pub address: u64,
    /// Length; `address + bytes` does not overflow.
    pub bytes: u64,
    /// The generation that is there: the one asked for.
    pub generation: u64,
    /// The key.
    pub rkey: u32,
}

/// The server does not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why, as a code of the peer ([`Status::from_wire`]): not found, stale, refused and so on.
    pub status: Status,
    /// Why, in words. At most [`TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

impl Refusal {
    /// A refusal with one of Railring's own statuses, as a server makes it; the text is cut to what
    /// a message takes. A status that means nothing on another machine becomes
    /// [`Status::REFUSED`].
    #[must_use]
    pub fn new(status: Status, text: &str) -> Refusal {
        let code = status.wire_code().filter(|code| *code != 0);
        let code = code.or(Status::REFUSED.wire_code()).unwrap_or(1);
        let end =
            (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|end| text.is_char_boundary(*end));
        let text = text[..end.unwrap_or(0)].to_owned();
        Refusal { status: Status::from_wire(code), text }
    }
}

/// Everything that is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The client's queue pair.
    ClientHello(Hello),
    /// The server's queue pair, which is ready to be read from.
    ServerHello(Hello),
    /// The server refuses the hello or the last request.
    Refused(Refusal),
    /// The client asks for memory.
    Open(OpenRequest),
    /// The server gives it.
    Opened(Opened),
}
