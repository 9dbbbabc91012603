//! Two users of one store at the same moment, with the moment chosen.

use crate::common::{key, new_store, open, options, put, read_all};

#[test]
fn a_pin_that_comes_second_holds_nothing_that_is_gone() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", b"old", &options(4096, 2)).expect("room");
    let other = open(&memory, 2);
    memory.before_try_lock(move || {
        other.remove(&key("n/k")).expect("removed");
    });
    assert!(store.pin(&key("n/k")).expect("good").is_none());

    put(&store, "n/k", b"old", &options(4096, 2)).expect("room");
    let other = open(&memory, 2);
    memory.before_try_lock(move || {
        put(&other, "n/k", b"new", &options(4096, 2)).expect("room");
    });
    let pin = store.pin(&key("n/k")).expect("good").expect("put");
    assert_eq!(pin.placement().generation, 3);
    assert_eq!(read_all(&memory, pin.placement()), Ok(b"new".to_vec()));
}

#[test]
fn a_pin_that_comes_first_is_seen_by_the_remover() {
    let (memory, store) = new_store(2);
    put(&store, "n/k", b"old", &options(4096, 2)).expect("room");
    let other = open(&memory, 2);
    let (sender, pins) = std::sync::mpsc::channel();
    // In the middle of the removal of generation 1 by the next put.
    memory.before_try_lock(move || {
        sender.send(other.pin(&key("n/k")).expect("good").expect("put")).expect("received");
    });
    put(&store, "n/k", b"new", &options(4096, 2)).expect("room");
    let pin = pins.recv().expect("sent");
    let expected: &[u8] = if pin.placement().generation == 1 { b"old" } else { b"new" };
    assert_eq!(read_all(&memory, pin.placement()), Ok(expected.to_vec()));
}

#[test]
fn many_puts_at_once_never_share_a_generation_and_leave_nothing_behind() {
    let (memory, store) = new_store(2);
    memory.yield_at_each_rename();
    let put_some = |store: &railring_store::Store| -> Vec<u64> {
        let one = || {
            let report = put(store, "n/k", b"x", &options(4096, 1)).expect("room");
            assert_eq!(report.warnings, []);
            report.placement.generation
        };
        (0..40).map(|_| one()).collect()
    };
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let others: Vec<_> = (0..3)
            .map(|_| {
                let other = open(&memory, 2);
                scope.spawn(move || put_some(&other))
            })
            .collect();
        let mine = put_some(&store);
        let others = others.into_iter().flat_map(|o| o.join().expect("no panic"));
        others.chain(mine).collect()
    });
    all.sort_unstable();
    assert_eq!(all, (1..=160).collect::<Vec<_>>());
    let left = memory.file_names("/");
    assert!(left.iter().all(|name| !name.contains("/tmp/")), "{left:?}");
}
