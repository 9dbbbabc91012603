//! The list of breakages is up to date: each can be made, and commits choose from all of them.

use std::collections::BTreeSet;
use std::path::Path;

use railring_tests::mutations::{Mutation, pick, read_list};

fn list() -> Vec<Mutation> {
    read_list(include_str!("mutations.list"))
}

#[test]
fn every_breakage_of_the_list_can_be_made() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = list();
    assert!(list.len() >= 20, "only {} breakages", list.len());
    let mut stale = Vec::new();
    for Mutation { name, edits, .. } in &list {
        assert!(!edits.is_empty(), "{name} breaks nothing");
        for edit in edits {
            let text = std::fs::read_to_string(root.join(&edit.file));
            let text = text.unwrap_or_else(|error| panic!("{name}: {}: {error}", edit.file));
            match edit.apply(&text) {
                Ok(broken) => assert_ne!(broken.trim_end(), text.trim_end(), "{name}"),
                Err(why) => stale.push(format!("{name}: {why}")),
            }
        }
    }
    assert!(stale.is_empty(), "{}", stale.join("\n"));
    let names: BTreeSet<&str> = list.iter().map(|mutation| &*mutation.name).collect();
    assert_eq!(names.len(), list.len(), "a name is there twice");
}

#[test]
fn a_commit_chooses_always_the_same_and_commits_choose_all() {
    let names = |commit: &str| -> Vec<String> {
        pick(list(), commit, 3).into_iter().map(|mutation| mutation.name).collect()
    };
    assert_eq!(names("1f3a"), names("1f3a"));
    let mut chosen = BTreeSet::new();
    for commit in 0..400_u64 {
        let three = names(&format!("{:016x}", commit.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        assert_eq!(three.iter().collect::<BTreeSet<_>>().len(), 3, "{three:?}");
        chosen.extend(three);
    }
    assert_eq!(chosen.len(), list().len());
}
