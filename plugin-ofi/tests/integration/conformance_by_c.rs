//! The conformance suite by libfabric's calls in C: over our provider, through the plugin, and over
//! providers of libfabric's own.
//!
//! Each scenario of the suite's list is a test here. Tables state with a reason the scenarios that
//! the calls can not express ([`LEFT_OUT`]), and those that a provider of libfabric's fails. The
//! test of a scenario fails if that passes though it is in the provider's table, or fails though it
//! is in none.
//!
//! To put another provider of libfabric's under the suite:
//!
//!     FERRO_TEST_PROVIDER=tcp cargo nextest run --profile here -p ferrofabric-ofi conformance_by_c::ours

use crate::scenarios;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use scenarios::{ProviderUnderTest, Reasons, names};

/// Scenarios that run over no provider here, by reason.
pub(crate) const LEFT_OUT: Reasons = &[
    (
        "one-sided operations are not among the adapter's calls",
        &[
            "remapping::memory_that_goes_between_one_sided_operations",
            "remapping::shared_memory_that_is_punched_between_one_sided_operations",
            "remapping::segments_that_are_detached_between_one_sided_operations",
            "remapping::registered_memory_that_goes_between_operations",
            "one_sided::reads_and_writes",
            "one_sided::lists_and_injects",
            "one_sided::writes_with_data",
            "one_sided::regions_that_close",
            "one_sided::fences_after_reads_and_writes",
            "one_sided::many_reads",
            "one_sided::reads_in_order",
            "one_sided::a_target_that_closes",
            "one_sided::an_initiator_that_closes",
            "one_sided::a_target_that_is_removed",
            "one_sided::an_initiator_that_is_removed",
            "one_sided::a_read_from_a_target_that_is_fenced",
            "one_sided::counters",
            "one_sided::by_devices",
            "closes::regions_under_fire",
            "region_closes::beside_initiators_that_compute",
            "region_closes::counted_reads_have_left",
            "orders::writes_after_writes",
            "orders::reads_between_writes",
            "orders::sends_after_reads_and_writes",
            "orders::reads_and_writes_after_sends",
            "remote_refusals::keys_ranges_and_rights",
            "remote_refusals::keys_of_other_regions",
            "remote_refusals::virtual_addresses",
            "remote_refusals::addresses_of_pieces",
            "remote_refusals::all_addresses",
            "remote_refusals::rights_of_endpoints",
            "remote_refusals::operations_without_bytes",
            "unknown_initiators::regions_that_close_meanwhile",
            "unknown_initiators::two_of_one_target",
        ],
    ),
    (
        "atomic operations are not among the adapter's calls",
        &[
            "unknown_initiators::that_are_inserted_and_removed",
            "unknown_initiators::that_are_inserted_at_once",
            "atomics::each_type_and_operator",
            "atomics::arrays_of_each_length",
            "atomics::lists_and_injected_operands",
            "atomics::each_sum_is_counted_once",
            "atomics::order_of_long_and_short_ones",
            "atomics::refusals_at_the_target",
            "atomics::calls_that_are_refused",
            "atomics::fences_after_fetches",
            "atomics::counts_at_both_ends",
            "atomic_ends::regions_that_close_beside",
            "atomic_ends::targets_that_go",
            "atomic_ends::initiators_that_are_removed",
            "atomic_ends::targets_that_are_fenced",
            "atomic_regions::over_pieces",
            "atomic_regions::counters_of_regions",
            "atomic_regions::beside_reads_and_writes",
            "atomic_regions::of_elements",
            "orders::atomics_between_reads_and_writes",
        ],
    ),
    (
        "the events of asynchronous insertions are tests/integration/address_vectors.rs's",
        &[
            "async_inserts::events_of_each_call",
            "async_inserts::events_outlive_their_vector",
            "named::readers",
        ],
    ),
    (
        "fi_av_insert gets no lengths: tests/integration/address_vectors.rs has malformed addresses",
        &["vectors::malformed_addresses"],
    ),
    (
        "names are inserted in tests/integration/av_formats.rs",
        &["vectors::texts"],
    ),
    (
        "messages of collectives are off_coll's alone (tests/integration/collectives.rs)",
        &["sends::messages_of_collectives"],
    ),
    (
        "the calls with keys are tests/integration/auth_keys.rs's",
        &["vectors::without_keys"],
    ),
];

