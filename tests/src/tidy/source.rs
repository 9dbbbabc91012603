//! The workspace's own text files, found by walking its folders.

use std::path::{Path, PathBuf};

use super::rust::mask;

/// Folders that hold no sources of ours.
const SKIPPED_FOLDERS: &[&str] = &["target", "node_modules", "proptest-regressions", "corpus"];
/// Hidden folders that do.
const HIDDEN_FOLDERS: &[&str] = &[".cargo", ".ci", ".github"];
/// Files with these endings, or none, are read; anything else may be binary.
const TEXT_ENDINGS: &[&str] = &[
    "c", "h", "json", "jsonl", "md", "proto", "py", "pyi", "rs", "sh", "stderr", "toml", "txt",
    "yml",
];

/// A text file of the workspace.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path below the workspace root, with `/` between the parts.
    pub path: String,
    /// What it says.
    pub text: String,
    /// The same for Rust, with comments and literals blanked; empty otherwise.
    pub masked: String,
}

impl Source {
    /// A file with this path and text; how tests make samples, too.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Source {
        let masked = if path.ends_with(".rs") { mask(text) } else { String::new() };
        Source { path: path.to_owned(), text: text.to_owned(), masked }
    }

    /// Whether it is Rust.
    #[must_use]
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the whole file is test code: below a `tests` folder, or named for tests.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let stem = self.path.rsplit('/').next().unwrap_or("").trim_end_matches(".rs");
        self.path.split('/').any(|part| part == "tests")
            || ["test", "tests"].contains(&stem)
            || stem.ends_with("_test")
            || stem.ends_with("_tests")
    }
}

/// The folder of the root manifest.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or_else(|| here.to_owned(), Path::to_owned)
}

/// Every text file of the workspace, in order of path.
///
/// # Errors
/// The first folder or file that cannot be read.
pub fn sources() -> std::io::Result<Vec<Source>> {
    let root = workspace_root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if kind.is_dir() && is_ours(&name) {
                folders.push(entry.path());
            } else if kind.is_file() && is_text(&name) {
                found.push(read(&root, &entry.path())?);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn is_ours(folder: &str) -> bool {
    if folder.starts_with('.') {
        return HIDDEN_FOLDERS.contains(&folder);
    }
    !SKIPPED_FOLDERS.contains(&folder)
}

fn is_text(name: &str) -> bool {
    match name.rsplit_once('.') {
        Some(("", _)) => false,
        Some((_, ending)) => TEXT_ENDINGS.contains(&ending),
        None => true,
    }
}

fn read(root: &Path, path: &Path) -> std::io::Result<Source> {
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    let below = path.strip_prefix(root).unwrap_or(path);
    Ok(Source::new(&below.to_string_lossy(), &text))
}
