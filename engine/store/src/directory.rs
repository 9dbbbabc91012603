//! One directory of a store: file operations by relative name, with errors that say where.

use crate::backend::{FileLock, StorageBackend, StoreFile};
use crate::error::FileError;
use crate::names::{Leaf, OBJECTS};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A directory that is there.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) index: u16,
    /// Canonical.
    pub(crate) path: PathBuf,
    backend: Arc<dyn StorageBackend>,
    /// Leaves known to exist durably.
    leaves: Mutex<HashSet<Leaf>>,
}

impl Directory {
    pub(crate) fn new(index: u16, path: PathBuf, backend: Arc<dyn StorageBackend>) -> Self {
        Self { index, path, backend, leaves: Mutex::default() }
    }

    pub(crate) fn error(&self, action: &'static str, file: &str, source: io::Error) -> FileError {
        FileError { action, directory: self.path.clone(), file: file.to_owned(), source }
    }

    fn run<T>(
        &self,
        action: &'static str,
        file: &str,
        operation: impl FnOnce(&dyn StorageBackend, &Path) -> io::Result<T>,
    ) -> Result<T, FileError> {
        operation(&*self.backend, &self.path.join(file)).map_err(|e| self.error(action, file, e))
    }

    fn file(&self, file: &str, inner: Box<dyn StoreFile>) -> DirectoryFile {
        DirectoryFile { inner, directory: self.path.clone(), file: file.to_owned() }
    }

    pub(crate) fn create(&self, file: &str) -> Result<DirectoryFile, FileError> {
        Ok(self.file(file, self.run("create", file, |b, p| b.create(p))?))
    }

    pub(crate) fn open(&self, file: &str) -> Result<DirectoryFile, FileError> {
        Ok(self.file(file, self.run("open", file, |b, p| b.open(p))?))
    }

    /// Nothing if the file is not there.
    pub(crate) fn open_if_there(&self, file: &str) -> Result<Option<DirectoryFile>, FileError> {
        if_there(self.open(file))
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let target = self.path.join(to);
        self.run("rename", from, |b, p| b.rename(p, &target))
    }

    /// Not an error if the file is not there.
    pub(crate) fn unlink(&self, file: &str) -> Result<(), FileError> {
        if_there(self.run("remove", file, |b, p| b.unlink(p))).map(drop)
    }

    pub(crate) fn sync_dir(&self, dir: &str) -> Result<(), FileError> {
        self.run("sync directory", dir, |b, p| b.sync_dir(p))
    }

    /// Empty if the directory is not there.
    pub(crate) fn read_dir(&self, dir: &str) -> Result<Vec<String>, FileError> {
        Ok(if_there(self.run("list", dir, |b, p| b.read_dir(p)))?.unwrap_or_default())
    }

    /// Not an error if the directory is there.
    pub(crate) fn create_dir(&self, dir: &str) -> Result<(), FileError> {
        match self.run("create directory", dir, |b, p| b.create_dir(p)) {
            Err(e) if e.source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    /// Makes a leaf and both its parents' entries durable. They are synced even if they are
    /// there: whoever made them may not have come to that.
    pub(crate) fn ensure_leaf(&self, leaf: Leaf) -> Result<(), FileError> {
        let known = || self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(&leaf) {
            return Ok(());
        }
        self.create_dir(&leaf.parent())?;
        self.create_dir(&leaf.path())?;
        self.sync_dir(OBJECTS)?;
        self.sync_dir(&leaf.parent())?;
        known().insert(leaf);
        Ok(())
    }

    /// Writes a new file and makes its contents durable, not its name.
    pub(crate) fn write_new(&self, file: &str, bytes: &[u8]) -> Result<(), FileError> {
        let created = self.create(file)?;
        created.write_all_at(bytes, 0)?;
        created.sync()
    }

    /// Puts a file in place in one step, replacing what was there, durably.
    pub(crate) fn replace(&self, staged: &str, file: &str, bytes: &[u8]) -> Result<(), FileError> {
        self.unlink(staged)?;
        let dir = file.rsplit_once('/').map_or("", |(dir, _)| dir);
        let placed = self.write_new(staged, bytes).and_then(|()| self.rename(staged, file));
        if placed.is_err() {
            // Best effort: what stays is settled at the next opening.
            let _ = self.unlink(staged);
        }
        placed?;
        self.sync_dir(dir)
    }
}

/// Turns "not there" into nothing.
pub(crate) fn if_there<T>(result: Result<T, FileError>) -> Result<Option<T>, FileError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// An open file whose errors say where.
#[derive(Debug)]
pub(crate) struct DirectoryFile {
    inner: Box<dyn StoreFile>,
    directory: PathBuf,
    file: String,
}

impl DirectoryFile {
    fn run<T>(&self, action: &'static str, result: io::Result<T>) -> Result<T, FileError> {
        let (directory, file) = (&self.directory, &self.file);
        result.map_err(|source| FileError {
            action,
            directory: directory.clone(),
            file: file.clone(),
            source,
        })
    }

    pub(crate) fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        self.run("write", self.inner.write_all_at(bytes, offset))
    }

    /// Reads the file's first bytes, fewer if it is shorter.
    pub(crate) fn read_start(&self, len: usize) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; len];
        let done = self.run("read", self.inner.read_at(&mut bytes, 0))?;
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Reads all of the file, or one byte more than `max` of it.
    pub(crate) fn read_all(&self, max: u64) -> Result<Vec<u8>, FileError> {
        self.read_start(self.len()?.min(max + 1) as usize)
    }

    pub(crate) fn len(&self) -> Result<u64, FileError> {
        self.run("measure", self.inner.len())
    }

    pub(crate) fn sync(&self) -> Result<(), FileError> {
        self.run("sync", self.inner.sync())
    }

    pub(crate) fn lock(&self, lock: FileLock) -> Result<(), FileError> {
        self.run("lock", self.inner.lock(lock))
    }

    pub(crate) fn try_lock(&self, lock: FileLock) -> Result<bool, FileError> {
        self.run("lock", self.inner.try_lock(lock))
    }
}
