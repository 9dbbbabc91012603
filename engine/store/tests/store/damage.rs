//! Damage and disagreement on disk: what is found out, what is survived, and what is said.

use crate::common::{
    Replicas, directories, everything, key, new_store, open, open_as, options, pattern, put,
    read_all,
};
use crate::memory::Memory;
use railring_store::{
    FormatError, ListEntry, LookupError, OpenError, OpenMode, PutError, Removed, Store,
    StoreWarning,
};
use std::path::{Path, PathBuf};

/// Files of one kind, one for each directory that has it.
fn files(memory: &Memory, suffix: &str) -> Vec<String> {
    let mut files = memory.file_names("/disk");
    files.retain(|f| f.ends_with(suffix));
    files
}

fn flip(memory: &Memory, file: &str, byte: usize) {
    memory.tamper(file, |bytes| bytes[byte] ^= 1 << (byte % 8));
}

#[test]
fn a_flipped_bit_anywhere_in_a_manifest_is_survived_and_reported() {
    let (memory, store) = new_store(2);
    let bytes = pattern(1, 5000);
    put(&store, "n/k", &bytes, &options(4096, 1)).expect("room");
    let manifest = files(&memory, ".manifest").remove(0);
    let good = memory.contents(&manifest);
    for byte in 0..good.len() {
        flip(&memory, &manifest, byte);
        let found = store.find(&key("n/k")).expect("the other is good").expect("put");
        assert!(
            matches!(&found.warnings[..], [StoreWarning::ManifestDamaged { directory, .. }]
                if directory.as_path() == Path::new("/disk0")),
            "byte {byte}: {:?}",
            found.warnings
        );
        assert_eq!(read_all(&memory, &found.placement).as_ref(), Ok(&bytes));
        flip(&memory, &manifest, byte);
    }
    for len in 0..good.len() {
        memory.tamper(&manifest, |b| b.truncate(len));
        let found = store.find(&key("n/k")).expect("the other is good").expect("put");
        assert_eq!(found.warnings.len(), 1, "cut to {len}");
        memory.tamper(&manifest, |b| b.clone_from(&good));
    }
    assert_eq!(store.find(&key("n/k")).expect("good").expect("put").warnings, []);
}

#[test]
fn damage_in_all_directories_is_an_error_and_no_older_generation_is_served() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", b"old", &options(4096, 1)).expect("room");
    let pin = store.pin(&key("n/k")).expect("good");
    put(&store, "n/k", b"new", &options(4096, 1)).expect("room");
    for manifest in files(&memory, ".manifest").iter().filter(|f| f.contains("-0000000000000002-"))
    {
        flip(&memory, manifest, 100);
    }
    let error = store.lookup(&key("n/k")).expect_err("damaged");
    assert!(
        matches!(&error, LookupError::Damaged { generation: 2, replicas, .. }
        if replicas.len() == 2),
        "{error}"
    );
    let listed: Vec<_> = store.list("n/").map(|e| e.expect("readable")).collect();
    assert!(matches!(&listed[..], [ListEntry::Damaged(LookupError::Damaged { .. })]), "{listed:?}");
    // It can be replaced, and it can be removed.
    drop(pin);
    put(&store, "n/k", b"newer", &options(4096, 1)).expect("room");
    let all = everything(&memory, &store, Replicas::All);
    assert_eq!(all, Ok(vec![("n/k".to_owned(), 3, b"newer".to_vec())]));
    for manifest in files(&memory, ".manifest") {
        flip(&memory, &manifest, 9);
    }
    let text = store.lookup(&key("n/k")).expect_err("damaged").to_string();
    assert!(text.contains("version"), "{text}");
    assert_eq!(store.remove(&key("n/k")).expect("removed"), Removed::Gone);
    assert_eq!(files(&memory, ".manifest"), Vec::<String>::new());
    assert_eq!(files(&memory, ".data"), Vec::<String>::new());
}

#[test]
fn valid_manifests_that_disagree_are_a_conflict_that_names_the_directories() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", &pattern(1, 5000), &options(4096, 1)).expect("room");
    // Another history of the same store: the same generation, put on a copy of it.
    let (other_memory, other) = new_store(2);
    put(&other, "n/k", &pattern(2, 5000), &options(4096, 1)).expect("room");
    let names = (files(&memory, ".manifest"), files(&other_memory, ".manifest"));
    assert_eq!(names.0, names.1, "both histories draw the same random numbers");
    memory.tamper(&names.0[1], |b| *b = other_memory.contents(&names.1[1]));
    let error = store.lookup(&key("n/k")).expect_err("no vote");
    assert!(
        matches!(&error, LookupError::Conflict { generation: 1, directories, .. }
        if *directories == crate::common::directories(2)),
        "{error}"
    );
    assert!(error.to_string().contains("/disk0, /disk1"), "{error}");
    let listed: Vec<_> = store.list("").map(|e| e.expect("readable")).collect();
    assert!(
        matches!(&listed[..], [ListEntry::Damaged(LookupError::Conflict { .. })]),
        "{listed:?}"
    );
    let report = store.gc().expect("runs");
    assert_eq!((report.removed, report.repaired), (0, 0), "nothing is decided for the user");
}

