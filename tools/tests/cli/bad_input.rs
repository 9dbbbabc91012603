//! Bad input: each a clear error with its exit status, and nothing lost.

use std::fs;
use std::process::Command;

use crate::rig::{Place, join, railring};

#[test]
fn command_lines_that_make_no_sense_have_status_2() {
    let place = Place::new(2);
    let file = place.file("f", 10, 1);
    let file = file.to_str().expect("UTF-8");
    place.put("a/b", 10, &[]);
    let long = format!("a/{}", "x".repeat(10_000));
    let cases: &[(&[&str], &[&str])] = &[
        (&["put", file, "--stripe", "0"], &["--stripe", "1 to 4294967296"]),
        (&["put", file, "--stripe", "4097M"], &["--stripe", "4 GiB"]),
        (&["put", file, "--stripe", "12Q"], &["--stripe", "unknown unit 'Q'"]),
        (&["put", file, "--stripe", "99999999999999999999"], &["--stripe", "sizes go up to"]),
        (&["put", file, "--block", "5000"], &["--block", "power of two"]),
        (&["put", file, "--block", "2M"], &["--block", "power of two"]),
        (&["put", file, "--copies", "0"], &["--copies"]),
        (&["put", file, "--copies", "3"], &["--copies 3", "names 2"]),
        (&["put", file, "--key", "nokey"], &["--key nokey", "NAMESPACE/KEY"]),
        (&["put", file, "--key", "a/../b"], &["path component"]),
        (&["put", file, "--key", "a//b"], &["empty component"]),
        (&["put", file, "--key", "a/b\nc"], &["control character"]),
        (&["put", file, "--key", &long], &["10000 bytes", "1024"]),
        (&["put", file, file, "--key", "a/b"], &["must end in '/'"]),
        (&["put", "-"], &["use --key"]),
        (&["put"], &["FILE"]),
        (&["get", "a/../b"], &["path component"]),
        (&["get", &long], &["10000 bytes"]),
        (&["get", "a/b", "--range", "5..3"], &["--range", "before it starts"]),
        (&["get", "a/b", "--range", "7"], &["--range", "A..B"]),
        (&["get", "a/b", "--range", "0..18446744073709551616"], &["the end", "sizes go up"]),
        (&["rm"], &["NS/KEY"]),
        (&["nonsense"], &["nonsense"]),
    ];
    for (arguments, words) in cases {
        place.run(arguments).bad(2, words);
    }
    railring(&["put", file]).bad(2, &["--store"]);
    railring(&["bench", "ring", "--pairs", "0"]).bad(2, &["--pairs"]);
    railring(&["bench", "ring", "--seconds", "nan"]).bad(2, &["--seconds"]);
    railring(&["bench", "gate"]).bad(2, &["--idle-turns"]);
    railring(&["completions", "tcsh"]).bad(2, &["tcsh"]);
    // Nothing of all that changed the store.
    assert_eq!(place.run(&["ls", "--json"]).good().json().len(), 1);
}

#[test]
fn a_nul_in_a_key_is_refused() {
    // An argument cannot hold one; a completion of a stream of names could.
    let error = "a/b\0c".parse::<railring::ObjectKey>().expect_err("refused");
    assert!(error.to_string().contains("NUL"), "{error}");
}

#[test]
fn what_is_not_there_is_said() {
    let place = Place::new(2);
    place.put("a/b", 10, &[]);
    place.run(&["get", "a/c"]).bad(1, &["there is no object a/c"]);
    place.run(&["stat", "a/c"]).bad(1, &["there is no object a/c"]);
    place.run(&["rm", "a/c"]).bad(1, &["there is no object a/c"]);
    place.run(&["put", "nowhere"]).bad(1, &["nowhere", "No such file"]);
    let folder = place.dir.path().to_str().expect("UTF-8").to_owned();
    place.run(&["put", &folder, "--key", "a/d"]).bad(1, &["is a directory"]);
    place.run(&["get", "a/b", "-o", &folder]).bad(1, &["is a directory"]);
    place.run(&["get", "a/b", "-o", "no/such/file"]).bad(1, &["no/such/file"]);
    // One that is missing does not stop the others.
    let good = place.file("good", 5, 5);
    place.run(&["put", "nowhere", good.to_str().expect("UTF-8")]).bad(1, &["nowhere"]);
    place.run(&["stat", "files/good"]).good();
}

#[test]
fn ranges_beyond_the_object_are_refused() {
    let place = Place::new(2);
    place.put("a/b", 1000, &[]);
    for range in ["0..1001", "1001..", "999..1001", "0..18446744073709551615"] {
        place.run(&["get", "a/b", "--range", range]).bad(1, &["1,000 bytes"]);
    }
    place.run(&["get", "a/b", "--range", "0..1001", "-o", "out"]).bad(1, &["not within"]);
    assert!(!place.path("out").exists(), "nothing is made for a range that is refused");
}

