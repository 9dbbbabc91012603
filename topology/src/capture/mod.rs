//! Writes all that describes a machine into one archive, and reads such an archive back.

mod mask;

pub use mask::Mask;

use crate::tree::{Entries, Entry, Tree, Why};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The file of an archive that says what it is.
const ABOUT: &str = "railring/capture.json";
/// Version of the archive's layout.
const VERSION: u32 = 1;
/// Bytes an archive may unpack to; a captured machine has a few.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Entries an archive may have.
const ENTRIES_MAX: usize = 1 << 20;
/// Bytes of one entry that are kept, as for files on disk.
const ENTRY_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: u32,
    railring: String,
    masked: bool,
    directories: Vec<PathBuf>,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Files in the archive.
    pub files: usize,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Hardware addresses that were masked.
    pub masked: usize,
}

/// Why an archive was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The source is an archive or an hwloc file already.
    #[error("only a sysfs root can be captured; copy the archive or the hwloc file instead")]
    NotATree,
    /// Writing failed.
    #[error("cannot write the archive: {source}")]
    Write {
        /// What the system said.
        #[from]
        source: io::Error,
    },
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The file cannot be opened or is damaged.
    #[error("cannot read {} as a tar.gz archive: {source}", path.display())]
    Read {
        /// The archive.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It was written by a later version.
    #[error(
        "archive {} has version {version}, and this program reads up to {VERSION}; use a newer one",
        path.display()
    )]
    Version {
        /// The archive.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// It unpacks to more than a machine's description can be.
    #[error(
        "archive {} has more than {ENTRIES_MAX} entries or {UNPACKED_BYTES_MAX} bytes; it is no \
         captured machine",
        path.display()
    )]
    TooLarge {
        /// The archive.
        path: PathBuf,
    },
}

pub(crate) fn write(
    mut entries: Entries,
    directories: &[PathBuf],
    mask: Mask,
    to: impl Write,
) -> Result<Captured, CaptureError> {
    let masked = mask::apply(&mut entries, mask);
    let about = About {
        version: VERSION,
        railring: env!("CARGO_PKG_VERSION").to_owned(),
        masked: mask == Mask::HardwareAddresses,
        directories: directories.to_vec(),
    };
    let about = serde_json::to_vec_pretty(&about).map_err(io::Error::from)?;
    entries.insert(ABOUT.to_owned(), Entry::File(about));
    let mut archive = tar::Builder::new(GzEncoder::new(to, Compression::default()));
    let mut captured = Captured { files: 0, bytes: 0, masked };
    for (path, entry) in entries.iter().filter(|(path, _)| !path.is_empty()) {
        append(&mut archive, path, entry)?;
        if let Entry::File(bytes) = entry {
            captured.files += 1;
            captured.bytes += bytes.len() as u64;
        }
    }
    archive.into_inner()?.finish()?.flush()?;
    Ok(captured)
}

fn append(archive: &mut tar::Builder<impl Write>, path: &str, entry: &Entry) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    let (kind, mode, bytes): (_, _, &[u8]) = match entry {
        Entry::File(bytes) => (tar::EntryType::Regular, 0o644, bytes),
        Entry::Folder => (tar::EntryType::Directory, 0o755, &[]),
        Entry::Link(_) => (tar::EntryType::Symlink, 0o777, &[]),
        // There, and not readable: an empty file without permissions.
        Entry::Refused(_) => (tar::EntryType::Regular, 0o000, &[]),
    };
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_size(bytes.len() as u64);
    if let Entry::Link(target) = entry {
        return archive.append_link(&mut header, path, target);
    }
    archive.append_data(&mut header, path, bytes)
}

/// Opens an archive: the tree, and the directories that were asked about when it was written.
pub(crate) fn open(path: &Path) -> Result<(Tree, Vec<PathBuf>), ArchiveError> {
    let broken = |source| ArchiveError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(broken)?;
    let unpacked = GzDecoder::new(file).take(UNPACKED_BYTES_MAX + 1);
    let mut archive = tar::Archive::new(unpacked);
    let mut entries = Entries::new();
    let mut bytes = 0;
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        bytes += entry.header().size().unwrap_or(0);
        if bytes > UNPACKED_BYTES_MAX || entries.len() >= ENTRIES_MAX {
            return Err(ArchiveError::TooLarge { path: path.to_owned() });
        }
        if let Some((name, entry)) = read_entry(&mut entry).map_err(broken)? {
            entries.insert(name, entry);
        }
    }
    let entries = without_top_folder(entries);
    let about = match entries.get(ABOUT) {
        Some(Entry::File(bytes)) => serde_json::from_slice::<About>(bytes).ok(),
        _ => None,
    };
    if let Some(version) = about.as_ref().map(|about| about.version).filter(|&v| v > VERSION) {
        return Err(ArchiveError::Version { path: path.to_owned(), version });
    }
    let directories = about.map(|about| about.directories).unwrap_or_default();
    Ok((Tree::recorded(entries), directories))
}

fn read_entry(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Option<(String, Entry)>> {
    let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.is_empty() || parts.contains(&"..") {
        return Ok(None);
    }
    let name = parts.join("/");
    let kind = entry.header().entry_type();
    let read = match () {
        () if kind.is_symlink() => {
            let target = entry.link_name_bytes().unwrap_or_default();
            Entry::Link(String::from_utf8_lossy(&target).into_owned())
        }
        () if kind.is_dir() => Entry::Folder,
        () if kind.is_file() && entry.header().mode().unwrap_or(0o644) & 0o777 == 0 => {
            Entry::Refused(Why::Denied)
        }
        () if kind.is_file() => {
            let mut bytes = Vec::new();
            entry.take(ENTRY_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            let too_long = bytes.len() as u64 > ENTRY_BYTES_MAX;
            if too_long { Entry::Refused(Why::TooLong) } else { Entry::File(bytes) }
        }
        () => return Ok(None),
    };
    Ok(Some((name, read)))
}

/// A tree that was packed with its folder is taken without it.
fn without_top_folder(entries: Entries) -> Entries {
    let top = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
    let mut tops: Vec<String> = entries.keys().map(|path| top(path)).collect();
    tops.dedup();
    match tops.as_slice() {
        [one] if one != "sys" && one != "proc" => {
            let prefix = format!("{one}/");
            let inner = |(path, entry): (String, Entry)| {
                path.strip_prefix(&prefix).map(|path| (path.to_owned(), entry))
            };
            entries.into_iter().filter_map(inner).collect()
        }
        _ => entries,
    }
}
