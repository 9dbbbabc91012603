//! What was set up differently than asked, each said once.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most lines kept; beyond it a condition that differs per file would grow without bound.
const NOTES_MAX: usize = 32;

/// Lines for `RailInfo::notes`, as the control half of a rail collects them.
#[derive(Debug, Default)]
pub struct Notes {
    lines: Mutex<Vec<String>>,
}

impl Notes {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        // A list of lines is whole whatever its last holder did.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, and logs it, unless it was said before.
    pub fn say(&self, rail: &str, line: String) {
        let mut lines = self.lines();
        if lines.len() < NOTES_MAX && !lines.contains(&line) {
            tracing::warn!(rail, "{line}");
            lines.push(line);
        }
    }

    /// The lines so far.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.lines().clone()
    }
}
