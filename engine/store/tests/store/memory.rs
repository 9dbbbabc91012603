//! A file system in memory that records, fails on demand, and rebuilds what a power cut leaves.
//!
//! The model of a power cut is harsher than any file system in use. A write is durable after a sync
//! of its file, a directory entry after a sync of its directory. Of everything else each operation
//! survives or not by itself: a rename may leave both names or none, a write may be torn.

use fastrand::Rng;
use railring_store::{FileLock, StorageBackend, StoreFile};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// One recorded operation. Files are numbered, so that renames do not matter to writes.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    CreateDir(PathBuf),
    Create(PathBuf, usize),
    Write(usize, u64, Vec<u8>),
    SyncFile(usize),
    Rename(PathBuf, PathBuf, usize),
    Unlink(PathBuf),
    SyncDir(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Dir,
    File(usize),
}

/// Which operations an injected fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// The disk is full: only what needs space fails.
    NoSpace,
    /// Any operation may fail.
    Io,
}

/// A fault that begins at the `at`-th operation it can hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) at: usize,
    /// How many operations fail from then on.
    pub(crate) times: usize,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<PathBuf, Node>,
    files: Vec<Vec<u8>>,
    /// By file: holders of shared locks, or usize::MAX for an exclusive one.
    locks: HashMap<usize, usize>,
    log: Vec<Op>,
    fault: Option<Fault>,
    operations: usize,
    random: u64,
    /// Written bytes are thrown away.
    is_sink: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    unlocked: Condvar,
    before_try_lock: Mutex<Option<Hook>>,
    yields: AtomicBool,
}

/// What a test does in the middle of somebody else's operation.
type Hook = Box<dyn FnOnce() + Send>;

impl Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The file system; clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Shared>);

impl Memory {
    /// An empty one, in which the root and `directories` exist durably.
    pub(crate) fn new(directories: &[PathBuf]) -> Self {
        let memory = Self::default();
        let mut state = memory.state();
        state.nodes.insert("/".into(), Node::Dir);
        state.nodes.extend(directories.iter().map(|d| (d.clone(), Node::Dir)));
        drop(state);
        memory
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no test panics while it holds this")
    }

    pub(crate) fn log(&self) -> Vec<Op> {
        self.state().log.clone()
    }

    pub(crate) fn log_len(&self) -> usize {
        self.state().log.len()
    }

