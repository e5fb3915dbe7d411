//! Rendezvous: the receiver reads large messages, or the sender writes them.

use ferrofabric_contracts::buffers::parts;
use ferrofabric_contracts::error::{Errno, Result};
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx};
use ferrofabric_contracts::types::{IoBuf, MrDesc, MsgKind};
use ferrofabric_protocol::lanes::protocol_broken;
use ferrofabric_protocol::rendezvous::{Chunk, cut_at_buffers};
use ferrofabric_protocol::table::Key;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{FinStatus, Grant};
use ferrofabric_verbs_sys::ibv_sge;

use super::RdmTransport;
use crate::mr::Access;
use crate::post::{Remote, SendFlags, SendRequest};
use crate::session::{
    ControlMessage, IncomingTransfer, OutgoingTransfer, RcLane, Registered, SessionState,
    TransferWay, WqeKind,
};

impl RdmTransport {
    /// The session of this name with a peer, and its lane if it has one.
    pub(super) fn session_named(
        &mut self,
        peer: u32,
        name: u64,
    ) -> Option<(&mut SessionState, Option<SessionId>)> {
        if let Some(session) = self.peers.at(peer).lane {
            let state = self.state_of(session)?;
            return (state.numbers.name() == name).then_some((state, Some(session)));
        }
        let state = self.peers.at(peer).parked.as_deref_mut()?;
        (state.numbers.name() == name).then_some((state, None))
    }

    /// The session that a lane of either kind carries.
    pub(super) fn state_of(&mut self, session: SessionId) -> Option<&mut SessionState> {
        match self.lanes.of(session) {
            Some(lane) => Some(&mut lane.session),
            None => self.ud.lanes.of(session).map(|lane| &mut lane.session),
        }
    }

    /// Notifies the peer as soon as there is room.
    pub(super) fn notify(&mut self, peer: u32, name: u64, control: ControlMessage) {
        if let Some((state, lane)) = self.session_named(peer, name) {
            state.control_messages.push_back(control);
            if let Some(lane) = lane {
                self.list(lane);
            }
        }
    }

