//! What can go wrong, one enum per operation, and what is worth saying when nothing did.

use crate::format::{FormatError, StoreId};
use crate::store::OpenMode;
use railring_catalog::{GeometryError, ObjectKey};
use std::io;
use std::path::PathBuf;

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", .directory.join(.file).display())]
pub struct FileError {
    /// What was tried.
    pub action: &'static str,
    /// The store's directory.
    pub directory: PathBuf,
    /// The file, relative to the directory.
    pub file: String,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Why a store cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// No directory, or more than 255.
    #[error("a store has 1 to 255 directories, {given} are given")]
    DirectoryCount {
        /// How many.
        given: usize,
    },
    /// One directory is given twice, perhaps under two names.
    #[error("directory {} is given twice", .directory.display())]
    DuplicateDirectory {
        /// Its one true name.
        directory: PathBuf,
    },
    /// Placements name directories in text.
    #[error("directory name {} is not UTF-8: use another", .directory.display())]
    NotUtf8 {
        /// The name.
        directory: PathBuf,
    },
    /// A store is there already.
    #[error("{} belongs to a store already: open it instead", .directory.display())]
    AlreadyStore {
        /// The directory.
        directory: PathBuf,
    },
    /// Other people's files are there.
    #[error(
        "{} is not empty, it holds '{file}': give an empty or a new directory",
        .directory.display()
    )]
    NotEmpty {
        /// The directory.
        directory: PathBuf,
        /// One of its files.
        file: String,
    },
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No directory, or more than 255.
    #[error("a store has 1 to 255 directories, {given} are given")]
    DirectoryCount {
        /// How many.
        given: usize,
    },
    /// One directory is given twice, perhaps under two names.
    #[error("directory {} is given twice", .directory.display())]
    DuplicateDirectory {
        /// Its one true name.
        directory: PathBuf,
    },
    /// Placements name directories in text.
    #[error("directory name {} is not UTF-8: use another", .directory.display())]
    NotUtf8 {
        /// The name.
        directory: PathBuf,
    },
    /// A directory is not there or cannot be read.
    #[error("directory {} (number {position}) is lost: {source}; with copies elsewhere \
        the store can be read in degraded mode", .directory.display())]
    DirectoryLost {
        /// The directory as given.
        directory: PathBuf,
        /// Its place in the list given, from 0.
        position: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A directory has no identity.
    #[error("{} (number {position}) is not a store's directory: it has no file \
        'railring-store'", .directory.display())]
    NotAStore {
        /// The directory as given.
        directory: PathBuf,
        /// Its place in the list given, from 0.
        position: usize,
    },
    /// A directory's identity cannot be read.
    #[error("identity of {} is damaged: {reason}", .directory.display())]
    IdentityDamaged {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        reason: FormatError,
    },
    /// A directory was written by a version of the software that this one does not know.
    #[error("{} has store format version {version}, this software knows {}: use a newer \
        one", .directory.display(), crate::FORMAT_VERSION)]
    UnknownVersion {
        /// The directory.
        directory: PathBuf,
        /// Version found.
        version: u32,
    },
    /// Two directories belong to different stores.
    #[error(
        "{} belongs to store {id}, but {} to store {other_id}",
        .directory.display(), .other.display()
    )]
    OtherStore {
        /// The later directory.
        directory: PathBuf,
        /// Its store.
        id: StoreId,
        /// The first directory that was read.
        other: PathBuf,
        /// Its store.
        other_id: StoreId,
    },
    /// The directories are not in the order the store was made with.
    #[error("{} is directory {index} of its store but given as number {position}, where \
        {} belongs: give them in their order",
        .directory.display(), name_or(.expected, *.position)
    )]
    WrongOrder {
        /// The directory that is out of place.
        directory: PathBuf,
        /// Its place in the list given, from 0.
        position: usize,
        /// Its place in the store, from 0.
        index: u16,
        /// The one given that belongs in its place, if it was given.
        expected: Option<PathBuf>,
    },
    /// Fewer or more directories than the store has.
    #[error("the store has {count} directories, {given} are given")]
    WrongCount {
        /// How many are given.
        given: usize,
        /// How many it has.
        count: u16,
    },
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
}

fn name_or(path: &Option<PathBuf>, position: usize) -> String {
    path.as_ref().map_or_else(|| format!("directory {position}"), |p| p.display().to_string())
}

