//! The receiver's side of rendezvous: a matched request to send (RTS) becomes a transfer, which
//! this side reads, or to which its sender writes.

use ferrofabric_contracts::buffers::parts;
use ferrofabric_contracts::error::{Errno, Result};
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx};
use ferrofabric_contracts::types::{IoBuf, MrDesc, MsgKind};
use ferrofabric_protocol::lanes::protocol_broken;
use ferrofabric_protocol::rendezvous::cut_at_buffers;
use ferrofabric_protocol::table::Key;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{FinStatus, Grant};
use ferrofabric_verbs_sys::ibv_sge;

use super::super::RdmTransport;
use crate::lane::WqeKind;
use crate::mr::Access;
use crate::post::{RemoteMemory, SendRequest};
use crate::session::{ControlMessage, IncomingTransfer, Registered, TransferMethod};

impl RdmTransport {
    /// Starts to move a message into its matching receive.
    pub(in super::super) fn start_transfer<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        (kind, arrived, matched): (MsgKind, Arrived, Matched),
        op: u64,
        method: TransferMethod,
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
            return self.finish_unmoved((peer, name), (kind, arrived, matched), op, owner);
        }
        let Some((matched, buffers)) = buffers_for(&method, &matched, fit, owner) else {
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
        let is_brief = kind.is_kept_briefly() || matched.piece.is_of_list();
        let destinations: Result<Vec<Registered>> = buffers
            .iter()
            .map(|buf| self.destination_for(&method, *buf, matched.desc, is_brief))
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
        self.enter_transfer((peer, name), receiving, method, fit, owner);
    }

    /// Completes a receive that needs no byte of its message, or has refused it.
    pub(super) fn finish_unmoved<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        (kind, arrived, matched): (MsgKind, Arrived, Matched),
        op: u64,
        owner: &mut O,
    ) {
        owner.complete_recv(kind, &matched, &arrived, || self.peers.name(peer));
        if kind.is_answered() {
            self.send_refusals(peer, owner);
        }
        let status = match matched.is_refused() {
            true => FinStatus::Cancelled,
            false => FinStatus::Ok,
        };
        self.notify(peer, name, ControlMessage::Fin(op, status));
    }

    /// Enters a message of which `fit_bytes` have to be moved, and starts the move.
    fn enter_transfer<O: Owner>(
        &mut self,
        (peer, name): (u32, u64),
        receiving: IncomingTransfer,
        method: TransferMethod,
        fit_bytes: u64,
        owner: &mut O,
    ) {
        let Some((state, lane)) = self.session_named(peer, name) else {
            return;
        };
        let op = receiving.op;
        let begun = match method {
            TransferMethod::Read(segments) => {
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
            TransferMethod::Written => {
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

    /// Registered memory that the message is read into, or that its sender writes. `is_brief`: the
    /// memory is given back when the message is here. Then a peer that writes must not keep its
    /// right, for other data will be there.
    fn destination_for(
        &mut self,
        method: &TransferMethod,
        buf: IoBuf,
        desc: MrDesc,
        is_brief: bool,
    ) -> Result<Registered> {
        let registrations = &mut self.poster.registrations;
        let (described, access) = match method {
            TransferMethod::Read(_) => {
                let access = Access::LOCAL_WRITE;
                (registrations.described(desc, buf, access), access)
            }
            // A peer that writes gets access to exactly the destination.
            TransferMethod::Written => (None, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        };
        let addr = buf.as_mut_ptr();
        let region = match (described, method) {
            (Some(region), _) => region,
            (None, TransferMethod::Written) if is_brief => {
                // SAFETY: the receiver keeps the buffer until the completion, and the region is
                // released before that.
                unsafe { registrations.region_once(addr, buf.len, access) }?
            }
            // SAFETY: as above.
            (None, _) => unsafe { registrations.region(addr, buf.len, access) }?,
        };
        Ok(Registered { buf, region })
    }

    /// A message was read.
    pub(in super::super) fn was_read<O: Owner>(
        &mut self,
        session: SessionId,
        read: Key,
        owner: &mut O,
    ) {
        let Some(lane) = self.lanes.rc(session) else {
            return;
        };
        let Some(r) = lane.session.reads.remove(read) else {
            return;
        };
        (lane.session.control_messages).push_back(ControlMessage::Fin(r.op, FinStatus::Ok));
        let peer = lane.head.peer;
        self.list(session);
        drop(r.destinations);
        owner.complete_recv(r.kind, &r.matched, &r.arrived, || self.peers.name(peer));
        if r.kind.is_answered() {
            self.send_refusals(peer, owner);
        }
    }

    /// The sender has written a message.
    pub(in super::super) fn on_done<O: Owner>(
        &mut self,
        session: SessionId,
        peer: u32,
        receive: u64,
        owner: &mut O,
    ) {
        let Some(state) = self.lanes.session(session) else {
            return;
        };
        match state.receives.remove(Key::from_bits(receive)) {
            Some(r) => {
                drop(r.destinations);
                owner.complete_recv(r.kind, &r.matched, &r.arrived, || self.peers.name(peer));
                if r.kind.is_answered() {
                    self.send_refusals(peer, owner);
                }
            }
            None => self.break_lane(
                session,
                protocol_broken("the peer wrote to a receive that does not exist"),
            ),
        }
    }

    /// Posts the reads that a lane may have under way.
    pub(in super::super) fn run_reads(&mut self, session: SessionId) -> usize {
        self.run_chunks(session, |lane| {
            let read = lane.session.reads.next_chunk()?;
            let owner = lane.session.reads.owner(read.transfer);
            let (addr, lkey) = owner.and_then(|r| r.place(read.offset_bytes))?;
            let entry = ibv_sge {
                addr,
                length: read.source.length_bytes as u32,
                lkey,
            };
            let remote = RemoteMemory {
                addr: read.source.address,
                rkey: read.source.rkey,
            };
            let (wr_id, _) = lane.next(true);
            // The receive's buffer, and no other, is kept until the receive completes: after
            // the read.
            let request = SendRequest::read(wr_id, [entry], remote);
            Some((request, WqeKind::Read(Box::new(read)), None))
        })
    }
}

/// The destinations of the `fit_bytes` of a matched message: each buffer of the receive's list, if
/// this side reads. A peer that writes needs one address: in place of a list it gets one piece of
/// memory. `None` when there is no memory for that.
fn buffers_for<O: Owner>(
    method: &TransferMethod,
    matched: &Matched,
    fit_bytes: u64,
    owner: &mut O,
) -> Option<(Matched, Vec<IoBuf>)> {
    if matched.piece.is_of_list() && matches!(method, TransferMethod::Read(_)) {
        let list = parts(owner.srx().segments(matched.piece), 0, fit_bytes as usize);
        return Some((*matched, list.map(|(part, _)| part).collect()));
    }
    let matched = owner.srx().in_one_piece(matched)?;
    Some((matched, vec![matched.buf.part(0, fit_bytes as usize)]))
}
