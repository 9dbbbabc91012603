//! Rows: two things measured in turn, their medians, the ratio, and whether it meets its target.

use anyhow::Result;
use serde::Serialize;

use super::places::RowPlacement;
use crate::output::{Align, Out, Table};

/// What a row must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// The ratio is at least this.
    RatioAtLeast(f64),
    /// The ratio is at most this.
    RatioAtMost(f64),
    /// Our own figure is at most this.
    OursAtMost(f64),
    /// Our own figure is below this.
    OursBelow(f64),
}

impl Target {
    fn text(self) -> String {
        match self {
            Target::RatioAtLeast(limit) => format!("ratio >= {limit}"),
            Target::RatioAtMost(limit) => format!("ratio <= {limit}"),
            Target::OursAtMost(limit) => format!("<= {limit}"),
            Target::OursBelow(limit) => format!("< {limit}"),
        }
    }

    fn is_met(self, ours: Option<f64>, ratio: Option<f64>) -> bool {
        match self {
            Target::RatioAtLeast(limit) => ratio.is_some_and(|ratio| ratio >= limit),
            Target::RatioAtMost(limit) => ratio.is_some_and(|ratio| ratio <= limit),
            Target::OursAtMost(limit) => ours.is_some_and(|ours| ours <= limit),
            Target::OursBelow(limit) => ours.is_some_and(|ours| ours < limit),
        }
    }
}

/// One result, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    row: &'static str,
    ours: Option<f64>,
    against: String,
    theirs: Option<f64>,
    ratio: Option<f64>,
    target: String,
    meets: bool,
    pairs: usize,
    spread: Option<[f64; 2]>,
    unit: &'static str,
    simulated: bool,
    /// Where it ran; none until it is done.
    placement: Option<RowPlacement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Two series, measured in turn. `theirs` may be empty, when the peer is not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) ours: Vec<f64>,
    pub(crate) theirs: Vec<f64>,
}

impl Pairs {
    /// A B A B, so often.
    pub(crate) fn measure(
        pairs: usize,
        mut ours: impl FnMut() -> Result<f64>,
        mut theirs: impl FnMut() -> Result<f64>,
    ) -> Result<Self> {
        let mut measured = Pairs::default();
        for _ in 0..pairs {
            measured.ours.push(ours()?);
            measured.theirs.push(theirs()?);
        }
        Ok(measured)
    }

    fn ratios(&self) -> Vec<f64> {
        self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| ours / theirs).collect()
    }
}

impl Row {
    pub(crate) fn new(
        row: &'static str,
        unit: &'static str,
        against: impl Into<String>,
        target: Target,
        pairs: &Pairs,
    ) -> Self {
        let ratios = pairs.ratios();
        let (ours, ratio) = (median(&pairs.ours), median(&ratios));
        let shown = if ratios.is_empty() { &pairs.ours } else { &ratios };
        Row {
            row,
            ours,
            against: against.into(),
            theirs: median(&pairs.theirs),
            ratio,
            target: target.text(),
            meets: target.is_met(ours, ratio),
            pairs: pairs.ours.len(),
            spread: spread(shown),
            unit,
            simulated: false,
            placement: None,
            note: None,
        }
    }

    /// A row that could not be measured, or not against its peer.
    pub(crate) fn without(
        row: &'static str,
        unit: &'static str,
        against: impl Into<String>,
        target: Target,
        reason: impl Into<String>,
    ) -> Self {
        Row::new(row, unit, against, target, &Pairs::default()).note(reason)
    }

    /// Our figure stands for itself: a ratio to the other one would say nothing. `ours`, if given,
    /// is better than the median of the pairs.
    pub(crate) fn alone(self, target: Target, pairs: &Pairs, ours: Option<f64>) -> Self {
        let ours = ours.or(self.ours);
        let meets = target.is_met(ours, None);
        Row { ours, ratio: None, spread: spread(&pairs.ours), meets, ..self }
    }

