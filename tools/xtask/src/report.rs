//! The table at the end of a run: each stage's time and counts, the skips with their reasons, what
//! failed and how, the totals.

use std::fmt::Write as _;
use std::time::Duration;

use crate::tally::{Required, Tally};

/// A stage that ran.
#[derive(Debug)]
pub(crate) struct Row {
    /// The stage.
    pub name: &'static str,
    /// How long it took.
    pub time: Duration,
    /// What it counted.
    pub tally: Tally,
}

/// The whole report, and how many failures it holds; skips that are required to run are failures.
pub(crate) fn report(rows: &[Row], required: &Required) -> (String, u32) {
    let mut text = String::new();
    let mut total = Tally::default();
    let mut forbidden = 0;
    let line = |text: String, out: &mut String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{text}");
    };
    line(header(), &mut text);
    for row in rows {
        line(row_line(row.name, row.time, &row.tally), &mut text);
        total.add(row.tally.clone());
    }
    let time = rows.iter().map(|row| row.time).sum();
    line(row_line("total", time, &total), &mut text);
    if total.skipped() > 0 {
        line("\nskipped:".into(), &mut text);
    }
    for skip in total.skips() {
        let refused = required.forbids(skip);
        forbidden += u32::from(refused);
        let mark = if refused { "  (RAILRING_REQUIRE: a failure)" } else { "" };
        line(format!("  {}: {}{mark}", skip.test, skip.reason), &mut text);
    }
    if !total.failures().is_empty() {
        line("\nfailed:".into(), &mut text);
    }
    for failure in total.failures() {
        line(format!("  {}", failure.what), &mut text);
        for said in &failure.said {
            line(format!("  | {said}"), &mut text);
        }
    }
    let failed = total.failed + forbidden;
    let skipped = total.skipped() - forbidden;
    line(format!("\n{} passed, {failed} failed, {skipped} skipped", total.passed()), &mut text);
    (text, failed)
}

fn header() -> String {
    format!("\n{:<12} {:>8} {:>8} {:>8} {:>8}", "stage", "time", "passed", "failed", "skipped")
}

fn row_line(name: &str, time: Duration, tally: &Tally) -> String {
    let seconds = format!("{:.1} s", time.as_secs_f64());
    let (passed, failed, skipped) = (tally.passed(), tally.failed, tally.skipped());
    format!("{name:<12} {seconds:>8} {passed:>8} {failed:>8} {skipped:>8}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let mut tally = Tally::default();
        tally.read_line("SKIP ring::pinned: one core only");
        tally.read_line("test result: ok. 4 passed; 0 failed; 0 ignored");
        let mut other = Tally::default();
        other.pass();
        vec![
            Row { name: "fmt", time: Duration::from_millis(300), tally: other },
            Row { name: "test", time: Duration::from_secs(9), tally },
        ]
    }

    #[test]
    fn the_last_line_has_the_totals() {
        let (text, failed) = report(&rows(), &Required::default());
        assert!(text.ends_with("\n4 passed, 0 failed, 1 skipped\n"), "{text}");
        assert!(text.contains("  ring::pinned: one core only\n"), "{text}");
        assert_eq!(failed, 0);
    }

    #[test]
    fn what_failed_is_named_right_before_the_totals() {
        let mut rows = rows();
        rows[0].tally.fail("cargo fmt", &["Diff in x.rs".to_owned()]);
        let (text, failed) = report(&rows, &Required::default());
        assert!(text.contains("\nfailed:\n  cargo fmt\n  | Diff in x.rs\n\n4 passed"), "{text}");
        assert_eq!(failed, 1);
    }

    #[test]
    fn a_required_skip_is_a_failure() {
        let (text, failed) = report(&rows(), &Required::parse("pinned"));
        assert!(text.ends_with("\n4 passed, 1 failed, 0 skipped\n"), "{text}");
        assert_eq!(failed, 1);
    }
}
