//! The guest stage: builds the tests that need an RDMA device, and runs them all in one guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Run, missing_library};
use crate::guest;
use crate::packages::{self, Install};
use crate::proc::output_of;
use crate::workspace::{Target, Workspace, cargo};

/// The cargo feature whose tests need an RDMA device.
const FEATURE: &str = "verbs";
/// Seconds until the guest is ended, boot included. Emulated, it needs a third of that.
const GUEST_SECONDS: u32 = 900;
/// Seconds for the tests of one binary.
const BINARY_SECONDS: u32 = 400;

/// Whether this target of a crate with the feature holds tests for the guest, by its name.
pub(super) fn is_guest_test(target: &Target) -> bool {
    let name = &target.name;
    target.is_kind("test") && (name.starts_with(FEATURE) || name.starts_with("guest"))
}

/// Whether the workspace has any such tests.
pub(super) fn are_there(workspace: &Workspace) -> bool {
    !selection(workspace).is_empty()
}

/// What keeps this machine from booting a guest with our tests, after installing what is missing.
pub(super) fn unable(install: Install) -> Result<Option<String>> {
    if !guest::is_possible_here() {
        return Ok(Some("guests are x86-64 machines, this one is not".to_owned()));
    }
    let missing = packages::provide(packages::for_guest_tests()?, install)?;
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|wanted| &*wanted.name).collect();
        return Ok(Some(format!("not installed: {}", names.join(" "))));
    }
    if let Some(library) = missing_library(FEATURE) {
        return Ok(Some(format!("the system library {library} is missing")));
    }
    Ok(guest::fetch_kernel().err().map(|error| format!("no kernel for it: {error:#}")))
}

pub(super) fn run(run: &mut Run<'_>) -> Result<()> {
    let selected = selection(run.workspace);
    if selected.is_empty() {
        // Nothing in the workspace speaks RDMA.
        return Ok(());
    }
    if let Some(reason) = unable(run.options.install)? {
        run.tally.skip_check("guest", &reason);
        return Ok(());
    }
    // Twice: the first time for people, who want to see what does not build; the second finds all
    // done and tells the names.
    if !run.command(&mut build(&selected))? {
        return Ok(());
    }
    let said = output_of(build(&selected).arg("--message-format=json"))?;
    let binaries = binaries(&said)?;
    ensure!(!binaries.is_empty(), "nothing was built for the guest");
    let out = run.workspace.target.join("xtask").join("guest");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let script = out.join("run.sh");
    std::fs::write(&script, script_of(&binaries)).context("cannot write the guest's script")?;

    // In a process of its own, so that its output is read and counted like any other command's.
    // setpriv: should we be killed without a chance to stop it, the kernel asks it to stop.
    let me = std::env::current_exe().context("this program has no path")?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(me);
    command.args(["guest", "--no-install", "--timeout", &GUEST_SECONDS.to_string(), "--out"]);
    command.arg(&out).args(["--", "bash"]).arg(&script);
    let results = run.tally.results();
    let ended_well = run.command(&mut command)?;
    let told = run.tally.results() - results;
    if ended_well && told as usize != binaries.len() {
        let said = format!("{told} of {} test binaries told their result", binaries.len());
        run.tally.fail("guest", &[said]);
    }
    Ok(())
}

/// Arguments that select what is built for the guest: `-p` and `--test`; none without such tests.
fn selection(workspace: &Workspace) -> Vec<String> {
    let mut arguments = Vec::new();
    for package in workspace.with_feature(FEATURE) {
        let tests: Vec<_> = package.targets.iter().filter(|target| is_guest_test(target)).collect();
        if !tests.is_empty() {
            arguments.extend(["-p".to_owned(), package.name.clone()]);
        }
        for target in tests {
            arguments.extend(["--test".to_owned(), target.name.clone()]);
        }
    }
    arguments
}

fn build(selected: &[String]) -> Command {
    let mut command = cargo();
    command.args(["test", "--no-run", "--release", "--features", FEATURE]).args(selected);
    command
}

/// A test binary, and the folder its tests expect to run in.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    name: String,
    path: PathBuf,
    folder: PathBuf,
}

/// What cargo says about something it built, as far as it matters here.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The test binaries in cargo's messages.
fn binaries(said: &str) -> Result<Vec<Binary>> {
    let mut list = Vec::new();
    for line in said.lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).context("cargo's messages are not JSON")?;
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        let artifact: Artifact =
            serde_json::from_value(message).context("cargo described an artifact otherwise")?;
        let Some(path) = artifact.executable.filter(|_| artifact.profile.test) else { continue };
        let folder = artifact.manifest_path.parent().unwrap_or(Path::new("/")).to_owned();
        let name = format!("tests of {} ({})", artifact.target.name, folder.display());
        list.push(Binary { name, path, folder });
    }
    Ok(list)
}

/// The guest's script: every binary, one test at a time, because the guest's two slow processors
/// would make each other's time bounds late. Its status is 1 if a binary failed.
fn script_of(binaries: &[Binary]) -> String {
    let mut script = String::from("status=0\n");
    for binary in binaries {
        let (name, path) = (&binary.name, binary.path.to_string_lossy());
        let folder = binary.folder.to_string_lossy();
        script.push_str(&format!(
            "echo {running}\ncd {folder} || exit 1\nexport CARGO_MANIFEST_DIR={folder}\n\
             timeout -k 5 {BINARY_SECONDS} {path} --test-threads=1 --show-output </dev/null || {{\n\
             \techo {failed}\" $?\"\n\tstatus=1\n}}\n",
            running = guest::quoted(&format!("     Running {name}")),
            failed = guest::quoted(&format!("error: {name} ended with status")),
            folder = guest::quoted(&folder),
            path = guest::quoted(&path),
        ));
    }
    script.push_str("exit $status\n");
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, is_test: bool, executable: &str) -> String {
        let start = r#"{"reason":"compiler-artifact","manifest_path":"/w/t/Cargo.toml""#;
        let target = format!(r#""target":{{"name":"verbs","kind":["{kind}"]}}"#);
        let profile = format!(r#""profile":{{"test":{is_test}}}"#);
        format!("{start},{target},{profile},\"executable\":{executable}}}\n")
    }

    #[test]
    fn only_test_binaries_are_run() {
        let said = [
            message("test", true, "\"/w/it's a\""),
            message("lib", false, "null"),
            message("bin", false, "\"/w/railring\""),
            "{\"reason\":\"build-finished\",\"success\":true}\n".to_owned(),
        ];
        let list = binaries(&said.concat()).expect("cargo's messages");
        let (name, path) = ("tests of verbs (/w/t)".into(), "/w/it's a".into());
        assert_eq!(list, [Binary { name, path, folder: "/w/t".into() }]);
        assert!(binaries("warning: not JSON").is_err());
    }

    #[test]
    fn one_binary_that_fails_does_not_hide_the_others() {
        let binary = |name: &str, path: &str| Binary {
            name: name.into(),
            path: path.into(),
            folder: "/".into(),
        };
        let list = [binary("first", "/bin/false"), binary("second", "/bin/echo")];
        let script = format!("{}\n", script_of(&list)).replace("exit $status", "echo =$status");
        let said = output_of(Command::new("bash").args(["-c", &script])).expect("bash runs");
        let second = "     Running second\n--test-threads=1 --show-output\n";
        let first = "     Running first\nerror: first ended with status 1\n";
        assert_eq!(said, format!("{first}{second}=1\n"));
    }
}
