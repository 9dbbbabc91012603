//! The rules of tidiness for one file each: what a reviewer would otherwise have to say every time.

use std::fmt;

use super::manifest::Manifest;
use super::rust::{functions, line_of, test_ranges, words};
use super::source::Source;

/// Longest file, in lines, tests and tables included.
pub const FILE_LINES_MAX: usize = 600;
/// Longest function, in lines from its `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Longest line, in characters; a URL may be longer.
pub const COLUMNS_MAX: usize = 100;

/// Words that would be second names for a stripe, a piece, a rail or a part.
const SYNONYMS: &[&str] = &["chunk", "shard", "lane", "channel", "domain"];
/// Names of the standard library that contain them; using those is no synonym of ours.
const STANDARD_NAMES: &[&str] = &[
    "array_chunks",
    "as_chunks",
    "as_chunks_mut",
    "channel",
    "chunk_by",
    "chunks",
    "chunks_exact",
    "chunks_exact_mut",
    "chunks_mut",
    "first_chunk",
    "first_chunk_mut",
    "last_chunk",
    "last_chunk_mut",
    "rchunks",
    "split_first_chunk",
    "split_first_chunk_mut",
    "split_last_chunk",
    "split_last_chunk_mut",
    "sync_channel",
];

/// Something that is not tidy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// How much of it, for rules with a limit; 0 for others.
    pub size: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

fn finding(source: &Source, line: usize, message: impl Into<String>) -> Finding {
    Finding { path: source.path.clone(), line, size: 0, message: message.into() }
}

/// Line 1 of a Rust file says what the file owns.
#[must_use]
pub fn heads(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().next().unwrap_or("");
    let says = first.strip_prefix("//! ").map_or("", str::trim);
    if source.is_rust() && (says.len() < 15 || says.starts_with(concat!("Place", "holder"))) {
        return vec![finding(source, 1, "line 1 must be `//!` and what the file owns")];
    }
    Vec::new()
}

/// Files short enough to read in one sitting.
#[must_use]
pub fn file_lengths(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    if !source.is_rust() || lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    let message = format!("{lines} lines, at most {FILE_LINES_MAX}: make it a folder");
    vec![Finding { size: lines, ..finding(source, lines, message) }]
}

/// Functions that fit on a screen.
#[must_use]
pub fn function_lengths(source: &Source) -> Vec<Finding> {
    let long = functions(&source.masked).into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX);
    long.map(|function| {
        let (name, lines) = (function.name, function.lines);
        let message = format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}");
        Finding { size: lines, ..finding(source, function.line, message) }
    })
    .collect()
}

/// Lines that fit beside another file.
#[must_use]
pub fn columns(source: &Source) -> Vec<Finding> {
    let code = ["rs", "sh", "py", "c", "h"];
    let name = source.path.rsplit('/').next().unwrap_or("");
    let ending = name.rsplit_once('.').map_or("sh", |(_, ending)| ending);
    if !code.contains(&ending) || name.starts_with("LICENSE") {
        return Vec::new();
    }
    let lines = source.text.lines().enumerate();
    lines
        .filter(|(_, line)| line.chars().count() > COLUMNS_MAX && !line.contains("://"))
        .map(|(index, line)| {
            let columns = line.chars().count();
            let message = format!("{columns} columns, at most {COLUMNS_MAX}");
            Finding { size: columns, ..finding(source, index + 1, message) }
        })
        .collect()
}

/// One word for one thing: no identifier of the engine uses a second name of the glossary's things.
#[must_use]
pub fn synonyms(source: &Source) -> Vec<Finding> {
    let engine = source.path.starts_with("engine/") || source.path.starts_with("sq-cq/");
    // Verbs has protection domains and completion channels of its own.
    if !engine || source.path.starts_with("engine/verbs/") {
        return Vec::new();
    }
    let found = words(&source.masked).filter(|(_, word)| !STANDARD_NAMES.contains(word));
    let found = found.filter_map(|(at, word)| Some((at, word, synonym_in(word)?)));
    found
        .map(|(at, word, synonym)| {
            let message = format!("`{word}`: say stripe, piece, rail or part, not {synonym}");
            finding(source, line_of(&source.masked, at), message)
        })
        .collect()
}

/// The synonym among the parts of an identifier, `snake_case` or `CamelCase`.
fn synonym_in(word: &str) -> Option<&'static str> {
    let mut snake = String::new();
    for character in word.chars() {
        if character.is_uppercase() {
            snake.push('_');
        }
        snake.extend(character.to_lowercase());
    }
    let mut parts = snake.split('_').map(|part| part.strip_suffix('s').unwrap_or(part));
    parts.find_map(|part| SYNONYMS.iter().find(|synonym| **synonym == part).copied())
}

