//! The end of a session and of all its operations.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Owner, PeerSrx};
use ferrofabric_contracts::types::SendOp;
use ferrofabric_protocol::lanes::{AfterLane, LaneEnd};

use super::{RdmTransport, TRANSPORT};
use crate::session::{
    FragmentTarget, Grants, PeerTable, RdmPeer, RdmUnexpectedMessages, ResendKind, SessionState,
    UnexpectedBody,
};

/// The end of a session that has a part of an operation on a region that closes.
const REGION_CLOSED: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    why: "a region closed with a part of an operation under way",
    status: 0,
    then: AfterLane::Restart,
};

impl RdmTransport {
    /// As [`Transport::end_parts`](ferrofabric_contracts::peer::Transport::end_parts): a device may
    /// be reading or writing the memory, so the sessions that have such parts end.
    #[cold]
    pub(super) fn end_sessions_with<O: Owner>(&mut self, parts: &[u64], owner: &mut O) {
        let lanes = self.lanes.iter().filter(|lane| lane.has_part(parts));
        let sessions: Vec<_> = lanes.map(|lane| lane.head().key.session()).collect();
        for session in sessions {
            self.apply_without_owner(|life, _, now| {
                life.failed_for_good(session, REGION_CLOSED, now)
            });
        }
        let has_parked =
            |peer: &RdmPeer| (peer.parked.as_deref()).is_some_and(|state| state.has_part(parts));
        let is_reply = |op: &SendOp| op.kind.is_reply() && parts.contains(&op.context);
        let waits = |peer: &RdmPeer| peer.pending.iter().any(|one| is_reply(&one.op));
        let concerned = |(_, peer): &(u32, &RdmPeer)| has_parked(peer) || waits(peer);
        let peers = self.peers.indexed().filter(concerned);
        let peers: Vec<_> = peers
            .map(|(index, peer)| (index, has_parked(peer)))
            .collect();
        for (peer, is_parked) in peers {
            let LaneEnd { errno, why, .. } = REGION_CLOSED;
            self.fail_pending(peer, is_reply, errno, why, owner);
            if is_parked {
                self.apply(owner, |life, _, now| {
                    life.give_up_waiting(peer, REGION_CLOSED, now)
                });
            }
        }
    }

    /// A session is over, parked or not: ends its operations.
    pub(super) fn end_session<O: Owner>(
        &mut self,
        peer: u32,
        mut state: SessionState,
        (end, rested): (LaneEnd, bool),
        owner: &mut O,
    ) {
        let LaneEnd {
            errno,
            why,
            status,
            then,
        } = end;
        let credit = &state.numbers.receive_credit;
        self.grants.end(credit.quota_units(), credit.held_units());
        if let AfterLane::Closed {
            expected: Some(expected),
        } = then
        {
            if let Ok(count) = state.numbers.confirm(expected) {
                state.confirm_arrived(count, &mut self.ud.packets, owner);
            }
        }
        for packet in state.resend_queue.drain(..) {
            if let ResendKind::Message(done) = packet.kind {
                owner.fail_send(&done, errno, status, why);
            }
        }
        let sends = state.sends.drain();
        for send in sends.chain(state.writes.drain().map(|writing| writing.send)) {
            // The peer may have keys that it must not use any more.
            (send.regions.iter()).for_each(|region| self.poster.registrations.forget(region));
            owner.fail_send(&send.done, errno, status, why);
        }
        for pending in state.envelopes.drain() {
            owner.fail_send(&pending.done(), errno, status, why);
        }
        for pulled in state.pulls.drain() {
            owner.fail_recv(pulled.kind, &pulled.matched, &pulled.arrived, errno, 0, why);
        }
        let receives = state.receives.drain().into_iter().map(|(_, r)| r);
        for r in state.reads.drain().chain(receives) {
            let regions = r.destinations.iter().map(|place| &place.region);
            regions.for_each(|region| self.poster.registrations.forget(region));
            owner.fail_recv(r.kind, &r.matched, &r.arrived, errno, 0, why);
        }
        if let FragmentTarget::Receive(kind, arrived, matched) = state.incoming.target {
            self.grants.release_message(arrived.len as usize);
            owner.fail_recv(kind, &matched, &arrived, errno, 0, why);
        }
        let unused = state.is_unused();
        match then {
            // Nothing was under way, and nothing is lost: the peer does not need the session any
            // more.
            AfterLane::Restart if unused || rested => {}
            AfterLane::Restart => {
                // The reads and atomic operations that wait for a reply fail with the receives: no
                // request of them is sent later, and no reply to those of the peer.
                let ends = |op: &SendOp| op.kind.is_request() || op.kind.is_reply();
                self.fail_pending(peer, ends, errno, why, owner);
                self.fail_receives(peer, Some(state.numbers.name()), errno, why, owner)
            }
            _ => {
                self.fail_pending(peer, |_| true, errno, why, owner);
                self.fail_receives(peer, Some(state.numbers.name()), errno, why, owner);
                owner.peer_gone(self.peers.at(peer).addr);
            }
        }
        self.publish_grant();
    }

    /// Fails the sends that wait for a peer.
    pub(super) fn fail_pending<O: Owner>(
        &mut self,
        peer: u32,
        fails: impl Fn(&SendOp) -> bool,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let line = &mut self.peers.at(peer).pending;
        for pending in line.take(|pending| fails(&pending.op)) {
            owner.fail_send(&pending.done(), errno, 0, why);
        }
    }

    /// Fails the receives that only this peer could have matched, and drops the messages that
    /// cannot be delivered any more.
    pub(super) fn fail_receives<O: Owner>(
        &mut self,
        peer: u32,
        session: Option<u64>,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let addr = self.peers.at(peer).addr;
        let (unexpected, peers, grants) = (&mut self.unexpected, &mut self.peers, &mut self.grants);
        owner.srx().fail_source(addr, errno, why, |token| {
            token.transport == TRANSPORT
                && lost(
                    (&mut *unexpected, &mut *peers, &mut *grants),
                    token.value,
                    session,
                )
        });
    }
}

/// Whether an unexpected message cannot be delivered any more, because it is a request to send or an
/// envelope of this session, or incomplete; then it is dropped.
fn lost(
    (unexpected, peers, grants): (&mut RdmUnexpectedMessages, &mut PeerTable, &mut Grants),
    token: u64,
    session: Option<u64>,
) -> bool {
    let lost = unexpected.message(token).is_some_and(|message| {
        !matches!(message.body, UnexpectedBody::Eager(_)) && Some(message.session) == session
    });
    if lost {
        if let Some(message) = unexpected.take(token) {
            peers.release_message(message.peer);
            if let UnexpectedBody::Arriving { total_bytes, .. } = message.body {
                grants.release_message(total_bytes);
            }
        }
    }
    lost
}
