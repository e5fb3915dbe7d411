//! The kind of NIC that the tests run on, for those that need what not every NIC has.

use ferrofabric_fake_device::profile::DeviceProfile;

/// Its profile.
pub(crate) fn nic() -> &'static DeviceProfile {
    DeviceProfile::of_environment()
}

/// Whether it has the queue pairs of so many endpoints with a lane each.
pub(crate) fn has_queue_pairs_for(endpoints: usize) -> bool {
    let most = nic().queue_pairs;
    or_skip(
        most as usize >= 4 * endpoints,
        &format!("{endpoints} endpoints, and the device has {most} queue pairs"),
    )
}

/// Whether an endpoint can have lanes to so many others at a time. Without shared receives, each
/// lane has receives of its own, and they run out.
pub(crate) fn has_lanes_for(others: usize) -> bool {
    has_shared_receives() && has_queue_pairs_for(others + 1)
}

/// Whether a receive names enough pieces of memory for datagrams without a prefix.
pub(crate) fn has_plain_datagrams() -> bool {
    or_skip(
        nic().entries > 1,
        "the device has datagrams behind a prefix alone",
    )
}

/// Whether receivers that do not look take more messages than a connection has receives of its own.
pub(crate) fn has_shared_receives() -> bool {
    or_skip(
        nic().shared_receives,
        "the device has no shared receive queue",
    )
}

fn or_skip(has: bool, why: &str) -> bool {
    if !has {
        println!("SKIP: {why}");
    }
    has
}
