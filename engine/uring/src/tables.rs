//! The ring's tables of registered files and buffers, changed by any thread while a poller reads.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::IoUring;

use crate::errno::errno_name;

/// The longest buffer that a kernel registers as one.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// An entry of the table of registered files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSlot(u32);

impl FileSlot {
    /// Names an entry by its number. A number without a file makes reads fail with EBADF.
    #[must_use]
    pub const fn from_index(index: u32) -> FileSlot {
        FileSlot(index)
    }

    /// The number of the entry.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// An entry of the table of registered buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferSlot(u16);

impl BufferSlot {
    /// Names an entry by its number. One that the bytes of a read do not lie in makes the read
    /// fail with EFAULT.
    #[must_use]
    pub const fn from_index(index: u16) -> BufferSlot {
        BufferSlot(index)
    }

    /// The number of the entry.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.0
    }
}

/// Why a file or a buffer was not registered. It can be used unregistered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Every entry is taken.
    #[error("all {slots} entries of the ring's table are taken; unregister one or do without")]
    Full {
        /// Entries there are; 0 where the kernel has no such table.
        slots: u32,
    },
    /// Longer than the kernel registers in one buffer.
    #[error(
        "a buffer of {bytes} bytes is longer than the {limit_bytes} that can be registered as one; \
         split it"
    )]
    TooLong {
        /// Length asked for.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The system call failed.
    #[error("io_uring could not register: {0}")]
    Io(#[from] io::Error),
}

/// The ring and what its two halves share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ring: RingHandle,
    free: Mutex<Free>,
    file_slots: u32,
    buffer_slots: u16,
}

/// The mapped ring. Its queues are used by one [`crate::Uring`] only; everybody else makes
/// `io_uring_register` calls, which the kernel serialises.
pub(crate) struct RingHandle(pub(crate) IoUring);

impl fmt::Debug for RingHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingHandle(fd {})", self.0.as_raw_fd())
    }
}

/// Free entries, lowest on top at first.
#[derive(Debug)]
struct Free {
    files: Vec<u32>,
    buffers: Vec<u16>,
}

impl Shared {
    /// Makes the tables as large as the kernel allows, and says what is less than asked.
    pub(crate) fn new(
        ring: IoUring,
        file_slots: u32,
        buffer_slots: u16,
        notes: &mut Vec<String>,
    ) -> Shared {
        let submitter = ring.submitter();
        let file_slots =
            largest(file_slots, "files", notes, |slots| submitter.register_files_sparse(slots));
        let buffer_slots = largest(u32::from(buffer_slots), "buffers", notes, |slots| {
            submitter.register_buffers_sparse(slots)
        });
        let buffer_slots = u16::try_from(buffer_slots).unwrap_or(u16::MAX);
        let free = Free {
            files: (0..file_slots).rev().collect(),
            buffers: (0..buffer_slots).rev().collect(),
        };
        Shared { ring: RingHandle(ring), free: Mutex::new(free), file_slots, buffer_slots }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // The lists are whole between any two statements, so a panicking holder left them usable.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The largest table, halving from `asked`, that `register` accepts; 0 if it accepts none.
fn largest(
    asked: u32,
    what: &str,
    notes: &mut Vec<String>,
    register: impl Fn(u32) -> io::Result<()>,
) -> u32 {
    let mut slots = asked;
    while slots > 0 {
        match register(slots) {
            Ok(()) => return slots,
            // The table of files is bounded by RLIMIT_NOFILE, that of buffers by memory.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENOMEM)) => {
                slots /= 2;
            }
            Err(error) => {
                let cause = errno_name(error.raw_os_error().unwrap_or(0));
                notes.push(format!("io_uring without registered {what} ({cause})"));
                return 0;
            }
        }
    }
    if asked > 0 {
        notes.push(format!(
            "io_uring without registered {what} (no memory or descriptors for a table)"
        ));
    }
    0
}

/// The shared half of a ring: its tables. Cheap to clone; any thread may use it, and any call may
/// block for as long as the kernel pins memory.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(crate) shared: Arc<Shared>,
}

impl Tables {
    /// Entries of the table of registered files, 0 if there is none.
    #[must_use]
    pub fn file_slots(&self) -> u32 {
        self.shared.file_slots
    }

    /// Entries of the table of registered buffers, 0 if there is none.
    #[must_use]
    pub fn buffer_slots(&self) -> u16 {
        self.shared.buffer_slots
    }

    /// Registers a file; the kernel keeps it open until [`Tables::unregister_file`] and the end of
    /// the reads that use it.
    ///
    /// # Errors
    /// The table is full, or the kernel refused; nothing is registered then.
    pub fn register_file(&self, file: BorrowedFd<'_>) -> Result<FileSlot, TableError> {
        let Some(index) = self.shared.free().files.pop() else {
            return Err(TableError::Full { slots: self.shared.file_slots });
        };
        match self.update_file(index, file.as_raw_fd()) {
            Ok(()) => Ok(FileSlot(index)),
            Err(error) => {
                self.shared.free().files.push(index);
                Err(TableError::Io(error))
            }
        }
    }

    /// Empties an entry. Reads in flight end as they would have.
    pub fn unregister_file(&self, slot: FileSlot) {
        let empty = -1;
        // An entry that could not be emptied is not reused: it would be another file's.
        if self.update_file(slot.0, empty).is_ok() {
            self.shared.free().files.push(slot.0);
        }
    }

    fn update_file(&self, index: u32, descriptor: i32) -> io::Result<()> {
        let updated = self.shared.ring.0.submitter().register_files_update(index, &[descriptor])?;
        if updated == 1 { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    /// Pins `bytes` of mapped memory at `base` and registers them, at most 1 GiB. The pages stay
    /// pinned until [`Tables::unregister_buffer`]; reads write them only through a buffer that owns
    /// their address.
    ///
    /// # Errors
    /// The table is full, the memory is not mapped (EFAULT), or RLIMIT_MEMLOCK is too low (ENOMEM).
    pub fn register_buffer(
        &self,
        base: NonNull<u8>,
        bytes: usize,
    ) -> Result<BufferSlot, TableError> {
        if bytes > BUFFER_BYTES_MAX {
            return Err(TableError::TooLong { bytes, limit_bytes: BUFFER_BYTES_MAX });
        }
        let Some(index) = self.shared.free().buffers.pop() else {
            return Err(TableError::Full { slots: u32::from(self.shared.buffer_slots) });
        };
        match self.update_buffer(index, base.as_ptr(), bytes) {
            Ok(()) => Ok(BufferSlot(index)),
            Err(error) => {
                self.shared.free().buffers.push(index);
                Err(TableError::Io(error))
            }
        }
    }

    /// Unpins a buffer once the reads in flight that use it are over.
    pub fn unregister_buffer(&self, slot: BufferSlot) {
        if self.update_buffer(slot.0, std::ptr::null_mut(), 0).is_ok() {
            self.shared.free().buffers.push(slot.0);
        }
    }

    fn update_buffer(&self, index: u16, base: *mut u8, bytes: usize) -> io::Result<()> {
        let vector = [libc::iovec { iov_base: base.cast(), iov_len: bytes }];
        let submitter = self.shared.ring.0.submitter();
        // SAFETY: the kernel checks the range and pins its pages, so that they outlive the entry
        // even if they are unmapped. It writes them only for a read whose address range lies in the
        // entry's, and such a range belongs to a buffer in the table of reads in flight.
        unsafe { submitter.register_buffers_update(u32::from(index), &vector, None) }
    }
}
