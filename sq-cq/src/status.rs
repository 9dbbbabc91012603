//! Owns the one place where errnos, work completion statuses and wire codes become outcomes.
//!
//! | value | source |
//! |---|---|
//! | 0 | ok |
//! | -1 ..= -4095 | -errno, as system calls and io_uring answer |
//! | -(0x1_0000 + code) | work completion status of libibverbs |
//! | -(0x2_0000 + code) | Railring's own |
//! | -(0x3_0000 + code) | a peer's answer; code as in Railring's own |
//!
//! A code that this version cannot name keeps its value, and prints as its number.

use std::fmt;

const WC_BASE: i32 = 0x1_0000;
const OWN_BASE: i32 = 0x2_0000;
const WIRE_BASE: i32 = 0x3_0000;
const ERRNO_MAX: u32 = 4095;
const CODE_MAX: u32 = 0xffff;

/// How a stripe, or a read, ended. Zero is ok.
///
/// ```
/// use sq_cq::Status;
///
/// // errno(3), EIO; io_uring_enter(2) answers it negated: either sign is understood.
/// assert_eq!(Status::from_errno(5), Status::from_errno(-5));
/// assert_eq!(Status::from_errno(5).to_string(), "EIO (errno 5)");
/// assert!(Status::from_wire(6).is_stale());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Status(i32);

/// Whose fault a failure is: what decides whether a rail cools down and whether a retry makes
/// sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// Nobody's: success, pressure, a cancel, a consequence of another failure.
    Nobody,
    /// The peer answered, and the answer was no. The rail works.
    Peer,
    /// The path: device, link, connection, disk.
    Rail,
    /// What was asked for cannot be done.
    Caller,
    /// The bytes came, and are not the right ones.
    Data,
}

/// Where a status came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Ok,
    Errno(u32),
    Wc(u32),
    Own(u32),
    Wire(u32),
    Foreign,
}

/// What is known of one code.
#[derive(Debug, Clone, Copy)]
struct Entry {
    code: u32,
    name: &'static str,
    blame: Blame,
    retry: Retry,
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// The same way ends the same way.
    Futile,
    /// Another attempt, on this rail or another, may succeed.
    Elsewhere,
    /// The same attempt later; something is full.
    Later,
    /// After the object was looked up again.
    AfterLookup,
}

const fn entry(code: u32, name: &'static str, blame: Blame, retry: Retry) -> Entry {
    Entry { code, name, blame, retry }
}

