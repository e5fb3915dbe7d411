//! The parts of one-sided operations as they come and go (`docs/adr/0061`): the memory for those
//! that come, and the effect of those that are over.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::part::{Part, RemotePlace};
use ferrofabric_contracts::peer::{
    Arrived, Completion, CqError, Matched, Owner, PART_REFUSED, PEER_REMOVED, PeerAv, PeerCntr,
    PeerCq, Piece, SendDone,
};
use ferrofabric_contracts::types::{
    FiAddr, IoBuf, MAX_REQUESTS, MrDesc, MsgKind, RemoteKind, RmaKind, RmaOp,
};
use ferrofabric_matching::{MatchedReceive, ReceiveBuffers};

use crate::domain::owner::EndpointOwner;
use crate::domain::srx::{Deferred, SharedRx};
use crate::rma::as_initiator::read_order::{EndedRead, ReadPlace, Why};
use crate::rma::as_initiator::shortcuts::ShortcutUnderWay;
use crate::rma::as_target::regions::RegionCounters;
use crate::rma::grants::{GRANT_BYTES, NO_GRANT};
use crate::rma::operations::{NO_BYTES, NoticedWrite, REQUEST_BYTES, ReadUnderWay, reply_to};
use crate::rma::outbox::{PartBytes, RemoteSend};

impl SharedRx {
    /// The memory for a part of a one-sided operation that has come.
    #[cold]
    pub(in crate::domain) fn arrive_remote(&mut self, kind: RemoteKind, a: &Arrived) -> Matched {
        let to = |buf, desc, context| Matched {
            buf,
            desc,
            context,
            flags: Flags::empty(),
            piece: Piece::NONE,
        };
        let remote = &mut self.remote;
        let memory = match Part::of(kind, a.tag, a.data) {
            _ if !a.flags.contains(Flags::REMOTE_CQ_DATA) => None,
            Part::Write(at) | Part::NoticedWrite(at) => {
                let Some((context, part)) = remote.take(at, a.len, Rights::WRITE.into()) else {
                    return Matched::REFUSED;
                };
                let matched = MatchedReceive {
                    buf: part.bufs,
                    desc: part.desc,
                    context,
                    flags: Flags::empty(),
                    piece: Piece::NONE,
                };
                return self.matched_of(matched, a.len);
            }
            Part::Read(_) if a.len != REQUEST_BYTES as u64 => None,
            Part::Read(_) => {
                let src = remote.source_to_serve(a.src, 0);
                let (number, room) = remote.room_for(src, REQUEST_BYTES);
                Some(to(room, MrDesc::NONE, number))
            }
            Part::Atomic(_) => remote
                .room_for_atomic(a)
                .map(|(number, room)| to(room, MrDesc::NONE, number)),
            Part::Reply { request, error } => return self.arrive_reply(a, request, error),
            Part::Grant { query, grant } => {
                let len = grant.map_or(0, |_| GRANT_BYTES);
                let is_awaited = a.len == len as u64
                    && remote
                        .held
                        .answer_arrives(a.src, query, grant.unwrap_or(NO_GRANT));
                is_awaited.then(|| {
                    let (number, room) = remote.room_for(a.src, len);
                    to(room, MrDesc::NONE, number)
                })
            }
            _ if a.len != 0 => None,
            Part::Notice { .. } if !remote.accepts_writes() => None,
            Part::Revoke { .. } if !a.src.is_some() => None,
            Part::Query { .. } | Part::Revoke { .. } => {
                let may_answer = remote.outbox.len_for(a.src) < MAX_REQUESTS;
                may_answer.then(|| to(IoBuf::EMPTY, MrDesc::NONE, 0))
            }
            Part::Notice { .. } | Part::Revoked { .. } => Some(to(IoBuf::EMPTY, MrDesc::NONE, 0)),
        };
        memory.unwrap_or(Matched::REFUSED)
    }

