//! Signals and broken pipes: work that is stopped cleans up, and a reader that left is no failure.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Place, Run, seed};

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    // It may have ended; then there is nobody to tell.
    let _ = kill_process(pid, signal);
}

fn spawn(place: &Place, arguments: &[&str]) -> Child {
    let mut command = place.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("runs")
}

/// What a signal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Nothing: the work was done before.
    TooLate,
    /// It ended the work cleanly: status 1 and a word.
    Interrupted,
    /// It ended the process before that had begun to listen, so before it did anything.
    TooEarly,
}

fn effect(child: Child) -> Effect {
    let output = child.wait_with_output().expect("ends");
    match output.status.code() {
        None => Effect::TooEarly,
        Some(0) => Effect::TooLate,
        Some(_) => {
            Run::of(output).bad(1, &["interrupted"]);
            Effect::Interrupted
        }
    }
}

#[test]
fn an_interrupted_put_leaves_nothing() {
    let place = Place::new(2);
    place.put("a/b", 10, &[]);
    for sent in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut child = spawn(&place, &["put", "-", "--key", "a/c", "--stripe", "64K"]);
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(&vec![1; 3 << 20]).expect("written");
        // What is written is more than a pipe holds, so the put is under way; stdin stays open.
        signal(&child, sent);
        assert_eq!(effect(child), Effect::Interrupted);
        drop(stdin);
    }
    assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
    assert_eq!(place.run(&["ls", "--json"]).good().json().len(), 1);
    place.run(&["verify"]).good();
}

#[test]
fn an_interrupted_put_of_a_file_leaves_nothing() {
    let mut random = fastrand::Rng::with_seed(seed("an_interrupted_put_of_a_file"));
    let place = Place::new(2);
    place.put("a/b", 10, &[]);
    let file = place.file("f", 60_000_000, 1);
    let file = file.to_str().expect("UTF-8").to_owned();
    // Microseconds until the signal; what comes too early or too late narrows them.
    let (mut interrupted, mut soonest, mut latest) = (0, 5_000, 80_000);
    for _ in 0..100 {
        let child = spawn(&place, &["put", &file, "--key", "a/c", "--stripe", "64K"]);
        std::thread::sleep(Duration::from_micros(random.u64(soonest..latest)));
        signal(&child, Signal::INT);
        match effect(child) {
            Effect::TooEarly => {
                soonest += 2_000;
                latest = latest.max(soonest + 20_000);
                continue;
            }
            Effect::TooLate => {
                latest = (latest * 3 / 4).max(soonest + 2_000);
                continue;
            }
            Effect::Interrupted => {}
        }
        interrupted += 1;
        assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
        if interrupted == 6 {
            break;
        }
    }
    assert_eq!(interrupted, 6, "it could not be interrupted");
    place.run(&["verify"]).good();
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let place = Place::new(1);
    place.put("a/big", 3_000_000, &[]);
    let mut child = spawn(&place, &["get", "a/big", "-o", "-"]);
    // One byte, so that it is at work; then nobody reads, so it cannot look at the first signal.
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_exact(&mut [0]).expect("read");
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, Signal::INT);
    let status = child.wait().expect("ends");
    let by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(by, Some(Signal::INT.as_raw()), "{status}");
}

#[test]
fn an_interrupted_get_leaves_no_half_file() {
    let mut random = fastrand::Rng::with_seed(seed("an_interrupted_get"));
    let place = Place::new(2);
    place.put("a/big", 40_000_000, &["--stripe", "256K"]);
    fs::create_dir(place.path("out")).expect("made");
    fs::write(place.path("out/file"), "old").expect("written");
    let mut interrupted = 0;
    for _ in 0..10 {
        let child = spawn(&place, &["get", "a/big", "-o", "out/file"]);
        std::thread::sleep(Duration::from_millis(10 + random.u64(..60)));
        signal(&child, Signal::INT);
        let was = effect(child);
        let names: Vec<_> = fs::read_dir(place.path("out")).expect("there").flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let len = fs::metadata(place.path("out/file")).expect("there").len();
        assert_eq!(len, if was == Effect::TooLate { 40_000_000 } else { 3 });
        fs::write(place.path("out/file"), "old").expect("written");
        interrupted += usize::from(was == Effect::Interrupted);
    }
    println!("{interrupted} of 10 were interrupted");
}

#[test]
fn an_interrupted_verify_says_so() {
    let place = Place::new(2);
    place.put("a/big", 40_000_000, &["--stripe", "64K"]);
    for after in [10, 20, 30, 40, 60] {
        let child = spawn(&place, &["verify"]);
        std::thread::sleep(Duration::from_millis(after));
        signal(&child, Signal::INT);
        effect(child);
    }
    place.run(&["verify"]).good();
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let place = Place::new(2);
    place.put("a/big", 5_000_000, &[]);
    let mut child = spawn(&place, &["get", "a/big", "-o", "-"]);
    let mut stdout = child.stdout.take().expect("piped");
    let mut first = [0; 10];
    stdout.read_exact(&mut first).expect("read");
    drop(stdout);
    let run = Run::of(child.wait_with_output().expect("ends")).good();
    assert_eq!(run.err, "");
    for arguments in [&["ls"][..], &["ls", "--json"], &["stat", "a/big"], &["verify"]] {
        let mut child = spawn(&place, arguments);
        drop(child.stdout.take());
        let run = Run::of(child.wait_with_output().expect("ends")).good();
        assert_eq!(run.err, "", "{arguments:?}");
    }
}

#[test]
fn closed_standard_error_is_no_panic() {
    let place = Place::new(1);
    place.put("a/b", 10, &[]);
    let mut child = spawn(&place, &["get", "a/none"]);
    drop(child.stderr.take());
    Run::of(child.wait_with_output().expect("ends")).bad(1, &[]);
}
