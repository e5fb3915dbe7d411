//! The list of scenarios, and how one is run.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_runtime::fabric::Domain;

use crate::fabric::Fabric;

/// A test for each scenario, on the fabric that an expression opens (`Option<Fabric>`; `None`: it
/// is not there, and that was said), with attributes that each test gets.
#[macro_export]
macro_rules! conformance {
    ($fabric:expr $(, $attr:meta)* $(,)?) => {
        $crate::conformance! { @scenarios ($fabric) ($($attr),*)
            sends::each_form_of_send,
            sends::truncation_of_each_size,
            sends::messages_of_collectives,
            sends::a_send_that_is_refused_sends_nothing,
            remapping::memory_that_goes_between_messages,
            remapping::shared_memory_that_is_punched_between_messages,
            remapping::segments_that_are_detached_between_messages,
            remapping::memory_that_goes_between_one_sided_operations,
            remapping::shared_memory_that_is_punched_between_one_sided_operations,
            remapping::segments_that_are_detached_between_one_sided_operations,
            remapping::registered_memory_that_goes_between_operations,
            matches::directed_and_wildcard_receives,
            matches::tags_and_masks,
            matches::order_of_long_and_short_messages,
            matches::tagged_and_untagged_are_apart,
            matches::cancelled_receives_take_nothing,
            matches::a_sender_that_is_inserted_late,
            sharing::an_endpoint_sends_to_itself,
            sharing::several_endpoints_on_one_queue,
            sharing::a_peer_that_closes_and_one_that_comes_after,
            sharing::many_sends_before_a_receive,
            runs::an_error_ends_a_run,
        }
        $crate::conformance! { @pairs ($fabric) ($($attr),*)
            matches::sources_without_directed_receives,
            probes::each_flag,
            multi_receives::pieces_of_a_buffer,
            multi_receives::the_last_to_complete_frees_the_buffer,
            multi_receives::the_minimum_of_free_space,
            multi_receives::a_message_that_is_too_long,
            multi_receives::only_the_last_completes_if_none_are_wanted,
            multi_receives::cancelled,
            completions::only_where_asked_for,
            completions::errors_always,
            deliveries::of_first_messages,
            deliveries::of_all_that_is_taken,
            deliveries::of_completed_sends,
            counters::of_bytes,
            lists::messages_go_into_lists,
            lists::claims_and_cancellations,
            unknown_sources::are_named_and_become_peers,
            unknown_sources::in_every_receive,
            unknown_sources::that_have_closed,
            unknown_sources::beside_peers_with_ids,
            runs::a_run_that_ends,
            runs::a_run_without_an_end,
            runs::a_run_that_is_waited_for,
            runs::a_run_to_several_peers,
            removals::a_reused_index,
            vectors::attributes,
            vectors::growth,
            vectors::receive_contexts,
            vectors::malformed_addresses,
            async_inserts::events_of_each_call,
            async_inserts::events_outlive_their_vector,
            vectors::texts,
            user_ids::replace_addresses,
            named::shared_entries,
            named::readers,
        }
        $crate::conformance! { @domains ($fabric) ($($attr),*)
            probes::bad_flags,
            multi_receives::lists_are_refused,
            waiting::a_message_to_oneself_wakes,
            vectors::without_keys,
        }
        $crate::conformance! { @offered ($fabric) ($($attr),*)
            levels::delivery if DELIVERY_COMPLETE,
            levels::delivery_of_dropped_and_truncated_messages if DELIVERY_COMPLETE,
            levels::fences if FENCE,
            one_sided::reads_and_writes if RMA,
            one_sided::lists_and_injects if RMA,
            one_sided::writes_with_data if RMA,
            one_sided::regions_that_close if RMA,
            one_sided::fences_after_reads_and_writes if RMA,
            one_sided::many_reads if RMA,
            one_sided::reads_in_order if RMA,
            one_sided::a_target_that_closes if RMA,
            one_sided::an_initiator_that_closes if RMA,
            one_sided::a_target_that_is_removed if RMA,
            one_sided::an_initiator_that_is_removed if RMA,
            one_sided::a_read_from_a_target_that_is_fenced if RMA,
            one_sided::counters if RMA,
            one_sided::by_devices if RMA,
            closes::regions_under_fire if RMA,
            region_closes::beside_initiators_that_compute if RMA,
            region_closes::counted_reads_have_left if RMA,
            orders::writes_after_writes if RMA,
            orders::reads_between_writes if RMA,
            orders::sends_after_reads_and_writes if RMA,
            orders::reads_and_writes_after_sends if RMA,
            remote_refusals::keys_ranges_and_rights if RMA,
            remote_refusals::keys_of_other_regions if RMA,
            remote_refusals::virtual_addresses if RMA,
            remote_refusals::addresses_of_pieces if RMA,
            remote_refusals::all_addresses if RMA,
            remote_refusals::rights_of_endpoints if RMA,
            remote_refusals::operations_without_bytes if RMA,
            unknown_initiators::that_are_inserted_and_removed if ATOMIC,
            unknown_initiators::that_are_inserted_at_once if ATOMIC,
            unknown_initiators::regions_that_close_meanwhile if RMA,
            unknown_initiators::two_of_one_target if RMA,
            atomics::each_type_and_operator if ATOMIC,
            atomics::arrays_of_each_length if ATOMIC,
            atomics::lists_and_injected_operands if ATOMIC,
            atomics::each_sum_is_counted_once if ATOMIC,
            atomics::order_of_long_and_short_ones if ATOMIC,
            atomics::refusals_at_the_target if ATOMIC,
            atomics::calls_that_are_refused if ATOMIC,
            atomics::fences_after_fetches if ATOMIC,
            atomics::counts_at_both_ends if ATOMIC,
            atomic_ends::regions_that_close_beside if ATOMIC,
            atomic_ends::targets_that_go if ATOMIC,
            atomic_ends::initiators_that_are_removed if ATOMIC,
            atomic_ends::targets_that_are_fenced if ATOMIC,
            atomic_regions::over_pieces if ATOMIC,
            atomic_regions::counters_of_regions if ATOMIC,
            atomic_regions::beside_reads_and_writes if ATOMIC,
            atomic_regions::of_elements if ATOMIC,
            orders::atomics_between_reads_and_writes if ATOMIC,
        }
    };
    (@scenarios $fabric:tt $attrs:tt $($group:ident::$name:ident,)*) => {
        $($crate::conformance! { @test $fabric $attrs $name, $crate::$group::$name })*
    };
    (@pairs $fabric:tt $attrs:tt $($group:ident::$name:ident,)*) => {
        $($crate::conformance! { @test $fabric $attrs $name, |fabric: &_| {
            $crate::suite::on_each_path(fabric, $crate::$group::$name)
        } })*
    };
    (@domains $fabric:tt $attrs:tt $($group:ident::$name:ident,)*) => {
        $($crate::conformance! { @test $fabric $attrs $name, |fabric: &_| {
            $crate::suite::on_first_domain(fabric, $crate::$group::$name)
        } })*
    };
    (@offered $fabric:tt $attrs:tt $($group:ident::$name:ident if $flag:ident,)*) => {
        $($crate::conformance! { @test $fabric $attrs $name, |fabric: &_| {
            $crate::suite::where_offered(fabric, stringify!($flag), $crate::$group::$name)
        } })*
    };
    (@test ($fabric:expr) ($($attr:meta),*) $name:ident, $scenario:expr) => {
        #[test]
        $(#[$attr])*
        fn $name() {
            let fabric: Option<$crate::fabric::Fabric> = $fabric;
            if let Some(fabric) = fabric {
                let scenario: fn(&$crate::fabric::Fabric) = $scenario;
                scenario(&fabric);
            }
        }
    };
}

/// Runs a scenario of two domains on each kind of path that the fabric has.
pub fn on_each_path(fabric: &Fabric, scenario: fn(&dyn Domain, &dyn Domain)) {
    for (a, b) in fabric.paths() {
        scenario(fabric.domain(a), fabric.domain(b));
    }
}

/// Runs a scenario of two domains where a flag is offered, else says that it is not.
pub fn where_offered(fabric: &Fabric, flag: &str, scenario: fn(&dyn Domain, &dyn Domain)) {
    let offered = Flags::from_name(flag).is_some_and(|flag| fabric.offers(flag));
    if offered {
        on_each_path(fabric, scenario);
    } else {
        println!("NOT OFFERED: {}: FI_{flag}", fabric.name);
    }
}

/// Runs a scenario that needs no path.
pub fn on_first_domain(fabric: &Fabric, scenario: fn(&dyn Domain)) {
    scenario(fabric.domain(0));
}
