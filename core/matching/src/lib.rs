//! Matching of messages with receives: the owner's side of a shared receive context, for all
//! transports at once.
//!
//! A [`Matcher`] holds the posted receives and the unexpected messages of one endpoint, tagged or
//! untagged (one matcher each; an untagged receive is one with tag 0 and ignore mask `u64::MAX`).
//! It is a plain data structure. The caller holds the domain's lock, and starts, discards or
//! completes the matches that a call returns. Receives and messages go in and come out by value, so
//! no entry outlives a call.
//!
//! Rules (fi_tagged(3), fi_peer(3)): messages of one sender match in order of arrival; a message
//! takes the oldest posted receive that matches, whatever mix of masks and sources those have; a
//! receive takes the oldest message. A tag matches when `(receive ^ message) & !ignore == 0`; a
//! receive that names a source matches messages of that source only, never one whose sender is not
//! in the address vector.
//!
//! Every operation takes O(1) expected time at any depth. The module `index` documents the worst
//! case, `posted` and `unexpected` the case of very many different masks. Once the tables have
//! grown to the depth in use, no operation allocates. Tables never shrink.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "it manages memory")]
mod arena;
mod index;
mod posted;
mod unexpected;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use index::{NIL, Seed};
use posted::PostedQueue;
use unexpected::UnexpectedQueue;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Piece};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc};

/// Where a received message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveBuffers {
    /// One buffer.
    One(IoBuf),
    /// A list, filled in order. The caller that posts the receive allocates it.
    Many(Box<[IoBuf]>),
}

impl ReceiveBuffers {
    /// The list, whatever its length.
    #[inline]
    pub fn segments(&self) -> &[IoBuf] {
        match self {
            ReceiveBuffers::One(one) => std::slice::from_ref(one),
            ReceiveBuffers::Many(many) => many,
        }
    }

    /// Assigns, in the common case from registers.
    #[inline(always)]
    fn set(&mut self, buf: ReceiveBuffers) {
        match (&mut *self, buf) {
            (ReceiveBuffers::One(to), ReceiveBuffers::One(IoBuf { addr, len })) => {
                to.addr = addr;
                to.len = len;
            }
            (to, buf) => *to = buf,
        }
    }

    /// Moves it out of memory that will be used again.
    #[inline]
    fn take(&mut self) -> ReceiveBuffers {
        match self {
            ReceiveBuffers::One(one) => ReceiveBuffers::One(*one),
            ReceiveBuffers::Many(_) => std::mem::replace(self, ReceiveBuffers::One(IoBuf::EMPTY)),
        }
    }
}

/// A receive.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedReceive {
    /// The only sender to receive from; [`FiAddr::UNSPEC`] for any. Never
    /// [`FiAddr::NOTAVAIL`], which is the source of messages whose sender is unknown.
    pub src: FiAddr,
    /// Tag of the messages wanted.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
    /// Where the message goes.
    pub buf: ReceiveBuffers,
    /// Memory descriptor.
    pub desc: MrDesc,
    /// The application's context, by which it can be cancelled.
    pub context: u64,
    /// The operation's flags. With [`Flags::MULTI_RECV`] it is for [`Matcher::post_multi`].
    pub flags: Flags,
}

/// The part of a posted receive that one message takes.
// No two fields lie side by side here as they do in `PostedReceive`: a compiler that copies such a
// pair in one load waits for the two stores that have just made it.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedReceive {
    /// As posted.
    pub context: u64,
    /// The destination of the message: the whole posted buffer; or, of a multi-receive, the piece
    /// that the message fills, or the whole rest for the last message. The transport compares its
    /// length with the message's to detect truncation.
    pub buf: ReceiveBuffers,
    /// As posted.
    pub flags: Flags,
    /// As posted.
    pub desc: MrDesc,
    /// The multi-receive that this piece belongs to. The transport passes it to
    /// [`Matcher::complete_piece`] when the piece is filled.
    pub piece: Piece,
}

/// A receive that was taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithdrawnReceive {
    /// The receive; of a multi-receive what is left of it.
    pub posted: PostedReceive,
    /// A multi-receive of which pieces are out: the buffer is in use until
    /// [`Matcher::complete_piece`] answers one of these with [`MultiReceiveState::TakenBack`]. Else
    /// [`Piece::NONE`].
    pub busy: Piece,
}

/// The state of a multi-receive after a piece of it has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiReceiveState {
    /// Its buffer is in use still.
    InUse,
    /// Its buffer was used up, and nothing of it is in use any more.
    Released,
    /// It was taken back before, and nothing of it is in use any more.
    TakenBack,
}

/// An unexpected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unexpected<T> {
    /// The envelope that the transport delivered.
    pub arrived: Arrived,
    /// The transport's handle of the message, to start it or to discard it.
    pub token: T,
}

