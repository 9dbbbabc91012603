//! Shows a machine and its plan: a tree for people, JSON for programs, a drawing for reports.

mod explain;
mod json;
mod layout;
mod svg;
mod text;

pub use explain::{ExplainError, explain};
pub use json::{Report, ReportRef, SCHEMA, SCHEMA_VERSION, json};
pub use svg::svg;
pub use text::{Colour, TextOptions, text};
