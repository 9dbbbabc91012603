//! A tree of small text files below any root: the live machine's, an unpacked one, or a captured
//! archive.
//!
//! Symbolic links are followed inside the root only, so that a tree from another machine never
//! shows this one's files; every read can be recorded, which is what `topo capture` stores.

use crate::cpuset::clean;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes of one file that are read; the longest file of interest is `/proc/mounts` of a large host.
const FILE_BYTES_MAX: usize = 4 << 20;
/// Sysfs files are a page at most.
const FIRST_READ_BYTES: usize = 4096;
/// Symbolic links followed in one path, as many as Linux follows.
const LINKS_MAX: usize = 40;
/// Unknowns kept with their reason; a corrupt tree must not fill memory.
const UNKNOWNS_MAX: usize = 10_000;

/// Something that could not be read, and why. The field it would have filled stays unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// The file, from the root of the tree.
    pub path: String,
    /// Why nothing is known.
    pub why: String,
}

/// Why a file gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Absent,
    Dangling,
    Denied,
    NotAFile,
    TooLong,
    Refused(i32),
}

impl Why {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::NotADirectory => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::IsADirectory => Self::NotAFile,
            _ => Self::Refused(error.raw_os_error().unwrap_or(0)),
        }
    }

    pub(crate) fn text(self) -> String {
        match self {
            Self::Absent => "no such file".into(),
            Self::Dangling => "a link on the way leads nowhere".into(),
            Self::Denied => "permission denied".into(),
            Self::NotAFile => "not a regular file".into(),
            Self::TooLong => format!("longer than {FILE_BYTES_MAX} bytes"),
            Self::Refused(errno) => {
                format!("the kernel refused: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// One entry of a recorded tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    File(Vec<u8>),
    Link(String),
    Folder,
    /// There, and unreadable.
    Refused(Why),
}

/// A recorded tree: paths from the root, without a leading slash.
pub(crate) type Entries = BTreeMap<String, Entry>;

#[derive(Debug)]
enum Backing {
    Folder(PathBuf),
    Recorded(Entries),
}

/// A tree of text files with its root, what was unknown in it, and (when asked for) all that was
/// read.
#[derive(Debug)]
pub(crate) struct Tree {
    backing: Backing,
    resolved: RefCell<HashMap<String, Result<String, Why>>>,
    unknowns: RefCell<Vec<Unknown>>,
    recording: Option<RefCell<Entries>>,
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

impl Tree {
    /// The tree below `root`; `/` is the live machine. Nothing is read yet: a root that does not
    /// exist reads as a machine of which nothing is known.
    #[must_use]
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self::with(Backing::Folder(root.into()))
    }

    pub(crate) fn recorded(entries: Entries) -> Self {
        Self::with(Backing::Recorded(entries))
    }

    fn with(backing: Backing) -> Self {
        Self {
            backing,
            resolved: RefCell::default(),
            unknowns: RefCell::default(),
            recording: None,
        }
    }

    pub(crate) fn recording(mut self) -> Self {
        self.recording = Some(RefCell::default());
        self
    }

    pub(crate) fn take_recording(&mut self) -> Entries {
        self.recording.take().map(RefCell::into_inner).unwrap_or_default()
    }

    /// Puts a file into the recording that is not on disk: what a system call said.
    pub(crate) fn record_extra(&self, path: &str, text: String) {
        self.record(path, || Entry::File(text.into_bytes()));
    }

    /// True when this is the machine we run on, so that system calls speak of it too.
    #[must_use]
    pub(crate) fn is_live(&self) -> bool {
        matches!(&self.backing, Backing::Folder(root) if root == Path::new("/"))
    }

    /// The root as a person would name it.
    #[must_use]
    pub(crate) fn name(&self) -> String {
        match &self.backing {
            Backing::Folder(root) => root.display().to_string(),
            Backing::Recorded(_) => "captured archive".into(),
        }
    }

    /// What was looked for and not known so far.
    pub(crate) fn unknowns(&self) -> Vec<Unknown> {
        let mut unknowns = self.unknowns.borrow().clone();
        unknowns.sort();
        unknowns.dedup();
        unknowns
    }

    pub(crate) fn note(&self, path: &str, why: impl Into<String>) {
        let mut unknowns = self.unknowns.borrow_mut();
        if unknowns.len() < UNKNOWNS_MAX {
            unknowns.push(Unknown { path: format!("/{path}"), why: why.into() });
        }
    }

    fn record(&self, path: &str, entry: impl FnOnce() -> Entry) {
        if let Some(recording) = &self.recording {
            recording.borrow_mut().insert(path.to_owned(), entry());
        }
    }

    /// Records that something is there, unless more is known of it already.
    fn record_presence(&self, path: &str, entry: Entry) {
        if let Some(recording) = &self.recording {
            recording.borrow_mut().entry(path.to_owned()).or_insert(entry);
        }
    }

    /// The target of the link at `path`, whose folder must be resolved; `None` when it is no link.
    fn raw_link(&self, path: &str) -> Result<Option<String>, Why> {
        let target = match &self.backing {
            Backing::Folder(root) => match fs::read_link(root.join(path)) {
                Ok(target) => target.to_string_lossy().into_owned(),
                // readlink(2): EINVAL when the last part is there and is not a link.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Ok(None),
                Err(e) => return Err(Why::of(&e)),
            },
            Backing::Recorded(entries) => match entries.get(path) {
                Some(Entry::Link(target)) => target.clone(),
                Some(_) => return Ok(None),
                None if has_children(entries, path) => return Ok(None),
                None => return Err(Why::Absent),
            },
        };
        self.record(path, || Entry::Link(target.clone()));
        Ok(Some(target))
    }

    /// The path with every link followed inside the root, without a leading slash.
    pub(crate) fn resolve(&self, path: &str) -> Result<String, Why> {
        let resolved = self.resolve_counted(path, &mut 0);
        if let Ok(here) = &resolved {
            self.record_presence(here, Entry::Folder);
        }
        resolved
    }

    fn resolve_counted(&self, path: &str, links: &mut usize) -> Result<String, Why> {
        if let Some(known) = self.resolved.borrow().get(path) {
            return known.clone();
        }
        let resolved = self.follow(path, links);
        self.resolved.borrow_mut().insert(path.to_owned(), resolved.clone());
        resolved
    }

    fn follow(&self, path: &str, links: &mut usize) -> Result<String, Why> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        if path.is_empty() {
            return Ok(String::new());
        }
        let folder = self.resolve_counted(folder, links)?;
        match name {
            "" | "." => return Ok(folder),
            ".." => return Ok(folder.rsplit_once('/').map_or("", |(up, _)| up).to_owned()),
            _ => {}
        }
        let here = join(&folder, name);
        let Some(target) = self.raw_link(&here)? else { return Ok(here) };
        *links += 1;
        if *links > LINKS_MAX {
            return Err(Why::Dangling);
        }
        let next = match target.strip_prefix('/') {
            Some(absolute) => absolute.trim_matches('/').to_owned(),
            None => join(&folder, target.trim_end_matches('/')),
        };
        self.resolve_counted(&next, links).map_err(|why| match why {
            Why::Absent => Why::Dangling,
            other => other,
        })
    }

    /// The bytes of a file.
    fn bytes(&self, path: &str) -> Result<Vec<u8>, Why> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let here = join(&self.resolve(folder)?, name);
        let read = match self.open_and_read(&here) {
            Err(Why::Refused(libc::ELOOP)) => {
                let target = self.resolve(&here)?;
                return self.open_and_read(&target).inspect(|bytes| {
                    self.record(&target, || Entry::File(bytes.clone()));
                });
            }
            other => other,
        };
        match &read {
            Ok(bytes) => self.record(&here, || Entry::File(bytes.clone())),
            Err(Why::Absent) => {}
            Err(why) => self.record(&here, || Entry::Refused(*why)),
        }
        read
    }

    fn open_and_read(&self, path: &str) -> Result<Vec<u8>, Why> {
        let root = match &self.backing {
            Backing::Folder(root) => root,
            Backing::Recorded(entries) => {
                return match entries.get(path) {
                    Some(Entry::File(bytes)) => Ok(bytes.clone()),
                    Some(Entry::Link(_)) => Err(Why::Refused(libc::ELOOP)),
                    Some(Entry::Folder) => Err(Why::NotAFile),
                    Some(Entry::Refused(why)) => Err(*why),
                    None => Err(Why::Absent),
                };
            }
        };
        // Never wait for a writer of a pipe (it reads as empty), never follow a link out of the
        // root.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(root.join(path));
        read_whole(&mut file.map_err(|e| Why::of(&e))?)
    }

    /// The text of a file without the white space and NUL bytes at its ends.
    pub(crate) fn read(&self, path: &str) -> Result<String, Why> {
        let bytes = self.bytes(path)?;
        Ok(clean(&String::from_utf8_lossy(&bytes)).to_owned())
    }

    /// The text of a file that a complete tree has; its absence is noted.
    pub(crate) fn expected(&self, path: &str) -> Option<String> {
        self.read(path).inspect_err(|why| self.note(path, why.text())).ok()
    }

    /// The text of a file that a tree may well not have; only other failures are noted.
    pub(crate) fn optional(&self, path: &str) -> Option<String> {
        let read = self.read(path);
        if let Err(why) = &read
            && *why != Why::Absent
        {
            self.note(path, why.text());
        }
        read.ok()
    }

    /// Text turned into a value; text that is none is noted.
    pub(crate) fn parsed<T: FromStr>(&self, path: &str, text: &str) -> Option<T> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            let start: String = text.chars().take(60).collect();
            self.note(path, format!("says '{start}', which is not understood"));
        }
        parsed
    }

    /// A value from an optional file.
    pub(crate) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        let text = self.optional(path)?;
        self.parsed(path, &text)
    }

    /// The names in a folder, sorted; a folder that is absent has none.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let listed = self.resolve(path).and_then(|here| self.list_resolved(&here));
        listed.unwrap_or_else(|why| {
            if why != Why::Absent {
                self.note(path, why.text());
            }
            Vec::new()
        })
    }

    fn list_resolved(&self, here: &str) -> Result<Vec<String>, Why> {
        let root = match &self.backing {
            Backing::Folder(root) => root,
            Backing::Recorded(entries) => return Ok(children(entries, here)),
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(root.join(here)).map_err(|e| Why::of(&e))?.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if self.recording.is_some() {
                let path = join(here, &name);
                match entry.file_type() {
                    Ok(kind) if kind.is_symlink() => drop(self.raw_link(&path)),
                    Ok(kind) if kind.is_dir() => self.record_presence(&path, Entry::Folder),
                    _ => self.record_presence(&path, Entry::File(Vec::new())),
                }
            }
            names.push(name);
        }
        names.sort();
        self.record_presence(here, Entry::Folder);
        Ok(names)
    }

    /// True when something is at `path`.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_ok()
    }

    /// The last part of where the link at `path` leads, whether or not that is there.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let here = join(&self.resolve(folder).ok()?, name);
        let target = self.raw_link(&here).ok().flatten()?;
        let name = target.trim_end_matches('/').rsplit('/').next()?.to_owned();
        (!name.is_empty()).then_some(name)
    }
}

