//! Bytes to messages and back.

use sq_cq::Status;

use super::message::{
    HANDLE_BYTES_MAX, Hello, Message, OpenRequest, Opened, Refusal, TEXT_BYTES_MAX,
};
use crate::mtu::{MtuWish, PathMtu};
use crate::timers::{TimerError, Timers};

/// The first four bytes of every message.
const MAGIC: [u8; 4] = *b"RRVH";
/// The version that this module speaks.
pub const VERSION: u16 = 1;
/// Length of the header before each payload.
pub const HEADER_BYTES: usize = 12;
/// Longest payload.
pub const PAYLOAD_BYTES_MAX: usize = 2048;

const CLIENT_HELLO: u16 = 1;
const SERVER_HELLO: u16 = 2;
const REFUSED: u16 = 3;
const OPEN: u16 = 4;
const OPENED: u16 = 5;

const NUMBER_MAX: u32 = (1 << 24) - 1;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Something else listens there.
    #[error("not a Railring verbs hello: it begins with {found:02x?}; is the port the right one?")]
    Magic {
        /// The bytes found.
        found: [u8; 4],
    },
    /// Another version.
    #[error("the peer speaks hello version {theirs}, this end {VERSION}; update one of them")]
    Version {
        /// The peer's.
        theirs: u16,
    },
    /// No such message.
    #[error("there is no message of kind {kind}")]
    Kind {
        /// The kind found.
        kind: u16,
    },
    /// The payload is too long.
    #[error("a payload of {bytes} B was refused; the limit is {PAYLOAD_BYTES_MAX} B")]
    TooLong {
        /// The length announced.
        bytes: u32,
    },
    /// The payload ends too early or too late.
    #[error("a message of kind {kind} cannot have a payload of {bytes} B")]
    Length {
        /// Its kind.
        kind: u16,
        /// Its length.
        bytes: usize,
    },
    /// A field is out of its range.
    #[error("field {field} has the value {value}, which is out of range")]
    Field {
        /// Which.
        field: &'static str,
        /// The value found.
        value: u64,
    },
    /// The peer's timers are without end or out of range.
    #[error("the peer's timers: {0}")]
    Timers(#[from] TimerError),
    /// Text that is not UTF-8.
    #[error("field {field} is not UTF-8")]
    Text {
        /// Which.
        field: &'static str,
    },
}

/// The head of a message: what follows, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    kind: u16,
    bytes: usize,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// It is not one, of another version, of no kind there is, or announces too much.
    pub fn decode(raw: &[u8; HEADER_BYTES]) -> Result<Header, DecodeError> {
        let mut fields = Fields { kind: 0, whole: HEADER_BYTES, rest: raw };
        let found = fields.array()?;
        if found != MAGIC {
            return Err(DecodeError::Magic { found });
        }
        let theirs = fields.u16()?;
        if theirs != VERSION {
            return Err(DecodeError::Version { theirs });
        }
        let kind = fields.u16()?;
        if !(CLIENT_HELLO..=OPENED).contains(&kind) {
            return Err(DecodeError::Kind { kind });
        }
        let announced = fields.u32()?;
        match usize::try_from(announced) {
            Ok(bytes) if bytes <= PAYLOAD_BYTES_MAX => Ok(Header { kind, bytes }),
            _ => Err(DecodeError::TooLong { bytes: announced }),
        }
    }

    /// Length of the payload that follows, at most [`PAYLOAD_BYTES_MAX`].
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.bytes
    }
}

impl Message {
    /// The message as bytes, header and all.
    ///
    /// # Errors
    /// A field is out of its range, or a text too long: what would not be understood is not sent.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut payload = Vec::with_capacity(64);
        let kind = match self {
            Message::ClientHello(hello) => put_hello(&mut payload, hello, CLIENT_HELLO)?,
            Message::ServerHello(hello) => put_hello(&mut payload, hello, SERVER_HELLO)?,
            Message::Refused(refusal) => put_refusal(&mut payload, refusal)?,
            Message::Open(request) => put_open(&mut payload, request)?,
            Message::Opened(opened) => put_opened(&mut payload, opened)?,
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        let length = u32::try_from(payload.len()).expect("payloads are bounded");
        bytes.extend(length.to_le_bytes());
        bytes.append(&mut payload);
        Ok(bytes)
    }

    /// The message that a header and its payload are.
    ///
    /// # Errors
    /// They are none; nothing is kept.
    pub fn decode(header: Header, payload: &[u8]) -> Result<Message, DecodeError> {
        let kind = header.kind;
        if payload.len() != header.bytes {
            return Err(DecodeError::Length { kind, bytes: payload.len() });
        }
        let mut fields = Fields { kind, whole: payload.len(), rest: payload };
        let message = match kind {
            CLIENT_HELLO => Message::ClientHello(get_hello(&mut fields)?),
            SERVER_HELLO => Message::ServerHello(get_hello(&mut fields)?),
            REFUSED => Message::Refused(get_refusal(&mut fields)?),
            OPEN => Message::Open(get_open(&mut fields)?),
            OPENED => Message::Opened(get_opened(&mut fields)?),
            kind => return Err(DecodeError::Kind { kind }),
        };
        fields.end()?;
        Ok(message)
    }
}

/// What is left of a payload.
struct Fields<'a> {
    kind: u16,
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn short(&self) -> DecodeError {
        DecodeError::Length { kind: self.kind, bytes: self.whole }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (field, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.short())?;
        self.rest = rest;
        Ok(*field)
    }

    fn slice(&mut self, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let (field, rest) = self.rest.split_at_checked(bytes).ok_or_else(|| self.short())?;
        self.rest = rest;
        Ok(field)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn end(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.short()) }
    }
}

