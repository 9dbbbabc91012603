//! The source itself is tested: heads, lengths, names, where `unsafe` may be, metadata, results.
//!
//! Each rule is first shown a bad sample and a good one, so that it can fail. What a rule must let
//! pass is listed here with its reason; an entry that is no longer needed fails, too, and a long
//! file or function may shrink but not grow.

use railring_tests::tidy::rules::{self, Finding};
use railring_tests::tidy::rust::functions;
use railring_tests::tidy::source::{Source, sources};

/// A file or function that may be longer than the limit, up to `most` lines.
struct Longer {
    path: &'static str,
    most: usize,
    reason: &'static str,
}

const LONGER_FILES: &[Longer] = &[];
const LONGER_FUNCTIONS: &[Longer] = &[];

/// Where `unsafe` may be (a file, or a folder ending in `/`), and why.
const UNSAFE: &[(&str, &str)] = &[
    ("sq-cq/src/ring.rs", "slots that two threads share"),
    ("engine/dma/", "mapped memory, and parts of it as slices"),
    ("engine/uring/", "entries that point at memory go to the kernel"),
    ("engine/verbs/src/ffi/", "the verbs library is C"),
    ("engine/capi/", "foreign pointers"),
    ("engine/python/src/buffer.rs", "Python's buffer protocol"),
    ("tests/src/simulate/foreign.rs", "memory that an engine is told of is its caller's promise"),
    ("tests/tests/allocation.rs", "a global allocator is an unsafe trait"),
    ("topology/src/pin.rs", "affinity and memory policy are system calls"),
    ("tools/src/heap.rs", "an allocator that counts"),
    ("tools/src/bench/nop.rs", "entries for the kernel, of the peer of `bench ring`"),
];

fn files() -> Vec<Source> {
    let files = sources().expect("the workspace can be read");
    assert!(files.len() > 50, "only {} files: the walk is broken", files.len());
    files
}

fn check(rule: impl Fn(&Source) -> Vec<Finding>) {
    none(&files().iter().flat_map(rule).collect::<Vec<_>>());
}

fn none(findings: &[Finding]) {
    let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "not tidy:\n  {}", lines.join("\n  "));
}

/// The rule must find something in `bad` and nothing in `good`, both as files at `path`.
fn sample(rule: impl Fn(&Source) -> Vec<Finding>, path: &str, bad: &str, good: &str) {
    assert_ne!(rule(&Source::new(path, bad)), [], "the bad sample passed: {bad}");
    assert_eq!(rule(&Source::new(path, good)), [], "the good sample failed: {good}");
}

/// Findings above their listed size, and listings that are too generous by now.
fn ratchet(findings: Vec<Finding>, listed: &[Longer]) -> Vec<Finding> {
    let mut left = findings;
    let mut stale = Vec::new();
    for longer in listed {
        assert!(longer.reason.len() > 10, "{}: give a reason", longer.path);
        let largest = left.iter().filter(|f| f.path == longer.path).map(|f| f.size).max();
        if largest.unwrap_or(0) < longer.most {
            let message = format!("listed with {}, now {largest:?}", longer.most);
            let path = longer.path.to_owned();
            stale.push(Finding { path, line: 0, size: 0, message });
        }
        left.retain(|f| f.path != longer.path || f.size > longer.most);
    }
    left.extend(stale);
    left
}

#[test]
fn line_1_says_what_the_file_owns() {
    sample(rules::heads, "a.rs", "use std::fmt;\n", "//! The ring's cursors.\nuse std::fmt;\n");
    sample(rules::heads, "a.rs", "//!\n", "//! The ring's cursors.\n");
    check(rules::heads);
}

#[test]
fn files_are_short() {
    let long = "\n".repeat(rules::FILE_LINES_MAX + 1);
    sample(rules::file_lengths, "a.rs", &long, &long[1..]);
    let found = files().iter().flat_map(rules::file_lengths).collect();
    none(&ratchet(found, LONGER_FILES));
}

#[test]
fn functions_are_short() {
    let long = |lines: usize| format!("fn a() {{{}}}\n", "\n".repeat(lines - 1));
    let most = rules::FUNCTION_LINES_MAX;
    sample(rules::function_lengths, "a.rs", &long(most + 1), &long(most));
    let found = files().iter().flat_map(rules::function_lengths).collect();
    none(&ratchet(found, LONGER_FUNCTIONS));
}

#[test]
fn nine_of_ten_functions_are_very_short() {
    let files = files();
    let shipped = files.iter().filter(|file| !file.is_test());
    let mut lines: Vec<_> =
        shipped.flat_map(|file| functions(&file.masked)).map(|function| function.lines).collect();
    lines.sort_unstable();
    let p90 = lines[lines.len() * 9 / 10];
    assert!(p90 <= 30, "the 90th percentile of function lengths is {p90} lines, at most 30");
}

#[test]
fn a_listed_length_may_shrink_but_not_grow() {
    let finding = |size| {
        let (path, message) = ("a.rs".to_owned(), String::new());
        vec![Finding { path, line: 1, size, message }]
    };
    let listed = [Longer { path: "a.rs", most: 80, reason: "a table of all codes" }];
    assert_eq!(ratchet(finding(80), &listed), []);
    assert_ne!(ratchet(finding(81), &listed), [], "it grew");
    assert_ne!(ratchet(finding(79), &listed), [], "the list must follow");
    assert_ne!(ratchet(Vec::new(), &listed), [], "the entry is no longer needed");
}