#[test]
fn a_missing_or_damaged_manifest_is_written_again_by_gc() {
    let (memory, store) = new_store(3);
    put(&store, "n/k", b"bytes", &options(4096, 1)).expect("room");
    let manifests = files(&memory, ".manifest");
    let good = memory.contents(&manifests[0]);
    flip(&memory, &manifests[0], 70);
    memory.forget(&manifests[2]);
    let warnings = store.find(&key("n/k")).expect("good").expect("put").warnings;
    assert!(
        matches!(
            &warnings[..],
            [StoreWarning::ManifestDamaged { .. }, StoreWarning::ManifestMissing { .. }]
        ),
        "{warnings:?}"
    );
    assert_eq!(store.gc().expect("runs").repaired, 2);
    assert!(manifests.iter().all(|m| memory.contents(m) == good));
}

#[test]
fn stat_tells_missing_short_and_foreign_data_files() {
    let (memory, store) = new_store(3);
    put(&store, "n/k", &pattern(1, 12_000), &options(4096, 1)).expect("room");
    let data = files(&memory, ".data");
    let state = || {
        let stat = store.stat(&key("n/k")).expect("good").expect("put");
        stat.files.iter().map(|f| (f.is_good(), f.file_bytes)).collect::<Vec<_>>()
    };
    let whole = (true, Some(12_288));
    assert_eq!(state(), [whole, whole, whole]);
    flip(&memory, &data[1], 40);
    memory.tamper(&data[2], |b| b.truncate(12_287));
    assert_eq!(state(), [whole, (false, Some(12_288)), (false, Some(12_287))]);
    memory.forget(&data[0]);
    assert_eq!(state()[0], (false, None));
    assert!(store.lookup(&key("n/k")).expect("manifests are good").is_some());
}

#[test]
fn a_damaged_floor_is_survived_unless_all_are() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", b"1", &options(4096, 1)).expect("room");
    store.remove(&key("n/k")).expect("removed");
    flip(&memory, "/disk0/floor", 16);
    let report = put(&store, "n/k", b"2", &options(4096, 1)).expect("one floor is good");
    assert_eq!(report.placement.generation, 2);
    assert!(matches!(report.warnings[..], [StoreWarning::FloorDamaged { .. }]));
    memory.tamper("/disk1/floor", |b| b.clear());
    let error = put(&store, "n/k", b"3", &options(4096, 1)).expect_err("no floor is good");
    assert!(matches!(error, PutError::FloorDamaged { .. }), "{error}");
    assert_eq!(everything(&memory, &store, Replicas::All).map(|a| a[0].1), Ok(2));
}

fn refused(memory: &Memory, list: &[PathBuf], mode: OpenMode) -> OpenError {
    open_as(memory, list, mode).map(|_| ()).expect_err("refused")
}

