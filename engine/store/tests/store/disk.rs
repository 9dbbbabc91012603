//! The store on real directories: concurrency, pins, changing sources, and a writer that is killed.

use crate::common::{Replicas, everything, key, options, pattern, put, read_all};
use railring_store::{
    CreateError, DiskBackend, LookupError, OpenError, OpenMode, OpenOptions, PutError, PutOptions,
    Removed, Store, StoreWarning,
};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

struct Disks {
    _root: TempDir,
    list: Vec<PathBuf>,
}

fn disks(count: usize) -> Disks {
    let root = tempfile::tempdir().expect("a temporary directory");
    let path = root.path().canonicalize().expect("it is there");
    Disks { _root: root, list: (0..count).map(|i| path.join(format!("disk{i}"))).collect() }
}

fn open(list: &[PathBuf]) -> Store {
    Store::open(list, OpenOptions::default()).expect("a good store")
}

/// Names of data files and of everything in `tmp`.
fn files(list: &[PathBuf]) -> (usize, Vec<String>) {
    let (mut data, mut tmp) = (0, Vec::new());
    let mut todo = list.to_vec();
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).expect("readable").map(|e| e.expect("readable")) {
            let path = entry.path();
            let is_tmp = path.parent().is_some_and(|p| p.ends_with("tmp"));
            if path.is_dir() {
                todo.push(path);
            } else if is_tmp {
                tmp.push(path.display().to_string());
            } else if path.extension().is_some_and(|e| e == "data") {
                data += 1;
            }
        }
    }
    (data, tmp)
}

#[test]
fn directories_are_made_and_endpoints_are_their_canonical_paths() {
    let disks = disks(2);
    assert!(!Store::exists_in(&disks.list));
    let crooked: Vec<PathBuf> = disks
        .list
        .iter()
        .map(|d| d.parent().expect("has one").join(".").join(d.file_name().expect("has one")))
        .collect();
    let store = Store::create(&crooked).expect("new");
    let bytes = pattern(1, 3 << 20);
    let report = put(&store, "n/k", &bytes, &options(1 << 20, 2)).expect("room");
    assert!(Store::exists_in(&disks.list));
    let endpoints: Vec<_> =
        report.placement.sources.iter().map(|s| PathBuf::from(&s.endpoint)).collect();
    assert_eq!(endpoints, disks.list);
    assert_eq!(read_all(&DiskBackend, &report.placement), Ok(bytes));
    assert!(matches!(Store::create(&disks.list), Err(CreateError::AlreadyStore { .. })));
    let mixed = [disks.list[0].clone(), disks.list[1].with_extension("new")];
    assert!(
        matches!(Store::create(&mixed), Err(CreateError::AlreadyStore { .. })),
        "not half of one"
    );
}

#[test]
fn strange_directories_are_refused() {
    let disks = disks(2);
    fs::create_dir(&disks.list[0]).expect("room");
    fs::write(disks.list[0].join("letter.txt"), "mine").expect("room");
    let error = Store::create(&disks.list).expect_err("not empty");
    assert!(
        matches!(&error, CreateError::NotEmpty { file, .. } if file == "letter.txt"),
        "{error}"
    );
    assert!(matches!(open_error(&disks.list), OpenError::NotAStore { position: 0, .. }));
    assert!(matches!(open_error(&disks.list[1..]), OpenError::DirectoryLost { .. }));
    let file = disks.list[0].join("letter.txt");
    assert!(Store::create(std::slice::from_ref(&file)).is_err());
    assert!(matches!(open_error(&[file]), OpenError::DirectoryLost { .. }));
    assert!(matches!(Store::create(&[]), Err(CreateError::DirectoryCount { given: 0 })));
    let deep = disks.list[1].join("not/yet/there");
    assert!(
        Store::create(std::slice::from_ref(&deep)).is_ok() && deep.join("railring-store").exists()
    );
}

#[test]
fn a_disk_that_goes_away_is_an_error_and_is_not_made_anew() {
    let disks = disks(2);
    let store = Store::create(&disks.list).expect("new");
    let away = disks.list[1].with_extension("away");
    let bytes = pattern(1, 3 << 20);
    let mut unmount = |p: railring_store::PutProgress| {
        if p.stripes_done == 2 {
            fs::rename(&disks.list[1], &away).expect("ours");
            fs::create_dir(&disks.list[1]).expect("an empty mount point");
        }
        ControlFlow::Continue(())
    };
    let error = store.put(&key("n/k"), &mut &bytes[..], &options(1 << 20, 2), &mut unmount);
    let error = error.expect_err("a disk is gone").to_string();
    assert!(error.contains("disk1"), "{error}");
    assert_eq!(fs::read_dir(&disks.list[1]).expect("there").count(), 0, "nothing is made there");
    fs::remove_dir(&disks.list[1]).expect("empty");
    fs::rename(&away, &disks.list[1]).expect("ours");
    let store = open(&disks.list);
    assert!(store.lookup(&key("n/k")).expect("good").is_none());
    assert_eq!(files(&disks.list), (0, Vec::new()));
}

