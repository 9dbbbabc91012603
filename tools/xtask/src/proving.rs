//! The programs that prove the engine, which are of the crate `railring-tests`: simulations and
//! breakages. Built here, run here, with their own arguments.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::proc::Group;
use crate::workspace::{Workspace, cargo};

/// Builds the program and runs it in the root of the workspace; its exit status.
pub(crate) fn run(program: &str, arguments: &[String]) -> Result<u8> {
    let workspace = Workspace::load()?;
    let mut build = cargo();
    build.args(["build", "--release", "--quiet", "-p", "railring-tests", "--bin", program]);
    let mut built = Group::spawn(build.current_dir(&workspace.root))?;
    if !built.wait()?.success() {
        bail!("{program} does not build");
    }
    let path = workspace.target.join("release").join(program);
    let mut command = Command::new(&path);
    let mut running = Group::spawn(command.args(arguments).current_dir(&workspace.root))?;
    let status = running.wait().with_context(|| format!("cannot run {}", path.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
