//! A store as a whole: making it, opening it, and telling which directory is which.

use crate::backend::{DiskBackend, FileLock, StorageBackend};
use crate::directory::{Directory, DirectoryFile};
use crate::error::{CreateError, FileError, OpenError, StoreWarning};
use crate::format::{FormatError, IDENTITY_BYTES, Identity, StoreId};
use crate::names::{FLOOR, IDENTITY, LOCK, OBJECTS, TMP, staged_identity};
use railring_catalog::OWNERS_PER_STRIPE_MAX;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most directories of one store.
pub const DIRECTORIES_MAX: usize = OWNERS_PER_STRIPE_MAX;

/// What an opened store may be used for, and what it insists on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenMode {
    /// All directories are there. Leftovers of operations that did not finish are settled.
    #[default]
    ReadWrite,
    /// All directories are there. Nothing is written, not even to settle leftovers.
    ReadOnly,
    /// Directories may be missing or have a damaged identity, all but one of them. Give the
    /// ones that are left, or all with the lost ones in their places. Nothing is written.
    Degraded,
}

/// How to open a store.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// What for.
    pub mode: OpenMode,
}

impl OpenOptions {
    /// Options with everything but the mode as it is by default.
    pub fn new(mode: OpenMode) -> Self {
        Self { mode }
    }
}

/// Objects on local disks. Every method may be called from any thread; only `put` runs long.
///
/// Several processes may have the same store open, writers too.
#[derive(Debug)]
pub struct Store {
    pub(crate) backend: Arc<dyn StorageBackend>,
    pub(crate) id: StoreId,
    pub(crate) slots: Vec<Slot>,
    pub(crate) mode: OpenMode,
    warnings: Vec<StoreWarning>,
}

/// A place in the ordered list of directories.
#[derive(Debug)]
pub(crate) enum Slot {
    Present(Directory),
    /// Endpoint that placements name for it.
    Lost(String),
}

/// Holding it excludes all other writers of the store.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _file: DirectoryFile,
}

impl Store {
    /// Makes a store over `directories`, in this order for ever, and opens it for writing.
    /// Directories that are missing are made; an unfinished creation is begun afresh.
    ///
    /// # Errors
    /// A directory that belongs to a store or is not empty; nothing is changed then. Or the file
    /// system's.
    pub fn create(directories: &[PathBuf]) -> Result<Self, CreateError> {
        Self::create_on(Arc::new(DiskBackend), directories)
    }

    /// Opens a store. The order of `directories` is the one it was made with.
    ///
    /// # Errors
    /// Directories that are missing, of another store, in another order, too few or too many,
    /// damaged, or of another format version.
    pub fn open(directories: &[PathBuf], options: OpenOptions) -> Result<Self, OpenError> {
        Self::open_on(Arc::new(DiskBackend), directories, options)
    }

