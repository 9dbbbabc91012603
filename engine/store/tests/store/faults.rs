//! Operations that fail: a full disk and I/O errors at every operation of a put and of a removal.

use crate::common::{Replicas, everything, key, new_store, open, options, pattern, put, read_all};
use crate::memory::{Fault, FaultKind, Memory};
use railring_store::{LookupError, PutError, Store};

const DISKS: usize = 3;

fn old() -> Vec<u8> {
    pattern(1, 9000)
}

fn new() -> Vec<u8> {
    pattern(2, 13_000)
}

fn prepared() -> (Memory, Store) {
    let (memory, store) = new_store(DISKS);
    put(&store, "n/k", &old(), &options(4096, 2)).expect("room");
    (memory, store)
}

/// Runs `act` with every possible fault until one comes too late to matter.
fn with_every_fault(
    kind: FaultKind,
    times: usize,
    mut act: impl FnMut(&Memory, &Store, &str) -> bool,
) {
    for at in 0.. {
        let (memory, store) = prepared();
        memory.set_fault(Some(Fault { kind, at, times }));
        if act(&memory, &store, &format!("{kind:?} at {at}, {times} times")) {
            assert!(at > 20, "a put has more than {at} operations");
            return;
        }
    }
}

/// The error names the directory, and all space is free without reopening: a full disk does not
/// refuse removing.
fn check_refusal_for_space(memory: &Memory, error: &PutError, context: &str) {
    assert!(error.to_string().contains("/disk"), "{context}: {error}");
    let for_ever = !context.contains(" 1 times");
    if for_ever && matches!(error, PutError::Indeterminate { .. }) {
        // A directory that cannot be synced at all cannot take anything back either.
        return;
    }
    assert!(matches!(error, PutError::DiskFull { .. }), "{context}: {error}");
    for disk in 0..DISKS {
        let mut left = memory.file_names(&format!("/disk{disk}/tmp"));
        // For the same reason an empty claim stays.
        left.retain(|file| !(for_ever && file.ends_with(".put")));
        assert_eq!(left, Vec::<String>::new(), "{context}");
    }
}

/// After a failed or a successful put, with the fault gone: exactly one of both objects, whole,
/// and nothing left over. True if the put never met the fault.
fn check_put(memory: &Memory, store: &Store, context: &str) -> bool {
    let result = put(store, "n/k", &new(), &options(4096, 2));
    memory.set_fault(None);
    let now = store.find(&key("n/k")).expect(context).expect(context);
    let bytes = read_all(memory, &now.placement).expect(context);
    match &result {
        Ok(report) => {
            assert_eq!(now.placement, report.placement, "{context}");
            assert!(bytes == new(), "{context}");
        }
        Err(PutError::Indeterminate { .. }) => {
            assert!(bytes == old() || bytes == new(), "{context}")
        }
        Err(e) => assert!(bytes == old(), "{context}: {e}"),
    }
    if let Err(e) = &result
        && context.starts_with("NoSpace")
    {
        check_refusal_for_space(memory, e, context);
    }
    let again = open(memory, DISKS);
    let all = everything(memory, &again, Replicas::All).expect(context);
    assert!(all.len() == 1 && all[0].2 == bytes, "{context}");
    for disk in 0..DISKS {
        let left = memory.file_names(&format!("/disk{disk}/tmp"));
        assert_eq!(left, Vec::<String>::new(), "{context}");
        let manifests = memory.file_names(&format!("/disk{disk}/objects"));
        let manifests = manifests.iter().filter(|f| f.ends_with(".manifest")).count();
        assert_eq!(manifests, 1, "{context}");
    }
    result.is_ok_and(|r| r.warnings.is_empty())
}

#[test]
fn a_full_disk_at_any_operation_publishes_nothing() {
    with_every_fault(FaultKind::NoSpace, 1, check_put);
    with_every_fault(FaultKind::NoSpace, usize::MAX, check_put);
}

#[test]
fn an_io_error_at_any_operation_leaves_one_whole_object() {
    with_every_fault(FaultKind::Io, 1, check_put);
    with_every_fault(FaultKind::Io, 2, check_put);
    with_every_fault(FaultKind::Io, usize::MAX, check_put);
}

#[test]
fn a_removal_that_fails_leaves_the_object_whole_or_gone() {
    with_every_fault(FaultKind::Io, 1, |memory, store, context| {
        let result = store.remove(&key("n/k"));
        memory.set_fault(None);
        let again = open(memory, DISKS);
        let all = everything(memory, &again, Replicas::MayBeMissing).expect(context);
        assert!(all.is_empty() || result.is_err() && all[0].2 == old(), "{context}");
        assert!(again.remove(&key("n/k")).is_ok(), "{context}");
        assert_eq!(memory.file_names("/disk1/objects"), Vec::<String>::new(), "{context}");
        result.is_ok()
    });
}

#[test]
fn a_lookup_that_fails_says_so_and_is_not_an_absent_object() {
    for at in 0..8 {
        let (memory, store) = prepared();
        memory.set_fault(Some(Fault { kind: FaultKind::Io, at, times: 1 }));
        match store.lookup(&key("n/k")) {
            Ok(found) => assert!(found.is_some()),
            Err(e) => assert!(matches!(&e, LookupError::File(_)), "{e}"),
        }
    }
}
