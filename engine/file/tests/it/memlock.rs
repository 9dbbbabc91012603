//! Low RLIMIT_MEMLOCK, in a child process without privileges: the rail reads unregistered and says
//! why.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use railring_file::FileRailOptions;
use railring_transport::{Link, RailControl};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use crate::common::{Memory, Read, Rig, write_file};

const DIRECTORY: &str = "RAILRING_TEST_MEMLOCK_DIRECTORY";
const LIMIT: &str = "RAILRING_TEST_MEMLOCK_BYTES";
/// An unprivileged user, on every system: "nobody".
const NOBODY: u32 = 65_534;

/// The body of the child: does nothing unless the parent set its environment.
#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child() {
    let (Ok(directory), Ok(limit)) = (std::env::var(DIRECTORY), std::env::var(LIMIT)) else {
        return;
    };
    let limit = limit.parse().ok();
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })
        .expect("lowering is allowed");
    let mut rig = Rig::open(Path::new(&directory), FileRailOptions::default());
    let memory = Memory::new(4, 1 << 20);
    for _ in 0..3 {
        rig.control.register(&memory.region).expect("it falls back");
    }
    let target = rig.connect("f");
    for offset in 0..16 {
        rig.check(&memory, Read::new(target, offset << 16, 1 << 16));
    }
    println!("backend: {}", rig.link.stats().backend);
    println!("registered: {}", rig.control.registration().bytes);
    for note in rig.control.info().notes {
        println!("note: {note}");
    }
    println!("all read");
}

/// What the child prints under a limit, or the reason to skip.
fn under(limit: &str) -> Result<String, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    write_file(directory.path(), "f", 1 << 20);
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755))
        .map_err(|error| error.to_string())?;
    // A copy that the unprivileged user can reach, wherever the build directory is.
    let program = directory.path().join("child");
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    std::fs::copy(own, &program).map_err(|error| error.to_string())?;
    let mut command = Command::new(&program);
    command.args(["--ignored", "--exact", "memlock::child", "--nocapture"]);
    command.env(DIRECTORY, directory.path()).env(LIMIT, limit).current_dir("/");
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().map_err(|error| format!("the child did not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("all read"), "{text}\n{errors}");
    Ok(text)
}

#[test]
fn little_lockable_memory_is_survived_and_named_once() {
    for limit in ["65536", "0"] {
        match under(limit) {
            Ok(text) => {
                assert!(text.contains("registered: 0\n"), "{text}");
                let named = format!("RLIMIT_MEMLOCK is {limit} B");
                assert_eq!(text.matches(&named).count(), 1, "{text}");
            }
            Err(why) => println!("SKIP little_lockable_memory with {limit}: {why}"),
        }
    }
}

#[test]
fn enough_lockable_memory_is_registered() {
    const ENOUGH: u64 = 8 << 20;
    let maximum = getrlimit(Resource::Memlock).maximum;
    if maximum.is_some_and(|maximum| maximum < ENOUGH) {
        return println!("SKIP enough_lockable_memory: the hard limit is {maximum:?} B");
    }
    match under(&ENOUGH.to_string()) {
        Ok(text) if text.contains("pread") => println!("SKIP enough_lockable_memory: {text}"),
        Ok(text) => assert!(text.contains("registered: 4194304\n"), "{text}"),
        Err(why) => println!("SKIP enough_lockable_memory: {why}"),
    }
}
