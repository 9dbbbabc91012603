//! Breaks the engine on purpose, one breakage at a time, in a copy of the tree, and shows who
//! catches it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

use railring_tests::mutations::{Mutation, pick, read_list};

const USAGE: &str = "\
usage: cargo xtask mutations [--only NAME] [--pick COMMIT] [--seeds N] [--record FILE]

Breaks the engine on purpose, in a copy of the tree: applies each breakage of
tests/tests/mutations.list, and runs N simulated seeds (600 by default), then the scenes of
failures.rs, health.rs, panics.rs and shares.rs and the seeds of regressions.rs, until one fails.
--only takes one by its name, --pick three by a commit's hash; --record writes the result as a page
for docs/results.";

/// How many a commit chooses.
const PICKED: usize = 3;

/// What the simulator is built from.
const PARTS: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "clippy.toml",
    "sq-cq",
    "engine/core",
    "engine/transport",
    "engine/dma",
    "engine/catalog",
    "engine/sim",
    "tests/src/simulate",
    "tests/src/objects.rs",
    "tests/src/virtual_engine.rs",
    "tests/src/bin/simulate.rs",
    "tests/tests/failures.rs",
    "tests/tests/health.rs",
    "tests/tests/panics.rs",
    "tests/tests/regressions.rs",
    "tests/tests/shares.rs",
    "tests/tests/scene",
];

const MEMBERS: &str = "members = [\"sq-cq\", \"engine/core\", \"engine/transport\", \
                       \"engine/dma\", \
                       \"engine/catalog\", \"engine/sim\", \"tests\"]\n";

const MANIFEST: &str = "[package]\nname = \"railring-tests\"\nversion.workspace = true\n\
    edition.workspace = true\n[dependencies]\nfastrand.workspace = true\n\
    railring-catalog.workspace = true\nrailring-core.workspace = true\n\
    railring-dma.workspace = true\nrailring-transport.workspace = true\n\
    railring-sim = { workspace = true, features = [\"fault\"] }\n\
    rustix.workspace = true\nsq-cq.workspace = true\n";

const LIBRARY: &str = "pub mod objects;\npub mod simulate;\npub mod virtual_engine;\n";

#[derive(Debug)]
struct Options {
    only: Option<String>,
    pick: Option<String>,
    seeds: u64,
    record: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { only: None, pick: None, seeds: 600, record: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value\n{USAGE}"));
        match argument.as_str() {
            "--only" => options.only = Some(value()?),
            "--pick" => options.pick = Some(value()?),
            "--seeds" => {
                options.seeds =
                    value()?.parse().map_err(|_| "--seeds wants a number".to_owned())?;
            }
            "--record" => options.record = Some(value()?.into()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if name != "target" {
                copy(&from.join(&name), &to.join(&name))?;
            }
        }
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    // Unchanged files keep their times, so that only what is broken is built again.
    let text = fs::read(from)?;
    if fs::read(to).is_ok_and(|old| old == text) { Ok(()) } else { fs::write(to, text) }
}

fn make_tree(tree: &Path) -> std::io::Result<()> {
    for part in PARTS.iter().filter(|part| Path::new(part).exists()) {
        if !part.starts_with("Cargo.toml") {
            copy(Path::new(part), &tree.join(part))?;
        }
    }
    let root = fs::read_to_string("Cargo.toml")?;
    let start = root.find("members = [").unwrap_or(0);
    let end = start + root[start..].find("]\n").map_or(0, |end| end + 2);
    let root = format!("{}{MEMBERS}{}", &root[..start], &root[end..]);
    let root = root.replace("default-members = [\"tools\"]\n", "");
    write_if_new(&tree.join("Cargo.toml"), &root)?;
    write_if_new(&tree.join("tests/Cargo.toml"), MANIFEST)?;
    write_if_new(&tree.join("tests/src/lib.rs"), LIBRARY)
}

fn write_if_new(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text)
}

fn cargo(tree: &Path, arguments: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tree).env("CARGO_TARGET_DIR", tree.join("../target"));
    command.env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true");
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    command.args(arguments).args(["--release", "--offline", "-p", "railring-tests"]).output()
}

