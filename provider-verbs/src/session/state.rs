//! The session with a peer: the state that both ends share whatever lane carries it. It outlives
//! its lanes.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::peer::{Arrived, Matched, Owner, SendDone};
use ferrofabric_contracts::types::MsgKind;
use ferrofabric_protocol::credit::{CreditError, open_requests};
use ferrofabric_protocol::lanes::SessionFacts;
use ferrofabric_protocol::parts::Assembly;
use ferrofabric_protocol::rendezvous::{SendTable, TransferLimits, Transfers};
use ferrofabric_protocol::session::{Session, Start};
use ferrofabric_protocol::table::{Key, Table};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{FinStatus, Grant, Segment, readdress};

use super::packet_pool::PacketPool;
use super::registered::Registered;
use crate::registration::Region;

/// Large messages that are being moved at a time, one way.
const MAX_MOVING: usize = 1 << 16;

/// A session with a peer.
pub(crate) struct SessionState {
    /// Its name, sequence numbers and credit.
    pub(crate) numbers: Session,
    held_requests: HeldRequests,
    /// Our messages that were announced to the peer by an RTS and are not over.
    pub(crate) sends: SendTable<RendezvousSend>,
    /// Our messages that we are writing.
    pub(crate) writes: Transfers<Writing>,
    /// The peer's messages that we are reading.
    pub(crate) reads: Transfers<Receiving>,
    /// The peer's messages that it is writing.
    pub(crate) receives: Table<Receiving>,
    /// The peer's message that comes in parts.
    pub(crate) incoming: Incoming,
    /// Control messages that wait for room on the lane.
    pub(crate) notices: VecDeque<Notice>,
    /// Packets that were under way on a lane that broke, and may have to be sent again; oldest
    /// first.
    pub(crate) replay: VecDeque<Kept>,
}

/// The peer's messages that it told us of and no receive has met.
struct HeldRequests {
    count: usize,
    /// The upper bound of that number.
    limit: usize,
}

/// A packet that notifies a peer of the state of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// We are done with a message of the peer's.
    Fin(u64, FinStatus),
    /// Where the peer may write its message.
    Cts(Grant),
    /// We have written a message.
    Done(Key),
}

/// The sender's side of a rendezvous: what is to be kept until the peer is done.
pub(crate) struct RendezvousSend {
    pub(crate) done: SendDone,
    /// Where the message lies, with local keys, if we shall write it.
    pub(crate) local: Option<Vec<Segment>>,
    pub(crate) total_bytes: u64,
    /// Where it lies, if the application has not registered that.
    pub(crate) regions: Vec<Arc<Region>>,
    /// A copy of an inject.
    pub(crate) _copy: Option<Box<[u8]>>,
}

/// A message that we write.
pub(crate) struct Writing {
    pub(crate) send: RendezvousSend,
    pub(crate) grant: Grant,
    /// The Done is on its way, or in line.
    pub(crate) told: bool,
}

/// The receiver's side of a rendezvous.
pub(crate) struct Receiving {
    /// The sender's operation.
    pub(crate) op: u64,
    pub(crate) kind: MsgKind,
    pub(crate) arrived: Arrived,
    pub(crate) matched: Matched,
    /// Where it goes, in order: each buffer of a list that we read into, else one piece of memory.
    pub(crate) places: Vec<Registered>,
}

impl Receiving {
    /// Where a chunk goes that begins at `offset_bytes` of the message, and its local key.
    pub(crate) fn place(&self, offset_bytes: u64) -> Option<(u64, u32)> {
        let mut offset = offset_bytes;
        for Registered { buf, region } in &self.places {
            let len = buf.len as u64;
            if offset < len {
                return Some((buf.addr as u64 + offset, region.lkey()));
            }
            offset -= len;
        }
        None
    }
}

/// A message that comes in parts: how much of it is here, and where the rest goes.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) assembly: Assembly,
    pub(crate) target: Target,
}

/// Where the parts of a message go.
#[derive(Clone, Copy, Default)]
pub(crate) enum Target {
    /// There is no such message, or nobody wants it any more.
    #[default]
    Nowhere,
    /// Into the receive that it has met.
    Receive(MsgKind, Arrived, Matched),
    /// To a message that waits for a receive, by its token.
    Held(u64),
}

/// A numbered packet that is not known to have arrived.
pub(crate) struct Kept {
    pub(crate) sequence: u32,
    pub(crate) kind: KeptKind,
    /// The packet, or its start. On lanes of the UD kind the memory comes from a
    /// [`super::PacketPool`].
    pub(crate) bytes: Vec<u8>,
    /// The rest of it, in the application's memory.
    pub(crate) rest: Option<Registered>,
}

