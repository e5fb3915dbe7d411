//! The session with a peer: the state that both ends share whatever lane carries it. It outlives
//! its lanes.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::peer::{Arrived, Matched, Owner, SendDone};
use ferrofabric_contracts::types::MsgKind;
use ferrofabric_protocol::credit::{CreditError, open_requests};
use ferrofabric_protocol::envelopes::{PulledMessages, WaitingKind, WaitingMessages};
use ferrofabric_protocol::fragmentation::Assembly;
use ferrofabric_protocol::lanes::SessionFacts;
use ferrofabric_protocol::rendezvous::{SendTable, TransferLimits, Transfers};
use ferrofabric_protocol::session::{Session, SessionStart};
use ferrofabric_protocol::table::{Key, KeyedTable};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{FinStatus, Grant, MemorySegment, readdress};

use super::packet_pool::PacketPool;
use super::pending::Pending;
use super::registered::Registered;
use crate::registration::MemoryRegion;

/// Rendezvous messages that are moved at a time, in one direction.
const MAX_MOVING: usize = 1 << 16;

/// A session with a peer.
pub(crate) struct SessionState {
    /// Its name, sequence numbers and credit.
    pub(crate) numbers: Session,
    unmatched: UnmatchedRequests,
    /// Messages of this side that were announced to the peer by an RTS and are not over.
    pub(crate) sends: SendTable<RendezvousSend>,
    /// Messages of this side that wait here: the peer has their envelopes.
    pub(crate) envelopes: WaitingMessages<Pending>,
    /// Receives of this side whose messages wait at the peer.
    pub(crate) pulls: PulledMessages<PulledReceive>,
    /// This side's messages that this side writes.
    pub(crate) writes: Transfers<OutgoingTransfer>,
    /// The peer's messages that this side reads.
    pub(crate) reads: Transfers<IncomingTransfer>,
    /// The peer's messages that it is writing.
    pub(crate) receives: KeyedTable<IncomingTransfer>,
    /// The peer's message whose fragments are arriving.
    pub(crate) incoming: IncomingFragments,
    /// Control messages that wait for room on the lane.
    pub(crate) control_messages: VecDeque<ControlMessage>,
    /// Packets that may have to be sent again, oldest first: on a lane of datagrams all packets
    /// that are unconfirmed, else those that were under way on a lane that broke.
    pub(crate) resend_queue: VecDeque<ResendPacket>,
}

/// Requests to send of the peer that have no matching receive yet.
struct UnmatchedRequests {
    count: usize,
    /// The upper bound of that number.
    limit: usize,
}

/// A packet that notifies a peer of the state of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlMessage {
    /// This side has finished a message of the peer.
    Fin(u64, FinStatus),
    /// The buffer to which the peer may write its message.
    Cts(Grant),
    /// This side has written a message.
    Done(Key),
    /// A receive has matched the envelope of a message that waits at the peer.
    Pull {
        /// The peer's operation.
        op: u64,
        /// The receive, in the session's [`pulls`](SessionState::pulls).
        receive: u64,
    },
    /// The peer has pulled a message that cannot be sent, into this receive.
    Unsent(u64),
}

/// The sender's side of a rendezvous: memory that is kept until the peer has finished.
pub(crate) struct RendezvousSend {
    pub(crate) done: SendDone,
    /// The pieces of the message, with local keys, if this side will write it.
    pub(crate) local: Option<Vec<MemorySegment>>,
    pub(crate) total_bytes: u64,
    /// Their regions, if the application has not registered the memory.
    pub(crate) regions: Vec<Arc<MemoryRegion>>,
    /// The copy of an injected message.
    pub(crate) _copy: Option<Box<[u8]>>,
}

/// A message that this side writes.
pub(crate) struct OutgoingTransfer {
    pub(crate) send: RendezvousSend,
    pub(crate) grant: Grant,
    /// The Done is under way, or in line.
    pub(crate) done_queued: bool,
}

/// The receiver's side of a rendezvous.
pub(crate) struct IncomingTransfer {
    /// The ID of the sender's operation.
    pub(crate) op: u64,
    pub(crate) kind: MsgKind,
    pub(crate) arrived: Arrived,
    pub(crate) matched: Matched,
    /// The destinations in order: each buffer of a list if this side reads, else one piece of
    /// memory.
    pub(crate) destinations: Vec<Registered>,
}

impl IncomingTransfer {
    /// The destination of a chunk that begins at `offset_bytes` of the message, and its local key.
    pub(crate) fn place(&self, offset_bytes: u64) -> Option<(u64, u32)> {
        let mut offset = offset_bytes;
        for Registered { buf, region } in &self.destinations {
            let len = buf.len as u64;
            if offset < len {
                return Some((buf.addr as u64 + offset, region.lkey()));
            }
            offset -= len;
        }
        None
    }
}

