//! Owns the doorbell of a poller: which rings have something for it, and how it is woken.
//!
//! # Why the fences
//!
//! Both sides of a sleep handshake write one thing and then read another:
//!
//! ```text
//!   caller                              poller
//!   1  bit := 1                         a  sleeping := 1
//!   2  fence(SeqCst)                    b  fence(SeqCst)
//!   3  sleeping?  then wake             c  any bit?  then do not sleep
//! ```
//!
//! Release and Acquire order the accesses of one thread around *one* location; they say nothing
//! about a store followed by a load of another location, which every processor with a store buffer
//! reorders, x86 included. Without the fences both loads may read the old value: the caller sees
//! nobody asleep, the poller sees no bit, and the read waits for ever. Sequentially consistent
//! fences have one order that both threads agree on, so whichever fence comes second is followed by
//! a load that sees the other side's store.
//!
//! The bit itself needs the same argument once more, because a caller that finds it set does not
//! set it again:
//!
//! ```text
//!   caller                              poller
//!   1  tail := new (Release)            a  word := 0 (swap)
//!   2  fence(SeqCst)                    b  fence(SeqCst)
//!   3  bit set?  then leave it          c  tail?
//! ```
//!
//! If 3 reads the bit from before the swap, 2 came first, and c sees the new tail. And a caller
//! that leaves at 3 need not look at `sleeping`: whoever set the bit did, after it was set.
//!
//! All writes of the flag are read-modify-writes. The standard would allow plain stores where a
//! thread going to sleep writes it, but loom does not order a store after the swap whose value it
//! must follow, and then sees a wake-up get lost that cannot be; and nothing is saved on that path.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::event::{Event, Woken};
use crate::padded::Padded;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

const SOURCES_PER_WORD: usize = u64::BITS as usize;

/// Tells one poller that some of its rings have something for it, and wakes it if it sleeps.
///
/// Any thread may call [`mark`](Bell::mark) and [`wake`](Bell::wake); everything else is the
/// poller's.
///
/// ```
/// use sq_cq::Bell;
///
/// # fn main() -> std::io::Result<()> {
/// let bell = Bell::new(3)?;
/// bell.mark(2);
/// let mut ready = Vec::new();
/// bell.take_ready(|source| ready.push(source));
/// assert_eq!(ready, [2]);
/// assert!(!bell.any_ready());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Bell {
    /// 1 while the poller sleeps or is about to.
    sleeping: Padded<AtomicU32>,
    /// One bit per source.
    words: Box<[Padded<AtomicU64>]>,
    sources: usize,
    event: Event,
}

impl Bell {
    /// A bell for `sources` rings, numbered from 0. 0 is allowed, for a poller without rings.
    ///
    /// # Errors
    /// When the process can have no more descriptors (eventfd(2)).
    pub fn new(sources: usize) -> io::Result<Self> {
        let words = sources.div_ceil(SOURCES_PER_WORD);
        Ok(Self {
            sleeping: Padded::new(AtomicU32::new(0)),
            words: (0..words).map(|_| Padded::new(AtomicU64::new(0))).collect(),
            sources,
            event: Event::new()?,
        })
    }

    /// How many sources the bell has.
    pub fn sources(&self) -> usize {
        self.sources
    }

    /// Says that `source` has something new, and wakes the poller if it sleeps. Call it after
    /// whatever is new was published.
    ///
    /// # Panics
    /// When `source` is not below [`sources`](Bell::sources).
    #[inline]
    pub fn mark(&self, source: usize) {
        assert!(source < self.sources, "the bell has no such source");
        let word = &self.words[source / SOURCES_PER_WORD];
        let bit = 1 << (source % SOURCES_PER_WORD);
        // Orders the Release store of what is new before the load of the bit; pairs with the fence
        // in `take_ready`.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) & bit == 0 {
            // Release pairs with the Acquire of the swap in `take_ready`.
            word.fetch_or(bit, Ordering::Release);
            self.wake();
        }
    }

    /// Wakes the poller if it sleeps. Call it after whatever the poller re-checks before it sleeps
    /// was published. One system call if it does sleep, else none.
    #[inline]
    pub fn wake(&self) {
        // Orders what was published before the load of the flag; pairs with the fence in
        // `prepare_sleep`.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) != 0
            && self.sleeping.swap(0, Ordering::Relaxed) != 0
        {
            self.event.raise();
        }
    }

    /// Takes all marks, and calls `serve` with each marked source. What was published before a mark
    /// that is taken, or that was found set, is visible to `serve`.
    #[inline]
    pub fn take_ready(&self, mut serve: impl FnMut(usize)) {
        for (index, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire pairs with the Release of the `fetch_or` in `mark`.
            let mut bits = word.swap(0, Ordering::Acquire);
            // Orders the swap before the loads of tails in `serve`; pairs with the fence in `mark`.
            fence(Ordering::SeqCst);
            while bits != 0 {
                serve(index * SOURCES_PER_WORD + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Whether some source is marked. Changes nothing.
    #[inline]
    pub fn any_ready(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Says that the poller is about to sleep. After it the poller must look once more at all that
    /// could give it work, [`any_ready`](Bell::any_ready) included, and then either
    /// [`cancel_sleep`](Bell::cancel_sleep) or sleep on the descriptor and [`clear`](Bell::clear).
    #[inline]
    pub fn prepare_sleep(&self) {
        self.sleeping.swap(1, Ordering::Relaxed);
        // Orders the flag before the loads of the re-check; pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
    }

    /// Takes [`prepare_sleep`](Bell::prepare_sleep) back. A wake that was already under way makes
    /// the descriptor readable all the same; the next sleep then ends early.
    #[inline]
    pub fn cancel_sleep(&self) {
        self.sleeping.swap(0, Ordering::Relaxed);
    }

    /// Whether the poller said that it sleeps, and neither took that back nor was woken since.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0
    }

    /// Sleeps until woken or for at most `timeout`, then clears. For pollers that have no other
    /// descriptor to wait for. Call it after [`prepare_sleep`](Bell::prepare_sleep) and the
    /// re-check. May return early.
    pub fn sleep(&self, timeout: Option<Duration>) {
        let _woken: Woken = self.event.wait(timeout);
        self.clear();
    }

    /// Ends a sleep: nobody needs to wake the poller, and the descriptor is unreadable again.
    pub fn clear(&self) {
        self.cancel_sleep();
        self.event.clear();
    }
}

impl AsFd for Bell {
    /// The eventfd that is readable once the sleeping poller was woken, until `clear`.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
