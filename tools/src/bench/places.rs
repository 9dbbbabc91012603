//! Where benchmarks run: the caller's CPUs, the pollers', and the record of what each row got.

use std::cell::RefCell;

use anyhow::{Context as _, Result};
use railring::sim::NullConfig;
use railring::topology::assign::{Placement, Policy, Rails, Strictness};
use railring::topology::railspec::{RailSpec, RailTarget};
use railring::topology::{CpuId, CpuSet, Discovery, allowed_cpus, assign, pin_current_thread};
use railring::{Engine, EngineBuilder, Pinning, RailSet, Seat};
use serde::Serialize;

use crate::UsageError;
use crate::args::{Group, PlaceArgs, RailCount};
use crate::placed::show;

/// The places of a run.
#[derive(Debug)]
pub(crate) struct Places {
    /// Where the measuring thread runs.
    caller: CpuSet,
    /// Where the first poller runs, and a peer's second thread; none if there is one CPU only.
    other: Option<CpuSet>,
    /// What the command line decides about pollers and memory; none if it says nothing.
    policy: Option<Policy>,
    /// Rails of the rows whose number of rails is not what they measure.
    rails: usize,
    /// Pollers of the engines of the present row.
    seats: RefCell<Vec<Seat>>,
}

/// Where a row ran: what was asked for and what was read back.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RowPlacement {
    caller_cpus_asked: String,
    caller_cpus_got: String,
    pollers: Vec<RowPoller>,
    memory_node_asked: Option<u16>,
}

/// One poller of a row's engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct RowPoller {
    poller: u32,
    rails: Vec<String>,
    cpus_asked: String,
    cpus_got: String,
}

impl RowPlacement {
    /// In one line, for people.
    pub(crate) fn text(&self) -> String {
        let place = |asked: &str, got: &str| {
            if asked == got { got.to_owned() } else { format!("{got} ({asked} asked for)") }
        };
        let mut text =
            format!("caller on cpu {}", place(&self.caller_cpus_asked, &self.caller_cpus_got));
        for poller in &self.pollers {
            let place = place(&poller.cpus_asked, &poller.cpus_got);
            text.push_str(&format!(", poller {} on cpu {place}", poller.poller));
        }
        if let Some(node) = self.memory_node_asked {
            text.push_str(&format!(", memory on node {node}"));
        }
        text
    }
}

/// Binds this thread.
pub(crate) fn pin(cpus: &CpuSet) -> Result<()> {
    pin_current_thread(cpus)?;
    Ok(())
}

fn null_specs(rails: usize) -> Vec<RailSpec> {
    (0..rails).map(|index| RailSpec::new(RailTarget::Null(format!("null{index}")))).collect()
}

/// So many null rails.
pub(crate) fn null_rails(rails: usize) -> Result<RailSet> {
    let add = |set: RailSet, index| set.null(NullConfig::new(format!("null{index}")));
    Ok((0..rails).try_fold(RailSet::new(), add)?)
}

impl Places {
    /// The first CPU for the caller, the last for the poller, unless the command line says more.
    pub(crate) fn of(place: &PlaceArgs, group: Group, allowed: &CpuSet) -> Result<Self> {
        let rails = match place.rails {
            Some(RailCount::Most(rails)) => rails,
            Some(RailCount::Auto) | None => 1,
        };
        if rails > 1 && matches!(group, Group::File | Group::Verbs | Group::All) {
            let problem = "bench file and verbs compare one rail with its peer: leave --rails out";
            return Err(UsageError(problem.to_owned()).into());
        }
        let policy = Policy { rails_max: None, ..place.policy() };
        if policy != Policy::default() {
            return Self::wanted(policy, rails, group);
        }
        let first = allowed.first().context("this process may use no cpu")?;
        let last = allowed.last().filter(|&last| last != first);
        let seats = RefCell::default();
        let other = last.map(CpuSet::from);
        Ok(Places { caller: first.into(), other, policy: None, rails, seats })
    }