/// A receive whose message waits at the peer.
#[derive(Clone, Copy)]
pub(crate) struct PulledReceive {
    pub(crate) kind: MsgKind,
    pub(crate) arrived: Arrived,
    pub(crate) matched: Matched,
}

/// A message whose fragments are arriving: the bytes that are here, and the destination of the
/// rest.
#[derive(Default)]
pub(crate) struct IncomingFragments {
    pub(crate) assembly: Assembly,
    pub(crate) target: FragmentTarget,
}

/// The destination of fragments.
#[derive(Clone, Copy, Default)]
pub(crate) enum FragmentTarget {
    /// There is no such message, or it was discarded.
    #[default]
    Nowhere,
    /// The matching receive.
    Receive(MsgKind, Arrived, Matched),
    /// An unexpected message, by its token.
    Unexpected(u64),
}

/// A numbered packet whose arrival is not confirmed.
pub(crate) struct ResendPacket {
    pub(crate) sequence: u32,
    pub(crate) kind: ResendKind,
    /// The packet, or its start. On lanes of the UD kind the memory comes from a
    /// [`super::PacketPool`].
    pub(crate) bytes: Vec<u8>,
    /// Its rest, in the application's memory.
    pub(crate) rest: Option<Registered>,
}

/// Whether the application takes a message for sent although it does not know of its arrival.
pub(crate) fn is_injected(done: &SendDone) -> bool {
    done.kind.is_taken_for_sent(done.flags)
}

/// Whether this is a reply with one of these contexts.
pub(crate) fn is_reply_of(done: &SendDone, contexts: &[u64]) -> bool {
    done.kind.is_reply() && contexts.contains(&done.context)
}

/// The operation that is over once a packet has arrived.
pub(crate) enum ResendKind {
    /// An eager message.
    Message(SendDone),
    /// A message that this side wrote.
    Done(Key),
    /// No operation.
    Control,
}

impl SessionState {
    pub(crate) fn new(
        numbers: Session,
        start: &SessionStart,
        reads: TransferLimits,
        writes: TransferLimits,
        waiting_sends: usize,
    ) -> Self {
        Self {
            numbers,
            unmatched: UnmatchedRequests {
                count: 0,
                limit: open_requests(start.we_grant_units),
            },
            sends: SendTable::new(open_requests(start.peer_grants_units)),
            envelopes: WaitingMessages::new(waiting_sends, Pending::waiting_kind),
            pulls: PulledMessages::default(),
            writes: Transfers::new(TransferLimits {
                messages: MAX_MOVING,
                ..writes
            }),
            reads: Transfers::new(reads),
            receives: KeyedTable::new(MAX_MOVING),
            incoming: IncomingFragments::default(),
            control_messages: VecDeque::new(),
            resend_queue: VecDeque::new(),
        }
    }

    /// The session has become the one that begins with another lane ([`Outcome::BeginsAgain`]).
    ///
    /// [`Outcome::BeginsAgain`]: ferrofabric_protocol::session::ResumeOutcome::BeginsAgain
    pub(crate) fn begins_again(&mut self, start: &SessionStart) {
        self.sends
            .change_limit(open_requests(start.peer_grants_units));
        self.unmatched.limit = open_requests(start.we_grant_units);
        self.readdress(start.remote);
    }

    /// Packets to be sent again go to the session of another name at the peer.
    pub(crate) fn readdress(&mut self, remote: SessionId) {
        for kept in &mut self.resend_queue {
            readdress(&mut kept.bytes, remote);
        }
    }

    /// Counts a request to send without a matching receive.
    ///
    /// # Errors
    ///
    /// [`CreditError::OverRequested`].
    pub(crate) fn count_rts(&mut self) -> Result<(), CreditError> {
        let UnmatchedRequests { count, limit } = &mut self.unmatched;
        if *count >= *limit {
            return Err(CreditError::OverRequested);
        }
        *count += 1;
        Ok(())
    }

    /// A counted request to send was matched, or discarded.
    pub(crate) fn uncount_rts(&mut self) {
        self.unmatched.count = self.unmatched.count.saturating_sub(1);
    }

    /// A lane broke: fewer chunks are moved at a time.
    pub(crate) fn reduce_transfers(&mut self) {
        self.writes.shrink();
        self.reads.shrink();
    }

    /// The state of the session, for the life of its lanes.
    pub(crate) fn facts(&self) -> SessionFacts {
        SessionFacts {
            is_unused: self.is_unused(),
            is_settled: self.is_settled(),
            sent: self.numbers.sent(),
            expected: self.numbers.expected(),
            confirmed: self.numbers.oldest_unconfirmed(),
            moved: self.writes.moved() + self.reads.moved(),
        }
    }

