//! Messages by which a member informs the others that a group has failed.

use crate::group_id::GroupId;

/// A report to the member of a rank.
#[derive(Clone, Copy)]
pub(super) struct SentReport {
    pub(super) group: GroupId,
    pub(super) rank: usize,
    /// Sends of it that have failed.
    pub(super) failures: u32,
}

/// A report of a group that an endpoint may get.
#[derive(Clone, Copy)]
pub(super) struct AwaitedReport {
    pub(super) group: GroupId,
    /// The rank of the one member that it comes from. `None`: it comes from any.
    pub(super) from: Option<usize>,
}
