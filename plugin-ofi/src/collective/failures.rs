//! Failures of the collective operations of an endpoint, and the ends of groups.
//!
//! The contract:
//!
//! - An operation fails with its group, and so do all others of the group. The other members are
//!   informed.
//! - Receives are cancelled. A long send ends when a member receives it: each member that has
//!   joined a group which fails discards the group's messages from then on, also those that come
//!   after it has closed the group. One that has not joined may get the number of the group again.
//! - The application gets the error, and its buffers, when all messages of the operation are over.
//!   A join, which has no buffers of the application, ends at once.
//! - A group that closes gives its operations up. A message that is under way then has its buffer
//!   until it is over, or until the endpoint is closed.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::CqError;
use ferrofabric_contracts::types::FiAddr;

use super::endpoint::{CollectiveState, Collectives, completion_of};
use super::operations::{JoinEnd, JoinedGroup, OperationKind};
use super::tags::{messages_of_group, reported_number};
use crate::av::members::Members;
use crate::eq::DrivenByEvents;

/// The errno of a group that has failed at another member.
const FAILED_ELSEWHERE: Errno = Errno(libc::ECONNABORTED);

/// The words of an error.
const WHY: &str = "a message of the collective operation failed: its group does not go on";

impl Collectives {
    /// An operation fails, with all others of its group.
    pub(super) fn fail(&self, state: &mut CollectiveState, operation: u64, errno: Errno) {
        if let Some(operation) = state.operations.under_way.get(&operation) {
            self.fail_group(state, operation.group, errno);
        }
    }

    /// A group fails, with all its operations. The other members are informed: some of them may
    /// wait for messages that do not come any more.
    fn fail_group(&self, state: &mut CollectiveState, group: FiAddr, errno: Errno) {
        let (failed, is_new) = state.operations.fail(group, errno);
        let mut transfers = state.operations.transfers_by_operation();
        for operation in failed {
            for number in transfers.remove(&operation).unwrap_or_default() {
                let operations = &mut state.operations;
                let Some(room) = (operations.transfers.get(&number)).map(|one| one.request.room())
                else {
                    continue;
                };
                if operations.waiting.remove(room, number) {
                    operations.end_transfer(number);
                } else if !room.sends {
                    // A receive that has matched ends by itself.
                    let _ = self.endpoint.cancel_collective(number);
                }
            }
            self.end_failed(state, operation);
        }
        let Some(group) = state.operations.groups.get(&group).filter(|_| is_new) else {
            return;
        };
        let tags: Vec<_> = group.report_tags().collect();
        let (members, own, number) = (group.members.clone(), group.own, group.number);
        if let Some(number) = number {
            self.discard_messages(state, number);
        }
        self.report_failure(state, &members, own, &tags);
    }

    /// Informs the other members that a group has failed.
    pub(super) fn report_failure(
        &self,
        state: &mut CollectiveState,
        members: &Members,
        own: FiAddr,
        tags: &[u64],
    ) {
        for &peer in members.all().iter().filter(|&&member| member != own) {
            for &tag in tags {
                self.send_lone_message(state, peer, tag, None);
            }
        }
    }

    /// Receives the reports with this tag of other members that a group has failed.
    pub(super) fn await_failure(
        &self,
        state: &mut CollectiveState,
        group: FiAddr,
        (tag, ignore): (u64, u64),
    ) {
        let number = self.receive_report(tag, ignore);
        state.operations.alarms.insert(number, group);
    }

    /// A receive of reports is over, with the tag of one or an error. The report may have the
    /// number of the group, which the endpoint does not have before its own first operation.
    pub(super) fn take_report(
        &self,
        state: &mut CollectiveState,
        group: FiAddr,
        result: Result<u64, Errno>,
    ) {
        let Ok(tag) = result else {
            return;
        };
        let reported = reported_number(tag);
        let Some(of) = state.operations.groups.get_mut(&group) else {
            // It is closed, and was joined.
            return (reported.into_iter()).for_each(|number| self.discard_messages(state, number));
        };
        if of.is_joined {
            of.number = of.number.or(reported);
        }
        let (number, reports, is_joined) = (of.number, of.name.reports(), of.is_joined);
        self.fail_group(state, group, FAILED_ELSEWHERE);
        match number {
            Some(number) => self.discard_messages(state, number),
            // Another member may report the number.
            None if is_joined => self.await_failure(state, group, reports),
            None => {}
        }
    }

