//! What cargo says about this workspace: where it is, where it builds, and which crates it has.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::proc::output_of;

/// The workspace as `cargo metadata` describes it, reduced to what the stages need.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    /// The folder of the root manifest.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// Where cargo builds, which CARGO_TARGET_DIR may have moved.
    #[serde(rename = "target_directory")]
    pub target: PathBuf,
    /// The member crates.
    pub packages: Vec<Package>,
}

/// One member crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub name: String,
    /// Its cargo features.
    features: serde_json::Map<String, serde_json::Value>,
    /// Its libraries, binaries, tests and examples.
    pub targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

/// A library, binary, test or example of a crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    /// Its name.
    pub name: String,
    /// `lib`, `bin`, `test`, `example`, ...
    pub kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
}

impl Workspace {
    /// Asks cargo, without touching the network.
    pub(crate) fn load() -> Result<Workspace> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        let text = output_of(
            cargo()
                .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
                .arg(&manifest),
        )?;
        serde_json::from_str(&text).context("cannot read what cargo metadata said")
    }

    /// Crates that have the cargo feature `name`.
    pub(crate) fn with_feature(&self, name: &str) -> Vec<&Package> {
        self.packages.iter().filter(|package| package.features.contains_key(name)).collect()
    }

    /// Whether any crate has the cargo feature `name`.
    pub(crate) fn has_feature(&self, name: &str) -> bool {
        !self.with_feature(name).is_empty()
    }
}

impl Target {
    /// Whether it is one of these: `lib`, `bin`, `test`, `example`, ...
    pub(crate) fn is_kind(&self, kind: &str) -> bool {
        self.kind.iter().any(|one| one == kind)
    }
}

impl Package {
    /// Whether it has a target of this kind.
    pub(crate) fn has_kind(&self, kind: &str) -> bool {
        self.targets.iter().any(|target| target.is_kind(kind))
    }

    /// Names of its integration tests that contain `word`.
    pub(crate) fn tests_named(&self, word: &str) -> Vec<&str> {
        let tests = self.targets.iter().filter(|target| target.is_kind("test"));
        tests.map(|target| &*target.name).filter(|name| name.contains(word)).collect()
    }

    /// Whether its threads are modelled with loom.
    pub(crate) fn uses_loom(&self) -> bool {
        self.dependencies.iter().any(|dependency| dependency.name == "loom")
    }
}

/// The cargo that runs us, without colours, so that its output can be read.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.env("CARGO_TERM_COLOR", "never").env("CARGO_TERM_PROGRESS_WHEN", "never");
    command
}