    fn arrive_reply(&mut self, a: &Arrived, request: u64, error: Option<Errno>) -> Matched {
        let Some(read) = self.remote.read(request) else {
            return Matched::REFUSED;
        };
        let len = error.map_or(read.len, |_| 0);
        if read.from != a.src || read.arrives || a.len != len {
            return Matched::REFUSED;
        }
        read.arrives = true;
        let buf = match error {
            None => std::mem::replace(&mut read.into, ReceiveBuffers::One(IoBuf::EMPTY)),
            Some(_) => ReceiveBuffers::One(IoBuf::EMPTY),
        };
        let matched = MatchedReceive {
            buf,
            desc: read.op.desc,
            context: request,
            flags: Flags::empty(),
            piece: Piece::NONE,
        };
        self.matched_of(matched, a.len)
    }

    /// Refuses the request of a source that has too many. Nothing of it is carried out.
    #[cold]
    pub(in crate::domain) fn refuse_request(&mut self, request: &[u8]) {
        let refusal = reply_to(FiAddr::NOTAVAIL, number_at(request, 0), Err(Errno::EACCES));
        self.remote.refusals.push(refusal);
    }

    /// A peer is gone, or was removed: the reads of its memory fail, and the parts that wait for
    /// it. No lane leads to it any more, or from it to granted memory.
    #[cold]
    pub(in crate::domain) fn fail_remote(&mut self, peer: FiAddr, errno: Errno, why: &'static str) {
        self.remote.held.forget_peer(peer);
        self.remote.holder_is_gone(peer);
        for one in self.remote.shortcuts.end_peer(peer, errno, why) {
            self.defer_failure_of(&one.op, one.place, (errno, 0, why));
        }
        self.remote.forget_notices_to(peer);
        for read in self.remote.take_reads_of(peer) {
            self.defer_failure_of(&read.op, read.place, (errno, 0, why));
        }
        self.remote.read_order.forget_empty_lines();
        for part in self.remote.outbox.take_of(peer) {
            match part.op.kind {
                MsgKind::Remote(RemoteKind::Notice) => {
                    let why = (errno, 0, why);
                    let error = failure(RmaKind::Write, part.op.context, peer, why);
                    self.defer(Deferred::FailRma(RmaKind::Write, error));
                }
                MsgKind::Remote(RemoteKind::Reply) => {
                    self.remote.give(part.op.context);
                }
                _ => {}
            }
        }
    }

    /// An operation has failed, which is a read if it has a place.
    fn defer_failure_of(&mut self, op: &RmaOp, place: Option<ReadPlace>, why: Why) {
        let (op, outcome) = (*op, Err(why));
        self.defer(match place {
            Some(place) => Deferred::FailRead(place, EndedRead { op, outcome }),
            None => Deferred::FailRma(op.kind, failure_of(&op, why)),
        });
    }

    /// Ends the replies among these parts that wait to be sent: their initiators get an error.
    #[cold]
    pub(in crate::domain) fn end_waiting_replies(&mut self, parts: &[u64]) {
        for peer in self.remote.outbox.peers() {
            let mut waiting = self.remote.outbox.take_of(peer);
            for part in &mut waiting {
                if part.op.kind.is_reply() && parts.contains(&part.op.context) {
                    self.remote.give(part.op.context);
                    part.op = reply_to(peer, part.op.tag, Err(Errno::EACCES));
                    part.from = PartBytes::NONE;
                }
            }
            self.remote.outbox.put_back(peer, waiting);
        }
    }

    /// Sends a part when the present call into the transport is over.
    pub(in crate::domain) fn send_part(&mut self, part: RemoteSend) {
        if !self.remote.has_parts_to_send() {
            self.defer(Deferred::SendParts);
        }
        self.remote.outbox.push(part);
    }

    /// A lost operation is to go again, as messages, when the present call is over.
    pub(in crate::domain) fn send_again(&mut self, one: ShortcutUnderWay) {
        if !self.remote.has_parts_to_send() {
            self.defer(Deferred::SendParts);
        }
        self.remote.shortcuts.lose(one);
    }
}

/// Why a target refuses an operation on an address that its elements can not have.
const MISALIGNED: &str = "the target refuses it: an element's address is no multiple of its \
                          alignment, or it goes over the end of a piece, or the request has a wrong \
                          length";

/// Why a target refuses an operation that it does not have.
const UNSUPPORTED: &str = "the target refuses it: it has no such operator, data type or form";

