//! The receive queue of one endpoint, which its transports share: a matcher for tagged and one for
//! untagged messages, and the work that they defer until the present call is over.

use std::collections::VecDeque;
use std::sync::Arc;

use super::keyed;
use super::lists::BufferLists;
use crate::fabric::MIN_MULTI_RECV;
use crate::rma::as_initiator::read_order::{EndedRead, ReadPlace};
use crate::rma::as_target::regions::RegionTable;
use crate::rma::operations::RemoteOperations;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::peer::{
    Arrived, Completion, CqError, Matched, PEER_REMOVED, PeerSrx, Piece, Start, Token,
};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, RmaKind, SendOp};
use ferrofabric_matching as matching;
use ferrofabric_matching::{
    Matcher, MultiReceiveState, PostedReceive, ReceiveBuffers, Unexpected, WithdrawnReceive,
};

/// Work that a call defers to its end.
#[derive(Debug)]
pub(super) enum Deferred {
    /// A message has matched a receive.
    Start(Start),
    /// A receive has failed.
    Fail(CqError),
    /// A one-sided operation has failed.
    FailRma(RmaKind, CqError),
    /// A read that has a place has failed.
    FailRead(ReadPlace, EndedRead),
    /// Parts of one-sided operations are to be sent.
    SendParts,
    /// The endpoint at an address is gone.
    PeerGone(FiAddr),
}

/// A shared receive context with its owner.
pub(super) struct SharedRx {
    tagged: Matcher<Token>,
    untagged: Matcher<Token>,
    deferred: VecDeque<Deferred>,
    /// Multi-receives that were cancelled while transports fill pieces of them: reported when those
    /// pieces are complete.
    failing: Vec<(MsgKind, Piece, CqError)>,
    lists: BufferLists,
    /// The endpoint's one-sided operations.
    pub(super) remote: RemoteOperations,
}

impl SharedRx {
    pub(super) fn new(regions: Arc<RegionTable>, remote_rights: Rights) -> Self {
        Self {
            tagged: Matcher::new(MIN_MULTI_RECV),
            untagged: Matcher::new(MIN_MULTI_RECV),
            deferred: VecDeque::new(),
            failing: Vec::new(),
            lists: BufferLists::default(),
            remote: RemoteOperations::new(regions, remote_rights),
        }
    }

    /// Lets receives that name an authorization key match the messages that came with it.
    pub(super) fn match_keys(&mut self) {
        self.tagged.set_key_of(keyed::key_of);
        self.untagged.set_key_of(keyed::key_of);
    }

    /// Posts a receive for one message. `Some`: a message has matched, to be started now.
    #[inline(always)]
    pub(super) fn post(&mut self, op: &RecvOp, buf: ReceiveBuffers) -> Option<Start> {
        let start = self.matcher(op.kind).post(posted_of(op, buf))?;
        Some(self.start_of(op.kind, start))
    }

    /// Posts a receive that takes one message after another. Messages that match at once are
    /// deferred.
    pub(super) fn post_multi(&mut self, op: &RecvOp, buf: IoBuf) {
        let mut starts = Vec::new();
        self.matcher(op.kind)
            .post_multi(posted_of(op, ReceiveBuffers::One(buf)), &mut starts);
        self.defer_starts(op.kind, starts);
    }

    /// The messages that a receive matches: source, tag, and the bits of the tag that do not count.
    #[inline]
    pub(super) fn selector(op: &RecvOp) -> (FiAddr, u64, u64) {
        match op.kind {
            MsgKind::Tagged => (op.src, op.tag, op.ignore),
            MsgKind::Msg | MsgKind::Remote(_) => (op.src, 0, u64::MAX),
        }
    }

    /// Cancels a receive; its error completion is deferred. False: none is posted with that
    /// context.
    pub(super) fn cancel(&mut self, context: u64) -> bool {
        for kind in [MsgKind::Tagged, MsgKind::Msg] {
            if let Some(taken) = self.matcher(kind).cancel(context) {
                self.defer_failure(kind, &taken, Errno::ECANCELED, "cancelled");
                return true;
            }
        }
        false
    }

