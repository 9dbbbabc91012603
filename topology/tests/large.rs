//! A large machine: 384 threads, 24 nodes, 16 adapters with 8 virtual functions each. How long it
//! takes is printed, and looked at by people.

mod fixture;

use fixture::{Fixture, Port, machines};
use railring_topology::render::{TextOptions, text};
use railring_topology::{Discovery, Policy, assign};
use std::time::Instant;

const NODES: u16 = 24;
const CORES_PER_NODE: u16 = 8;

fn large() -> Fixture {
    let mut f = Fixture::new();
    let half = NODES * CORES_PER_NODE;
    let distances = |from: u16| {
        let to = (0..NODES).map(|to| if to == from { "10" } else { "21" });
        to.collect::<Vec<_>>().join(" ")
    };
    for node in 0..NODES {
        let first = node * CORES_PER_NODE;
        let cores: Vec<[u16; 2]> =
            (first..first + CORES_PER_NODE).map(|cpu| [cpu, cpu + half]).collect();
        let cores: Vec<&[u16]> = cores.iter().map(<[u16; 2]>::as_slice).collect();
        f.cores(Some(node), &cores);
        f.node(node, 64, &distances(node));
    }
    for adapter in 0..16_u16 {
        let bus = 16 + adapter;
        let function = |number: u16| format!("0000:{bus:02x}:00.{number:x}");
        let node = i64::from(adapter * 3 % NODES);
        for number in 0..8 {
            let at = function(number);
            f.pci(&format!("0000:{bus:02x}:1f.0/{at}"), machines::INFINIBAND, node);
            let name = format!("mlx5_{}", adapter * 8 + number);
            f.rdma(&at, &name, &[Port::INFINIBAND]);
            if number > 0 {
                let (physical, folder) = (function(0), f.folder(&at).to_owned());
                f.link(&format!("{folder}/physfn"), &format!("../{physical}"));
            }
        }
    }
    f
}

#[test]
fn a_machine_of_384_threads_is_read_planned_and_shown() {
    let fixture = large();
    let begun = Instant::now();
    let machine = Discovery::sysfs_root(fixture.root()).read().expect("a tree");
    let read = begun.elapsed();
    let plan = assign(&machine, &Policy::default()).expect("a plan");
    let planned = begun.elapsed();
    let shown = text(&machine, Some(&plan), TextOptions::default());
    let all = begun.elapsed();
    println!(
        "384 threads, 24 nodes, 128 RDMA devices: read in {read:?}, planned by {planned:?}, shown \
         by {all:?}"
    );
    assert_eq!((machine.cpus.online.len(), machine.cores.len()), (384, 192));
    assert_eq!((machine.rdma.len(), plan.rails.len()), (128, 16), "one rail per physical port");
    assert_eq!(plan.pollers.len(), 16);
    for rail in &plan.rails {
        let poller = plan.poller_of(rail).expect("a poller");
        assert_eq!(poller.node, rail.node, "{}", rail.name);
    }
    assert!(shown.contains("384 cpus online (0-383) in 192 cores and 24 memory nodes"));
}
