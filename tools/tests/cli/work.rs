//! What works: putting, getting whole and in part, listing, stat, removing, copies, help.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use crate::rig::{Place, Run, railring};

#[test]
fn an_object_comes_back_whole_and_in_part() {
    let place = Place::new(2);
    let file = place.put("a/b", 3_000_017, &["--stripe", "1M", "--block", "4K"]);
    let expected = fs::read(&file).expect("the file");
    assert_eq!(place.run(&["get", "a/b"]).good().out, expected);
    let run = place.run(&["get", "a/b", "-o", "out"]).good();
    assert!(run.text().contains("3 stripes verified"), "{run:?}");
    assert_eq!(fs::read(place.path("out")).expect("written"), expected);
    let ranges = [
        ("0..1", 0..1),
        ("1M..1048580", 1 << 20..(1 << 20) + 4),
        ("1000..2000001", 1000..2_000_001),
        ("2999999..", 2_999_999..3_000_017),
        ("..17", 0..17),
        ("5..5", 5..5),
        ("3000017..3000017", 3_000_017..3_000_017),
    ];
    for (text, range) in ranges {
        let got = place.run(&["get", "a/b", "-o", "-", "--range", text]).good().out;
        assert!(got == expected[range], "{text}");
    }
}

#[test]
fn stripes_of_every_shape_come_back() {
    let place = Place::new(3);
    for (key, bytes, stripe, block) in [
        ("s/tiny", 5000, "1", "4K"),
        ("s/odd", 1_000_003, "4097", "4K"),
        // Longer than what is read at once: read in parts, verified by blocks.
        ("s/long", 9_000_001, "6000001", "64K"),
        ("s/one", 1, "4G", "1M"),
    ] {
        let more = ["--stripe", stripe, "--block", block, "--copies", "2"];
        let file = place.put(key, bytes, &more);
        let got = place.run(&["get", key]).good().out;
        assert!(got == fs::read(file).expect("the file"), "{key}");
    }
    let run = place.run(&["verify"]).good();
    assert!(run.text().contains("4 objects") && run.text().contains("all good"), "{run:?}");
}

#[test]
fn an_empty_file_is_an_object() {
    let place = Place::new(2);
    place.put("e/empty", 0, &[]);
    assert_eq!(place.run(&["get", "e/empty"]).good().out, b"");
    place.run(&["get", "e/empty", "-o", "out"]).good();
    assert_eq!(fs::read(place.path("out")).expect("written"), b"");
    place.run(&["verify"]).good();
    assert!(place.run(&["stat", "e/empty"]).good().text().contains("0 stripes"));
}

#[test]
fn the_store_is_made_once_and_said() {
    let place = Place::new(2);
    let file = place.file("x", 10, 1);
    let file = file.to_str().expect("UTF-8");
    assert!(place.run(&["put", file]).good().err.contains("made a new store"));
    assert_eq!(place.run(&["put", file]).good().err, "");
    let run = place.run(&["ls", "--json"]).good();
    assert_eq!(run.json()[0]["key"], "files/x");
    assert_eq!(run.json()[0]["generation"], 2);
}