    /// Sets or ends a fault, and counts operations from here on.
    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        let mut state = self.state();
        (state.fault, state.operations) = (fault, 0);
    }

    /// Runs `hook` once, between opening a file and trying to lock it.
    pub(crate) fn before_try_lock(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.before_try_lock.lock().expect("no panic while it is held") = Some(Box::new(hook));
    }

    /// Lets other threads go first at each rename from here on, where operations race.
    pub(crate) fn yield_at_each_rename(&self) {
        self.0.yields.store(true, Ordering::Relaxed);
    }

    /// Throws away what is written from here on, for objects that are only counted.
    pub(crate) fn become_sink(&self) {
        self.state().is_sink = true;
    }

    pub(crate) fn file_names(&self, under: &str) -> Vec<String> {
        let state = self.state();
        let files = state.nodes.iter().filter(|(_, node)| **node != Node::Dir);
        let names = files.map(|(path, _)| path.display().to_string());
        names.filter(|name| name.starts_with(under)).collect()
    }

    /// Changes a file behind the store's back.
    pub(crate) fn tamper(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let Some(Node::File(file)) = state.nodes.get(Path::new(path)).copied() else {
            panic!("no file {path}");
        };
        change(&mut state.files[file]);
    }

    /// Removes a file behind the store's back.
    pub(crate) fn forget(&self, path: &str) {
        self.state().nodes.remove(Path::new(path)).expect("a file to forget");
    }

    pub(crate) fn contents(&self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.tamper(path, |b| bytes = b.clone());
        bytes
    }

    /// What others see after the process was killed: everything, synced or not. The log goes on.
    pub(crate) fn after_kill(directories: &[PathBuf], log: &[Op]) -> Self {
        let memory = Self::after_power_cut(directories, log, 100, &mut Rng::with_seed(1));
        memory.state().log = log.to_vec();
        memory
    }

    /// What a power cut after these operations leaves, with chance `keep` in 100 for each
    /// operation that was not synced.
    pub(crate) fn after_power_cut(
        directories: &[PathBuf],
        log: &[Op],
        keep: u32,
        rng: &mut Rng,
    ) -> Self {
        let memory = Self::new(directories);
        let mut state = memory.state();
        let synced_dir = |i: usize, path: &Path| {
            let dir = path.parent().expect("only the root has none");
            log[i..].iter().any(|op| matches!(op, Op::SyncDir(d) if d == dir))
        };
        let synced_file = |i: usize, file: usize| {
            log[i..].iter().any(|op| matches!(op, Op::SyncFile(f) if *f == file))
        };
        for (i, op) in log.iter().enumerate() {
            let mut keeps = |synced: bool| synced || rng.u32(0..100) < keep;
            match op {
                Op::CreateDir(path) if keeps(synced_dir(i, path)) => {
                    state.nodes.insert(path.clone(), Node::Dir);
                }
                Op::Create(path, file) => {
                    let files = state.files.len().max(file + 1);
                    state.files.resize(files, Vec::new());
                    if keeps(synced_dir(i, path)) {
                        state.nodes.insert(path.clone(), Node::File(*file));
                    }
                }
                Op::Write(file, offset, bytes) if synced_file(i, *file) => {
                    write(&mut state.files[*file], *offset, bytes);
                }
                Op::Write(file, offset, bytes) if keeps(false) => {
                    let whole = rng.u32(0..100) < keep;
                    let len = if whole { bytes.len() } else { rng.usize(0..=bytes.len()) };
                    write(&mut state.files[*file], *offset, &bytes[..len]);
                }
                Op::Rename(from, to, file) => {
                    if keeps(synced_dir(i, to)) {
                        state.nodes.insert(to.clone(), Node::File(*file));
                    }
                    if keeps(synced_dir(i, from)) {
                        remove(&mut state.nodes, from, Some(*file));
                    }
                }
                Op::Unlink(path) if keeps(synced_dir(i, path)) => {
                    remove(&mut state.nodes, path, None);
                }
                _ => {}
            }
        }
        let dirs: Vec<PathBuf> =
            state.nodes.iter().filter(|(_, n)| **n == Node::Dir).map(|(p, _)| p.clone()).collect();
        state.nodes.retain(|path, _| {
            path.ancestors().skip(1).all(|a| dirs.binary_search(&a.to_owned()).is_ok())
        });
        state.random = rng.u64(..);
        drop(state);
        memory
    }

    /// Counts an operation and fails it if it is its turn.
    fn enter(&self, needs_space: bool) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        let Some(fault) = state.fault else { return Ok(state) };
        if fault.kind == FaultKind::NoSpace && !needs_space {
            return Ok(state);
        }
        let now = state.operations;
        state.operations += 1;
        if (fault.at..fault.at.saturating_add(fault.times)).contains(&now) {
            return Err(io::Error::from_raw_os_error(match fault.kind {
                FaultKind::NoSpace => 28,
                FaultKind::Io => 5,
            }));
        }
        Ok(state)
    }
}

fn write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let offset = offset as usize;
    file.resize(file.len().max(offset + bytes.len()), 0);
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// Removes a name; with `file`, only if it still names that one.
fn remove(nodes: &mut BTreeMap<PathBuf, Node>, path: &Path, file: Option<usize>) {
    if file.is_none_or(|f| nodes.get(path) == Some(&Node::File(f))) {
        nodes.remove(path);
    }
}

fn error(kind: ErrorKind) -> io::Error {
    kind.into()
}

impl State {
    fn parent_exists(&self, path: &Path) -> io::Result<()> {
        let there = path.parent().is_some_and(|p| self.nodes.get(p) == Some(&Node::Dir));
        if there { Ok(()) } else { Err(error(ErrorKind::NotFound)) }
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.nodes.get(path) {
            Some(Node::File(file)) => Ok(*file),
            Some(Node::Dir) => Err(error(ErrorKind::IsADirectory)),
            None => Err(error(ErrorKind::NotFound)),
        }
    }
}

