//! `railring topo`: forms, sources, policy, captures, terminals.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::{Place, Run, railring};

/// A tree of two nodes of two CPUs each, with an InfiniBand adapter on node 1.
fn tree(place: &Place) -> PathBuf {
    let root = place.path("tree");
    let file = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("made");
        fs::write(path, format!("{text}\n")).expect("written");
    };
    file("sys/devices/system/cpu/online", "0-3");
    file("sys/devices/system/cpu/present", "0-3");
    for cpu in 0..4 {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        file(&format!("{folder}/core_cpus_list"), &cpu.to_string());
        file(&format!("{folder}/core_id"), &cpu.to_string());
    }
    for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
        let folder = format!("sys/devices/system/node/node{node}");
        file(&format!("{folder}/cpulist"), cpus);
        file(&format!("{folder}/meminfo"), &format!("Node {node} MemTotal: 4194304 kB"));
        file(&format!("{folder}/distance"), if node == 0 { "10 21" } else { "21 10" });
    }
    let function = "sys/devices/pci0000:80/0000:81:00.0";
    file(&format!("{function}/class"), "0x020700");
    file(&format!("{function}/numa_node"), "1");
    file(&format!("{function}/infiniband/hca0/node_guid"), "506b:4b03:00f3:1122");
    let port = format!("{function}/infiniband/hca0/ports/1");
    file(&format!("{port}/state"), "4: ACTIVE");
    file(&format!("{port}/link_layer"), "InfiniBand");
    file(&format!("{port}/rate"), "100 Gb/sec (4X EDR)");
    file(&format!("{port}/gids/0"), "fe80:0000:0000:0000:506b:4b03:00f3:1122");
    file(&format!("{port}/gid_attrs/types/0"), "IB/RoCE v1");
    link(&root, "sys/bus/pci/devices/0000:81:00.0", "../../../devices/pci0000:80/0000:81:00.0");
    let device = "../../devices/pci0000:80/0000:81:00.0/infiniband/hca0";
    link(&root, "sys/class/infiniband/hca0", device);
    root
}

fn link(root: &Path, path: &str, target: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a link has a folder")).expect("made");
    symlink(target, path).expect("linked");
}

fn topo(root: &Path, more: &[&str]) -> Run {
    let mut arguments = vec!["topo", "--sysfs-root", root.to_str().expect("UTF-8")];
    arguments.extend(more);
    railring(&arguments)
}

/// What `--json` prints, which is one document over many lines.
fn document(run: &Run) -> serde_json::Value {
    serde_json::from_slice(&run.out).unwrap_or_else(|error| panic!("{error}: {}", run.text()))
}

#[test]
fn the_machine_this_runs_on_is_shown_in_every_form() {
    let text = railring(&["topo"]).good().text();
    assert!(text.contains("cpus online") || text.contains("cpu online"), "{text}");
    assert!(text.contains("Rails: "), "{text}");
    let json = document(&railring(&["topo", "--json"]).good());
    assert_eq!((&json["schema"], &json["version"]), (&"railring-topology".into(), &1.into()));
    assert_eq!(json["machine"]["source"]["live"], true);
    assert!(!json["machine"]["cpus"]["online"].as_str().expect("a set").is_empty());
    assert!(railring(&["topo", "--svg"]).good().text().starts_with("<svg "));
}

#[test]
fn a_tree_is_shown_planned_explained_and_drawn() {
    let place = Place::new(0);
    let root = tree(&place);
    let text = topo(&root, &[]).good().text();
    assert!(text.contains("hca0:1  active, InfiniBand, 100 Gb/s"), "{text}");
    assert!(text.contains("rail 0: the port is active; near node 1, says its numa_node"), "{text}");
    let plan = &document(&topo(&root, &["--json"]).good())["plan"];
    assert_eq!(plan["rails"][0]["memory_node"], 1);
    assert_eq!(plan["pollers"][0]["cpu"], 2);
    let why = topo(&root, &["--explain", "hca0"]).good().text();
    assert!(why.starts_with("Rail 0: hca0:1\n") && why.contains("its poller"), "{why}");
    topo(&root, &["--explain", "hca7"]).bad(1, &["no rail 'hca7'", "the rails are: hca0:1"]);
    let file = place.path("m.svg");
    topo(&root, &["--svg", file.to_str().expect("UTF-8")]).good();
    let drawing = fs::read_to_string(&file).expect("written");
    assert!(drawing.starts_with("<svg ") && drawing.contains("rail 0, 100 Gb/s"), "{drawing}");
}

