//! Everything that costs speed is told, with what to do about it, and nothing else is.

mod fixture;

use fixture::{Fixture, Port, machines};
use railring_topology::plan::{Plan, WarningCode};
use railring_topology::{Policy, assign};
use std::collections::BTreeSet;

fn plan(fixture: &Fixture) -> Plan {
    assign(&fixture.read(), &Policy::default()).expect("a plan")
}

fn codes(fixture: &Fixture) -> BTreeSet<WarningCode> {
    plan(fixture).warnings.iter().map(|warning| warning.code).collect()
}

/// One adapter that has nothing to be warned of.
fn good() -> Fixture {
    let mut f = machines::two_sockets();
    f.pci("0000:20:01.0/0000:21:00.0", machines::INFINIBAND, 0);
    f.rdma("0000:21:00.0", "a", &[Port::INFINIBAND]);
    f
}

#[track_caller]
fn only(fixture: &Fixture, code: WarningCode, words: &[&str]) {
    let plan = plan(fixture);
    let found: Vec<WarningCode> = plan.warnings.iter().map(|warning| warning.code).collect();
    assert_eq!(found, [code], "{:?}", plan.warnings);
    let text =
        format!("{} {} {}", plan.warnings[0].about, plan.warnings[0].text, plan.warnings[0].todo);
    for word in words {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

#[test]
fn a_good_machine_has_no_warnings() {
    assert_eq!(codes(&good()), BTreeSet::new());
}

#[test]
fn links_that_trained_low_and_slots_that_are_narrow() {
    let f = good();
    let card = f.folder("0000:21:00.0").to_owned();
    f.file(&format!("{card}/current_link_width"), "8");
    f.file(&format!("{}/current_link_width", f.folder("0000:20:01.0")), "8");
    only(&f, WarningCode::LinkBelowMaximum, &["16 GT/s x8", "16 GT/s x16", "reseat"]);
    // The slot has no more lines than that, so nothing is wrong with the link itself.
    f.file(&format!("{}/max_link_width", f.folder("0000:20:01.0")), "8");
    only(&f, WarningCode::SlotBelowCard, &["16 GT/s x8", "more lines"]);
    // A port that is slower than the slot loses nothing.
    f.file(&format!("{card}/infiniband/a/ports/1/rate"), "100 Gb/sec (4X EDR)");
    assert_eq!(codes(&f), BTreeSet::new());
}

#[test]
fn nodes_without_huge_pages_and_little_lockable_memory() {
    let f = good();
    let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    f.file(pool, "0");
    only(
        &f,
        WarningCode::NoHugePages,
        &["node 0", pool.trim_start_matches("sys/devices/system/node/")],
    );
    let f = good();
    // The other node's do not matter to this rail.
    f.file(&pool.replace("node0", "node1"), "0");
    assert_eq!(codes(&f), BTreeSet::new());
    let f = good();
    let line = |limit: &str| format!("Max locked memory  {limit}  {limit}  bytes");
    f.file("proc/self/limits", &line("8388608"));
    f.file("proc/self/status", "CapEff:\t0000000000000000");
    only(&f, WarningCode::LowMemlock, &["8 MiB", "ulimit -l unlimited"]);
    f.file("proc/self/status", "CapEff:\t0000000000004000");
    assert_eq!(codes(&f), BTreeSet::new(), "CAP_IPC_LOCK");
    f.file("proc/self/status", "CapEff:\t0000000000000000");
    f.file("proc/self/limits", &line("unlimited"));
    assert_eq!(codes(&f), BTreeSet::new());
}

#[test]
fn packets_that_differ_or_are_small() {
    let build = |mtus: [&str; 2]| {
        let mut f = machines::two_sockets();
        for (at, net, name, mtu) in
            [("0000:21:00.0", "ens1", "a", mtus[0]), ("0000:81:00.0", "ens2", "b", mtus[1])]
        {
            f.pci(at, machines::ETHERNET, i64::from(at == "0000:81:00.0")).net(at, net, true);
            f.file(&format!("{}/net/{net}/mtu", f.folder(at)), mtu);
            f.rdma(at, name, &[machines::roce(net)]);
        }
        f
    };
    assert_eq!(codes(&build(["9000", "9000"])), BTreeSet::new());
    let differ = plan(&build(["9000", "2500"]));
    let texts: Vec<&str> = differ.warnings.iter().map(|warning| warning.text.as_str()).collect();
    assert_eq!(texts, ["the rails have different MTUs in bytes: 2048: b:1; 4096: a:1"]);
    only(&build(["1500", "1500"]), WarningCode::Mtu, &["only 1024 bytes", "4200 or more"]);
}

#[test]
fn ports_without_a_gid_that_fits() {
    let mut f = machines::two_sockets();
    f.pci("0000:21:00.0", machines::ETHERNET, 0).net("0000:21:00.0", "ens1", true);
    let local = Port { gids: &[(1, "RoCE v2", "fe80::2")], ..machines::roce("ens1") };
    f.rdma("0000:21:00.0", "a", &[local]);
    only(&f, WarningCode::NoGid, &["a:1", "fe80::2", "routable address"]);
}

#[test]
fn iommus_that_translate_and_those_that_pass_through() {
    for (kind, expected) in [("DMA", 1), ("DMA-FQ", 1), ("identity", 0)] {
        let f = good();
        let folder = f.folder("0000:21:00.0").to_owned();
        f.link(&format!("{folder}/iommu_group"), "../../../../kernel/iommu_groups/7");
        f.file("sys/kernel/iommu_groups/7/type", kind);
        assert_eq!(codes(&f).len(), expected, "{kind}");
    }
}

#[test]
fn quotas_are_told_with_their_file() {
    let f = good();
    f.file("proc/self/cgroup", "0::/pod");
    f.file("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
    f.file("sys/fs/cgroup/pod/cpu.max", "150000 100000");
    only(&f, WarningCode::CpuQuota, &["/sys/fs/cgroup/pod/cpu.max", "1.50 cpus", "adaptive"]);
}

#[test]
fn every_kind_of_warning_says_what_to_do() {
    for (name, build) in machines::ALL {
        for warning in plan(&build()).warnings {
            assert!(!warning.about.is_empty() && !warning.text.is_empty(), "{name}: {warning:?}");
            assert!(!warning.todo.is_empty(), "{name}: {warning:?}");
        }
    }
}
