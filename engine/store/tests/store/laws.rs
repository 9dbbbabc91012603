//! What is put comes back, byte for byte, whatever its size and however it is cut and copied.

use crate::common::{Replicas, everything, key, new_store, open, options, pattern, put, read_all};
use proptest::prelude::*;
use railring_store::{PutError, PutOptions};
use std::io::{self, Read};
use std::ops::ControlFlow;

/// Gives bytes in pieces of odd sizes, with interruptions.
struct Trickle<'a> {
    bytes: &'a [u8],
    step: usize,
    calls: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = self.step.min(buffer.len());
        self.bytes.read(&mut buffer[..len])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_put_comes_back(
        stripe in prop_oneof![
            1u64..64, 4000u64..4200, Just(4096), Just(8192), 60_000u64..70_000,
            Just(1 << 20), Just((1 << 20) + 1)
        ],
        stripes in 0u64..4, delta in -1i64..=1, known in any::<bool>(),
        n in 1usize..4, copies in 1u16..4, seed in any::<u64>(),
        step in prop_oneof![Just(1 << 22), 1usize..70_000],
    ) {
        let copies = copies.min(n as u16);
        let size = (stripe * stripes).saturating_add_signed(delta) as usize;
        prop_assume!(size / step < 20_000);
        let bytes = pattern(seed, size);
        let (memory, store) = new_store(n);
        let expected_size = known.then_some(size as u64);
        let options = PutOptions { expected_size, ..options(stripe, copies) };
        let mut last = 0;
        let mut progress = |p: railring_store::PutProgress| {
            assert!(p.bytes_done > last && p.bytes_total == expected_size);
            last = p.bytes_done;
            ControlFlow::Continue(())
        };
        let mut source = Trickle { bytes: &bytes, step, calls: 0 };
        let report = store.put(&key("n/k"), &mut source, &options, &mut progress).expect("room");
        prop_assert_eq!(last, size as u64);
        prop_assert_eq!(&report.warnings[..], &[][..]);
        drop(store);
        let store = open(&memory, n);
        prop_assert_eq!(store.warnings(), &[]);
        let placement = store.lookup(&key("n/k")).expect("good").expect("put");
        prop_assert_eq!(&placement, &report.placement);
        let valid = placement.validate().expect("its own");
        prop_assert_eq!(valid.size_bytes(), size as u64);
        let owners = (0..valid.stripe_count()).map(|i| valid.owners(i).len());
        prop_assert!(owners.into_iter().all(|owners| owners == usize::from(copies)));
        prop_assert_eq!(read_all(&memory, &placement).expect("verified"), bytes);
        let stat = store.stat(&key("n/k")).expect("good").expect("put");
        for file in &stat.files {
            prop_assert!(file.is_good());
            prop_assert_eq!(file.file_bytes, Some(file.expected_bytes));
        }
        let on_disk: usize = memory.file_names("/disk").iter().filter(|f| f.contains("objects"))
            .map(|f| memory.contents(f).len()).sum();
        prop_assert_eq!(on_disk as u64, report.bytes_written);
    }
}

#[test]
fn generations_grow_and_only_the_newest_stays() {
    let (memory, store) = new_store(2);
    for generation in 1..=3 {
        let bytes = pattern(generation, 10_000 * generation as usize);
        let report = put(&store, "n/k", &bytes, &options(4096, 2)).expect("room");
        assert_eq!(report.placement.generation, generation);
        let expected = vec![("n/k".to_owned(), generation, bytes)];
        assert_eq!(everything(&memory, &store, Replicas::All), Ok(expected));
        assert_eq!(memory.file_names("/disk0/objects").len(), 2, "one manifest, one data file");
    }
    store.remove(&key("n/k")).expect("removed");
    assert_eq!(memory.file_names("/disk0/objects"), Vec::<String>::new());
    // Numbers are not used again, not even by another handle.
    let store = open(&memory, 2);
    let report = put(&store, "n/k", b"new", &options(4096, 1)).expect("room");
    assert_eq!(report.placement.generation, 4);
}

