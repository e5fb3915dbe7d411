//! The order in which lanes with work get their turns.

use std::collections::VecDeque;

use ferrofabric_protocol::wire::SessionId;

use super::probe_turns::{ProbeTurns, SilentLane};

/// The state of one lane's turns.
#[derive(Default)]
pub(crate) struct LaneTurn {
    listed: bool,
    stalled: bool,
}

impl LaneTurn {
    /// It is the lane's turn: the list does not contain it any more.
    #[inline]
    pub(crate) fn begins(&mut self) {
        self.listed = false;
    }
}

/// The lanes that have work.
#[derive(Default)]
pub(crate) struct TurnQueue {
    listed: VecDeque<SessionId>,
    /// Lanes that wait for a resource that all lanes of an endpoint share: bounce buffers, and
    /// places for completions. Such a resource comes back with another lane's completions, which
    /// list that lane alone.
    stalled: Vec<SessionId>,
    /// The turns of idle lanes.
    pub(crate) of_probes: ProbeTurns,
    /// Room for the silent lanes of one look, kept for the next: a look allocates nothing.
    pub(crate) silent: Vec<SilentLane>,
}

impl TurnQueue {
    /// Whether no lane has work.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The number of lanes that have work.
    pub(crate) fn len(&self) -> usize {
        self.listed.len()
    }

    /// The lane whose turn it is.
    pub(crate) fn next(&mut self) -> Option<SessionId> {
        self.listed.pop_front()
    }

    /// A lane has work.
    #[inline]
    pub(crate) fn list(&mut self, session: SessionId, turn: &mut LaneTurn) {
        if !turn.listed {
            turn.listed = true;
            self.listed.push_back(session);
        }
    }

    /// Whether lanes wait for resources that other lanes give back.
    #[inline]
    pub(crate) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// A lane has found a shared resource exhausted.
    pub(crate) fn stall(&mut self, session: SessionId, turn: &mut LaneTurn) {
        if !std::mem::replace(&mut turn.stalled, true) {
            self.stalled.push(session);
        }
    }

    /// The stalled lanes, which may go on; the first to stall is the first.
    pub(crate) fn take_stalled(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.stalled)
    }

    /// A lane that was stalled is next.
    pub(crate) fn list_first(&mut self, session: SessionId, turn: &mut LaneTurn) {
        turn.stalled = false;
        if std::mem::replace(&mut turn.listed, true) {
            self.listed.retain(|listed| *listed != session);
        }
        self.listed.push_front(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_lanes_come_first_in_their_order() {
        let mut turns = TurnQueue::default();
        let mut lanes: Vec<LaneTurn> = (0..4).map(|_| LaneTurn::default()).collect();
        let at = |n: usize| SessionId(n as u32);
        for n in [0, 3, 1, 3] {
            turns.list(at(n), &mut lanes[n]);
        }
        assert_eq!(turns.len(), 3, "a lane is listed once");
        for n in [1, 2, 1] {
            turns.stall(at(n), &mut lanes[n]);
        }
        assert!(turns.has_stalled());
        for session in turns.take_stalled().into_iter().rev() {
            turns.list_first(session, &mut lanes[session.0 as usize]);
        }
        assert!(!turns.has_stalled());
        let order: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(order, [at(1), at(2), at(0), at(3)]);
        assert!(turns.is_empty());
        lanes[0].begins();
        turns.list(at(0), &mut lanes[0]);
        assert_eq!(turns.next(), Some(at(0)));
    }
}