    /// As [`cancel`](Self::cancel), for a receive of a collective operation, which is a tagged one.
    pub(super) fn cancel_collective(&mut self, context: u64) -> bool {
        let kind = MsgKind::Tagged;
        let taken = self.matcher(kind).cancel_collective(context);
        if let Some(taken) = &taken {
            self.defer_failure(kind, taken, Errno::ECANCELED, "cancelled");
        }
        taken.is_some()
    }

    /// The space that must be left in a multi-receive buffer, in bytes.
    pub(super) fn min_multi_recv(&self) -> usize {
        self.untagged.min_multi_recv()
    }

    pub(super) fn set_min_multi_recv(&mut self, bytes: usize) {
        self.tagged.set_min_multi_recv(bytes);
        self.untagged.set_min_multi_recv(bytes);
    }

    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    pub(super) fn take_deferred(&mut self) -> Option<Deferred> {
        self.deferred.pop_front()
    }

    pub(super) fn defer(&mut self, task: Deferred) {
        self.deferred.push_back(task);
    }

    /// A list of buffers is full.
    ///
    /// # Safety
    ///
    /// The buffers of the list are valid for writes.
    pub(super) unsafe fn end_list(&mut self, list: usize) {
        // SAFETY: the caller's contract.
        unsafe { self.lists.end(list) };
    }

    #[inline]
    pub(super) fn matcher(&mut self, kind: MsgKind) -> &mut Matcher<Token> {
        match kind {
            MsgKind::Tagged => &mut self.tagged,
            // Parts of one-sided operations do not match.
            MsgKind::Msg | MsgKind::Remote(_) => &mut self.untagged,
        }
    }

    #[inline]
    fn start_of(&mut self, kind: MsgKind, start: matching::Match<Token>) -> Start {
        Start {
            kind,
            token: start.message.token,
            arrived: start.message.arrived,
            matched: self.matched_of(start.matched, start.message.arrived.len),
        }
    }

    /// A match in the form for transports, with a message of `len` bytes.
    #[inline(always)]
    pub(super) fn matched_of(&mut self, matched: matching::MatchedReceive, len: u64) -> Matched {
        match matched.buf {
            ReceiveBuffers::One(buf) => Matched {
                buf,
                desc: matched.desc,
                context: matched.context,
                flags: matched.flags,
                piece: matched.piece,
            },
            ReceiveBuffers::Many(segments) => {
                let of = (matched.desc, matched.context, matched.flags);
                self.matched_list(segments, of, len)
            }
        }
    }

    #[cold]
    fn matched_list(
        &mut self,
        segments: Box<[IoBuf]>,
        (desc, context, flags): (MrDesc, u64, Flags),
        len: u64,
    ) -> Matched {
        let (fill_bytes, piece) = self.lists.enter(segments, flags, len);
        Matched {
            // A list has no single address.
            buf: IoBuf {
                addr: 0,
                len: fill_bytes,
            },
            // The descriptor covers the buffers that its region contains.
            desc,
            context,
            // The list reports the completion, after it was filled.
            flags: flags - Flags::COMPLETION,
            piece,
        }
    }

    fn defer_starts(&mut self, kind: MsgKind, starts: Vec<matching::Match<Token>>) {
        for start in starts {
            let start = self.start_of(kind, start);
            self.deferred.push_back(Deferred::Start(start));
        }
    }

    fn defer_failure(
        &mut self,
        kind: MsgKind,
        taken: &WithdrawnReceive,
        errno: Errno,
        why: &'static str,
    ) {
        let posted = &taken.posted;
        let error = CqError {
            completion: Completion {
                context: posted.context,
                flags: kind.recv_flags() | (posted.flags & (Flags::MULTI_RECV | Flags::COLLECTIVE)),
                len: 0,
                buf: posted.buf.segments().first().map_or(0, |buf| buf.addr),
                data: 0,
                tag: posted.tag,
                src: posted.src,
            },
            olen: 0,
            errno,
            prov_errno: 0,
            why,
            sender: None,
        };
        match taken.busy {
            Piece::NONE => self.deferred.push_back(Deferred::Fail(error)),
            piece => self.failing.push((kind, piece, error)),
        }
    }
}

