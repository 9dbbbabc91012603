//! Placement options: what is asked for reaches the engine, and what came of it is printed.

use std::fs;
use std::process::Command;

use railring::topology::{CpuSet, allowed_cpus};
use serde_json::Value;

use crate::rig::{Place, Run, railring};

fn allowed() -> CpuSet {
    allowed_cpus().expect("readable here")
}

fn last() -> String {
    allowed().last().expect("a cpu").to_string()
}

/// A store of two directories with one object.
fn stored() -> Place {
    let place = Place::new(2);
    place.put("n/o", 3 << 20, &["--stripe", "1M"]);
    place
}

fn get(place: &Place, more: &[&str]) -> Run {
    let out = place.path("out");
    let mut arguments = vec!["get", "n/o", "--json", "-o", out.to_str().expect("UTF-8")];
    arguments.extend(more);
    place.run(&arguments)
}

fn placement(run: &Run) -> Vec<Value> {
    let report = &run.json()[0];
    report["placement"].as_array().unwrap_or_else(|| panic!("{report}")).clone()
}

#[test]
fn a_get_tells_where_its_rails_are() {
    let place = stored();
    for more in [&[][..], &["--rails", "auto"], &["--policy", "compact"]] {
        let rails = placement(&get(&place, more).good());
        assert_eq!(rails.len(), 2, "{more:?}");
        for rail in rails {
            assert_eq!(rail["cpus_asked"], rail["cpus_got"], "{rail}");
            assert_eq!(rail["pinned"], true, "{rail}");
            assert!(rail["memory_got"].is_string(), "{rail}");
        }
    }
}

#[test]
fn what_is_asked_for_is_had_and_read_back() {
    let place = stored();
    let cpu = last();
    let rails = placement(&get(&place, &["--cpus", &cpu]).good());
    assert!(rails.iter().all(|rail| rail["cpus_got"] == *cpu && rail["poller"] == 0), "{rails:?}");
    let pin = format!("1={cpu}");
    let rails = placement(&get(&place, &["--pin", &pin, "--strict"]).good());
    assert_eq!(rails[1]["cpus_got"], *cpu, "{rails:?}");
    let rails = placement(&get(&place, &["--policy", "unpinned"]).good());
    for rail in &rails {
        assert!(rail["cpus_asked"].is_null() && rail["pinned"] == false, "{rail}");
    }
    let rails = placement(&get(&place, &["--policy", "unpinned", "--cpus", &cpu]).good());
    assert!(rails.iter().all(|rail| rail["cpus_got"] == *cpu), "kept to it: {rails:?}");
}

#[test]
fn what_cannot_be_had_is_told_or_refused() {
    let place = stored();
    let wide = get(&place, &["--cpus", "0-999"]).good();
    assert!(wide.err.contains("cpus") && wide.err.contains("999"), "{}", wide.err);
    get(&place, &["--cpus", "0-999", "--strict"]).bad(1, &["were asked for and cannot be used"]);
    get(&place, &["--cpus", "999"]).bad(1, &["none of the cpus 999 can be used"]);
    get(&place, &["--node", "60"]).bad(1, &["no node 60"]);
    get(&place, &["--memory-node", "60"]).bad(1, &["node 60 has no memory"]);
    get(&place, &["--pin", "nonesuch=0"]).bad(1, &["no rail 'nonesuch'"]);
    get(&place, &["--rails", "0"]).bad(2, &["from 1 to 64"]);
    // One rail reaches one directory, and the object lies on two.
    get(&place, &["--rails", "1"]).bad(1, &["no rail reaches"]);
    let all = placement(&get(&place, &["--rails", "2"]).good());
    assert_eq!(all.len(), 2);
}

#[test]
fn verify_and_demo_take_them_too() {
    let place = stored();
    let cpu = last();
    place.run(&["verify", "--cpus", &cpu, "--rails", "auto"]).good();
    place.run(&["verify", "--node", "60"]).bad(1, &["no node 60"]);
    let file = place.file("f", 1 << 20, 1);
    let dir = place.dir.path().to_str().expect("UTF-8");
    let file = file.to_str().expect("UTF-8");
    railring(&["demo", file, "--dir", dir, "--policy", "compact"]).good();
    railring(&["demo", file, "--dir", dir, "--cpus", "999"]).bad(1, &["none of the cpus"]);
}