#[test]
fn other_orders_stores_and_counts_are_refused_by_name() {
    let all = directories(4);
    let memory = Memory::new(&all);
    let create =
        |dirs: &[PathBuf]| Store::create_on(std::sync::Arc::new(memory.clone()), dirs).map(|_| ());
    create(&all[..3]).expect("new");
    create(&all[3..]).expect("new");
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly, OpenMode::Degraded] {
        let swapped = [all[1].clone(), all[0].clone(), all[2].clone()];
        let error = refused(&memory, &swapped, mode);
        assert!(
            matches!(&error, OpenError::WrongOrder { index: 1, position: 0, expected, .. }
            if expected.as_ref() == Some(&all[0])),
            "{error}"
        );
        let foreign = [all[0].clone(), all[3].clone(), all[2].clone()];
        let error = refused(&memory, &foreign, mode);
        assert!(
            matches!(&error, OpenError::OtherStore { directory, other, .. }
            if (directory, other) == (&all[3], &all[0])),
            "{error}"
        );
        let twice = [all[0].clone(), all[0].clone(), all[2].clone()];
        assert!(matches!(refused(&memory, &twice, mode), OpenError::DuplicateDirectory { .. }));
        assert!(matches!(refused(&memory, &[], mode), OpenError::DirectoryCount { given: 0 }));
    }
    let error = refused(&memory, &all[..2], OpenMode::ReadWrite);
    assert!(matches!(error, OpenError::WrongCount { given: 2, count: 3 }), "{error}");
    let error =
        refused(&memory, &[all[0].clone(), "/gone".into(), all[2].clone()], OpenMode::ReadOnly);
    assert!(matches!(&error, OpenError::DirectoryLost { position: 1, .. }), "{error}");
    let error = create(&all[..2]).expect_err("a store is there");
    assert!(error.to_string().contains("/disk0 belongs to a store already"), "{error}");
    memory.tamper("/disk1/railring-store", |b| b[8] = 9);
    let error = refused(&memory, &all[..3], OpenMode::Degraded);
    assert!(matches!(error, OpenError::UnknownVersion { version: 9, .. }), "{error}");
    memory.tamper("/disk1/railring-store", |b| (b[8], b[20]) = (1, !b[20]));
    let error = refused(&memory, &all[..3], OpenMode::ReadOnly);
    assert!(
        matches!(&error, OpenError::IdentityDamaged {
                directory, reason: FormatError::Checksum { .. } }
        if *directory == all[1]),
        "{error}"
    );
    memory.forget("/disk1/railring-store");
    let error = refused(&memory, &all[..3], OpenMode::ReadWrite);
    assert!(matches!(error, OpenError::NotAStore { position: 1, .. }), "{error}");
}

#[test]
fn a_lost_directory_costs_only_what_had_no_copy_elsewhere() {
    let (memory, store) = new_store(3);
    let bytes = pattern(1, 40_000);
    put(&store, "n/two", &bytes, &options(4096, 2)).expect("room");
    put(&store, "n/one", &bytes, &options(4096, 1)).expect("room");
    let whole = store.lookup(&key("n/one")).expect("good").expect("put");
    memory.forget("/disk1/railring-store");
    let all = directories(3);
    let two_left = [all[0].clone(), all[2].clone()];
    for list in [&all[..], &two_left] {
        let store = open_as(&memory, list, OpenMode::Degraded).expect("two are left");
        assert!(matches!(store.warnings(), [StoreWarning::DirectoryLost { .. }]));
        let placement = store.lookup(&key("n/two")).expect("good").expect("put");
        assert_eq!(read_all(&memory, &placement).as_ref(), Ok(&bytes));
        let placement = store.lookup(&key("n/one")).expect("good").expect("put");
        placement.validate().expect("still a placement");
        let lost = if list.len() == 3 { "/disk1".to_owned() } else { format!("{}/1", store.id()) };
        for (stripe, before) in placement.stripes.iter().zip(&whole.stripes) {
            assert_eq!(stripe.owners, before.owners);
            let endpoint = &placement.sources[usize::from(stripe.owners[0].source)].endpoint;
            let was = &whole.sources[usize::from(before.owners[0].source)].endpoint;
            assert_eq!(*endpoint, if was == "/disk1" { lost.clone() } else { was.clone() });
        }
        assert!(store.pin(&key("n/two")).expect("good").is_some());
        let error = put(&store, "n/k", b"x", &options(4096, 1)).expect_err("read only");
        assert!(matches!(error, PutError::NotWritable { mode: OpenMode::Degraded }), "{error}");
        assert!(store.remove(&key("n/two")).is_err() && store.gc().is_err());
    }
}

#[test]
fn files_that_no_store_writes_are_reported_and_left_alone() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", b"x", &options(4096, 2)).expect("room");
    let backend: &dyn railring_store::StorageBackend = &memory;
    let leaf = files(&memory, ".data").remove(0);
    let leaf = leaf.rsplit_once('/').expect("a path").0;
    for file in ["/disk0/tmp/notes.txt", "/disk1/tmp/0.put", &format!("{leaf}/readme")] {
        backend.create(file.as_ref()).expect("room");
    }
    let store_again = open(&memory, 2);
    let unknown = |w: &StoreWarning| matches!(w, StoreWarning::UnknownFile { .. });
    assert_eq!(store_again.warnings().iter().filter(|w| unknown(w)).count(), 2);
    assert_eq!(store.gc().expect("runs").warnings.iter().filter(|w| unknown(w)).count(), 3);
    assert_eq!(memory.file_names("/disk0/tmp"), ["/disk0/tmp/notes.txt"]);
    assert_eq!(everything(&memory, &store, Replicas::All).map(|a| a.len()), Ok(1));
}
