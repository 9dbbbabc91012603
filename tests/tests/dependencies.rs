//! Which crate may depend on which, and the one home of each foreign package.
//!
//! Everything is read from the manifests; each rule is first shown manifests that break it.

use railring_tests::tidy::manifest::{Kind, Manifest, manifests};
use railring_tests::tidy::source::{Source, sources};

/// The workspace crates that a crate may use, for itself and (second) also in its tests.
struct MayUse {
    name: &'static str,
    itself: &'static [&'static str],
    tests: &'static [&'static str],
}

/// Everything below the facade. A crate that is not listed here or in [`TOP`] fails the test, so
/// that a new one gets its place on purpose.
const BELOW: &[MayUse] = &[
    MayUse { name: "sq-cq", itself: &[], tests: &[] },
    MayUse { name: "railring-topology", itself: &[], tests: &[] },
    MayUse { name: "railring-wire", itself: &[], tests: &[] },
    MayUse { name: "railring-dma", itself: &[], tests: &[] },
    MayUse { name: "railring-catalog", itself: &[], tests: &[] },
    MayUse { name: "railring-uring", itself: &["railring-dma"], tests: &[] },
    MayUse { name: "railring-transport", itself: &["sq-cq", "railring-dma"], tests: &[] },
    // The core knows the trait and no transport; its tests run it over the simulated one.
    MayUse {
        name: "railring-core",
        itself: &["sq-cq", "railring-transport", "railring-dma", "railring-catalog"],
        tests: &["railring-sim"],
    },
    MayUse { name: "railring-store", itself: &["railring-catalog"], tests: &[] },
    MayUse {
        name: "railring-file",
        itself: &["sq-cq", "railring-transport", "railring-dma", "railring-uring"],
        tests: &[],
    },
    MayUse {
        name: "railring-tcp",
        itself: &["sq-cq", "railring-transport", "railring-dma", "railring-uring", "railring-wire"],
        tests: &[],
    },
    MayUse {
        name: "railring-verbs",
        // Ports and GIDs are chosen in one place, from sysfs, so that no two parts disagree.
        itself: &[
            "sq-cq",
            "railring-transport",
            "railring-dma",
            "railring-topology",
            "railring-wire",
        ],
        tests: &[],
    },
    MayUse {
        name: "railring-sim",
        itself: &["sq-cq", "railring-transport", "railring-dma"],
        tests: &[],
    },
];

/// Crates that choose transports and may use anything of ours.
const TOP: &[&str] = &[
    "railring",
    "railring-capi",
    "railring-python",
    "railring-tools",
    "railring-examples",
    "railring-tests",
];

/// A crate that works on the workspace from outside and uses none of it.
const APART: &str = "xtask";

/// The only crates that may name a package, except in their tests.
const HOMES: &[(&str, &[&str])] = &[
    ("xxhash-rust", &["railring-catalog"]),
    ("memmap2", &["railring-dma"]),
    ("rdma-sys", &["railring-verbs"]),
    ("hwlocality", &["railring-topology"]),
    ("core_affinity", &["railring-topology"]),
    ("loom", &["sq-cq"]),
    // The tools name these two as the peers that `railring bench ring` is measured against.
    ("io-uring", &["railring-uring", "railring-tools"]),
    ("crossbeam-queue", &["railring-core", "railring-tools"]),
    ("clap", &["railring-tools", "xtask"]),
    ("anyhow", &["railring-tools", "railring-examples", "xtask"]),
    (
        "libc",
        &["railring-dma", "railring-uring", "railring-topology", "railring-verbs", "railring-capi"],
    ),
];

/// Cargo features that no library is shipped with: `simulator` brings the byte-moving simulator
/// (without it `railring-sim` is the null rail), `fault` breaks rules on purpose.
const TEST_FEATURES: &[&str] = &["simulator", "fault"];

/// Programs that simulate: the command models and measures in virtual time. No library depends on
/// them, so they bring the simulator into no embedder's build.
const SIMULATE: &[&str] = &["railring-tools"];

fn is_ours(name: &str) -> bool {
    name == "sq-cq" || name == "railring" || name.starts_with("railring-")
}

fn edges(all: &[Manifest]) -> Vec<String> {
    let mut wrong = Vec::new();
    for manifest in all {
        let name = &*manifest.name;
        let below = BELOW.iter().find(|may| may.name == name);
        if below.is_none() && !TOP.contains(&name) && name != APART {
            wrong.push(format!("{name}: a new crate needs its place in this test"));
        }
        for dependency in manifest.dependencies.iter().filter(|d| is_ours(&d.name)) {
            let other = &*dependency.name;
            let may = match below {
                Some(may) => {
                    may.itself.contains(&other)
                        || dependency.kind == Kind::Dev
                            && (may.tests.contains(&other) || other == name)
                }
                None => TOP.contains(&name),
            };
            if !may {
                wrong.push(format!("{name} may not depend on {other}"));
            }
        }
    }
    wrong
}

