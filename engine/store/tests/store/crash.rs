//! Power cuts after every operation, with what was not synced kept, dropped or torn.

use crate::common::{
    Replicas, directories, everything, key, new_store, open_as, options, pattern, put,
};
use crate::memory::{Memory, Op};
use fastrand::Rng;
use railring_store::{OpenMode, Store, StoreWarning};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Chance in 100 that an operation that was not synced survives; several draws for those between.
const KEEPS: [u32; 4] = [0, 100, 50, 80];

/// Contents by name; what the store must hold when it is at rest.
type Contents = BTreeMap<String, Vec<u8>>;

/// One operation on the store: where its part of the log begins, and what must hold after it.
struct Step {
    begins: usize,
    after: Contents,
}

/// What the scenario does to one object.
enum Act {
    /// Seed, length, stripe size, copies.
    Put(u64, usize, u64, u16),
    /// The same while a reader holds the old generation.
    PutPinned(u64, usize, u64, u16),
    GiveUp,
    Remove,
}

const SCENARIO: &[(&str, Act)] = &[
    ("n/a", Act::Put(1, 10_000, 4096, 2)),
    ("n/b", Act::Put(2, 3, 4096, 1)),
    ("n/a", Act::Put(3, 12_289, 6000, 1)),
    ("n/empty", Act::Put(4, 0, 4096, 2)),
    ("n/b", Act::Remove),
    ("n/a", Act::GiveUp),
    ("n/b", Act::Put(6, 5000, 4096, 1)),
    ("n/b", Act::PutPinned(7, 6000, 4096, 2)),
    ("n/b", Act::Remove),
];

fn scenario(disks: usize) -> (Vec<Op>, Vec<Step>) {
    let (memory, store) = new_store(disks);
    let mut now = Contents::new();
    let mut steps = vec![Step { begins: memory.log_len(), after: now.clone() }];
    for (name, act) in SCENARIO {
        let begins = memory.log_len();
        match act {
            Act::Put(seed, len, stripe, copies) | Act::PutPinned(seed, len, stripe, copies) => {
                let pins = matches!(act, Act::PutPinned(..));
                let _pin = pins.then(|| store.pin(&key(name)).expect("good"));
                let bytes = pattern(*seed, *len);
                put(&store, name, &bytes, &options(*stripe, (*copies).min(disks as u16)))
                    .expect("room");
                now.insert((*name).to_owned(), bytes);
            }
            Act::GiveUp => {
                let bytes = pattern(5, 10_000);
                let give_up = &mut |_| ControlFlow::Break(());
                let given_up = store.put(&key(name), &mut &bytes[..], &options(4096, 1), give_up);
                given_up.expect_err("given up");
            }
            Act::Remove => {
                store.remove(&key(name)).expect("removed");
                now.remove(*name);
            }
        }
        steps.push(Step { begins, after: now.clone() });
    }
    // At rest: nothing but the last state will do.
    steps.push(Step { begins: memory.log_len(), after: now });
    (memory.log(), steps)
}

/// The step that the log's prefix of this length is in: what held before it and what after.
fn at(steps: &[Step], cut: usize) -> (&Contents, &Contents) {
    let at = steps.iter().rposition(|s| s.begins <= cut).expect("the creation");
    (&steps[at.saturating_sub(1)].after, &steps[at].after)
}

#[test]
fn every_power_cut_leaves_a_good_store() {
    let disks = 2;
    let seed = 0x5709;
    println!("seed {seed:#x}");
    let mut rng = Rng::with_seed(seed);
    let (log, steps) = scenario(disks);
    println!("{} operations", log.len());
    for cut in 0..=log.len() {
        for keep in KEEPS {
            let memory = Memory::after_power_cut(&directories(disks), &log[..cut], keep, &mut rng);
            let context = format!("seed {seed:#x}, cut at {cut}, keep {keep}");
            if cut < steps[0].begins {
                check_unfinished_creation(&memory, disks, &context);
                continue;
            }
            let (before, after) = at(&steps, cut);
            check(&memory, disks, before, after, &context);
        }
    }
}