fn open_error(list: &[PathBuf]) -> OpenError {
    Store::open(list, OpenOptions::default()).map(|_| ()).expect_err("refused")
}

#[test]
fn unwritable_directories_are_named() {
    let disks = disks(2);
    let store = Store::create(&disks.list).expect("new");
    let read_only = |mode| {
        for dir in ["tmp", "objects"] {
            let path = disks.list[1].join(dir);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        }
    };
    read_only(0o555);
    if fs::write(disks.list[1].join("tmp/probe"), "").is_ok() {
        fs::remove_file(disks.list[1].join("tmp/probe")).expect("just made");
        read_only(0o755);
        println!("SKIP unwritable_directories_are_named: this user may write everywhere");
        return;
    }
    let error = put(&store, "n/k", &pattern(1, 9000), &options(4096, 2)).expect_err("refused");
    read_only(0o755);
    assert!(error.to_string().contains("disk1"), "{error}");
    assert_eq!(files(&disks.list), (0, Vec::new()));
}

#[test]
fn puts_of_one_key_at_once_all_succeed_and_readers_see_whole_objects() {
    let disks = disks(2);
    let store = Store::create(&disks.list).expect("new");
    let contents: Vec<Vec<u8>> = (0..4).map(|i| pattern(i, 150_000 + i as usize)).collect();
    let done = AtomicBool::new(false);
    let reader = |store: Store| {
        let mut seen = 0;
        let mut newest = 0;
        while !done.load(Ordering::Relaxed) {
            let pin = match store.pin(&key("n/k")) {
                Ok(pin) => pin,
                Err(LookupError::Busy { .. }) => continue,
                Err(e) => panic!("{e}"),
            };
            let Some(pin) = pin else { continue };
            assert!(pin.placement().generation >= newest, "generations only grow");
            newest = pin.placement().generation;
            let bytes = read_all(&DiskBackend, pin.placement()).expect("held, so it stays");
            assert!(contents.contains(&bytes));
            seen += 1;
        }
        seen
    };
    let mut generations = Vec::new();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| reader(open(&disks.list)));
        let writers: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(i, bytes)| {
                // Half with the same handle, half as other processes do.
                let own = (i % 2 == 0).then(|| open(&disks.list));
                let store = &store;
                scope.spawn(move || {
                    let store = own.as_ref().unwrap_or(store);
                    let once = || put(store, "n/k", bytes, &options(65_536, 2)).expect("room");
                    (0..6).map(|_| once().placement.generation).collect::<Vec<_>>()
                })
            })
            .collect();
        for writer in writers {
            let own = writer.join().expect("no panic");
            assert!(own.is_sorted(), "{own:?}");
            generations.extend(own);
        }
        done.store(true, Ordering::Relaxed);
        assert!(reading.join().expect("no panic") > 0);
    });
    generations.sort();
    assert_eq!(generations, (1..=24).collect::<Vec<_>>(), "each put has its own");
    store.gc().expect("nobody holds anything");
    assert_eq!(files(&disks.list), (2, Vec::new()));
    assert_eq!(everything(&DiskBackend, &store, Replicas::All).map(|a| a[0].1), Ok(24));
}

#[test]
fn pinned_files_stay_until_the_pin_is_gone() {
    let disks = disks(2);
    let store = Store::create(&disks.list).expect("new");
    let old = pattern(1, 20_000);
    put(&store, "n/k", &old, &options(4096, 1)).expect("room");
    let pin = open(&disks.list).pin(&key("n/k")).expect("good").expect("put");
    put(&store, "n/k", b"new", &options(4096, 1)).expect("room");
    let report = store.gc().expect("runs");
    assert_eq!((report.removed, report.pinned), (0, 1));
    assert_eq!(read_all(&DiskBackend, pin.placement()).as_ref(), Ok(&old));
    assert_eq!(store.stat(&key("n/k")).expect("good").expect("put").older_generations, [1]);
    drop(pin);
    assert_eq!(store.gc().expect("runs").removed, 1);

    let pin = store.pin(&key("n/k")).expect("good").expect("put");
    assert_eq!(store.remove(&key("n/k")).expect("removed"), Removed::DataPinned);
    assert!(store.lookup(&key("n/k")).expect("good").is_none());
    assert_eq!(read_all(&DiskBackend, pin.placement()), Ok(b"new".to_vec()));
    // A new object of the same name has other files.
    put(&store, "n/k", b"third", &options(4096, 1)).expect("room");
    assert_eq!(open(&disks.list).warnings(), []);
    drop(pin);
    assert!(matches!(open(&disks.list).warnings(), [StoreWarning::LeftoverSettled { .. }]));
    assert_eq!(files(&disks.list), (1, Vec::new()));
    assert_eq!(store.remove(&key("n/none")).expect("fine"), Removed::Absent);
}

