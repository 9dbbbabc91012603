//! Which rails an engine has: local directories, and null rails for measuring.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use railring_file::{FileRail, FileRailError, FileRailOptions};
use railring_sim::{NullConfig, NullRail, RailConfigError};
use railring_transport::RailControl;

use crate::link::AnyLink;

/// Why a rail could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailError {
    /// A directory could not become a file rail.
    #[error("no rail on {}: {source}", directory.display())]
    File {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: FileRailError,
    },
    /// A null rail makes no sense.
    #[error(transparent)]
    Null(#[from] RailConfigError),
}

/// Both halves of one rail.
pub(crate) struct AnyRail {
    pub(crate) control: Arc<dyn RailControl>,
    pub(crate) link: AnyLink,
}

/// The rails of an engine to be built, in the order in which CQEs number them.
#[derive(Default)]
pub struct RailSet {
    pub(crate) rails: Vec<AnyRail>,
}

impl fmt::Debug for RailSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.rails.iter().map(|rail| rail.control.info().name);
        f.debug_list().entries(names).finish()
    }
}

impl RailSet {
    /// No rails yet.
    #[must_use]
    pub fn new() -> Self {
        RailSet::default()
    }

    /// One file rail per directory, with default options: a store's directories are one disk each.
    ///
    /// # Errors
    /// A directory cannot be opened.
    pub fn directories<P: AsRef<Path>>(
        directories: impl IntoIterator<Item = P>,
    ) -> Result<Self, RailError> {
        let mut set = RailSet::new();
        for directory in directories {
            set = set.file(directory, FileRailOptions::default())?;
        }
        Ok(set)
    }

    /// Adds a file rail.
    ///
    /// # Errors
    /// The directory cannot be opened, or an option makes no sense.
    pub fn file(
        mut self,
        directory: impl AsRef<Path>,
        options: FileRailOptions,
    ) -> Result<Self, RailError> {
        let directory = directory.as_ref();
        let (control, link) = FileRail::open(directory, options)
            .map_err(|source| RailError::File { directory: directory.to_owned(), source })?;
        self.rails.push(AnyRail { control, link: AnyLink::File(Box::new(link)) });
        Ok(self)
    }

    /// Adds a null rail.
    ///
    /// # Errors
    /// An option makes no sense.
    pub fn null(mut self, config: NullConfig) -> Result<Self, RailError> {
        let (control, link) = NullRail::new(config)?;
        self.rails.push(AnyRail { control, link: AnyLink::Null(link) });
        Ok(self)
    }

    /// How many rails there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rails.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rails.is_empty()
    }
}