/// The error of an operation, by that in its reply.
fn error_of_atomic_reply(errno: Errno) -> (Errno, &'static str) {
    match errno {
        Errno::EINVAL => (Errno::EINVAL, MISALIGNED),
        Errno::EOPNOTSUPP => (Errno::EOPNOTSUPP, UNSUPPORTED),
        _ => (Errno::EACCES, PART_REFUSED),
    }
}

/// Writes a completion. Apart, so that the writes of messages are built as if it did not exist.
#[cold]
#[inline(never)]
fn report(queue: &mut impl PeerCq, completion: &Completion) {
    queue.write(completion);
}

/// A number in a request, eight bytes from `at`. The first one of each request is the initiator's
/// number of it.
fn number_at(request: &[u8], at: usize) -> u64 {
    let number = request.get(at..).and_then(<[u8]>::first_chunk);
    number.map_or(0, |number| u64::from_le_bytes(*number))
}

/// The error of an operation with a peer.
pub(in crate::domain) fn failure(kind: RmaKind, context: u64, peer: FiAddr, why: Why) -> CqError {
    let (errno, prov_errno, why) = why;
    CqError {
        completion: Completion {
            context,
            flags: kind.completion_flags(),
            src: peer,
            ..Completion::BLANK
        },
        olen: 0,
        errno,
        prov_errno,
        why,
        sender: None,
    }
}

/// The error of an operation that waited for a reply.
fn failure_of(op: &RmaOp, why: Why) -> CqError {
    let mut error = failure(op.kind, op.context, op.dest, why);
    error.completion.flags = completion_flags(op.kind, op.flags);
    error
}

/// The flags in the completion of an operation, whose own flags have `ATOMIC` if it is atomic.
fn completion_flags(kind: RmaKind, flags: Flags) -> Flags {
    match flags.contains(Flags::ATOMIC) {
        true => (kind.completion_flags() - Flags::RMA) | Flags::ATOMIC,
        false => kind.completion_flags(),
    }
}