/// Our provider, over shared memory, and over verbs where there is a device; or another one that
/// the environment names.
static OURS: LazyLock<ProviderUnderTest> = LazyLock::new(|| {
    let named = std::env::var("FERRO_TEST_PROVIDER");
    ProviderUnderTest {
        name: named.map_or(scenarios::OURS, |name| name.leak()),
        version: None,
        does_not: &[],
        not_run: &[],
        does_not_before_2_3: &[],
        beside: None,
        thresholds: &[40, 48, 8192, 8768, 26_304, 65_536],
    }
});

/// libfabric's own shared memory.
static SHM: ProviderUnderTest = ProviderUnderTest {
    name: "shm",
    version: Some((2, 5)),
    does_not: SHM_DOES_NOT,
    not_run: CRASHES_AT_A_CLOSE,
    does_not_before_2_3: &[],
    beside: None,
    thresholds: &[128, 4096, 8192, 65_536],
};

/// Our verbs endpoints, whose local peers are reached through a provider of libfabric's.
const PAIR: ProviderUnderTest = ProviderUnderTest {
    name: scenarios::OURS,
    version: None,
    does_not: PAIR_DOES_NOT,
    not_run: CRASHES_AT_A_CLOSE,
    does_not_before_2_3: &[(
        "shm completes long sends in their order, so one that was dropped after one that waits",
        &["probes::each_flag"],
    )],
    beside: Some("shm"),
    thresholds: &[128, 4096, 8192, 65_536],
};

/// What libfabric's shared memory does not bear.
const CRASHES_AT_A_CLOSE: Reasons = &[(
    "an endpoint that closes while another thread drives its peer crashes at times",
    &[
        "deliveries::of_first_messages",
        "deliveries::of_all_that_is_taken",
        "deliveries::of_completed_sends",
    ],
)];

/// With libfabric's `shm`.
static PAIR_OF_SHM: ProviderUnderTest = PAIR;

/// With its `sm2`.
static PAIR_OF_SM2: ProviderUnderTest = ProviderUnderTest {
    beside: Some("sm2"),
    version: Some((2, 5)),
    does_not: PAIR_OF_SM2_DOES_NOT,
    does_not_before_2_3: &[],
    ..PAIR
};

/// The scenarios that each pair fails, by reason.
const PAIR_DOES_NOT: Reasons = &[NO_FENCES, NO_DELIVERY, NO_UNKNOWN_SOURCES, COPIES_EARLY];