/// The first line of an output that says what is wrong.
fn first_complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = |line: &&str| line.contains("FAILED");
    let line = text.lines().find(failed).unwrap_or("no word of why");
    let line = line.strip_suffix(" ... FAILED").unwrap_or(line);
    line.replace("FAILED: ", "").chars().take(90).collect()
}

/// Who catches what is in the tree, if anyone does.
fn catch(tree: &Path, seeds: u64) -> Result<Option<String>, String> {
    let built = cargo(tree, &["build", "--bin", "simulate"]).map_err(|e| e.to_string())?;
    if !built.status.success() {
        return Err(String::from_utf8_lossy(&built.stderr).into_owned());
    }
    let simulate = tree.join("../target/release/simulate");
    let mut command = Command::new(simulate);
    command.args(["--seeds", &seeds.to_string(), "--stop"]);
    let output = command.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Ok(Some(first_complaint(&output)));
    }
    for test in ["failures", "health", "panics", "shares", "regressions"] {
        let output = cargo(tree, &["test", "--test", test]).map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Ok(Some(first_complaint(&output)));
        }
    }
    Ok(None)
}

/// Breaks, looks who catches it, and mends.
fn try_one(tree: &Path, mutation: &Mutation, seeds: u64) -> Result<Option<String>, String> {
    let mut whole = Vec::new();
    for edit in &mutation.edits {
        let path = tree.join(&edit.file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", edit.file))?;
        fs::write(&path, edit.apply(&text)?).map_err(|e| e.to_string())?;
        whole.push((path, text));
    }
    let caught = catch(tree, seeds);
    for (path, text) in whole.into_iter().rev() {
        fs::write(path, text).map_err(|e| e.to_string())?;
    }
    caught
}

fn run(options: &Options) -> Result<bool, String> {
    let text = fs::read_to_string("tests/tests/mutations.list")
        .map_err(|e| format!("tests/tests/mutations.list: {e}; run from the root of the tree"))?;
    let mut mutations = read_list(&text);
    if let Some(only) = &options.only {
        mutations.retain(|mutation| mutation.name == *only);
    }
    if let Some(commit) = &options.pick {
        mutations = pick(mutations, commit, PICKED);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let tree = std::path::absolute(Path::new(&target).join("mutations/tree"))
        .map_err(|e| e.to_string())?;
    fs::create_dir_all(&tree).map_err(|e| e.to_string())?;
    make_tree(&tree).map_err(|e| e.to_string())?;
    let mut table = String::from("| breakage | what is broken | caught by |\n|---|---|---|\n");
    let mut missed = 0;
    let begun = Instant::now();
    for mutation in &mutations {
        let start = Instant::now();
        let verdict = match try_one(&tree, mutation, options.seeds) {
            Ok(Some(by)) => by,
            Ok(None) => {
                missed += 1;
                "NOBODY".to_owned()
            }
            Err(error) => {
                missed += 1;
                format!("INVALID: {}", error.chars().take(300).collect::<String>())
            }
        };
        println!("{}: {verdict} ({:.0} s)", mutation.name, start.elapsed().as_secs_f64());
        let _ = writeln!(table, "| {} | {} | {verdict} |", mutation.name, mutation.story);
    }
    if let Some(record) = &options.record {
        let page = page(&table, options.seeds, mutations.len(), missed, begun.elapsed());
        fs::write(record, page).map_err(|e| format!("{}: {e}", record.display()))?;
    }
    println!("{} breakages, {missed} not caught", mutations.len());
    Ok(missed == 0 && !mutations.is_empty())
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The result as a page.
fn page(table: &str, seeds: u64, count: usize, missed: usize, time: Duration) -> String {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or("unknown".to_owned());
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "# Breakages, and who catches them\n\nCommand: `cargo xtask mutations {}`, commit \
         {commit}, {cores} cores, {:.0} min.\n\nEach breakage of `tests/tests/mutations.list` is \
         applied to a copy of the tree; {seeds} simulated\nseeds run, then the scenes of \
         `failures.rs`, `health.rs`,\n`panics.rs` and `shares.rs` and the seeds of \
         `regressions.rs`, until one fails. The \
         first complaint is cut at 90 characters. `cargo xtask test` tries three of them,\nchosen \
         by the commit.\n\n{count} breakages, {missed} not caught.\n\n{table}",
        arguments.join(" "),
        time.as_secs_f64() / 60.0
    )
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}
