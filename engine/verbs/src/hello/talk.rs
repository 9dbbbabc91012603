//! Messages over a TCP connection, with a deadline for each.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::codec::{DecodeError, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX};
use super::message::Message;

/// Why a message was not exchanged. The connection is of no more use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TalkError {
    /// The other end closed the connection, between two messages.
    #[error("the peer closed the connection")]
    Closed,
    /// It took too long.
    #[error("the peer did not answer within {0:?}")]
    TimedOut(Duration),
    /// The connection failed.
    #[error("the connection to the peer failed: {0}")]
    Io(#[from] io::Error),
    /// What came is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// What came is a message that does not belong here.
    #[error("the peer answered with a message that does not belong there: {0}")]
    Unexpected(&'static str),
}

/// A TCP connection that carries messages. Calls block, each for at most the patience it was made
/// with, however slowly the other end sends.
#[derive(Debug)]
pub struct Talk {
    stream: TcpStream,
    patience: Duration,
}

impl Talk {
    /// Over a connection that is there.
    ///
    /// # Errors
    /// The socket's options cannot be set.
    pub fn over(stream: TcpStream, patience: Duration) -> io::Result<Talk> {
        stream.set_nodelay(true)?;
        Ok(Talk { stream, patience: patience.max(Duration::from_millis(1)) })
    }

    /// Connects to `host:port`, to the first of its addresses that answers.
    ///
    /// # Errors
    /// The name is not known, or nobody answers in time.
    pub fn connect(endpoint: &str, patience: Duration) -> io::Result<Talk> {
        let until = Instant::now() + patience;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in endpoint.to_socket_addrs()? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Talk::over(stream, patience),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The connection, to wait for it to close.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection failed, or the message breaks the codec's limits.
    pub fn send(&mut self, message: &Message) -> Result<(), TalkError> {
        let bytes = message.encode()?;
        self.stream.set_write_timeout(Some(self.patience))?;
        self.stream.write_all(&bytes).map_err(|error| self.failed(error))
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection failed or closed, or what came is no message.
    pub fn receive(&mut self) -> Result<Message, TalkError> {
        let until = Instant::now() + self.patience;
        let mut head = [0; HEADER_BYTES];
        self.fill(&mut head, until, TalkError::Closed)?;
        let header = Header::decode(&head)?;
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let payload = &mut payload[..header.payload_bytes()];
        let cut = TalkError::Io(io::ErrorKind::UnexpectedEof.into());
        self.fill(payload, until, cut)?;
        Ok(Message::decode(header, payload)?)
    }

    /// Waits for the next request without a deadline for its first byte, as a server does.
    ///
    /// # Errors
    /// As [`Talk::receive`].
    pub fn receive_whenever(&mut self) -> Result<Message, TalkError> {
        self.stream.set_read_timeout(None)?;
        if self.stream.peek(&mut [0])? == 0 {
            return Err(TalkError::Closed);
        }
        self.receive()
    }

    fn failed(&self, error: io::Error) -> TalkError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                TalkError::TimedOut(self.patience)
            }
            _ => TalkError::Io(error),
        }
    }

    /// Fills `buffer`; `at_once` is what an end before the first byte means.
    fn fill(
        &mut self,
        buffer: &mut [u8],
        until: Instant,
        at_once: TalkError,
    ) -> Result<(), TalkError> {
        let mut filled = 0;
        while filled < buffer.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TalkError::TimedOut(self.patience));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Err(at_once),
                Ok(0) => return Err(TalkError::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }
}
