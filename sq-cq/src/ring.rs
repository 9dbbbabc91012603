//! Owns the slots of a single-producer single-consumer ring: the crate's unsafe code, all of it.
//!
//! The algorithm is Lamport's bounded buffer ("Specifying Concurrent Program Modules", 1983) with
//! each side keeping its last view of the other's index, so that a batch costs two atomics.
//!
//! # Safety
//!
//! One invariant carries all of it: **positions `head..tail` hold initialised entries and belong to
//! the consumer, positions `tail..head + entries` are uninitialised and belong to the producer.**
//! Here `head` and `tail` are the *private* counters of the two ends; the published ones lag behind
//! them, which only makes the other side's share smaller:
//!
//! * the producer stores `tail` with Release after it wrote the slots before it; the consumer loads
//!   it with Acquire, and so sees the entries whole;
//! * the consumer stores `head` with Release after it moved the entries before it out; the producer
//!   loads it with Acquire, and so overwrites nothing that is still being read.
//!
//! There is one producer and one consumer because `spsc` makes one of each, neither is `Clone`, and
//! what touches slots takes `&mut self`.

use std::mem::MaybeUninit;

use crate::cursor::{Capacity, Cursor};
use crate::padded::Padded;
use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};

/// The two published counters, each on lines of its own; nothing else is.
#[derive(Debug)]
pub(crate) struct Indices {
    tail: Padded<AtomicU32>,
    head: Padded<AtomicU32>,
}

impl Indices {
    /// Published entries that were not taken yet. Exact when both sides are quiet; never above
    /// `entries`, never an underflow, while they are not.
    pub(crate) fn len(&self, entries: u32) -> u32 {
        // Head first: a tail loaded later cannot lie before it, only too far ahead.
        let head = Cursor(self.head.load(Ordering::Acquire));
        let tail = Cursor(self.tail.load(Ordering::Acquire));
        tail.since(head).min(entries)
    }

    /// Where `head` and `tail` lie in memory.
    pub(crate) fn addresses(&self) -> (usize, usize) {
        let address = |index: &AtomicU32| std::ptr::from_ref(index).addr();
        (address(&self.head), address(&self.tail))
    }
}

/// An entry and what travels with it, in two arrays: an entry is a cache line, and stays aligned.
struct Slots<E, A> {
    entries: Box<[UnsafeCell<MaybeUninit<E>>]>,
    attachments: Box<[UnsafeCell<MaybeUninit<A>>]>,
    mask: u32,
    indices: Arc<Indices>,
}

// SAFETY: the slots are reached through a `Producer` and a `Consumer` only, which keep to disjoint
// positions (the module's invariant); entries move from one thread to another, hence `Send`.
unsafe impl<E: Send, A: Send> Sync for Slots<E, A> {}

impl<E, A> Slots<E, A> {
    /// # Safety
    /// The position belongs to the producer, and becomes initialised by this.
    #[inline(always)]
    unsafe fn write(&self, position: Cursor, entry: E, attachment: A) {
        let slot = position.slot(self.mask);
        // SAFETY: `slot <= mask`, and both arrays have `mask + 1` elements.
        let cell = unsafe { self.entries.get_unchecked(slot) };
        // SAFETY: the caller owns the position, so nobody else looks at the cell.
        cell.with_mut(|cell| unsafe { cell.write(MaybeUninit::new(entry)) });
        // SAFETY: as above.
        let cell = unsafe { self.attachments.get_unchecked(slot) };
        // SAFETY: as above.
        cell.with_mut(|cell| unsafe { cell.write(MaybeUninit::new(attachment)) });
    }

    /// # Safety
    /// The position belongs to the consumer and is initialised; it is uninitialised after this.
    #[inline(always)]
    unsafe fn take(&self, position: Cursor) -> (E, A) {
        let slot = position.slot(self.mask);
        // SAFETY: `slot <= mask`, and both arrays have `mask + 1` elements.
        let cell = unsafe { self.entries.get_unchecked(slot) };
        // SAFETY: the caller owns the position, so nobody else looks at the cell.
        let entry = cell.with(|cell| unsafe { cell.read() });
        // SAFETY: as above.
        let cell = unsafe { self.attachments.get_unchecked(slot) };
        // SAFETY: as above.
        let attachment = cell.with(|cell| unsafe { cell.read() });
        // SAFETY: the caller says that the position is initialised.
        let entry = unsafe { entry.assume_init() };
        // SAFETY: as above.
        let attachment = unsafe { attachment.assume_init() };
        (entry, attachment)
    }
}

impl<E, A> Drop for Slots<E, A> {
    /// Both ends are gone, and each published its counter as it went: what lies between is whole
    /// and nobody's.
    fn drop(&mut self) {
        let mut head = Cursor(self.indices.head.load(Ordering::Acquire));
        let tail = Cursor(self.indices.tail.load(Ordering::Acquire));
        while head != tail {
            // SAFETY: positions `head..tail` are initialised, and `&mut self` owns them now.
            drop(unsafe { self.take(head) });
            head = head.next();
        }
    }
}

/// The end that writes. Entries become visible to the consumer with `publish`.
pub(crate) struct Producer<E, A> {
    slots: Arc<Slots<E, A>>,
    indices: Arc<Indices>,
    /// The position that the next push writes.
    tail: Cursor,
    /// The last tail that was published.
    published: Cursor,
    /// The consumer's head when it was last looked at.
    head_seen: Cursor,
    entries: u32,
}

/// A slot that is free, and stays so while this is held.
pub(crate) struct Vacant<'a, E, A>(&'a mut Producer<E, A>);