    /// [`Store::create`] with the file operations of `backend`.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create_on(
        backend: Arc<dyn StorageBackend>,
        directories: &[PathBuf],
    ) -> Result<Self, CreateError> {
        let given = directories.len();
        if given == 0 || given > DIRECTORIES_MAX {
            return Err(CreateError::DirectoryCount { given });
        }
        let mut random = [0; 16];
        let io = |source| FileError {
            action: "draw a random number for",
            directory: directories[0].clone(),
            file: IDENTITY.to_owned(),
            source,
        };
        backend.random(&mut random).map_err(io)?;
        let made = make_directories(&backend, directories)?;
        let identity = |index| Identity {
            store_id: StoreId(random),
            index,
            count: given as u16,
            created_ns: now_ns(),
        };
        for directory in &made {
            for dir in [OBJECTS, TMP] {
                directory.create_dir(dir)?;
            }
            match directory.create(LOCK) {
                Err(e) if e.source.kind() == io::ErrorKind::AlreadyExists => {}
                created => drop(created?),
            }
            // An identity must not outlive a power cut that the rest did not.
            directory.sync_dir("")?;
            let bytes = identity(directory.index).encode();
            directory.replace(&staged_identity(0), IDENTITY, &bytes)?;
        }
        let slots = made.into_iter().map(Slot::Present).collect();
        Ok(Self::assemble(backend, StoreId(random), slots, OpenMode::ReadWrite))
    }

    pub(crate) fn assemble(
        backend: Arc<dyn StorageBackend>,
        id: StoreId,
        slots: Vec<Slot>,
        mode: OpenMode,
    ) -> Self {
        Self { backend, id, slots, mode, warnings: Vec::new() }
    }

    /// True if at least one of `directories` has a store's identity, good or not: then open it, do
    /// not create one.
    pub fn exists_in(directories: &[PathBuf]) -> bool {
        directories.iter().any(|directory| directory.join(IDENTITY).exists())
    }

    /// [`Store::open`] with the file operations of `backend`.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(
        backend: Arc<dyn StorageBackend>,
        directories: &[PathBuf],
        options: OpenOptions,
    ) -> Result<Self, OpenError> {
        let given = directories.len();
        if given == 0 || given > DIRECTORIES_MAX {
            return Err(OpenError::DirectoryCount { given });
        }
        let mut opening = Opening { mode: options.mode, found: Vec::new(), lost: Vec::new() };
        for (position, path) in directories.iter().enumerate() {
            opening.read(&backend, position, path)?;
        }
        opening.check_order()?;
        let (id, slots, warnings) = opening.finish(&backend, given)?;
        let mut store = Self::assemble(backend, id, slots, options.mode);
        store.warnings = warnings;
        if store.mode == OpenMode::ReadWrite {
            let settled = store.settle_leftovers()?;
            store.warnings.extend(settled);
        }
        Ok(store)
    }

    /// The number all its directories share.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// How it was opened.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// What was wrong when it was opened, and what was settled.
    pub fn warnings(&self) -> &[StoreWarning] {
        &self.warnings
    }

    /// Number of directories, lost ones included.
    pub fn directory_count(&self) -> u16 {
        // DIRECTORIES_MAX bounds it.
        self.slots.len() as u16
    }

    /// The endpoints that placements of this store name: for each directory, in order, its
    /// canonical path, or nothing if it is lost.
    pub fn directories(&self) -> Vec<Option<PathBuf>> {
        let path = |slot: &Slot| match slot {
            Slot::Present(directory) => Some(directory.path.clone()),
            Slot::Lost(_) => None,
        };
        self.slots.iter().map(path).collect()
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = &Directory> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Present(directory) => Some(directory),
            Slot::Lost(_) => None,
        })
    }

    pub(crate) fn directory(&self, index: u16) -> Option<&Directory> {
        match self.slots.get(usize::from(index)) {
            Some(Slot::Present(directory)) => Some(directory),
            _ => None,
        }
    }

    /// Directory 0, which a store open for writing has: where the lock, leases and claims are.
    pub(crate) fn first(&self) -> &Directory {
        self.present().next().expect("opening insists on at least one directory")
    }

    pub(crate) fn endpoint(&self, index: u16) -> String {
        match &self.slots[usize::from(index)] {
            Slot::Present(directory) => directory.path.display().to_string(),
            Slot::Lost(endpoint) => endpoint.clone(),
        }
    }

    /// Waits for all other writers. They hold it for moments only, never while data is copied.
    pub(crate) fn lock(&self) -> Result<StoreLock, FileError> {
        let file = self.first().open(LOCK)?;
        file.lock(FileLock::Exclusive)?;
        Ok(StoreLock { _file: file })
    }

    pub(crate) fn nonce(&self) -> Result<u64, FileError> {
        let mut bytes = [0; 8];
        let drawn = self.backend.random(&mut bytes);
        drawn.map_err(|e| self.first().error("draw a random number for", TMP, e))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

pub(crate) fn now_ns() -> u64 {
    // Before 1970 and after 2554 the time is wrong, and nothing depends on it.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Makes and checks the directories of a new store before any is changed.
fn make_directories(
    backend: &Arc<dyn StorageBackend>,
    paths: &[PathBuf],
) -> Result<Vec<Directory>, CreateError> {
    let mut made = Vec::new();
    let mut seen = HashSet::new();
    let mut identities = Vec::new();
    for (index, path) in (0u16..).zip(paths) {
        let given = Directory::new(index, path.clone(), Arc::clone(backend));
        create_path(backend, path).map_err(|e| given.error("create", "", e))?;
        let canonical = backend.canonicalize(path).map_err(|e| given.error("resolve", "", e))?;
        if canonical.to_str().is_none() {
            return Err(CreateError::NotUtf8 { directory: canonical });
        }
        if !seen.insert(canonical.clone()) {
            return Err(CreateError::DuplicateDirectory { directory: canonical });
        }
        sync_ancestors(backend, &given, &canonical)?;
        let directory = Directory::new(index, canonical, Arc::clone(backend));
        let ours = [OBJECTS, TMP, LOCK, FLOOR, IDENTITY, "lost+found"];
        let names = directory.read_dir("")?;
        if let Some(file) = names.iter().find(|n| !ours.contains(&n.as_str())) {
            let (directory, file) = (directory.path, file.clone());
            return Err(CreateError::NotEmpty { directory, file });
        }
        identities.push(names.iter().any(|n| n == IDENTITY));
        let all = identities.len() == paths.len() && identities.iter().all(|&has| has);
        if all || !is_unfinished(&directory, paths.len())? {
            return Err(CreateError::AlreadyStore { directory: directory.path });
        }
        made.push(directory);
    }
    Ok(made)
}

/// Makes a directory and those above it. Only here: later on a missing directory is a lost disk,
/// and making it again would fill the disk below the mount point.
fn create_path(backend: &Arc<dyn StorageBackend>, path: &Path) -> io::Result<()> {
    match backend.create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(parent) if parent != Path::new("") => {
                create_path(backend, parent)?;
                backend.create_dir(path)
            }
            _ => Err(e),
        },
        done => done,
    }
}

