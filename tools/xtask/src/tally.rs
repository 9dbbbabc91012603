//! What a stage's output says: how many tests passed, failed and were skipped, and why.

use std::collections::BTreeSet;

/// A test that did not run, and the reason it gave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    /// The test's name.
    pub test: String,
    /// What it needs and did not find.
    pub reason: String,
}

/// A test that failed, or a command that did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The test's name, or the command.
    pub what: String,
    /// Lines that it printed.
    pub said: Vec<String>,
}

/// Lines kept of what a failed test printed, from its panic on if there was one.
const SAID_LINES: usize = 25;

/// Counts of one stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    passed: u32,
    /// Tests, or checks, that failed.
    pub failed: u32,
    failures: Vec<Failure>,
    /// Between the harness's line `failures:` and its totals.
    among_failures: bool,
    /// The last failure's panic has been read.
    has_panicked: bool,
    skips: BTreeSet<Skip>,
    /// Test binaries that told how their tests went.
    results: u32,
    /// Ignored tests are no part of the harness's passed count; tests that print a skip line are.
    ignored: u32,
}

impl Tally {
    /// Reads one line of a test run: the harness's totals, ignored tests, and skip lines.
    pub(crate) fn read_line(&mut self, line: &str) {
        if line == "failures:" {
            // Printed twice: over what they said, and over the list of their names.
            self.among_failures = !self.among_failures;
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            self.among_failures = false;
            self.results += 1;
            self.passed += count_before(rest, " passed");
            self.failed += count_before(rest, " failed");
        } else if let Some(rest) = line.trim_start().strip_prefix("SKIP ") {
            if let Some((test, reason)) = rest.split_once(": ") {
                self.skip(test, reason);
            }
        } else if let Some((test, rest)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ignored"))
        {
            let reason = rest.trim_start_matches(", ").trim();
            let reason = if reason.is_empty() { "ignored, without a reason" } else { reason };
            let skip = Skip { test: test.to_owned(), reason: reason.to_owned() };
            self.ignored += u32::from(self.skips.insert(skip));
        } else if self.among_failures {
            self.read_failure(line);
        }
    }

    /// A line of the harness's list of failures: a heading with the test's name, or what it said.
    fn read_failure(&mut self, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = heading {
            self.failures.push(Failure { what: test.to_owned(), said: Vec::new() });
            self.has_panicked = false;
        } else if let Some(failure) = self.failures.last_mut() {
            if !self.has_panicked && line.contains(" panicked at ") {
                // Before it there can be pages of what the test measured.
                self.has_panicked = true;
                failure.said.clear();
            }
            if failure.said.len() < SAID_LINES && !line.is_empty() {
                failure.said.push(line.to_owned());
            }
        }
    }

    /// What failed, in the order it was met.
    pub(crate) fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Counts a check without tests inside that passed.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Counts a check that failed, with the end of what it said.
    pub(crate) fn fail(&mut self, what: &str, said: &[String]) {
        self.failed += 1;
        let said = said[said.len().saturating_sub(SAID_LINES)..].to_vec();
        self.failures.push(Failure { what: what.to_owned(), said });
    }

    /// Counts a check or test that did not run.
    pub(crate) fn skip(&mut self, test: &str, reason: &str) {
        self.skips.insert(Skip { test: test.to_owned(), reason: reason.to_owned() });
    }

    /// The same, for a check that the harness never counted as passed.
    pub(crate) fn skip_check(&mut self, test: &str, reason: &str) {
        self.skip(test, reason);
        self.ignored += 1;
    }

    /// Adds another tally to this one.
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.results += other.results;
        self.ignored += other.ignored;
        self.skips.extend(other.skips);
    }

    /// Tests that ran and passed: the harness's count, less those that printed a skip line.
    pub(crate) fn passed(&self) -> u32 {
        let printed: BTreeSet<_> = self.skips.iter().map(|skip| &skip.test).collect();
        let printed = u32::try_from(printed.len()).unwrap_or(u32::MAX);
        self.passed.saturating_sub(printed.saturating_sub(self.ignored))
    }

    /// How many test binaries told how their tests went.
    pub(crate) fn results(&self) -> u32 {
        self.results
    }

    /// How many skips there were.
    pub(crate) fn skipped(&self) -> u32 {
        u32::try_from(self.skips.len()).unwrap_or(u32::MAX)
    }