    /// The oldest packets whose arrival was not confirmed have arrived.
    pub(crate) fn confirm_arrived<O: Owner>(
        &mut self,
        count: u32,
        packets: &mut PacketPool,
        owner: &mut O,
    ) {
        let count = (count as usize).min(self.resend_queue.len());
        for kept in self.resend_queue.drain(..count) {
            match kept.kind {
                ResendKind::Message(done) => owner.complete_send(&done),
                ResendKind::Done(transfer) => {
                    if let Some(writing) = self.writes.remove(transfer) {
                        owner.complete_send(&writing.send.done);
                    }
                }
                ResendKind::Control => {}
            }
            packets.give(kept.bytes);
        }
    }

    /// Whether this side has incomplete messages that later ones do not wait for: rendezvous
    /// messages, and messages that wait here, which the peer completes at a time of its own.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.sends.is_empty() || !self.writes.is_empty() || !self.envelopes.is_empty()
    }

    /// Whether each packet of this side has arrived, and the peer has received each message.
    pub(crate) fn is_drained(&self) -> bool {
        self.numbers.unconfirmed() == 0
            && self.resend_queue.is_empty()
            && self.control_messages.is_empty()
            && !self.has_unfinished()
    }

    /// Injected messages that are not at the peer, except those in the queue of an RC lane, and
    /// answers that are not posted.
    pub(crate) fn undelivered(&self) -> usize {
        let packets = self.resend_queue.iter().filter(|kept| match &kept.kind {
            ResendKind::Message(done) => is_injected(done),
            // The message of a Done is counted among the writes. A control message was posted, and a
            // peer that is not driven acknowledges nothing.
            ResendKind::Done(_) | ResendKind::Control => false,
        });
        let announced = self.sends.iter().filter(|send| is_injected(&send.done));
        let written = (self.writes.owners()).filter(|writing| is_injected(&writing.send.done));
        let announced = announced.count() + self.envelopes.count(WaitingKind::TakenForSent);
        packets.count() + announced + written.count() + self.control_messages.len()
    }

    /// Whether the session has one of these parts of one-sided operations, by the contexts of their
    /// receives and of the replies. Those in the queue of an RC lane are not looked at.
    pub(crate) fn has_part(&self, parts: &[u64]) -> bool {
        let is_write = |kind: MsgKind, matched: &Matched| {
            kind.is_write() && !matched.is_refused() && parts.contains(&matched.context)
        };
        let mut resent = self.resend_queue.iter();
        let sends = self.sends.iter();
        let mut sends = sends.chain(self.writes.owners().map(|writing| &writing.send));
        let receives = self.receives.iter().map(|(_, receive)| receive);
        let mut receives = receives.chain(self.reads.owners());
        let is_waiting_reply =
            |waits: &Pending| waits.op.kind.is_reply() && parts.contains(&waits.op.context);
        self.envelopes.iter().any(is_waiting_reply)
            || (self.pulls.iter()).any(|pulled| is_write(pulled.kind, &pulled.matched))
            || resent.any(
                |kept| matches!(&kept.kind, ResendKind::Message(done) if is_reply_of(done, parts)),
            )
            || sends.any(|send| is_reply_of(&send.done, parts))
            || receives.any(|receive| is_write(receive.kind, &receive.matched))
            || matches!(&self.incoming.target, FragmentTarget::Receive(kind, _, matched)
                if is_write(*kind, matched))
    }

    /// Whether the session cannot go on over datagrams with packets of `packet_bytes`: data has to
    /// be moved by reads or writes, or a packet that was first sent over RC is too long.
    pub(crate) fn outgrows(&self, packet_bytes: usize) -> bool {
        !self.reads.is_empty()
            || !self.writes.is_empty()
            || (self.resend_queue.iter())
                .any(|kept| kept.rest.is_some() || kept.bytes.len() > packet_bytes)
    }

    /// Whether no packet has gone either way.
    pub(crate) fn is_unused(&self) -> bool {
        self.numbers.is_unused()
    }

    /// Whether the session can be parked: both sides have received all messages, and no operation
    /// waits for more.
    pub(crate) fn is_settled(&self) -> bool {
        self.numbers.unconfirmed() == 0
            && self.resend_queue.is_empty()
            && self.control_messages.is_empty()
            && self.unmatched.count == 0
            && self.pulls.is_empty()
            && !self.has_unfinished()
            && self.reads.is_empty()
            && self.receives.is_empty()
            && self.incoming.assembly.is_complete()
    }

    /// Whether some packets have to be posted before anything new.
    pub(crate) fn catches_up(&self) -> bool {
        !self.resend_queue.is_empty() || self.writes.has_lost()
    }
}