/// errno(3), with the numbers of asm-generic (x86-64, aarch64, riscv64).
const ERRNOS: &[Entry] = &[
    entry(1, "EPERM", Blame::Peer, Retry::Elsewhere),
    entry(2, "ENOENT", Blame::Peer, Retry::Elsewhere),
    entry(4, "EINTR", Blame::Nobody, Retry::Elsewhere),
    entry(5, "EIO", Blame::Rail, Retry::Elsewhere),
    entry(6, "ENXIO", Blame::Rail, Retry::Elsewhere),
    entry(9, "EBADF", Blame::Caller, Retry::Futile),
    entry(11, "EAGAIN", Blame::Nobody, Retry::Later),
    entry(12, "ENOMEM", Blame::Nobody, Retry::Later),
    entry(13, "EACCES", Blame::Peer, Retry::Elsewhere),
    entry(14, "EFAULT", Blame::Caller, Retry::Futile),
    entry(16, "EBUSY", Blame::Nobody, Retry::Later),
    entry(19, "ENODEV", Blame::Rail, Retry::Elsewhere),
    entry(22, "EINVAL", Blame::Caller, Retry::Futile),
    entry(23, "ENFILE", Blame::Nobody, Retry::Later),
    entry(24, "EMFILE", Blame::Nobody, Retry::Later),
    entry(28, "ENOSPC", Blame::Rail, Retry::Elsewhere),
    entry(32, "EPIPE", Blame::Rail, Retry::Elsewhere),
    entry(38, "ENOSYS", Blame::Rail, Retry::Elsewhere),
    entry(61, "ENODATA", Blame::Rail, Retry::Elsewhere),
    entry(62, "ETIME", Blame::Rail, Retry::Elsewhere),
    entry(71, "EPROTO", Blame::Rail, Retry::Elsewhere),
    entry(74, "EBADMSG", Blame::Data, Retry::Elsewhere),
    entry(75, "EOVERFLOW", Blame::Caller, Retry::Futile),
    entry(95, "EOPNOTSUPP", Blame::Rail, Retry::Elsewhere),
    entry(100, "ENETDOWN", Blame::Rail, Retry::Elsewhere),
    entry(101, "ENETUNREACH", Blame::Rail, Retry::Elsewhere),
    entry(103, "ECONNABORTED", Blame::Rail, Retry::Elsewhere),
    entry(104, "ECONNRESET", Blame::Rail, Retry::Elsewhere),
    entry(105, "ENOBUFS", Blame::Nobody, Retry::Later),
    // Nothing was tried: what broke the connection was blamed when it did.
    entry(107, "ENOTCONN", Blame::Nobody, Retry::Elsewhere),
    entry(110, "ETIMEDOUT", Blame::Rail, Retry::Elsewhere),
    entry(111, "ECONNREFUSED", Blame::Rail, Retry::Elsewhere),
    entry(112, "EHOSTDOWN", Blame::Rail, Retry::Elsewhere),
    entry(113, "EHOSTUNREACH", Blame::Rail, Retry::Elsewhere),
    entry(116, "ESTALE", Blame::Peer, Retry::AfterLookup),
    entry(121, "EREMOTEIO", Blame::Rail, Retry::Elsewhere),
    entry(125, "ECANCELED", Blame::Nobody, Retry::Futile),
];

/// `enum ibv_wc_status`, ibv_poll_cq(3). A flush follows another failure and is nobody's fault.
const WCS: &[Entry] = &[
    entry(1, "LOC_LEN_ERR", Blame::Caller, Retry::Futile),
    entry(2, "LOC_QP_OP_ERR", Blame::Rail, Retry::Elsewhere),
    entry(3, "LOC_EEC_OP_ERR", Blame::Rail, Retry::Elsewhere),
    entry(4, "LOC_PROT_ERR", Blame::Caller, Retry::Futile),
    entry(5, "WR_FLUSH_ERR", Blame::Nobody, Retry::Elsewhere),
    entry(6, "MW_BIND_ERR", Blame::Rail, Retry::Elsewhere),
    entry(7, "BAD_RESP_ERR", Blame::Rail, Retry::Elsewhere),
    entry(8, "LOC_ACCESS_ERR", Blame::Caller, Retry::Futile),
    entry(9, "REM_INV_REQ_ERR", Blame::Peer, Retry::Elsewhere),
    entry(10, "REM_ACCESS_ERR", Blame::Peer, Retry::Elsewhere),
    entry(11, "REM_OP_ERR", Blame::Peer, Retry::Elsewhere),
    entry(12, "RETRY_EXC_ERR", Blame::Rail, Retry::Elsewhere),
    entry(13, "RNR_RETRY_EXC_ERR", Blame::Peer, Retry::Later),
    entry(14, "LOC_RDD_VIOL_ERR", Blame::Rail, Retry::Elsewhere),
    entry(15, "REM_INV_RD_REQ_ERR", Blame::Peer, Retry::Elsewhere),
    entry(16, "REM_ABORT_ERR", Blame::Peer, Retry::Elsewhere),
    entry(17, "INV_EECN_ERR", Blame::Rail, Retry::Elsewhere),
    entry(18, "INV_EEC_STATE_ERR", Blame::Rail, Retry::Elsewhere),
    entry(19, "FATAL_ERR", Blame::Rail, Retry::Elsewhere),
    entry(20, "RESP_TIMEOUT_ERR", Blame::Rail, Retry::Elsewhere),
    entry(21, "GENERAL_ERR", Blame::Rail, Retry::Elsewhere),
    entry(22, "TM_ERR", Blame::Rail, Retry::Elsewhere),
    entry(23, "TM_RNDV_INCOMPLETE", Blame::Rail, Retry::Elsewhere),
];

