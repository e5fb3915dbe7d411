//! The tags of messages of collectives.
//!
//! The highest bit is that of all of them. Two bits have the kind. The others have, in a message of
//! a group, the receiver's number of the group and the number of the operation; in a message of a
//! join, or one that reports a failure, a hash of the members' names.

use crate::group_id::GroupId;

/// The bit of a tag that messages of collectives have, and no others of such an endpoint.
pub const RESERVED_TAG: u64 = 1 << 63;

const KIND_SHIFT: u32 = 61;
const JOIN: u64 = 1 << KIND_SHIFT;
const FAILURE: u64 = 2 << KIND_SHIFT;
const HASH_MASK: u64 = JOIN - 1;

const GROUP_SHIFT: u32 = 30;
const OPERATION_MASK: u64 = (1 << GROUP_SHIFT) - 1;

/// The tag of a probe.
pub(crate) const PROBE: u64 = RESERVED_TAG | (3 << KIND_SHIFT);

/// The tag of an operation's messages to a member that has the group by this number.
pub(crate) fn of_operation(group: GroupId, operation: u64) -> u64 {
    of_group(group) | (operation & OPERATION_MASK)
}

/// The tag of all messages of a group, and the bits of it that are not compared.
pub(crate) fn of_all_operations(group: GroupId) -> (u64, u64) {
    (of_group(group), OPERATION_MASK)
}

fn of_group(group: GroupId) -> u64 {
    RESERVED_TAG | (u64::from(group.0) << GROUP_SHIFT)
}

/// The tag of the messages of a join.
pub(crate) fn of_join(hash: u64) -> u64 {
    RESERVED_TAG | JOIN | (hash & HASH_MASK)
}

/// The tag of reports that a group has failed.
pub(crate) fn of_failure(hash: u64) -> u64 {
    RESERVED_TAG | FAILURE | (hash & HASH_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_id::MAX_GROUPS;

    #[test]
    fn tags_of_different_kinds_are_different() {
        let last = GroupId(MAX_GROUPS - 1);
        let of_group = of_operation(last, u64::MAX);
        let (all, ignored) = of_all_operations(last);
        assert_eq!(of_group & !ignored, all);
        let kinds = [of_group, of_join(u64::MAX), of_failure(u64::MAX), PROBE];
        for (at, kind) in kinds.iter().enumerate() {
            assert_eq!(kind >> KIND_SHIFT, 4 | at as u64);
        }
    }
}