    /// Starts to move a message into its matching receive.
    pub(super) fn start_transfer<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        (kind, arrived, matched): (MsgKind, Arrived, Matched),
        op: u64,
        way: TransferWay,
        owner: &mut O,
    ) {
        if self.session_named(peer, name).is_none() {
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::ECONNRESET,
                0,
                "the sender is gone and its message had not arrived",
            );
        }
        let fit = (matched.buf.len as u64).min(arrived.len);
        if fit == 0 {
            owner.complete_recv(kind, &matched, &arrived, || self.peers.name(peer));
            return self.notify(peer, name, ControlMessage::Fin(op, FinStatus::Ok));
        }
        let Some((matched, buffers)) = buffers_for(&way, &matched, fit, owner) else {
            self.notify(peer, name, ControlMessage::Fin(op, FinStatus::ReadFailed));
            return owner.fail_recv(
                kind,
                &matched,
                &arrived,
                Errno::ENOMEM,
                0,
                "no memory is left for the message: a list of buffers needs one piece to receive it",
            );
        };
        let destinations: Result<Vec<Registered>> = buffers
            .iter()
            .map(|buf| self.destination_for(&way, *buf, matched.desc))
            .collect();
        let destinations = match destinations {
            Ok(destinations) => destinations,
            Err(error) => {
                tracing::warn!("{error}");
                self.notify(peer, name, ControlMessage::Fin(op, FinStatus::ReadFailed));
                return owner.fail_recv(
                    kind,
                    &matched,
                    &arrived,
                    error.errno(),
                    0,
                    "the receive buffer could not be registered with the device; the log says why (most often the limit \
                     of locked memory)",
                );
            }
        };
        let receiving = IncomingTransfer {
            op,
            kind,
            arrived,
            matched,
            destinations,
        };
        self.enter_transfer((peer, name), receiving, way, fit, owner);
    }

    /// Enters a message of which `fit_bytes` have to be moved, and starts the move.
    fn enter_transfer<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        receiving: IncomingTransfer,
        way: TransferWay,
        fit_bytes: u64,
        owner: &mut O,
    ) {
        let Some((state, lane)) = self.session_named(peer, name) else {
            return;
        };
        let op = receiving.op;
        let begun = match way {
            TransferWay::Read(segments) => {
                let segments = match &receiving.destinations[..] {
                    [_] => segments,
                    destinations => {
                        cut_at_buffers(segments, destinations.iter().map(|p| p.buf.len as u64))
                    }
                };
                (state.reads)
                    .start(receiving, segments, fit_bytes)
                    .map(|_| ())
            }
            TransferWay::Written => {
                let address = receiving.matched.buf.addr as u64;
                let rkey = receiving
                    .destinations
                    .first()
                    .map_or(0, |place| place.region.rkey());
                state.receives.insert(receiving).map(|receive| {
                    let grant = Grant {
                        op,
                        receive: receive.to_bits(),
                        address,
                        fit_bytes,
                        rkey,
                    };
                    state.control_messages.push_back(ControlMessage::Cts(grant));
                })
            }
        };
        match begun {
            Ok(()) => {
                if let Some(lane) = lane {
                    self.list(lane);
                    self.run_control_messages(lane);
                    self.run_reads(lane);
                }
            }
            Err(r) => {
                self.notify(peer, name, ControlMessage::Fin(op, FinStatus::Cancelled));
                owner.fail_recv(
                    r.kind,
                    &r.matched,
                    &r.arrived,
                    Errno::ENOMEM,
                    0,
                    "too many transfers at a time",
                );
            }
        }
    }

    /// Registered memory that the message is read into, or that its sender writes.
    fn destination_for(
        &mut self,
        way: &TransferWay,
        buf: IoBuf,
        desc: MrDesc,
    ) -> Result<Registered> {
        let registrations = &mut self.poster.registrations;
        let (described, access) = match way {
            TransferWay::Read(_) => {
                let access = Access::LOCAL_WRITE;
                (registrations.described(desc, buf, access), access)
            }
            // A peer that writes gets access to exactly the destination.
            TransferWay::Written => (None, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        };
        let region = match described {
            Some(region) => region,
            // SAFETY: the receiver keeps the buffer until the completion, and the region is
            // released before that.
            None => unsafe { registrations.region(buf.as_mut_ptr(), buf.len, access) }?,
        };
        Ok(Registered { buf, region })
    }

    /// A message was read.
    pub(super) fn was_read<O: Owner>(&mut self, session: SessionId, read: Key, owner: &mut O) {
        let Some(lane) = self.lanes.of(session) else {
            return;
        };
        let Some(r) = lane.session.reads.remove(read) else {
            return;
        };
        (lane.session.control_messages).push_back(ControlMessage::Fin(r.op, FinStatus::Ok));
        let peer = lane.peer;
        self.list(session);
        drop(r.destinations);
        owner.complete_recv(r.kind, &r.matched, &r.arrived, || self.peers.name(peer));
    }

    /// The receiver has finished a message, without a write of the sender.
    pub(super) fn on_fin<O: Owner>(
        &mut self,
        session: SessionId,
        op: u64,
        status: FinStatus,
        owner: &mut O,
    ) {
        let Some(state) = self.state_of(session) else {
            return;
        };
        match state.sends.on_fin(op) {
            Ok(send) => match status {
                FinStatus::Ok | FinStatus::Cancelled => owner.complete_send(&send.done),
                FinStatus::ReadFailed => owner.fail_send(
                    &send.done,
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
    pub(super) fn on_cts<O: Owner>(&mut self, session: SessionId, grant: &Grant, owner: &mut O) {
        let Some(state) = self.state_of(session) else {
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

    /// The sender has written a message.
    pub(super) fn on_done<O: Owner>(
        &mut self,
        session: SessionId,
        peer: u32,
        receive: u64,
        owner: &mut O,
    ) {
        let Some(state) = self.state_of(session) else {
            return;
        };
        match state.receives.remove(Key::from_bits(receive)) {
            Some(r) => {
                drop(r.destinations);
                owner.complete_recv(r.kind, &r.matched, &r.arrived, || self.peers.name(peer));
            }
            None => self.break_lane(
                session,
                protocol_broken("the peer wrote to a receive that does not exist"),
            ),
        }
    }

    /// Posts the reads that a lane may have under way.
    pub(super) fn run_reads(&mut self, session: SessionId) -> usize {
        self.run_chunks(session, |lane| {
            let read = lane.session.reads.next_chunk()?;
            let owner = lane.session.reads.owner(read.transfer);
            let (addr, lkey) = owner.and_then(|r| r.place(read.offset_bytes))?;
            let entry = ibv_sge {
                addr,
                length: read.source.length_bytes as u32,
                lkey,
            };
            let remote = Remote {
                addr: read.source.address,
                rkey: read.source.rkey,
            };
            let (wr_id, _) = lane.next(true);
            // The receive's buffer is kept, and nobody else's, until the receive completes: after
            // the read.
            let request = SendRequest::read(wr_id, [entry], remote);
            Some((request, WqeKind::Read(Box::new(read)), None))
        })
    }

    /// Posts the writes that a lane may have under way, and the Done behind the last write of
    /// each message.
    pub(super) fn run_writes(&mut self, session: SessionId) -> usize {
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
            let remote = Remote {
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

    /// Posts the reads or writes that `next` gives, as many as a lane may have under way. The
    /// Done follows the last write of a transfer: that write is held back, to be posted together
    /// with the Done. No other request is held back.
    fn run_chunks(
        &mut self,
        session: SessionId,
        mut next: impl FnMut(&mut RcLane) -> Option<(SendRequest<1>, WqeKind, Option<Key>)>,
    ) -> usize {
        let mut done = 0;
        // Requests that were held back before go first.
        self.post_held_back();
        loop {
            let Some(lane) = self.lanes.of(session) else {
                return done;
            };
            if !lane.is_usable() || !lane.has_reserved_room() {
                return done;
            }
            if self.poster.is_scarce() && !self.poster.has_share(lane) {
                self.stall(session);
                return done;
            }
            let Some((request, kind, ended)) = next(lane) else {
                return done;
            };
            done += 1;
            let request = request.flags(SendFlags::SIGNALED);
            let posted = (self.poster).post_chunk(lane, &request, kind, ended.is_some());
            if posted.is_err() {
                self.lane_broke(session);
                return done;
            }
            if let Some(transfer) = ended {
                self.queue_done(session, transfer);
                self.post_held_back();
            }
        }
    }

    fn queue_done(&mut self, session: SessionId, transfer: Key) {
        if let Some(lane) = self.lanes.of(session) {
            lane.session
                .control_messages
                .push_back(ControlMessage::Done(transfer));
            self.list(session);
            self.run_control_messages(session);
        }
    }
}

/// The destinations of the `fit_bytes` of a matched message: each buffer of the receive's list, if
/// this side reads. A peer that writes needs one address: in place of a list it gets one piece of
/// memory. `None` when there is no memory for that.
fn buffers_for<O: Owner>(
    way: &TransferWay,
    matched: &Matched,
    fit_bytes: u64,
    owner: &mut O,
) -> Option<(Matched, Vec<IoBuf>)> {
    if matched.piece.is_of_list() && matches!(way, TransferWay::Read(_)) {
        let list = parts(owner.srx().segments(matched.piece), 0, fit_bytes as usize);
        return Some((*matched, list.map(|(part, _)| part).collect()));
    }
    let matched = owner.srx().in_one_piece(matched)?;
    Some((matched, vec![matched.buf.part(0, fit_bytes as usize)]))
}
