//! Power cuts: every prefix of everything a store does, with what was not synced kept, dropped or torn.

use crate::common::{directories, everything, key, new_store, open_as, options, pattern, put};
use crate::memory::{Memory, Op};
use fastrand::Rng;
use railring_store::{OpenMode, Store, StoreWarning};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const DISKS: usize = 2;
/// Chance in 100 that an operation that was not synced survives; several draws for those between.
const KEEPS: [u32; 6] = [0, 100, 50, 50, 85, 15];

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
];

fn scenario() -> (Vec<Op>, Vec<Step>) {
    let (memory, store) = new_store(DISKS);
    let mut now = Contents::new();
    let mut steps = vec![Step { begins: memory.log_len(), after: now.clone() }];
    for (name, act) in SCENARIO {
        let begins = memory.log_len();
        match act {
            Act::Put(seed, len, stripe, copies) => {
                let bytes = pattern(*seed, *len);
                put(&store, name, &bytes, &options(*stripe, *copies)).expect("room");
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

#[test]
fn every_power_cut_leaves_a_good_store() {
    let seed = 0x5709;
    println!("seed {seed:#x}");
    let mut rng = Rng::with_seed(seed);
    let (log, steps) = scenario();
    let created = steps[0].begins;
    println!("{} operations", log.len());
    for cut in 0..=log.len() {
        for keep in KEEPS {
            let memory = Memory::after_power_cut(&directories(DISKS), &log[..cut], keep, &mut rng);
            let context = format!("seed {seed:#x}, cut at {cut}, keep {keep}");
            if cut < created {
                check_unfinished_creation(&memory, &context);
                continue;
            }
            let at = steps.iter().rposition(|s| s.begins <= cut).expect("the creation");
            // Done with the step before; the one that began here or earlier may have come through.
            let before = if at == 0 { &steps[0].after } else { &steps[at - 1].after };
            check(&memory, before, &steps[at].after, &context);
        }
    }
}

fn check_unfinished_creation(memory: &Memory, context: &str) {
    let all = directories(DISKS);
    if open_as(memory, &all, OpenMode::ReadWrite).is_err() {
        Store::create_on(Arc::new(memory.clone()), &all).expect(context);
    }
    let store = open_as(memory, &all, OpenMode::ReadWrite).expect(context);
    put(&store, "n/k", b"x", &options(4096, 2)).expect(context);
    assert_eq!(everything(memory, &store).expect(context).len(), 1, "{context}");
}

fn check(memory: &Memory, before: &Contents, after: &Contents, context: &str) {
    let store = open_as(memory, &directories(DISKS), OpenMode::ReadWrite).expect(context);
    let unknown = |w: &&StoreWarning| !matches!(w, StoreWarning::LeftoverSettled { .. });
    assert_eq!(store.warnings().iter().find(unknown), None, "{context}");
    for disk in directories(DISKS) {
        let tmp = memory.file_names(&format!("{}/tmp", disk.display()));
        assert_eq!(tmp, Vec::<String>::new(), "{context}");
    }
    // An object in the middle of a change is as before or as after; all others are as they were.
    let all = everything(memory, &store).expect(context);
    let found: Contents =
        all.iter().map(|(name, _, bytes)| (name.clone(), bytes.clone())).collect();
    for name in before.keys().chain(after.keys()).chain(found.keys()) {
        let got = found.get(name);
        assert!(got == before.get(name) || got == after.get(name), "{name}: {context}");
    }
    let report = store.gc().expect(context);
    let orphan = |w: &&StoreWarning| matches!(w, StoreWarning::OrphanData { .. });
    assert_eq!(report.warnings.iter().find(orphan), None, "{context}");
    assert_eq!(everything(memory, &store).expect(context), all, "{context}");
    let data = memory.file_names("/disk0/objects").iter().filter(|f| f.ends_with(".data")).count();
    assert!(data <= all.len(), "old generations stay: {context}");
    let next = put(&store, "n/a", b"next", &options(4096, 2)).expect(context);
    let old = all.iter().find(|(name, _, _)| name == "n/a").map_or(0, |(_, g, _)| *g);
    assert!(next.placement.generation > old, "{context}");
}
