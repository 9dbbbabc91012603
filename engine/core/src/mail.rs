//! What travels between pollers: orders to the rail that a piece was given to, and its news back.
//!
//! An inbox is bounded by what can be in flight: every order was counted against its rail before it
//! was sent, and each order causes one reply and at most one cancel. So a push never fails and no
//! two pollers can wait for each other.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use railring_dma::Part;
use railring_transport::TargetId;
use sq_cq::{Bell, Status};

use crate::home::Piece;
use crate::slab::Id;

/// The bell's source of an inbox and of control messages; rings follow.
pub(crate) const SOURCE_CONTROL: usize = 0;
pub(crate) const SOURCE_MAIL: usize = 1;
pub(crate) const SOURCE_RINGS: usize = 2;

/// Whether the rail's poller hashes what landed, while it is in cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    None,
    /// The first so many bytes.
    Bytes(u64),
}

/// A piece given to a rail.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) home: u16,
    pub(crate) piece: Id<Piece>,
    pub(crate) target: TargetId,
    pub(crate) offset: u64,
    pub(crate) bytes_min: u64,
    pub(crate) part: Part,
    pub(crate) hash: Hash,
}

/// How a piece came back.
#[derive(Debug)]
pub(crate) enum News {
    /// It landed. The hash is of what the order asked for.
    Landed {
        hash: u64,
    },
    Failed {
        status: Status,
    },
    /// Thrown back through no fault of its own.
    Flushed,
    /// It did not come back within the bound; its part may come much later.
    Stuck {
        /// Why it had been given up.
        cause: Status,
    },
}

/// A piece on its way back to its home.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) rail: u16,
    pub(crate) piece: Id<Piece>,
    pub(crate) part: Option<Part>,
    pub(crate) news: News,
}

#[derive(Debug)]
pub(crate) enum Mail {
    Order { rail: u16, order: Order },
    Cancel { rail: u16, home: u16, piece: Id<Piece> },
    Done(Done),
}

/// One poller's bounded inbox, and the bell that wakes it.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: ArrayQueue<Mail>,
    bell: Arc<Bell>,
}

impl Inbox {
    pub(crate) fn new(capacity: usize, bell: Arc<Bell>) -> Self {
        Inbox { queue: ArrayQueue::new(capacity.max(1)), bell }
    }

    /// The receiver sees it after [`Inbox::ring`].
    pub(crate) fn send(&self, mail: Mail) {
        assert!(self.queue.push(mail).is_ok(), "an inbox has room for everything in flight");
    }

    /// Publishes what was sent: the queue's own Release comes before the bell's fence.
    pub(crate) fn ring(&self) {
        self.bell.mark(SOURCE_MAIL);
    }

    pub(crate) fn receive(&self) -> Option<Mail> {
        self.queue.pop()
    }
}