/// The operation that is over once a packet has arrived.
pub(crate) enum KeptKind {
    /// An eager message.
    Message(SendDone),
    /// A message that we wrote.
    Done(Key),
    /// Nothing.
    Notice,
}

impl SessionState {
    pub(crate) fn new(
        numbers: Session,
        start: &Start,
        reads: TransferLimits,
        writes: TransferLimits,
    ) -> Self {
        Self {
            numbers,
            held_requests: HeldRequests {
                count: 0,
                limit: open_requests(start.we_grant_units),
            },
            sends: SendTable::new(open_requests(start.peer_grants_units)),
            writes: Transfers::new(TransferLimits {
                messages: MAX_MOVING,
                ..writes
            }),
            reads: Transfers::new(reads),
            receives: Table::new(MAX_MOVING),
            incoming: Incoming::default(),
            notices: VecDeque::new(),
            replay: VecDeque::new(),
        }
    }

    /// It has become the session that begins with another lane ([`Outcome::BeginsAgain`]).
    ///
    /// [`Outcome::BeginsAgain`]: ferrofabric_protocol::session::Outcome::BeginsAgain
    pub(crate) fn begins_again(&mut self, start: &Start) {
        self.sends
            .change_limit(open_requests(start.peer_grants_units));
        self.held_requests.limit = open_requests(start.we_grant_units);
        self.readdress(start.remote);
    }

    /// Packets to be sent again go to the session of another name at the peer.
    pub(crate) fn readdress(&mut self, remote: SessionId) {
        for kept in &mut self.replay {
            readdress(&mut kept.bytes, remote);
        }
    }

    /// Counts a request that no receive meets.
    ///
    /// # Errors
    ///
    /// [`CreditError::OverRequested`].
    pub(crate) fn hold_request(&mut self) -> Result<(), CreditError> {
        let HeldRequests { count, limit } = &mut self.held_requests;
        if *count >= *limit {
            return Err(CreditError::OverRequested);
        }
        *count += 1;
        Ok(())
    }

    /// A request that was held is met, or dropped.
    pub(crate) fn release_request(&mut self) {
        self.held_requests.count = self.held_requests.count.saturating_sub(1);
    }

    /// A lane broke: less is moved at a time.
    pub(crate) fn move_less(&mut self) {
        self.writes.shrink();
        self.reads.shrink();
    }

    /// How it stands, as the life of its lanes asks.
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

    /// The oldest of its packets that were unsure have arrived.
    pub(crate) fn arrived_after_all<O: Owner>(
        &mut self,
        count: u32,
        packets: &mut PacketPool,
        owner: &mut O,
    ) {
        let count = (count as usize).min(self.replay.len());
        for kept in self.replay.drain(..count) {
            match kept.kind {
                KeptKind::Message(done) => owner.complete_send(&done),
                KeptKind::Done(transfer) => {
                    if let Some(writing) = self.writes.remove(transfer) {
                        owner.complete_send(&writing.send.done);
                    }
                }
                KeptKind::Notice => {}
            }
            packets.give(kept.bytes);
        }
    }

    /// Whether messages of ours are not complete that later ones do not find in order before them:
    /// those that the peer takes when it likes.
    pub(crate) fn has_unfinished(&self) -> bool {
        !self.sends.is_empty() || !self.writes.is_empty()
    }

    /// Whether each packet of ours has arrived, and the peer has taken each message of ours.
    pub(crate) fn is_drained(&self) -> bool {
        self.numbers.unconfirmed() == 0
            && self.replay.is_empty()
            && self.notices.is_empty()
            && !self.has_unfinished()
    }

    /// Whether it can not go on over datagrams that hold packets of so many bytes: something is to
    /// be moved by reads or writes, or a packet is too long that was first sent over RC.
    pub(crate) fn outgrows(&self, packet_bytes: usize) -> bool {
        !self.reads.is_empty()
            || !self.writes.is_empty()
            || (self.replay.iter())
                .any(|kept| kept.rest.is_some() || kept.bytes.len() > packet_bytes)
    }

    /// Whether no packet has gone either way.
    pub(crate) fn is_unused(&self) -> bool {
        self.numbers.is_unused()
    }

    /// Whether it can rest: all that either side has said was taken, and nobody waits for more.
    pub(crate) fn is_settled(&self) -> bool {
        self.numbers.unconfirmed() == 0
            && self.replay.is_empty()
            && self.notices.is_empty()
            && self.held_requests.count == 0
            && self.sends.is_empty()
            && self.writes.is_empty()
            && self.reads.is_empty()
            && self.receives.is_empty()
            && self.incoming.assembly.is_whole()
    }

    /// Whether something is to be posted before anything new.
    pub(crate) fn catches_up(&self) -> bool {
        !self.replay.is_empty() || self.writes.has_lost()
    }
}
