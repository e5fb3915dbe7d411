//! The parts of one-sided operations as they come and go (`docs/adr/0061`): the memory for those
//! that come, and the effect of those that are over.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{
    Arrived, Completion, CqError, Matched, Owner, PART_REFUSED, PeerAv, PeerCntr, PeerCq, Piece,
    SendDone,
};
use ferrofabric_contracts::types::{
    FiAddr, IoBuf, MrDesc, MsgKind, RemoteKind, RmaKind, RmaOp, SendOp,
};
use ferrofabric_matching::{MatchedReceive, ReceiveBuffers};

use super::owner::EndpointOwner;
use super::part_outbox::RemoteSend;
use super::remote::{MAX_READS, REQUEST_BYTES};
use super::srx::{Deferred, SharedRx};

impl SharedRx {
    /// The memory for a part of a one-sided operation that has come.
    #[cold]
    pub(super) fn arrive_remote(&mut self, kind: RemoteKind, a: &Arrived) -> Matched {
        let to = |buf, desc, context| Matched {
            buf,
            desc,
            context,
            flags: Flags::empty(),
            piece: Piece::NONE,
        };
        let remote = &mut self.remote;
        let memory = match kind {
            _ if !a.flags.contains(Flags::REMOTE_CQ_DATA) => None,
            RemoteKind::Write | RemoteKind::NoticedWrite => remote
                .take(a.tag, a.data, a.len, Flags::REMOTE_WRITE)
                .map(|(number, part)| to(part.buf, part.desc, number)),
            RemoteKind::Read if a.len != REQUEST_BYTES as u64 || !a.src.is_some() => None,
            RemoteKind::Read if remote.outbox.len_for(a.src) >= MAX_READS => None,
            RemoteKind::Read => {
                let (number, room) = remote.room_for_request();
                Some(to(room, MrDesc::NONE, number))
            }
            RemoteKind::Reply => return self.arrive_reply(a),
            RemoteKind::Notice => (a.len == 0).then(|| to(IoBuf::EMPTY, MrDesc::NONE, 0)),
        };
        memory.unwrap_or(Matched::REFUSED)
    }

    fn arrive_reply(&mut self, a: &Arrived) -> Matched {
        let Some(read) = self.remote.read(a.tag) else {
            return Matched::REFUSED;
        };
        let len = if a.data == 0 { read.len } else { 0 };
        if read.op.dest != a.src || read.arrives || a.len != len {
            return Matched::REFUSED;
        }
        read.arrives = true;
        let buf = match a.data {
            0 => std::mem::replace(&mut read.into, ReceiveBuffers::One(IoBuf::EMPTY)),
            _ => ReceiveBuffers::One(IoBuf::EMPTY),
        };
        let matched = MatchedReceive {
            buf,
            desc: read.op.desc,
            context: a.tag,
            flags: Flags::empty(),
            piece: Piece::NONE,
        };
        self.matched_of(matched, a.len)
    }

    /// A peer is gone, or was removed: the reads of its memory fail, and the parts that wait for
    /// it.
    #[cold]
    pub(super) fn fail_remote(&mut self, peer: FiAddr, errno: Errno, why: &'static str) {
        for read in self.remote.take_reads_of(peer) {
            let error = failure(&read.op, errno, 0, why);
            self.defer(Deferred::FailRma(RmaKind::Read, error));
        }
        for part in self.remote.outbox.take_of(peer) {
            match part.op.kind {
                MsgKind::Remote(RemoteKind::Reply) => self.remote.give(part.op.context),
                _ => {
                    let done = SendDone::of(&part.op, 0);
                    let error = write_failure(&done, errno, 0, why);
                    self.defer(Deferred::FailRma(RmaKind::Write, error));
                }
            }
        }
    }

    /// Sends a part when the present call into the transport is over.
    fn send_part(&mut self, part: RemoteSend) {
        if self.remote.outbox.is_empty() {
            self.defer(Deferred::SendParts);
        }
        self.remote.outbox.push(part);
    }
}

/// Writes a completion. Apart, so that the writes of messages are built as if it did not exist.
#[cold]
#[inline(never)]
fn report(queue: &mut impl PeerCq, completion: &Completion) {
    queue.write(completion);
}

/// The error of an operation.
fn failure(op: &RmaOp, errno: Errno, prov_errno: i32, why: &'static str) -> CqError {
    CqError {
        completion: Completion {
            context: op.context,
            flags: op.kind.completion_flags(),
            len: 0,
            buf: 0,
            data: 0,
            tag: 0,
            src: op.dest,
        },
        olen: 0,
        errno,
        prov_errno,
        why,
        sender: None,
    }
}

/// The error of a write, whose part has failed.
fn write_failure(done: &SendDone, errno: Errno, prov_errno: i32, why: &'static str) -> CqError {
    CqError {
        completion: Completion {
            context: done.context,
            flags: RmaKind::Write.completion_flags(),
            src: done.dest,
            ..Completion::BLANK
        },
        olen: 0,
        errno,
        prov_errno,
        why,
        sender: None,
    }
}