    /// Adds a remark to those that are there.
    pub(crate) fn note(self, note: impl Into<String>) -> Self {
        let note = match &self.note {
            Some(before) => format!("{before}; {}", note.into()),
            None => note.into(),
        };
        Row { note: Some(note), ..self }
    }

    /// Its times were virtual.
    pub(crate) fn simulated(self) -> Self {
        Row { simulated: true, ..self }
    }

    /// Where it ran.
    pub(crate) fn placed(self, placement: RowPlacement) -> Self {
        Row { placement: Some(placement), ..self }
    }

    /// Says whether the target is met where more than the one figure decides.
    pub(crate) fn also(self, condition: bool) -> Self {
        Row { meets: self.meets && condition, ..self }
    }
}

/// The middle value, or the mean of the two middle ones.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = sorted.get(middle).copied()?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some((sorted[middle - 1] + upper) / 2.0) }
}

fn spread(values: &[f64]) -> Option<[f64; 2]> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    Some([least, most])
}

/// The table for people, remarks below it.
pub(crate) fn print(rows: &[Row], out: &mut Out) -> Result<()> {
    let mut table = Table::new(&[
        ("row", Align::Left),
        ("ours", Align::Right),
        ("theirs", Align::Right),
        ("unit", Align::Left),
        ("ratio", Align::Right),
        ("spread", Align::Left),
        ("target", Align::Left),
        ("meets", Align::Left),
        ("against", Align::Left),
    ]);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), short);
    for row in rows {
        table.row(vec![
            row.row.to_owned(),
            number(row.ours),
            number(row.theirs),
            row.unit.to_owned(),
            row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            row.spread.map_or("-".to_owned(), |[a, b]| format!("{}..{}", short(a), short(b))),
            row.target.clone(),
            if row.meets { "yes" } else { "NO" }.to_owned(),
            row.against.clone(),
        ]);
    }
    table.print(out)?;
    let mut notes = rows.iter().filter_map(|row| Some((row.row, row.note.as_ref()?))).peekable();
    if notes.peek().is_some() {
        out.line("")?;
    }
    for (row, note) in notes {
        out.line(format_args!("{row}: {note}"))?;
    }
    out.line("")?;
    for row in rows {
        let place = row.placement.as_ref().map_or("unknown".to_owned(), RowPlacement::text);
        out.line(format_args!("{} ran: {place}", row.row))?;
    }
    Ok(())
}

/// Three or four digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{:.2} G", value / 1e9),
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        size if size < 0.01 => format!("{value:.4}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ours: &[f64], theirs: &[f64]) -> Pairs {
        Pairs { ours: ours.to_vec(), theirs: theirs.to_vec() }
    }

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        let row =
            Row::new("a", "x/s", "b", Target::RatioAtLeast(2.0), &pairs(&[4.0, 9.0], &[2.0, 3.0]));
        assert_eq!((row.ratio, row.spread, row.meets), (Some(2.5), Some([2.0, 3.0]), true));
    }

    #[test]
    fn a_peer_that_is_missing_is_said_and_meets_nothing() {
        let row = Row::new("a", "x/s", "b", Target::RatioAtLeast(1.0), &pairs(&[4.0], &[]))
            .note("fio is not installed");
        assert!(!row.meets && row.theirs.is_none() && row.ours.is_some());
        let text = serde_json::to_string(&row).expect("plain data");
        assert!(text.contains(r#""theirs":null"#) && text.contains("not installed"), "{text}");
    }

    #[test]
    fn targets_of_our_own_need_no_peer() {
        let row = |target| Row::new("a", "%", "b", target, &pairs(&[0.5], &[]));
        assert!(row(Target::OursAtMost(0.5)).meets);
        assert!(!row(Target::OursBelow(0.5)).meets);
        assert!(!row(Target::OursAtMost(1.0)).also(false).meets);
    }
}
