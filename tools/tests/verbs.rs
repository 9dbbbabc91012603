//! The command on a machine with RDMA devices: what the doctor says of them, and its self-test.
//! Outside of the guest that `cargo xtask guest` boots each test says that it was skipped.

use std::process::{Command, Output};

use serde_json::Value;

fn railring(line: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{} {line}", env!("CARGO_BIN_EXE_railring"))]);
    command.output().expect("it can be run")
}

fn findings(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// The finding of this name.
fn finding<'a>(all: &'a [Value], check: &str) -> &'a Value {
    let named = all.iter().find(|finding| finding["check"] == check);
    named.unwrap_or_else(|| panic!("no finding {check}: {all:#?}"))
}

fn is_in_the_guest(test: &str) -> bool {
    let inside = std::env::var_os("RAILRING_GUEST").is_some();
    if !inside {
        println!("SKIP {test}: not on a machine with software RDMA set up for it");
    }
    inside
}

#[test]
fn the_doctor_knows_the_guests_ports() {
    if !is_in_the_guest("the_doctor_knows_the_guests_ports") {
        return;
    }
    let output = railring("doctor --json");
    assert!(output.status.success(), "{output:?}");
    let all = findings(&output);
    for check in ["rdma rxe0/1", "rdma rxe1/1", "access rxe0", "driver rxe1", "rdma library"] {
        assert_eq!(finding(&all, check)["state"], "good", "{check}");
    }
    let port = &finding(&all, "rdma rxe1/1")["found"];
    assert!(port.as_str().is_some_and(|text| text.contains("10.7.1.1 RoCE v2")), "{port}");
    assert_eq!(finding(&all, "rdma build")["found"], "built with the feature verbs");
}

#[test]
fn the_self_test_reads_on_each_port() {
    if !is_in_the_guest("the_self_test_reads_on_each_port") {
        return;
    }
    let begun = std::time::Instant::now();
    let output = railring("doctor --rdma-selftest --json");
    assert!(output.status.success(), "{output:?}");
    let all = findings(&output);
    for check in ["self-test rxe0/1", "self-test rxe1/1"] {
        let found = finding(&all, check)["found"].as_str().expect("text").to_owned();
        assert!(found.contains("bytes equal"), "{found}");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "ten seconds of testing at most");
}

#[test]
fn the_doctor_says_what_little_memory_means() {
    if !is_in_the_guest("the_doctor_says_what_little_memory_means") {
        return;
    }
    // Without the capability the limit counts; root keeps its permissions otherwise.
    let me = env!("CARGO_BIN_EXE_railring");
    let run = |limit: &str| {
        let line = format!("ulimit -l {limit}; {me} doctor --rdma-selftest --json");
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "--", "bash", "-c"]);
        command.arg(line).output().expect("setpriv is in the base system")
    };
    let output = run("64");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let all = findings(&output);
    assert_eq!(finding(&all, "rdma memory")["state"], "slower");
    let told = finding(&all, "self-test rxe0/1");
    assert_eq!(told["state"], "broken");
    assert!(told["found"].as_str().is_some_and(|text| text.contains("65536")), "{told}");
    let output = run("8192");
    assert_eq!(finding(&findings(&output), "self-test rxe0/1")["state"], "good", "{output:?}");
}

#[test]
fn the_benchmark_prints_its_rows_and_counts_nothing_on_the_way() {
    if !is_in_the_guest("the_benchmark_prints_its_rows_and_counts_nothing_on_the_way") {
        return;
    }
    let output = railring("bench verbs --pairs 1 --seconds 0.001 --json");
    assert!(output.status.success(), "{output:?}");
    let rows = findings(&output);
    let names: Vec<_> = rows[1..].iter().map(|row| row["row"].as_str().expect("text")).collect();
    let expected = ["verbs-pull-256k", "verbs-pull-1m", "verbs-lat", "allocations", "syscalls"];
    assert_eq!(names, expected);
    for row in &rows[1..] {
        println!("{row}");
        // Times are not looked at; that the peers were there is.
        let counted = ["allocations", "syscalls"].iter().any(|name| row["row"] == *name);
        assert!(row["ours"].is_number() && (counted || row["theirs"].is_number()), "{row}");
        assert!(!counted || row["meets"] == true, "{row}");
    }
}

#[test]
fn a_benchmark_without_a_peer_says_how_to_build_one() {
    let output = railring("bench verbs --device nope");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("nope") || told.contains("RDMA device"), "{told}");
    if is_in_the_guest("a_benchmark_without_a_peer_says_how_to_build_one") {
        let output = railring("bench verbs --seconds 0.001 --peer-command /nowhere/peer");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("/nowhere/peer") && told.contains("--peer-command"), "{told}");
    }
}