/// A reason, and the scenarios.
type Reason = (&'static str, &'static [&'static str]);

const NO_FENCES: Reason = (
    "FI_FENCE is not offered beside a provider in C",
    &["levels::fences"],
);
const NO_DELIVERY: Reason = (
    "FI_DELIVERY_COMPLETE is not offered beside a provider in C",
    &[
        "levels::delivery",
        "levels::delivery_of_dropped_and_truncated_messages",
    ],
);
const NO_UNKNOWN_SOURCES: Reason = (
    "FI_SOURCE_ERR is not offered beside a provider in C",
    &[
        "unknown_sources::are_named_and_become_peers",
        "unknown_sources::in_every_receive",
        "unknown_sources::that_have_closed",
        "unknown_sources::beside_peers_with_ids",
    ],
);
const COPIES_EARLY: Reason = (
    "shm and sm2 copy a long message before a short one behind it comes",
    &["multi_receives::the_last_to_complete_frees_the_buffer"],
);

/// The scenarios that the pair with `sm2` fails, by reason.
const PAIR_OF_SM2_DOES_NOT: Reasons = &[
    NO_FENCES,
    NO_DELIVERY,
    NO_UNKNOWN_SOURCES,
    COPIES_EARLY,
    (
        "sm2 cuts the flags of a message to 16 bits, and FI_REMOTE_CQ_DATA is the 18th",
        &[
            "matches::a_sender_that_is_inserted_late",
            "matches::cancelled_receives_take_nothing",
            "matches::directed_and_wildcard_receives",
            "matches::order_of_long_and_short_messages",
            "matches::tagged_and_untagged_are_apart",
            "matches::tags_and_masks",
            "sends::each_form_of_send",
        ],
    ),
];

/// The scenarios that `shm` of libfabric 2.5 fails, by reason.
const SHM_DOES_NOT: Reasons = &[
    ("FI_FENCE is not offered", &["levels::fences"]),
    (
        "FI_SOURCE_ERR is not offered",
        &[
            "unknown_sources::are_named_and_become_peers",
            "unknown_sources::in_every_receive",
            "unknown_sources::that_have_closed",
        ],
    ),
    (
        "fi_av_open refuses FI_AV_USER_ID",
        &[
            "unknown_sources::beside_peers_with_ids",
            "user_ids::replace_addresses",
        ],
    ),
    ("fi_av_open refuses a name", &["named::shared_entries"]),
    (
        "the suite can not invent addresses of its format",
        &["vectors::attributes", "vectors::growth"],
    ),
    (
        "a send to an address that is not in the address vector crashes",
        &[
            "matches::a_sender_that_is_inserted_late",
            "vectors::receive_contexts",
        ],
    ),
    (
        "an address that is inserted again is looked up as another one",
        &["removals::a_reused_index"],
    ),
    (
        "a peek finds no untagged message",
        &["sends::each_form_of_send", "probes::each_flag"],
    ),
    (
        "flags without a meaning are not refused",
        &["probes::bad_flags"],
    ),
    (
        "lists and injected messages beyond the limits of the offer are not refused",
        &[
            "sends::a_send_that_is_refused_sends_nothing",
            "runs::an_error_ends_a_run",
            "lists::claims_and_cancellations",
            "multi_receives::lists_are_refused",
        ],
    ),
    (
        "the error of a message that is too long has an olen of 0",
        &[
            "sends::truncation_of_each_size",
            "completions::errors_always",
        ],
    ),
    (
        "a completion names the first buffer of a list",
        &["lists::messages_go_into_lists"],
    ),
    (
        "a multi-receive ends with less than 4,096 bytes left (FI_OPT_MIN_MULTI_RECV)",
        &[
            "multi_receives::pieces_of_a_buffer",
            "multi_receives::the_minimum_of_free_space",
            "multi_receives::a_message_that_is_too_long",
            "multi_receives::cancelled",
        ],
    ),
    (
        "a long message completes before a short one behind it",
        &["multi_receives::the_last_to_complete_frees_the_buffer"],
    ),
    (
        "the last completion of a multi-receive without FI_COMPLETION has no message",
        &["multi_receives::only_the_last_completes_if_none_are_wanted"],
    ),
    (
        "FI_CNTR_EVENTS_BYTES counts operations",
        &["counters::of_bytes"],
    ),
    (
        "an endpoint without FI_DIRECTED_RECV has directed receives where its domain has them",
        &["matches::sources_without_directed_receives"],
    ),
    (
        "FI_DELIVERY_COMPLETE completes before there is a receive",
        &["levels::delivery"],
    ),
    (
        "a send with FI_DELIVERY_COMPLETE fails if its message is too long for the receive",
        &["levels::delivery_of_dropped_and_truncated_messages"],
    ),
    (
        "sends to a peer that closes do not end",
        &["sharing::a_peer_that_closes_and_one_that_comes_after"],
    ),
    (
        "a first send waits until its receiver makes progress, and the queue of another endpoint \
         of the receiver's domain makes none for it",
        &["runs::a_run_to_several_peers"],
    ),
    (
        "a wait for a completion polls and does not sleep",
        &["waiting::a_message_to_oneself_wakes"],
    ),
    (
        "a read of a completion queue crashes",
        &[
            "matches::directed_and_wildcard_receives",
            "sharing::several_endpoints_on_one_queue",
        ],
    ),
];

mod ours {
    use ferrofabric_conformance::conformance;

    conformance!(super::scenarios::fabric(&super::OURS));
}

mod verbs_beside_shm {
    use ferrofabric_conformance::conformance;

    conformance!(super::scenarios::fabric(&super::PAIR_OF_SHM));
}

mod verbs_beside_sm2 {
    use ferrofabric_conformance::conformance;

    conformance!(super::scenarios::fabric(&super::PAIR_OF_SM2));
}

mod libfabrics_shm {
    use ferrofabric_conformance::conformance;

    conformance!(super::scenarios::fabric(&super::SHM));
}

/// The tables name scenarios of the suite's list, each once, and no provider's table names one that
/// runs nowhere.
#[test]
fn tables_name_scenarios() {
    let suite = include_str!("../../../hw-tests/conformance/src/suite.rs");
    let listed = suite
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','));
    let scenarios: BTreeSet<&str> = listed.filter_map(|line| line.split(' ').next()).collect();
    for provider in [&*OURS, &PAIR_OF_SHM, &PAIR_OF_SM2, &SHM] {
        let mut seen = BTreeSet::new();
        for name in names(LEFT_OUT)
            .chain(names(provider.does_not))
            .chain(names(provider.not_run))
        {
            assert!(scenarios.contains(name), "{name} is no scenario");
            assert!(seen.insert(name), "{name} is named twice");
        }
    }
}
