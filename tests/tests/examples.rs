//! Every example runs without arguments and ends well.

use std::path::Path;
use std::process::Command;

#[test]
fn examples_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in a workspace");
    let mut names: Vec<String> = std::fs::read_dir(root.join("examples"))
        .expect("it is there")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".rs").map(ToOwned::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 3, "only {names:?}");
    for name in names {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output = Command::new(cargo)
            .args(["run", "--quiet", "--release", "-p", "railring-examples", "--example", &name])
            .current_dir(root)
            .output()
            .expect("cargo runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "example {name}: {said}{errors}");
        assert!(!said.trim().is_empty(), "example {name} says nothing");
    }
}

#[test]
fn the_quickstart_is_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in a workspace");
    let text = std::fs::read_to_string(root.join("examples/quickstart.rs")).expect("it is there");
    let code =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    let lines = code.count();
    assert!(lines < 60, "{lines} lines of code");
}
