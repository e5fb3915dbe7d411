//! Failures of groups, and their ends.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::{Action, Engine, MessagePurpose};
use crate::group_id::GroupId;
use crate::tags::{of_all_operations, of_failure};

/// The errno of a group that has failed at another member.
const FAILED_ELSEWHERE: Errno = Errno::ECONNABORTED;

impl Engine {
    /// The endpoint leaves a group. Operations that are under way fail, at the other members, too.
    pub fn leave(&mut self, group: GroupId) {
        let is_busy = (self.operations.values()).any(|operation| operation.group == group);
        if is_busy {
            self.fail_group(group, Errno::ECANCELED);
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

    /// An operation fails, with its group.
    pub(super) fn fail(&mut self, operation: u64, errno: Errno) {
        if let Some(operation) = self.operations.get(&operation) {
            self.fail_group(operation.group, errno);
        }
    }

    /// A group fails, with all its operations. The other members are informed: some of them may
    /// wait for messages that do not come any more.
    fn fail_group(&mut self, number: GroupId, errno: Errno) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        if group.failed.replace(errno).is_some() {
            return;
        }
        let tag = of_failure(group.hash);
        let others: Vec<_> = group.members.others().collect();
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
            self.send(other, tag, None, MessagePurpose::Report);
        }
        self.discard(number);
    }

    /// Discards the next message of a group that has failed.
    pub(super) fn discard(&mut self, group: GroupId) {
        let tag = of_all_operations(group);
        self.receive(FiAddr::UNSPEC, tag, 0, MessagePurpose::Discard(group));
    }

    /// Another endpoint reports that a group has failed.
    pub(super) fn take_alarm(&mut self, id: GroupId, from: FiAddr) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let tag = (of_failure(group.hash), 0);
        let is_member = group.members.addresses().contains(&from);
        let alarm = self.receive(FiAddr::UNSPEC, tag, 0, MessagePurpose::Alarm(id));
        if let Some(group) = self.groups.get_mut(&id) {
            group.alarm = alarm;
        }
        if is_member {
            self.fail_group(id, FAILED_ELSEWHERE);
        }
    }
}
