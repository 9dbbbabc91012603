//! What the command says: results on standard output, everything else on standard error.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Standard output could not be written to.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct OutputError(#[source] pub(crate) io::Error);

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON value per line.
    Json,
}

/// Standard output, buffered. Its errors are typed, because a reader that left is no failure.
#[derive(Debug)]
pub(crate) struct Out {
    inner: BufWriter<io::Stdout>,
}

impl Out {
    pub(crate) fn new() -> Self {
        Out { inner: BufWriter::with_capacity(64 << 10, io::stdout()) }
    }

    /// One line of text.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), OutputError> {
        writeln!(self.inner, "{text}").map_err(OutputError)
    }

    /// One line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value)?;
        Ok(self.line(text)?)
    }

    /// Raw bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        self.inner.write_all(bytes).map_err(OutputError)
    }

    pub(crate) fn flush(&mut self) -> Result<(), OutputError> {
        self.inner.flush().map_err(OutputError)
    }
}

/// A line on standard error. Nothing can be done if that is closed.
pub(crate) fn say(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "railring: {text}");
}

/// Whether somebody watches standard error.
pub(crate) fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Something that went well enough but should be known.
pub(crate) fn note(text: impl fmt::Display) {
    say(format_args!("note: {text}"));
}

/// Progress over `bytes` (none: unknown), on standard error, only if that is a terminal.
pub(crate) fn progress(what: &str, bytes: Option<u64>) -> ProgressBar {
    if !is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match bytes {
        Some(bytes) => ProgressBar::new(bytes),
        None => ProgressBar::new_spinner(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    let template = if bytes.is_some() {
        "{msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {decimal_bytes_per_sec}, \
         {eta} left"
    } else {
        "{msg} {spinner} {binary_bytes}, {decimal_bytes_per_sec}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// On which side a column is flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table for people: a heading, then rows, two blanks between columns.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The lines, heading first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let heading: Vec<String> =
            self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let all = || std::iter::once(&heading).chain(&self.rows);
        let width = |column: usize| {
            let cells = all().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        all().map(|row| self.format(row, &widths)).collect()
    }

    fn format(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(&self.columns).zip(widths);
        let cells = cells.map(|((cell, (_, align)), &width)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }

    pub(crate) fn print(&self, out: &mut Out) -> Result<(), OutputError> {
        self.lines().iter().try_for_each(|line| out.line(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_flush() {
        let mut table = Table::new(&[("name", Align::Left), ("bytes", Align::Right)]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["longer".into(), "123456".into()]);
        assert_eq!(table.lines(), ["name     bytes", "a            1", "longer  123456"]);
    }
}
