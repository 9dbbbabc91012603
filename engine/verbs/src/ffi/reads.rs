//! The send queue of one connection as a queue of RDMA READs that owns the memory they write.
//!
//! Requests lie in a ring in the order of the send queue, which is the order in which they end. A
//! part is taken in by [`ReadQueue::push`] and comes out for one of three reasons: a completion at
//! or behind its request says that it is over, it was never posted, or the queue pair is gone.

use std::fmt;
use std::io;
use std::ptr;

use railring_dma::Part;
use railring_transport::WrId;
use rdma_sys as sys;

use super::cq::{Failed, Wc};
use super::qp::{Breaker, Qp, ReadyToSend};
use crate::wc::FLUSHED;

/// Pieces of one request: its memory may lie in two registrations.
const SEGMENTS: usize = 2;

/// The local keys of a part: of its first bytes, and of the rest if it lies in two registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Key of the first bytes.
    pub first: u32,
    /// The part's bytes from this one on, if there are any, have the other key.
    pub first_bytes: usize,
    /// Key of the rest.
    pub rest: u32,
}

/// One RDMA READ to be made.
#[derive(Debug)]
pub struct Read {
    /// Comes back with the part.
    pub wr: WrId,
    /// Where the bytes land.
    pub part: Part,
    /// How many bytes are read, from 1 to the part's length.
    pub bytes: u32,
    /// The part's keys.
    pub keys: Keys,
    /// Address at the peer.
    pub address: u64,
    /// Key at the peer.
    pub rkey: u32,
    /// Whether its end is reported by itself. The last of a batch always is; the end of another
    /// is known from a later one's.
    pub signal: bool,
}

/// Why a read was not taken in. It comes back whole.
#[derive(Debug)]
pub enum PushRefused {
    /// No room in the send queue.
    Full(Read),
    /// No bytes, or more than the part has.
    Length(Read),
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All its bytes landed.
    Done {
        /// How many.
        bytes: u32,
    },
    /// It failed, and is why the queue pair did.
    Failed {
        /// `enum ibv_wc_status`.
        code: u32,
        /// The device's own code.
        vendor: u32,
    },
    /// The queue pair failed for another reason; whether its bytes landed is not known.
    Flushed,
    /// The library refused to post it.
    Refused {
        /// The errno.
        errno: i32,
    },
}

/// One work request of the ring. The part is with the last of its request.
#[derive(Debug)]
struct Entry {
    wr: WrId,
    last: bool,
    bytes: u32,
    part: Option<Part>,
    /// It reads nothing: its end tells that of the read before it, whose name it has.
    is_marker: bool,
    /// How an earlier work request of the same read failed.
    failed: Option<Failed>,
}

/// RDMA READs on one queue pair, and the memory they write. For one poller.
pub struct ReadQueue {
    qp: Qp<ReadyToSend>,
    wrs: Box<[sys::ibv_send_wr]>,
    sges: Box<[[sys::ibv_sge; SEGMENTS]]>,
    entries: Box<[Entry]>,
    /// Scatter entries that one work request may have.
    sges_max: usize,
    /// Oldest work request that is not over. These count up for ever; a ring index is the rest of
    /// the division by the capacity.
    head: u64,
    /// First that the device does not have.
    posted: u64,
    /// Behind the last.
    tail: u64,
}

// SAFETY: the pointers in `wrs` are into `wrs` and `sges`, which move along, and are set anew
// before each use.
unsafe impl Send for ReadQueue {}

impl fmt::Debug for ReadQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadQueue")
            .field("qp", &self.qp)
            .field("posted", &(self.posted - self.head))
            .field("unposted", &(self.tail - self.posted))
            .finish_non_exhaustive()
    }
}

impl ReadQueue {
    /// A queue over a connected queue pair, as long as the device granted. `sges_max` is the
    /// device's limit for RDMA READ.
    #[must_use]
    pub fn new(qp: Qp<ReadyToSend>, sges_max: u32) -> ReadQueue {
        let granted = qp.granted();
        let capacity = granted.send_wrs.max(1) as usize;
        let sges_max = granted.sges.min(sges_max).clamp(1, SEGMENTS as u32) as usize;
        let no_sge = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
        let nobody = || Entry {
            wr: WrId { slot: 0, generation: 0 },
            last: true,
            bytes: 0,
            part: None,
            is_marker: false,
            failed: None,
        };
        ReadQueue {
            qp,
            wrs: (0..capacity).map(|_| no_wr()).collect(),
            sges: vec![[no_sge; SEGMENTS]; capacity].into(),
            entries: (0..capacity).map(|_| nobody()).collect(),
            sges_max,
            head: 0,
            posted: 0,
            tail: 0,
        }
    }

