//! The fault that the crate is made to prevent, for tests: a write into memory that was given back.
//!
//! Only with the `fault` feature, and only for simulators: whoever enables it lets safe code write
//! into memory that another owner reads, which breaks the crate's promise on purpose.
#![cfg(feature = "fault")]

use crate::part::Part;
use crate::region::Region;
use crate::registry::Regions;

/// Writes into the memory of a part after the part was given back, as a device does whose transfer
/// was thought to be over. Keeps the region mapped.
///
/// The feature that gives this type is for tests. It makes data races expressible in safe
/// code: use it only where the bytes are not being accessed by another thread.
#[derive(Debug)]
pub struct LateWriter {
    region: Region,
    offset: usize,
    bytes: usize,
}

impl LateWriter {
    /// Remembers where the part lies; nothing if its region is not of this registry.
    pub fn capture(part: &Part, regions: &Regions) -> Option<LateWriter> {
        let region = regions.get(part.region())?;
        let offset = part.start_address().checked_sub(region.base().as_ptr() as usize)?;
        let inside = offset.checked_add(part.len())? <= region.bytes();
        inside.then_some(LateWriter { region, offset, bytes: part.len() })
    }

    /// Writes `data` at `offset` of what was the part, as far as it reaches; gives the bytes
    /// written.
    pub fn write(&self, offset: usize, data: &[u8]) -> usize {
        let room_bytes = self.bytes.saturating_sub(offset);
        let count = data.len().min(room_bytes);
        for (index, byte) in data.iter().take(count).enumerate() {
            // SAFETY: `offset + index` is below the part's length, which lies in the region
            // (`capture`).
            let target = unsafe { self.region.base().add(self.offset + offset + index) };
            // SAFETY: the region is mapped and writable while `self.region` lives. That the bytes
            // may be another's is the fault this type exists to commit.
            unsafe { target.write_volatile(*byte) };
        }
        count
    }
}