    /// Of the CPUs that may be used, one is the caller's and the others are the pollers'.
    fn wanted(policy: Policy, rails: usize, group: Group) -> Result<Self> {
        let machine = Discovery::live().read()?;
        let given = Policy { rails: Rails::Given(null_specs(rails)), ..policy.clone() };
        // Says what cannot be, with what can.
        assign(&machine, &Policy { pins: Vec::new(), ..given.clone() })?;
        let mut usable = match &policy.cpus {
            Some(cpus) => cpus.intersection(&machine.cpus.bindable()),
            None => machine.allowed(),
        };
        if let Some(node) = policy.node.and_then(|id| machine.node(id)) {
            usable = usable.intersection(&node.cpus);
        }
        if policy.placement == Placement::Unpinned {
            let (caller, other) = (usable.clone(), Some(usable));
            let seats = RefCell::default();
            return Ok(Places { caller, other, policy: Some(policy), rails, seats });
        }
        let pinned: CpuSet = policy.pins.iter().map(|pin| pin.cpu).collect();
        // The caller drives the one rail of this group itself.
        let drives = matches!(group, Group::File | Group::Verbs);
        let free = if drives { pinned.clone() } else { usable.difference(&pinned) };
        let caller: CpuId = free.first().or(usable.first()).context("no cpu can be used")?;
        let rest = usable.difference(&caller.into());
        let is_alone = rest.is_empty() && pinned.is_empty();
        // What was asked for and is not there stays in, so that it is told or refused.
        let asked = policy.cpus.clone().unwrap_or(usable).difference(&caller.into());
        let cpus = if rest.is_empty() { policy.cpus.clone() } else { Some(asked) };
        let policy = Policy { cpus, ..policy };
        let plan = assign(&machine, &Policy { rails: given.rails, ..policy.clone() })?;
        let first = plan.pollers.first().and_then(|poller| poller.cpu).map(CpuSet::from);
        let other = first.filter(|_| !is_alone);
        let seats = RefCell::default();
        Ok(Places { caller: caller.into(), other, policy: Some(policy), rails, seats })
    }

    pub(crate) fn caller(&self) -> &CpuSet {
        &self.caller
    }

    pub(crate) fn other(&self) -> Option<&CpuSet> {
        self.other.as_ref()
    }

    /// Rails of a row whose number of rails is not what it measures.
    pub(crate) fn rails(&self) -> usize {
        self.rails
    }

    /// An engine's beginning, with its pollers and memory where they belong.
    pub(crate) fn builder(&self, rails: RailSet) -> EngineBuilder {
        let builder = Engine::builder().rails(rails);
        match (&self.policy, &self.other) {
            (Some(policy), _) => builder.place(policy.clone()),
            (None, Some(cpus)) => {
                let cpus = cpus.iter().map(|cpu| u32::from(cpu.0)).collect();
                builder.pinning(Pinning::Cpus(cpus))
            }
            (None, None) => builder.pinning(Pinning::Unpinned),
        }
    }

    /// The same for an engine without pollers, whose rails the caller drives.
    pub(crate) fn inline(&self, rails: RailSet) -> EngineBuilder {
        let builder = Engine::builder().rails(rails);
        match &self.policy {
            // Pins are of pollers.
            Some(policy) => builder.place(Policy { pins: Vec::new(), ..policy.clone() }),
            None => builder,
        }
    }

    /// An engine of the present row runs.
    pub(crate) fn record(&self, engine: &Engine) {
        let mut seats = self.seats.borrow_mut();
        for seat in engine.seats() {
            if !seats.contains(seat) {
                seats.push(seat.clone());
            }
        }
    }

    /// Another row begins.
    pub(crate) fn begin_row(&self) {
        self.seats.borrow_mut().clear();
    }

    /// Where the present row ran. The caller's place is read back now.
    pub(crate) fn of_row(&self) -> RowPlacement {
        let poller = |seat: &Seat| RowPoller {
            poller: seat.poller,
            rails: seat.rails.clone(),
            cpus_asked: show(seat.asked.as_ref()),
            cpus_got: show(seat.got.as_ref()),
        };
        RowPlacement {
            caller_cpus_asked: self.caller.to_string(),
            caller_cpus_got: show(allowed_cpus().ok().as_ref()),
            pollers: self.seats.borrow().iter().map(poller).collect(),
            memory_node_asked: self
                .policy
                .as_ref()
                .and_then(|policy| policy.memory_node)
                .map(|node| node.0),
        }
    }

    /// Refuses what could not be bound, if that was asked for.
    pub(crate) fn check(&self) -> Result<()> {
        let strict = self.policy.as_ref().is_some_and(|p| p.strictness == Strictness::Strict);
        let row = self.of_row();
        anyhow::ensure!(
            !strict || row.caller_cpus_asked == row.caller_cpus_got,
            "the measuring thread was to run on cpus {} and may run on {}",
            row.caller_cpus_asked,
            row.caller_cpus_got
        );
        Ok(())
    }
}