#[test]
fn the_policy_decides() {
    let place = Place::new(0);
    let root = tree(&place);
    let plan = |more: &[&str]| {
        let all: Vec<&str> = ["--json"].iter().chain(more).copied().collect();
        document(&topo(&root, &all).good())["plan"].clone()
    };
    assert_eq!(plan(&["--cpus", "0-1"])["pollers"][0]["cpu"], 1);
    assert_eq!(plan(&["--node", "0"])["pollers"][0]["node"], 0);
    assert_eq!(plan(&["--memory-node", "0"])["rails"][0]["memory_node"], 0);
    assert_eq!(plan(&["--pin", "hca0:1=0"])["pollers"][0]["cpu"], 0);
    assert!(plan(&["--policy", "unpinned"])["pollers"][0]["cpu"].is_null());
    assert_eq!(plan(&["--cpus", "0-999"])["dropped_cpus"], "4-999");
    assert_eq!(plan(&["--except", "hca0"])["rails"], serde_json::json!([]));
    let two = plan(&["--rail", "hca0:1,name=a", "--rail", "file:/data,name=b", "--rails", "2"]);
    assert_eq!((&two["rails"][0]["name"], &two["rails"][1]["name"]), (&"a".into(), &"b".into()));
    assert_eq!(plan(&["--rail", "hca0", "--rail", "file:/data", "--rails", "1"])["rails"][1], {
        serde_json::Value::Null
    });
    topo(&root, &["--cpus", "999"]).bad(1, &["none of the cpus 999", "may use 0-3"]);
    topo(&root, &["--cpus", "0-999", "--strict"]).bad(1, &["4-999", "cannot be used"]);
    topo(&root, &["--node", "7"]).bad(1, &["no node 7", "known are: 0, 1"]);
    topo(&root, &["--pin", "eth9=1"]).bad(1, &["no rail 'eth9'"]);
    topo(&root, &["--rail", "hca0:1:x"]).bad(2, &["gid 'x'"]);
    topo(&root, &["--rail", "hca0", "--only", "hca0"]).bad(2, &["--rail names all rails"]);
    topo(&root, &["--policy", "fast"]).bad(2, &["near, compact or unpinned"]);
    topo(&root, &["--json", "--svg"]).bad(2, &["cannot be used with"]);
}

#[test]
fn directories_are_rails_with_their_disk() {
    let place = Place::new(0);
    let root = tree(&place);
    let directory = place.dir.path().to_str().expect("UTF-8");
    let live = document(&railring(&["topo", "--json", "--directory", directory]).good());
    let known = &live["machine"]["directories"][0];
    assert_eq!(known["path"], directory);
    assert!(known["mount_point"].is_string(), "{known}");
    // Another machine's directories are not looked up here.
    let plan = document(&topo(&root, &["--json", "--directory", "/data0"]).good());
    let rails = plan["plan"]["rails"].as_array().expect("a list");
    assert!(rails.iter().any(|rail| rail["name"] == "/data0"), "{rails:?}");
}

#[test]
fn what_is_captured_is_shown_again() {
    let place = Place::new(0);
    let root = tree(&place);
    let archive = place.path("m.tar.gz");
    let archive_text = archive.to_str().expect("UTF-8");
    let root_text = root.to_str().expect("UTF-8");
    let capture = |more: &[&str]| {
        let fixed = ["topo", "capture", "-o", archive_text, "--sysfs-root", root_text];
        railring(&[&fixed[..], more].concat()).good().text()
    };
    assert!(capture(&[]).starts_with("captured "), "it says what it did");
    let plain = document(&topo(&archive, &["--json"]).good());
    let original = document(&topo(&root, &["--json"]).good());
    assert_eq!(plain["plan"], original["plan"]);
    assert_eq!(plain["machine"]["rdma"], original["machine"]["rdma"]);
    assert!(capture(&["--mask"]).contains(" masked"), "it says how many were masked");
    let masked = document(&topo(&archive, &["--json"]).good());
    assert_ne!(
        masked["machine"]["rdma"][0]["node_guid"],
        original["machine"]["rdma"][0]["node_guid"]
    );
    assert_eq!(masked["plan"]["pollers"], original["plan"]["pollers"]);
    let left: Vec<_> = fs::read_dir(place.dir.path()).expect("there").flatten().collect();
    assert_eq!(left.len(), 2, "the tree and the archive: {left:?}");
    let piped = railring(&["topo", "capture", "-o", "-", "--sysfs-root", root_text]).good();
    assert!(piped.out.starts_with(&[0x1f, 0x8b]) && piped.err.contains("captured"));
    let live = railring(&["topo", "capture", "-o", archive_text]).good();
    assert!(live.text().contains("captured"));
    let here = document(&topo(&archive, &["--json"]).good());
    let now = document(&railring(&["topo", "--json"]).good());
    assert_eq!(here["machine"]["nodes"][0]["id"], now["machine"]["nodes"][0]["id"]);
    assert_eq!(here["machine"]["cpus"]["online"], now["machine"]["cpus"]["online"]);
    railring(&["topo", "capture", "-o", "/nonexistent/m.tar.gz"]).bad(1, &["cannot write"]);
}

