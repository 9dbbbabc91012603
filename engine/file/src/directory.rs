//! The directory of a rail: opening files beneath it, and what its file system can do.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use railring_transport::Alignment;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::inject::Injector;

/// Longest handle: PATH_MAX less its NUL.
const HANDLE_BYTES_MAX: usize = 4095;
/// Files looked at to find one to try O_DIRECT with.
const PROBE_ENTRIES_MAX: usize = 256;
/// What O_DIRECT reads must be multiples of where the kernel does not say (before Linux 6.1): no
/// disk in use has larger logical blocks.
const DIRECT_ALIGNMENT_DEFAULT: u32 = 4096;

/// f_type of tmpfs and ramfs, statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Whether a directory's files can be read with O_DIRECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Direct {
    /// Yes, in multiples of this.
    Yes(Alignment),
    /// No, because.
    No(String),
}

/// File systems that keep their files in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFileSystem {
    /// Reads never wait for anything, unless pages were swapped out.
    Tmpfs,
    /// The page cache and nothing behind it.
    Ramfs,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    descriptor: OwnedFd,
    /// Canonical where that can be had.
    path: PathBuf,
    device: u64,
    inode: u64,
    memory: Option<MemoryFileSystem>,
}

impl Directory {
    pub(crate) fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&descriptor)?;
        #[allow(
            clippy::unnecessary_cast,
            reason = "the field's type differs between architectures"
        )]
        let magic = rustix::fs::fstatfs(&descriptor)?.f_type as u64 & 0xffff_ffff;
        let memory = match magic {
            TMPFS_MAGIC => Some(MemoryFileSystem::Tmpfs),
            RAMFS_MAGIC => Some(MemoryFileSystem::Ramfs),
            _ => None,
        };
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Directory {
            descriptor,
            path: canonical,
            device: stat.st_dev,
            inode: stat.st_ino,
            memory,
        })
    }

    pub(crate) fn memory(&self) -> Option<MemoryFileSystem> {
        self.memory
    }

    /// Whether `other` names this directory.
    pub(crate) fn is(&self, other: &Path) -> bool {
        let same_file = std::fs::metadata(other)
            .is_ok_and(|meta| meta.dev() == self.device && meta.ino() == self.inode);
        same_file || other == self.path || other.canonicalize().is_ok_and(|path| path == self.path)
    }

    /// Opens a file beneath the directory for reading. Never blocks on what is not a regular file;
    /// the descriptor has O_NONBLOCK.
    pub(crate) fn open_file(&self, handle: &Path, extra: OFlags) -> Result<OwnedFd, Errno> {
        let flags =
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&self.descriptor, handle, flags | extra, Mode::empty(), resolve) {
            // Older than 5.6, or filtered by a profile that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => self.open_stepwise(handle, flags | extra),
            result => result,
        }
    }

    /// The same without openat2: one directory at a time, following no symbolic link. The handle
    /// has no `..`.
    fn open_stepwise(&self, handle: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut at: Option<OwnedFd> = None;
        let mut names = handle.iter().peekable();
        while let Some(name) = names.next() {
            let directory = at.as_ref().map_or(self.descriptor.as_fd(), AsFd::as_fd);
            if names.peek().is_none() {
                return rustix::fs::openat(directory, name, flags, Mode::empty());
            }
            let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            at = Some(rustix::fs::openat(directory, name, step, Mode::empty())?);
        }
        Err(Errno::NOENT)
    }

    /// Finds out whether files here can be read with O_DIRECT, and in multiples of what.
    pub(crate) fn probe_direct(&self, injector: Option<&dyn Injector>) -> Direct {
        if let Some(errno) = injector.and_then(Injector::open_direct) {
            return Direct::No(railring_uring::errno_name(errno));
        }
        match self.memory {
            Some(MemoryFileSystem::Tmpfs) => return Direct::No("tmpfs".to_owned()),
            Some(MemoryFileSystem::Ramfs) => return Direct::No("ramfs".to_owned()),
            None => {}
        }
        match self.open_any_direct() {
            Ok(file) => direct_alignment(&file)
                .map_or_else(|| Direct::No("the file system has none".to_owned()), Direct::Yes),
            Err(Errno::INVAL) => Direct::No("EINVAL".to_owned()),
            // Nothing to try it with: each file's own open decides.
            Err(_) => Direct::Yes(default_alignment()),
        }
    }

    /// Opens with O_DIRECT some file that is there, else one without a name.
    fn open_any_direct(&self) -> Result<OwnedFd, Errno> {
        for relative in self.some_files() {
            match self.open_file(&relative, OFlags::DIRECT) {
                Err(Errno::NOENT | Errno::ACCESS | Errno::LOOP) => {}
                result => return result,
            }
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        rustix::fs::openat(&self.descriptor, ".", flags, Mode::RUSR | Mode::WUSR)
    }

    /// Regular files in the directory and its subdirectories, a few.
    fn some_files(&self) -> Vec<PathBuf> {
        let entries = |path: &Path| {
            std::fs::read_dir(path).into_iter().flatten().flatten().take(PROBE_ENTRIES_MAX)
        };
        let is = |entry: &std::fs::DirEntry, wanted: fn(&std::fs::FileType) -> bool| {
            entry.file_type().is_ok_and(|kind| wanted(&kind))
        };
        let files = |path: &Path| {
            entries(path)
                .find(|entry| is(entry, std::fs::FileType::is_file))
                .map(|entry| entry.path())
        };
        let below = entries(&self.path).filter(|entry| is(entry, std::fs::FileType::is_dir));
        files(&self.path)
            .into_iter()
            .chain(below.filter_map(|entry| files(&entry.path())))
            .filter_map(|path| path.strip_prefix(&self.path).ok().map(Path::to_owned))
            .take(8)
            .collect()
    }
}