/// Makes the names of directories durable that were perhaps just made. Ancestors may be closed to
/// us or on file systems that sync nothing; of those only the parent matters.
fn sync_ancestors(
    backend: &Arc<dyn StorageBackend>,
    given: &Directory,
    canonical: &Path,
) -> Result<(), FileError> {
    let mut ancestors = canonical.ancestors().skip(1);
    let parent = ancestors.next().map_or(Ok(()), |parent| backend.sync_dir(parent));
    for ancestor in ancestors {
        let _ = backend.sync_dir(ancestor);
    }
    match parent {
        Err(e) if e.kind() != io::ErrorKind::PermissionDenied => {
            Err(given.error("sync the parent of", "", e))
        }
        _ => Ok(()),
    }
}

/// True if nothing of value is there: no object, and no identity but one that an unfinished
/// creation over as many directories left in this place.
fn is_unfinished(directory: &Directory, count: usize) -> Result<bool, CreateError> {
    if !directory.read_dir(OBJECTS)?.is_empty() {
        return Ok(false);
    }
    let Some(file) = directory.open_if_there(IDENTITY)? else { return Ok(true) };
    let identity = Identity::decode(&file.read_all(IDENTITY_BYTES as u64)?);
    Ok(identity.is_ok_and(|i| i.index == directory.index && usize::from(i.count) == count))
}

/// Directories of which the identity was read, on the way to a store.
struct Opening {
    mode: OpenMode,
    /// Position in the list given, canonical path, identity.
    found: Vec<(usize, PathBuf, Identity)>,
    lost: Vec<(usize, PathBuf, String)>,
}

