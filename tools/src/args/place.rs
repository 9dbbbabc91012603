//! Options of every command that builds an engine: which rails, on which cores, in which memory.

use clap::Args;
use railring::topology::assign::{Pin, Placement, Policy, Strictness};
use railring::topology::{CpuSet, NodeId};

const HEADING: &str = "Placement";

/// How many rails there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RailCount {
    /// Those of the machine's plan.
    Auto,
    /// At most so many of them.
    Most(usize),
}

/// Where rails, pollers and buffers go. What is not said is decided by the machine's plan.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PlaceArgs {
    /// How many rails at most; `auto` is all that the machine's plan has.
    #[arg(long, value_name = "N|auto", help_heading = HEADING, value_parser = rails)]
    pub(crate) rails: Option<RailCount>,
    /// Run pollers on these CPUs only, also isolated ones, as in 2-5,12.
    #[arg(long, value_name = "LIST", help_heading = HEADING, value_parser = cpus)]
    pub(crate) cpus: Option<CpuSet>,
    /// Run pollers on this memory node's CPUs only.
    #[arg(long, value_name = "N", help_heading = HEADING, value_parser = node)]
    pub(crate) node: Option<NodeId>,
    /// Put buffers on this memory node.
    #[arg(long, value_name = "N", help_heading = HEADING, value_parser = node)]
    pub(crate) memory_node: Option<NodeId>,
    /// Bind the poller of a rail (its name or number) to a CPU; may be given several times.
    #[arg(long = "pin", value_name = "RAIL=CPU", help_heading = HEADING)]
    pub(crate) pins: Vec<Pin>,
    /// How pollers are put on cores: near (one per rail on a core of its node), compact (one per
    /// node), unpinned.
    #[arg(long, value_name = "POLICY", help_heading = HEADING)]
    pub(crate) policy: Option<Placement>,
    /// Refuse to start when any of this cannot be had exactly, instead of warning.
    #[arg(long, help_heading = HEADING)]
    pub(crate) strict: bool,
}

impl PlaceArgs {
    /// What the caller decides about the plan.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            rails_max: match self.rails {
                Some(RailCount::Most(most)) => Some(most),
                Some(RailCount::Auto) | None => None,
            },
            cpus: self.cpus.clone(),
            node: self.node,
            memory_node: self.memory_node,
            pins: self.pins.clone(),
            placement: self.policy.unwrap_or_default(),
            strictness: if self.strict { Strictness::Strict } else { Strictness::Survive },
            ..Policy::default()
        }
    }
}

fn rails(text: &str) -> Result<RailCount, String> {
    if text == "auto" {
        return Ok(RailCount::Auto);
    }
    match text.parse() {
        Ok(most) if (1..=64).contains(&most) => Ok(RailCount::Most(most)),
        _ => Err("a number of rails from 1 to 64, or auto".to_owned()),
    }
}

fn cpus(text: &str) -> Result<CpuSet, String> {
    let cpus: CpuSet = text.parse().map_err(|error| format!("{error}"))?;
    if cpus.is_empty() { Err("name at least one cpu".to_owned()) } else { Ok(cpus) }
}

fn node(text: &str) -> Result<NodeId, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.map(NodeId).ok_or_else(|| "the number of a memory node, as in 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        place: PlaceArgs,
    }

    fn parse(line: &str) -> Result<Policy, String> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(command.place.policy())
    }

    #[test]
    fn nothing_said_decides_nothing() {
        assert_eq!(parse(""), Ok(Policy::default()));
        assert_eq!(parse("--rails auto"), Ok(Policy::default()));
    }

    #[test]
    fn every_option_reaches_the_policy() {
        let line = "--rails 3 --cpus 2-3,9 --node 1 --memory-node 0 --pin a=2 --pin 1=3 \
                    --policy compact --strict";
        let policy = parse(line).expect("well-formed");
        assert_eq!(policy.rails_max, Some(3));
        assert_eq!(policy.cpus.map(|cpus| cpus.to_string()).as_deref(), Some("2-3,9"));
        assert_eq!((policy.node, policy.memory_node), (Some(NodeId(1)), Some(NodeId(0))));
        assert_eq!(policy.pins.len(), 2);
        assert_eq!(policy.placement, Placement::Compact);
        assert_eq!(policy.strictness, Strictness::Strict);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for bad in [
            "--rails 0",
            "--rails many",
            "--cpus 3-1",
            "--cpus 0-4294967295",
            "--node -1",
            "--node x",
            "--memory-node 70000",
            "--pin a",
            "--policy fast",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