/// What O_DIRECT reads of this file must be multiples of; none if it cannot be read so.
pub(crate) fn direct_alignment(file: &OwnedFd) -> Option<Alignment> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match stat {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
            (memory.is_power_of_two() && offset.is_power_of_two()).then_some(Alignment {
                offset_bytes: offset,
                length_bytes: offset,
                memory_bytes: memory,
            })
        }
        _ => Some(default_alignment()),
    }
}

fn default_alignment() -> Alignment {
    Alignment {
        offset_bytes: DIRECT_ALIGNMENT_DEFAULT,
        length_bytes: DIRECT_ALIGNMENT_DEFAULT,
        memory_bytes: DIRECT_ALIGNMENT_DEFAULT,
    }
}

/// The relative path that a handle is, or what is wrong with it.
pub(crate) fn checked_handle(handle: &str) -> Result<&Path, &'static str> {
    if handle.is_empty() {
        return Err("it is empty");
    }
    if handle.len() > HANDLE_BYTES_MAX {
        return Err("it is longer than 4095 bytes");
    }
    if handle.contains('\0') {
        return Err("it contains a NUL");
    }
    if handle.starts_with('/') {
        return Err("it is absolute; it must be relative to the rail's directory");
    }
    if handle.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err("each name in it must be a plain file name");
    }
    Ok(Path::new(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_stay_beneath_the_directory() {
        for bad in ["", "/etc/passwd", "..", "a/../../b", "a/./b", "a//b", "a/", "a\0b", "."] {
            assert!(checked_handle(bad).is_err(), "{bad:?}");
        }
        assert!(checked_handle(&"x".repeat(4096)).is_err());
        for good in ["a", "data/a.data", "..a", "a..", "a b\u{e4}"] {
            assert_eq!(checked_handle(good), Ok(Path::new(good)));
        }
    }

    #[test]
    fn both_ways_of_opening_refuse_links_and_find_files() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(temp.path().join("inside")).expect("it is empty");
        std::fs::write(temp.path().join("inside/file"), b"x").expect("it is writable");
        std::os::unix::fs::symlink("inside", temp.path().join("link")).expect("it is writable");
        std::os::unix::fs::symlink("inside/file", temp.path().join("last")).expect("writable");
        let directory = Directory::open(temp.path()).expect("it is there");
        type Way = fn(&Directory, &Path) -> Result<OwnedFd, Errno>;
        let openat2: Way = |directory, handle| directory.open_file(handle, OFlags::empty());
        let stepwise: Way = |directory, handle| {
            directory.open_stepwise(handle, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC)
        };
        for way in [openat2, stepwise] {
            assert!(way(&directory, Path::new("inside/file")).is_ok());
            assert_eq!(way(&directory, Path::new("none")).err(), Some(Errno::NOENT));
            assert!(way(&directory, Path::new("link/file")).is_err());
            assert!(way(&directory, Path::new("last")).is_err());
        }
    }
}