#[test]
fn a_file_that_changes_while_it_is_put_is_refused() {
    let disks = disks(2);
    let store = Store::create(&disks.list).expect("new");
    let path = disks.list[0].with_extension("source");
    let original = pattern(1, 3 << 20);
    let attempt = |change: &dyn Fn(&fs::File)| {
        fs::write(&path, &original).expect("room");
        let file = fs::OpenOptions::new().write(true).open(&path).expect("ours");
        let mut first = true;
        let mut progress = |_| {
            if std::mem::take(&mut first) {
                change(&file);
            }
            ControlFlow::Continue(())
        };
        let error = store.put_file(&key("n/k"), &path, &options(1 << 20, 1), &mut progress);
        assert_eq!(files(&disks.list), (0, Vec::new()));
        error.map(|_| ()).expect_err("refused")
    };
    let shrank = attempt(&|file| file.set_len(2_000_000).expect("ours"));
    assert!(matches!(shrank, PutError::SourceShrank { expected: 3_145_728, actual: 2_000_000 }));
    let grew = attempt(&|file| file.set_len(4 << 20).expect("ours"));
    assert!(matches!(grew, PutError::SourceGrew { expected: 3_145_728 }), "{grew}");
    let changed = attempt(&|mut file| {
        std::thread::sleep(Duration::from_millis(20));
        file.write_all(b"x").expect("room");
    });
    assert!(matches!(changed, PutError::SourceChanged { .. }), "{changed}");
    let nothing = &mut |_| ControlFlow::Continue(());
    let error = store.put_file(&key("n/k"), &disks.list[0], &options(4096, 1), nothing);
    assert!(matches!(error, Err(PutError::NotAFile { .. })));
    let error =
        store.put_file(&key("n/k"), Path::new("/nowhere/at/all"), &options(4096, 1), nothing);
    assert!(matches!(error, Err(PutError::Source(_))));
    fs::write(&path, "").expect("room");
    let report =
        store.put_file(&key("n/k"), &path, &options(4096, 2), nothing).expect("empty is legal");
    assert_eq!((report.placement.size_bytes, report.placement.stripes.len()), (0, 0));
    assert!(store.pin(&key("n/k")).expect("good").is_some());
}

/// Not a test by itself: what the next one runs in a process of its own, and kills.
#[test]
fn child_that_puts_until_it_is_killed() {
    let Ok(root) = std::env::var("RAILRING_STORE_TEST_ROOT") else { return };
    let list = [Path::new(&root).join("disk0"), Path::new(&root).join("disk1")];
    let store = open(&list);
    for round in 0u64.. {
        let bytes = pattern(round, 300_000);
        let report = put(&store, "n/k", &bytes, &options(65_536, 2)).expect("room");
        // Acknowledged: from here on it must be there.
        println!("acknowledged {}", report.placement.generation);
    }
}

#[test]
fn a_killed_writer_leaves_what_it_acknowledged_and_nothing_else() {
    let disks = disks(2);
    drop(Store::create(&disks.list).expect("new"));
    let seed = fastrand::u64(..);
    println!("seed {seed:#x}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut acknowledged = 0;
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().expect("it runs"))
            .args(["--exact", "disk::child_that_puts_until_it_is_killed", "--nocapture"])
            .env("RAILRING_STORE_TEST_ROOT", disks.list[0].parent().expect("has one"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("itself");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let rounds = rng.usize(1..4);
        let mut acks = lines.lines().map_while(Result::ok);
        let mut wanted = rounds;
        while wanted > 0 {
            let line = acks.next().expect("it goes on until it is killed");
            let Some(text) = line.split("acknowledged ").nth(1) else { continue };
            acknowledged = text.trim().parse().expect("a number");
            wanted -= 1;
        }
        std::thread::sleep(Duration::from_micros(rng.u64(0..8000)));
        child.kill().expect("still running");
        child.wait().expect("killed");
        for line in acks {
            if let Some(text) = line.split("acknowledged ").nth(1) {
                acknowledged = text.trim().parse().unwrap_or(acknowledged);
            }
        }
        let store = open(&disks.list);
        let all = everything(&DiskBackend, &store, Replicas::All).expect("whole");
        assert!(all.len() == 1 && all[0].1 >= acknowledged, "seed {seed:#x}, round {round}");
        assert_eq!(files(&disks.list), (2, Vec::new()), "seed {seed:#x}, round {round}");
    }
}

#[test]
fn a_store_open_for_reading_writes_nothing() {
    let disks = disks(1);
    drop(Store::create(&disks.list).expect("new"));
    fs::write(disks.list[0].join("tmp/0000000000000001.data"), "left").expect("room");
    let store = Store::open(&disks.list, OpenOptions::new(OpenMode::ReadOnly)).expect("good");
    let error = put(&store, "n/k", b"x", &PutOptions::default()).expect_err("refused");
    assert!(matches!(error, PutError::NotWritable { mode: OpenMode::ReadOnly }), "{error}");
    assert_eq!(files(&disks.list).1.len(), 1);
    assert_eq!(open(&disks.list).warnings().len(), 1);
    assert_eq!(files(&disks.list).1.len(), 0);
}
