//! Explains one rail: what it is, where it is, why its poller and memory are where they are.

use super::text::{Page, TextOptions, path_text, rate};
use crate::machine::Machine;
use crate::plan::{Plan, RailPlacement, ReasonCode};

/// There is no such rail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rail '{wanted}' in this plan; the rails are: {known}")]
pub struct ExplainError {
    /// What was asked for.
    pub wanted: String,
    /// The rails there are.
    pub known: String,
}

/// All about one rail, by number or name.
///
/// # Errors
/// When there is no such rail; the error lists the rails and why other devices are none.
pub fn explain(
    machine: &Machine,
    plan: &Plan,
    wanted: &str,
    options: TextOptions,
) -> Result<String, ExplainError> {
    let Some(rail) = plan.rail(wanted) else {
        let passed = plan.passed_over.iter().filter(|passed| {
            passed.name == wanted || passed.name.split(':').next() == Some(wanted)
        });
        let mut known: Vec<String> = plan.rails.iter().map(|rail| rail.name.clone()).collect();
        if known.is_empty() {
            known.push("none".to_owned());
        }
        let mut known = known.join(", ");
        for passed in passed {
            known.push_str(&format!(" ({} is none: {})", passed.name, passed.why));
        }
        return Err(ExplainError { wanted: wanted.to_owned(), known });
    };
    let mut page = Page::new(options);
    page.heading(&format!("Rail {}: {}", rail.number, rail.name));
    for (name, text) in facts(machine, plan, rail) {
        page.wrapped(&format!("{name:<11}"), 11, &text);
    }
    page.heading("Why");
    for reason in &rail.reasons {
        page.wrapped(&format!("{:<11}", heading(reason.code)), 11, &reason.text);
    }
    about_others(&mut page, plan, rail);
    Ok(page.finish())
}

fn heading(code: ReasonCode) -> &'static str {
    match code {
        ReasonCode::Usable => "a rail",
        ReasonCode::Locality => "its node",
        ReasonCode::Poller => "its poller",
        ReasonCode::Shared => "sharing",
        ReasonCode::Memory => "memory",
        ReasonCode::Gid => "its GID",
        ReasonCode::Bandwidth => "bandwidth",
        ReasonCode::Override => "asked for",
    }
}

fn facts(machine: &Machine, plan: &Plan, rail: &RailPlacement) -> Vec<(&'static str, String)> {
    let mut facts = vec![("path", path_text(rail))];
    if let Some(address) = rail.pci {
        let function = machine.pci_function(address);
        let bridges = function.map(|f| f.bridges.clone()).unwrap_or_default();
        let mut way: Vec<String> = Vec::new();
        way.extend(function.and_then(|f| f.host_bridge.clone()));
        way.extend(bridges.iter().chain(std::iter::once(&address)).map(|at| {
            let link = machine.pci_function(*at).and_then(|f| f.link.now);
            link.map_or(at.to_string(), |link| format!("{at} ({link})"))
        }));
        facts.push(("PCI", way.join(" > ")));
    }
    let node = rail.node.map_or("unknown".to_owned(), |node| format!("node {node}"));
    let near = match rail.near.is_empty() {
        true => node,
        false => format!("{node}, cpus {}", rail.near),
    };
    facts.push(("near", near));
    if let Some(poller) = plan.poller_of(rail) {
        let place = match (poller.cpu, poller.node) {
            (Some(cpu), Some(node)) => format!("cpu {cpu} on node {node}"),
            (Some(cpu), None) => format!("cpu {cpu}"),
            (None, _) => format!("any of cpus {}", poller.cpus),
        };
        facts.push(("poller", format!("{} on {place}", poller.number)));
    }
    let memory = rail.memory_node.map_or("any node".to_owned(), |node| format!("node {node}"));
    facts.push(("memory", memory));
    facts.push(("at most", rate(rail.bits_per_second)));
    facts.extend(rail.mtu_bytes.map(|mtu| ("MTU", format!("{mtu} bytes"))));
    facts
}

fn about_others(page: &mut Page, plan: &Plan, rail: &RailPlacement) {
    let concerns = |about: &str| {
        let names = about.split(", ").any(|name| name == rail.name);
        let address = rail.pci.is_some_and(|pci| about.contains(&pci.to_string()));
        let nodes = about.strip_prefix("nodes ").or_else(|| about.strip_prefix("node "));
        let listed = nodes.into_iter().flat_map(|nodes| nodes.split(", "));
        let node = rail.memory_node.map(|node| node.to_string());
        let node = listed.into_iter().any(|listed| Some(listed) == node.as_deref());
        names || address || node || about == "process"
    };
    let warnings: Vec<_> = plan.warnings.iter().filter(|w| concerns(&w.about)).collect();
    if warnings.is_empty() {
        return;
    }
    page.heading("Warnings");
    for warning in warnings {
        page.wrapped("- ", 2, &format!("{}: {}", warning.about, warning.text));
        page.wrapped("  do: ", 6, &warning.todo);
    }
}
