//! The table in which a link keeps the parts it was given, by work request.

use railring_dma::Part;

use crate::link::WrId;

/// Parts in a device's hands, found by [`WrId`]. A completion whose generation is not the one
/// in the slot finds nothing and is counted: it belongs to an earlier use of the slot.
#[derive(Debug)]
pub struct PartTable<Extra = ()> {
    slots: Box<[Option<Held<Extra>>]>,
    held: u32,
    stale: u64,
}

#[derive(Debug)]
struct Held<Extra> {
    generation: u32,
    part: Part,
    extra: Extra,
}

impl<Extra> PartTable<Extra> {
    /// A table for `slots` requests; the only allocation it makes.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        PartTable { slots: (0..slots).map(|_| None).collect(), held: 0, stale: 0 }
    }

    /// Keeps `part` for `wr`.
    ///
    /// # Errors
    /// Gives both back if the slot is out of range or still taken.
    pub fn insert(&mut self, wr: WrId, part: Part, extra: Extra) -> Result<(), (Part, Extra)> {
        match self.slots.get_mut(wr.slot as usize) {
            Some(slot @ None) => {
                *slot = Some(Held { generation: wr.generation, part, extra });
                self.held += 1;
                Ok(())
            }
            _ => Err((part, extra)),
        }
    }

    /// The part and what was kept with it; `None` and one more stale completion if `wr` is not in
    /// flight.
    pub fn take(&mut self, wr: WrId) -> Option<(Part, Extra)> {
        let slot = self.slots.get_mut(wr.slot as usize);
        match slot {
            Some(slot) if slot.as_ref().is_some_and(|held| held.generation == wr.generation) => {
                self.held -= 1;
                slot.take().map(|held| (held.part, held.extra))
            }
            _ => {
                self.stale += 1;
                None
            }
        }
    }

    /// What is kept for `wr`, to look at or change; does not count staleness.
    pub fn get_mut(&mut self, wr: WrId) -> Option<(&mut Part, &mut Extra)> {
        match self.slots.get_mut(wr.slot as usize) {
            Some(Some(held)) if held.generation == wr.generation => {
                Some((&mut held.part, &mut held.extra))
            }
            _ => None,
        }
    }

    /// Requests in the table.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Completions that found nothing. Monotone.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale
    }
}
