//! What a person and a program get to see of each fixture machine.

mod fixture;

use fixture::machines::{self, ALL};
use railring_topology::render::{Colour, Report, TextOptions, explain, json, svg, text};
use railring_topology::{Machine, Plan, Policy, assign};
use std::sync::LazyLock;

const DIRECTORIES: [&str; 5] = ["/data0/a", "/data1", "/data2/b/c", "/nfs", "/home"];

type Described = (&'static str, Machine, Plan);

/// Each machine is built and read once, as that is most of the work.
static MACHINES: LazyLock<Vec<Described>> = LazyLock::new(|| {
    let described = |(name, build): (&'static str, fn() -> fixture::Fixture)| {
        let fixture = build();
        let wanted: &[&str] = if name == "disks_and_directories" { &DIRECTORIES } else { &[] };
        let machine = fixture
            .read_with(|discovery| wanted.iter().fold(discovery, |d, path| d.directory(path)));
        let plan = assign(&machine, &Policy::default()).expect("these machines have a plan");
        (name, machine, plan)
    };
    ALL.into_iter().map(described).collect()
});

fn of(name: &str) -> &'static Described {
    MACHINES.iter().find(|(known, _, _)| *known == name).expect("a machine of the list")
}

#[test]
fn the_text_of_each_machine() {
    for (name, machine, plan) in MACHINES.iter() {
        let options = TextOptions { width: 100, colour: Colour::Never };
        insta::assert_snapshot!(format!("{name}_text"), text(machine, Some(plan), options));
    }
}

#[test]
fn the_json_of_each_machine() {
    for (name, machine, plan) in MACHINES.iter() {
        let document = json(machine, Some(plan));
        let read: Report = serde_json::from_str(&document).expect("our own document");
        assert_eq!(&read.machine, machine, "{name}");
        assert_eq!(read.plan.as_ref(), Some(plan), "{name}");
        // Machines with thousands of cores would make a snapshot that nobody reads.
        if *name != "many_cpus" {
            insta::assert_snapshot!(format!("{name}_json"), document);
        }
    }
}

#[test]
fn lines_stay_within_the_width() {
    use unicode_width::UnicodeWidthStr;
    for (name, machine, plan) in MACHINES.iter() {
        for width in [40, 61, 80, 132] {
            let options = TextOptions { width, colour: Colour::Never };
            let shown = text(machine, Some(plan), options);
            for line in shown.lines() {
                // A single word that is longer cannot be broken.
                let one_word = !line.trim_start().trim_start_matches("do: ").contains(' ');
                assert!(line.width() <= width || one_word, "{name} at {width}: {line:?}");
            }
            assert!(!shown.contains('\x1b'), "{name}: colours were not asked for");
        }
    }
}

#[test]
fn colours_only_add_escape_sequences() {
    let (_, machine, plan) = of("four_adapters_out_of_order");
    let plain = text(machine, Some(plan), TextOptions { width: 90, colour: Colour::Never });
    let coloured = text(machine, Some(plan), TextOptions { width: 90, colour: Colour::Always });
    let mut stripped = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once("\x1b[") {
        stripped.push_str(before);
        rest = after.split_once('m').expect("a sequence ends").1;
    }
    stripped.push_str(rest);
    let trim = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_eq!(trim(&stripped), trim(&plain));
    assert_ne!(coloured, plain);
}

#[test]
fn a_rail_is_explained_by_name_number_and_device() {
    let (_, machine, plan) = of("numa_node_minus_one");
    let options = TextOptions::default();
    let by_name = explain(machine, plan, "by_bridge:1", options).expect("a rail");
    assert_eq!(explain(machine, plan, "0", options).as_ref(), Ok(&by_name));
    assert_eq!(explain(machine, plan, "by_bridge", options).as_ref(), Ok(&by_name));
    insta::assert_snapshot!("explain_by_bridge", by_name);
    let (_, machine, plan) = of("ports_down");
    let error = explain(machine, plan, "mlx5_0", options).expect_err("no rail");
    insta::assert_snapshot!("explain_no_rail", error.to_string());
}

#[test]
fn the_drawing_shows_every_rail_and_closes_every_element() {
    for (name, machine, plan) in MACHINES.iter() {
        let drawing = svg(machine, Some(plan));
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"), "{name}");
        for element in ["text", "rect", "path"] {
            let opened = drawing.matches(&format!("<{element} ")).count();
            let closed = drawing.matches(&format!("</{element}>")).count();
            assert!(closed <= opened, "{name}: {element}");
        }
        for rail in &plan.rails {
            // Rails of one disk share a label; software that is near nothing is still drawn.
            let label = format!("rail {}", rail.number);
            let shared = drawing.contains("rails ");
            let diskless = *name == "disks_and_directories";
            assert!(drawing.contains(&label) || shared || diskless, "{name}: {label}");
        }
    }
}

#[test]
fn names_from_a_tree_cannot_break_the_output() {
    let mut fixture = machines::two_sockets();
    let nasty = "a<b>&\"\x1b[31m";
    fixture.pci("0000:21:00.0", machines::INFINIBAND, 0);
    fixture.rdma("0000:21:00.0", nasty, &[fixture::Port::INFINIBAND]);
    let machine = fixture.read();
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    assert_eq!(plan.rails.len(), 1);
    assert!(!text(&machine, Some(&plan), TextOptions::default()).contains('\x1b'));
    let drawing = svg(&machine, Some(&plan));
    assert!(drawing.contains("a&lt;b&gt;&amp;&quot;") && !drawing.contains('\x1b'));
}
