//! The caller's memory on its way through a read: lent whole, carved in order, given back in parts.

use railring_dma::Part;

use crate::trace::ReadTrace;

/// Parts of several leases, or those of a read that is traced. Boxed where it travels, so that what
/// travels with every read is small.
#[derive(Debug, Default)]
pub(crate) struct PartList {
    /// Last first, so that taking the next is a pop.
    pub(crate) parts: Vec<Part>,
    /// What is written down of the read, if it is traced.
    pub(crate) trace: Option<Box<ReadTrace>>,
}

/// Memory of a read that no stripe has taken yet, in the order of the object's bytes.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    One(Part),
    /// Parts of several leases, or of a read that is traced.
    Many(Box<PartList>),
}

/// What travels back with a CQE.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// The stripe's memory: `lead_bytes` that belong to the gap before it, then its bytes.
    pub(crate) part: Option<Part>,
    pub(crate) lead_bytes: u64,
    /// The emptied list of a scattered or traced read, for its next use.
    pub(crate) list: Option<Box<PartList>>,
}

impl Memory {
    /// The next at most `bytes`, of one lease; `None` when nothing is left.
    #[inline]
    pub(crate) fn carve(&mut self, bytes: u64) -> Option<Part> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        match std::mem::replace(self, Memory::None) {
            Memory::None => None,
            Memory::One(part) => {
                if part.len() <= bytes {
                    return Some(part);
                }
                let (taken, rest) = part.split_at(bytes);
                *self = Memory::One(rest);
                Some(taken)
            }
            Memory::Many(mut list) => {
                let taken = list.parts.pop().map(|part| {
                    if part.len() <= bytes {
                        return part;
                    }
                    let (taken, rest) = part.split_at(bytes);
                    list.parts.push(rest);
                    taken
                });
                *self = Memory::Many(list);
                taken
            }
        }
    }

    /// The address of the next byte and how many follow it in the same lease.
    #[inline]
    pub(crate) fn front(&self) -> Option<(usize, u64)> {
        let part = match self {
            Memory::None => None,
            Memory::One(part) => Some(part),
            Memory::Many(list) => list.parts.last(),
        }?;
        Some((part.address().as_ptr() as usize, part.len() as u64))
    }

    /// The list of a scattered or traced read, once it is empty.
    pub(crate) fn into_list(self) -> Option<Box<PartList>> {
        match self {
            Memory::Many(list) => Some(list),
            _ => None,
        }
    }
}