    /// Discards the messages of a group that has failed.
    fn discard_messages(&self, state: &mut CollectiveState, group_number: u64) {
        if !state
            .operations
            .discards
            .values()
            .any(|&of| of == group_number)
        {
            self.discard_next(state, group_number);
        }
    }

    /// Discards the next message of a group that has failed.
    pub(super) fn discard_next(&self, state: &mut CollectiveState, group_number: u64) {
        let (tag, ignore) = messages_of_group(group_number);
        let number = self.receive_report(tag, ignore);
        state.operations.discards.insert(number, group_number);
    }

    /// The application closes a group. Its join and its operations are given up, for its members
    /// may never take part in them.
    pub(crate) fn leave_group(&self, group: FiAddr) {
        {
            let state = &mut *self.state.lock();
            if let Some(join) = state.operations.take_queued_join(group) {
                // The others may wait for it.
                let tag = join.name.failed(None);
                self.report_failure(state, &join.members, join.own, &[tag]);
                return state.set_timer();
            }
            let Some(left) = state.operations.groups.get_mut(&group) else {
                return;
            };
            if left.users == 0 {
                return self.forget_group(state, group);
            }
            left.is_closing = true;
            self.fail_group(state, group, Errno::ECANCELED);
        }
        // Receives that are cancelled are over then.
        self.drive();
        let state = &mut *self.state.lock();
        for operation in state.operations.of_group(group) {
            self.give_up(state, operation, Errno::ECANCELED);
        }
        self.forget_group(state, group);
        // The next one may have waited for the join of this group.
        self.begin_joins(state);
        state.set_timer();
    }

    /// Takes back the receives of reports of a group that is closed. Where it was joined, and has
    /// failed, and its number is not known, a report may come that has the number: messages of the
    /// group are to be discarded.
    fn forget_group(&self, state: &mut CollectiveState, group: FiAddr) {
        let forgotten = state.operations.groups.remove(&group);
        let is_unnamed =
            |of: &JoinedGroup| of.is_joined && of.failed.is_some() && of.number.is_none();
        if forgotten.as_ref().is_some_and(is_unnamed) {
            return;
        }
        for number in state.operations.take_alarms(group) {
            let _ = self.endpoint.cancel_collective(number);
        }
    }

    /// Reports an operation that has failed, once all its messages are over that have buffers of
    /// the application.
    pub(super) fn end_failed(&self, state: &mut CollectiveState, number: u64) {
        let Some(operation) = state.operations.under_way.get(&number) else {
            return;
        };
        let is_over = operation.transfers == 0 || operation.is_join();
        if let Some(errno) = operation.failed.filter(|_| is_over) {
            self.give_up(state, number, errno);
        }
    }

    /// Ends an operation with an error, and reports it. Messages that are under way end later.
    fn give_up(&self, state: &mut CollectiveState, number: u64, errno: Errno) {
        let Some(operation) = state.operations.end(number) else {
            return;
        };
        match operation.kind {
            OperationKind::Join { fid } => {
                let group = state.operations.groups.get(&operation.group);
                // The object of the event is gone if it closes.
                if !group.is_some_and(|group| group.is_closing) {
                    let context = operation.context;
                    self.fail_join(JoinEnd { fid, context }, errno);
                }
            }
            OperationKind::Collective { bounce, .. } => {
                if operation.transfers != 0 {
                    state
                        .operations
                        .abandoned
                        .extend(bounce.map(|one| (number, one)));
                }
                let cq = &self.binding.tx_cq;
                let error = CqError {
                    completion: completion_of(operation.context),
                    olen: 0,
                    errno,
                    prov_errno: 0,
                    why: WHY,
                    sender: None,
                };
                (cq.collective.iter()).for_each(|part| part.fail(&*cq.cq, error.clone()));
            }
        }
    }
}
