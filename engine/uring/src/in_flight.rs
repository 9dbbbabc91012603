//! The table that owns what reads are in flight, by the slot in their key.

/// One row: whose read it is and the memory the kernel may write for it.
#[derive(Debug)]
struct Row<T> {
    key: u64,
    /// Count of entries pushed before this one (wrapping): where in the submission queue it is.
    position: u32,
    cancelled: bool,
    /// Whether the ring has this row in its list of reads to cancel.
    listed: bool,
    held: Option<T>,
}

/// What reads are in flight. A key is 64 bits; its low half is the row, below the table's size.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    rows: Box<[Row<T>]>,
    held: u32,
}

/// The row that a key names.
#[expect(clippy::cast_possible_truncation, reason = "the low half is the row")]
fn row_of(key: u64) -> usize {
    key as u32 as usize
}

impl<T> InFlight<T> {
    /// A table of `rows`; the only allocation it makes.
    pub(crate) fn new(rows: u32) -> Self {
        let empty = || Row { key: 0, position: 0, cancelled: false, listed: false, held: None };
        InFlight { rows: (0..rows).map(|_| empty()).collect(), held: 0 }
    }

    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Whether the row of `key` exists and is free.
    pub(crate) fn has_room_for(&self, key: u64) -> bool {
        self.rows.get(row_of(key)).is_some_and(|row| row.held.is_none())
    }

    /// Keeps `held` in the row of `key`, which [`InFlight::has_room_for`] was asked about.
    pub(crate) fn insert(&mut self, key: u64, position: u32, held: T) -> &mut T {
        let row = &mut self.rows[row_of(key)];
        debug_assert!(row.held.is_none(), "row of {key:#x} is taken");
        row.key = key;
        row.position = position;
        row.cancelled = false;
        self.held += 1;
        row.held.insert(held)
    }

    /// What is kept under `key`, taken out, and whether it was marked as cancelled; none if it is
    /// not in flight (any more).
    pub(crate) fn take(&mut self, key: u64) -> Option<(T, bool)> {
        let row = self.rows.get_mut(row_of(key)).filter(|row| row.key == key)?;
        let held = row.held.take()?;
        self.held -= 1;
        Some((held, row.cancelled))
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.rows.get(row_of(key)).filter(|row| row.key == key)?.held.as_ref()
    }

    /// Marks the read `key` as cancelled, if it is in flight. Gives its row the first time, unless
    /// that is still in the list that such rows are put into.
    pub(crate) fn mark_cancelled(&mut self, key: u64) -> Option<usize> {
        let row = self.rows.get_mut(row_of(key)).filter(|row| row.key == key)?;
        if row.held.is_none() || row.cancelled {
            return None;
        }
        row.cancelled = true;
        (!std::mem::replace(&mut row.listed, true)).then_some(row_of(key))
    }

    /// Takes a row off the list; gives the key to cancel if the read it was listed for, or a
    /// later one that is cancelled too, is in flight.
    pub(crate) fn unlist(&mut self, row: usize) -> Option<u64> {
        let row = self.rows.get_mut(row)?;
        row.listed = false;
        (row.cancelled && row.held.is_some()).then_some(row.key)
    }

    /// Puts a row back into the list.
    pub(crate) fn relist(&mut self, row: usize) {
        if let Some(row) = self.rows.get_mut(row) {
            row.listed = true;
        }
    }

    /// Keys of all reads in flight.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows.iter().filter(|row| row.held.is_some()).map(|row| row.key)
    }

    /// Keys of the reads among the last `unsubmitted` of `pushed` entries.
    pub(crate) fn keys_of_last(&self, unsubmitted: u32, pushed: u32) -> Vec<u64> {
        self.rows
            .iter()
            .filter(|row| row.held.is_some() && pushed.wrapping_sub(row.position) <= unsubmitted)
            .map(|row| row.key)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_earlier_use_finds_nothing() {
        let mut table = InFlight::new(2);
        let (old, new) = (1, 7 << 32 | 1);
        assert!(table.has_room_for(old) && !table.has_room_for(2));
        table.insert(old, 0, 'a');
        assert!(!table.has_room_for(new));
        assert_eq!(table.take(new), None);
        assert_eq!(table.take(old), Some(('a', false)));
        assert_eq!(table.take(old), None);
        table.insert(new, 1, 'b');
        assert_eq!(table.mark_cancelled(old), None);
        assert_eq!((table.mark_cancelled(new), table.mark_cancelled(new)), (Some(1), None));
        assert_eq!(table.get(old), None);
        assert_eq!(table.take(u64::MAX), None);
        assert_eq!((table.held(), table.keys().collect::<Vec<_>>()), (1, vec![new]));
        assert_eq!(table.take(new), Some(('b', true)));
        assert_eq!(table.held(), 0);
    }

    #[test]
    fn a_row_is_listed_once_whatever_is_cancelled_in_it() {
        let mut table = InFlight::new(1);
        table.insert(0, 0, ());
        assert_eq!(table.mark_cancelled(0), Some(0));
        assert!(table.take(0).is_some());
        let next = 1 << 32;
        table.insert(next, 1, ());
        assert_eq!(table.unlist(0), None, "the next read in the row was not cancelled");
        table.relist(0);
        assert_eq!(table.mark_cancelled(next), None, "the row is listed already");
        assert_eq!(table.unlist(0), Some(next));
        assert!(table.take(next).is_some());
        assert_eq!(table.unlist(0), None);
    }

    #[test]
    fn the_last_entries_pushed_are_told_apart_across_the_wrap() {
        let mut table = InFlight::new(4);
        for (row, position) in [(0, u32::MAX - 1), (1, u32::MAX), (2, 0), (3, 1)] {
            table.insert(row, position, ());
        }
        let pushed = 2;
        assert_eq!(table.keys_of_last(0, pushed), []);
        assert_eq!(table.keys_of_last(1, pushed), [3]);
        assert_eq!(table.keys_of_last(3, pushed), [1, 2, 3]);
    }
}
