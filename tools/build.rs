//! Names the commit that the command is built from, for the headers of benchmarks.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=RAILRING_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    for reference in ["HEAD".to_owned(), git(&["symbolic-ref", "HEAD"]).unwrap_or_default()] {
        if let Some(path) = git(&["rev-parse", "--git-path", &reference]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
