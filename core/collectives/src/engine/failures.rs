//! Failures of groups, and their ends.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::reports::{AwaitedReport, SentReport};
use super::retries::{RETRY_DELAY, RetriedMessage};
use super::{Engine, MessagePurpose};
use crate::group_id::GroupId;
use crate::groups::{JoinKeys, Membership};
use crate::planner::{Action, MessageBytes};
use crate::tags::{of_all_operations, of_failure};

/// The errno of a group that has failed at another member.
const FAILED_ELSEWHERE: Errno = Errno::ECONNABORTED;

/// The errnos of messages to and from members that are gone.
const SAY_GONE: [Errno; 3] = [Errno::ECONNRESET, Errno::ESHUTDOWN, Errno::EHOSTUNREACH];

/// The rank in a report that names no member.
const NOBODY: u32 = u32::MAX;

/// Sends of a report at most: they take some 20 seconds.
const MOST_FAILURES: u32 = 64;

/// The delay before each next one doubles so often.
const MOST_DOUBLINGS: u32 = 5;

/// Bytes of a report.
const REPORT_LEN: usize = size_of::<u32>();

impl Engine {
    /// The endpoint leaves a group. Operations that are under way fail, at the other members, too.
    pub(super) fn leave_group(&mut self, group: GroupId) {
        let is_busy = (self.operations.values()).any(|operation| operation.group == group);
        if is_busy {
            self.fail_group(group, Errno::ECANCELED, None);
        }
        let Some(left) = self.groups.get_mut(&group) else {
            return;
        };
        // Messages and reports of a group that has failed still come, but for those of members that
        // are gone.
        let alarms = match left.failed {
            None => std::mem::take(&mut left.alarms),
            Some(_) => {
                let messages = &self.messages;
                let is_of_gone = |alarm: &u64| match messages.get(alarm) {
                    Some(MessagePurpose::Alarm(awaited)) => {
                        awaited.from.is_some_and(|from| left.is_gone(from))
                    }
                    _ => false,
                };
                let (of_gone, others) = left.alarms.iter().copied().partition(is_of_gone);
                left.alarms = others;
                of_gone
            }
        };
        if left.failed.is_none() {
            self.groups.remove(&group);
        }
        for message in alarms {
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
    /// wait for messages that do not come any more. It keeps the error that it fails with first.
    fn fail_group(&mut self, number: GroupId, errno: Errno, gone: Option<u32>) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.gone.extend(gone);
        if group.failed.is_some() {
            return;
        }
        group.failed = Some(errno);
        let others: Vec<_> = (0..group.members.len())
            .filter(|&rank| rank != group.members.rank())
            .filter(|&rank| group.is_informed(rank))
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
        for rank in others {
            self.report(SentReport {
                group: number,
                rank,
                failures: 0,
            });
        }
        self.discard(number);
    }

    /// Informs a member that a group has failed.
    pub(super) fn report(&mut self, report: SentReport) {
        let Some(group) = self.groups.get(&report.group) else {
            return;
        };
        let first_gone = group.gone.first().copied().unwrap_or(NOBODY).to_le_bytes();
        let member = group.members.addresses()[report.rank];
        let tag = of_failure(group.keys.with(report.rank));
        let bytes = MessageBytes::Own(first_gone);
        self.send(member, tag, bytes, MessagePurpose::Report(report));
    }

    /// A report was sent. One that was not is sent again, unless its member is gone: the member may
    /// wait for it alone.
    pub(super) fn take_report_end(&mut self, mut report: SentReport, result: Result<(), Errno>) {
        let (Err(errno), Some(group)) = (result, self.groups.get_mut(&report.group)) else {
            return;
        };
        if SAY_GONE.contains(&errno) && !group.is_gone(report.rank) {
            group.gone.push(report.rank as u32);
        }
        let delay = RETRY_DELAY * (1 << report.failures.min(MOST_DOUBLINGS));
        report.failures += 1;
        if group.is_informed(report.rank) && report.failures < MOST_FAILURES {
            self.retries.add(RetriedMessage::Report(report), delay);
        }
    }

    /// Discards the next message of a group that has failed.
    pub(super) fn discard(&mut self, group: GroupId) {
        let tag = of_all_operations(group);
        self.receive(FiAddr::UNSPEC, tag, 0, MessagePurpose::Discard(group));
    }

    /// Receives the reports of a new group: one from any member, or where members have no names,
    /// one from each other. Returns the numbers of the messages.
    pub(super) fn await_reports(
        &mut self,
        group: GroupId,
        members: &Membership,
        keys: &JoinKeys,
    ) -> Vec<u64> {
        let awaited: Vec<_> = match keys {
            JoinKeys::OfAll(_) => vec![None],
            JoinKeys::OfPairs(_) => {
                let others = (0..members.len()).filter(|&rank| rank != members.rank());
                others.map(Some).collect()
            }
        };
        let receives = awaited.into_iter().map(|from| {
            let key = keys.with(from.unwrap_or_default());
            self.await_report(AwaitedReport { group, from }, members, key)
        });
        receives.collect()
    }

    fn await_report(&mut self, awaited: AwaitedReport, members: &Membership, key: u64) -> u64 {
        let from = awaited.from.map(|rank| members.addresses()[rank]);
        self.receive(
            from.unwrap_or(FiAddr::UNSPEC),
            (of_failure(key), 0),
            REPORT_LEN,
            MessagePurpose::Alarm(awaited),
        )
    }

    /// The receive of a report has failed, and says nothing of the group.
    pub(super) fn retry_alarm(&mut self, message: u64, awaited: AwaitedReport) {
        if let Some(group) = self.groups.get_mut(&awaited.group) {
            group.alarms.retain(|&alarm| alarm != message);
            if group.failed.is_none() {
                let alarm = RetriedMessage::Alarm(awaited);
                self.retries.add(alarm, RETRY_DELAY);
            }
        }
    }

    /// Receives a report of a group, unless that was left or has failed.
    pub(super) fn try_alarm_again(&mut self, awaited: AwaitedReport) {
        let group = self.groups.get(&awaited.group);
        if group.is_some_and(|group| group.failed.is_none()) {
            self.await_report_again(awaited);
        }
    }

    fn await_report_again(&mut self, awaited: AwaitedReport) {
        let Some(group) = self.groups.get(&awaited.group) else {
            return;
        };
        let key = group.keys.with(awaited.from.unwrap_or_default());
        let members = group.members.clone();
        let alarm = self.await_report(awaited, &members, key);
        if let Some(group) = self.groups.get_mut(&awaited.group) {
            group.alarms.push(alarm);
        }
    }

    /// Another endpoint reports that a group has failed, perhaps with the rank of a member that is
    /// gone. A report whose sender has died meanwhile is one, too.
    pub(super) fn take_alarm(
        &mut self,
        message: u64,
        awaited: AwaitedReport,
        from: FiAddr,
        report: Result<&[u8], Errno>,
    ) {
        let Some(group) = self.groups.get_mut(&awaited.group) else {
            return;
        };
        let members = &group.members;
        let is_report = match (awaited.from, report) {
            (_, Ok(_) | Err(Errno::ETRUNC)) => true,
            // The member may have closed after its part.
            (Some(_), Err(_)) => false,
            (None, Err(_)) => members.rank_of(from).is_some(),
        };
        if !is_report {
            return self.retry_alarm(message, awaited);
        }
        let is_member = awaited.from.is_some() || members.rank_of(from).is_some();
        let rank = report.unwrap_or_default().try_into();
        let gone = rank.map(u32::from_le_bytes).ok();
        let gone = gone.filter(|&rank| (rank as usize) < members.len());
        group.alarms.retain(|&alarm| alarm != message);
        // A member reports once.
        if awaited.from.is_none() {
            self.await_report_again(awaited);
        }
        if is_member {
            self.fail_group(awaited.group, FAILED_ELSEWHERE, gone);
        }
    }
}