impl PeerSrx for SharedRx {
    #[inline(always)]
    fn arrive(&mut self, kind: MsgKind, arrived: &Arrived) -> Option<Matched> {
        if let MsgKind::Remote(kind) = kind {
            return Some(self.arrive_remote(kind, arrived));
        }
        let matched = self.matcher(kind).arrive(arrived)?;
        Some(self.matched_of(matched, arrived.len))
    }

    fn arrive_with_key(
        &mut self,
        kind: MsgKind,
        arrived: &Arrived,
        key: FiAddr,
    ) -> Option<Matched> {
        if let MsgKind::Remote(kind) = kind {
            return Some(self.arrive_remote(kind, arrived));
        }
        let matched = self.matcher(kind).arrive_with_key(arrived, key)?;
        Some(self.matched_of(matched, arrived.len))
    }

    fn segments(&mut self, piece: Piece) -> &[IoBuf] {
        match piece.list() {
            Some(list) => self.lists.segments(list),
            None => &[],
        }
    }

    fn in_one_piece(&mut self, matched: &Matched) -> Option<Matched> {
        let Some(list) = matched.piece.list() else {
            return Some(*matched);
        };
        let buf = self.lists.lend(list, matched.buf.len)?;
        Some(Matched { buf, ..*matched })
    }

    fn complete_piece(&mut self, kind: MsgKind, piece: Piece) -> Flags {
        if let Some(list) = piece.list() {
            // SAFETY: the poster of the receive vouched for its buffers until its completion, which
            // comes after this.
            return unsafe { self.lists.end(list) };
        }
        match self.matcher(kind).complete_piece(piece) {
            MultiReceiveState::InUse => Flags::empty(),
            MultiReceiveState::Released => Flags::MULTI_RECV,
            MultiReceiveState::TakenBack => {
                let of = |(k, p, _): &(MsgKind, Piece, CqError)| (*k, *p) == (kind, piece);
                if let Some(at) = self.failing.iter().position(of) {
                    let (_, _, error) = self.failing.remove(at);
                    self.deferred.push_back(Deferred::Fail(error));
                }
                Flags::empty()
            }
        }
    }

    #[inline]
    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token) {
        self.matcher(kind).queue(arrived, token);
    }

    fn resolve(&mut self, src: FiAddr, mut of: impl FnMut(Token) -> bool) {
        for kind in [MsgKind::Tagged, MsgKind::Msg] {
            let mut starts = Vec::new();
            self.matcher(kind).resolve(
                |message| match of(message.token) {
                    true => src,
                    false => FiAddr::NOTAVAIL,
                },
                &mut starts,
            );
            self.defer_starts(kind, starts);
        }
    }

    fn forget_source(&mut self, src: FiAddr) {
        self.fail_remote(src, Errno::ECANCELED, PEER_REMOVED);
        self.tagged.forget_source(src);
        self.untagged.forget_source(src);
    }

    #[cold]
    fn take_refusals(&mut self) -> Vec<SendOp> {
        std::mem::take(&mut self.remote.refusals)
    }

    fn next_request(&mut self) -> Option<u64> {
        self.remote.next_read().ok()
    }

    #[cold]
    fn fail_source(
        &mut self,
        src: FiAddr,
        errno: Errno,
        why: &'static str,
        mut lost: impl FnMut(Token) -> bool,
    ) {
        self.fail_remote(src, errno, why);
        for kind in [MsgKind::Tagged, MsgKind::Msg] {
            let (mut receives, mut messages) = (Vec::new(), Vec::new());
            self.matcher(kind).fail_source(
                src,
                |message: &Unexpected<Token>| lost(message.token),
                &mut receives,
                &mut messages,
            );
            for taken in &receives {
                self.defer_failure(kind, taken, errno, why);
            }
        }
    }
}

#[inline(always)]
fn posted_of(op: &RecvOp, buf: ReceiveBuffers) -> PostedReceive {
    let (src, tag, ignore) = SharedRx::selector(op);
    PostedReceive {
        src,
        tag,
        ignore,
        buf,
        desc: op.desc,
        context: op.context,
        flags: op.flags,
    }
}
