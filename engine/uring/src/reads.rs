//! What a read is on its way in and out of a ring.

use std::os::fd::RawFd;

use crate::tables::{BufferSlot, FileSlot};

/// The file of a read. A number that names no open file makes the read fail with EBADF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// An entry of the ring's table of registered files.
    Registered(FileSlot),
    /// A file descriptor of the process, open until the read was committed.
    Descriptor(RawFd),
}

/// One read: `bytes` at `offset` of `file`, into its buffer from byte `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAt {
    /// What to read.
    pub file: FileRef,
    /// Byte offset in the file.
    pub offset: u64,
    /// First byte of the buffer to write.
    pub start: usize,
    /// How many bytes; the kernel may give fewer, and never gives more than 2^31 - 4096.
    pub bytes: u32,
    /// The registered buffer that all of those bytes lie in; none: a plain read.
    pub registered: Option<BufferSlot>,
}

/// A read that was not pushed. Buffer and extra come back.
#[derive(Debug)]
pub struct Unread<B, E> {
    /// The memory.
    pub buffer: B,
    /// What was to be kept with it.
    pub extra: E,
    /// Why.
    pub why: ReadRefused,
}

/// Why a read was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadRefused {
    /// The submission queue is full, or the key's row is taken: pop completions and try again.
    #[error("the ring is full; pop completions and push again")]
    Full,
    /// The low half of the key is not below the ring's entries.
    #[error("row {row} is out of range; the ring has {entries} rows")]
    NoSuchRow {
        /// The row named.
        row: u32,
        /// Rows there are.
        entries: u32,
    },
    /// The bytes do not lie in the buffer.
    #[error(
        "{bytes} bytes from byte {start} on do not fit a buffer of {buffer_bytes} bytes; read less"
    )]
    OutOfBounds {
        /// First byte asked for.
        start: usize,
        /// Bytes asked for.
        bytes: u32,
        /// Bytes of the buffer.
        buffer_bytes: usize,
    },
    /// The ring failed for good; the errno value says how.
    #[error("the ring takes no reads any more (errno {errno}); make another")]
    Broken {
        /// The errno value.
        errno: i32,
    },
}

/// A read that is over: nothing writes its buffer any more.
#[derive(Debug)]
pub struct Finished<B, E> {
    /// The key it was pushed with.
    pub key: u64,
    /// Its memory.
    pub buffer: B,
    /// What was kept with it.
    pub extra: E,
    /// Bytes read (0: end of file), or the negative errno.
    pub result: i32,
    /// Whether the ring was asked to cancel it. It may have been read nevertheless.
    pub cancelled: bool,
}
