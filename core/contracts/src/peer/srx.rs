//! The owner's side of a shared receive context, for peers: matching of messages against posted
//! receives.
//!
//! A receive that matched belongs to the peer, which reports its completion once; a message without
//! a receive stays unread until the owner starts or discards it.

use crate::flags::Flags;
use crate::types::{FiAddr, IoBuf, MrDesc, MsgKind, SendOp};

/// A message that a transport announces to the owner of the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The sender; [`FiAddr::NOTAVAIL`] when it is not in the address vector: then no directed
    /// receive matches. That of a request ([`MsgKind::is_request`]) is a number of the transport's
    /// own ([`requester`](crate::requester)), to which [`Transport::reply`] sends the reply.
    ///
    /// [`Transport::reply`]: super::Transport::reply
    pub src: FiAddr,
    /// Tag; 0 for untagged messages.
    pub tag: u64,
    /// Length of the whole message in bytes.
    pub len: u64,
    /// CQ data, where `flags` says so.
    pub data: u64,
    /// `REMOTE_CQ_DATA` or nothing.
    pub flags: Flags,
}

/// A receive that a message has matched, taken out of the queue by value: it is the transport's
/// now, which reports its completion once. (In fi_peer(3), entries stay with the owner until
/// `free_entry`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    /// Where the message goes. For a list of buffers it has no address, and its length is the part
    /// of the whole list that the message fills: see [`PeerSrx::segments`].
    pub buf: IoBuf,
    /// Memory descriptor of the buffer.
    pub desc: MrDesc,
    /// The receive's context.
    pub context: u64,
    /// The receive's flags (`COMPLETION`, `MULTI_RECV`).
    pub flags: Flags,
    /// The multi-receive or list of which it is a piece.
    pub piece: Piece,
}

impl Matched {
    /// The answer to a part of a one-sided operation that may not come in: no bytes of it are
    /// wanted, and its sender gets an error.
    pub const REFUSED: Self = Self {
        buf: IoBuf::EMPTY,
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::DISCARD,
        piece: Piece::NONE,
    };

    /// Whether it is [`REFUSED`](Self::REFUSED). No receive that is posted has these flags.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.flags.contains(Flags::DISCARD)
    }
}

/// The whole that a matched buffer is a piece of: a multi-receive, a list of buffers. Only the
/// owner reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Piece(pub u32);

impl Piece {
    /// Nothing: the receive takes one message into one buffer.
    pub const NONE: Self = Self(0);
    /// The bit that distinguishes lists of buffers from multi-receives.
    const LIST: u32 = 1 << 31;

    /// Of the list with a number.
    pub fn of_list(number: usize) -> Self {
        Self(Self::LIST | number as u32)
    }

    /// Whether it is of a list of buffers ([`PeerSrx::segments`]).
    #[inline]
    pub fn is_of_list(self) -> bool {
        self.0 & Self::LIST != 0
    }

    /// The number of the list that it is of.
    pub fn list(self) -> Option<usize> {
        (self.0 & Self::LIST != 0).then_some((self.0 & !Self::LIST) as usize)
    }
}

/// The transport's own data for starting an unexpected message later; the owner keeps it unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The number of the endpoint's transport that it belongs to.
    pub transport: u32,
    /// The transport's own.
    pub value: u64,
}

/// An unexpected message and the receive that it now matches: the owner hands it to
/// [`Transport::start`] once the call that matched them is over.
///
/// [`Transport::start`]: super::Transport::start
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Tagged or not.
    pub kind: MsgKind,
    /// Of the transport that queued it.
    pub token: Token,
    /// The message.
    pub arrived: Arrived,
    /// The receive.
    pub matched: Matched,
}

/// The receive queue that transports share (`fi_ops_srx_owner`).
pub trait PeerSrx {
    /// A message has arrived: takes the oldest receive that matches (`get_msg`, `get_tag`). `None`:
    /// the transport keeps the message and calls [`queue`](Self::queue) at once.
    ///
    /// A part of a one-sided operation ([`MsgKind::Remote`]) never waits: it gets the memory that
    /// its fields name, or [`Matched::REFUSED`].
    fn arrive(&mut self, kind: MsgKind, arrived: &Arrived) -> Option<Matched>;
    /// As `arrive`, of a message that came with an authorization key of the endpoint's. Receives
    /// that name the key match it, too: they have `_key` for a source. Queues without keys need
    /// nothing of it.
    fn arrive_with_key(
        &mut self,
        kind: MsgKind,
        arrived: &Arrived,
        _key: FiAddr,
    ) -> Option<Matched> {
        self.arrive(kind, arrived)
    }
    /// The buffers of a list, in order; of anything else, none.
    fn segments(&mut self, _piece: Piece) -> &[IoBuf] {
        &[]
    }
    /// The same receive with one piece of memory of the owner's in place of its list, which is
    /// filled from there when the piece is complete: for a sender that writes to it. `None`:
    /// there is no memory.
    fn in_one_piece(&mut self, matched: &Matched) -> Option<Matched> {
        Some(*matched)
    }
    /// A piece is complete (`free_entry`). Returns what its completion is to have besides:
    /// `MULTI_RECV` when it was the last of a multi-receive that was in use, so that the whole
    /// buffer is the application's again; `COMPLETION` when the receive wants one though its flags
    /// did not say so.
    fn complete_piece(&mut self, kind: MsgKind, piece: Piece) -> Flags;
    /// Leaves a message with the queue until a receive matches it (`queue_msg`, `queue_tag`).
    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token);
    /// The sender of queued messages with a token for which `of` says so is now known as `src`
    /// (`foreach_unspec_addr`); receives posted for just that sender may match them now, and are
    /// started in turn.
    fn resolve(&mut self, src: FiAddr, of: impl FnMut(Token) -> bool);
    /// `src` is no longer in the address vector: its queued messages are of an unknown sender from
    /// now on.
    fn forget_source(&mut self, src: FiAddr);
    /// Takes out the refusals of messages that came from one peer: requests beyond the number that
    /// a peer may have under way, and queries of a source that is not in the address vector. The
    /// transport calls this when a message that may be refused ([`MsgKind::is_answered`]) has come
    /// whole, and sends them to the peer that it came from. They have no bytes and no destination.
    fn take_refusals(&mut self) -> Vec<SendOp> {
        Vec::new()
    }
    /// The tag of the reply to the next read, if that goes as a message. `None`: it can not go now.
    fn next_request(&mut self) -> Option<u64> {
        None
    }
    /// The peer is gone: receives that only it could match are reported as failed with `errno`, its
    /// queued messages (those of unknown senders, with [`FiAddr::NOTAVAIL`]) for which `lost` says
    /// so can not be had any more and are dropped.
    fn fail_source(
        &mut self,
        src: FiAddr,
        errno: crate::error::Errno,
        why: &'static str,
        lost: impl FnMut(Token) -> bool,
    );
}
