//! Bugs that simulation found, each with the seed that found it: they stay found.

use railring_tests::simulate::{Scenario, simulate, simulate_scenario};

/// What was wrong, and the run without extras that showed it.
const FOUND_PLAIN: &[(u64, &str)] = &[
    (0, "stopping a quiet read followed a stripe that had been freed with the one before it"),
    (3, "reads pushed and not submitted took their memory along when their ring was dropped"),
    (5, "a read pushed before its object was closed ended as invalid"),
    (9, "two pollers together had more pieces on a rail than its limit"),
    (10, "a completion that belongs to nobody kept an idle poller awake for ever"),
    (14, "the last CQE of a quiet read showed the end of its memory as its stripe"),
    (16, "a read ended with an error that came after its first and that no stripe had"),
    (36, "two pollers together had more bytes on a rail than its limit"),
    (78, "a piece that was stolen and found no room was given back and stolen again for ever"),
    (224, "memory that no piece had used up the CQ slot of memory before it: a lease was lost"),
    (1227, "the bad block of a stripe was looked for in staging memory that was free again"),
    (21_913, "a read ended as stuck for staging memory that was, though no stripe of it was"),
    (25_446, "a simulated repetition of a completion came before the completion"),
    (1702, "a cancel showed new reads to a poller that did not know of the CQ slots they may use"),
    (
        212_803,
        "empty leases of a scattered quiet read let it tell of more failures than it asked for",
    ),
];

/// The same, of runs with extras.
const FOUND: &[(u64, &str)] = &[
    (13, "a read failed by a panic ended with the cause of its stop, which no stripe had"),
    (301_208, "a read failed by a panic ended with the first of its failures, not yet told"),
    (534, "what a poller completed in the turn in which it panicked was never shown"),
    (2_268, "a poller without staging memory gave room back to itself and never rested"),
    (12_572, "a rail that cooled down when its poller panicked was offered for a probe for ever"),
    (16_602, "the same, and its reads waited for what would come of the probe"),
    (21_890, "a piece waited for ever for staging memory that a device kept for ever"),
];

#[test]
fn what_was_found_stays_found() {
    for (seed, story) in FOUND_PLAIN {
        let outcome = simulate_scenario(Scenario::draw_plain(*seed));
        assert!(outcome.failure.is_none(), "{story}:\n{outcome}");
    }
    for (seed, story) in FOUND {
        let outcome = simulate(*seed);
        assert!(outcome.failure.is_none(), "{story}:\n{outcome}");
    }
}