/// What a killed writer leaves is visible but not durable. Whoever builds on it must make it so.
#[test]
fn a_power_cut_after_a_kill_leaves_a_good_store() {
    // With one disk, no other one has a durable manifest by chance.
    for disks in [1, 2] {
        power_cuts_after_kills(disks);
    }
}

fn power_cuts_after_kills(disks: usize) {
    let seed = 0x6155;
    println!("{disks} disks, seed {seed:#x}");
    let mut rng = Rng::with_seed(seed);
    let (log, steps) = scenario(disks);
    for kill in steps[0].begins..=log.len() {
        let memory = Memory::after_kill(&directories(disks), &log[..kill]);
        let (before, after) = at(&steps, kill);
        let context = format!("{disks} disks, killed at {kill}");
        let store = open_as(&memory, &directories(disks), OpenMode::ReadWrite).expect(&context);
        let settled = memory.log_len();
        store.gc().expect(&context);
        let log = memory.log();
        for keep in [0, 50] {
            let cut = if keep == 0 { log.len() } else { rng.usize(kill..=log.len()) };
            let context = format!("seed {seed:#x}, {context}, settled at {settled}, cut at {cut}");
            let memory = Memory::after_power_cut(&directories(disks), &log[..cut], keep, &mut rng);
            check(&memory, disks, before, after, &context);
        }
    }
}

fn check_unfinished_creation(memory: &Memory, disks: usize, context: &str) {
    let all = directories(disks);
    if open_as(memory, &all, OpenMode::ReadWrite).is_err() {
        Store::create_on(Arc::new(memory.clone()), &all).expect(context);
    }
    let store = open_as(memory, &all, OpenMode::ReadWrite).expect(context);
    put(&store, "n/k", b"x", &options(4096, 1)).expect(context);
    assert_eq!(everything(memory, &store, Replicas::All).expect(context).len(), 1, "{context}");
}

fn contents(all: &[(String, u64, Vec<u8>)]) -> Contents {
    all.iter().map(|(name, _, bytes)| (name.clone(), bytes.clone())).collect()
}

/// An object in the middle of a change is as before or as after; all others are as they were.
fn check_contents(found: &Contents, before: &Contents, after: &Contents, context: &str) {
    for name in before.keys().chain(after.keys()).chain(found.keys()) {
        let got = found.get(name);
        assert!(got == before.get(name) || got == after.get(name), "{name}: {context}");
    }
}

fn check(memory: &Memory, disks: usize, before: &Contents, after: &Contents, context: &str) {
    // A reader that settles nothing must find a good store too.
    let reader = open_as(memory, &directories(disks), OpenMode::ReadOnly).expect(context);
    let all = everything(memory, &reader, Replicas::MayBeMissing).expect(context);
    check_contents(&contents(&all), before, after, context);

    let store = open_as(memory, &directories(disks), OpenMode::ReadWrite).expect(context);
    let unknown = |w: &&StoreWarning| !matches!(w, StoreWarning::LeftoverSettled { .. });
    assert_eq!(store.warnings().iter().find(unknown), None, "{context}");
    for disk in directories(disks) {
        let tmp = memory.file_names(&format!("{}/tmp", disk.display()));
        assert_eq!(tmp, Vec::<String>::new(), "{context}");
    }
    let all = everything(memory, &store, Replicas::All).expect(context);
    check_contents(&contents(&all), before, after, context);

    let report = store.gc().expect(context);
    let orphan = |w: &&StoreWarning| matches!(w, StoreWarning::OrphanData { .. });
    assert_eq!(report.warnings.iter().find(orphan), None, "{context}");
    assert_eq!(everything(memory, &store, Replicas::All).expect(context), all, "{context}");
    let data = memory.file_names("/disk0/objects").iter().filter(|f| f.ends_with(".data")).count();
    assert!(data <= all.len(), "old generations stay: {context}");
    let next = put(&store, "n/a", b"next", &options(4096, 1)).expect(context);
    let old = all.iter().find(|(name, _, _)| name == "n/a").map_or(0, |(_, g, _)| *g);
    assert!(next.placement.generation > old, "{context}");
}