#[test]
fn lines_fit_beside_each_other() {
    let (wide, fits) = ("x".repeat(101), "ü".repeat(100));
    sample(rules::columns, "a.rs", &wide, &fits);
    sample(rules::columns, ".ci/run", &wide, &format!("# https://{wide}"));
    check(rules::columns);
}

#[test]
fn one_word_for_one_thing() {
    let rule = rules::synonyms;
    sample(rule, "engine/core/src/a.rs", "let chunk = 1;", "for block in b.chunks_exact(8) {}");
    sample(rule, "sq-cq/src/a.rs", "struct ShardId(u8);", "struct Airplane; // a chunk\n");
    sample(rule, "engine/core/src/a.rs", "fn lanes_max() {}", "let planes = mpsc::channel();");
    check(rule);
}

#[test]
fn no_unwrap_outside_tests() {
    let rule = rules::unwraps;
    let good = "fn a() { b.unwrap_or(1) }\n#[cfg(test)] mod tests { fn c() { d.unwrap() } }";
    sample(rule, "engine/src/a.rs", "fn a() { b.unwrap(); }", good);
    sample(rule, "engine/src/a.rs", "#[cfg(not(test))] fn a() { b.unwrap(); }", "// b.unwrap()\n");
    assert_eq!(rule(&Source::new("engine/tests/a.rs", "fn a() { b.unwrap(); }")), []);
    check(rule);
}

#[test]
fn unsafe_stays_where_it_belongs() {
    let allowed: Vec<_> = UNSAFE.iter().map(|(path, _)| *path).collect();
    let rule = |source: &Source| rules::unsafes(source, &allowed);
    let (bad, good) = ("fn a() { unsafe { b() } }", "#![forbid(unsafe_code)]\n// unsafe\n");
    sample(rule, "engine/core/src/a.rs", bad, good);
    sample(rule, "engine/src/dma/a.rs", bad, good);
    assert_eq!(rule(&Source::new("engine/dma/src/a.rs", bad)), []);
    check(rule);
}

#[test]
fn crates_without_unsafe_forbid_it() {
    for krate in ["engine/core", "engine/transport", "engine/catalog", "engine/store"] {
        let path = format!("{krate}/src/lib.rs");
        let files = files();
        let lib = files.iter().find(|file| file.path == path).expect("the crate has a library");
        assert!(lib.masked.contains("#![forbid(unsafe_code)]"), "{path} must forbid unsafe code");
    }
}

#[test]
fn no_path_of_one_machine() {
    let bad = ["\"/wo", "rk/main\""].concat();
    sample(rules::machine_paths, "docs/a.md", &bad, "a/work/b /rooted $cache/root/b");
    let bad = ["HOME=/ro", "ot"].concat();
    sample(rules::machine_paths, "a.sh", &bad, "/newroot/home");
    check(rules::machine_paths);
}

#[test]
fn nothing_outside_the_clone_is_named() {
    let bad = ["see ../sha", "red/x"].concat();
    sample(rules::outside_paths, "README.md", &bad, "see shared/x");
    check(rules::outside_paths);
}

#[test]
fn unfinished_work_is_an_issue() {
    let bad = ["// TO", "DO: later"].concat();
    sample(rules::marks, "a.rs", &bad, "// todo!() and mktemp XXXXXX\n");
    check(rules::marks);
}

#[test]
fn crates_take_everything_from_the_workspace() {
    let good = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n\
                rust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\
                [lints]\nworkspace = true\n[dependencies]\nb.workspace = true\n";
    let rule = rules::manifests;
    for (from, to) in [
        ("b.workspace = true", "b = \"1\""),
        ("b.workspace = true", "b = { path = \"../b\" }"),
        ("license.workspace = true", "license = \"MIT\""),
        ("[lints]\nworkspace = true\n", ""),
    ] {
        sample(rule, "a/Cargo.toml", &good.replace(from, to), good);
    }
    check(rule);
}

#[test]
fn the_licence_is_said_and_there() {
    let text = "[workspace.package]\nlicense = \"MIT OR Apache-2.0\"\n";
    let all = |licence: &str| {
        let root = Source::new("Cargo.toml", &text.replace("MIT OR Apache-2.0", licence));
        vec![Source::new("LICENSE-MIT", "x"), Source::new("LICENSE-APACHE", "x"), root]
    };
    assert_eq!(rules::licences(&all("MIT OR Apache-2.0")), []);
    assert_ne!(rules::licences(&all("GPL-2.0")), []);
    assert_ne!(rules::licences(&all("MIT OR Apache-2.0")[1..]), []);
    none(&rules::licences(&files()));
}

#[test]
fn a_result_names_its_command() {
    let rule = rules::results;
    sample(rule, "docs/results/a.md", "12 GB/s\n", "Command: `railring bench file`\n\n12 GB/s\n");
    sample(rule, "docs/results/a.json", "{\"command\": \"\"}", "{\"command\": \"cargo xtask\"}");
    check(rule);
}
