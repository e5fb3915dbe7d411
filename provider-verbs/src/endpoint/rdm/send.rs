//! Sending: at once when the lane has room, else in line.

use std::sync::Arc;

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::error::{Errno, OpError};
use ferrofabric_core::flags::Flags;
use ferrofabric_core::peer::{Owner, SendDone};
use ferrofabric_core::protocol::credit::Admission;
use ferrofabric_core::protocol::wire::SessionId;
use ferrofabric_core::protocol::wire::data::{
    Envelope, Header, MAX_HEADER_BYTES, MAX_RTS_BYTES, Segment,
};
use ferrofabric_core::types::{FiAddr, IoBuf, MsgKind, SendOp, total_len};
use ferrofabric_verbs_sys::ibv_sge;

use super::{Counters, MAX_PENDING, RdmTransport};
use crate::connect::ToService;
use crate::mr::{Access, Mr};
use crate::pd::Pd;
use crate::post::{SendFlags, SendRequest, inline_sge};
use crate::session::{
    Gathered, Lane, Link, Pending, RendezvousSend, SendSlot, SlotPool, Wqe, WqeKind,
};
use crate::tuning::Tuning;

/// Largest inline send that is assembled on the stack, in bytes.
const MAX_INLINE_BYTES: usize = 512;

/// How posting a message went, short of success.
pub(super) enum Stop {
    /// No room now.
    Wait,
    /// The message itself can not be sent.
    Refused(Errno, &'static str),
    /// The lane is dead. The message was entered, and ends with the lane.
    Broken,
}

impl RdmTransport {
    #[cold]
    pub(super) fn add_route(&mut self, addr: FiAddr, name: &NativeAddr) -> Result<u32, OpError> {
        if name.verbs.is_none() {
            return Err(OpError::Failed(Errno::EHOSTUNREACH));
        }
        Ok(self.peers.route(addr, name))
    }

