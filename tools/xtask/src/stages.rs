//! The test command: its stages in order, each timed, each counting what passed, failed and was
//! skipped.

mod guest_tests;

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guest::is_possible_here;
use crate::packages::{self, Install};
use crate::proc::{output_of, run_lines, stop_signal};
use crate::report::{Row, report};
use crate::tally::{Required, Tally};
use crate::workspace::{Package, Workspace, cargo};
use crate::{callgrind, readme};

/// No single command of a stage needs longer on two slow cores; one that does hangs.
const COMMAND_LIMIT: Duration = Duration::from_secs(25 * 60);
/// Lines that are shown of a command that failed otherwise than by failed tests, which the report
/// names; all lines are in the stage's log.
const SHOWN_LINES: usize = 300;

/// A part of the test command.
#[derive(Debug)]
pub(crate) struct Stage {
    /// What `--stage` calls it.
    pub name: &'static str,
    /// What it checks.
    pub about: &'static str,
    run: fn(&mut Run<'_>) -> Result<()>,
}

/// All stages, in the order they run: the quick ones that fail often come first.
pub(crate) const STAGES: &[Stage] = &[
    Stage { name: "packages", about: "install what the tests need (packages.txt)", run: packages },
    Stage { name: "fmt", about: "sources are formatted", run: fmt },
    Stage { name: "clippy", about: "no lint, default features, all targets", run: clippy },
    Stage { name: "features", about: "lints and tests of optional features", run: features },
    Stage { name: "test", about: "all tests, release profile", run: test },
    Stage { name: "doc", about: "the examples in the documentation", run: doc },
    Stage { name: "loom", about: "thread interleavings, in crates that use loom", run: loom },
    Stage { name: "alone", about: "every crate builds without the others", run: alone },
    Stage { name: "readme", about: "the commands README.md shows", run: readme },
    Stage { name: "mutations", about: "three breakages of the engine are caught", run: mutations },
    Stage { name: "callgrind", about: "instruction counts against the record", run: callgrind },
    Stage {
        name: GUEST,
        about: "tests over software RDMA, all in one guest",
        run: guest_tests::run,
    },
];

/// The stage that boots a guest.
const GUEST: &str = "guest";

/// Its tests span crates: without optional features they run in the stage `test`, with RDMA in the
/// guest.
const SPANNING: &str = "railring-tests";

/// Optional cargo features, with the pkg-config names of the libraries they link.
const FEATURES: &[(&str, &[&str])] = &[
    ("hwloc", &["hwloc"]),
    ("verbs", &["libibverbs", "librdmacm"]),
    ("full", &["hwloc", "libibverbs", "librdmacm"]),
];

/// How the test command was asked to run.
#[derive(Debug)]
pub(crate) struct Options {
    /// Only these stages; all if empty.
    pub only: Vec<String>,
    /// Whether packages may be installed.
    pub install: Install,
    /// Whether every line of every command is shown.
    pub output: Output,
}

/// How much of the commands' output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Totals and skips, and of what failed what it said.
    Brief,
    /// Every line.
    Full,
}

/// A stage while it runs.
struct Run<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    log: File,
    tally: Tally,
}

/// Runs the stages, prints the report; an error if anything failed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if let Some(name) = options.only.iter().find(|name| STAGES.iter().all(|s| s.name != **name)) {
        bail!("no stage is called {name}; cargo xtask test --list names them");
    }
    let required = Required::parse(&std::env::var("RAILRING_REQUIRE").unwrap_or_default());
    let logs = workspace.target.join("xtask");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let mut rows = Vec::new();
    for stage in STAGES {
        if !options.runs(stage.name) {
            continue;
        }
        println!("== {}: {}", stage.name, stage.about);
        let path = logs.join(format!("{}.log", stage.name));
        let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let start = Instant::now();
        let mut run = Run { workspace, options, log, tally: Tally::default() };
        if let Err(error) = (stage.run)(&mut run) {
            println!("{error:#}");
            run.tally.fail(stage.name, &[format!("{error:#}")]);
        }
        let row = Row { name: stage.name, time: start.elapsed(), tally: run.tally };
        println!("== {}: {:.1} s", stage.name, row.time.as_secs_f64());
        rows.push(row);
        if let Some(signal) = stop_signal() {
            bail!("stopped by signal {signal}");
        }
    }
    let (text, failed) = report(&rows, &required);
    print!("{text}");
    if failed > 0 {
        bail!("see the logs in {}", logs.display());
    }
    Ok(())
}

