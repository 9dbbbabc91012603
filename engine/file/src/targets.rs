//! The files a rail is connected to: opened by control threads, found by the link without a lock.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use railring_transport::TargetId;
use railring_uring::{FileRef, FileSlot};

/// Files open at once on one rail.
pub(crate) const TARGETS_MAX: u32 = 16_384;

/// Says that the low bits are an entry of the ring's table, not a descriptor.
const REGISTERED: u64 = 1 << 31;

/// One open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) descriptor: Arc<OwnedFd>,
    pub(crate) registered: Option<FileSlot>,
}

/// The table of open files. Generations start at 1, so that a zeroed word is no file.
#[derive(Debug)]
pub(crate) struct Targets {
    /// For the link: generation high, then how the ring names the file.
    words: Box<[AtomicU64]>,
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Files {
    rows: Vec<Row>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Row {
    generation: u32,
    file: Option<OpenFile>,
}

impl Targets {
    pub(crate) fn new() -> Self {
        let words = (0..TARGETS_MAX).map(|_| AtomicU64::new(0)).collect();
        Targets { words, files: Mutex::new(Files { rows: Vec::new(), free: Vec::new() }) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        // Each row is whole between any two statements below.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a file; gives it back if there is no room.
    pub(crate) fn insert(&self, file: OpenFile) -> Result<TargetId, OpenFile> {
        let mut files = self.files();
        let slot = match files.free.pop() {
            Some(slot) => slot,
            None => match u32::try_from(files.rows.len()) {
                Ok(slot) if slot < TARGETS_MAX => {
                    files.rows.push(Row { generation: 1, file: None });
                    slot
                }
                _ => return Err(file),
            },
        };
        let word = link_word(&file);
        let row = &mut files.rows[slot as usize];
        row.file = Some(file);
        let id = TargetId { slot, generation: row.generation };
        // Release: pairs with the Acquire in `find`; the file is open and registered before.
        self.words[slot as usize].store(u64::from(id.generation) << 32 | word, Ordering::Release);
        Ok(id)
    }

    /// Takes a file out, unless it is not there (any more).
    pub(crate) fn remove(&self, id: TargetId) -> Option<OpenFile> {
        let mut files = self.files();
        let row =
            files.rows.get_mut(id.slot as usize).filter(|row| row.generation == id.generation)?;
        let file = row.file.take()?;
        row.generation = row.generation.checked_add(1).unwrap_or(1);
        self.words[id.slot as usize].store(0, Ordering::Relaxed);
        files.free.push(id.slot);
        Some(file)
    }

    /// How the ring names a file. No lock.
    pub(crate) fn find(&self, id: TargetId) -> Option<FileRef> {
        // Acquire: pairs with the Release in `insert`.
        let word = self.words.get(id.slot as usize)?.load(Ordering::Acquire);
        if word >> 32 != u64::from(id.generation) || word == 0 {
            return None;
        }
        let name = word & (REGISTERED - 1);
        Some(if word & REGISTERED == 0 {
            FileRef::Descriptor(i32::try_from(name).ok()?)
        } else {
            FileRef::Registered(FileSlot::from_index(u32::try_from(name).ok()?))
        })
    }

    /// A file's descriptor, for a worker. Takes the lock.
    pub(crate) fn descriptor(&self, id: TargetId) -> Option<Arc<OwnedFd>> {
        let files = self.files();
        let row = files.rows.get(id.slot as usize).filter(|row| row.generation == id.generation)?;
        row.file.as_ref().map(|file| Arc::clone(&file.descriptor))
    }
}

fn link_word(file: &OpenFile) -> u64 {
    match file.registered {
        Some(slot) => REGISTERED | u64::from(slot.index()),
        None => u64::from(file.descriptor.as_raw_fd().unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn open_file(registered: Option<u32>) -> OpenFile {
        let descriptor =
            Arc::new(OwnedFd::from(File::open("/dev/null").expect("it is everywhere")));
        OpenFile { descriptor, registered: registered.map(FileSlot::from_index) }
    }

    #[test]
    fn a_reused_slot_is_another_target() {
        let targets = Targets::new();
        let first = targets.insert(open_file(Some(7))).expect("there is room");
        assert_eq!(targets.find(first), Some(FileRef::Registered(FileSlot::from_index(7))));
        assert!(targets.remove(first).is_some());
        assert!(targets.remove(first).is_none());
        let second = targets.insert(open_file(None)).expect("there is room");
        assert_eq!(second.slot, first.slot);
        assert_eq!(targets.find(first), None);
        assert!(targets.descriptor(first).is_none());
        assert!(matches!(targets.find(second), Some(FileRef::Descriptor(_))));
        assert_eq!(targets.find(TargetId { slot: TARGETS_MAX, generation: 1 }), None);
        assert_eq!(targets.find(TargetId { slot: 5, generation: 0 }), None);
    }
}