#[test]
fn objects_are_listed_by_prefix() {
    let (_, store) = new_store(2);
    for name in ["a/1", "a/2", "ab/1", "b/a/1"] {
        put(&store, name, name.as_bytes(), &options(4096, 1)).expect("room");
    }
    let listed = |prefix: &str| {
        let entries = store.list(prefix).map(|e| match e.expect("good") {
            railring_store::ListEntry::Object(o) => o.key.to_string(),
            other => panic!("{other:?}"),
        });
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(listed(""), ["a/1", "a/2", "ab/1", "b/a/1"]);
    assert_eq!(listed("a/"), ["a/1", "a/2"]);
    assert_eq!(listed("a"), ["a/1", "a/2", "ab/1"]);
    assert_eq!(listed("c"), Vec::<String>::new());
}

#[test]
fn small_objects_are_spread_over_all_disks() {
    let (memory, store) = new_store(4);
    for i in 0..64 {
        put(&store, &format!("n/{i}"), b"x", &options(4096, 1)).expect("room");
    }
    for disk in 0..4 {
        let data = memory.file_names(&format!("/disk{disk}/objects"));
        let data = data.iter().filter(|f| f.ends_with(".data")).count();
        assert!((6..=28).contains(&data), "disk {disk} has {data} of 64");
    }
}

#[test]
fn impossible_sizes_are_refused_before_anything_is_written() {
    let (memory, store) = new_store(2);
    let before = memory.log_len();
    let good = options(4096, 1);
    let bad = [
        PutOptions { stripe_bytes: 0, ..good.clone() },
        PutOptions { stripe_bytes: (4 << 30) + 1, ..good.clone() },
        PutOptions { block_bytes: 4097, ..good.clone() },
        PutOptions { copies: 0, ..good.clone() },
        PutOptions { copies: 3, ..good.clone() },
        PutOptions { expected_size: Some(65_535 * 4096 + 1), ..good.clone() },
    ];
    for options in bad {
        let error = put(&store, "n/k", b"x", &options).expect_err("refused");
        assert!(matches!(error, PutError::Geometry(_) | PutError::Copies { .. }), "{error}");
    }
    assert_eq!(memory.log_len(), before);
}

#[test]
fn a_stream_of_too_many_stripes_is_refused_and_leaves_nothing() {
    let (memory, store) = new_store(1);
    memory.become_sink();
    let bytes = vec![7; 65_536];
    let error = put(&store, "n/k", &bytes, &options(1, 1)).expect_err("one too many");
    assert!(matches!(error, PutError::Geometry(_)), "{error}");
    assert_eq!(memory.file_names("/disk0/tmp"), Vec::<String>::new());
    assert!(store.lookup(&key("n/k")).expect("good").is_none());
}

#[test]
fn a_source_that_is_not_as_long_as_expected_is_refused_and_leaves_nothing() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", b"old", &options(4096, 1)).expect("room");
    let bytes = pattern(1, 20_000);
    let expecting = |size| PutOptions { expected_size: Some(size), ..options(4096, 2) };
    let shrank = put(&store, "n/k", &bytes, &expecting(20_001)).expect_err("shrank");
    assert!(matches!(shrank, PutError::SourceShrank { expected: 20_001, actual: 20_000 }));
    let grew = put(&store, "n/k", &bytes, &expecting(19_999)).expect_err("grew");
    assert!(matches!(grew, PutError::SourceGrew { expected: 19_999 }));
    let cancelled = store.put(&key("n/k"), &mut &bytes[..], &options(4096, 2), &mut |p| {
        if p.stripes_done == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(cancelled, Err(PutError::Cancelled)));
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }
    let go = &mut |_| ControlFlow::Continue(());
    let broken = store.put(&key("n/k"), &mut Broken, &options(4096, 2), go);
    assert!(matches!(broken, Err(PutError::Source(_))));
    let old = vec![("n/k".to_owned(), 1, b"old".to_vec())];
    assert_eq!(everything(&memory, &store, Replicas::All), Ok(old));
    for disk in ["/disk0/tmp", "/disk1/tmp"] {
        assert_eq!(memory.file_names(disk), Vec::<String>::new());
    }
}
