//! The receiver's side of fragmentation.
//!
//! The first fragment has the envelope and the length of the message. So the receiver matches it at
//! once, and later fragments go straight into the matching receive. The fragments of an unexpected
//! message are joined in memory of the endpoint, at most as much as the credit that the message has
//! cost. The data moves when a receive comes, whether the message is complete or not.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx, deliver};
use ferrofabric_contracts::types::MsgKind;
use ferrofabric_protocol::fragmentation::PacketRole;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::DataPacket;

use super::super::RdmTransport;
use super::token;
use crate::session::{FragmentTarget, IncomingFragments, RdmUnexpectedMessage, UnexpectedBody};

impl RdmTransport {
    /// Handles a fragment, the next packet of its session: the first, which has the message's
    /// envelope, or a later one.
    pub(in super::super) fn on_fragment<O: Owner>(
        &mut self,
        session: SessionId,
        (peer, name): (u32, u64),
        packet: &DataPacket<'_>,
        owner: &mut O,
    ) {
        let Some(state) = self.lanes.session(session) else {
            return;
        };
        let (offset, last) = match state.incoming.assembly.on_packet(packet) {
            Ok(PacketRole::Fragment { offset_bytes, last }) => (offset_bytes as usize, last),
            Ok(PacketRole::Other) => return,
            Err(why) => return self.break_protocol(session, &why),
        };
        let part = match *packet {
            DataPacket::EagerFirst {
                envelope,
                total_bytes,
                part,
            } => {
                if let Err(why) = state.numbers.receive_credit.take(total_bytes) {
                    return self.break_protocol(session, &why);
                }
                let (kind, arrived) = self.count_arrival(peer, envelope, u64::from(total_bytes));
                let target = match owner.srx().arrive(kind, &arrived) {
                    Some(matched) => FragmentTarget::Receive(kind, arrived, matched),
                    None => {
                        self.poster.counters.received.unexpected += 1;
                        let value = self.keep_unexpected(RdmUnexpectedMessage {
                            peer,
                            session: name,
                            body: UnexpectedBody::Arriving {
                                total_bytes: total_bytes as usize,
                                bytes: Vec::with_capacity(total_bytes as usize),
                            },
                        });
                        owner.srx().queue(kind, arrived, token(value));
                        FragmentTarget::Unexpected(value)
                    }
                };
                if let Some(incoming) = self.incoming(session) {
                    incoming.target = target;
                }
                part
            }
            DataPacket::EagerPart { part, .. } => part,
            _ => return,
        };
        let Some(incoming) = self.incoming(session) else {
            return;
        };
        match incoming.target {
            FragmentTarget::Nowhere => {}
            FragmentTarget::Receive(kind, arrived, matched) => {
                // SAFETY: a range of the buffer of a receive that is under way.
                unsafe { deliver(owner, &matched, offset, part.as_ptr(), part.len()) };
                if last {
                    incoming.target = FragmentTarget::Nowhere;
                    owner.complete_recv(kind, &matched, &arrived, || self.peers.name(peer));
                    if kind.is_answered() {
                        self.send_refusals(peer, owner);
                    }
                    self.return_credit((peer, name), arrived.len as usize);
                }
            }
            FragmentTarget::Unexpected(value) => {
                if last {
                    incoming.target = FragmentTarget::Nowhere;
                }
                self.unexpected.append(value, part, last);
            }
        }
    }

    fn incoming(&mut self, session: SessionId) -> Option<&mut IncomingFragments> {
        Some(&mut self.lanes.session(session)?.incoming)
    }

    /// A receive has matched a message of which some fragments are here: later ones go straight to
    /// the receive.
    pub(in super::super) fn redirect<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        have: &[u8],
        (kind, arrived, matched): (MsgKind, Arrived, Matched),
        owner: &mut O,
    ) {
        let Some((state, _)) = self.session_named(peer, name) else {
            self.return_credit((peer, name), arrived.len as usize);
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::ECONNRESET,
                0,
                "the sender is gone and its message had not arrived completely",
            );
        };
        // SAFETY: the buffer of a receive that is under way.
        unsafe { deliver(owner, &matched, 0, have.as_ptr(), have.len()) };
        state.incoming.target = FragmentTarget::Receive(kind, arrived, matched);
    }

    /// A message of which some fragments are here was discarded: later ones are dropped as they
    /// arrive.
    pub(in super::super) fn drop_rest(&mut self, (peer, name): (u32, u64)) {
        if let Some((state, _)) = self.session_named(peer, name) {
            state.incoming.target = FragmentTarget::Nowhere;
        }
    }
}
