//! Engines at the places that the command line asks for, and what came of it, for people and JSON.

use std::path::PathBuf;

use anyhow::Result;
use railring::dma::Placement as Memory;
use railring::topology::assign::{Policy, Rails};
use railring::topology::plan::{RailPath, WarningCode};
use railring::topology::{CpuSet, Discovery, Machine, allowed_cpus, assign};
use railring::{Engine, RailSet, RailStats, Seat};
use serde::Serialize;

use crate::args::{PlaceArgs, RailCount};
use crate::output::note;

/// One rail: where it was to be polled and keep its memory, and what was read back.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlacedRail {
    rail: String,
    node: Option<u32>,
    poller: u32,
    /// `null` if to no CPU in particular.
    cpus_asked: Option<String>,
    cpus_got: Option<String>,
    pinned: bool,
    memory_node_asked: Option<u32>,
    /// A node, `first touch`, or that the kernel refused.
    memory_got: String,
}

/// An engine with a rail per directory, by the machine's plan and what the command line asks for.
pub(crate) fn engine(directories: &[PathBuf], place: &PlaceArgs) -> Result<Engine> {
    let machine = directories.iter().fold(Discovery::live(), |d, path| d.directory(path));
    let machine = machine.read()?;
    if place.rails == Some(RailCount::Auto) {
        tell_network(&machine)?;
    }
    let rails = RailSet::planned(machine, &policy(place))?;
    let engine = Engine::builder().rails(rails).build()?;
    tell(&engine);
    Ok(engine)
}

/// What a local store has no use for, as nothing of it is at the other end of a network.
fn tell_network(machine: &Machine) -> Result<()> {
    for rail in &assign(machine, &Policy::default())?.rails {
        if !matches!(rail.path, RailPath::File { .. }) {
            let name = &rail.name;
            note(format_args!(
                "{name} is not used: the object lies in directories of this machine"
            ));
        }
    }
    Ok(())
}

/// What the command line asks for. If it asks for nothing, one CPU is left to this thread, which
/// has work to do of its own.
fn policy(place: &PlaceArgs) -> Policy {
    let asked = place.policy();
    let all = place.rails == Some(RailCount::Auto);
    let spare = allowed_cpus().map_or(1, |cpus| cpus.len()).saturating_sub(1).max(1);
    let pollers_max = (asked == Policy::default() && !all).then_some(spare);
    Policy { rails: Rails::File, pollers_max, ..asked }
}

/// What was asked for and could not be had.
fn tell(engine: &Engine) {
    let asked = [WarningCode::CpusDropped, WarningCode::FarMemory, WarningCode::NotUsable];
    let warnings = engine.plan().into_iter().flat_map(|plan| &plan.warnings);
    for warning in warnings.filter(|warning| asked.contains(&warning.code)) {
        note(format_args!("{}: {}; {}", warning.about, warning.text, warning.todo));
    }
    for seat in engine.seats().iter().filter(|seat| !seat.is_exact()) {
        let (asked, got) = (show(seat.asked.as_ref()), show(seat.got.as_ref()));
        let poller = seat.poller;
        note(format_args!("poller {poller} was to run on cpus {asked} and may run on {got}"));
    }
    if engine.stats().regions_misplaced > 0 {
        note("the kernel refuses to place memory on a node; where it is first touched decides");
    }
}

pub(crate) fn show(cpus: Option<&CpuSet>) -> String {
    cpus.map_or_else(|| "any".to_owned(), CpuSet::to_string)
}

/// Every rail with its place, as asked for and read back.
pub(crate) fn rails(engine: &Engine) -> Vec<PlacedRail> {
    let stats = engine.rail_stats();
    stats.iter().map(|rail| placed(rail, seat_of(engine.seats(), rail))).collect()
}

fn seat_of<'a>(seats: &'a [Seat], rail: &RailStats) -> Option<&'a Seat> {
    seats.iter().find(|seat| seat.poller == rail.poller)
}

fn placed(rail: &RailStats, seat: Option<&Seat>) -> PlacedRail {
    let text = |cpus: Option<&CpuSet>| cpus.map(CpuSet::to_string);
    PlacedRail {
        rail: rail.info.name.clone(),
        node: rail.node,
        poller: rail.poller,
        cpus_asked: text(seat.and_then(|seat| seat.asked.as_ref())),
        cpus_got: text(seat.and_then(|seat| seat.got.as_ref())),
        pinned: rail.pinned_cpu.is_some(),
        memory_node_asked: rail.memory_node,
        memory_got: match rail.memory {
            Memory::Node(node) => format!("node {node}"),
            Memory::Refused { node, errno } => format!("node {node} refused (errno {errno})"),
            _ => "first touch".to_owned(),
        },
    }
}
