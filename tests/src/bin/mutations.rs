//! Breaks the engine on purpose, one breakage at a time, in a copy of the tree, and shows who
//! catches it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Instant;

const USAGE: &str = "usage: mutations [--only NAME] [--pick COMMIT] [--seeds N] [--out FILE]

Run it from the root of the tree. Copies what the simulator needs to target/mutations/tree, applies
each breakage of tests/tests/mutations.list there, and runs N simulated seeds (600 by default), then
the scenes of failures.rs, health.rs and shares.rs and the seeds of regressions.rs, until one fails.
--pick takes three by a commit's hash.";

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
    railring-sim = { workspace = true, features = [\"fault\"] }\nsq-cq.workspace = true\n";

const LIBRARY: &str = "pub mod objects;\npub mod simulate;\npub mod virtual_engine;\n";

#[derive(Debug)]
struct Edit {
    file: String,
    old: Vec<String>,
    new: Vec<String>,
}

#[derive(Debug)]
struct Mutation {
    name: String,
    story: String,
    edits: Vec<Edit>,
}

#[derive(Debug)]
struct Options {
    only: Option<String>,
    pick: Option<String>,
    seeds: u64,
    out: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { only: None, pick: None, seeds: 600, out: None };
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
            "--out" => options.out = Some(value()?.into()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

/// The breakages of the list.
fn read_list(text: &str) -> Vec<Mutation> {
    let mut mutations: Vec<Mutation> = Vec::new();
    for line in text.lines() {
        if let Some((name, story)) = line.strip_prefix("== ").and_then(|head| head.split_once(": "))
        {
            let (name, story) = (name.to_owned(), story.to_owned());
            mutations.push(Mutation { name, story, edits: Vec::new() });
            continue;
        }
        let Some(mutation) = mutations.last_mut() else { continue };
        if let Some(file) = line.strip_prefix("@ ") {
            mutation.edits.push(Edit { file: file.to_owned(), old: vec![], new: vec![] });
        } else if let Some(edit) = mutation.edits.last_mut() {
            if let Some(old) = line.strip_prefix("- ") {
                edit.old.push(old.trim().to_owned());
            } else if let Some(new) = line.strip_prefix("+ ") {
                edit.new.push(new.to_owned());
            }
        }
    }
    mutations
}

/// Replaces the lines of an edit, wherever they stand one after the other.
fn apply(text: &str, edit: &Edit) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let count = edit.old.len();
    let starts: Vec<usize> = (0..=lines.len().saturating_sub(count))
        .filter(|&at| (0..count).all(|line| lines[at + line].trim() == edit.old[line]))
        .collect();
    if starts.is_empty() || count == 0 {
        return Err(format!(
            "{}: {:?} is not there: bring the list up to date",
            edit.file, edit.old
        ));
    }
    let mut broken = String::new();
    let mut at = 0;
    while at < lines.len() {
        if starts.contains(&at) {
            edit.new.iter().for_each(|line| broken.extend([line.as_str(), "\n"]));
            at += count;
        } else {
            broken.extend([lines[at], "\n"]);
            at += 1;
        }
    }
    Ok(broken)
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
    for test in ["failures", "health", "shares", "regressions"] {
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
        fs::write(&path, apply(&text, edit)?).map_err(|e| e.to_string())?;
        whole.push((path, text));
    }
    let caught = catch(tree, seeds);
    for (path, text) in whole.into_iter().rev() {
        fs::write(path, text).map_err(|e| e.to_string())?;
    }
    caught
}

/// Three of them, by a commit's hash.
fn pick(mutations: &mut Vec<Mutation>, commit: &str) {
    let mut hash = commit
        .bytes()
        .fold(7_u64, |hash, byte| hash.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    let mut picked = Vec::new();
    while picked.len() < 3 && !mutations.is_empty() {
        let at = usize::try_from(hash % mutations.len() as u64).unwrap_or(0);
        picked.push(mutations.swap_remove(at));
        hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    }
    *mutations = picked;
}

fn run(options: &Options) -> Result<bool, String> {
    let text = fs::read_to_string("tests/tests/mutations.list")
        .map_err(|e| format!("tests/tests/mutations.list: {e}; run from the root of the tree"))?;
    let mut mutations = read_list(&text);
    if let Some(only) = &options.only {
        mutations.retain(|mutation| mutation.name == *only);
    }
    if let Some(commit) = &options.pick {
        pick(&mut mutations, commit);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let tree = std::path::absolute(Path::new(&target).join("mutations/tree"))
        .map_err(|e| e.to_string())?;
    fs::create_dir_all(&tree).map_err(|e| e.to_string())?;
    make_tree(&tree).map_err(|e| e.to_string())?;
    let mut table = String::from("| breakage | what is broken | caught by |\n|---|---|---|\n");
    let mut missed = 0;
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
    if let Some(out) = &options.out {
        fs::write(out, &table).map_err(|e| e.to_string())?;
    }
    println!("{} breakages, {missed} not caught", mutations.len());
    Ok(missed == 0 && !mutations.is_empty())
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
