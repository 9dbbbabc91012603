//! The table that owns what reads are in flight, by the slot in their key.

/// One row: whose read it is and the memory the kernel may write for it.
#[derive(Debug)]
struct Row<T> {
    key: u64,
    /// Count of entries pushed before this one (wrapping): where in the submission queue it is.
    position: u32,
    cancelled: bool,
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
        let empty = || Row { key: 0, position: 0, cancelled: false, held: None };
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

    /// What is kept under `key`, taken out, and whether it was marked as cancelled; none if it is not
    /// in flight (any more).
    pub(crate) fn take(&mut self, key: u64) -> Option<(T, bool)> {
        let row = self.rows.get_mut(row_of(key)).filter(|row| row.key == key)?;
        let held = row.held.take()?;
        self.held -= 1;
        Some((held, row.cancelled))
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.rows.get(row_of(key)).filter(|row| row.key == key)?.held.as_ref()
    }

    /// Marks the read `key` as cancelled; true the first time, if it is in flight.
    pub(crate) fn mark_cancelled(&mut self, key: u64) -> bool {
        match self.rows.get_mut(row_of(key)) {
            Some(row) if row.key == key && row.held.is_some() => {
                !std::mem::replace(&mut row.cancelled, true)
            }
            _ => false,
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
        assert!(!table.mark_cancelled(old));
        assert!(table.mark_cancelled(new) && !table.mark_cancelled(new));
        assert_eq!(table.get(old), None);
        assert_eq!(table.take(u64::MAX), None);
        assert_eq!((table.held(), table.keys().collect::<Vec<_>>()), (1, vec![new]));
        assert_eq!(table.take(new), Some(('b', true)));
        assert_eq!(table.held(), 0);
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
