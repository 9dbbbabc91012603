//! What a number of runs has reached.

use std::fmt;

use railring_sim::FaultKind;

use super::Outcome;
use super::run::MARKS;

/// Shares of runs in which things happened.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    runs: u64,
    turns: u64,
    reads: u64,
    stripes: u64,
    faults: Vec<u64>,
    marks: Vec<u64>,
    rails: u64,
    pollers: u64,
    rings: u64,
    copies: u64,
}

impl Coverage {
    /// Counts one run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.turns += outcome.turns;
        self.reads += outcome.reads;
        self.stripes += outcome.stripes;
        self.faults.resize(FaultKind::ALL.len(), 0);
        for (count, (_, fired)) in self.faults.iter_mut().zip(outcome.fired.iter()) {
            *count += u64::from(fired > 0);
        }
        self.marks.resize(MARKS.len(), 0);
        for (bit, count) in self.marks.iter_mut().enumerate() {
            *count += outcome.marks.0 >> bit & 1;
        }
        let sizes = outcome.sizes;
        self.rails += u64::from(sizes.rails > 1);
        self.pollers += u64::from(sizes.pollers > 1);
        self.rings += u64::from(sizes.rings > 1);
        self.copies += u64::from(sizes.copies > 1);
    }

    /// Turns of all runs.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Kinds of fault that struck in fewer than `per_thousand` of a thousand runs; those that no
    /// run may have are left out.
    #[must_use]
    pub fn rare(&self, per_thousand: u64) -> Vec<&'static str> {
        let possible = FaultKind::ALL.iter().zip(&self.faults);
        let possible = possible.filter(|(kind, _)| **kind != FaultKind::LateWrite);
        let rare = possible.filter(|(_, count)| **count * 1000 < per_thousand * self.runs);
        rare.map(|(kind, _)| kind.name()).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { runs, turns, reads, stripes, .. } = self;
        writeln!(f, "{runs} runs, {turns} turns, {reads} reads, {stripes} stripes checked")?;
        writeln!(f, "| in this share of runs | |\n|---|---|")?;
        let share = |count: &u64| *count as f64 * 100.0 / (*runs).max(1) as f64;
        let sizes = [
            ("several rails", &self.rails),
            ("several pollers", &self.pollers),
            ("several rings", &self.rings),
            ("several copies", &self.copies),
        ];
        let marks = MARKS.iter().copied().zip(&self.marks);
        let faults = FaultKind::ALL.iter().zip(&self.faults);
        let faults = faults.filter(|(kind, _)| **kind != FaultKind::LateWrite);
        let faults = faults.map(|(kind, count)| (kind.name(), count));
        for (name, count) in sizes.into_iter().chain(marks).chain(faults) {
            writeln!(f, "| {name} | {:.1} % |", share(count))?;
        }
        Ok(())
    }
}