/// Why a put published nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The store was opened for reading.
    #[error("the store is open as {mode:?}: open it for writing")]
    NotWritable {
        /// How it was opened.
        mode: OpenMode,
    },
    /// Sizes that no object may have.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// No copy, or more copies than directories.
    #[error(
        "{copies} copies are asked for, the store has {directories} \
            directories: give 1 to {directories}"
    )]
    Copies {
        /// Copies asked for.
        copies: u16,
        /// Directories there are.
        directories: u16,
    },
    /// The bytes to put cannot be read.
    #[error("cannot read what is to be put: {0}")]
    Source(#[source] io::Error),
    /// Only a regular file has a length to check against.
    #[error("{} is not a regular file: put it as a stream", .path.display())]
    NotAFile {
        /// The path given.
        path: PathBuf,
    },
    /// The source ended early.
    #[error(
        "the source ended after {actual} bytes, {expected} were expected: it \
            shrank while it was put"
    )]
    SourceShrank {
        /// Length at the start.
        expected: u64,
        /// Bytes read.
        actual: u64,
    },
    /// The source has more bytes than expected.
    #[error("the source has more than the {expected} bytes expected: it grew while it was put")]
    SourceGrew {
        /// Length at the start.
        expected: u64,
    },
    /// The file was written to while it was put.
    #[error("{} was changed while it was put", .path.display())]
    SourceChanged {
        /// The path given.
        path: PathBuf,
    },
    /// The progress callback said so.
    #[error("put was cancelled")]
    Cancelled,
    /// A disk is full, or a quota reached.
    #[error("no space left in {}: nothing was put", .directory.display())]
    DiskFull {
        /// The store's directory on that disk.
        directory: PathBuf,
        /// The operation that failed.
        #[source]
        cause: FileError,
    },
    /// No generation number is left for this key.
    #[error("the key has used up all generation numbers")]
    GenerationsExhausted,
    /// All directories' floors are damaged, so a number might be used twice.
    #[error("the floor of every directory is damaged, the last is {}: restore one from \
        a backup", .directory.display())]
    FloorDamaged {
        /// The last directory.
        directory: PathBuf,
        /// What is wrong there.
        reason: FormatError,
    },
    /// Publishing failed, and so did taking it back: either outcome is possible.
    #[error(
        "publishing generation {generation} failed and could not be undone: \
            look the object up; cause: {cause}"
    )]
    Indeterminate {
        /// The generation that may or may not exist.
        generation: u64,
        /// The first failure.
        cause: FileError,
    },
    /// The file system refused.
    #[error(transparent)]
    File(FileError),
}

impl From<FileError> for PutError {
    fn from(cause: FileError) -> Self {
        match cause.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { directory: cause.directory.clone(), cause }
            }
            _ => Self::File(cause),
        }
    }
}

/// Why the newest generation of an object cannot be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// Valid manifests of one generation differ.
    #[error("generation {generation} of {key} has different manifests in {}", list(.directories))]
    Conflict {
        /// The object.
        key: ObjectKey,
        /// The generation.
        generation: u64,
        /// Directories with a valid manifest of it.
        directories: Vec<PathBuf>,
    },
    /// No directory has a good manifest of the newest generation.
    #[error(
        "every manifest of generation {generation} in file '{file}' is damaged: {}",
        reasons(.replicas)
    )]
    Damaged {
        /// The file, the same in each directory.
        file: String,
        /// The generation.
        generation: u64,
        /// Directories that have one, and what is wrong with it.
        replicas: Vec<(PathBuf, FormatError)>,
    },
    /// Writers kept replacing the object while it was looked up.
    #[error("{key} changed at every attempt to look it up: try again")]
    Busy {
        /// The object.
        key: ObjectKey,
    },
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(", ")
}

fn reasons(replicas: &[(PathBuf, FormatError)]) -> String {
    let parts: Vec<_> = replicas.iter().map(|(p, e)| format!("in {}: {e}", p.display())).collect();
    parts.join("; ")
}

/// Why an object was not removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The store was opened for reading.
    #[error("the store is open as {mode:?}: open it for writing")]
    NotWritable {
        /// How it was opened.
        mode: OpenMode,
    },
    /// All directories' floors are damaged, so a number might be used twice.
    #[error("the floor of every directory is damaged, the last is {}: restore one from \
        a backup", .directory.display())]
    FloorDamaged {
        /// The last directory.
        directory: PathBuf,
        /// What is wrong there.
        reason: FormatError,
    },
    /// The object cannot be read well enough to be sure what would be removed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Something that is wrong but did not stop the operation. Returned, never printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreWarning {
    /// A directory is not there; its stripes are read from their other owners.
    #[error("directory {} is lost: {reason}", .directory.display())]
    DirectoryLost {
        /// The directory as given, or its number if it was not given.
        directory: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// A manifest is damaged in one directory and good in another.
    #[error("manifest '{file}' in {} is damaged: {reason}", .directory.display())]
    ManifestDamaged {
        /// The directory.
        directory: PathBuf,
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: FormatError,
    },
    /// A manifest is missing in one directory: a disk was restored, or a put is just ending.
    #[error("manifest '{file}' is missing in {}", .directory.display())]
    ManifestMissing {
        /// The directory.
        directory: PathBuf,
        /// The file.
        file: String,
    },
    /// A put worked but could not write its manifest everywhere.
    #[error("manifest '{file}' could not be written in {}: {reason}", .directory.display())]
    ManifestNotWritten {
        /// The directory.
        directory: PathBuf,
        /// The file.
        file: String,
        /// What the system said.
        reason: String,
    },
    /// What an unfinished put or removal had left was settled.
    #[error(
        "settled '{file}', left in {} by an operation that did not finish",
        .directory.display()
    )]
    LeftoverSettled {
        /// The directory.
        directory: PathBuf,
        /// The file in `tmp`.
        file: String,
    },
    /// A file that no store writes.
    #[error("unknown file '{file}' in {} is left alone", .directory.display())]
    UnknownFile {
        /// The directory.
        directory: PathBuf,
        /// The file.
        file: String,
    },
    /// A data file without any manifest.
    #[error("data file '{file}' in {} has no manifest in any directory", .directory.display())]
    OrphanData {
        /// The directory.
        directory: PathBuf,
        /// The file.
        file: String,
    },
    /// A floor is damaged in one directory and good in another.
    #[error("floor of {} is damaged: {reason}", .directory.display())]
    FloorDamaged {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        reason: FormatError,
    },
    /// Cleaning up after a finished operation failed; the next one tries again.
    #[error("cleaning up is left for later: {reason}")]
    CleanupFailed {
        /// What failed.
        reason: String,
    },
}