fn homes(all: &[Manifest]) -> Vec<String> {
    let mut wrong = Vec::new();
    for manifest in all.iter().filter(|manifest| manifest.name != "railring-tests") {
        for dependency in manifest.dependencies.iter().filter(|d| d.kind != Kind::Dev) {
            let home = HOMES.iter().find(|(package, _)| *package == dependency.name);
            if home.is_some_and(|(_, crates)| !crates.contains(&&*manifest.name)) {
                wrong.push(format!(
                    "{} has its home elsewhere than {}",
                    dependency.name, manifest.name
                ));
            }
            if dependency.name == "loom" && dependency.target.as_deref() != Some("cfg(loom)") {
                wrong.push(format!("{}: loom must be below cfg(loom)", manifest.name));
            }
        }
    }
    wrong
}

fn test_features(all: &[Manifest]) -> Vec<String> {
    let mut wrong = Vec::new();
    for manifest in all.iter().filter(|manifest| manifest.name != "railring-tests") {
        let default = manifest.value("features", "default").unwrap_or("");
        let used = manifest.dependencies.iter().filter(|d| d.kind != Kind::Dev && is_ours(&d.name));
        let used: String = used.map(|dependency| &*dependency.spec).collect();
        for feature in TEST_FEATURES {
            if *feature == "simulator" && SIMULATE.contains(&&*manifest.name) {
                continue;
            }
            let feature = format!("\"{feature}\"");
            if default.contains(&feature) {
                wrong.push(format!("{}: {feature} is on by default", manifest.name));
            }
            if used.contains(&feature) {
                wrong.push(format!("{}: a dependency brings {feature}", manifest.name));
            }
        }
    }
    wrong
}

fn workspace() -> Vec<Manifest> {
    let all = manifests(&sources().expect("the workspace can be read"));
    assert!(all.len() >= 15, "only {} manifests: the walk is broken", all.len());
    all
}

fn sample(name: &str, rest: &str) -> Vec<Manifest> {
    let text = format!("[package]\nname = \"{name}\"\n{rest}\n");
    vec![Manifest::parse(&Source::new("x/Cargo.toml", &text))]
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dependencies_point_one_way() {
    for (name, rest) in [
        ("sq-cq", "[dependencies]\nrailring-dma.workspace = true"),
        ("railring-core", "[dependencies]\nrailring-file.workspace = true"),
        ("railring-core", "[dependencies]\nrailring-sim.workspace = true"),
        ("railring-core", "[target.'cfg(unix)'.dependencies]\nrailring-file.workspace = true"),
        ("railring-dma", "[dev-dependencies]\nrailring-sim.workspace = true"),
        ("railring-file", "[dependencies]\nrailring.workspace = true"),
        ("railring-file", "[build-dependencies]\nrailring-core.workspace = true"),
        ("xtask", "[dependencies]\nrailring.workspace = true"),
        ("railring-brand-new", ""),
    ] {
        assert_ne!(edges(&sample(name, rest)), [""; 0], "{name}: {rest}");
    }
    let good =
        "[dependencies]\nsq-cq.workspace = true\n[dev-dependencies]\nrailring-sim.workspace = true";
    none(&edges(&sample("railring-core", good)));
    none(&edges(&workspace()));
}

#[test]
fn a_package_has_one_home() {
    for (name, rest) in [
        ("railring-core", "[dependencies]\nxxhash-rust.workspace = true"),
        ("railring-file", "[dependencies]\nio-uring.workspace = true"),
        ("railring-tools", "[dependencies]\nmemmap2 = { workspace = true, optional = true }"),
        ("sq-cq", "[dependencies]\nloom.workspace = true"),
        ("sq-cq", "[dependencies]\nlibc.workspace = true"),
        ("railring", "[dependencies]\nanyhow.workspace = true"),
    ] {
        assert_ne!(homes(&sample(name, rest)), [""; 0], "{name}: {rest}");
    }
    none(&homes(&sample("sq-cq", "[target.'cfg(loom)'.dependencies]\nloom.workspace = true")));
    none(&homes(&workspace()));
}

#[test]
fn the_simulator_is_off_in_the_libraries() {
    let asks = "{ workspace = true, features = [\"simulator\"] }";
    for (name, rest) in [
        ("railring-sim", "[features]\ndefault = [\"simulator\"]".to_owned()),
        ("railring", format!("[dependencies]\nrailring-sim = {asks}")),
        ("railring-capi", format!("[dependencies]\nrailring-sim = {asks}")),
        ("railring", "[features]\ndefault = [\"simulator\"]".to_owned()),
        ("railring-tools", "[features]\ndefault = [\"fault\"]".to_owned()),
    ] {
        assert_ne!(test_features(&sample(name, &rest)), [""; 0], "{name}: {rest}");
    }
    let passes_on = "[features]\nsimulator = [\"railring-sim/simulator\"]";
    none(&test_features(&sample("railring", passes_on)));
    for name in ["railring-tests", "railring-tools"] {
        none(&test_features(&sample(name, &format!("[dependencies]\nrailring-sim = {asks}"))));
    }
    none(&test_features(&workspace()));
}