/// A number of 24 bits: of a queue pair, or of a packet.
fn number(field: &'static str, value: u32) -> Result<u32, DecodeError> {
    if value > NUMBER_MAX {
        return Err(DecodeError::Field { field, value: value.into() });
    }
    Ok(value)
}

fn put_hello(to: &mut Vec<u8>, hello: &Hello, kind: u16) -> Result<u16, DecodeError> {
    let (mtu, exactly) = match hello.mtu {
        MtuWish::AtMost(mtu) => (mtu, 0),
        MtuWish::Exactly(mtu) => (mtu, 1),
    };
    let mtu = u16::try_from(mtu.bytes()).expect("at most 4096");
    to.extend(number("qpn", hello.qpn)?.to_le_bytes());
    to.extend(number("psn", hello.psn)?.to_le_bytes());
    to.extend(hello.gid);
    to.extend(mtu.to_le_bytes());
    let timers = hello.timers;
    to.extend([exactly, timers.ack_timeout(), timers.retries(), timers.rnr_timer()]);
    to.extend([timers.rnr_retries(), hello.reads_out, hello.reads_in, 0]);
    to.extend(hello.nonce.to_le_bytes());
    Ok(kind)
}

fn get_hello(from: &mut Fields<'_>) -> Result<Hello, DecodeError> {
    let qpn = number("qpn", from.u32()?)?;
    let psn = number("psn", from.u32()?)?;
    let gid = from.array()?;
    let bytes = from.u16()?;
    let out_of_range = |field, value| DecodeError::Field { field, value };
    let mtu = PathMtu::from_bytes(bytes.into()).ok_or(out_of_range("mtu", bytes.into()))?;
    let mtu = match from.u8()? {
        0 => MtuWish::AtMost(mtu),
        1 => MtuWish::Exactly(mtu),
        other => return Err(out_of_range("mtu_exactly", other.into())),
    };
    let timers = Timers::new(from.u8()?, from.u8()?, from.u8()?, from.u8()?)?;
    let (reads_out, reads_in, zero) = (from.u8()?, from.u8()?, from.u8()?);
    if zero != 0 {
        return Err(out_of_range("zero", zero.into()));
    }
    Ok(Hello { qpn, psn, gid, mtu, timers, reads_out, reads_in, nonce: from.u64()? })
}

fn put_refusal(to: &mut Vec<u8>, refusal: &Refusal) -> Result<u16, DecodeError> {
    // A refusal that says ok would be none.
    let code = refusal.status.wire_code().filter(|code| *code != 0);
    let code = code.ok_or(DecodeError::Field { field: "status", value: 0 })?;
    to.extend(code.to_le_bytes());
    put_text(to, "text", &refusal.text, TEXT_BYTES_MAX)?;
    Ok(REFUSED)
}

fn get_refusal(from: &mut Fields<'_>) -> Result<Refusal, DecodeError> {
    let code = from.u16()?;
    if code == 0 {
        return Err(DecodeError::Field { field: "status", value: 0 });
    }
    let text = get_text(from, "text", TEXT_BYTES_MAX)?;
    Ok(Refusal { status: Status::from_wire(code), text })
}

fn put_open(to: &mut Vec<u8>, request: &OpenRequest) -> Result<u16, DecodeError> {
    to.extend(request.generation.to_le_bytes());
    put_text(to, "handle", &request.handle, HANDLE_BYTES_MAX)?;
    Ok(OPEN)
}

fn get_open(from: &mut Fields<'_>) -> Result<OpenRequest, DecodeError> {
    let generation = from.u64()?;
    Ok(OpenRequest { generation, handle: get_text(from, "handle", HANDLE_BYTES_MAX)? })
}

/// Refuses memory that reaches past the end of the address space.
fn checked(opened: Opened) -> Result<Opened, DecodeError> {
    match opened.address.checked_add(opened.bytes) {
        Some(_) => Ok(opened),
        None => Err(DecodeError::Field { field: "bytes", value: opened.bytes }),
    }
}

fn put_opened(to: &mut Vec<u8>, opened: &Opened) -> Result<u16, DecodeError> {
    let Opened { address, bytes, generation, rkey } = checked(*opened)?;
    [address, bytes, generation].iter().for_each(|field| to.extend(field.to_le_bytes()));
    to.extend(rkey.to_le_bytes());
    Ok(OPENED)
}

fn get_opened(from: &mut Fields<'_>) -> Result<Opened, DecodeError> {
    let (address, bytes, generation) = (from.u64()?, from.u64()?, from.u64()?);
    checked(Opened { address, bytes, generation, rkey: from.u32()? })
}

fn put_text(
    to: &mut Vec<u8>,
    field: &'static str,
    text: &str,
    bytes_max: usize,
) -> Result<(), DecodeError> {
    let length = u16::try_from(text.len()).ok().filter(|_| text.len() <= bytes_max);
    let length = length.ok_or(DecodeError::Field { field, value: text.len() as u64 })?;
    to.extend(length.to_le_bytes());
    to.extend(text.as_bytes());
    Ok(())
}

fn get_text(
    from: &mut Fields<'_>,
    field: &'static str,
    bytes_max: usize,
) -> Result<String, DecodeError> {
    let length = usize::from(from.u16()?);
    if length > bytes_max {
        return Err(DecodeError::Field { field, value: length as u64 });
    }
    let text = std::str::from_utf8(from.slice(length)?);
    text.map(str::to_owned).map_err(|_| DecodeError::Text { field })
}