impl Opening {
    fn read(
        &mut self,
        backend: &Arc<dyn StorageBackend>,
        position: usize,
        path: &Path,
    ) -> Result<(), OpenError> {
        if path.to_str().is_none() {
            return Err(OpenError::NotUtf8 { directory: path.to_owned() });
        }
        match read_identity(backend, position, path) {
            Ok((path, identity)) => {
                if self.found.iter().any(|(_, other, _)| *other == path) {
                    return Err(OpenError::DuplicateDirectory { directory: path });
                }
                self.found.push((position, path, identity));
                Ok(())
            }
            Err(
                e @ (OpenError::DirectoryLost { .. }
                | OpenError::NotAStore { .. }
                | OpenError::IdentityDamaged { .. }),
            ) if self.mode == OpenMode::Degraded => {
                self.lost.push((position, path.to_owned(), e.to_string()));
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Same store, right places, right number.
    fn check_order(&self) -> Result<(), OpenError> {
        let Some((_, other, first)) = self.found.first() else { return Ok(()) };
        for (_, directory, identity) in &self.found {
            if identity.store_id != first.store_id || identity.count != first.count {
                return Err(OpenError::OtherStore {
                    directory: directory.clone(),
                    id: identity.store_id,
                    other: other.clone(),
                    other_id: first.store_id,
                });
            }
        }
        let given = self.found.len() + self.lost.len();
        let count = usize::from(first.count);
        let fewer_is_fine = self.mode == OpenMode::Degraded && self.lost.is_empty();
        if given > count || given < count && !fewer_is_fine {
            return Err(OpenError::WrongCount { given, count: first.count });
        }
        let mut next = 0;
        for (position, directory, identity) in &self.found {
            let index = usize::from(identity.index);
            let right = if given == count { index == *position } else { index >= next };
            if !right {
                let belongs = |(_, p, i): &(usize, PathBuf, Identity)| {
                    (usize::from(i.index) == *position).then(|| p.clone())
                };
                return Err(OpenError::WrongOrder {
                    directory: directory.clone(),
                    position: *position,
                    index: identity.index,
                    expected: self.found.iter().find_map(belongs),
                });
            }
            next = index + 1;
        }
        Ok(())
    }

    fn finish(
        self,
        backend: &Arc<dyn StorageBackend>,
        given: usize,
    ) -> Result<(StoreId, Vec<Slot>, Vec<StoreWarning>), OpenError> {
        let Some((_, _, identity)) = self.found.first() else {
            let (position, directory, reason) = self.lost.into_iter().next().unwrap_or_default();
            let source = io::Error::new(io::ErrorKind::NotFound, reason);
            return Err(OpenError::DirectoryLost { directory, position, source });
        };
        let (id, count) = (identity.store_id, identity.count);
        let mut slots: Vec<Slot> = (0..count).map(|i| Slot::Lost(format!("{id}/{i}"))).collect();
        let mut warnings = Vec::new();
        let all_given = given == usize::from(count);
        for (position, path, reason) in self.lost {
            if all_given {
                slots[position] = Slot::Lost(path.display().to_string());
            }
            warnings.push(StoreWarning::DirectoryLost { directory: path, reason });
        }
        for (_, path, identity) in self.found {
            let directory = Directory::new(identity.index, path, Arc::clone(backend));
            slots[usize::from(identity.index)] = Slot::Present(directory);
        }
        if !all_given {
            let lost = slots.iter().filter_map(|slot| match slot {
                Slot::Lost(endpoint) => Some(PathBuf::from(endpoint)),
                Slot::Present(_) => None,
            });
            let reason = "it was not given".to_owned();
            warnings.extend(lost.map(|directory| StoreWarning::DirectoryLost {
                directory,
                reason: reason.clone(),
            }));
        }
        Ok((id, slots, warnings))
    }
}

fn read_identity(
    backend: &Arc<dyn StorageBackend>,
    position: usize,
    path: &Path,
) -> Result<(PathBuf, Identity), OpenError> {
    let lost = |source| OpenError::DirectoryLost { directory: path.to_owned(), position, source };
    let canonical = backend.canonicalize(path).map_err(lost)?;
    let directory = Directory::new(0, canonical, Arc::clone(backend));
    let bytes = match directory.open_if_there(IDENTITY) {
        Ok(Some(file)) => file.read_all(IDENTITY_BYTES as u64),
        Ok(None) => return Err(OpenError::NotAStore { directory: path.to_owned(), position }),
        Err(e) => Err(e),
    };
    let directory = directory.path;
    match Identity::decode(&bytes.map_err(|e| lost(e.source))?) {
        Ok(identity) => Ok((directory, identity)),
        Err(FormatError::Version { version }) => {
            Err(OpenError::UnknownVersion { directory, version })
        }
        Err(reason) => Err(OpenError::IdentityDamaged { directory, reason }),
    }
}
