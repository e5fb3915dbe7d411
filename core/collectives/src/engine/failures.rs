//! Failures of groups, and their ends.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::{Action, Engine, MessageBytes, MessagePurpose};
use crate::group_id::GroupId;
use crate::tags::{of_all_operations, of_failure};

/// The errno of a group that has failed at another member.
const FAILED_ELSEWHERE: Errno = Errno::ECONNABORTED;

/// The errnos of messages to and from members that are gone.
const SAY_GONE: [Errno; 3] = [Errno::ECONNRESET, Errno::ESHUTDOWN, Errno::EHOSTUNREACH];

/// The rank in a report that names no member.
const NOBODY: u32 = u32::MAX;

/// Bytes of a report.
pub(super) const REPORT_LEN: usize = size_of::<u32>();

impl Engine {
    /// The endpoint leaves a group. Operations that are under way fail, at the other members, too.
    pub fn leave(&mut self, group: GroupId) {
        let is_busy = (self.operations.values()).any(|operation| operation.group == group);
        if is_busy {
            self.fail_group(group, Errno::ECANCELED, None);
        }
        let Some(left) = self.groups.get(&group) else {
            return;
        };
        // Messages and reports of a group that has failed still come.
        if left.failed.is_none() {
            let message = left.alarm;
            self.groups.remove(&group);
            self.messages.remove(&message);
            self.actions.push_back(Action::Cancel { message });
        }
    }

    /// An operation fails, with its group, by a message to or from a member.
    pub(super) fn fail(&mut self, operation: u64, errno: Errno, member: Option<FiAddr>) {
        if let Some(operation) = self.operations.get(&operation) {
            let member = member.filter(|_| SAY_GONE.contains(&errno));
            let group = self.groups.get(&operation.group);
            let rank = group.and_then(|group| group.members.rank_of(member?));
            self.fail_group(operation.group, errno, rank.map(|rank| rank as u32));
        }
    }

    /// A group fails, with all its operations. The other members are informed: some of them may
    /// wait for messages that do not come any more.
    fn fail_group(&mut self, number: GroupId, errno: Errno, gone: Option<u32>) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.gone.extend(gone);
        if group.failed.replace(errno).is_some() {
            return;
        }
        let tag = of_failure(group.hash);
        let first_gone = group.gone.first().copied().unwrap_or(NOBODY).to_le_bytes();
        let others: Vec<_> = (0_u32..)
            .zip(&**group.members.addresses())
            .filter(|(rank, _)| *rank as usize != group.members.rank())
            .filter(|(rank, _)| !group.gone.contains(rank))
            .map(|(_, &address)| address)
            .collect();
        let failed = self
            .operations
            .iter()
            .filter(|(_, one)| one.group == number);
        let mut failed: Vec<_> = failed.map(|(&operation, _)| operation).collect();
        failed.sort_unstable();
        for operation in failed {
            let ended = self.operations.remove(&operation);
            if let Some(awaited) = ended.and_then(|ended| ended.waits_for) {
                let message = awaited.message;
                self.messages.remove(&message);
                self.actions.push_back(Action::Cancel { message });
            }
            self.actions.push_back(Action::End {
                operation,
                result: Err(errno),
            });
        }
        for other in others {
            let bytes = MessageBytes::Own(first_gone);
            self.send(other, tag, bytes, MessagePurpose::Report);
        }
        self.discard(number);
    }

    /// Discards the next message of a group that has failed.
    pub(super) fn discard(&mut self, group: GroupId) {
        let tag = of_all_operations(group);
        self.receive(FiAddr::UNSPEC, tag, 0, MessagePurpose::Discard(group));
    }

    /// Another endpoint reports that a group has failed, perhaps with the rank of a member that is
    /// gone.
    pub(super) fn take_alarm(&mut self, id: GroupId, from: FiAddr, bytes: &[u8]) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let tag = (of_failure(group.hash), 0);
        let is_member = group.members.rank_of(from).is_some();
        let rank = bytes.try_into().map(u32::from_le_bytes).ok();
        let gone = rank.filter(|&rank| (rank as usize) < group.members.len());
        let alarm = self.receive(FiAddr::UNSPEC, tag, REPORT_LEN, MessagePurpose::Alarm(id));
        if let Some(group) = self.groups.get_mut(&id) {
            group.alarm = alarm;
        }
        if is_member {
            self.fail_group(id, FAILED_ELSEWHERE, gone);
        }
    }
}
