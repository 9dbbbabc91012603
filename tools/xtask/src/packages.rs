//! The Debian packages the project's commands need: read from `packages.txt`, installed when
//! missing.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::proc::{output_of, run_lines};
use crate::workspace::Workspace;

const LIST: &str = include_str!("../packages.txt");
const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Who needs it: `test`, `guest` or `feature NAME`.
    section: String,
    /// The package.
    pub name: String,
    /// What for.
    pub reason: String,
}

/// Whether missing packages may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Install {
    /// When they are missing, and we are root or `sudo` asks no password.
    WhenMissing,
    /// Never: name what is missing.
    Never,
}

fn parse(text: &str) -> Result<Vec<Wanted>> {
    let mut section = None;
    let mut list = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = Some(name.to_owned());
            continue;
        }
        let section = section.clone().context("packages.txt: a package before any section")?;
        let Some((name, reason)) = line.split_once(char::is_whitespace) else {
            bail!("packages.txt: {line} has no reason");
        };
        list.push(Wanted { section, name: name.into(), reason: reason.trim().into() });
    }
    Ok(list)
}

/// What a test run of this workspace needs.
pub(crate) fn for_tests(workspace: &Workspace) -> Result<Vec<Wanted>> {
    let mut list = parse(LIST)?;
    list.retain(|wanted| match wanted.section.strip_prefix("feature ") {
        Some(feature) => workspace.has_feature(feature),
        None => wanted.section == "test",
    });
    Ok(list)
}

/// What `cargo xtask guest` needs.
pub(crate) fn for_guest() -> Result<Vec<Wanted>> {
    let mut list = parse(LIST)?;
    list.retain(|wanted| wanted.section == "guest");
    Ok(list)
}

/// What the guest stage needs: a guest, and what its tests are built with.
pub(crate) fn for_guest_tests() -> Result<Vec<Wanted>> {
    let mut list = parse(LIST)?;
    list.retain(|wanted| ["guest", "feature verbs"].contains(&&*wanted.section));
    Ok(list)
}

/// Installs what is missing, if that is wanted and possible; returns what is missing then.
pub(crate) fn provide(wanted: Vec<Wanted>, install: Install) -> Result<Vec<Wanted>> {
    let mut missing = missing_of(wanted)?;
    let Some(prefix) = privilege() else { return Ok(missing) };
    if missing.is_empty() || install == Install::Never || !has_apt() {
        return Ok(missing);
    }
    let names: Vec<_> = missing.iter().map(|wanted| &*wanted.name).collect();
    println!("installing {}", names.join(" "));
    // The lists of a fresh machine are empty or old, so they are fetched first; a failure there is
    // not yet one of the installation.
    apt(&prefix, &["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(names);
    apt(&prefix, &arguments)?;
    missing = missing_of(missing)?;
    Ok(missing)
}

fn missing_of(mut wanted: Vec<Wanted>) -> Result<Vec<Wanted>> {
    if !has_apt() {
        return Ok(wanted);
    }
    wanted.sort_by(|a, b| a.name.cmp(&b.name));
    wanted.dedup_by(|a, b| a.name == b.name);
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f=${Package} ${db:Status-Status}\n"]);
    query.args(wanted.iter().map(|wanted| &wanted.name));
    // Its status is 1 as soon as one package is unknown, so only its output counts.
    let output = query.output().context("cannot start dpkg-query")?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let installed: Vec<_> =
        output.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    wanted.retain(|wanted| !installed.contains(&&*wanted.name));
    Ok(wanted)
}

fn has_apt() -> bool {
    std::path::Path::new("/usr/bin/apt-get").exists()
}

/// What to put before a command to run it as root: nothing for root, `sudo -n` where that works.
fn privilege() -> Option<Vec<&'static str>> {
    if rustix::process::geteuid().is_root() {
        return Some(Vec::new());
    }
    output_of(Command::new("sudo").args(["-n", "true"])).is_ok().then(|| vec!["sudo", "-n"])
}

fn apt(prefix: &[&str], arguments: &[&str]) -> Result<()> {
    let mut words = prefix.to_vec();
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    words.extend(arguments);
    let mut said = Vec::new();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let ended = run_lines(&mut command, INSTALL_LIMIT, |line| said.push(line.to_owned()))?;
    if !ended.success() {
        eprintln!("{}\napt-get {} failed ({})", said.join("\n"), arguments[0], ended.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_parses_and_each_package_has_a_reason() {
        let list = parse(LIST).expect("packages.txt parses");
        assert!(list.iter().any(|wanted| wanted.name == "valgrind" && wanted.section == "test"));
        for wanted in &list {
            assert!(wanted.reason.len() > 10, "{} needs a real reason", wanted.name);
            let known = ["test", "guest"].contains(&&*wanted.section)
                || wanted.section.starts_with("feature ");
            assert!(known, "[{}] is read by nobody", wanted.section);
        }
    }

    #[test]
    fn a_package_without_reason_or_section_is_refused() {
        assert!(parse("[test]\nvalgrind\n").is_err());
        assert!(parse("valgrind for counting\n").is_err());
    }
}