    /// The queue pair's number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    /// A handle to make the queue pair fail with.
    #[must_use]
    pub fn breaker(&self) -> Breaker {
        self.qp.breaker()
    }

    /// Work requests it has room for, whatever is in it.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Work requests that were pushed and not posted.
    #[must_use]
    pub fn unposted(&self) -> u32 {
        u32::try_from(self.tail - self.posted).unwrap_or(u32::MAX)
    }

    /// Whether the device has any of them.
    #[must_use]
    pub fn has_posted(&self) -> bool {
        self.head < self.posted
    }

    /// Whether only a part of a read was posted, so that its memory is in the device's hands.
    #[must_use]
    pub fn is_within_a_read_now(&self) -> bool {
        self.is_within_a_read(self.posted)
    }

    /// Whether the read is in the queue. Goes through it all: for giving up, not for each read.
    #[must_use]
    pub fn holds(&self, wr: WrId) -> bool {
        (self.head..self.tail).any(|at| self.entries[self.at(at)].wr == wr)
    }

    /// Whether it holds no memory at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    fn at(&self, sequence: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the capacity")]
        let index = (sequence % self.entries.len() as u64) as usize;
        index
    }

    /// Takes a read in, for the next [`ReadQueue::post`]. No system call.
    ///
    /// # Errors
    /// There is no room, or the read makes no sense; it comes back.
    pub fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        let bytes = read.bytes as usize;
        if bytes == 0 || bytes > read.part.len() {
            return Err(PushRefused::Length(read));
        }
        let split = read.keys.first_bytes.min(bytes);
        let pieces = [(0, split, read.keys.first), (split, bytes - split, read.keys.rest)];
        let used = if split == 0 || split == bytes { 1 } else { SEGMENTS };
        // Of an empty first segment the second is the only one.
        let pieces = if split == 0 { [pieces[1], pieces[0]] } else { pieces };
        let wrs = used.div_ceil(self.sges_max);
        if self.entries.len() as u64 - (self.tail - self.head) < wrs as u64 {
            return Err(PushRefused::Full(read));
        }
        let Read { wr, part, address, rkey, signal, .. } = read;
        let base = part.address().as_ptr().addr() as u64;
        let mut part = Some(part);
        for (index, pieces) in pieces[..used].chunks(self.sges_max).enumerate() {
            let last = index + 1 == wrs;
            let at = self.at(self.tail);
            for (sge, (from, length, lkey)) in self.sges[at].iter_mut().zip(pieces) {
                let length = u32::try_from(*length).expect("at most `bytes`");
                *sge = sys::ibv_sge { addr: base + *from as u64, length, lkey: *lkey };
            }
            let request = &mut self.wrs[at];
            request.wr_id = wr.to_bits();
            request.num_sge = i32::try_from(pieces.len()).expect("at most two");
            request.send_flags = flags(last && signal);
            request.wr.rdma = sys::rdma_t { remote_addr: address + pieces[0].0 as u64, rkey };
            let part = if last { part.take() } else { None };
            let bytes = read.bytes;
            self.entries[at] = Entry { wr, last, bytes, part, is_marker: false, failed: None };
            self.tail += 1;
        }
        Ok(())
    }

    /// Hands everything pushed to the device with one call, the last one signalled. Says how many
    /// work requests it took.
    ///
    /// # Errors
    /// The device took only so many and why it stopped there: the rest stays pushed, the one
    /// refused first. With ENOMEM its queue is full and it will do later; else that one will
    /// never do ([`ReadQueue::give_up_unposted`]). If it took all of them and failed nevertheless
    /// (its doorbell did), the queue pair is of no more use.
    pub fn post(&mut self) -> Result<u32, (u32, io::Error)> {
        let count = self.unposted();
        if count == 0 {
            return Ok(0);
        }
        let first = self.link();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there. `first` begins a chain that ends with null; what it
        // points to lives in `self`, and the library copies it before it returns. The memory to be
        // written is that of parts which `self` owns until they are over.
        let errno = unsafe { sys::ibv_post_send(self.qp.inner().as_ptr(), first, &raw mut bad) };
        if errno == 0 {
            self.posted += u64::from(count);
            return Ok(count);
        }
        // A provider that refused none and fails nevertheless has them in its queue.
        let taken = if bad.is_null() { count } else { self.position_of(bad).min(count) };
        self.posted += u64::from(taken);
        // Some providers return -1 and set errno, others return it.
        let error =
            if errno > 0 { io::Error::from_raw_os_error(errno) } else { super::last_error() };
        Err((taken, error))
    }

    /// Chains what was not posted; gives the first.
    fn link(&mut self) -> *mut sys::ibv_send_wr {
        let (posted, tail) = (self.posted, self.tail);
        let (first, last) = (self.at(posted), self.at(tail - 1));
        let sges = self.sges.as_mut_ptr();
        let wrs = self.wrs.as_mut_ptr();
        let mut index = last;
        let mut next = ptr::null_mut();
        loop {
            // SAFETY: the index is below the capacity of both arrays.
            let wr = unsafe { wrs.add(index) };
            // SAFETY: as above.
            let list = unsafe { sges.add(index) };
            // SAFETY: a work request of the array, which nobody else uses now.
            let request = unsafe { &mut *wr };
            request.next = next;
            request.sg_list = list.cast();
            if index == last {
                request.send_flags = flags(true);
            }
            next = wr;
            if index == first {
                return next;
            }
            index = index.checked_sub(1).unwrap_or(self.entries.len() - 1);
        }
    }

    /// How many of the chain come before `bad`.
    fn position_of(&self, bad: *const sys::ibv_send_wr) -> u32 {
        let base = self.wrs.as_ptr().addr();
        let index = bad.addr().wrapping_sub(base) / size_of::<sys::ibv_send_wr>();
        let first = self.at(self.posted);
        let ahead = (index + self.entries.len()).wrapping_sub(first) % self.entries.len();
        // A pointer of somebody else's would be a bug of the provider: nothing was taken.
        if index < self.entries.len() { u32::try_from(ahead).unwrap_or(0) } else { 0 }
    }

    /// Ends what `wc` proves to be over: its own read, and those before it. The completion must be
    /// of this queue pair; says whether it belonged to anything.
    pub fn complete(&mut self, wc: Wc, sink: &mut dyn FnMut(WrId, Part, Ended)) -> bool {
        let wr = WrId::from_bits(wc.wr_id());
        if wc.qpn() != self.qpn() {
            return false;
        }
        let failed = wc.failed();
        // Of a read of two work requests only the last can succeed with a completion.
        let is_it = |entry: &Entry| entry.wr == wr && (entry.last || failed.is_some());
        let Some(at) = (self.head..self.posted).find(|at| is_it(&self.entries[self.at(*at)]))
        else {
            return false;
        };
        while self.head < at {
            // The send queue ends in order, so these are over. Behind a failure nobody knows
            // whether they were signalled, so it is not relied on that they succeeded.
            self.pop(failed.map(|_| FLUSHED_BEFORE), sink);
        }
        self.pop(failed, sink);
        while self.head < self.posted && self.entries[self.at(self.head)].is_marker {
            self.head += 1;
        }
        true
    }

    /// Ends the work request at the head.
    fn pop(&mut self, failed: Option<Failed>, sink: &mut dyn FnMut(WrId, Part, Ended)) {
        let at = self.at(self.head);
        self.head += 1;
        let entry = &mut self.entries[at];
        // What failed first is why.
        let failed = entry.failed.take().or(failed);
        if !entry.last {
            let following = self.at(self.head);
            self.entries[following].failed = failed;
            return;
        }
        let (wr, bytes) = (entry.wr, entry.bytes);
        let ended = match failed {
            None => Ended::Done { bytes },
            Some(Failed { code: FLUSHED, .. }) => Ended::Flushed,
            Some(Failed { code, vendor }) => Ended::Failed { code, vendor },
        };
        if let Some(part) = entry.part.take() {
            sink(wr, part, ended);
        }
    }

    /// Gives the first read that was not posted back, because `errno` says it never will be; with
    /// nothing unposted this does nothing. There may be something to post afterwards even if that
    /// was the last. A read of which one work request was posted stays, for
    /// its memory is in the device's hands: the queue pair must fail.
    pub fn give_up_unposted(&mut self, errno: i32, sink: &mut dyn FnMut(WrId, Part, Ended)) {
        if self.posted == self.tail || self.is_within_a_read(self.posted) {
            return;
        }
        // The refused read is at the front, and all behind it move up: rare, and bounded.
        let wrs = if self.entries[self.at(self.posted)].last { 1 } else { SEGMENTS as u64 };
        let last = self.at(self.posted + wrs - 1);
        let wr = self.entries[last].wr;
        let part = self.entries[last].part.take();
        for to in self.posted..self.tail - wrs {
            let (to, from) = (self.at(to), self.at(to + wrs));
            self.entries.swap(to, from);
            self.wrs.swap(to, from);
            self.sges.swap(to, from);
        }
        self.tail -= wrs;
        if let Some(part) = part {
            sink(wr, part, Ended::Refused { errno });
        }
        if self.posted == self.tail && self.head < self.posted {
            self.push_marker();
        }
    }

    /// What was posted last may not be signalled, when the end of its chain was refused: then
    /// nothing would ever tell that it is over. Adds a read of no bytes behind it that will.
    fn push_marker(&mut self) {
        let (before, at) = (self.at(self.posted - 1), self.at(self.tail));
        if self.wrs[before].send_flags == flags(true) {
            return;
        }
        let wr = self.entries[before].wr;
        self.wrs[at].wr_id = wr.to_bits();
        self.wrs[at].num_sge = 0;
        // SAFETY: this queue posts nothing but RDMA READs, whose variant of the union this is.
        self.wrs[at].wr.rdma = unsafe { self.wrs[before].wr.rdma };
        self.entries[at] =
            Entry { wr, last: true, bytes: 0, part: None, is_marker: true, failed: None };
        self.tail += 1;
    }

    /// Whether the work request before `at` belongs to the same read.
    fn is_within_a_read(&self, at: u64) -> bool {
        at > self.head && !self.entries[self.at(at - 1)].last
    }

    /// Gives back every read of which nothing was posted. Of one that was posted in part, the rest
    /// stays, and ends with [`ReadQueue::end_without_queue_pair`].
    pub fn take_unposted(&mut self, sink: &mut dyn FnMut(WrId, Part, Ended)) {
        let mut keep = self.posted;
        while self.is_within_a_read(keep) && keep < self.tail {
            keep += 1;
        }
        while self.tail > keep {
            self.tail -= 1;
            let at = self.at(self.tail);
            if let Some(part) = self.entries[at].part.take() {
                sink(self.entries[at].wr, part, Ended::Flushed);
            }
        }
    }

    /// Destroys the queue pair, which ends whatever was posted, and gives all memory back. May take
    /// tens of milliseconds. Where a [`Breaker`] is left the queue pair lives on, and the memory
    /// stays in its hands for good.
    pub fn end_without_queue_pair(self, sink: &mut dyn FnMut(WrId, Part, Ended)) {
        let ReadQueue { qp, mut entries, head, tail, .. } = self;
        let Some(inner) = std::sync::Arc::into_inner(qp.into_inner()) else { return };
        drop(inner);
        let capacity = entries.len() as u64;
        for sequence in head..tail {
            #[expect(clippy::cast_possible_truncation, reason = "below the capacity")]
            let entry = &mut entries[(sequence % capacity) as usize];
            if let Some(part) = entry.part.take() {
                sink(entry.wr, part, Ended::Flushed);
            }
        }
    }

    /// Gives a read's memory back at once, though the device may still write it: the lie that the
    /// test of a late write needs.
    #[cfg(feature = "fault")]
    pub fn take_though_not_over(&mut self, wr: WrId) -> Option<Part> {
        let at = (self.head..self.tail).find(|at| {
            let entry = &self.entries[self.at(*at)];
            entry.wr == wr && entry.part.is_some()
        })?;
        let at = self.at(at);
        self.entries[at].part.take()
    }

    /// Makes the library refuse the `index`-th of the work requests that are not posted.
    #[cfg(feature = "fault")]
    pub fn spoil_unposted(&mut self, index: u32) {
        if index < self.unposted() {
            let at = self.at(self.posted + u64::from(index));
            self.wrs[at].num_sge = i32::from(u8::MAX);
        }
    }
}

const FLUSHED_BEFORE: Failed = Failed { code: FLUSHED, vendor: 0 };

fn flags(signal: bool) -> u32 {
    if signal { sys::ibv_send_flags::IBV_SEND_SIGNALED.0 } else { 0 }
}

fn no_wr() -> sys::ibv_send_wr {
    // SAFETY: numbers and raw pointers: all zeros is a value, a work request that does nothing.
    let mut wr: sys::ibv_send_wr = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
    wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
    wr
}