    /// The skips, in order of name.
    pub(crate) fn skips(&self) -> impl Iterator<Item = &Skip> {
        self.skips.iter()
    }
}

/// The number right before the first ` passed` or ` failed`; 0 if there is none.
fn count_before(text: &str, word: &str) -> u32 {
    let before = text.split(word).next().unwrap_or("");
    before.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Skips that are failures: those whose test or reason contains one of the comma-separated words
/// of RAILRING_REQUIRE, in any case; `all` means every skip.
#[derive(Clone, Debug, Default)]
pub(crate) struct Required(Vec<String>);

impl Required {
    /// Parses the variable's value.
    pub(crate) fn parse(value: &str) -> Required {
        let words = value.split(',').map(|word| word.trim().to_lowercase());
        Required(words.filter(|word| !word.is_empty()).collect())
    }

    /// Whether this skip is a failure.
    pub(crate) fn forbids(&self, skip: &Skip) -> bool {
        let text = format!("{}: {}", skip.test, skip.reason).to_lowercase();
        self.0.iter().any(|word| word == "all" || text.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        for line in lines {
            tally.read_line(line);
        }
        tally
    }

    #[test]
    fn totals_of_several_binaries_add_up() {
        let tally = tally_of(&[
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 filtered out; finished in 0.1s",
            "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!((tally.passed(), tally.failed, tally.skipped()), (15, 2, 0));
    }

    #[test]
    fn a_test_that_says_skip_has_not_passed() {
        let tally = tally_of(&[
            "---- uring::direct stdout ----",
            "SKIP uring::direct: io_uring is refused (EPERM)",
            "test result: ok. 2 passed; 0 failed; 0 ignored",
        ]);
        assert_eq!((tally.passed(), tally.failed, tally.skipped()), (1, 0, 1));
        let skip = tally.skips().next().expect("one skip");
        assert_eq!((&*skip.test, &*skip.reason), ("uring::direct", "io_uring is refused (EPERM)"));
    }

    #[test]
    fn one_test_with_two_skip_lines_is_one_test_less() {
        let tally =
            tally_of(&["SKIP a: no x", "SKIP a: no y", "test result: ok. 5 passed; 0 failed;"]);
        assert_eq!((tally.passed(), tally.skipped()), (4, 2));
    }

    #[test]
    fn ignored_tests_are_skips_with_their_reason() {
        let tally = tally_of(&[
            "test slow ... ignored, takes an hour",
            "test src/lib.rs - Ring (line 3) ... ignored",
            "test result: ok. 1 passed; 0 failed; 2 ignored",
        ]);
        assert_eq!((tally.passed(), tally.skipped()), (1, 2));
        assert!(tally.skips().any(|skip| skip.reason == "takes an hour"));
    }

    #[test]
    fn other_lines_count_nothing() {
        let tally = tally_of(&["SKIPPED", "test a ... ok", "running 3 tests", "SKIP no colon"]);
        assert_eq!((tally.passed(), tally.failed, tally.skipped()), (0, 0, 0));
    }

    #[test]
    fn failures_are_named_with_what_they_said() {
        let tally = tally_of(&[
            "test a ... ok",
            "test b::c ... FAILED",
            "successes:",
            "---- a stdout ----",
            "thread 'a' panicked as it should",
            "failures:",
            "",
            "---- b::c stdout ----",
            "seeds 1 to 2000",
            "thread 'b::c' (12) panicked at x.rs:1:1:",
            "left is not right",
            "",
            "failures:",
            "    b::c",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored",
            "---- d stdout ----",
        ]);
        let said = ["thread 'b::c' (12) panicked at x.rs:1:1:", "left is not right"];
        let said: Vec<_> = said.map(str::to_owned).into();
        assert_eq!(tally.failures(), [Failure { what: "b::c".into(), said }]);
        assert_eq!(tally.failed, 1);
    }

    #[test]
    fn required_words_match_test_or_reason() {
        let skip = Skip { test: "guest::boot".into(), reason: "no QEMU".into() };
        for (value, forbids) in
            [("", false), ("uring", false), ("uring, guest", true), ("qemu", true), ("all", true)]
        {
            assert_eq!(Required::parse(value).forbids(&skip), forbids, "{value:?}");
        }
    }
}
