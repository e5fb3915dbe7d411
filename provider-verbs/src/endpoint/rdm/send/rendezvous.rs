//! The sender's side of rendezvous: the request to send (RTS), which the peer answers by reading
//! the message and a fin, or by a buffer (CTS) that this side writes the message to.

use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, PART_REFUSED, SendDone};
use ferrofabric_contracts::types::{IoBuf, MrDesc, MsgKind, SendOp, total_len};
use ferrofabric_protocol::envelopes::WaitingMessages;
use ferrofabric_protocol::lanes::protocol_broken;
use ferrofabric_protocol::rendezvous::Chunk;
use ferrofabric_protocol::table::Key;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{
    FinStatus, Grant, Header, MAX_RTS_BYTES, MAX_SEGMENTS, MemorySegment, rts_bytes,
};
use ferrofabric_verbs_sys::ibv_sge;

use super::super::RdmTransport;
use super::super::poster::{PostError, Poster, envelope};
use crate::gather::Readable;
use crate::lane::{RcLane, WqeKind};
use crate::mr::Access;
use crate::post::{RemoteMemory, SendRequest};
use crate::registration::MemoryRegion;
use crate::session::{ControlMessage, OutgoingTransfer, Pending, RendezvousSend, SessionState};

impl RdmTransport {
    /// The receiver has finished a message, without a write of the sender.
    pub(in super::super) fn on_fin<O: Owner>(
        &mut self,
        session: SessionId,
        op: u64,
        status: FinStatus,
        owner: &mut O,
    ) {
        let Some(state) = self.lanes.session(session) else {
            return;
        };
        let done = match WaitingMessages::<Pending>::is_op(op) {
            false => state.sends.on_fin(op).map(|send| send.done),
            true => (state.envelopes.on_fin(op)).map(|waits| SendDone::of(&waits.op, waits.len())),
        };
        match done {
            Ok(done) => match status {
                FinStatus::Cancelled if matches!(done.kind, MsgKind::Remote(_)) => {
                    owner.fail_send(&done, Errno::EACCES, 0, PART_REFUSED);
                }
                FinStatus::Ok | FinStatus::Cancelled => owner.complete_send(&done),
                FinStatus::ReadFailed => owner.fail_send(
                    &done,
                    Errno::EREMOTEIO,
                    0,
                    "the receiver could not receive the message",
                ),
            },
            Err(_) => self.break_lane(
                session,
                protocol_broken("the peer ended an operation that does not exist"),
            ),
        }
        // A fence may have waited for the message.
        self.list_if_busy(session);
    }

    /// The receiver grants a buffer to which the sender may write.
    pub(in super::super) fn on_cts<O: Owner>(
        &mut self,
        session: SessionId,
        grant: &Grant,
        owner: &mut O,
    ) {
        let Some(state) = self.lanes.session(session) else {
            return;
        };
        let granted = match state.sends.on_fin(grant.op) {
            Ok(mut send) if grant.fit_bytes <= send.total_bytes => match send.local.take() {
                Some(local) => {
                    let writing = OutgoingTransfer {
                        send,
                        grant: *grant,
                        done_queued: false,
                    };
                    // There is as much room for writes as for sends, and this was a send.
                    let started = state.writes.start(writing, local, grant.fit_bytes);
                    started.map(|_| ()).map_err(|writing| Some(writing.send))
                }
                None => Err(Some(send)),
            },
            Ok(send) => Err(Some(send)),
            Err(_) => Err(None),
        };
        if let Err(send) = granted {
            let end = protocol_broken("the peer granted a buffer for no message of this side");
            // The send is not in the session's table any more, with which it would end. The peer
            // may have keys that it must not use any more.
            if let Some(send) = send {
                (send.regions.iter()).for_each(|region| self.poster.registrations.forget(region));
                owner.fail_send(&send.done, end.errno, end.status, end.why);
            }
            return self.break_lane(session, end);
        }
        self.run_writes(session);
        self.list_if_busy(session);
    }

    /// Posts the writes that a lane may have under way, and the Done behind the last write of
    /// each message.
    pub(in super::super) fn run_writes(&mut self, session: SessionId) -> usize {
        self.run_chunks(session, |lane| {
            let write = lane.session.writes.next_chunk()?;
            let w = lane.session.writes.owner_mut(write.transfer)?;
            let Chunk {
                transfer,
                offset_bytes,
                source,
                is_last,
            } = write;
            let entry = ibv_sge {
                addr: source.address,
                length: source.length_bytes as u32,
                lkey: source.rkey,
            };
            let remote = RemoteMemory {
                addr: w.grant.address + offset_bytes,
                rkey: w.grant.rkey,
            };
            let tell = is_last && !w.done_queued;
            w.done_queued |= is_last;
            let (wr_id, _) = lane.next(true);
            // The sender's buffer is kept until the send completes: after the Done behind the
            // write.
            let request = SendRequest::write(wr_id, [entry], remote);
            let kind = WqeKind::Write(Box::new(write));
            Some((request, kind, tell.then_some(transfer)))
        })
    }

    /// Notifies the peer that all of a message was written.
    pub(in super::super) fn queue_done(&mut self, session: SessionId, transfer: Key) {
        if let Some(lane) = self.lanes.rc(session) {
            lane.session
                .control_messages
                .push_back(ControlMessage::Done(transfer));
            self.list(session);
            self.run_control_messages(session);
        }
    }
}

