//! hwloc's view of a machine, live or from an XML file; without the feature `hwloc` a typed
//! refusal.

#[cfg(feature = "hwloc")]
mod convert;
#[cfg(feature = "hwloc")]
mod io;

use crate::machine::Machine;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of an XML file that are read.
const XML_BYTES_MAX: u64 = 64 << 20;

/// Why hwloc's view could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HwlocError {
    /// The program was built without hwloc.
    #[error(
        "this program was built without hwloc; build it with --features hwloc, or use a sysfs root"
    )]
    NotBuilt,
    /// The file cannot be opened.
    #[error("cannot read hwloc file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no hwloc XML.
    #[error("{} is no hwloc XML: it has no <topology> element", path.display())]
    NotXml {
        /// The file.
        path: PathBuf,
    },
    /// The file has a format that is not known.
    #[error(
        "hwloc XML {} has format version {version}; versions 1 and 2 are read, so export it with \
         lstopo --export-xml-flags v2 or capture the machine with topo capture",
        path.display()
    )]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// The file is longer than a topology can be.
    #[error("hwloc file {} is longer than {XML_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// hwloc refused.
    #[error("hwloc cannot load {what}: {why}")]
    Load {
        /// What it was given.
        what: String,
        /// What it said.
        why: String,
    },
}

/// Reads the XML file as text and checks its version first: hwloc itself only prints a line to
/// standard error and gives another machine's topology or none.
fn read_checked(path: &Path) -> Result<String, HwlocError> {
    let failed = |source| HwlocError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(XML_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > XML_BYTES_MAX {
        return Err(HwlocError::TooLong { path: path.to_owned() });
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let version = xml_version(&text).ok_or_else(|| HwlocError::NotXml { path: path.to_owned() })?;
    match version.split('.').next() {
        Some("1" | "2") => Ok(text),
        _ => Err(HwlocError::UnknownVersion { path: path.to_owned(), version }),
    }
}

/// The format version of the root element; format 1 has none.
fn xml_version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("<topology")?;
    let (attributes, _) = rest.split_once('>')?;
    if !attributes.is_empty() && !attributes.starts_with([' ', '\t', '\n', '\r', '/']) {
        return None;
    }
    let Some((_, version)) = attributes.split_once("version=\"") else { return Some("1".into()) };
    let (version, _) = version.split_once('"')?;
    Some(version.chars().take(20).collect())
}

/// The machine of an XML file.
pub(crate) fn read_xml(path: &Path) -> Result<Machine, HwlocError> {
    let text = read_checked(path)?;
    load_text(&text, path)
}

#[cfg(not(feature = "hwloc"))]
fn load_text(_text: &str, _path: &Path) -> Result<Machine, HwlocError> {
    Err(HwlocError::NotBuilt)
}

#[cfg(not(feature = "hwloc"))]
pub(crate) fn read_live() -> Result<Machine, HwlocError> {
    Err(HwlocError::NotBuilt)
}

#[cfg(feature = "hwloc")]
use convert::load_text;
#[cfg(feature = "hwloc")]
pub(crate) use convert::read_live;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_in_the_root_element() {
        assert_eq!(xml_version("<?xml?>\n<topology>\n").as_deref(), Some("1"));
        assert_eq!(xml_version("<topology version=\"2.0\">").as_deref(), Some("2.0"));
        assert_eq!(xml_version("<topology a=\"b\" version=\"3.0\">").as_deref(), Some("3.0"));
        assert_eq!(xml_version("<system version=\"1\">"), None);
        assert_eq!(xml_version("<topologydiff>"), None);
    }

    #[test]
    fn a_later_version_is_refused_by_its_number() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m.xml");
        std::fs::write(&path, "<topology version=\"3.0\"></topology>").expect("written");
        let error = read_xml(&path).expect_err("version 3 is not read");
        assert!(matches!(&error, HwlocError::UnknownVersion { version, .. } if version == "3.0"));
        assert!(error.to_string().contains("version 3.0"), "{error}");
    }
}