/// Declares Railring's own codes once: the constant, its number, its words and its class.
macro_rules! own {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident = $code:literal, $text:literal, $blame:ident, $retry:ident;
    )+) => {
        impl Status {
            $($(#[doc = $doc])+ pub const $name: Self = Self(-(OWN_BASE + $code));)+
        }
        const OWNS: &[Entry] = &[$(entry($code, $text, Blame::$blame, Retry::$retry),)+];
    };
}

own! {
    /// The caller cancelled the read.
    CANCELLED = 1, "cancelled", Nobody, Futile;
    /// The deadline passed.
    TIMED_OUT = 2, "timed out", Nobody, Futile;
    /// The bytes do not match the placement's checksum.
    CHECKSUM_MISMATCH = 3, "checksum mismatch", Data, Elsewhere;
    /// Fewer bytes were there than the placement says.
    SHORT_READ = 4, "short read", Data, Elsewhere;
    /// The owner does not have the object or the stripe.
    NOT_FOUND = 5, "not found", Peer, Elsewhere;
    /// The owner has another generation: look up again.
    STALE = 6, "stale generation", Peer, AfterLookup;
    /// The owner will not serve this (ticket, rights).
    REFUSED = 7, "refused", Peer, Futile;
    /// Quiet could not be proved within the bound; the memory is impounded.
    STUCK = 8, "stuck", Rail, Futile;
    /// The engine failed; its reads failed with it.
    ENGINE_FAILED = 9, "engine failed", Nobody, Futile;
    /// No rail reaches an owner of the stripe.
    NO_RAIL = 10, "no rail", Rail, Futile;
    /// The rail went down while the piece was on it.
    RAIL_DOWN = 11, "rail down", Rail, Elsewhere;
    /// The lease on the server's memory ended before its bytes came.
    LEASE_EXPIRED = 12, "lease expired", Peer, Elsewhere;
    /// The object was overwritten between lookup and read.
    VERSION_CHANGED = 13, "version changed", Nobody, AfterLookup;
    /// The request makes no sense.
    INVALID_ARGUMENT = 14, "invalid argument", Caller, Futile;
    /// A limit on pieces, bytes, memory or connections was reached.
    LIMIT_EXCEEDED = 15, "limit exceeded", Nobody, Later;
    /// A peer broke the protocol.
    PROTOCOL_ERROR = 16, "protocol error", Rail, Elsewhere;
    /// A peer is shutting down.
    SHUTTING_DOWN = 17, "shutting down", Peer, Elsewhere;
    /// The format or protocol version is not supported.
    UNSUPPORTED_VERSION = 18, "unsupported version", Peer, Elsewhere;
    /// Stopped because another stripe of the read failed.
    STOPPED = 19, "stopped by another stripe's failure", Nobody, Futile;
}

impl Status {
    /// Success.
    pub const OK: Self = Self(0);

    /// From an errno, positive as in errno(3) or negated as in an io_uring CQE; 0 is ok. Beyond
    /// what a kernel can answer (4095) it saturates.
    #[inline]
    pub const fn from_errno(errno: i32) -> Self {
        let errno = errno.unsigned_abs();
        Self(-(if errno > ERRNO_MAX { ERRNO_MAX } else { errno } as i32))
    }

    /// From a work completion status of libibverbs; 0 is ok. Saturates at 65,535.
    #[inline]
    pub const fn from_wc(status: u32) -> Self {
        if status == 0 {
            return Self::OK;
        }
        Self(-(WC_BASE + if status > CODE_MAX { CODE_MAX } else { status } as i32))
    }

    /// From a status code in a peer's answer; 0 is ok, the others as Railring's own codes.
    #[inline]
    pub const fn from_wire(code: u16) -> Self {
        if code == 0 { Self::OK } else { Self(-(WIRE_BASE + code as i32)) }
    }

    /// From [`Status::raw`]. Any value is accepted and survives.
    #[inline]
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// The number on the ring.
    #[inline]
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The errno, positive as in errno(3), if that is what this is.
    #[inline]
    pub const fn errno(self) -> Option<i32> {
        if self.0 < 0 && self.0 >= -(ERRNO_MAX as i32) { Some(-self.0) } else { None }
    }

    /// The code to put into an answer to a peer: 0 for ok, the code of Railring's own or the
    /// wire's;
    /// `None` for what only means something on this machine.
    pub fn wire_code(self) -> Option<u16> {
        match self.source() {
            Source::Ok => Some(0),
            Source::Own(code) | Source::Wire(code) => u16::try_from(code).ok(),
            Source::Errno(_) | Source::Wc(_) | Source::Foreign => None,
        }
    }

    /// Whether nothing failed.
    #[inline]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }

    /// Whether something was full: the same attempt may succeed later.
    pub fn is_backpressure(self) -> bool {
        self.entry().is_some_and(|entry| entry.retry == Retry::Later)
    }

    /// Whether another attempt (later, or on another rail) may succeed without a new lookup. A
    /// failure that cannot be named is worth an attempt elsewhere.
    pub fn is_retryable(self) -> bool {
        match self.entry() {
            Some(entry) => matches!(entry.retry, Retry::Elsewhere | Retry::Later),
            None => !self.is_ok(),
        }
    }

    /// Whether the object must be looked up again.
    pub fn is_stale(self) -> bool {
        self.entry().is_some_and(|entry| entry.retry == Retry::AfterLookup)
    }

    /// Whose fault it is. Of what cannot be named: a peer's code is the peer's, the rest the
    /// rail's.
    pub fn blame(self) -> Blame {
        let source = self.source();
        match (source, self.entry()) {
            (Source::Ok, _) => Blame::Nobody,
            // A peer that names a fault of its own rails or disks still answered: ours works.
            (Source::Wire(_), Some(entry)) if entry.blame == Blame::Rail => Blame::Peer,
            (_, Some(entry)) => entry.blame,
            (Source::Wire(_), None) => Blame::Peer,
            (_, None) => Blame::Rail,
        }
    }

    fn source(self) -> Source {
        let magnitude = self.0.unsigned_abs();
        let code = magnitude & CODE_MAX;
        match magnitude >> 16 {
            _ if self.0 == 0 => Source::Ok,
            _ if self.0 > 0 => Source::Foreign,
            0 if magnitude <= ERRNO_MAX => Source::Errno(magnitude),
            1 => Source::Wc(code),
            2 => Source::Own(code),
            3 => Source::Wire(code),
            _ => Source::Foreign,
        }
    }

    fn entry(self) -> Option<&'static Entry> {
        let (table, code) = match self.source() {
            Source::Errno(code) => (ERRNOS, code),
            Source::Wc(code) => (WCS, code),
            Source::Own(code) | Source::Wire(code) => (OWNS, code),
            Source::Ok | Source::Foreign => return None,
        };
        table.binary_search_by_key(&code, |entry| entry.code).ok().map(|index| &table[index])
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.entry().map(|entry| entry.name);
        match (self.source(), name) {
            (Source::Ok, _) => f.write_str("ok"),
            (Source::Errno(code), Some(name)) => write!(f, "{name} (errno {code})"),
            (Source::Errno(code), None) => write!(f, "errno {code}"),
            (Source::Wc(code), Some(name)) => write!(f, "{name} (wc status {code})"),
            (Source::Wc(code), None) => write!(f, "wc status {code}"),
            (Source::Own(_), Some(name)) => f.write_str(name),
            (Source::Own(code), None) => write!(f, "railring code {code}"),
            (Source::Wire(_), Some(name)) => write!(f, "{name} (said the peer)"),
            (Source::Wire(code), None) => write!(f, "wire code {code}"),
            (Source::Foreign, _) => write!(f, "status {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests;