impl Run<'_> {
    /// Runs a command in the workspace, keeps its output in the log and reads its counts.
    /// Returns whether it ended well.
    fn command(&mut self, command: &mut Command) -> Result<bool> {
        let shown = shown_command(command);
        println!("   {shown}");
        writeln!(self.log, "$ {shown}").context("cannot write the stage's log")?;
        let mut lines = Vec::new();
        let before = self.tally.failed;
        let (log, tally, output) = (&mut self.log, &mut self.tally, self.options.output);
        let ended = run_lines(command.current_dir(&self.workspace.root), COMMAND_LIMIT, |line| {
            // A log that cannot be written is a full disk, which the build itself reports.
            let _ = writeln!(log, "{line}");
            tally.read_line(line);
            if output == Output::Full || is_brief(line) {
                println!("     {line}");
            }
            lines.push(line.to_owned());
        })?;
        if ended.timed_out {
            println!("   ended after {} s: {shown}", COMMAND_LIMIT.as_secs());
        }
        if !ended.success() && self.tally.failed == before {
            // It did not come as far as a failed test: it did not build, say.
            for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                println!("   | {line}");
            }
            self.tally.fail(&shown, &lines);
        }
        Ok(ended.success())
    }

    /// A command that is one check by itself.
    fn check(&mut self, command: &mut Command) -> Result<()> {
        if self.command(command)? {
            self.tally.pass();
        }
        Ok(())
    }
}

