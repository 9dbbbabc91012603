//! What rails have in common, and what they can carry together: a minimum over a tree of links.

use super::candidate::{Candidate, Through};
use crate::plan::{Expected, Group, GroupKind};
use std::collections::BTreeMap;

/// A stage with the candidates (by index) that go through it.
#[derive(Clone, Debug)]
struct Shared<'a> {
    through: &'a Through,
    capacity: Option<u64>,
    members: Vec<usize>,
}

/// All stages of the chosen candidates, inner ones (fewer members) first.
fn shared_stages<'a>(candidates: &'a [Candidate], chosen: &[usize]) -> Vec<Shared<'a>> {
    let mut stages: BTreeMap<&Through, Shared<'a>> = BTreeMap::new();
    for &index in chosen {
        for stage in &candidates[index].stages {
            let shared = stages.entry(&stage.through).or_insert_with(|| Shared {
                through: &stage.through,
                capacity: None,
                members: Vec::new(),
            });
            // Functions of one port may tell its rate differently; the port has the highest.
            shared.capacity = shared.capacity.max(stage.capacity);
            if shared.members.last() != Some(&index) {
                shared.members.push(index);
            }
        }
    }
    let mut stages: Vec<Shared<'a>> = stages.into_values().collect();
    stages.sort_by_key(|shared| shared.members.len());
    stages
}

/// Bits per second of rails together: stages form a tree, so merging inner ones first and taking
/// the lesser of a stage's capacity and the sum of what comes out of it gives the largest flow.
pub(super) fn together(candidates: &[Candidate], chosen: &[usize]) -> Option<u64> {
    let flows = flow_through(&shared_stages(candidates, chosen), chosen, |_, _, _| {});
    sum(flows.values().map(|block| block.flow))
}

#[derive(Clone, Debug)]
struct Block {
    members: Vec<usize>,
    flow: Option<u64>,
}

fn sum(flows: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    flows.sum()
}

/// Merges the rails stage by stage; `seen` is told each stage, what would come out without it, and
/// what does.
fn flow_through(
    stages: &[Shared<'_>],
    chosen: &[usize],
    mut seen: impl FnMut(&Shared<'_>, Option<u64>, Option<u64>),
) -> BTreeMap<usize, Block> {
    // Blocks by their first member; a rail of which nothing is known yet carries anything.
    let mut block_of: BTreeMap<usize, usize> = chosen.iter().map(|&rail| (rail, rail)).collect();
    let mut blocks: BTreeMap<usize, Block> =
        chosen.iter().map(|&rail| (rail, Block { members: vec![rail], flow: None })).collect();
    for stage in stages {
        let mut keys: Vec<usize> = stage.members.iter().map(|member| block_of[member]).collect();
        keys.sort_unstable();
        keys.dedup();
        let parts: Vec<Block> = keys.iter().filter_map(|key| blocks.remove(key)).collect();
        let wanted = sum(parts.iter().map(|block| block.flow));
        let flow = match (wanted, stage.capacity) {
            (Some(wanted), Some(capacity)) => Some(wanted.min(capacity)),
            (wanted, capacity) => wanted.or(capacity),
        };
        seen(stage, wanted, flow);
        let members: Vec<usize> = parts.into_iter().flat_map(|block| block.members).collect();
        let key = keys.first().copied().unwrap_or_default();
        for member in &members {
            block_of.insert(*member, key);
        }
        blocks.insert(key, Block { members, flow });
    }
    blocks
}

fn describe(through: &Through) -> (GroupKind, String) {
    match through {
        Through::Port { function, port } => {
            (GroupKind::SamePort, format!("port {port} of {function}"))
        }
        Through::Disk(disk) => (GroupKind::SameDisk, format!("disk {disk}")),
        Through::Net(net) => (GroupKind::SameAddress, net.clone()),
        Through::Slot(slot) => (GroupKind::SameAdapter, format!("the card at {slot}")),
        Through::Card(guid) => (GroupKind::SameAdapter, format!("the card with identity {guid}")),
        Through::Bridge(bridge) => (GroupKind::CommonUplink, format!("the link at {bridge}")),
    }
}

/// The groups among the rails, and the expected bandwidth of all.
pub(super) fn evaluate(candidates: &[Candidate], chosen: &[usize]) -> (Vec<Group>, Expected) {
    let number: BTreeMap<usize, u16> =
        chosen.iter().zip(0_u16..).map(|(&index, number)| (index, number)).collect();
    let mut groups: Vec<Group> = Vec::new();
    let stages = shared_stages(candidates, chosen);
    let blocks = flow_through(&stages, chosen, |stage, wanted, flow| {
        let (kind, through) = describe(stage.through);
        let narrows = wanted.zip(flow).is_some_and(|(wanted, flow)| flow < wanted);
        // An uplink that carries all that comes is not worth a word.
        if stage.members.len() < 2 || (kind == GroupKind::CommonUplink && !narrows) {
            return;
        }
        let rails: Vec<u16> = stage.members.iter().map(|member| number[member]).collect();
        // Where a port's rate is unknown, its rail could at least use its own links alone.
        let alone = || sum(stage.members.iter().map(|&member| candidates[member].alone()));
        let wanted = wanted.or_else(alone);
        let same = |group: &&mut Group| group.kind == kind && group.rails == rails;
        if let Some(known) = groups.iter_mut().find(same) {
            // A card has a slot and an identity, and a switch several links in a row.
            known.bits_per_second = match (known.bits_per_second, stage.capacity) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            return;
        }
        groups.push(Group {
            kind,
            through,
            rails,
            bits_per_second: stage.capacity,
            wanted_bits_per_second: wanted,
        });
    });
    groups.sort_by(|a, b| (a.kind, &a.rails).cmp(&(b.kind, &b.rails)));
    let unknown = chosen.iter().filter(|&&index| candidates[index].alone().is_none());
    let expected = Expected {
        bits_per_second: sum(blocks.values().map(|block| block.flow)),
        sum_bits_per_second: sum(chosen.iter().map(|&index| candidates[index].alone())),
        unknown_rails: unknown.map(|&index| candidates[index].name.clone()).collect(),
    };
    (groups, expected)
}
