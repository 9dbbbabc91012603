//! Instruction counts under valgrind's callgrind, compared with the record in
//! docs/results/callgrind.json.
//!
//! A cost per iteration is a difference: the program runs once with n iterations and once with
//! 2n, so that start-up and shutdown, the same in both, cancel out.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::proc::{output_of, run_lines};
use crate::tally::Tally;
use crate::workspace::{Workspace, cargo};

/// Where the record lies in the workspace.
const RECORD: &str = "docs/results/callgrind.json";
/// Valgrind runs a program about fifty times slower than the machine does.
const RUN_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The exit status of a command line that is not understood.
const STATUS_USAGE: i32 = 2;

/// What to do with the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Fail where one is above its recorded value by more than the tolerance.
    Compare,
    /// Write them as the new record.
    Record,
}

/// The record's file.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    /// How it is made.
    command: String,
    /// The compiler and valgrind it was made with; empty before the first recording.
    made_with: String,
    tolerance_percent: f64,
    entries: Vec<Entry>,
}

/// One gated cost.
#[derive(Debug, Deserialize, Serialize)]
struct Entry {
    name: String,
    /// The crate that has the program.
    package: String,
    kind: Kind,
    /// The binary's or example's name.
    target: String,
    /// Its arguments; `{n}` stands for the number of iterations.
    args: Vec<String>,
    /// Iterations of the shorter of the two runs.
    iterations: u64,
    /// Count only inside functions of this name (callgrind's pattern), if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inside: Option<String>,
    unit: String,
    /// The cost at the time of recording; absent until then.
    recorded: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Bin,
    Example,
}

/// What measuring one entry gave.
enum Measured {
    Cost(f64),
    /// The program does not know these arguments (yet), or the tools are missing.
    Unknown(String),
}

/// Measures every entry of the record; `say` gets a line about each.
pub(crate) fn run(workspace: &Workspace, mode: Mode, mut say: impl FnMut(&str)) -> Result<Tally> {
    let path = workspace.root.join(RECORD);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {RECORD}"))?;
    let mut record: Record =
        serde_json::from_str(&text).with_context(|| format!("cannot understand {RECORD}"))?;
    let mut tally = Tally::default();
    let Ok(valgrind) = output_of(Command::new("valgrind").arg("--version")) else {
        for entry in &record.entries {
            tally.skip_check(&format!("callgrind {}", entry.name), "valgrind is not installed");
        }
        return Ok(tally);
    };
    let made_with = format!("{}, {}", rustc_version()?, valgrind.trim());
    if record.made_with != made_with && record.entries.iter().any(|e| e.recorded.is_some()) {
        say(&format!("recorded with {}, now {made_with}", record.made_with));
    }
    for entry in &mut record.entries {
        match measure(workspace, entry)? {
            Measured::Cost(cost) if mode == Mode::Record => {
                say(&format!("{}: {cost:.1} {} recorded", entry.name, entry.unit));
                entry.recorded = Some((cost * 10.0).round() / 10.0);
                tally.pass();
            }
            Measured::Cost(cost) => {
                let (good, line) = verdict(entry, cost, record.tolerance_percent);
                say(&line);
                if good {
                    tally.pass();
                } else {
                    tally.fail(&format!("callgrind {}", entry.name), &[line]);
                }
            }
            // A cost that was once recorded must not vanish from the gate unnoticed.
            Measured::Unknown(reason) if entry.recorded.is_some() => {
                say(&format!("{}: FAILED: {reason}", entry.name));
                tally.fail(&format!("callgrind {}", entry.name), &[reason]);
            }
            Measured::Unknown(reason) => {
                tally.skip_check(&format!("callgrind {}", entry.name), &reason);
            }
        }
    }
    if mode == Mode::Record && tally.passed() > 0 {
        record.made_with = made_with;
        let text = serde_json::to_string_pretty(&record).context("cannot write JSON")? + "\n";
        std::fs::write(&path, text).with_context(|| format!("cannot write {RECORD}"))?;
    }
    Ok(tally)
}

/// Whether `cost` is within the tolerance above its record, and a line that says so.
fn verdict(entry: &Entry, cost: f64, tolerance_percent: f64) -> (bool, String) {
    let (name, unit) = (&entry.name, &entry.unit);
    let Some(recorded) = entry.recorded else {
        let line = format!("{name}: FAILED: {cost:.1} {unit}, nothing recorded: use --record");
        return (false, line);
    };
    let limit = recorded * (1.0 + tolerance_percent / 100.0);
    let line = format!("{name}: {cost:.1} {unit}, recorded {recorded:.1}, limit {limit:.1}");
    if cost.is_nan() || cost > limit {
        return (false, format!("{line}: FAILED"));
    }
    let better = cost < recorded * (1.0 - tolerance_percent / 100.0);
    let remark = if better { "; better by more than the tolerance: use --record" } else { "" };
    (true, format!("{line}{remark}"))
}