impl EndpointOwner<'_> {
    /// Counts and reports an operation that is done.
    pub(in crate::domain) fn rma_done(
        &mut self,
        kind: RmaKind,
        context: u64,
        flags: Flags,
        len: usize,
    ) {
        if flags.contains(Flags::COMPLETION) {
            let completion = Completion {
                context,
                flags: completion_flags(kind, flags),
                ..Completion::BLANK
            };
            report(self.tx_cq(), &completion);
        }
        self.initiator_cntr(kind).inc(len);
    }

    /// Counts and reports an operation that has failed.
    #[cold]
    pub(in crate::domain) fn rma_failed(&mut self, kind: RmaKind, mut error: CqError) {
        error.completion.src = self.av().reported(error.completion.src);
        self.tx_cq().write_error(error);
        self.initiator_cntr(kind).inc_error();
    }

    /// As [`Owner::remote_part_sent`].
    pub(in crate::domain) fn part_sent(
        &mut self,
        kind: RemoteKind,
        done: &SendDone,
        failed: Option<Why>,
    ) {
        match (kind, failed) {
            (RemoteKind::Write | RemoteKind::Notice, None) => {
                let len = match kind {
                    RemoteKind::Notice => done.tag as usize,
                    _ => done.len,
                };
                self.rma_done(RmaKind::Write, done.context, done.flags, len);
            }
            (RemoteKind::Write | RemoteKind::Notice, Some(why)) => {
                let error = failure(RmaKind::Write, done.context, done.dest, why);
                self.rma_failed(RmaKind::Write, error);
            }
            (RemoteKind::NoticedWrite | RemoteKind::WriteAgain, _) => {
                let noticed = &mut self.srx.remote.noticed;
                let lost = (Errno::ECANCELED, 0, PEER_REMOVED);
                match (noticed.try_remove(done.context as usize), failed) {
                    (Some(NoticedWrite { op, .. }), None)
                        if !op.flags.contains(Flags::REMOTE_CQ_DATA) =>
                    {
                        self.rma_done(RmaKind::Write, op.context, op.flags, done.len);
                    }
                    (Some(NoticedWrite { op, to }), None) if to == FiAddr::NOTAVAIL => {
                        let error = failure(RmaKind::Write, op.context, op.dest, lost);
                        self.rma_failed(RmaKind::Write, error);
                    }
                    (Some(NoticedWrite { op, to }), None) => {
                        self.notify(&RmaOp { dest: to, ..op }, done.len);
                    }
                    (Some(NoticedWrite { op, .. }), Some(why)) => {
                        let error = failure(RmaKind::Write, op.context, op.dest, why);
                        self.rma_failed(RmaKind::Write, error);
                    }
                    (None, _) => {}
                }
            }
            (RemoteKind::Read | RemoteKind::ReadAgain | RemoteKind::Atomic, failed) => {
                let lost = failed.and_then(|why| {
                    let read = self.srx.remote.take_lost_read(done.context)?;
                    Some((read, why))
                });
                if let Some((read, why)) = lost {
                    self.end_reply(&read, Err(why));
                }
            }
            (RemoteKind::Reply, failed) => {
                let counters = self.srx.remote.give(done.context);
                if let (Some(counters), None) = (counters, failed) {
                    self.count_read(counters, done.len);
                }
                // Its initiator awaits an answer, if it is still there.
                if failed.is_some() && done.context != NO_BYTES {
                    let op = reply_to(done.dest, done.tag, Err(Errno::EIO));
                    let from = PartBytes::NONE;
                    self.srx.send_part(RemoteSend { op, from });
                }
            }
            // A holder that does not return its grant is cut off.
            (
                RemoteKind::Query | RemoteKind::Grant | RemoteKind::Revoke | RemoteKind::Revoked,
                _,
            ) => {}
        }
    }

    /// The transport has carried out an operation by itself, which is a read if it has a place.
    #[inline]
    pub(in crate::domain) fn shortcut_done(
        &mut self,
        op: &RmaOp,
        place: Option<ReadPlace>,
        len: usize,
    ) {
        match (place, op.flags.contains(Flags::REMOTE_CQ_DATA)) {
            (Some(place), _) => self.end_read(place, op, Ok(len)),
            (None, true) => self.notify(op, len),
            (None, false) => self.rma_done(op.kind, op.context, op.flags - Flags::ATOMIC, len),
        }
    }

    /// A read ends: it is reported when those before it have ended.
    pub(in crate::domain) fn end_read(
        &mut self,
        place: ReadPlace,
        op: &RmaOp,
        outcome: Result<usize, Why>,
    ) {
        let op = RmaOp {
            flags: op.flags - Flags::ATOMIC,
            ..*op
        };
        let order = &mut self.srx.remote.read_order;
        if !order.end(place) {
            return order.keep(place, EndedRead { op, outcome });
        }
        self.report_end(&op, outcome);
        if !self.srx.remote.read_order.is_empty() {
            self.report_kept(place);
        }
    }

    /// A read has been reported: so are those that waited for it.
    #[cold]
    fn report_kept(&mut self, after: ReadPlace) {
        while let Some(EndedRead { op, outcome }) = self.srx.remote.read_order.next_ended(after) {
            self.report_end(&op, outcome);
        }
    }

    /// A read, or an atomic operation, that waited for a reply ends.
    fn end_reply(&mut self, read: &ReadUnderWay, outcome: Result<usize, Why>) {
        match read.place {
            Some(place) => self.end_read(place, &read.op, outcome),
            None => self.report_end(&read.op, outcome),
        }
    }

    /// Counts and reports an operation that is done or has failed.
    fn report_end(&mut self, op: &RmaOp, outcome: Result<usize, Why>) {
        match outcome {
            Ok(len) => self.rma_done(op.kind, op.context, op.flags, len),
            Err(why) => self.rma_failed(op.kind, failure_of(op, why)),
        }
    }

    /// Sends the CQ data of a write whose bytes are at the target.
    fn notify(&mut self, op: &RmaOp, len: usize) {
        let asked = op.flags & Flags::COMPLETION;
        let notice = Part::Notice {
            len: len as u64,
            data: op.data,
        };
        let flags = asked | Flags::DELIVERY_COMPLETE;
        self.srx.send_part(RemoteSend {
            op: notice.message(op.dest, MrDesc::NONE, op.context, flags),
            from: PartBytes::NONE,
        });
    }

    /// As [`Owner::remote_part_came`].
    pub(in crate::domain) fn part_came(
        &mut self,
        kind: RemoteKind,
        m: &Matched,
        a: &Arrived,
        failed: Option<(Errno, &'static str)>,
    ) {
        if m.is_refused() {
            return;
        }
        match Part::of(kind, a.tag, a.data) {
            Part::Write(_) | Part::NoticedWrite(_) => {
                if let Some(list) = m.piece.list() {
                    // SAFETY: the region is not closed before its part is given back.
                    unsafe { self.srx.end_list(list) };
                }
                let counters = self.srx.remote.give(m.context);
                if let (Some(counters), None) = (counters, failed) {
                    self.target_cntr(RmaKind::Write).inc(a.len as usize);
                    self.region_cntr(counters.write).inc(a.len as usize);
                }
            }
            Part::Read(at) => {
                let request = self.srx.remote.take_room(m.context);
                if let (Some((src, request)), None) = (request, failed) {
                    self.reply(src, at, &request);
                }
            }
            Part::Atomic(at) => self.atomic_came(m.context, at, failed.is_none()),
            Part::Reply { error, .. } => self.reply_came(m, error, failed),
            Part::Grant { query, grant } => {
                self.grant_came(m.context, query, grant, failed.is_some());
            }
            _ if failed.is_some() => {}
            Part::Query { key, query } => self.answer_query(a.src, key, query),
            Part::Revoke { grant } => self.grant_is_revoked(a.src, grant),
            Part::Revoked { grant } => self.srx.remote.returned(grant, a.src),
            Part::Notice { len, data } => {
                let src = self.av().reported(a.src);
                let completion = Completion {
                    flags: Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA,
                    len: len as usize,
                    data,
                    src,
                    ..Completion::BLANK
                };
                report(self.rx_cq(), &completion);
            }
        }
    }

    /// The answer to a read or an atomic operation is there, or it has failed.
    fn reply_came(
        &mut self,
        m: &Matched,
        error: Option<Errno>,
        failed: Option<(Errno, &'static str)>,
    ) {
        if let Some(list) = m.piece.list() {
            // SAFETY: the caller of the read vouched for its buffers until its completion,
            // which comes after this.
            unsafe { self.srx.end_list(list) };
        }
        let Some(read) = self.srx.remote.take_read(m.context) else {
            return;
        };
        let failed = match error {
            None => failed,
            Some(errno) if read.is_atomic() => Some(error_of_atomic_reply(errno)),
            Some(_) => Some((Errno::EACCES, PART_REFUSED)),
        };
        let outcome = match failed {
            None => Ok(read.target_bytes),
            Some((errno, why)) => Err((errno, 0, why)),
        };
        self.end_reply(&read, outcome);
    }

    /// Answers a request to read, with a copy of the bytes: an initiator that computes, or is
    /// stopped, holds up neither the counters of reads nor the close of the region. Where the copies
    /// are too many, the bytes come out of the region, and are counted when they have left.
    fn reply(&mut self, src: FiAddr, at: RemotePlace, request: &[u8]) {
        if !src.is_some() {
            return self.srx.refuse_request(request);
        }
        let (number, len) = (number_at(request, 0), number_at(request, 8));
        let remote = &mut self.srx.remote;
        let Some((context, part)) = remote.take(at, len, Rights::READ.into()) else {
            let op = reply_to(src, number, Err(Errno::EACCES));
            let from = PartBytes::NONE;
            return self.srx.send_part(RemoteSend { op, from });
        };
        let (desc, bufs) = match remote.copy(context, &part) {
            Some(copy) => {
                self.count_read(part.counters, len as usize);
                (MrDesc::NONE, ReceiveBuffers::One(copy))
            }
            None => (part.desc, part.bufs),
        };
        let op = reply_to(src, number, Ok((context, desc)));
        let from = PartBytes::Memory(bufs);
        self.srx.send_part(RemoteSend { op, from });
    }

    /// Counts a read of a peer: the bytes of the region may change now.
    fn count_read(&mut self, counters: RegionCounters, len: usize) {
        self.target_cntr(RmaKind::Read).inc(len);
        self.region_cntr(counters.read).inc(len);
    }
}

#[cfg(test)]
mod tests;
