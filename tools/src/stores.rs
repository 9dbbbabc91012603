//! Opening a store as a command needs it, making it where that is allowed, passing its remarks on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use railring::Store;
use railring::store::{OpenError, OpenMode, OpenOptions, StoreWarning};
use rustix::fs::{FlockOperation, flock};

use crate::args::{ReadStoreArgs, StoreArgs};
use crate::output::note;

/// Opens a store that is only read.
pub(crate) fn open_to_read(args: &ReadStoreArgs) -> Result<Store> {
    let mode = if args.degraded { OpenMode::Degraded } else { OpenMode::ReadOnly };
    let opened = Store::open(&args.store.directories, OpenOptions::new(mode));
    let store = opened.map_err(|error| match error {
        OpenError::DirectoryLost { .. } => anyhow!("{error}: --degraded"),
        error => error.into(),
    })?;
    pass_on(store.warnings());
    Ok(store)
}

/// Opens a store to change it.
pub(crate) fn open_to_write(args: &StoreArgs) -> Result<Store> {
    let store = Store::open(&args.directories, OpenOptions::default())?;
    pass_on(store.warnings());
    Ok(store)
}

/// Opens a store to change it, and makes it first if all its directories are new or empty.
pub(crate) fn open_or_create(args: &StoreArgs) -> Result<Store> {
    let directories = &args.directories;
    if directories.iter().any(|directory| is_used(directory)) {
        return open_to_write(args);
    }
    let first = directories.first().context("a store has at least one directory")?;
    let made = |directory: &Path| format!("cannot make directory {}", directory.display());
    fs::create_dir_all(first).with_context(|| made(first))?;
    // Two first puts at once must not make two stores of the same directories.
    let lock = File::open(first).with_context(|| format!("cannot open {}", first.display()))?;
    let locked = flock(&lock, FlockOperation::LockExclusive);
    locked.with_context(|| format!("cannot lock {}", first.display()))?;
    match Store::open(directories, OpenOptions::default()) {
        Ok(store) => {
            pass_on(store.warnings());
            Ok(store)
        }
        Err(OpenError::NotAStore { .. } | OpenError::DirectoryLost { .. }) => {
            let store = Store::create(directories)?;
            note(format_args!("made a new store over {}", list(directories)));
            Ok(store)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether objects may be there; such a directory is never the beginning of a new store.
fn is_used(directory: &Path) -> bool {
    let mut entries = fs::read_dir(directory.join("objects")).into_iter().flatten();
    directory.join("railring-store").exists() && entries.next().is_some()
}

/// Directories in one line.
pub(crate) fn list(directories: &[PathBuf]) -> String {
    let names: Vec<String> = directories.iter().map(|d| d.display().to_string()).collect();
    names.join(", ")
}

/// Tells what was wrong and did not matter.
pub(crate) fn pass_on(warnings: &[StoreWarning]) {
    warnings.iter().for_each(note);
}

/// The directories that are there, as placements name them.
pub(crate) fn present(store: &Store) -> Vec<PathBuf> {
    store.directories().into_iter().flatten().collect()
}
