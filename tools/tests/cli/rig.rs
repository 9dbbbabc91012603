//! What the tests share: running the command, stores in temporary directories, files of noise.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// What a run of the command gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Run {
    pub(crate) fn of(output: Output) -> Run {
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!err.contains("panicked"), "a panic: {err}");
        let status = output.status.code().unwrap_or_else(|| panic!("killed: {}", output.status));
        Run { status, out: output.stdout, err }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// The lines of standard output as JSON.
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        let parse =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.text().lines().map(parse).collect()
    }

    /// It succeeded.
    #[track_caller]
    pub(crate) fn good(self) -> Run {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// It failed with this status, and standard error says all of `words`.
    #[track_caller]
    pub(crate) fn bad(self, status: i32, words: &[&str]) -> Run {
        assert_eq!(self.status, status, "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "no '{word}' in: {}", self.err);
        }
        self
    }
}

pub(crate) fn command<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_railring"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn railring<A: AsRef<OsStr>>(arguments: &[A]) -> Run {
    Run::of(command(arguments).output().expect("the command can be run"))
}

/// Some directories for a store, and room for other files.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) disks: Vec<PathBuf>,
}

impl Place {
    pub(crate) fn new(disks: usize) -> Place {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let disks = (0..disks).map(|index| dir.path().join(format!("disk{index}"))).collect();
        Place { dir, disks }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file of `bytes` bytes of noise.
    pub(crate) fn file(&self, name: &str, bytes: usize, seed: u64) -> PathBuf {
        let mut content = vec![0; bytes];
        fastrand::Rng::with_seed(seed).fill(&mut content);
        let path = self.path(name);
        fs::write(&path, content).expect("the file can be written");
        path
    }

    /// What follows `--store`.
    pub(crate) fn store(&self) -> String {
        join(&self.disks)
    }

    /// The command with the store's directories.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Run {
        Run::of(self.command(arguments).output().expect("the command can be run"))
    }

    pub(crate) fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = command(arguments);
        command.arg("--store").arg(self.store()).current_dir(self.dir.path());
        command
    }

    /// Puts a file of noise as `key`.
    pub(crate) fn put(&self, key: &str, bytes: usize, more: &[&str]) -> PathBuf {
        let file = self.file(&key.replace('/', "-"), bytes, bytes as u64);
        let mut arguments = vec!["put", file.to_str().expect("UTF-8"), "--key", key];
        arguments.extend(more);
        self.run(&arguments).good();
        file
    }

    /// All files of the store whose names end in `ending`.
    pub(crate) fn files(&self, ending: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for disk in &self.disks {
            walk(disk, &mut found);
        }
        found.retain(|path| path.to_string_lossy().ends_with(ending));
        found.sort();
        found
    }

    /// Files in the `tmp` directories: what unfinished work has left.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for disk in &self.disks {
            walk(&disk.join("tmp"), &mut found);
        }
        found
    }
}

pub(crate) fn join(disks: &[PathBuf]) -> String {
    let names: Vec<&str> = disks.iter().map(|disk| disk.to_str().expect("UTF-8")).collect();
    names.join(",")
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { walk(&path, found) } else { found.push(path) }
    }
}

/// A seed, printed, so that a failure can be run again; `RAILRING_SEED` sets it.
pub(crate) fn seed(test: &str) -> u64 {
    let given = std::env::var("RAILRING_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: RAILRING_SEED={seed}");
    seed
}

pub(crate) fn flip(path: &Path, bit: u64) {
    let mut bytes = fs::read(path).expect("readable");
    bytes[usize::try_from(bit / 8).expect("small")] ^= 1 << (bit % 8);
    fs::write(path, bytes).expect("writable");
}
