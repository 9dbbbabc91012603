//! `Discovery`: which sources describe the machine, and how they are put together.

use crate::capture::{self, ArchiveError, CaptureError, Captured, Mask};
use crate::hwloc::{self, HwlocError};
use crate::machine::Machine;
use crate::merge::merge;
use crate::sysfs::{self, Wanted};
use crate::tree::Tree;
use std::io::Write;
use std::path::PathBuf;

/// Where the sysfs and procfs files are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Files {
    Root(PathBuf),
    Archive(PathBuf),
    None,
}

/// Where hwloc's view comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hwloc {
    No,
    Live,
    Xml(PathBuf),
}

/// Which sources describe the machine.
///
/// Sysfs and procfs are the kernel's own word, so what they say is taken; hwloc fills in what they
/// leave unknown; where both speak and differ, the machine lists a disagreement.
#[derive(Clone, Debug)]
pub struct Discovery {
    files: Files,
    hwloc: Hwloc,
    directories: Vec<PathBuf>,
}

/// Why a machine could not be described. Files that are missing from a tree are no error: what they
/// would have said is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// A captured archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// hwloc's description cannot be read.
    #[error(transparent)]
    Hwloc(#[from] HwlocError),
}

impl Discovery {
    /// The machine the program runs on, by its sysfs and procfs.
    #[must_use]
    pub fn live() -> Self {
        Self::sysfs_root("/")
    }

    /// The machine whose `sys` and `proc` folders are below `root`.
    #[must_use]
    pub fn sysfs_root(root: impl Into<PathBuf>) -> Self {
        Self { files: Files::Root(root.into()), hwloc: Hwloc::No, directories: Vec::new() }
    }

    /// The machine that was captured in an archive (see [`Discovery::capture`]).
    #[must_use]
    pub fn archive(path: impl Into<PathBuf>) -> Self {
        Self { files: Files::Archive(path.into()), hwloc: Hwloc::No, directories: Vec::new() }
    }

    /// The machine of an hwloc XML file alone. Needs the feature `hwloc`.
    #[must_use]
    pub fn hwloc_xml(path: impl Into<PathBuf>) -> Self {
        let hwloc = Hwloc::Xml(path.into());
        Self { files: Files::None, hwloc, directories: Vec::new() }
    }

    /// Adds an hwloc XML file as a second source. Needs the feature `hwloc`.
    #[must_use]
    pub fn with_hwloc_xml(mut self, path: impl Into<PathBuf>) -> Self {
        self.hwloc = Hwloc::Xml(path.into());
        self
    }

    /// Adds hwloc's view of the running machine as a second source. Needs the feature `hwloc`.
    #[must_use]
    pub fn with_hwloc_live(mut self) -> Self {
        self.hwloc = Hwloc::Live;
        self
    }

    /// Also finds the disk and node of a directory, which makes it a file rail.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directories.push(path.into());
        self
    }

    /// Reads the machine. Takes tens of milliseconds; not for the read path.
    ///
    /// # Errors
    /// When an archive or an hwloc file cannot be read.
    pub fn read(&self) -> Result<Machine, DiscoverError> {
        let wanted = Wanted { directories: self.directories.clone() };
        let files = match &self.files {
            Files::Root(root) => Some(sysfs::read(&Tree::at(root), &wanted)),
            Files::Archive(path) => {
                let (tree, recorded) = capture::open(path)?;
                let asked = wanted.directories.is_empty();
                let wanted = if asked { Wanted { directories: recorded } } else { wanted };
                Some(sysfs::read(&tree, &wanted))
            }
            Files::None => None,
        };
        let by_hwloc = match &self.hwloc {
            Hwloc::No => None,
            Hwloc::Live => Some(hwloc::read_live()?),
            Hwloc::Xml(path) => Some(hwloc::read_xml(path)?),
        };
        Ok(match (files, by_hwloc) {
            (Some(files), Some(by_hwloc)) => merge(files, &by_hwloc),
            (Some(machine), None) | (None, Some(machine)) => machine,
            (None, None) => Machine::default(),
        })
    }

    /// Writes every file that [`Discovery::read`] looks at into a gzip-compressed tar archive, so
    /// that the machine can be described elsewhere.
    ///
    /// # Errors
    /// When the archive cannot be written, or the source is no sysfs root.
    pub fn capture(&self, to: impl Write, mask: Mask) -> Result<Captured, CaptureError> {
        let Files::Root(root) = &self.files else { return Err(CaptureError::NotATree) };
        let mut tree = Tree::at(root).recording();
        sysfs::read(&tree, &Wanted { directories: self.directories.clone() });
        capture::write(tree.take_recording(), &self.directories, mask, to)
    }
}
