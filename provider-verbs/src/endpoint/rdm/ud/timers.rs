//! When to look at lanes again. A place has one deadline, that of the session which came there
//! last: who was there before may not have left yet, and has no say in it any more.

use ferrofabric_protocol::Time;
use ferrofabric_protocol::datagram_lane::Deadlines;
use ferrofabric_protocol::wire::SessionId;

/// The deadlines of sessions over datagrams.
#[derive(Default)]
pub(in super::super) struct Timers {
    deadlines: Deadlines,
    /// Whose each place is.
    owners: Vec<Option<SessionId>>,
}

impl Timers {
    /// A session has come to its place; it has no deadline yet.
    pub(in super::super) fn begin(&mut self, session: SessionId) {
        let at = session.index();
        if self.owners.len() <= at {
            self.owners.resize(at + 1, None);
        }
        self.owners[at] = Some(session);
        self.deadlines.set(at as u32, None);
    }

    /// Sets, moves or (`None`) clears a deadline, unless the session's place is another's by now.
    #[inline]
    pub(in super::super) fn set(&mut self, session: SessionId, at: Option<Time>) {
        if self.owners.get(session.index()) == Some(&Some(session)) {
            self.deadlines.set(session.index() as u32, at);
        }
    }

    /// The next session whose deadline has passed; the deadline is cleared.
    pub(in super::super) fn pop(&mut self, now: Time) -> Option<SessionId> {
        let at = self.deadlines.pop(now)?;
        self.owners.get(at as usize).copied().flatten()
    }

    /// When to look again: never later than the earliest deadline, at times earlier.
    pub(in super::super) fn next(&self) -> Option<Time> {
        self.deadlines.next()
    }
}