impl StorageBackend for Memory {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        let state = self.enter(false)?;
        match state.nodes.contains_key(path) {
            true => Ok(path.components().collect()),
            false => Err(error(ErrorKind::NotFound)),
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter(true)?;
        state.parent_exists(path)?;
        if state.nodes.contains_key(path) {
            return Err(error(ErrorKind::AlreadyExists));
        }
        state.nodes.insert(path.to_owned(), Node::Dir);
        state.log.push(Op::CreateDir(path.to_owned()));
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.enter(false)?;
        if state.nodes.get(path) != Some(&Node::Dir) {
            return Err(error(ErrorKind::NotFound));
        }
        let children = state.nodes.keys().filter(|p| p.parent() == Some(path));
        let names =
            children.filter_map(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
        Ok(names.collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn StoreFile>> {
        let mut state = self.enter(true)?;
        state.parent_exists(path)?;
        if state.nodes.contains_key(path) {
            return Err(error(ErrorKind::AlreadyExists));
        }
        let file = state.files.len();
        state.files.push(Vec::new());
        state.nodes.insert(path.to_owned(), Node::File(file));
        state.log.push(Op::Create(path.to_owned(), file));
        Ok(Box::new(MemoryFile { memory: self.clone(), file, held: Mutex::new(None) }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn StoreFile>> {
        let file = self.enter(false)?.file(path)?;
        Ok(Box::new(MemoryFile { memory: self.clone(), file, held: Mutex::new(None) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.0.yields.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let mut state = self.enter(true)?;
        let file = state.file(from)?;
        state.parent_exists(to)?;
        state.nodes.remove(from);
        state.nodes.insert(to.to_owned(), Node::File(file));
        state.log.push(Op::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter(false)?;
        state.file(path)?;
        state.nodes.remove(path);
        state.log.push(Op::Unlink(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.enter(true)?;
        if state.nodes.get(path) != Some(&Node::Dir) {
            return Err(error(ErrorKind::NotFound));
        }
        state.log.push(Op::SyncDir(path.to_owned()));
        Ok(())
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        let mut rng = Rng::with_seed(state.random ^ 0x1234_5678);
        rng.fill(bytes);
        state.random = rng.u64(..);
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryFile {
    memory: Memory,
    file: usize,
    held: Mutex<Option<FileLock>>,
}

impl MemoryFile {
    fn held(&self) -> MutexGuard<'_, Option<FileLock>> {
        self.held.lock().expect("no panic while it is held")
    }

    fn grab(&self, state: &mut State, lock: FileLock) -> bool {
        let holders = state.locks.entry(self.file).or_default();
        match lock {
            FileLock::Exclusive if *holders == 0 => *holders = usize::MAX,
            FileLock::Shared if *holders != usize::MAX => *holders += 1,
            _ => return false,
        }
        *self.held() = Some(lock);
        true
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let Some(lock) = self.held().take() else { return };
        let mut state = self.memory.state();
        let holders = state.locks.entry(self.file).or_default();
        *holders = if lock == FileLock::Exclusive { 0 } else { *holders - 1 };
        self.memory.0.unlocked.notify_all();
    }
}

impl StoreFile for MemoryFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.memory.enter(false)?;
        let rest = state.files[self.file].get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.memory.enter(true)?;
        if state.is_sink {
            return Ok(());
        }
        write(&mut state.files[self.file], offset, bytes);
        state.log.push(Op::Write(self.file, offset, bytes.to_vec()));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.memory.enter(false)?.files[self.file].len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.memory.enter(true)?.log.push(Op::SyncFile(self.file));
        Ok(())
    }

    fn lock(&self, lock: FileLock) -> io::Result<()> {
        let mut state = self.memory.enter(false)?;
        while !self.grab(&mut state, lock) {
            state = self.memory.0.unlocked.wait(state).expect("no panic while it is held");
        }
        Ok(())
    }

    fn try_lock(&self, lock: FileLock) -> io::Result<bool> {
        let hook = self.memory.0.before_try_lock.lock().expect("no panic while it is held").take();
        if let Some(hook) = hook {
            hook();
        }
        let mut state = self.memory.enter(false)?;
        Ok(self.grab(&mut state, lock))
    }
}
