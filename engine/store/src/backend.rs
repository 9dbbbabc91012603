//! The few file operations a store is made of, as a trait, and their form on real directories.
//!
//! The trait is public so that tests can record, reorder, tear and fail every operation from
//! outside the crate.

use rustix::fs::{FlockOperation, flock};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What a store asks of the file system. Paths are absolute or as the caller of the store gave
/// them.
pub trait StorageBackend: Debug + Send + Sync {
    /// Resolves a directory to the one name it has.
    ///
    /// # Errors
    /// As the file system reports, `NotFound` if it is not there.
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf>;

    /// Makes one directory.
    ///
    /// # Errors
    /// `AlreadyExists` if something has that name, `NotFound` if the parent is not there.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Names in a directory, in no order; `.` and `..` are not among them.
    ///
    /// # Errors
    /// As the file system reports.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Makes a new file, open for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Box<dyn StoreFile>>;

    /// Opens a file for reading (and locking).
    ///
    /// # Errors
    /// As the file system reports.
    fn open(&self, path: &Path) -> io::Result<Box<dyn StoreFile>>;

    /// Renames a file, replacing what has the new name. Durable after [`StorageBackend::sync_dir`]
    /// of the new name's directory.
    ///
    /// # Errors
    /// As the file system reports.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name. Durable after [`StorageBackend::sync_dir`].
    ///
    /// # Errors
    /// As the file system reports.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As the file system reports.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Fills `bytes` with random numbers fit for names that must not repeat.
    ///
    /// # Errors
    /// As the system reports.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// How a file is locked. Locks belong to the open file and end when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLock {
    /// Many holders, none exclusive.
    Shared,
    /// One holder.
    Exclusive,
}

/// An open file of a store.
// A length of 0 is nothing special here, so there is no `is_empty`.
#[expect(clippy::len_without_is_empty)]
pub trait StoreFile: Debug + Send + Sync {
    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// As the file system reports.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// As the file system reports; how much was written is then unknown.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Length of the file.
    ///
    /// # Errors
    /// As the file system reports.
    fn len(&self) -> io::Result<u64>;

    /// Makes contents and length durable.
    ///
    /// # Errors
    /// As the file system reports; the contents are then unknown.
    fn sync(&self) -> io::Result<()>;

    /// Waits for a lock.
    ///
    /// # Errors
    /// As the file system reports.
    fn lock(&self, lock: FileLock) -> io::Result<()>;

    /// Takes a lock if that needs no waiting; false if it would.
    ///
    /// # Errors
    /// As the file system reports.
    fn try_lock(&self, lock: FileLock) -> io::Result<bool>;
}

/// Real directories.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskBackend;

impl StorageBackend for DiskBackend {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in path.read_dir()? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StoreFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Box::new(DiskFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StoreFile>> {
        Ok(Box::new(DiskFile(File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        File::open("/dev/urandom")?.read_exact(bytes)
    }
}

#[derive(Debug)]
struct DiskFile(File);

impl StoreFile for DiskFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.0.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn lock(&self, lock: FileLock) -> io::Result<()> {
        let operation = match lock {
            FileLock::Shared => FlockOperation::LockShared,
            FileLock::Exclusive => FlockOperation::LockExclusive,
        };
        loop {
            match flock(&self.0, operation) {
                Err(rustix::io::Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    fn try_lock(&self, lock: FileLock) -> io::Result<bool> {
        let operation = match lock {
            FileLock::Shared => FlockOperation::NonBlockingLockShared,
            FileLock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            match flock(&self.0, operation) {
                Ok(()) => return Ok(true),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
