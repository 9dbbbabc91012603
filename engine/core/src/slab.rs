//! Fixed tables whose entries are named by slot and generation, and lists threaded through them.
//!
//! Everything a poller keeps per read, stripe and piece lives in a [`Slab`] that is allocated once.
//! Lists are intrusive ([`List`]), so that taking an entry out of the middle of a queue (a cancel)
//! costs the same as taking it off the front, and nothing is allocated for membership.

use std::marker::PhantomData;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Names one use of one slot of a `Slab<T>`.
pub(crate) struct Id<T> {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    pub(crate) fn new(slot: u32, generation: u32) -> Self {
        Id { slot, generation, of: PhantomData }
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot && self.generation == other.generation
    }
}
impl<T> std::fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// A table of at most `capacity` values.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Box<[Entry<T>]>,
    free: u32,
    len: u32,
}

impl<T> Slab<T> {
    pub(crate) fn new(capacity: u32) -> Self {
        let entries = (0..capacity)
            .map(|slot| Entry {
                generation: 0,
                next_free: if slot + 1 < capacity { slot + 1 } else { NONE },
                value: None,
            })
            .collect();
        Slab { entries, free: if capacity == 0 { NONE } else { 0 }, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[expect(clippy::cast_possible_truncation, reason = "built from a u32 capacity")]
    pub(crate) fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Makes room for `more` values. Allocates: never on the data path.
    pub(crate) fn grow(&mut self, more: u32) {
        let old = self.capacity();
        let new = old.saturating_add(more).min(NONE - 1);
        let mut entries = std::mem::take(&mut self.entries).into_vec();
        entries.extend((old..new).map(|slot| Entry {
            generation: 0,
            next_free: if slot + 1 < new { slot + 1 } else { self.free },
            value: None,
        }));
        self.entries = entries.into();
        if new > old {
            self.free = old;
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free == NONE
    }

    /// `Err` gives the value back when every slot is taken.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<Id<T>, T> {
        let slot = self.free;
        let Some(entry) = self.entries.get_mut(slot as usize) else { return Err(value) };
        self.free = entry.next_free;
        entry.value = Some(value);
        self.len += 1;
        Ok(Id { slot, generation: entry.generation, of: PhantomData })
    }

    /// Inserts where the caller saw room.
    #[inline]
    pub(crate) fn put(&mut self, value: T) -> Id<T> {
        let slot = self.free;
        let entry = &mut self.entries[slot as usize];
        self.free = entry.next_free;
        entry.value = Some(value);
        self.len += 1;
        Id { slot, generation: entry.generation, of: PhantomData }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        match self.entries.get_mut(id.slot as usize) {
            Some(entry) if entry.generation == id.generation => entry.value.as_mut(),
            _ => None,
        }
    }

    /// The entry of a slot that is known to be taken: links and owners hold plain slots.
    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> &mut T {
        self.entries[slot as usize].value.as_mut().expect("a link names a taken slot")
    }

    #[inline]
    pub(crate) fn peek(&self, slot: u32) -> &T {
        self.entries[slot as usize].value.as_ref().expect("a link names a taken slot")
    }

    /// The entry of a slot of which nothing is known.
    pub(crate) fn get_at(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn id_of(&self, slot: u32) -> Id<T> {
        Id { slot, generation: self.entries[slot as usize].generation, of: PhantomData }
    }

    /// Frees a slot that is known to be taken. Its generation moves on, so that ids of this use
    /// find nothing from now on.
    #[inline]
    pub(crate) fn remove_at(&mut self, slot: u32) -> T {
        let entry = &mut self.entries[slot as usize];
        let value = entry.value.take().expect("a link names a taken slot");
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.free;
        self.free = slot;
        self.len -= 1;
        value
    }

    /// As [`Slab::remove_at`], for a value that nobody needs any more: it is dropped where it lies.
    #[inline]
    pub(crate) fn free_at(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        debug_assert!(entry.value.is_some(), "a link names a taken slot");
        entry.value = None;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.free;
        self.free = slot;
        self.len -= 1;
    }

    /// Slots that are taken; for shutting down, never on the data path.
    pub(crate) fn taken(&self) -> Vec<u32> {
        (0..self.capacity()).filter(|&s| self.entries[s as usize].value.is_some()).collect()
    }
}

/// The two neighbours of an entry in one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
    linked: bool,
}

impl Default for Links {
    fn default() -> Self {
        Links { prev: NONE, next: NONE, linked: false }
    }
}

impl Links {
    pub(crate) fn is_linked(self) -> bool {
        self.linked
    }

    pub(crate) fn next(self) -> u32 {
        self.next
    }
}

/// An entry that can be in one list per `TAG`.
pub(crate) trait Linked<const TAG: usize> {
    fn links(&mut self) -> &mut Links;
}

/// A doubly linked list threaded through a slab. An entry is in at most one list of a tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<const TAG: usize> {
    head: u32,
    tail: u32,
    len: u32,
}

impl<const TAG: usize> Default for List<TAG> {
    fn default() -> Self {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl<const TAG: usize> List<TAG> {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn back(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    #[inline]
    pub(crate) fn push_back<T: Linked<TAG>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        let links = slab.at(slot).links();
        debug_assert!(!links.linked, "an entry is in one list of a tag");
        *links = Links { prev: self.tail, next: NONE, linked: true };
        if self.tail == NONE {
            self.head = slot;
        } else {
            slab.at(self.tail).links().next = slot;
        }
        self.tail = slot;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn remove<T: Linked<TAG>>(&mut self, slab: &mut Slab<T>, slot: u32) {
        let links = std::mem::take(slab.at(slot).links());
        debug_assert!(links.linked, "only a listed entry is taken off");
        if links.prev == NONE {
            self.head = links.next;
        } else {
            slab.at(links.prev).links().next = links.next;
        }
        if links.next == NONE {
            self.tail = links.prev;
        } else {
            slab.at(links.next).links().prev = links.prev;
        }
        self.len -= 1;
    }

    #[inline]
    pub(crate) fn pop_front<T: Linked<TAG>>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let slot = self.front()?;
        self.remove(slab, slot);
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Default)]
    struct Node {
        links: Links,
    }
    impl Linked<0> for Node {
        fn links(&mut self) -> &mut Links {
            &mut self.links
        }
    }

    #[test]
    fn a_stale_id_finds_nothing() {
        let mut slab = Slab::new(2);
        let a = slab.insert("a").expect("room");
        assert_eq!(slab.remove_at(a.slot), "a");
        let b = slab.insert("b").expect("room");
        assert_eq!(b.slot, a.slot, "the slot is used again");
        assert_eq!(slab.get_mut(a), None);
        assert_eq!(slab.get_mut(b), Some(&mut "b"));
    }

    #[test]
    fn a_full_slab_gives_the_value_back() {
        let mut slab = Slab::new(1);
        slab.insert(1).expect("room");
        assert_eq!(slab.insert(2), Err(2));
        assert!(Slab::<u8>::new(0).insert(1).is_err());
    }

    #[test]
    fn a_slab_that_grew_has_room_and_keeps_what_it_had() {
        let mut slab = Slab::new(1);
        let first = slab.insert(0).expect("room");
        slab.grow(3);
        for value in 1..4 {
            slab.insert(value).expect("room");
        }
        assert!(slab.is_full() && slab.insert(4).is_err());
        assert_eq!((slab.get_mut(first).copied(), slab.len(), slab.capacity()), (Some(0), 4, 4));
    }

    proptest! {
        /// Any script of pushes, pops and removals agrees with a `VecDeque`.
        #[test]
        fn a_list_is_a_deque(script in prop::collection::vec((0u8..3, 0usize..16), 1..200)) {
            let mut slab = Slab::new(16);
            let slots: Vec<u32> =
                (0..16).map(|_| slab.insert(Node::default()).expect("room").slot).collect();
            let mut list = List::<0>::default();
            let mut oracle = VecDeque::new();
            for (op, at) in script {
                let slot = slots[at];
                match op {
                    0 if !oracle.contains(&slot) => {
                        list.push_back(&mut slab, slot);
                        oracle.push_back(slot);
                    }
                    1 => prop_assert_eq!(list.pop_front(&mut slab), oracle.pop_front()),
                    2 if oracle.contains(&slot) => {
                        list.remove(&mut slab, slot);
                        oracle.retain(|&s| s != slot);
                    }
                    _ => {}
                }
                prop_assert_eq!(list.len() as usize, oracle.len());
                prop_assert_eq!(list.front(), oracle.front().copied());
                prop_assert_eq!(list.back(), oracle.back().copied());
            }
        }
    }
}