#[test]
fn directories_of_other_kinds_are_refused() {
    let place = Place::new(2);
    place.put("a/b", 1000, &[]);
    let run = |disks: &[std::path::PathBuf]| railring(&["ls", "--store", &join(disks)]);
    let [first, second] = [place.disks[0].clone(), place.disks[1].clone()];
    run(&[second.clone(), first.clone()]).bad(1, &["order"]);
    run(std::slice::from_ref(&first)).bad(1, &["has 2 directories, 1"]);
    run(&[first.clone(), first.clone()]).bad(1, &["given twice"]);
    run(&[first.clone(), place.path("missing")]).bad(1, &["missing", "is lost"]);
    let empty = place.path("empty");
    fs::create_dir(&empty).expect("made");
    run(&[first.clone(), empty.clone()]).bad(1, &["not a store's directory"]);
    let other = Place::new(2);
    other.put("c/d", 10, &[]);
    run(&[first.clone(), other.disks[1].clone()]).bad(1, &["store"]);
    // Writing is no more forgiving, and makes nothing of what is missing.
    let file = place.file("f", 5, 5);
    let file = file.to_str().expect("UTF-8");
    for second in [place.path("missing"), empty.clone()] {
        let store = join(&[first.clone(), second]);
        railring(&["put", file, "--store", &store]).bad(1, &[]);
    }
    assert!(!place.path("missing").exists());
    assert_eq!(fs::read_dir(&empty).expect("there").count(), 0);
    // Other people's files are no place for a new store.
    let full = place.path("full");
    fs::create_dir(&full).expect("made");
    fs::write(full.join("thesis"), "precious").expect("written");
    railring(&["put", file, "--store", &join(&[full])]).bad(1, &["not empty", "thesis"]);
}

#[test]
fn directories_that_cannot_be_written_are_said() {
    let place = Place::new(1);
    let file = place.file("f", 5, 5);
    let file = file.to_str().expect("UTF-8");
    fs::write(place.path("plain"), "a file").expect("written");
    let below = place.path("plain").join("disk");
    railring(&["put", file, "--store", &join(&[below])]).bad(1, &["plain/disk"]);
    // No directory can be made here, by anyone.
    railring(&["put", file, "--store", "/proc/railring"]).bad(1, &["/proc/railring"]);
}

#[test]
fn a_lost_directory_is_survived_where_there_are_copies() {
    let place = Place::new(3);
    let file = place.put("a/copied", 3_000_000, &["--stripe", "64K", "--copies", "2"]);
    place.put("a/single", 3_000_000, &["--stripe", "64K"]);
    fs::rename(&place.disks[1], place.path("away")).expect("moved");
    place.run(&["get", "a/copied"]).bad(1, &["disk1", "is lost", "degraded"]);
    let run = place.run(&["get", "a/copied", "--degraded"]).good();
    assert!(run.out == fs::read(file).expect("there") && run.err.contains("lost"), "{}", run.err);
    place.run(&["get", "a/single", "--degraded"]).bad(1, &["stripe", "disk1"]);
    let run = place.run(&["verify", "--degraded"]);
    assert_eq!(run.status, 1, "{run:?}");
    let bad: Vec<_> =
        run.text().lines().filter(|l| l.starts_with("BAD")).map(str::to_owned).collect();
    assert!(!bad.is_empty() && bad.iter().all(|line| line.contains("disk1")), "{bad:?}");
    let file = place.file("f", 5, 5);
    place.run(&["put", file.to_str().expect("UTF-8")]).bad(1, &["disk1", "is lost"]);
    assert!(!place.disks[1].exists(), "an unmounted disk's place is not filled");
}

/// A file system of a few megabytes, as root; nothing where that is not allowed.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &std::path::Path) -> Option<SmallDisk> {
        fs::create_dir_all(at).ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(at);
        let status = mount.stderr(std::process::Stdio::null()).status().ok()?;
        status.success().then(|| SmallDisk(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let place = Place::new(2);
    let Some(_disk) = SmallDisk::mount(&place.disks[1]) else {
        println!("SKIP a_full_disk_loses_nothing: cannot mount a tmpfs");
        return;
    };
    let small = place.put("a/b", 1_000_000, &["--stripe", "64K"]);
    let large = place.file("large", 20_000_000, 3);
    for key in ["a/b", "a/c"] {
        let large = large.to_str().expect("UTF-8");
        place.run(&["put", large, "--key", key]).bad(1, &["no space left", "disk1"]);
    }
    assert!(place.leftovers().is_empty(), "{:?}", place.leftovers());
    assert!(place.run(&["get", "a/b"]).good().out == fs::read(small).expect("there"));
    assert_eq!(place.run(&["ls", "--json"]).good().json().len(), 1);
    place.run(&["verify"]).good();
    place.put("a/c", 1_000_000, &[]);
}

#[test]
fn a_self_test_that_cannot_be_made_is_said_and_fails() {
    // Without the feature verbs, or without a device: either way nothing was tested.
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return println!("SKIP a_self_test_that_cannot_be_made: this machine has RDMA devices");
    }
    let run = railring(&["doctor", "--rdma-selftest", "--json"]);
    assert_eq!(run.status, 1);
    let told = run.json().pop().expect("a line");
    assert_eq!((&told["check"], &told["state"]), (&"self-test".into(), &"broken".into()));
    assert!(told["mend"].is_string(), "{told}");
}
