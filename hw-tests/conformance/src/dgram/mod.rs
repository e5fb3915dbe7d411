//! The suite for every DGRAM endpoint (fi_endpoint(3), fi_msg(3)), with and without room for a
//! prefix (`FI_MSG_PREFIX`), on a quiet network or one that loses, repeats and reorders: a datagram
//! may be lost, but never arrives damaged or as another datagram.
//!
//! The domains of the [`Fabric`](crate::fabric::Fabric) that a test opens are ones of datagrams.

pub mod cancels;
pub mod forms;
pub mod limits;
pub mod model;
mod pair;
pub mod receives;
pub mod refusals;
pub mod senders;
pub mod sharing;
pub mod waiting;

/// A test for each scenario, as [`conformance!`](crate::conformance) makes them. With `@lossy`
/// before the fabric: for each scenario that makes sense on a network that loses datagrams. The
/// others need a certain datagram to arrive: they test the end of the receive that it meets, the
/// order, and the waiters that it wakes.
#[macro_export]
macro_rules! dgram_conformance {
    (@lossy $fabric:expr $(, $attr:meta)* $(,)?) => {
        $crate::dgram_conformance! { @scenarios ($fabric) ($($attr),*)
            forms::each_form_of_send,
            forms::each_form_of_receive,
            limits::longer_than_the_limit,
            limits::too_short_for_the_prefix,
            limits::more_sends_than_there_is_room_for,
            receives::truncation,
            receives::failed_receives_are_counted,
            senders::known_and_unknown,
            senders::unknown_sources_are_named,
            refusals::operations_that_datagrams_lack,
        }
    };
    (@scenarios $fabric:tt $attrs:tt $($group:ident::$name:ident,)*) => {
        $($crate::conformance! { @test $fabric $attrs $name, $crate::dgram::$group::$name })*
    };
    ($fabric:expr $(, $attr:meta)* $(,)?) => {
        $crate::dgram_conformance! { @lossy $fabric $(, $attr)* }
        $crate::dgram_conformance! { @scenarios ($fabric) ($($attr),*)
            forms::cq_data_has_as_many_bytes_as_offered,
            forms::only_flagged_operations_complete,
            limits::an_error_ends_a_run,
            limits::as_many_receives_as_offered,
            receives::a_datagram_without_a_receive_is_lost,
            receives::both_ways_at_once,
            receives::counters_of_bytes,
            cancels::cancelled_receives_take_nothing,
            cancels::sends_around_a_cancellation,
            sharing::an_endpoint_sends_to_itself,
            sharing::many_on_one_queue,
            waiting::a_queue_wakes,
            waiting::a_counter_wakes,
            waiting::descriptors_wake,
        }
    };
}