#[test]
fn json_is_printed_by_all_that_print_data() {
    let place = Place::new(2);
    let file = place.file("x", 2_500_000, 1);
    let put = place.run(&["put", file.to_str().expect("UTF-8"), "--json"]).good().json();
    assert_eq!((&put[0]["size_bytes"], &put[0]["stripes"]), (&2_500_000.into(), &1.into()));
    let stat = place.run(&["stat", "files/x", "--json"]).good().json();
    assert_eq!(stat[0]["placement"]["stripes"][0]["len_bytes"], 2_500_000);
    assert_eq!(stat[0]["files"][0]["state"], "there");
    let get = place.run(&["get", "files/x", "-o", "out", "--json"]).good().json();
    assert_eq!((&get[0]["bytes"], &get[0]["retries"]), (&2_500_000.into(), &0.into()));
    // To standard output goes the object, so the summary goes beside it.
    let get = place.run(&["get", "files/x", "--range", "..5", "--json"]).good();
    assert_eq!(get.out.len(), 5);
    assert!(get.err.contains(r#""bytes":5"#), "{}", get.err);
    let verify = place.run(&["verify", "--json"]).good().json();
    assert_eq!(verify[0]["summary"]["problems"], 0);
    let rm = place.run(&["rm", "files/x", "--json"]).good().json();
    assert_eq!(rm[0]["removed"], true);
    assert_eq!(place.run(&["ls", "--json"]).good().out, b"");
    for line in railring(&["doctor", "--json"]).json() {
        assert!(line["meaning"].is_string() && line["state"].is_string(), "{line}");
    }
}

#[test]
fn names_come_from_files_and_keys() {
    let place = Place::new(1);
    let (a, b) = (place.file("a", 1, 1), place.file("b", 2, 2));
    let (a, b) = (a.to_str().expect("UTF-8"), b.to_str().expect("UTF-8"));
    place.run(&["put", a, b, "--key", "m/n/"]).good();
    place.run(&["put", a, b]).good();
    let list = place.run(&["ls", "--json"]).good().json();
    let names: Vec<_> = list.iter().map(|line| line["key"].as_str().expect("a string")).collect();
    assert_eq!(names, ["files/a", "files/b", "m/n/a", "m/n/b"]);
    assert_eq!(place.run(&["ls", "m/", "--json"]).good().json().len(), 2);
}

#[test]
fn standard_input_and_pipes_can_be_put() {
    let place = Place::new(2);
    let mut child = place
        .command(&["put", "-", "--key", "p/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let content = vec![7; 5 << 20];
    child.stdin.take().expect("piped").write_all(&content).expect("written");
    Run::of(child.wait_with_output().expect("ends")).good();
    assert!(place.run(&["get", "p/stdin"]).good().out == content);
}

#[test]
fn a_target_that_is_no_plain_file_is_written_through() {
    let place = Place::new(1);
    let file = place.put("a/b", 100, &[]);
    place.run(&["get", "a/b", "-o", "/dev/null"]).good();
    assert!(!fs::symlink_metadata("/dev/null").expect("there").is_file());
    std::os::unix::fs::symlink("real", place.path("link")).expect("made");
    fs::write(place.path("real"), "old").expect("written");
    place.run(&["get", "a/b", "-o", "link"]).good();
    assert!(place.path("link").is_symlink(), "the link is still one");
    assert_eq!(fs::read(place.path("real")).expect("there"), fs::read(file).expect("there"));
}

#[test]
fn two_puts_of_one_key_at_once_both_succeed() {
    let place = Place::new(2);
    // The store is new, too: it is made by one of them.
    let files: Vec<_> = (0..3).map(|i| place.file(&format!("f{i}"), 2_000_000 + i, 9)).collect();
    let children: Vec<_> = files
        .iter()
        .map(|file| {
            let file = file.to_str().expect("UTF-8");
            let mut command = place.command(&["put", file, "--key", "a/b"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("runs")
        })
        .collect();
    for child in children {
        Run::of(child.wait_with_output().expect("ends")).good();
    }
    let list = place.run(&["ls", "--json"]).good().json();
    assert_eq!((list.len(), &list[0]["generation"]), (1, &3.into()));
    let got = place.run(&["get", "a/b"]).good().out;
    assert!(files.iter().any(|file| fs::read(file).expect("there") == got));
    place.run(&["verify"]).good();
    assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
}

#[test]
fn help_has_examples_and_shells_are_completed() {
    for command in ["put", "get", "ls", "stat", "rm", "verify", "doctor", "demo", "bench"] {
        let run = railring(&[command, "--help"]).good();
        assert!(run.text().contains("Example"), "{command}: {}", run.text());
    }
    for shell in ["bash", "zsh", "fish"] {
        let run = railring(&["completions", shell]).good();
        assert!(run.text().contains("verify"), "{shell}");
    }
    assert!(railring(&["--version"]).good().text().starts_with("railring "));
}

#[test]
fn the_demonstration_runs_on_any_file_and_leaves_nothing() {
    let place = Place::new(0);
    let file = place.file("f", 5_000_000, 5);
    let dir = place.dir.path().to_str().expect("UTF-8");
    let run = railring(&["demo", file.to_str().expect("UTF-8"), "--dir", dir]).good();
    for words in ["disk0", "disk1", "verified", "all 5,000,000 bytes are equal", "Removed"] {
        assert!(run.text().contains(words), "no '{words}' in: {}", run.text());
    }
    let json = railring(&["demo", file.to_str().expect("UTF-8"), "--dir", dir, "--json"]).good();
    let report = &json.json()[0];
    assert_eq!(report["equal"], true);
    let verified = |rail: usize| report["rails"][rail]["verified_bytes"].as_u64().expect("there");
    assert_eq!(verified(0) + verified(1), 5_000_000);
    let left: Vec<_> = fs::read_dir(dir).expect("there").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_trace_says_where_the_time_went() {
    let place = Place::new(2);
    // Three reads: the tool reads 4 MiB at a time.
    let file = place.put("t/x", 9_000_001, &["--stripe", "1M", "--block", "4K"]);
    let run = place.run(&["get", "t/x", "-o", "out", "--trace"]).good();
    let text = run.text();
    for word in ["3 reads", "mostly waited for: ", "disk ", "the slowest begins at", "attempts"] {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
    assert!(text.contains("publish") && text.contains("stripe "), "{text}");
    // The object goes to standard output, so the trace goes beside it.
    let run = place.run(&["get", "t/x", "--trace"]).good();
    assert!(run.out == fs::read(&file).expect("the file") && run.err.contains("3 reads"));
    let run = place.run(&["get", "t/x", "-o", "out", "--json"]).good();
    assert!(run.json()[0].get("trace").is_none(), "nothing was traced");
}

#[test]
fn a_trace_as_json_adds_up() {
    let place = Place::new(2);
    place.put("t/x", 9_000_001, &["--stripe", "1M", "--block", "4K"]);
    let arguments = ["get", "t/x", "-o", "out", "--trace", "--range", "5..8000000", "--json"];
    let run = place.run(&arguments).good();
    let trace = &run.json()[0]["trace"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let sum = |list: &serde_json::Value, field: &str| -> u64 {
        list.as_array().expect("a list").iter().map(|entry| number(&entry[field])).sum()
    };
    assert_eq!((number(&trace["reads"]), sum(&trace["rails"], "bytes")), (2, 8_000_000 - 5));
    assert!(sum(&trace["rails"], "moved_bytes") > 8_000_000, "whole blocks, and their tables");
    for traced in [trace, &trace["slowest"]] {
        let stages = &traced["stages"];
        let names = ["plan_ns", "queue_ns", "wire_ns", "disk_ns", "verify_ns", "publish_ns"];
        let all: u64 = names.into_iter().map(|name| number(&stages[name])).sum();
        assert_eq!(all, number(&stages["wall_ns"]));
        assert!(number(&stages["disk_ns"]) > 0 && number(&stages["wire_ns"]) == 0);
        assert!(traced["bottleneck"].is_string());
    }
    let slowest = &trace["slowest"];
    assert_eq!(sum(&slowest["rails"], "bytes"), number(&slowest["bytes"]));
    let records = slowest["records"].as_array().expect("a list");
    let disk = records.iter().filter(|record| record["kind"] == "disk");
    assert_eq!(disk.count() as u64, sum(&slowest["rails"], "pieces"));
    assert_eq!(number(&slowest["records_dropped"]), 0);
}

#[test]
fn stats_say_what_each_rail_did() {
    let place = Place::new(2);
    place.put("s/x", 8_000_000, &["--stripe", "1M"]);
    let run = place.run(&["get", "s/x", "-o", "out", "--stats"]).good();
    let text = run.text();
    for word in ["disk0", "disk1", "connections", "registered", "errors", "8 stripes, 0 failed"] {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
    let run = place.run(&["get", "s/x", "-o", "out", "--stats", "--json"]).good().json();
    let rails = run[0]["rails"].as_array().expect("a list").clone();
    let each = |field: &str| -> Vec<u64> {
        rails.iter().map(|rail| rail[field].as_u64().expect("a number")).collect()
    };
    assert_eq!(each("bytes").iter().sum::<u64>(), 8_000_000);
    assert_eq!((each("connections_made"), each("failed")), (vec![1, 1], vec![0, 0]));
    let run = place.run(&["get", "s/x", "--range", "..5", "--stats"]).good();
    assert!(run.out.len() == 5 && run.err.contains("connections"), "{}", run.err);
    assert!(place.run(&["verify", "--stats"]).good().text().contains("connections"));
    let verify = place.run(&["verify", "--stats", "--json"]).good().json();
    assert_eq!(verify.last().expect("lines")["rails"].as_array().expect("a list").len(), 2);
}
