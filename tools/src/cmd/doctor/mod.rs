//! `railring doctor`: what this machine lets Railring do, what that means, and how to mend it.

mod checks;
mod rdma;

use anyhow::Result;
use railring::file::{FileRail, FileRailOptions};
use railring::transport::{Link, RailControl};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::output::{Format, Out};
use crate::{Context, Reported};

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Nothing to do.
    Good,
    /// Works, and could be faster.
    Slower,
    /// Not there, and not needed unless one wants what it gives.
    Absent,
    /// Does not work.
    Broken,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    check: String,
    state: State,
    /// What was found.
    found: String,
    /// What it means for Railring.
    meaning: String,
    /// How to mend it; nothing if it is good.
    mend: Option<String>,
}

impl Finding {
    pub(crate) fn new(
        check: &str,
        state: State,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        Finding {
            check: check.to_owned(),
            state,
            found: found.into(),
            meaning: meaning.into(),
            mend: None,
        }
    }

    pub(crate) fn mend(self, how: impl Into<String>) -> Self {
        Finding { mend: Some(how.into()), ..self }
    }
}

pub(crate) fn run(args: &DoctorArgs, context: &mut Context) -> Result<()> {
    let mut findings = checks::all();
    let test = if args.rdma_selftest { rdma::SelfTest::Yes } else { rdma::SelfTest::No };
    findings.extend(rdma::all(test));
    findings.extend(args.directories.iter().map(|directory| rail(directory)));
    for finding in &findings {
        match args.format.format() {
            Format::Json => context.out.json(finding)?,
            Format::Text => print(finding, &mut context.out)?,
        }
    }
    let broken = findings.iter().any(|finding| finding.state == State::Broken);
    if broken { Err(Reported.into()) } else { Ok(()) }
}

/// What a rail on this directory would be.
fn rail(directory: &std::path::Path) -> Finding {
    let check = format!("rail {}", directory.display());
    let opened = FileRail::open(directory, FileRailOptions::default());
    let (control, link) = match opened {
        Ok(halves) => halves,
        Err(error) => {
            let meaning = "no rail can read from this directory";
            return Finding::new(&check, State::Broken, error.to_string(), meaning)
                .mend("make the directory, or mend its permissions");
        }
    };
    let notes = control.info().notes;
    let backend = link.stats().backend;
    if notes.is_empty() {
        return Finding::new(&check, State::Good, backend, "reads take the fast path");
    }
    let meaning = "reads work and are verified; each note costs some CPU or latency";
    Finding::new(&check, State::Slower, backend, meaning).mend(notes.join("; "))
}

fn print(finding: &Finding, out: &mut Out) -> Result<()> {
    let state = match finding.state {
        State::Good => "good",
        State::Slower => "slower",
        State::Absent => "absent",
        State::Broken => "BROKEN",
    };
    out.line(format_args!("{state:<7} {:<12} {}", finding.check, finding.found))?;
    for (label, text) in [("", Some(&finding.meaning)), ("to mend: ", finding.mend.as_ref())] {
        for line in text.map_or(Vec::new(), |text| wrap(&format!("{label}{text}"), 78)) {
            out.line(format_args!("{:21}{line}", ""))?;
        }
    }
    Ok(())
}

/// Lines of at most `width` characters, broken between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensible", 4), ["incomprehensible"]);
    }
}