impl<E, A> Vacant<'_, E, A> {
    /// Writes an entry that the consumer does not see yet.
    #[inline]
    pub(crate) fn fill(self, entry: E, attachment: A) {
        let position = self.0.tail;
        // SAFETY: `tail - head < entries` (only `Producer::vacant` makes these), so the position is
        // the producer's and uninitialised; the advanced tail leaves it behind.
        unsafe { self.0.slots.write(position, entry, attachment) };
        self.0.tail = position.next();
    }
}

/// The end that reads.
pub(crate) struct Consumer<E, A> {
    slots: Arc<Slots<E, A>>,
    indices: Arc<Indices>,
    /// The position that the next pop reads.
    head: Cursor,
    /// The last head that was published.
    published: Cursor,
    /// Slots of popped entries that the producer is not to have yet.
    held: u32,
    /// The producer's tail when it was last looked at.
    tail_seen: Cursor,
}

/// An empty ring whose counters begin at `start`.
pub(crate) fn spsc<E, A>(capacity: Capacity, start: u32) -> (Producer<E, A>, Consumer<E, A>) {
    let entries = capacity.entries();
    let indices = Arc::new(Indices {
        tail: Padded::new(AtomicU32::new(start)),
        head: Padded::new(AtomicU32::new(start)),
    });
    let slots = Arc::new(Slots {
        entries: (0..entries).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        attachments: (0..entries).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        mask: entries - 1,
        indices: Arc::clone(&indices),
    });
    let start = Cursor(start);
    let producer = Producer {
        slots: Arc::clone(&slots),
        indices: Arc::clone(&indices),
        tail: start,
        published: start,
        head_seen: start,
        entries,
    };
    let consumer =
        Consumer { slots, indices, head: start, published: start, held: 0, tail_seen: start };
    (producer, consumer)
}

impl<E, A> Producer<E, A> {
    /// The slot that the next entry goes into, unless the ring is full. Looks at the consumer's
    /// head only when its last view of it says full.
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, E, A>> {
        if self.tail.since(self.head_seen) == self.entries {
            // Pairs with the Release in `Consumer::publish`.
            self.head_seen = Cursor(self.indices.head.load(Ordering::Acquire));
            if self.tail.since(self.head_seen) == self.entries {
                return None;
            }
        }
        Some(Vacant(self))
    }

    /// Makes everything pushed visible; says how many entries that were.
    #[inline]
    pub(crate) fn publish(&mut self) -> u32 {
        let count = self.unpublished();
        if count != 0 {
            // Pairs with the Acquire in `Consumer::refill`.
            self.indices.tail.store(self.tail.0, Ordering::Release);
            self.published = self.tail;
        }
        count
    }

    /// Entries pushed and not yet visible.
    #[inline]
    pub(crate) fn unpublished(&self) -> u32 {
        self.tail.since(self.published)
    }

    /// Entries in the ring, the unpublished ones included; exact when the consumer is quiet.
    pub(crate) fn len(&self) -> u32 {
        self.tail.since(Cursor(self.indices.head.load(Ordering::Acquire)))
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) fn indices(&self) -> &Arc<Indices> {
        &self.indices
    }
}

impl<E, A> Drop for Producer<E, A> {
    /// Takes back what was never published, since the consumer will not learn of it.
    fn drop(&mut self) {
        while self.published != self.tail {
            // Newest first, so that `published..tail` is at each step what is left, even if a
            // destructor panics.
            self.tail = Cursor(self.tail.0.wrapping_sub(1));
            // SAFETY: this end wrote the position and the consumer cannot see it; it is left
            // uninitialised and outside of `head..tail`.
            drop(unsafe { self.slots.take(self.tail) });
        }
    }
}

impl<E, A> Consumer<E, A> {
    /// Moves the oldest visible entry out. Looks at the producer's tail only when its last view of
    /// it says empty.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(E, A)> {
        if self.head == self.tail_seen && self.refill() == 0 {
            return None;
        }
        let position = self.head;
        self.head = position.next();
        // SAFETY: `head != tail_seen`, so the position is initialised and the consumer's; the
        // advanced head leaves it behind.
        Some(unsafe { self.slots.take(position) })
    }

    /// Looks at the producer's tail; says how many entries are there to pop.
    #[inline]
    pub(crate) fn refill(&mut self) -> u32 {
        self.publish();
        // Pairs with the Release in `Producer::publish`.
        self.tail_seen = Cursor(self.indices.tail.load(Ordering::Acquire));
        self.visible()
    }

    /// Lets the producer have the slots of everything popped, but for so many as are held back.
    /// What was published never moves back.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.head.since(self.published) > self.held {
            self.published = Cursor(self.head.0.wrapping_sub(self.held));
            // Pairs with the Acquire in `Producer::vacant`.
            self.indices.head.store(self.published.0, Ordering::Release);
        }
    }

    /// From the next publication on, the producer does not get the slots of the last `entries`
    /// popped.
    #[inline]
    pub(crate) fn hold_back(&mut self, entries: u32) {
        self.held = entries;
    }

    /// Entries known to be there, without looking.
    #[inline]
    pub(crate) fn visible(&self) -> u32 {
        self.tail_seen.since(self.head)
    }

    /// Entries there to pop, looking but not remembering.
    pub(crate) fn len(&self) -> u32 {
        Cursor(self.indices.tail.load(Ordering::Acquire)).since(self.head)
    }

    pub(crate) fn indices(&self) -> &Arc<Indices> {
        &self.indices
    }
}

impl<E, A> Drop for Consumer<E, A> {
    /// Tells `Slots::drop` what was taken.
    fn drop(&mut self) {
        self.held = 0;
        self.publish();
    }
}