#[test]
fn trees_that_are_none_are_refused_and_empty_ones_unknown() {
    let place = Place::new(0);
    let dangling = place.path("dangling");
    link(&dangling, "sys/class/infiniband/gone0", "../../devices/nowhere/gone0");
    let run = topo(&dangling, &["--json"]).good();
    assert!(run.err.contains("no cpu is known"), "{}", run.err);
    let json = document(&run);
    assert_eq!(json["plan"]["rails"], serde_json::json!([]));
    assert!(!json["machine"]["unknowns"].as_array().expect("a list").is_empty());
    topo(&dangling, &[]).good();
    let empty = place.path("empty");
    fs::create_dir(&empty).expect("made");
    topo(&empty, &[]).bad(2, &["describes no machine", "neither sys nor proc"]);
    topo(Path::new("/nonexistent"), &["--json"]).bad(1, &["cannot read /nonexistent"]);
    let broken = place.file("broken.tar.gz", 1000, 1);
    topo(&broken, &[]).bad(1, &["cannot read", "as a tar.gz archive"]);
}

#[test]
fn hwloc_files_are_read_or_the_build_says_that_it_cannot() {
    let place = Place::new(0);
    let file = place.path("m.xml");
    fs::write(&file, "<topology version=\"3.0\"></topology>").expect("written");
    let file = file.to_str().expect("UTF-8");
    railring(&["topo", "--hwloc-xml", file]).bad(1, &["format version 3.0"]);
    fs::write(file, "<system/>").expect("written");
    railring(&["topo", "--hwloc-xml", file]).bad(1, &["no hwloc XML"]);
    fs::write(file, "<topology version=\"2.0\"></topology>").expect("written");
    let run = railring(&["topo", "--hwloc-xml", file]);
    let expected =
        if cfg!(feature = "hwloc") { "hwloc cannot load" } else { "built without hwloc" };
    run.bad(1, &[expected]);
    let live = railring(&["topo", "--hwloc"]);
    if cfg!(feature = "hwloc") {
        live.good()
    } else {
        live.bad(1, &["built without hwloc"])
    };
}

/// Runs the command on a pseudo-terminal of so many columns.
fn on_terminal(columns: u16, environment: &[(&str, &str)], root: &Path) -> Option<String> {
    let program = env!("CARGO_BIN_EXE_railring");
    let line = format!("stty cols {columns}; {program} topo --sysfs-root {}", root.display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command.envs(environment.iter().copied());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_terminal_gets_its_width_and_colours_unless_it_wants_none() {
    let place = Place::new(0);
    let root = tree(&place);
    let plain = topo(&root, &[]).good().text();
    assert!(!plain.contains('\x1b'), "a pipe got colours: {plain}");
    let Some(coloured) = on_terminal(60, &[], &root) else {
        println!(
            "SKIP a_terminal_gets_its_width_and_colours_unless_it_wants_none: script(1) cannot \
             make a terminal here"
        );
        return;
    };
    assert!(coloured.contains("\x1b[1m"), "{coloured:?}");
    let bare = on_terminal(60, &[("NO_COLOR", "1")], &root).expect("as before");
    assert!(!bare.contains('\x1b'), "{bare:?}");
    let too_long = bare.lines().find(|line| line.trim_end().chars().count() > 60);
    // The one word that cannot be broken is the command that gives huge pages.
    assert!(too_long.is_none_or(|line| line.contains("/sys/devices")), "{too_long:?}");
    assert!(plain.lines().any(|line| line.chars().count() > 60), "nothing would have to be broken");
}
