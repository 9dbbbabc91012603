//! What every rail must do, whatever carries its bytes: one set of behaviours for all transports.
//!
//! A transport says how its peers are given bytes and how a rail to them is made ([`Transport`]);
//! [`conformance!`] makes a module of tests for it. Behaviours are in groups, since not every rail
//! does everything:
//!
//! | group | asks of a transport |
//! |---|---|
//! | `flow` | that requests come back: once each, as many as were granted, given up or not |
//! | `bytes` | also that bytes are moved, and what makes no sense is refused |
//! | `engine` | also that an engine reads verified objects over it |

pub mod bytes;
pub mod engine;
pub mod flow;
mod kinds;
mod rig;
#[cfg(feature = "verbs")]
mod verbs;

use std::fmt::Debug;
use std::sync::Arc;

use railring_transport::{Link, RailControl};

pub use kinds::{FileWorkers, Null, RingFile, Simulated};
pub use rig::{Kept, Rig};
#[cfg(feature = "verbs")]
pub use verbs::Verbs;

/// How many endpoints a transport's peers have; each is reached by the rail of its number.
pub const ENDPOINTS: usize = 2;

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The clock's.
    Real,
    /// What `next_event` says.
    Virtual,
}

/// A kind of rail, with peers of its own that hold objects of generation 1. Dropped, both are gone.
pub trait Transport: Sized {
    /// Its data path.
    type Link: Link + Debug + 'static;
    /// Whose time it is.
    const TIME: Time;

    /// Peers without objects; an error says why this cannot run here.
    ///
    /// # Errors
    /// What is missing, for a line that begins with SKIP.
    fn new() -> Result<Self, String>;

    /// The name of an endpoint, below [`ENDPOINTS`].
    fn endpoint(&self, index: usize) -> String;

    /// Lets an endpoint hold `bytes` under `name`, instead of what it held; returns the handle.
    fn put(&mut self, endpoint: usize, name: &str, bytes: &[u8]) -> String;

    /// A rail that reaches at least the endpoint of this number, with room for at least one and at
    /// most `depth` requests. Its control's name is not taken.
    fn rail(&mut self, endpoint: usize, depth: u32) -> (Arc<dyn RailControl>, Self::Link);
}

/// Runs a behaviour, or says why it cannot be run.
pub fn run<T: Transport>(name: &str, behaviour: impl FnOnce(T)) {
    match T::new() {
        Ok(transport) => behaviour(transport),
        Err(reason) => println!("SKIP {name}: {reason}"),
    }
}

/// Tests of a transport: `conformance!(file, RingFile, flow bytes engine);`.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $transport:ty, $($group:ident)+) => {
        mod $module {
            use super::*;
            $($crate::conformance!(@$group $transport);)+
        }
    };
    (@flow $transport:ty) => {
        $crate::conformance!(@tests flow $transport:
            each_request_comes_back_exactly_once
            all_that_is_granted_can_be_queued_and_one_more_comes_back_whole
            no_more_is_reaped_than_was_asked_for
            an_idle_link_stays_idle
            what_is_committed_is_not_uncommitted
            an_old_or_unknown_name_cancels_nothing
            what_is_cancelled_comes_back_once
            what_is_quiesced_comes_back_and_nothing_writes_it_any_more
            no_wake_up_is_lost
            a_dropped_link_leaks_its_parts_and_nothing_else
        );
    };
    (@bytes $transport:ty) => {
        $crate::conformance!(@tests bytes $transport:
            bytes_are_right_at_every_border
            a_short_source_is_enough_or_is_not
            a_target_that_is_not_connected_is_refused
            a_target_connects_again_and_its_old_name_does_not
            what_is_not_there_does_not_connect
            what_is_misaligned_or_too_long_is_refused
            registering_twice_is_once_and_forgotten_memory_is_known_again
        );
    };
    (@engine $transport:ty) => {
        $crate::conformance!(@tests engine $transport:
            objects_over_several_rails_equal_their_source
            any_range_equals_its_source
            a_flipped_bit_is_read_elsewhere
            a_flipped_bit_in_all_copies_is_told_and_the_rest_is_delivered
            a_deadline_in_the_past_touches_nothing
            a_cancelled_read_brings_its_lease_back_once
            a_closed_object_is_read_to_its_end
            memory_is_read_into_again_at_once
            all_leases_and_handles_come_back
        );
    };
    (@tests $group:ident $transport:ty: $($behaviour:ident)+) => {
        $(
            #[test]
            fn $behaviour() {
                let name = concat!(module_path!(), "::", stringify!($behaviour));
                $crate::conformance::run::<$transport>(
                    name,
                    $crate::conformance::$group::$behaviour,
                );
            }
        )+
    };
}