fn shown_command(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().map(|name| name.to_string_lossy().into_owned());
    program.into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

fn is_brief(line: &str) -> bool {
    let line = line.trim_start();
    ["SKIP ", "Running ", "Doc-tests ", "test result: FAILED", "error"]
        .iter()
        .any(|start| line.starts_with(start))
}

impl Options {
    /// Whether the stage of this name is to run.
    fn runs(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn packages(run: &mut Run<'_>) -> Result<()> {
    let mut wanted = packages::for_tests(run.workspace)?;
    if run.options.runs(GUEST) && guest_tests::are_there(run.workspace) && is_possible_here() {
        wanted.extend(packages::for_guest_tests()?);
    }
    let missing = packages::provide(wanted, run.options.install)?;
    for wanted in &missing {
        println!("   missing: {} ({})", wanted.name, wanted.reason);
        run.tally.skip_check(&format!("package {}", wanted.name), "missing and not installed");
    }
    run.tally.pass();
    Ok(())
}

fn fmt(run: &mut Run<'_>) -> Result<()> {
    run.check(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy(run: &mut Run<'_>) -> Result<()> {
    // The release profile, so that macros and build scripts are built once for this and the tests.
    let arguments = ["clippy", "--workspace", "--all-targets", "--release", "--", "-D", "warnings"];
    run.check(cargo().args(arguments))
}

/// The first library that `feature` links and this machine lacks.
fn missing_library(feature: &str) -> Option<&'static str> {
    let (_, libraries) = FEATURES.iter().find(|(name, _)| *name == feature)?;
    let lacks = |library: &&&str| {
        output_of(Command::new("pkg-config").args(["--exists", library])).is_err()
    };
    libraries.iter().find(lacks).copied()
}

/// The tests of a feature that need no device, of the crates that have it.
fn feature_tests(feature: &str, crates: &[&Package]) -> Option<Command> {
    let crates: Vec<_> = crates.iter().filter(|package| package.name != SPANNING).collect();
    if crates.is_empty() {
        return None;
    }
    let mut test = cargo();
    test.args(["test", "--release", "--no-fail-fast", "--features", feature]);
    test.args(["--lib", "--bins", "--examples"]);
    for package in crates {
        test.args(["-p", &package.name]);
        for target in &package.targets {
            if target.is_kind("test") && !guest_tests::is_guest_test(target) {
                test.args(["--test", &target.name]);
            }
        }
    }
    test.args(["--", "--show-output"]);
    Some(test)
}

fn features(run: &mut Run<'_>) -> Result<()> {
    for (feature, _) in FEATURES {
        let crates = run.workspace.with_feature(feature);
        let names: Vec<_> = crates.iter().flat_map(|package| ["-p", &package.name]).collect();
        if names.is_empty() {
            continue;
        }
        if let Some(library) = missing_library(feature) {
            let reason = format!("the system library {library} is missing");
            run.tally.skip_check(&format!("feature {feature}"), &reason);
            continue;
        }
        let mut lint = cargo();
        lint.args(["clippy", "--release", "--all-targets", "--features", feature]).args(&names);
        run.check(lint.args(["--", "-D", "warnings"]))?;
        if let Some(mut test) = feature_tests(feature, &crates) {
            run.command(&mut test)?;
        }
    }
    Ok(())
}

fn test(run: &mut Run<'_>) -> Result<()> {
    // Everything but the documentation's examples. `--show-output` also prints what passing tests
    // said, each test's lines together, which is how skip lines come through the harness.
    let mut command = cargo();
    command.args(["test", "--workspace", "--release", "--no-fail-fast", "--all-targets"]);
    run.command(command.args(["--", "--show-output"]))?;
    Ok(())
}

fn doc(run: &mut Run<'_>) -> Result<()> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--release", "--no-fail-fast", "--doc"]);
    run.command(command.args(["--", "--show-output"]))?;
    Ok(())
}

fn loom(run: &mut Run<'_>) -> Result<()> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let preemptions = std::env::var("LOOM_MAX_PREEMPTIONS").unwrap_or_else(|_| "2".into());
    let workspace = run.workspace;
    for package in workspace.packages.iter().filter(|package| package.uses_loom()) {
        let mut command = cargo();
        command.args(["test", "--release", "--no-fail-fast", "-p", &package.name]);
        // A folder of its own: the flag would make everything else build again.
        command.arg("--target-dir").arg(workspace.target.join("loom"));
        command.env("RUSTFLAGS", format!("{flags} --cfg loom"));
        command.env("LOOM_MAX_PREEMPTIONS", &preemptions);
        let tests = package.tests_named("loom");
        if tests.is_empty() {
            // Models that lie in the library, in a module named for loom.
            command.arg("--lib").args(["--", "loom", "--show-output"]);
        } else {
            command.args(tests.iter().flat_map(|name| ["--test", name]));
            command.args(["--", "--show-output"]);
        }
        run.command(&mut command)?;
    }
    Ok(())
}

fn alone(run: &mut Run<'_>) -> Result<()> {
    // Built together, a crate can live on features that only another one asked for.
    let workspace = run.workspace;
    for package in &workspace.packages {
        run.check(cargo().args(["check", "--release", "--quiet", "-p", &package.name]))?;
    }
    Ok(())
}

fn readme(run: &mut Run<'_>) -> Result<()> {
    let path = run.workspace.root.join("README.md");
    let text = std::fs::read_to_string(&path).context("cannot read README.md")?;
    let commands = readme::commands(&text);
    if commands.is_empty() {
        bail!("README.md has no sh block with a command");
    }
    for command in commands {
        run.check(Command::new("sh").args(["-euc", &command]))?;
    }
    Ok(())
}

/// Three breakages that the commit chooses, in a copy of the tree below the target folder.
fn mutations(run: &mut Run<'_>) -> Result<()> {
    let mut build = cargo();
    build.args(["build", "--release", "-p", "railring-tests", "--bin", "mutations"]);
    if !run.command(&mut build)? {
        return Ok(());
    }
    let head =
        output_of(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&run.workspace.root));
    // Outside of a clone, always the same ones.
    let head = head.unwrap_or_else(|_| "none".to_owned());
    let mut command = Command::new(run.workspace.target.join("release/mutations"));
    command.env("CARGO_TARGET_DIR", &run.workspace.target);
    run.check(command.args(["--pick", head.trim()]))
}

fn callgrind(run: &mut Run<'_>) -> Result<()> {
    let (workspace, log) = (run.workspace, &mut run.log);
    let outcome = callgrind::run(workspace, callgrind::Mode::Compare, |line| {
        let _ = writeln!(log, "{line}");
        println!("     {line}");
    })?;
    run.tally.add(outcome);
    Ok(())
}
