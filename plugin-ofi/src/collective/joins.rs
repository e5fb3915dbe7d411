//! The joins of an endpoint: one after the other, in the order of the calls.
//!
//! The members of a join settle on the number that the group has in tags: the lowest one that all
//! of them have left. `off_coll` uses it up when the join ends. So two joins at once would get the
//! same number, and exchange messages.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Done, EqError};

use super::endpoint::{CollectiveState, Collectives};
use super::operations::{CollectiveOperation, Join, JoinEnd, JoinedGroup, OperationKind};
use super::tags::JoinName;
use crate::abi::FI_JOIN_COMPLETE;

/// Joins of an endpoint at most: `off_coll` has as many numbers of groups, and uses each once.
const MAX_JOINS: usize = 255;

impl Collectives {
    /// Begins a join, at once or after those before it. `hash` is that of the members' names. The
    /// end is an event.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the endpoint has joined as many groups as it can.
    pub(crate) fn join(
        &self,
        state: &mut CollectiveState,
        hash: u64,
        join: impl FnOnce(JoinName) -> Join,
    ) -> Result<(), Errno> {
        if state.operations.joins == MAX_JOINS {
            return Err(Errno::ENOSPC);
        }
        let name = state.operations.count_join(hash);
        state.operations.queued_joins.push_back(join(name));
        self.begin_joins(state);
        Ok(())
    }

    /// Begins the next join, if none is under way.
    pub(super) fn begin_joins(&self, state: &mut CollectiveState) {
        while !state.operations.is_joining() {
            let Some(join) = state.operations.queued_joins.pop_front() else {
                return;
            };
            let (end, own, tag) = (join.end, join.own, join.name.failed(None));
            let members = join.members.clone();
            if let Err(errno) = self.begin_join(state, join) {
                self.fail_join(end, errno);
                self.report_failure(state, &members, own, &[tag]);
            }
        }
    }

    fn begin_join(&self, state: &mut CollectiveState, join: Join) -> Result<(), Errno> {
        let operation = CollectiveOperation {
            group: join.group,
            context: join.end.context,
            kind: OperationKind::Join { fid: join.end.fid },
            tag_bits: join.name.tag_bits(),
            transfers: 0,
            failed: None,
        };
        self.begin(state, operation, |offload, operations, context| {
            let offload = offload.join(&join.members, join.own, join.flags, context)?;
            let group = JoinedGroup {
                members: join.members,
                own: join.own,
                users: 1,
                failed: None,
                is_joined: false,
                is_closing: false,
                name: join.name,
                number: None,
                offload,
            };
            operations.groups.insert(join.group, group);
            Ok(())
        })
    }

    /// Reports a join that has failed.
    pub(super) fn fail_join(&self, end: JoinEnd, errno: Errno) {
        if let Some(eq) = &self.binding.eq {
            eq.keep_error(EqError {
                source: end.fid,
                context: end.context,
                data: 0,
                errno,
                prov_errno: 0,
                err_data: Box::default(),
            });
        }
    }

    /// Reports a join that is complete.
    pub(super) fn complete_join(&self, end: JoinEnd) {
        if let Some(eq) = &self.binding.eq {
            let done = Done {
                source: end.fid,
                context: end.context,
                data: 0,
            };
            eq.keep_done(FI_JOIN_COMPLETE, &done);
        }
    }
}
