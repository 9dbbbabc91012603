//! The table of sources a rail is connected to: slots that are used again with a new generation.

use railring_transport::TargetId;

/// Connected sources by [`TargetId`]. An id that was disconnected finds nothing, whatever its slot
/// is used for by then.
#[derive(Debug)]
pub(crate) struct TargetTable<Source> {
    slots: Vec<Slot<Source>>,
    free: Vec<u32>,
    targets_max: u32,
}

#[derive(Debug)]
struct Slot<Source> {
    generation: u32,
    source: Option<Source>,
}

impl<Source> TargetTable<Source> {
    /// An empty table for at most `targets_max` sources at once.
    pub(crate) fn new(targets_max: u32) -> Self {
        TargetTable { slots: Vec::new(), free: Vec::new(), targets_max }
    }

    /// Keeps `source`; `None` if the table is full.
    pub(crate) fn insert(&mut self, source: Source) -> Option<TargetId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow()?,
        };
        let entry = &mut self.slots[slot as usize];
        entry.source = Some(source);
        Some(TargetId { slot, generation: entry.generation })
    }

    fn grow(&mut self) -> Option<u32> {
        let slot = u32::try_from(self.slots.len()).ok().filter(|slot| *slot < self.targets_max)?;
        self.slots.push(Slot { generation: 1, source: None });
        Some(slot)
    }

    /// What is connected as `target`.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn get(&self, target: TargetId) -> Option<&Source> {
        let entry = self.slots.get(target.slot as usize)?;
        entry.source.as_ref().filter(|_| entry.generation == target.generation)
    }

    /// Forgets `target`; nothing happens if it is not connected.
    pub(crate) fn remove(&mut self, target: TargetId) -> Option<Source> {
        let entry = self.slots.get_mut(target.slot as usize)?;
        if entry.generation != target.generation {
            return None;
        }
        let source = entry.source.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(target.slot);
        Some(source)
    }

    /// How many it can hold.
    pub(crate) fn targets_max(&self) -> u32 {
        self.targets_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_is_not_found_by_its_old_id() {
        let mut table = TargetTable::new(1);
        let first = table.insert("a").expect("empty");
        assert_eq!(table.insert("b"), None);
        assert_eq!(table.remove(first), Some("a"));
        assert_eq!(table.remove(first), None);
        let second = table.insert("c").expect("freed");
        assert_eq!((second.slot, table.get(second)), (first.slot, Some(&"c")));
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(TargetId { slot: 7, generation: 1 }), None);
    }
}