fn measure(workspace: &Workspace, entry: &Entry) -> Result<Measured> {
    if entry.iterations == 0 || !entry.args.iter().any(|arg| arg.contains("{n}")) {
        bail!("{RECORD}: {} needs iterations and an argument with {{n}}", entry.name);
    }
    let binary = match build(workspace, entry)? {
        Ok(binary) => binary,
        Err(reason) => return Ok(Measured::Unknown(reason)),
    };
    // Once without valgrind: a program that does not know the arguments says so by its status.
    let mut said = Vec::new();
    let mut probe = Command::new(&binary);
    probe.args(arguments(entry, 1));
    let ended = run_lines(&mut probe, RUN_LIMIT, |line| said.push(line.to_owned()))?;
    if ended.status.code() == Some(STATUS_USAGE) {
        let reason = format!("{} does not know `{}`", entry.target, entry.args.join(" "));
        return Ok(Measured::Unknown(reason));
    }
    if !ended.success() {
        bail!("{}: {} ended with {}: {}", entry.name, entry.target, ended.status, said.join("\n"));
    }
    let short = count(workspace, &binary, entry, entry.iterations)?;
    let long = count(workspace, &binary, entry, 2 * entry.iterations)?;
    Ok(cost_per_iteration(short, long, entry.iterations).map_or_else(
        || Measured::Unknown("the longer run needed no more instructions".into()),
        Measured::Cost,
    ))
}

/// The cost of one iteration; nothing if iterations cost nothing, when the arguments do not do
/// what the record believes.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn cost_per_iteration(short: u64, long: u64, iterations: u64) -> Option<f64> {
    let more = long.checked_sub(short)?;
    (more >= iterations).then(|| more as f64 / iterations as f64)
}

fn arguments(entry: &Entry, iterations: u64) -> impl Iterator<Item = String> {
    entry.args.iter().map(move |arg| arg.replace("{n}", &iterations.to_string()))
}

/// Builds the entry's program as it is shipped; the inner error says that there is none.
fn build(workspace: &Workspace, entry: &Entry) -> Result<Result<std::path::PathBuf, String>> {
    let kind = match entry.kind {
        Kind::Bin => "bin",
        Kind::Example => "example",
    };
    let has = workspace.packages.iter().any(|package| {
        package.name == entry.package
            && package.has_kind(kind)
            && package.targets.iter().any(|target| target.name == entry.target)
    });
    if !has {
        return Ok(Err(format!("{} has no {kind} {}", entry.package, entry.target)));
    }
    let mut command = cargo();
    command.current_dir(&workspace.root).args(["build", "--release", "-p", &entry.package]);
    command.args([format!("--{kind}"), entry.target.clone()]);
    let mut said = Vec::new();
    let ended = run_lines(&mut command, RUN_LIMIT, |line| said.push(line.to_owned()))?;
    if !ended.success() {
        bail!("{} does not build:\n{}", entry.target, said.join("\n"));
    }
    let folder = workspace.target.join("release");
    Ok(Ok(match entry.kind {
        Kind::Bin => folder.join(&entry.target),
        Kind::Example => folder.join("examples").join(&entry.target),
    }))
}

fn count(workspace: &Workspace, binary: &Path, entry: &Entry, iterations: u64) -> Result<u64> {
    let folder = workspace.target.join("xtask");
    std::fs::create_dir_all(&folder).with_context(|| format!("no {}", folder.display()))?;
    let profile = folder.join(format!("callgrind.{}.{iterations}", entry.name));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]);
    command.arg(format!("--callgrind-out-file={}", profile.display()));
    if let Some(function) = &entry.inside {
        command.arg(format!("--toggle-collect={function}"));
    }
    command.arg(binary).args(arguments(entry, iterations));
    let mut said = Vec::new();
    let ended = run_lines(&mut command, RUN_LIMIT, |line| said.push(line.to_owned()))?;
    if !ended.success() {
        bail!("{}: valgrind ended with {}:\n{}", entry.name, ended.status, said.join("\n"));
    }
    let text = std::fs::read_to_string(&profile)
        .with_context(|| format!("valgrind left no {}", profile.display()))?;
    total(&text).with_context(|| format!("no total in {}", profile.display()))
}

/// The instructions of a callgrind profile: the last `totals:` line, or `summary:` without one.
fn total(profile: &str) -> Option<u64> {
    let find = |key: &str| profile.lines().rev().find_map(|line| line.strip_prefix(key));
    let value = find("totals:").or_else(|| find("summary:"))?;
    value.split_whitespace().next()?.parse().ok()
}

fn rustc_version() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(output_of(Command::new(rustc).arg("--version"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(recorded: Option<f64>) -> Entry {
        Entry {
            name: "idle".into(),
            package: "tools".into(),
            kind: Kind::Bin,
            target: "tool".into(),
            args: vec!["{n}".into()],
            iterations: 10,
            inside: None,
            unit: "instructions".into(),
            recorded,
        }
    }

    #[test]
    fn the_limit_is_the_record_and_the_tolerance() {
        for (cost, good) in [(50.0, true), (105.0, true), (105.1, false), (f64::NAN, false)] {
            assert_eq!(verdict(&entry(Some(100.0)), cost, 5.0).0, good, "{cost}");
        }
        assert!(!verdict(&entry(None), 1.0, 5.0).0, "without a record there is nothing to pass");
    }

    #[test]
    fn start_up_cancels_out() {
        assert_eq!(cost_per_iteration(1_000_000 + 700, 1_000_000 + 1_400, 10), Some(70.0));
        assert_eq!(cost_per_iteration(500, 500, 10), None, "iterations that cost nothing");
        assert_eq!(cost_per_iteration(500, 400, 10), None);
    }

    #[test]
    fn totals_are_found() {
        assert_eq!(total("events: Ir\nsummary: 12\n\nfn=x\ntotals: 34\n"), Some(34));
        assert_eq!(total("events: Ir\nsummary: 12 3\n"), Some(12));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn the_projects_record_is_understood() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(RECORD);
        let text = std::fs::read_to_string(path).expect("the record is in the repository");
        let record: Record = serde_json::from_str(&text).expect("the record parses");
        assert!(record.entries.iter().all(|entry| entry.iterations > 0));
    }
}