fn bench(group: &str, place: &Place, more: &[&str]) -> Run {
    let dir = place.dir.path().to_str().expect("UTF-8");
    let fixed = ["bench", group, "--pairs", "1", "--seconds", "0.001", "--json", "--dir", dir];
    railring(&[&fixed[..], more].concat())
}

#[test]
fn every_row_of_a_benchmark_records_its_place() {
    let place = Place::new(0);
    let allowed = allowed();
    let first = allowed.first().expect("a cpu").to_string();
    for group in ["ring", "idle", "file"] {
        for row in &bench(group, &place, &[]).good().json()[1..] {
            let at = &row["placement"];
            assert_eq!(at["caller_cpus_asked"], *first, "{row}");
            assert_eq!(at["caller_cpus_got"], *first, "{row}");
            for poller in at["pollers"].as_array().expect("a list") {
                assert_eq!(poller["cpus_asked"], poller["cpus_got"], "{row}");
            }
        }
    }
}

#[test]
fn a_benchmark_runs_where_it_is_told_to() {
    let place = Place::new(0);
    let cpus = allowed();
    let (first, last) = (cpus.first().expect("a cpu"), cpus.last().expect("a cpu"));
    if first == last {
        println!("SKIP a_benchmark_runs_where_it_is_told_to: it needs two cpus");
        return;
    }
    let threaded = |more: &[&str]| {
        let rows = bench("ring", &place, more).good().json();
        let row = rows.iter().find(|row| row["row"] == "ring-threaded").expect("there");
        row["placement"].clone()
    };
    // The poller where it is pinned, the caller on another.
    let pinned = threaded(&["--pin", &format!("null0={first}"), "--strict"]);
    assert_eq!(pinned["pollers"][0]["cpus_got"], first.to_string(), "{pinned}");
    assert_ne!(pinned["caller_cpus_got"], first.to_string(), "{pinned}");
    let two = threaded(&["--rails", "2", "--policy", "compact", "--memory-node", "0"]);
    assert_eq!(two["pollers"][0]["rails"], serde_json::json!(["null0", "null1"]), "{two}");
    assert_eq!(two["memory_node_asked"], 0);
    let free = threaded(&["--policy", "unpinned"]);
    assert_eq!(free["pollers"][0]["cpus_asked"], "any", "{free}");
    let idle = bench("idle", &place, &["--rails", "2", "--cpus", &cpus.to_string()]).good().json();
    assert!(!idle[1]["placement"]["pollers"].as_array().expect("a list").is_empty());
    let file = bench("file", &place, &["--pin", &format!("0={last}")]).good().json();
    assert_eq!(file[1]["placement"]["caller_cpus_got"], last.to_string(), "{}", file[1]);
    bench("file", &place, &["--rails", "2"]).bad(2, &["one rail with its peer"]);
    bench("ring", &place, &["--cpus", "999"]).bad(1, &["none of the cpus 999"]);
    let text = railring(&["bench", "ring", "--pairs", "1", "--seconds", "0.001"]).good().text();
    assert!(text.contains("ring-threaded ran: caller on cpu"), "{text}");
}

/// Runs `get` under strace, which answers mbind for the kernel.
#[test]
fn a_kernel_that_refuses_to_place_memory_is_survived_and_told() {
    let place = stored();
    let program = env!("CARGO_BIN_EXE_railring");
    let out = place.path("out");
    let trace = place.path("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=mbind", "-e", "inject=mbind:error=EPERM", "-o"]);
    command.arg(&trace).arg(program).args(["get", "n/o", "--json", "--memory-node", "0", "-o"]);
    command.arg(&out).arg("--store").arg(place.store());
    let Some(output) = command.output().ok() else {
        println!("SKIP a_kernel_that_refuses_to_place_memory_is_survived_and_told: no strace");
        return;
    };
    let calls = fs::read_to_string(&trace).unwrap_or_default();
    if !calls.contains("(INJECTED)") {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().next().unwrap_or("it traced nothing");
        println!("SKIP a_kernel_that_refuses_to_place_memory_is_survived_and_told: {why}");
        return;
    }
    let run = Run::of(output).good();
    assert_eq!(run.err.matches("refuses to place memory").count(), 1, "{}", run.err);
    let rails = placement(&run);
    assert_eq!(rails[0]["memory_node_asked"], 0);
    // The memory was touched on the node instead, before anything used it.
    assert_eq!(rails[0]["memory_got"], "first touch", "{rails:?}");
}
