//! What a number of runs has reached.

use std::fmt;

use railring_sim::FaultKind;

use super::Outcome;
use super::run::MARKS;

/// What is summed up over runs.
const SUMS: &[&str] = &["runs", "turns", "reads", "stripes"];
/// Of what there can be several in a run.
const SIZES: &[&str] = &["several rails", "several pollers", "several rings", "several copies"];

/// In how many runs things happened, and sums over all runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// In the order of [`names`].
    counts: Vec<u64>,
}

/// The names of all counts: sums, sizes, marks, faults.
fn names() -> impl Iterator<Item = &'static str> {
    let plain = SUMS.iter().chain(SIZES).chain(MARKS).copied();
    plain.chain(faults().map(FaultKind::name))
}

/// Kinds of fault that runs may have. A device that writes into memory it gave back is no device:
/// that it would be seen is a test of its own.
fn faults() -> impl Iterator<Item = FaultKind> {
    FaultKind::ALL.iter().copied().filter(|kind| *kind != FaultKind::LateWrite)
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage { counts: names().map(|_| 0).collect() }
    }
}

impl Coverage {
    /// Counts one run.
    pub fn add(&mut self, outcome: &Outcome) {
        let sizes = outcome.sizes;
        let several = [sizes.rails, sizes.pollers, sizes.rings, sizes.copies];
        let marks = (0..MARKS.len()).map(|bit| outcome.marks.0 >> bit & 1);
        let of_run = [1, outcome.turns, outcome.reads, outcome.stripes]
            .into_iter()
            .chain(several.map(|count| u64::from(count > 1)))
            .chain(marks)
            .chain(faults().map(|kind| u64::from(outcome.fired.of(kind) > 0)));
        for (count, more) in self.counts.iter_mut().zip(of_run) {
            *count += more;
        }
    }

    /// Counts what others have counted.
    pub fn merge(&mut self, other: &Coverage) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    fn of(&self, name: &str) -> u64 {
        let at = names().position(|known| known == name);
        at.map_or(0, |at| self.counts[at])
    }

    /// Runs.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.of("runs")
    }

    /// Turns of all runs.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.of("turns")
    }

    /// What happened in fewer than `per_thousand` of a thousand runs, of all that could have.
    #[must_use]
    pub fn rare(&self, per_thousand: u64) -> Vec<&'static str> {
        let counts = names().zip(&self.counts).skip(SUMS.len());
        let rare = counts.filter(|(_, count)| **count * 1000 < per_thousand * self.runs());
        rare.map(|(name, _)| name).collect()
    }

    /// One line per count, for [`Coverage::parse`].
    #[must_use]
    pub fn lines(&self) -> String {
        names().zip(&self.counts).map(|(name, count)| format!("{count} {name}\n")).collect()
    }

    /// The counts of such lines; none if they are of a program that counts something else.
    #[must_use]
    pub fn parse(lines: &str) -> Option<Coverage> {
        let mut coverage = Coverage::default();
        let mut lines = lines.lines();
        for (name, count) in names().zip(&mut coverage.counts) {
            let (number, of) = lines.next()?.split_once(' ')?;
            *count = number.parse().ok().filter(|_| of == name)?;
        }
        lines.next().is_none().then_some(coverage)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums: Vec<String> =
            SUMS.iter().map(|name| format!("{} {name}", self.of(name))).collect();
        writeln!(f, "{} checked\n", sums.join(", "))?;
        writeln!(f, "| in this share of runs | |\n|---|---|")?;
        for (name, count) in names().zip(&self.counts).skip(SUMS.len()) {
            let share = *count as f64 * 100.0 / self.runs().max(1) as f64;
            writeln!(f, "| {name} | {share:.1} % |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_being_written_down_and_names_are_told_apart() {
        let mut coverage = Coverage::default();
        for (number, count) in (3..).zip(&mut coverage.counts) {
            *count = number;
        }
        let lines = coverage.lines();
        assert_eq!(Coverage::parse(&lines), Some(coverage.clone()));
        assert_eq!(Coverage::parse(&lines.replace("flap", "flop")), None);
        assert_eq!(Coverage::parse(&format!("{lines}1 more\n")), None);
        let mut twice = coverage.clone();
        twice.merge(&coverage);
        assert_eq!((twice.runs(), twice.turns()), (6, 8));
        let all: Vec<&str> = names().collect();
        assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])), "a name is there twice");
    }
}
