//! The JSON form: a versioned envelope around the machine and the plan, both as their types are.

use crate::machine::Machine;
use crate::plan::Plan;
use serde::{Deserialize, Serialize};

/// The name of the schema in each document.
pub const SCHEMA: &str = "railring-topology";
/// Its version. Fields may be added within a version; removing or changing one makes a new version.
pub const SCHEMA_VERSION: u32 = 1;

/// A document as it is written.
#[derive(Debug, Serialize)]
pub struct ReportRef<'a> {
    /// [`SCHEMA`].
    pub schema: &'a str,
    /// [`SCHEMA_VERSION`].
    pub version: u32,
    /// The machine.
    pub machine: &'a Machine,
    /// The plan, where there is one.
    pub plan: Option<&'a Plan>,
}

/// A document as it is read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`].
    pub version: u32,
    /// The machine.
    pub machine: Machine,
    /// The plan, where there is one.
    pub plan: Option<Plan>,
}

/// The document, indented, with a newline at its end.
#[must_use]
pub fn json(machine: &Machine, plan: Option<&Plan>) -> String {
    let report = ReportRef { schema: SCHEMA, version: SCHEMA_VERSION, machine, plan };
    let mut text = serde_json::to_string_pretty(&report)
        .expect("all keys are strings or numbers and nothing else in the types can fail");
    text.push('\n');
    text
}