impl Poster {
    /// Posts a request to send for a message; `pulled` names the receive that has pulled it, if one
    /// has.
    #[cold]
    pub(in super::super) fn request(
        &mut self,
        lane: &mut RcLane,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
        pulled: Option<u64>,
    ) -> std::result::Result<(), PostError> {
        if !self.has_place_for_control(lane, rts_bytes(iov.list().len().min(MAX_SEGMENTS))) {
            return Err(PostError::PoolExhausted);
        }
        let mut bytes = [0; MAX_RTS_BYTES];
        let (len, header) =
            self.enter_rendezvous(&mut lane.session, op, iov, (copy, pulled), &mut bytes)?;
        self.control(lane, &bytes[..len], WqeKind::Control, header)
    }

    /// The region of a piece of a message. If the peer reads it, the peer gets a key, which must
    /// open the message alone.
    ///
    /// # Safety
    ///
    /// As [`Registrations::region`](crate::registration::Registrations::region).
    unsafe fn source(
        &mut self,
        buf: IoBuf,
        desc: MrDesc,
        is_copy: bool,
    ) -> Result<Arc<MemoryRegion>> {
        let (at, len) = (buf.as_mut_ptr(), buf.len);
        let registrations = &mut self.registrations;
        if self.tuning.rendezvous.sender_writes {
            return match registrations.described(desc, buf, Access::empty()) {
                Some(region) => Ok(region),
                // SAFETY: the caller's promise.
                None => unsafe { registrations.region(at, len, Access::empty()) },
            };
        }
        if is_copy {
            // Other data will lie where the copy lies.
            // SAFETY: the caller's promise.
            return unsafe { registrations.region_once(at, len, Access::REMOTE_READ) };
        }
        // SAFETY: the caller's promise.
        unsafe { registrations.region(at, len, Access::REMOTE_READ) }
    }

    /// Enters a rendezvous message, which the peer reads or gives a buffer for, and writes its
    /// request to send (RTS). `copy` and `pulled` are as in [`request`](Self::request).
    pub(in super::super) fn enter_rendezvous(
        &mut self,
        session: &mut SessionState,
        op: &SendOp,
        iov: Readable<'_>,
        (copy, pulled): (Option<&[u8]>, Option<u64>),
        bytes: &mut [u8; MAX_RTS_BYTES],
    ) -> std::result::Result<(usize, Header), PostError> {
        // The peer has to finish some first. Nothing is registered for this message until then.
        match pulled {
            None if session.sends.is_full() => return Err(PostError::RequestsFull),
            Some(_) if session.sends.is_full_of_pulled() => return Err(PostError::LaneFull),
            _ => {}
        }
        let mut copied = None;
        let mut owned = [IoBuf::EMPTY];
        let iov = if op.flags.contains(Flags::INJECT) && !iov.list().is_empty() {
            let bytes: Box<[u8]> = copy.map_or_else(|| iov.to_bytes(), Into::into);
            owned[0] = IoBuf::new(bytes.as_ptr(), bytes.len());
            copied = Some(bytes);
            &owned[..]
        } else {
            iov.list()
        };
        let desc = copied.as_ref().map_or(op.desc, |_| MrDesc::NONE);
        let writes = self.tuning.rendezvous.sender_writes;
        let mut regions = Vec::new();
        let mut segments = Vec::with_capacity(iov.len());
        for buf in iov.iter().filter(|buf| buf.len != 0) {
            // SAFETY: the buffer stays until the operation completes, and the region is released
            // before that.
            let region = unsafe { self.source(*buf, desc, copied.is_some()) }.map_err(refused)?;
            let key = if writes { region.lkey() } else { region.rkey() };
            regions.push(region);
            segments.push(MemorySegment {
                address: buf.addr as u64,
                length_bytes: buf.len as u64,
                rkey: key,
            });
        }
        if !writes && segments.len() > MAX_SEGMENTS {
            let why = "the message has too many pieces";
            return Err(PostError::Refused(Errno::EINVAL, why));
        }
        let total = total_len(iov) as u64;
        if !session.numbers.may_stamp() {
            return Err(PostError::LaneFull);
        }
        let send = RendezvousSend {
            done: SendDone::of(op, total as usize),
            local: writes.then(|| segments.clone()),
            total_bytes: total,
            regions,
            _copy: copied,
        };
        let number = match pulled {
            None => session.sends.insert(send),
            Some(_) => session.sends.insert_pulled(send),
        };
        let number = number.map_err(|_| PostError::LaneFull)?;
        let header = session.numbers.stamp().ok_or(PostError::LaneFull)?;
        let envelope = envelope(op);
        let written = match (writes, pulled) {
            (true, None) => Ok(header.write_offer(&envelope, number, total, bytes)),
            (false, None) => header.write_rts(&envelope, number, &segments, bytes),
            (true, Some(receive)) => Ok(header.write_pulled_offer(receive, number, total, bytes)),
            (false, Some(receive)) => header.write_pulled_rts(receive, number, &segments, bytes),
        };
        // Room was checked above, and no segment is empty.
        let len = written.unwrap_or(0);
        self.counters.sent.rendezvous += 1;
        self.counters.sent.bytes += total;
        Ok((len, header))
    }
}

#[cold]
fn refused(error: Error) -> PostError {
    tracing::warn!("{error}");
    PostError::Refused(
        error.errno(),
        "the message could not be registered with the device; the log says why (most often the limit of locked memory)",
    )
}
