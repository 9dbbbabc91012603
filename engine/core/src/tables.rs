//! Block tables that a poller keeps: first in, first out, within a budget that is allocated once.
//!
//! A table is checked against the placement before it is kept, so what is found here is vouched
//! for.

use std::collections::VecDeque;

use railring_catalog::checksum::{BlockTable, block_checksum, table_entry};

#[derive(Clone, Copy, Debug)]
struct Kept {
    start: usize,
    bytes: usize,
}

/// A ring of bytes: new tables overwrite the oldest.
#[derive(Debug)]
pub(crate) struct TableCache {
    arena: Box<[u8]>,
    head: usize,
    kept: VecDeque<Kept>,
    /// Ticket of `kept[0]`.
    first: u64,
}

/// Names a kept table; finds nothing once it was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Finds nothing, ever.
    pub(crate) const NONE: Ticket = Ticket(u64::MAX);
}

/// Smallest table that is accounted for, so that the list of tables is bounded.
const TABLE_BYTES_MIN: usize = 64;

impl TableCache {
    pub(crate) fn new(budget_bytes: usize) -> Self {
        TableCache {
            arena: vec![0; budget_bytes].into_boxed_slice(),
            head: 0,
            kept: VecDeque::with_capacity(budget_bytes / TABLE_BYTES_MIN + 1),
            first: 0,
        }
    }

    /// Keeps a checked table; `Ticket::NONE` if it is larger than the budget.
    pub(crate) fn keep(&mut self, table: &[u8]) -> Ticket {
        let room = table.len().max(TABLE_BYTES_MIN);
        if room > self.arena.len() {
            return Ticket::NONE;
        }
        if self.head + room > self.arena.len() {
            // What lies between here and the end is the oldest: it goes, so that the kept tables
            // stay in order around the ring.
            let head = self.head;
            self.drop_while(|kept| kept.start >= head);
            self.head = 0;
        }
        let (start, end) = (self.head, self.head + room);
        self.drop_while(|kept| kept.start < end && kept.start + kept.bytes > start);
        self.arena[start..start + table.len()].copy_from_slice(table);
        self.kept.push_back(Kept { start, bytes: table.len() });
        self.head = end;
        Ticket(self.first + self.kept.len() as u64 - 1)
    }

    fn drop_while(&mut self, overwritten: impl Fn(&Kept) -> bool) {
        while self.kept.front().is_some_and(&overwritten) {
            self.kept.pop_front();
            self.first += 1;
        }
    }

    /// The bytes of a table that is still here.
    #[inline]
    pub(crate) fn get(&self, ticket: Ticket) -> Option<&[u8]> {
        let index = usize::try_from(ticket.0.checked_sub(self.first)?).ok()?;
        let kept = self.kept.get(index)?;
        Some(&self.arena[kept.start..kept.start + kept.bytes])
    }
}

/// Checks a table that was just read; the reason is for the stripe's status.
pub(crate) fn is_vouched_for(table: &[u8], len: u64, block_bytes: u64, expected: u64) -> bool {
    let block_bytes = u32::try_from(block_bytes).expect("validated: at most 1 MiB");
    BlockTable::verify(table, len, block_bytes, expected).is_ok()
}

/// The first block of `bytes`, which begin with block `first`, that differs from the table, and
/// its actual checksum.
pub(crate) fn first_bad_block(
    table: &[u8],
    block_bytes: u64,
    first: u64,
    bytes: &[u8],
) -> Option<(u32, u64)> {
    let block_bytes = usize::try_from(block_bytes).expect("at most 1 MiB");
    let first = usize::try_from(first).expect("at most 131,072");
    bytes.chunks(block_bytes).enumerate().find_map(|(index, block)| {
        let actual = block_checksum(block);
        let block = first + index;
        (table_entry(table, block) != Some(actual))
            .then(|| (u32::try_from(block).unwrap_or(u32::MAX - 1), actual))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is found is what was kept, and the newest tables that fit the budget are found.
        #[test]
        fn the_newest_tables_are_found(sizes in prop::collection::vec(1usize..3000, 1..100)) {
            let budget = 8192;
            let mut cache = TableCache::new(budget);
            let mut kept: Vec<(Ticket, Vec<u8>)> = Vec::new();
            for (index, size) in sizes.into_iter().enumerate() {
                let table = vec![index as u8; size];
                kept.push((cache.keep(&table), table));
                let mut newer = 0;
                for (ticket, table) in kept.iter().rev() {
                    newer += table.len().max(TABLE_BYTES_MIN);
                    match cache.get(*ticket) {
                        Some(found) => prop_assert_eq!(found, &table[..]),
                        // The end of the ring can stay unused by less than one table.
                        None => prop_assert!(newer + 3000 > budget, "lost too early"),
                    }
                }
            }
            prop_assert!(cache.get(Ticket::NONE).is_none());
        }
    }

    #[test]
    fn a_table_over_the_budget_is_not_kept() {
        let mut cache = TableCache::new(128);
        assert_eq!(cache.keep(&[0; 129]), Ticket::NONE);
        let ticket = cache.keep(&[1; 128]);
        assert_eq!(cache.get(ticket), Some(&[1; 128][..]));
    }
}
