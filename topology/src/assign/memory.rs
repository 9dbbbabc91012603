//! Chooses the memory node of a rail's buffers: one that has memory, nearest first.

use super::candidate::Candidate;
use crate::id::NodeId;
use crate::machine::Machine;
use crate::plan::{PollerPlacement, Reason, ReasonCode};

/// The node, and why.
pub(super) fn choose(
    machine: &Machine,
    rail: &Candidate,
    poller: Option<&PollerPlacement>,
    asked: Option<NodeId>,
) -> (Option<NodeId>, Reason) {
    let reason = |text: String| Reason::new(ReasonCode::Memory, text);
    if let Some(node) = rail.memory_node.or(asked) {
        return (Some(node), reason(format!("buffers on node {node}, as asked")));
    }
    let nodes = machine.memory_nodes();
    let poller_node = poller.and_then(|poller| poller.node);
    let Some(from) = rail.locality.node.or(poller_node) else {
        let only = nodes.first().copied().filter(|_| nodes.len() == 1);
        let text = match only {
            Some(node) => format!("buffers on node {node}, the only one with memory"),
            None => "the node of its buffers is left to the kernel, as its own is unknown".into(),
        };
        return (only, reason(text));
    };
    let whose = if rail.locality.node.is_some() { "the rail's" } else { "its poller's" };
    if nodes.contains(&from) {
        return (Some(from), reason(format!("buffers on node {from}, {whose} own")));
    }
    let nearest = nodes.into_iter().min_by_key(|&node| (machine.distance(from, node), node));
    let text = match nearest {
        Some(node) => {
            let distance = match machine.distance(from, node) {
                u32::MAX => "distance unknown".to_owned(),
                distance => format!("distance {distance}"),
            };
            format!("buffers on node {node} ({distance}), as node {from} has no usable memory")
        }
        None => "no node has usable memory".to_owned(),
    };
    (nearest, reason(text))
}
