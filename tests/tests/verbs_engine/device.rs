//! What a device may do to a rail that has nothing to do with its peers: files that may not be
//! opened, ports that go down and come back.

use std::fs::{Permissions, read_dir, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use railring::{EngineConfig, RailSet};
use railring_tests::guest;

use crate::rig::{Rig, Who, engine, hasty, ip, options, peer};

const NIC: &str = "nic0";
/// Nobody, on every Linux.
const NOBODY: &str = "65534";

/// Sets the mode of the device files; they are for everybody by default.
fn set_mode(mode: u32) {
    for entry in read_dir("/dev/infiniband").expect("the guest has devices") {
        let path = entry.expect("readable").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("uverbs")) {
            set_permissions(&path, Permissions::from_mode(mode)).expect("we are root");
        }
    }
}

#[test]
fn a_device_file_without_permission_is_refused_by_name() {
    if guest::rails("a_device_file_without_permission_is_refused_by_name").is_none() {
        return;
    }
    let me = std::env::current_exe().expect("it runs");
    set_mode(0o600);
    let output = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--bounding-set=-all"])
        .args(["--inh-caps=-all", "--"])
        .arg(me)
        .args(["--ignored", "--exact", "--nocapture", "device::open_as_nobody"])
        .output();
    set_mode(0o666);
    let output = output.expect("setpriv is in the base system");
    let said = String::from_utf8_lossy(&output.stdout);
    // Without the harness's own lines, which would count twice.
    said.lines().filter(|line| line.starts_with("refused")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let permission = said.contains("no permission to open RDMA device rxe0");
    assert!(permission && said.contains("/dev/infiniband"), "{said}");
}

/// What the test above runs.
#[test]
#[ignore = "run by a_device_file_without_permission_is_refused_by_name"]
fn open_as_nobody() {
    let why = RailSet::new().verbs(options()).expect_err("its file is root's");
    println!("refused: {why}");
}

/// Waits until the rail's notes say so.
fn is_noted(rig: &mut Rig, text: &str) {
    let start = Instant::now();
    loop {
        let notes = rig.driven.rail().info.notes;
        if notes.iter().any(|note| note.contains(text)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{text:?} is not among {notes:?}");
    }
}

#[test]
fn a_port_that_goes_down_and_comes_back_is_told_and_used_again() {
    let test = "a_port_that_goes_down_and_comes_back_is_told_and_used_again";
    let Some((peer, known)) = peer(test, "object") else { return };
    let config = EngineConfig { attempts_max: 1, ..hasty() };
    let mut rig = Rig::new(engine(Who::Thread, options(), config), peer, known);
    rig.is_right();
    ip(&["link", "set", NIC, "down"]);
    is_noted(&mut rig, "the port went down (event 10)");
    // Each ends, as it may.
    let ended = rig.read(0..rig.object.len(), |read| read.timeout(Duration::from_secs(3)));
    let status = ended.last().and_then(railring_core::Completion::ended);
    println!("with the port down: {}", status.expect("the last says how the read ended"));
    drop(ended);
    ip(&["link", "set", NIC, "up"]);
    is_noted(&mut rig, "the port came up (event 9)");
    let start = Instant::now();
    loop {
        let again = rig.read(0..rig.object.len(), |read| read.timeout(Duration::from_secs(3)));
        if again.iter().all(|completion| completion.status().is_ok()) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come back: {again:?}");
    }
    rig.is_right();
}
