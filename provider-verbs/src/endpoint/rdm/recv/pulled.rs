//! The receiver's side of messages that wait at their senders: this side keeps their envelopes, and
//! pulls each message that a receive has matched.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx, deliver};
use ferrofabric_contracts::types::MsgKind;
use ferrofabric_protocol::credit::CreditError;
use ferrofabric_protocol::lanes::protocol_broken;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{DataEnvelope, RendezvousRequest};

use super::super::RdmTransport;
use super::token;
use crate::session::{
    ControlMessage, PulledReceive, RdmUnexpectedMessage, TransferMethod, UnexpectedBody,
};

impl RdmTransport {
    /// The envelope of a message that waits at its sender has arrived.
    #[cold]
    pub(super) fn on_envelope<O: Owner>(
        &mut self,
        lane: SessionId,
        (peer, session): (u32, u64),
        envelope: DataEnvelope,
        (op, total_bytes): (u64, u64),
        owner: &mut O,
    ) {
        let (kind, arrived) = self.count_arrival(peer, envelope, total_bytes);
        if let Some(matched) = owner.srx().arrive(kind, &arrived) {
            return self.pull((peer, session), (kind, arrived, matched), op, owner);
        }
        let state = self.lanes.session(lane);
        if let Some(Err(error)) = state.map(|state| state.pulls.count()) {
            return self.break_protocol(lane, &error);
        }
        self.poster.counters.received.unexpected += 1;
        let value = self.keep_unexpected(RdmUnexpectedMessage {
            peer,
            session,
            body: UnexpectedBody::Envelope { op },
        });
        owner.srx().queue(kind, arrived, token(value));
    }

    /// A counted envelope has a receive, or is discarded.
    pub(super) fn envelope_is_met(&mut self, (peer, session): (u32, u64)) {
        if let Some((state, _)) = self.session_named(peer, session) {
            state.pulls.uncount();
        }
    }

    /// Pulls a message into its matching receive.
    pub(super) fn pull<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        (kind, arrived, matched): (MsgKind, Arrived, Matched),
        op: u64,
        owner: &mut O,
    ) {
        let Some((state, lane)) = self.session_named(peer, name) else {
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::ECONNRESET,
                0,
                "the sender is gone and its message had not arrived",
            );
        };
        if arrived.len == 0 || matched.buf.len == 0 {
            return self.finish_unmoved((peer, name), (kind, arrived, matched), op, owner);
        }
        let receive = PulledReceive {
            kind,
            arrived,
            matched,
        };
        match state.pulls.pull(receive) {
            Ok(receive) => {
                let pull = ControlMessage::Pull { op, receive };
                state.control_messages.push_back(pull);
                if let Some(lane) = lane {
                    self.list(lane);
                    self.run_control_messages(lane);
                }
            }
            Err(PulledReceive {
                kind,
                arrived,
                matched,
            }) => {
                let why = "its sender has sent too many envelopes";
                owner.fail_recv(kind, &matched, &arrived, Errno::EPROTO, 0, why);
                if let Some(lane) = lane {
                    self.break_protocol(lane, &CreditError::OverEnveloped);
                }
            }
        }
    }

    /// The receive that an answer names, if a message of `len` bytes was pulled into it; else the
    /// lane breaks.
    fn pulled_receive(
        &mut self,
        session: SessionId,
        receive: u64,
        len: Option<u64>,
    ) -> Option<PulledReceive> {
        let pulls = &mut self.lanes.session(session)?.pulls;
        let is_it = |of: &&PulledReceive| len.is_none_or(|len| of.arrived.len == len);
        let pulled = match pulls.get(receive).filter(is_it) {
            Some(_) => pulls.on_answer(receive),
            None => None,
        };
        if pulled.is_none() {
            let end = protocol_broken("the peer sent a message that was not pulled");
            self.break_lane(session, end);
        }
        pulled
    }

    /// A pulled message has arrived.
    #[cold]
    pub(super) fn on_pulled<O: Owner>(
        &mut self,
        session: SessionId,
        peer: u32,
        (receive, payload): (u64, &[u8]),
        owner: &mut O,
    ) {
        let len = Some(payload.len() as u64);
        let Some(pulled) = self.pulled_receive(session, receive, len) else {
            return;
        };
        let PulledReceive {
            kind,
            arrived,
            matched,
        } = pulled;
        // SAFETY: the buffer of a receive that is under way.
        unsafe { deliver(owner, &matched, 0, payload.as_ptr(), payload.len()) };
        owner.complete_recv(kind, &matched, &arrived, || self.peers.name(peer));
        if kind.is_answered() {
            self.send_refusals(peer, owner);
        }
    }

    /// A pulled message comes by rendezvous.
    #[cold]
    pub(super) fn on_pulled_rts<O: Owner>(
        &mut self,
        session: SessionId,
        from: (u32, u64),
        (receive, request): (u64, &RendezvousRequest<'_>),
        owner: &mut O,
    ) {
        let len = Some(request.total_bytes);
        let Some(pulled) = self.pulled_receive(session, receive, len) else {
            return;
        };
        let PulledReceive {
            kind,
            arrived,
            matched,
        } = pulled;
        let method = TransferMethod::of(request);
        self.start_transfer(from, (kind, arrived, matched), request.op, method, owner);
    }

    /// A pulled message does not come, for its sender cannot send it.
    #[cold]
    pub(super) fn on_unsent<O: Owner>(&mut self, session: SessionId, receive: u64, owner: &mut O) {
        let Some(pulled) = self.pulled_receive(session, receive, None) else {
            return;
        };
        owner.fail_recv(
            pulled.kind,
            &pulled.matched,
            &pulled.arrived,
            Errno::EREMOTEIO,
            0,
            "the sender could not send the message",
        );
    }
}
