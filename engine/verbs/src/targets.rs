//! The remote memory a rail is connected to: opened by control threads, found by the link without a
//! lock.
//!
//! A row is written under the control side's lock, and read under a version: the version is zero
//! while the fields change, and never the same for two contents.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use railring_transport::TargetId;
use sq_cq::Status;

/// Targets open at once on one rail.
pub(crate) const TARGETS_MAX: u32 = 16_384;

/// Remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Which connection it is reached over.
    pub(crate) connection: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) rkey: u32,
    /// Why it cannot be read, unless ok.
    pub(crate) status: Status,
}

#[derive(Debug, Default)]
struct Row {
    /// Generation high, count of changes low; 0 while there is nothing or it changes.
    version: AtomicU64,
    connection: AtomicU32,
    rkey: AtomicU32,
    address: AtomicU64,
    bytes: AtomicU64,
    status: AtomicI32,
}

#[derive(Debug)]
pub(crate) struct Targets {
    rows: Box<[Row]>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// Of each slot ever used: its generation, and how often its row changed.
    used: Vec<(u32, u32)>,
    free: Vec<u32>,
}

impl Targets {
    pub(crate) fn new() -> Self {
        let rows = (0..TARGETS_MAX).map(|_| Row::default()).collect();
        Targets { rows, book: Mutex::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Each entry is whole between any two statements below.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, slot: u32, (generation, changes): (u32, u32), target: Target) {
        let row = &self.rows[slot as usize];
        row.version.store(0, Ordering::Relaxed);
        // Release: pairs with the fence in `find`; who sees a field below sees the zero above.
        fence(Ordering::Release);
        row.connection.store(target.connection, Ordering::Relaxed);
        row.rkey.store(target.rkey, Ordering::Relaxed);
        row.address.store(target.address, Ordering::Relaxed);
        row.bytes.store(target.bytes, Ordering::Relaxed);
        row.status.store(target.status.raw(), Ordering::Relaxed);
        let version = u64::from(generation) << 32 | u64::from(changes);
        // Release: pairs with the Acquire in `find`, which then sees the fields.
        row.version.store(version, Ordering::Release);
    }

    /// Keeps a target; nothing if there is no room.
    pub(crate) fn insert(&self, target: Target) -> Option<TargetId> {
        let mut book = self.book();
        let slot = match book.free.pop() {
            Some(slot) => slot,
            None => {
                let slot =
                    u32::try_from(book.used.len()).ok().filter(|slot| *slot < TARGETS_MAX)?;
                book.used.push((1, 0));
                slot
            }
        };
        let (generation, changes) = book.used[slot as usize];
        self.write(slot, (generation, changes), target);
        Some(TargetId { slot, generation })
    }

    /// Changes a target that is there: its memory has moved, or is gone.
    pub(crate) fn change(&self, id: TargetId, target: Target) {
        let mut book = self.book();
        let Some(used) = book.used.get_mut(id.slot as usize) else { return };
        if used.0 == id.generation {
            used.1 = used.1.wrapping_add(1);
            self.write(id.slot, *used, target);
        }
    }

    /// Forgets a target, unless it is not there (any more); says which connection it was of.
    pub(crate) fn remove(&self, id: TargetId) -> Option<u32> {
        let mut book = self.book();
        let used = book.used.get_mut(id.slot as usize).filter(|used| used.0 == id.generation)?;
        *used = (used.0.checked_add(1).unwrap_or(1), 0);
        let row = &self.rows[id.slot as usize];
        row.version.store(0, Ordering::Relaxed);
        book.free.push(id.slot);
        // Nobody writes it without the lock that is held here.
        Some(row.connection.load(Ordering::Relaxed))
    }

    /// The target's memory. No lock; nothing also while it changes.
    pub(crate) fn find(&self, id: TargetId) -> Option<Target> {
        let row = self.rows.get(id.slot as usize)?;
        // Acquire: pairs with the Release at the end of `write`.
        let version = row.version.load(Ordering::Acquire);
        if version >> 32 != u64::from(id.generation) || version == 0 {
            return None;
        }
        let target = Target {
            connection: row.connection.load(Ordering::Relaxed),
            address: row.address.load(Ordering::Relaxed),
            bytes: row.bytes.load(Ordering::Relaxed),
            rkey: row.rkey.load(Ordering::Relaxed),
            status: Status::from_raw(row.status.load(Ordering::Relaxed)),
        };
        // Acquire: pairs with the fence in `write`; a field of a later write shows its zero.
        fence(Ordering::Acquire);
        (row.version.load(Ordering::Relaxed) == version).then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn target(n: u64) -> Target {
        let connection = u32::try_from(n).expect("small");
        Target { connection, address: n, bytes: n, rkey: connection, status: Status::OK }
    }

    #[test]
    fn a_reused_slot_is_another_target() {
        let targets = Targets::new();
        let first = targets.insert(target(1)).expect("room");
        assert_eq!(targets.find(first), Some(target(1)));
        targets.change(first, target(2));
        assert_eq!(targets.find(first), Some(target(2)));
        assert_eq!((targets.remove(first), targets.remove(first)), (Some(2), None));
        assert_eq!(targets.find(first), None);
        let second = targets.insert(target(3)).expect("room");
        assert_eq!(second.slot, first.slot);
        targets.change(first, target(4));
        assert_eq!((targets.find(first), targets.find(second)), (None, Some(target(3))));
        assert_eq!(targets.find(TargetId { slot: TARGETS_MAX, generation: 1 }), None);
        assert_eq!(targets.find(TargetId { slot: 9, generation: 0 }), None);
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let targets = Targets::new();
        let id = targets.insert(target(0)).expect("room");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..100_000).for_each(|n| targets.change(id, target(n)));
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                if let Some(found) = targets.find(id) {
                    assert_eq!(found, target(found.address));
                }
            }
        });
    }
}
