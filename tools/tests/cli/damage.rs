//! Damage: flipped bits, missing and truncated files. Never wrong bytes, and `verify` names it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::rig::{Place, flip, seed};

/// Bytes of a data file that mean something: header, stripes, tables.
fn meaningful(place: &Place, key: &str, file: &Path) -> Vec<(u64, u64)> {
    let stat = place.run(&["stat", key, "--json"]).good().json();
    let placement = &stat[0]["placement"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let block = number(&placement["block_bytes"]);
    let mut spans = vec![(0, 4096)];
    for stripe in placement["stripes"].as_array().expect("stripes") {
        let len = number(&stripe["len_bytes"]);
        for owner in stripe["owners"].as_array().expect("owners") {
            let source =
                &placement["sources"][usize::try_from(number(&owner["source"])).expect("small")];
            let path = Path::new(source["endpoint"].as_str().expect("text"));
            if path.join(source["handle"].as_str().expect("text")) == file {
                spans.push((number(&owner["offset"]), len));
                spans.push((number(&owner["table_offset"]), len.div_ceil(block) * 8));
            }
        }
    }
    spans
}

/// One bit of the spans.
fn pick(spans: &[(u64, u64)], random: &mut fastrand::Rng) -> u64 {
    let (offset, len) = spans[random.usize(..spans.len())];
    offset * 8 + random.u64(..len * 8)
}

#[test]
fn a_flipped_bit_of_data_is_named_and_never_served() {
    let place = Place::new(2);
    let file = place.put("a/b", 300_000, &["--stripe", "64K", "--block", "4K"]);
    let expected = fs::read(file).expect("there");
    let mut random = fastrand::Rng::with_seed(seed("a_flipped_bit_of_data"));
    for data in place.files(".data") {
        let spans = meaningful(&place, "a/b", &data);
        for _ in 0..10 {
            let bit = pick(&spans, &mut random);
            flip(&data, bit);
            let run = place.run(&["verify"]);
            assert_eq!(run.status, 1, "bit {bit} of {}: {run:?}", data.display());
            let disk = if data.starts_with(&place.disks[0]) { "disk0" } else { "disk1" };
            let said = run.text();
            assert!(said.contains("BAD") && said.contains(disk), "{said}");
            // Headers and tables are not read by whole reads; data is, and refused.
            let got = place.run(&["get", "a/b", "-o", "out"]);
            if got.status == 0 {
                assert!(fs::read(place.path("out")).expect("there") == expected, "bit {bit}");
                fs::remove_file(place.path("out")).expect("there");
            } else {
                assert!(!place.path("out").exists(), "a half file");
                assert!(got.err.contains("checksum mismatch") && got.err.contains(disk), "{got:?}");
            }
            flip(&data, bit);
        }
    }
    place.run(&["verify"]).good();
}

#[test]
fn both_checksums_of_a_bad_stripe_are_named() {
    let place = Place::new(2);
    place.put("a/b", 300_000, &["--stripe", "64K", "--block", "4K"]);
    let data = place.files(".data").remove(0);
    flip(&data, 4096 * 8 + 3);
    let text = place.run(&["verify"]).text();
    let line = text.lines().find(|line| line.starts_with("BAD")).expect("named").to_owned();
    assert!(line.contains("a/b: stripe ") && line.contains(" expected, "), "{line}");
    let json = place.run(&["verify", "--json"]).json();
    let problem = &json[0];
    let sum = |name: &str| problem[name].as_str().expect("text").to_owned();
    assert_eq!((sum("expected").len(), sum("found").len()), (16, 16));
    assert_ne!(sum("expected"), sum("found"));
    assert!(line.contains(&sum("expected")) && line.contains(&sum("found")), "{line}");
    assert_eq!(json.last().expect("a summary")["summary"]["problems"], 1);
}

#[test]
fn a_bad_copy_is_survived_and_named() {
    let place = Place::new(3);
    let file = place.put("a/b", 300_000, &["--stripe", "64K", "--copies", "2"]);
    let expected = fs::read(file).expect("there");
    let mut random = fastrand::Rng::with_seed(seed("a_bad_copy"));
    for data in place.files(".data") {
        let spans = meaningful(&place, "a/b", &data);
        let bit = pick(&spans[1..], &mut random);
        flip(&data, bit);
        assert!(place.run(&["get", "a/b"]).good().out == expected);
        let run = place.run(&["verify"]);
        assert_eq!((run.status, run.text().matches("BAD").count()), (1, 1), "{run:?}");
        flip(&data, bit);
    }
}

#[test]
fn a_flipped_bit_of_a_manifest_is_named() {
    let place = Place::new(2);
    let file = place.put("a/b", 300_000, &["--stripe", "64K"]);
    let expected = fs::read(file).expect("there");
    let mut random = fastrand::Rng::with_seed(seed("a_flipped_bit_of_a_manifest"));
    let manifests = place.files(".manifest");
    for _ in 0..8 {
        let bits = fs::metadata(&manifests[0]).expect("there").len() * 8;
        let bit = random.u64(..bits);
        flip(&manifests[0], bit);
        let run = place.run(&["get", "a/b"]).good();
        assert!(run.out == expected && run.err.contains("disk0"), "{}", run.err);
        let run = place.run(&["verify"]);
        assert!(run.status == 1 && run.text().contains("disk0"), "{run:?}");
        flip(&manifests[1], bit);
        place.run(&["get", "a/b"]).bad(1, &["damaged"]);
        place.run(&["ls"]).bad(1, &["damaged"]);
        assert_eq!(place.run(&["verify"]).status, 1);
        manifests.iter().for_each(|manifest| flip(manifest, bit));
    }
    place.run(&["verify"]).good();
}

#[test]
fn a_missing_manifest_is_a_warning_while_another_is_there() {
    let place = Place::new(2);
    place.put("a/b", 300_000, &["--stripe", "64K"]);
    let manifests = place.files(".manifest");
    for manifest in &manifests {
        let bytes = fs::read(manifest).expect("there");
        fs::remove_file(manifest).expect("ours");
        let run = place.run(&["verify"]).good();
        let text = run.text();
        let warned = text.contains("WARN a/b: manifest") && text.contains("all good, 1 warning");
        assert!(warned && !text.contains("BAD"), "{text}");
        let told = place.run(&["verify", "--json"]).good().json();
        assert_eq!((&told[0]["level"], &told[0]["key"]), (&"warning".into(), &"a/b".into()));
        assert_eq!(told[1]["summary"]["warnings"], 1);
        fs::write(manifest, bytes).expect("ours");
    }
    let text = place.run(&["verify"]).good().text();
    assert!(text.ends_with(": all good\n"), "{text}");
}

#[test]
fn missing_and_truncated_files_are_named() {
    let place = Place::new(2);
    place.put("a/b", 300_000, &["--stripe", "64K"]);
    place.put("a/c", 1_000, &[]);
    let data: Vec<PathBuf> = place.files(".data");
    let data = data.iter().max_by_key(|path| fs::metadata(path).expect("there").len());
    let data = data.expect("one").clone();
    let whole = fs::read(&data).expect("there");
    for len in [0, 1, 4096, 5000, whole.len() / 2, whole.len() - 4096] {
        fs::write(&data, &whole[..len]).expect("written");
        let run = place.run(&["verify"]);
        assert!(run.status == 1 && run.text().contains("BAD  a/b"), "{len}: {run:?}");
        assert!(!run.text().contains("BAD  a/c"), "{len}: {run:?}");
        assert!(place.run(&["stat", "a/b"]).good().text().contains("truncated"), "{len}");
        if len <= whole.len() / 2 {
            place.run(&["get", "a/b", "-o", "out"]).bad(1, &[]);
            assert!(!place.path("out").exists());
        }
    }
    fs::remove_file(&data).expect("there");
    let run = place.run(&["verify"]);
    assert!(run.status == 1 && run.text().contains("the file is missing"), "{run:?}");
    assert!(place.run(&["stat", "a/b"]).good().text().contains("missing"));
    place.run(&["get", "a/b", "-o", "out"]).bad(1, &[]);
    place.run(&["get", "a/c"]).good();
    // It can be put again, and then all is good.
    place.put("a/b", 300_000, &["--stripe", "64K"]);
    place.run(&["verify"]).good();
}

#[test]
fn other_format_versions_are_refused_by_name() {
    let place = Place::new(1);
    place.put("a/b", 10, &[]);
    let identity = place.disks[0].join("railring-store");
    let mut bytes = fs::read(&identity).expect("there");
    bytes[8] = 9;
    fs::write(&identity, bytes).expect("written");
    place.run(&["ls"]).bad(1, &["version 9"]);
}
