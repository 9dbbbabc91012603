//! Every transport does what every rail must do. A new one adds its kind to
//! `tests/src/conformance/kinds.rs` and a line here.

use railring_tests::conformance;
use railring_tests::conformance::{FileWorkers, Null, RingFile, Simulated};

conformance!(sim, Simulated, flow bytes engine);
conformance!(file, RingFile, flow bytes engine);
conformance!(file_workers, FileWorkers, flow bytes engine);
conformance!(null, Null, flow);
