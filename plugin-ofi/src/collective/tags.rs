//! The tags of messages of collectives.
//!
//! A tag of `off_coll` has, from its lowest bit on: 16 bits with the number of the operation among
//! those of its group, 16 with the number of the group, and 31 with the rank of the sender. Numbers
//! of groups are 256 at most, and 0 stands for all groups that are being joined. Tags of ours have
//! greater ones there.

use super::RESERVED_TAG;

const GROUP_SHIFT: u32 = 16;
const GROUP_MASK: u64 = 0xffff;

/// In place of the number of a group: reports that the group of the lowest bits, of the members in
/// the highest ones, has failed, reports that one has failed whose number perhaps not all members
/// have, and probes.
const FAILED_GROUP: u64 = 0xffff;
const FAILED_JOIN: u64 = 0xfffe;
const PROBING: u64 = 0xfffd;

/// In place of the number of a group in messages of a join: from this on, by the join's attempt.
const ATTEMPTS: u64 = 0x8000;

/// The tag of a probe, which each endpoint receives.
pub(crate) const PROBE: u64 = RESERVED_TAG | (PROBING << GROUP_SHIFT);

/// In reports of a join: the number of the group, plus 1, where the sender has it.
const REPORTED_SHIFT: u32 = 40;
const REPORTED_MASK: u64 = 0x1ff;

/// The number of the group in a tag of `off_coll`.
pub(crate) fn group_number(tag: u64) -> u64 {
    (tag >> GROUP_SHIFT) & GROUP_MASK
}

/// The tag of all messages of operations of a group with that number, and the bits that do not
/// count in it.
pub(crate) fn messages_of_group(number: u64) -> (u64, u64) {
    let of_group = RESERVED_TAG | (GROUP_MASK << GROUP_SHIFT);
    (RESERVED_TAG | (number << GROUP_SHIFT), !of_group)
}

/// The number of the group in a report of a join, if its sender has it.
pub(crate) fn reported_number(tag: u64) -> Option<u64> {
    let is_of_join = group_number(tag) == FAILED_JOIN;
    let number = (tag >> REPORTED_SHIFT) & REPORTED_MASK;
    is_of_join.then(|| number.checked_sub(1)).flatten()
}

/// The name of a join, and of the group that comes of it: the same at each of its members, and no
/// other one's there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinName {
    /// Of the members' names.
    pub(crate) hash: u64,
    /// The number of the join among those of the same members.
    pub(crate) attempt: u8,
}

impl JoinName {
    /// Bits of the tags of its messages, besides those of `off_coll`.
    pub(crate) fn tag_bits(self) -> u64 {
        ((ATTEMPTS | u64::from(self.attempt)) << GROUP_SHIFT) | self.low_bits()
    }

    /// The tag of reports that the group, which has that number, has failed. A member whose join
    /// failed may get the number again, for a group with others: so the tag has the members.
    pub(crate) fn failed_group(self, number: u64) -> u64 {
        const MEMBERS_SHIFT: u32 = 32;
        let members = self.hash >> (MEMBERS_SHIFT + 1) << MEMBERS_SHIFT;
        RESERVED_TAG | members | (FAILED_GROUP << GROUP_SHIFT) | number
    }

    /// The tag of reports that it, or the group, has failed, with the number of the group if the
    /// sender has it.
    pub(crate) fn failed(self, number: Option<u64>) -> u64 {
        let number = number.map_or(0, |number| (number + 1) & REPORTED_MASK);
        self.reports().0 | (number << REPORTED_SHIFT)
    }

    /// The tag of these reports, and the bits that do not count in it.
    pub(crate) fn reports(self) -> (u64, u64) {
        const ATTEMPT_SHIFT: u32 = 32;
        const HIGH_SHIFT: u32 = 49;
        let high_bits = self.hash >> (HIGH_SHIFT + 1) << HIGH_SHIFT;
        let attempt = u64::from(self.attempt) << ATTEMPT_SHIFT;
        let kind = RESERVED_TAG | (FAILED_JOIN << GROUP_SHIFT);
        let ignored = REPORTED_MASK << REPORTED_SHIFT;
        (kind | high_bits | attempt | self.low_bits(), ignored)
    }

    /// Those that are free in tags of `off_coll`.
    fn low_bits(self) -> u64 {
        let hash = self.hash;
        (hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48)) & 0xffff
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_join_has_tags_of_its_own() {
        let mut all = BTreeSet::from([PROBE]);
        for number in 0..=256 {
            for hash in [0, 1 << 33, 0x1234_5678_9abc_0001, u64::MAX] {
                let name = JoinName { hash, attempt: 0 };
                assert!(all.insert(name.failed_group(number)));
            }
            assert!(all.insert(RESERVED_TAG | (number << GROUP_SHIFT)));
        }
        for attempt in 0..=u8::MAX {
            for hash in [0, 1, 0x1234_5678_9abc_0001, 1 << 62, u64::MAX - 5] {
                let name = JoinName { hash, attempt };
                assert!(all.insert(name.failed(None)), "{name:?}");
                assert!(all.insert(RESERVED_TAG | name.tag_bits()), "{name:?}");
                assert_eq!(group_number(name.failed(None)), FAILED_JOIN);
                assert_eq!(reported_number(name.failed(None)), None);
                for number in [0, 7, 256] {
                    let tag = name.failed(Some(number));
                    let (expected, ignored) = name.reports();
                    assert_eq!(reported_number(tag), Some(number));
                    assert_eq!(tag & !ignored, expected & !ignored);
                    assert_eq!(tag & RESERVED_TAG, RESERVED_TAG);
                    let (of_group, ignored) = messages_of_group(number);
                    assert_ne!(tag & !ignored, of_group & !ignored);
                }
                assert!(name.tag_bits() < 1 << 32, "ranks are above");
            }
        }
    }
}