/// All bytes of a file, in as few system calls as the thousands of small ones here need: one that
/// reads and one that finds the end.
fn read_whole(file: &mut fs::File) -> Result<Vec<u8>, Why> {
    let mut bytes = vec![0; FIRST_READ_BYTES];
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Why::of(&e)),
        }
        if filled > FILE_BYTES_MAX {
            return Err(Why::TooLong);
        }
        if filled == bytes.len() {
            bytes.resize(filled * 2, 0);
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn children_range<'a>(
    entries: &'a Entries,
    folder: &str,
) -> impl Iterator<Item = &'a str> + use<'a> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let from = prefix.clone();
    entries
        .range(from..)
        .map(|(path, _)| path.as_str())
        .take_while({
            let prefix = prefix.clone();
            move |path| path.starts_with(&prefix)
        })
        .map(move |path| &path[prefix.len()..])
}

fn has_children(entries: &Entries, folder: &str) -> bool {
    children_range(entries, folder).next().is_some()
}

fn children(entries: &Entries, folder: &str) -> Vec<String> {
    let mut names: Vec<String> = children_range(entries, folder)
        .filter_map(|rest| rest.split('/').next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder_with_links() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("sys/devices/pci0000:00/0000:00:01.0")).expect("created");
        fs::create_dir_all(at("sys/class/net")).expect("created");
        fs::write(at("sys/devices/pci0000:00/0000:00:01.0/class"), "0x020000\n\0")
            .expect("written");
        symlink("../../devices/pci0000:00/0000:00:01.0", at("sys/class/net/eth0")).expect("linked");
        symlink("/sys/devices/pci0000:00", at("sys/absolute")).expect("linked");
        symlink("nowhere", at("sys/dangling")).expect("linked");
        symlink("loop", at("sys/loop")).expect("linked");
        symlink("../../../../../../etc/hostname", at("sys/outside")).expect("linked");
        root
    }

    fn check(tree: &Tree) {
        assert_eq!(tree.read("sys/class/net/eth0/class").as_deref(), Ok("0x020000"));
        assert_eq!(tree.read("sys/absolute/0000:00:01.0/class").as_deref(), Ok("0x020000"));
        let device = tree.resolve("sys/class/net/eth0");
        assert_eq!(device.as_deref(), Ok("sys/devices/pci0000:00/0000:00:01.0"));
        assert_eq!(tree.read("sys/dangling"), Err(Why::Dangling));
        assert_eq!(tree.read("sys/loop"), Err(Why::Dangling));
        assert_eq!(tree.read("sys/outside"), Err(Why::Dangling), "a link left the root");
        assert_eq!(tree.read("sys/absent/deep/file"), Err(Why::Absent));
        assert_eq!(tree.read("sys/class/net"), Err(Why::NotAFile));
        assert_eq!(tree.list("sys/class/net"), ["eth0"]);
        assert!(tree.list("absent").is_empty());
    }

    #[test]
    fn links_are_followed_inside_the_root_only() {
        let root = folder_with_links();
        check(&Tree::at(root.path()));
    }

    #[test]
    fn a_recording_reads_like_the_tree_it_was_made_from() {
        let root = folder_with_links();
        let mut tree = Tree::at(root.path()).recording();
        check(&tree);
        check(&Tree::recorded(tree.take_recording()));
    }

    #[test]
    fn an_absent_root_is_a_tree_of_nothing() {
        let tree = Tree::at("/nonexistent/root");
        assert!(tree.list("sys").is_empty());
        assert_eq!(tree.expected("sys/x"), None);
        assert_eq!(tree.unknowns().len(), 1);
    }
}
