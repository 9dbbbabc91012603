//! Verbs rails do what every rail must do: the behaviours of `conformance.rs`, in the guest.

use railring_tests::conformance;
use railring_tests::conformance::Verbs;

conformance!(verbs, Verbs, flow bytes engine);
