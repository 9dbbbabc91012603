//! Chooses the rails among the usable devices: one per port, and where fewer are wanted those that
//! add most.

use super::candidate::Candidate;
use super::groups::together;
use super::policy::{Policy, SamePort};
use crate::cpuset::CpuSet;
use crate::plan::PassedOver;
use std::cmp::Reverse;

/// Indexes of the chosen candidates in the order of where they sit, and why the others were not.
pub(super) fn select(
    candidates: &[Candidate],
    policy: &Policy,
    usable_cpus: &CpuSet,
) -> (Vec<usize>, Vec<PassedOver>) {
    let mut passed_over = Vec::new();
    let mut chosen: Vec<usize> = (0..candidates.len()).collect();
    if policy.same_port == SamePort::One {
        chosen = one_per_port(candidates, &mut passed_over);
    }
    if let Some(most) = policy.rails_max
        && chosen.len() > most
    {
        let best = best_few(candidates, &chosen, most, usable_cpus);
        for index in chosen.iter().filter(|index| !best.contains(index)) {
            let why = format!("{most} rails were asked for, and others add more");
            passed_over.push(PassedOver { name: candidates[*index].name.clone(), why });
        }
        chosen.retain(|index| best.contains(index));
    }
    (chosen, passed_over)
}

/// The first of each port: physical functions come before virtual ones.
fn one_per_port(candidates: &[Candidate], passed_over: &mut Vec<PassedOver>) -> Vec<usize> {
    let mut by_preference: Vec<usize> = (0..candidates.len()).collect();
    by_preference.sort_by_key(|&index| (candidates[index].order.is_virtual, index));
    let mut chosen: Vec<usize> = Vec::new();
    for index in by_preference {
        let candidate = &candidates[index];
        // Directories on one disk stay: the caller named each.
        let port = candidate.port();
        let first =
            chosen.iter().find(|&&first| port.is_some() && candidates[first].port() == port);
        match first {
            None => chosen.push(index),
            Some(&first) => {
                let why = format!("it is on the same port as {}", candidates[first].name);
                passed_over.push(PassedOver { name: candidate.name.clone(), why });
            }
        }
    }
    chosen.sort_unstable();
    chosen
}

/// Greedily the candidate that adds most bandwidth; then one that is near a usable CPU; then one
/// whose card is not used yet; then the first by position.
fn best_few(
    candidates: &[Candidate],
    from: &[usize],
    most: usize,
    usable_cpus: &CpuSet,
) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::new();
    while best.len() < most {
        let now = together(candidates, &best).unwrap_or(0);
        let rank = |index: usize| {
            let mut with = best.clone();
            with.push(index);
            with.sort_unstable();
            // Where a rate is unknown nothing can be said about gain.
            let gain = together(candidates, &with).map_or(0, |total| total.saturating_sub(now));
            let candidate = &candidates[index];
            let near = candidate.locality.cpus.intersects(usable_cpus);
            let cards = best.iter().filter(|&&b| candidates[b].shares_card(candidate)).count();
            (Reverse(gain), !near, cards, index)
        };
        let next =
            from.iter().copied().filter(|index| !best.contains(index)).min_by_key(|&i| rank(i));
        let Some(next) = next else { break };
        best.push(next);
    }
    best
}