impl EndpointOwner<'_> {
    /// Counts and reports an operation that is done.
    fn rma_done(&mut self, kind: RmaKind, context: u64, flags: Flags, len: usize) {
        if flags.contains(Flags::COMPLETION) {
            let completion = Completion {
                context,
                flags: kind.completion_flags(),
                ..Completion::BLANK
            };
            report(self.tx_cq(), &completion);
        }
        self.initiator_cntr(kind).inc(len);
    }

    /// Counts and reports an operation that has failed.
    #[cold]
    pub(super) fn rma_failed(&mut self, kind: RmaKind, mut error: CqError) {
        error.completion.src = self.av().reported(error.completion.src);
        self.tx_cq().write_error(error);
        self.initiator_cntr(kind).inc_error();
    }

    /// As [`Owner::remote_part_sent`].
    pub(super) fn part_sent(
        &mut self,
        kind: RemoteKind,
        done: &SendDone,
        failed: Option<(Errno, i32, &'static str)>,
    ) {
        let (errno, prov_errno, why) = failed.unwrap_or((Errno(0), 0, PART_REFUSED));
        match kind {
            RemoteKind::Write | RemoteKind::Notice if failed.is_none() => {
                let len = if kind == RemoteKind::Notice {
                    done.tag as usize
                } else {
                    done.len
                };
                self.rma_done(RmaKind::Write, done.context, done.flags, len);
            }
            RemoteKind::Write | RemoteKind::Notice => {
                let error = write_failure(done, errno, prov_errno, why);
                self.rma_failed(RmaKind::Write, error);
            }
            RemoteKind::NoticedWrite => {
                let noticed = &mut self.srx.remote.noticed;
                let Some(op) = noticed.try_remove(done.context as usize) else {
                    return;
                };
                if failed.is_some() {
                    return self.rma_failed(RmaKind::Write, failure(&op, errno, prov_errno, why));
                }
                let notice = SendOp {
                    kind: MsgKind::Remote(RemoteKind::Notice),
                    dest: op.dest,
                    tag: done.len as u64,
                    data: op.data,
                    desc: MrDesc::NONE,
                    context: op.context,
                    flags: (op.flags & Flags::COMPLETION)
                        | Flags::RMA
                        | Flags::REMOTE_CQ_DATA
                        | Flags::DELIVERY_COMPLETE,
                };
                self.srx.send_part(RemoteSend {
                    op: notice,
                    from: IoBuf::EMPTY,
                });
            }
            RemoteKind::Read => {
                let lost = failed.and_then(|_| self.srx.remote.take_read(done.context));
                if let Some(read) = lost {
                    let error = failure(&read.op, errno, prov_errno, why);
                    self.rma_failed(RmaKind::Read, error);
                }
            }
            RemoteKind::Reply => self.srx.remote.give(done.context),
        }
    }

    /// As [`Owner::remote_part_came`].
    pub(super) fn part_came(
        &mut self,
        kind: RemoteKind,
        m: &Matched,
        a: &Arrived,
        failed: Option<Errno>,
    ) {
        if m.is_refused() {
            return;
        }
        match kind {
            RemoteKind::Write | RemoteKind::NoticedWrite => {
                self.srx.remote.give(m.context);
                if failed.is_none() {
                    self.target_cntr(RmaKind::Write).inc(a.len as usize);
                }
            }
            RemoteKind::Read => {
                let request = self.srx.remote.take_request(m.context);
                if let (Some(request), None) = (request, failed) {
                    self.reply(a, request);
                }
            }
            RemoteKind::Reply => {
                if let Some(list) = m.piece.list() {
                    // SAFETY: the caller of the read vouched for its buffers until its completion,
                    // which comes after this.
                    unsafe { self.srx.end_list(list) };
                }
                let Some(read) = self.srx.remote.take_read(m.context) else {
                    return;
                };
                let errno = match a.data {
                    0 => failed,
                    _ => Some(Errno::EACCES),
                };
                match errno {
                    None => {
                        let (op, len) = (&read.op, read.len as usize);
                        self.rma_done(RmaKind::Read, op.context, op.flags, len);
                    }
                    Some(errno) => {
                        self.rma_failed(RmaKind::Read, failure(&read.op, errno, 0, PART_REFUSED));
                    }
                }
            }
            RemoteKind::Notice if failed.is_none() => {
                let src = self.av().reported(a.src);
                let completion = Completion {
                    flags: Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA,
                    len: a.tag as usize,
                    data: a.data,
                    src,
                    ..Completion::BLANK
                };
                report(self.rx_cq(), &completion);
            }
            RemoteKind::Notice => {}
        }
    }

    /// Answers a request to read.
    fn reply(&mut self, a: &Arrived, request: [u8; REQUEST_BYTES]) {
        let word = |at: usize| request[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (number, len) = (word(0), word(8));
        let remote = &mut self.srx.remote;
        let part = remote.take(a.tag, a.data, len, Flags::REMOTE_READ);
        if part.is_some() {
            self.target_cntr(RmaKind::Read).inc(len as usize);
        }
        let (status, context, from, desc) = match part {
            Some((number, part)) => (0, number, part.buf, part.desc),
            // No part has this number.
            None => (Errno::EACCES.0 as u64, u64::MAX, IoBuf::EMPTY, MrDesc::NONE),
        };
        let op = SendOp {
            kind: MsgKind::Remote(RemoteKind::Reply),
            dest: a.src,
            tag: number,
            data: status,
            desc,
            context,
            // With a completion, transports report it soon: the region may wait for it.
            flags: Flags::RMA | Flags::REMOTE_CQ_DATA | Flags::COMPLETION,
        };
        self.srx.send_part(RemoteSend { op, from });
    }
}