    #[inline]
    pub(super) fn send_to(&mut self, at: u32, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let peer = self.peers.at(at);
        if let Link::Up(session) = peer.link {
            if peer.pending.is_empty() {
                if let Some(lane) = self.lanes.of(session) {
                    if lane.may_send && lane.failing.is_none() {
                        match self.poster.message(lane, op, iov, None) {
                            Ok(()) => return Ok(()),
                            Err(Stop::Wait) => {}
                            Err(Stop::Refused(errno, _)) => return Err(OpError::Failed(errno)),
                            Err(Stop::Broken) => {
                                self.lane_broke(session);
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        if self.peers.at(at).pending.len() >= MAX_PENDING {
            return Err(OpError::Again);
        }
        self.enqueue(at, op, iov);
        Ok(())
    }

    /// Puts a message in line for its peer's lane, and asks for the lane if there is none.
    #[cold]
    pub(super) fn enqueue(&mut self, at: u32, op: &SendOp, iov: &[IoBuf]) {
        let peer = self.peers.at(at);
        let iov = match op.flags.contains(Flags::INJECT) {
            true => Gathered::Copied(copy_of(iov)),
            false => Gathered::Borrowed(iov.into()),
        };
        peer.pending.push_back(Pending { op: *op, iov });
        match peer.link {
            Link::Idle => {
                peer.link = Link::Connecting;
                let key = peer.key;
                self.service.request(ToService::Connect(key));
            }
            Link::Connecting => {}
            Link::Up(session) => self.list(session),
        }
    }

    /// Posts what waits for a lane. Says how many.
    pub(super) fn run_pending<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        let mut done = 0;
        loop {
            let Some(lane) = self.lanes.of(session) else {
                return done;
            };
            if !lane.may_send || lane.failing.is_some() {
                return done;
            }
            let peer = self.peers.at(lane.peer);
            let Some(pending) = peer.pending.pop_front() else {
                return done;
            };
            let posted = match &pending.iov {
                Gathered::Borrowed(iov) => self.poster.message(lane, &pending.op, iov, None),
                Gathered::Copied(bytes) => self.poster.message(
                    lane,
                    &pending.op,
                    &[IoBuf::new(bytes.as_ptr(), bytes.len())],
                    Some(bytes),
                ),
            };
            match posted {
                Ok(()) => done += 1,
                Err(Stop::Wait) => {
                    peer.pending.push_front(pending);
                    return done;
                }
                Err(Stop::Refused(errno, why)) => {
                    owner.fail_send(&pending.done(), errno, 0, why);
                    done += 1;
                }
                Err(Stop::Broken) => {
                    self.lane_broke(session);
                    return done;
                }
            }
        }
    }

    /// Posts the notices that wait for a lane.
    pub(super) fn run_notices(&mut self, session: SessionId) -> usize {
        let Some(lane) = self.lanes.of(session) else {
            return 0;
        };
        if !lane.may_send || lane.failing.is_some() {
            return 0;
        }
        match self.poster.notices(lane) {
            Ok(done) => done,
            Err(_) => {
                self.lane_broke(session);
                1
            }
        }
    }
}

/// Posts to lanes: what all lanes share for that.
pub(super) struct Poster {
    pub(super) bounces: SlotPool,
    pub(super) tuning: Tuning,
    /// Work requests under way, of all lanes.
    pub(super) outstanding: usize,
    /// Sends that want no completion are to be told of soon all the same.
    pub(super) counts_sends: bool,
    pub(super) counters: Counters,
    pub(super) pd: Arc<Pd>,
}

impl Poster {
    /// Posts a message: eagerly if it is small and the peer has room for it, else as a request. `copy` is what `iov`
    /// points to, if that is ours.
    #[inline]
    fn message(
        &mut self,
        lane: &mut Lane,
        op: &SendOp,
        iov: &[IoBuf],
        copy: Option<&[u8]>,
    ) -> Result<(), Stop> {
        if !lane.has_room() || self.outstanding >= self.tuning.send_total {
            return Err(Stop::Wait);
        }
        let len = total_len(iov);
        let eager_bytes = self
            .tuning
            .eager_bytes
            .min(lane.peer_receive_bytes.saturating_sub(MAX_HEADER_BYTES));
        if len <= eager_bytes {
            let fits_inline = len + MAX_HEADER_BYTES <= self.tuning.inline_bytes;
            let slot = match fits_inline {
                true => None,
                false => Some(self.bounces.take().ok_or(Stop::Wait)?),
            };
            if lane.session.send_credit.admit(len as u32) == Admission::Eager {
                return self.eager(lane, op, iov, len, slot);
            }
            if let Some(slot) = slot {
                self.bounces.give(slot);
            }
        }
        self.request(lane, op, iov, copy)
    }

    #[inline]
    fn eager(
        &mut self,
        lane: &mut Lane,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
        slot: Option<u32>,
    ) -> Result<(), Stop> {
        let header = Self::stamp(lane)?;
        let mut head = [0; MAX_HEADER_BYTES];
        let head_len = header.write_eager(&envelope(op), len as u32, &mut head);
        let kind = WqeKind::Message(SendDone::from(op));
        self.counters.eager_sent += 1;
        self.counters.bytes_sent += len as u64;
        let Some(slot) = slot else {
            let mut bytes = [0u8; MAX_INLINE_BYTES];
            bytes[..head_len].copy_from_slice(&head[..head_len]);
            gather(iov, bytes[head_len..].as_mut_ptr());
            return self.inline(lane, &bytes[..head_len + len], kind, header);
        };
        let at = self.bounces.address(slot);
        // SAFETY: the slot holds the largest header and message, and is ours until its request is over.
        unsafe { at.copy_from_nonoverlapping(head.as_ptr(), head_len) };
        let lkey = self.bounces.lkey();
        let (wr_id, flags) = self.next(lane, &kind);
        let posted = match (iov, op.desc as u32) {
            ([one], desc) if desc != 0 => {
                let entries = [
                    entry(at as u64, head_len, lkey),
                    entry(one.addr as u64, one.len, desc),
                ];
                let mut request = SendRequest::send(wr_id, entries).flags(flags);
                // SAFETY: the slot is kept, and the application keeps its buffer until the completion.
                unsafe { request.post(&lane.qp) }
            }
            _ => {
                gather(iov, at.wrapping_add(head_len));
                let mut request =
                    SendRequest::send(wr_id, [entry(at as u64, head_len + len, lkey)]).flags(flags);
                // SAFETY: the slot is kept until the request is over.
                unsafe { request.post(&lane.qp) }
            }
        };
        self.posted(
            lane,
            posted,
            kind,
            SendSlot(Some(slot)),
            Some(header.sequence),
        )
    }

    /// Asks the peer to read the message.
    #[cold]
    fn request(
        &mut self,
        lane: &mut Lane,
        op: &SendOp,
        iov: &[IoBuf],
        copy: Option<&[u8]>,
    ) -> Result<(), Stop> {
        let mut kept = None;
        let mut owned = [IoBuf::EMPTY];
        let iov = if op.flags.contains(Flags::INJECT) && !iov.is_empty() {
            let bytes: Box<[u8]> = copy.map_or_else(|| copy_of(iov), Into::into);
            owned[0] = IoBuf::new(bytes.as_ptr(), bytes.len());
            kept = Some(bytes);
            &owned[..]
        } else {
            iov
        };
        let desc = if kept.is_some() { 0 } else { op.desc };
        let mut regions = Vec::new();
        let mut segments = Vec::with_capacity(iov.len());
        for buf in iov.iter().filter(|buf| buf.len != 0) {
            let rkey = match (desc >> 32) as u32 {
                0 => {
                    // SAFETY: the buffer stays until the operation completes, and the region ends before that.
                    let region = unsafe {
                        Mr::register(&self.pd, buf.as_mut_ptr(), buf.len, Access::REMOTE_READ)
                    };
                    let region = region.map_err(refused)?;
                    let rkey = region.rkey();
                    regions.push(region);
                    rkey
                }
                rkey => rkey,
            };
            segments.push(Segment {
                address: buf.addr as u64,
                length_bytes: buf.len as u64,
                rkey,
            });
        }
        let send = RendezvousSend {
            done: SendDone::from(op),
            _regions: regions,
            _copy: kept,
        };
        let number = lane.sends.insert(send).map_err(|_| Stop::Wait)?;
        let header = match Self::stamp(lane) {
            Ok(header) => header,
            Err(stop) => {
                let _ = lane.sends.on_fin(number);
                return Err(stop);
            }
        };
        let mut bytes = [0; MAX_RTS_BYTES];
        let Ok(len) = header.write_rts(&envelope(op), number, &segments, &mut bytes) else {
            let _ = lane.sends.on_fin(number);
            return Err(Stop::Refused(
                Errno::EINVAL,
                "the message lies in too many pieces",
            ));
        };
        self.counters.rendezvous_sent += 1;
        self.counters.bytes_sent += total_len(iov) as u64;
        self.notice(lane, &bytes[..len], header)
    }

    fn notices(&mut self, lane: &mut Lane) -> Result<usize, Stop> {
        let mut done = 0;
        while lane.has_reserved_room() {
            let mut bytes = [0; MAX_HEADER_BYTES];
            if let Some(&(op, status)) = lane.fins.front() {
                let header = Self::stamp(lane)?;
                lane.fins.pop_front();
                let len = header.write_fin(op, status, &mut bytes);
                self.notice(lane, &bytes[..len], header)?;
            } else if lane.session.receive_credit.owes() {
                let header = lane.session.stamp_credit();
                let len = header.write_credit(&mut bytes);
                self.unnumbered(lane, &bytes[..len])?;
            } else {
                break;
            }
            done += 1;
        }
        Ok(done)
    }

    /// Posts a credit packet and asks for its acknowledgement, which only a living queue pair gives.
    pub(super) fn probe(&mut self, lane: &mut Lane) -> Result<(), Stop> {
        if self.outstanding >= self.tuning.send_total {
            return Ok(());
        }
        let mut bytes = [0; MAX_HEADER_BYTES];
        let len = lane.session.stamp_credit().write_credit(&mut bytes);
        let (wr_id, _) = lane.next(true);
        let mut request = SendRequest::send(wr_id, [inline_sge(&bytes[..len])])
            .flags(SendFlags::SIGNALED | SendFlags::INLINE);
        // SAFETY: inline data is copied before the call returns.
        let posted = unsafe { request.post(&lane.qp) };
        self.posted(lane, posted, WqeKind::Notice, SendSlot(None), None)
    }

    /// Posts a small numbered packet of ours.
    fn notice(&mut self, lane: &mut Lane, bytes: &[u8], header: Header) -> Result<(), Stop> {
        self.small(lane, bytes, WqeKind::Notice, Some(header.sequence))
    }

    fn unnumbered(&mut self, lane: &mut Lane, bytes: &[u8]) -> Result<(), Stop> {
        self.small(lane, bytes, WqeKind::Notice, None)
    }

    #[inline]
    fn inline(
        &mut self,
        lane: &mut Lane,
        bytes: &[u8],
        kind: WqeKind,
        header: Header,
    ) -> Result<(), Stop> {
        self.small(lane, bytes, kind, Some(header.sequence))
    }

    /// Posts a packet that travels in the work request.
    #[inline]
    fn small(
        &mut self,
        lane: &mut Lane,
        bytes: &[u8],
        kind: WqeKind,
        sequence: Option<u32>,
    ) -> Result<(), Stop> {
        let (wr_id, flags) = self.next(lane, &kind);
        let mut request =
            SendRequest::send(wr_id, [inline_sge(bytes)]).flags(flags | SendFlags::INLINE);
        // SAFETY: inline data is copied before the call returns.
        let posted = unsafe { request.post(&lane.qp) };
        self.posted(lane, posted, kind, SendSlot(None), sequence)
    }

    #[inline]
    fn next(&self, lane: &mut Lane, kind: &WqeKind) -> (u64, SendFlags) {
        let wanted = match kind {
            WqeKind::Message(done) => done.flags.contains(Flags::COMPLETION) || self.counts_sends,
            _ => false,
        };
        let (wr_id, signaled) = lane.next(wanted);
        match signaled {
            true => (wr_id, SendFlags::SIGNALED),
            false => (wr_id, SendFlags::empty()),
        }
    }

    #[inline]
    fn stamp(lane: &mut Lane) -> Result<Header, Stop> {
        lane.session.stamp().ok_or(Stop::Wait)
    }

    #[inline]
    fn posted(
        &mut self,
        lane: &mut Lane,
        posted: Result<(), OpError>,
        kind: WqeKind,
        slot: SendSlot,
        sequence: Option<u32>,
    ) -> Result<(), Stop> {
        // Entered also when it was refused: the lane is given up then, and all that is entered ends with it.
        lane.queue.push_back(Wqe {
            number: lane.next_number.wrapping_sub(1),
            kind,
            slot,
            sequence,
        });
        self.outstanding += 1;
        match posted {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!("posting to {} failed: {error}", **lane.qp);
                lane.refused = true;
                Err(Stop::Broken)
            }
        }
    }
}

#[inline]
fn envelope(op: &SendOp) -> Envelope {
    Envelope {
        tag: match op.kind {
            MsgKind::Tagged => Some(op.tag),
            MsgKind::Msg => None,
        },
        cq_data: op.flags.contains(Flags::REMOTE_CQ_DATA).then_some(op.data),
    }
}

#[inline]
fn entry(addr: u64, len: usize, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr,
        length: len as u32,
        lkey,
    }
}

/// Copies a list of buffers to where there is room for all.
#[inline]
fn gather(iov: &[IoBuf], to: *mut u8) {
    let mut at = to;
    for buf in iov {
        // SAFETY: the sender vouches for its buffers; the caller of this has room for their sum.
        unsafe { at.copy_from_nonoverlapping(buf.as_ptr(), buf.len) };
        at = at.wrapping_add(buf.len);
    }
}

fn copy_of(iov: &[IoBuf]) -> Box<[u8]> {
    let mut bytes = vec![0; total_len(iov)];
    gather(iov, bytes.as_mut_ptr());
    bytes.into()
}

#[cold]
fn refused(error: ferrofabric_core::error::Error) -> Stop {
    tracing::warn!("{error}");
    Stop::Refused(
        error.errno(),
        "the message could not be registered with the device; the log says why (most often the limit of locked memory)",
    )
}
