//! Path MTUs: the five there are, and how two ends agree on one.

use std::fmt;

/// The payload of one packet. Both ends of a connection must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1,024 bytes.
    B1024,
    /// 2,048 bytes.
    B2048,
    /// 4,096 bytes.
    B4096,
}

const ALL: [PathMtu; 5] =
    [PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B2048, PathMtu::B4096];

impl PathMtu {
    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        256 << (self as u32)
    }

    /// The one of exactly so many bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<PathMtu> {
        ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The number that `enum ibv_mtu` gives it: 1 for 256 bytes to 5 for 4,096.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32 + 1
    }

    /// The one that `enum ibv_mtu` numbers so.
    #[must_use]
    pub fn from_code(code: u32) -> Option<PathMtu> {
        ALL.into_iter().find(|mtu| mtu.code() == code)
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.bytes())
    }
}

/// What one end says of the path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MtuWish {
    /// So much at most: what its port has. The smaller of two is used.
    AtMost(PathMtu),
    /// Exactly so much: an operator said so. The other end can or the connection is refused.
    Exactly(PathMtu),
}

impl MtuWish {
    /// The size named.
    #[must_use]
    pub const fn mtu(self) -> PathMtu {
        match self {
            MtuWish::AtMost(mtu) | MtuWish::Exactly(mtu) => mtu,
        }
    }

    /// What both ends use. Symmetric, so that each end computes it for itself and comes to the
    /// same.
    ///
    /// # Errors
    /// One end insists on a size that the other does not have, or does not insist on.
    pub fn agree(self, theirs: MtuWish) -> Result<PathMtu, MtuError> {
        use MtuWish::{AtMost, Exactly};
        let refused = Err(MtuError { ours: self, theirs });
        match (self, theirs) {
            (AtMost(a), AtMost(b)) => Ok(a.min(b)),
            (Exactly(a), Exactly(b)) => {
                if a == b {
                    Ok(a)
                } else {
                    refused
                }
            }
            (Exactly(exact), AtMost(most)) | (AtMost(most), Exactly(exact)) => {
                if exact <= most {
                    Ok(exact)
                } else {
                    refused
                }
            }
        }
    }
}

impl fmt::Display for MtuWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MtuWish::AtMost(mtu) => write!(f, "at most {mtu}"),
            MtuWish::Exactly(mtu) => write!(f, "exactly {mtu}"),
        }
    }
}

/// Two ends that cannot use one path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "path MTUs differ: this end takes {ours}, the other {theirs}; set the same on both ends, or \
     none (the link's MTU must be larger by 96 B or more)"
)]
pub struct MtuError {
    /// What this end said.
    pub ours: MtuWish,
    /// What the other end said.
    pub theirs: MtuWish,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> impl Iterator<Item = MtuWish> {
        ALL.into_iter().flat_map(|mtu| [MtuWish::AtMost(mtu), MtuWish::Exactly(mtu)])
    }

    #[test]
    fn both_ends_come_to_the_same() {
        for (a, b) in wishes().flat_map(|a| wishes().map(move |b| (a, b))) {
            assert_eq!(a.agree(b).ok(), b.agree(a).ok(), "{a} and {b}");
            if let Ok(mtu) = a.agree(b) {
                assert!(mtu <= a.mtu() && mtu <= b.mtu(), "{a} and {b}");
            }
        }
    }

    #[test]
    fn the_smaller_is_used_unless_one_end_insists_on_more() {
        let (small, large) = (PathMtu::B1024, PathMtu::B4096);
        assert_eq!(MtuWish::AtMost(large).agree(MtuWish::AtMost(small)), Ok(small));
        assert_eq!(MtuWish::AtMost(large).agree(MtuWish::Exactly(small)), Ok(small));
        let refused = MtuWish::Exactly(large).agree(MtuWish::AtMost(small)).expect_err("too much");
        let text = refused.to_string();
        assert!(text.contains("exactly 4096 B") && text.contains("at most 1024 B"), "{text}");
        assert!(MtuWish::Exactly(large).agree(MtuWish::Exactly(small)).is_err());
    }

    #[test]
    fn codes_are_those_of_the_library() {
        let codes = ALL.map(PathMtu::code);
        assert_eq!(codes, [1, 2, 3, 4, 5]);
        assert_eq!(ALL.map(|mtu| PathMtu::from_code(mtu.code())), ALL.map(Some));
        assert_eq!(ALL.map(|mtu| PathMtu::from_bytes(mtu.bytes())), ALL.map(Some));
        assert_eq!((PathMtu::from_code(0), PathMtu::from_bytes(1000)), (None, None));
    }
}
