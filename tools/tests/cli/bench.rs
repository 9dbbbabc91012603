//! Benchmarks run, and print the rows they promise. What they measure is not looked at.

use crate::rig::{Place, Run, railring};

fn rows(run: &Run) -> Vec<String> {
    let lines = run.json();
    assert!(lines[0]["command"].is_string() && lines[0]["commit"].is_string(), "{}", lines[0]);
    assert!(lines[0]["machine"].is_string() && lines[0]["time"].is_string(), "{}", lines[0]);
    for row in &lines[1..] {
        for field in
            ["row", "ours", "against", "theirs", "ratio", "target", "meets", "pairs", "spread"]
        {
            assert!(row.get(field).is_some(), "no {field} in {row}");
        }
        let simulated = lines[0]["bench"] == "sim";
        assert!(row["unit"].is_string() && row["simulated"] == simulated, "{row}");
        assert!(row["placement"]["caller_cpus_got"].is_string(), "{row}");
    }
    lines[1..].iter().map(|row| row["row"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn each_group_prints_its_rows() {
    let place = Place::new(0);
    let dir = place.dir.path().to_str().expect("UTF-8");
    let run = |group: &str| {
        let trial = ["--pairs", "1", "--seconds", "0.01", "--json", "--dir", dir];
        railring(&[&["bench", group], &trial[..]].concat()).good()
    };
    let ring = [
        "ring-inline",
        "ring-threaded",
        "round-trip",
        "scale-in-flight",
        "scale-rings",
        "scale-rails",
        "allocations",
        "syscalls",
    ];
    assert_eq!(rows(&run("ring")), ring);
    assert_eq!(rows(&run("idle")), ["idle-cpu", "idle-wake"]);
    let file = ["file-4k", "file-1m", "file-cpu", "file-lat", "verify-cost", "file-4k-memory"];
    assert_eq!(rows(&run("file")), file);
    let models = (1..=8).map(|rails| format!("model-{rails}"));
    let sim: Vec<String> = models.chain(["slow-rail", "dead-rail"].map(Into::into)).collect();
    assert_eq!(rows(&run("sim")), sim);
    let left: Vec<_> = std::fs::read_dir(dir).expect("there").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn steady_reads_allocate_nothing() {
    let run = railring(&["bench", "ring", "--pairs", "1", "--seconds", "0.001", "--json"]).good();
    let rows = run.json();
    let row = |name: &str| rows.iter().find(|row| row["row"] == name).expect("there");
    assert_eq!(row("allocations")["ours"], 0.0, "{}", row("allocations"));
    assert!(row("syscalls")["meets"].as_bool().expect("a bool"), "{}", row("syscalls"));
}

#[test]
fn a_peer_that_is_missing_is_named() {
    let place = Place::new(0);
    let dir = place.dir.path().to_str().expect("UTF-8");
    let trial = ["bench", "file", "--pairs", "1", "--seconds", "0.01", "--json", "--dir", dir];
    let mut command = crate::rig::command(&trial);
    let run = Run::of(command.env("PATH", dir).output().expect("runs")).good();
    let rows = run.json();
    let row = rows.iter().find(|row| row["row"] == "file-4k").expect("there");
    assert!(row["theirs"].is_null() && row["ours"].is_f64(), "{row}");
    assert!(row["note"].as_str().expect("a note").contains("fio is not installed"), "{row}");
    assert_eq!(row["meets"], false);
}

#[test]
fn the_gate_counts_what_it_is_told() {
    railring(&["bench", "gate", "--idle-turns", "100"]).good();
    railring(&["bench", "gate", "--reads", "100"]).good();
}