/// A receive and the unexpected message that it matches, for the caller to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<T> {
    /// The receive.
    pub matched: MatchedReceive,
    /// The message.
    pub message: Unexpected<T>,
}

/// Posted receives and unexpected messages. `T` is the handle by which a transport finds a message
/// again.
pub struct Matcher<T: Copy> {
    posted: PostedQueue,
    unexpected: UnexpectedQueue<T>,
}

impl<T: Copy> Matcher<T> {
    /// An empty matcher. A multi-receive buffer is done when fewer than `min_multi_recv` bytes (at
    /// least 1) are left.
    pub fn new(min_multi_recv: usize) -> Matcher<T> {
        let seed = Seed::random();
        Matcher {
            posted: PostedQueue::new(seed, min_multi_recv.max(1)),
            unexpected: UnexpectedQueue::new(seed),
        }
    }

    /// The limit of [`Matcher::new`].
    pub fn min_multi_recv(&self) -> usize {
        self.posted.min_multi_recv
    }

    /// Changes the limit of [`Matcher::new`] (`FI_OPT_MIN_MULTI_RECV`), for buffers already posted
    /// too.
    pub fn set_min_multi_recv(&mut self, bytes: usize) {
        self.posted.min_multi_recv = bytes.max(1);
    }

    /// A message has arrived: takes the oldest receive that matches. `None`: the caller keeps the
    /// message and calls [`Matcher::queue`] before anything else.
    #[inline]
    pub fn arrive(&mut self, arrived: &Arrived) -> Option<MatchedReceive> {
        self.posted.arrive(arrived)
    }

    /// As `arrive`, of a message that came with an authorization key: receives that have the source
    /// `key` match it, too.
    #[inline(never)]
    pub fn arrive_with_key(&mut self, arrived: &Arrived, key: FiAddr) -> Option<MatchedReceive> {
        self.posted.arrive_with_key(arrived, key)
    }

    /// Has receives that name an authorization key look for messages by it: `key_of` says which
    /// source a key has, by a token.
    pub fn set_key_of(&mut self, key_of: fn(&T) -> FiAddr) {
        self.unexpected.set_key_of(key_of);
    }

    /// Leaves a message for which `arrive` had no receive until one matches.
    #[inline]
    pub fn queue(&mut self, arrived: Arrived, token: T) {
        self.unexpected.push(arrived, token);
    }

    /// Posts a receive for one message. `Some`: a message was there already, the oldest that
    /// matches, and has taken it.
    ///
    /// [`Flags::MULTI_RECV`] is not looked at: the whole buffer goes to one message.
    #[inline(always)]
    pub fn post(&mut self, posted: PostedReceive) -> Option<Match<T>> {
        if self.unexpected.len() != 0 {
            return self.post_to_unexpected(posted);
        }
        self.posted.push(posted);
        None
    }

    #[inline(never)]
    fn post_to_unexpected(&mut self, posted: PostedReceive) -> Option<Match<T>> {
        let id = self.unexpected.find(posted.src, posted.tag, posted.ignore);
        if id == NIL {
            self.posted.push(posted);
            return None;
        }
        let message = self.unexpected.take(id);
        Some(Match {
            matched: MatchedReceive {
                buf: posted.buf,
                desc: posted.desc,
                context: posted.context,
                flags: posted.flags,
                piece: Piece::NONE,
            },
            message,
        })
    }

    /// Posts a receive that takes one message after another, each into the next piece of its
    /// buffer, until too little is left. Messages that are there already come out in `start`, which
    /// is appended to. A list of buffers (which fi_recvmsg(3) rules out) takes one message.
    pub fn post_multi(&mut self, mut posted: PostedReceive, start: &mut Vec<Match<T>>) {
        let piece = self.posted.open_multi();
        loop {
            let id = self.unexpected.find(posted.src, posted.tag, posted.ignore);
            if id == NIL {
                return self.posted.push_multi(posted, piece);
            }
            let message = self.unexpected.take(id);
            let mut matched = MatchedReceive {
                buf: posted.buf.take(),
                desc: posted.desc,
                context: posted.context,
                flags: posted.flags,
                piece,
            };
            let mut done = true;
            if let ReceiveBuffers::One(buf) = matched.buf {
                if let Some((part, left)) =
                    split_piece(buf, message.arrived.len, self.posted.min_multi_recv)
                {
                    matched.buf = ReceiveBuffers::One(part);
                    posted.buf = ReceiveBuffers::One(left);
                    done = false;
                }
            }
            self.posted.hand_out(piece, done);
            start.push(Match { matched, message });
            if done {
                return;
            }
        }
    }

    /// The oldest unexpected message that such a receive would take (`FI_PEEK`). It stays.
    pub fn peek(&mut self, src: FiAddr, tag: u64, ignore: u64) -> Option<Unexpected<T>> {
        let id = self.unexpected.find(src, tag, ignore);
        (id != NIL).then(|| self.unexpected.copy(id))
    }