/// No `unwrap()` outside tests: `expect` says why it cannot fail, an error says what did.
#[must_use]
pub fn unwraps(source: &Source) -> Vec<Finding> {
    if source.is_test() {
        return Vec::new();
    }
    let tests = test_ranges(&source.masked);
    let found = words(&source.masked).filter(|(at, word)| {
        let call = source.masked[at + word.len()..].starts_with("()");
        *word == "unwrap" && call && !tests.iter().any(|range| range.contains(at))
    });
    let line = |at| line_of(&source.masked, at);
    found.map(|(at, _)| finding(source, line(at), "unwrap() outside tests")).collect()
}

/// `unsafe` only where `allowed` says so (a file, or a folder ending in `/`).
#[must_use]
pub fn unsafes(source: &Source, allowed: &[&str]) -> Vec<Finding> {
    let fits = |path: &&&str| {
        if path.ends_with('/') { source.path.starts_with(**path) } else { source.path == **path }
    };
    if allowed.iter().find(fits).is_some() {
        return Vec::new();
    }
    let found = words(&source.masked).filter(|(_, word)| *word == "unsafe");
    let line = |at| line_of(&source.masked, at);
    found.map(|(at, _)| finding(source, line(at), "`unsafe` in a file that may not")).collect()
}

/// No path of one person's machine.
#[must_use]
pub fn machine_paths(source: &Source) -> Vec<Finding> {
    // In two pieces each, so that this file does not find itself.
    let paths = [concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/ho", "me")];
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for path in paths {
            let hit = line.match_indices(path).any(|(at, _)| is_absolute(line, at, path.len()));
            if hit {
                found.push(finding(source, index + 1, format!("{path}: a path of one machine")));
            }
        }
    }
    found
}

/// Whether the `length` bytes at `at` start an absolute path that leads into such a folder.
fn is_absolute(line: &str, at: usize, length: usize) -> bool {
    let inside = |character: char| character.is_alphanumeric() || "_-.}~*/".contains(character);
    let before = line[..at].chars().next_back();
    let after = line[at + length..].chars().next();
    // The last folder of a path may well be called so; a home folder's own name follows it.
    let ends = match after {
        Some('/') => true,
        None | Some('"' | '\'' | '`') => line[at..].starts_with(concat!("/ro", "ot")),
        Some(_) => false,
    };
    !before.is_some_and(inside) && ends
}

/// What lies outside of the clone is named by `.ci/run` only.
#[must_use]
pub fn outside_paths(source: &Source) -> Vec<Finding> {
    if source.path == ".ci/run" {
        return Vec::new();
    }
    let lines = source.text.lines().enumerate();
    let found = lines.filter(|(_, line)| line.contains(concat!("../sha", "red")));
    found.map(|(index, _)| finding(source, index + 1, "names a folder outside the clone")).collect()
}

/// Unfinished work is an issue, not a remark in the source.
#[must_use]
pub fn marks(source: &Source) -> Vec<Finding> {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for (_, word) in words(line).filter(|(_, word)| marks.contains(word)) {
            found.push(finding(source, index + 1, format!("{word}: open an issue instead")));
        }
    }
    found
}

/// A crate takes its metadata, lints and every version from the workspace.
#[must_use]
pub fn manifests(source: &Source) -> Vec<Finding> {
    if !source.path.ends_with("/Cargo.toml") {
        return Vec::new();
    }
    let manifest = Manifest::parse(source);
    let mut found = Vec::new();
    for key in ["version", "edition", "rust-version", "license", "publish"] {
        if manifest.value("package", &format!("{key}.workspace")) != Some("true") {
            found.push(finding(source, 1, format!("package.{key}.workspace must be true")));
        }
    }
    if manifest.value("lints", "workspace") != Some("true") {
        found.push(finding(source, 1, "lints.workspace must be true"));
    }
    let own = manifest.dependencies.iter().filter(|dependency| !dependency.is_from_table());
    found.extend(own.map(|dependency| {
        let message = format!("{} must be `workspace = true`", dependency.name);
        finding(source, dependency.line, message)
    }));
    found
}

/// The workspace says the licence, and both texts are there.
#[must_use]
pub fn licences(sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "Cargo.toml"] {
        let Some(source) = sources.iter().find(|source| source.path == name) else {
            let missing = Source::new(name, "");
            found.push(finding(&missing, 1, "is missing"));
            continue;
        };
        let licence = Manifest::parse(source)
            .value("workspace.package", "license")
            .is_some_and(|value| value == "\"MIT OR Apache-2.0\"");
        if name == "Cargo.toml" && !licence {
            found.push(finding(source, 1, "license must be \"MIT OR Apache-2.0\""));
        }
    }
    found
}

/// A result names the command that made it.
#[must_use]
pub fn results(source: &Source) -> Vec<Finding> {
    let named = source.text.lines().any(|line| {
        let line = line.to_lowercase().replace(['"', '*', '`'], "");
        let value = line.split_once("command:").or_else(|| line.split_once("command line:"));
        value.is_some_and(|(_, value)| value.trim().len() > 3)
    });
    if source.path.starts_with("docs/results/") && !named {
        return vec![finding(source, 1, "a result must name its command (`command: …`)")];
    }
    Vec::new()
}