    /// As `peek`, and sets the message apart: nothing but [`Matcher::take_claimed`] with this
    /// context receives it (`FI_PEEK | FI_CLAIM`). Of several with one context the first comes
    /// first.
    pub fn claim(
        &mut self,
        src: FiAddr,
        tag: u64,
        ignore: u64,
        context: u64,
    ) -> Option<Unexpected<T>> {
        let id = self.unexpected.find(src, tag, ignore);
        (id != NIL).then(|| {
            self.unexpected.claim(id, context);
            self.unexpected.copy(id)
        })
    }

    /// The message that was claimed with a context, the first of several. It stays.
    pub fn claimed(&self, context: u64) -> Option<Unexpected<T>> {
        let id = self.unexpected.claimed_with(context);
        (id != NIL).then(|| self.unexpected.copy(id))
    }

    /// Takes a claimed message, to start it (`FI_CLAIM`) or to discard it (`FI_CLAIM |
    /// FI_DISCARD`). `None`: none was claimed with that context, or it is lost with its sender.
    pub fn take_claimed(&mut self, context: u64) -> Option<Unexpected<T>> {
        let id = self.unexpected.claimed_with(context);
        (id != NIL).then(|| self.unexpected.take(id))
    }

    /// As `peek`, and takes the message away for the caller to discard (`FI_PEEK | FI_DISCARD`).
    pub fn discard(&mut self, src: FiAddr, tag: u64, ignore: u64) -> Option<Unexpected<T>> {
        let id = self.unexpected.find(src, tag, ignore);
        (id != NIL).then(|| self.unexpected.take(id))
    }

    /// Takes back the oldest receive posted with a context (`fi_cancel`); of a multi-receive what
    /// is left of it. Those of collective operations are not among them.
    pub fn cancel(&mut self, context: u64) -> Option<WithdrawnReceive> {
        self.posted.cancel(context, false)
    }

    /// Takes back the receive of a collective operation (`COLLECTIVE`) with a context.
    pub fn cancel_collective(&mut self, context: u64) -> Option<WithdrawnReceive> {
        self.posted.cancel(context, true)
    }

    /// A piece of a multi-receive was filled, or failed. Returns the state of the whole buffer.
    pub fn complete_piece(&mut self, piece: Piece) -> MultiReceiveState {
        self.posted.complete_piece(piece)
    }

    /// Calls back for the source of each message whose sender was unknown, in order of arrival
    /// (`foreach_unspec_addr`); the answer [`FiAddr::NOTAVAIL`] leaves it unknown. Messages that a
    /// posted receive now matches are appended to `start`.
    ///
    /// Call this before any message arrives under the new address, so that later messages stay
    /// behind the old ones.
    pub fn resolve(
        &mut self,
        mut source_of: impl FnMut(&Unexpected<T>) -> FiAddr,
        start: &mut Vec<Match<T>>,
    ) {
        let mut id = self.unexpected.unknown_first();
        while id != NIL {
            let next = self.unexpected.unknown_next(id);
            let message = self.unexpected.copy(id);
            let src = source_of(&message);
            if src != FiAddr::NOTAVAIL && self.unexpected.set_source(id, src) {
                let arrived = Arrived {
                    src,
                    ..message.arrived
                };
                if let Some(matched) = self.arrive(&arrived) {
                    let message = self.unexpected.take(id);
                    start.push(Match { matched, message });
                }
            }
            id = next;
        }
    }

    /// `src` was removed from the address vector: its messages are of unknown sender from now on,
    /// so that whoever gets the address next is not taken for theirs. Receives posted for `src`
    /// stay.
    pub fn forget_source(&mut self, src: FiAddr) {
        self.unexpected.forget_source(src);
    }

    /// The peer is gone: receives that only it could match are appended to `receives`, to be
    /// completed in error; its messages (those of unknown sender, with [`FiAddr::NOTAVAIL`]),
    /// claimed ones too, for which `lost` says so are taken away and appended to `messages`. Oldest
    /// first.
    pub fn fail_source(
        &mut self,
        src: FiAddr,
        lost: impl FnMut(&Unexpected<T>) -> bool,
        receives: &mut Vec<WithdrawnReceive>,
        messages: &mut Vec<Unexpected<T>>,
    ) {
        self.posted.fail_source(src, receives);
        self.unexpected.fail_source(src, lost, messages);
    }
}

/// A message of `len` bytes takes its piece of a multi-receive buffer. Returns the piece and the
/// rest, which stays for other messages. `None` if the rest would be too small: the message then
/// gets the whole buffer as the last piece.
fn split_piece(buf: IoBuf, len: u64, min_multi_recv: usize) -> Option<(IoBuf, IoBuf)> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let left = buf.len.checked_sub(len)?;
    (left >= min_multi_recv).then(|| (buf.part(0, len), buf.part(len, left)))
}
