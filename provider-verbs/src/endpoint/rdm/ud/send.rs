//! Sending on lanes of the UD kind.

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::{Flags, RECEIVER_LEVELS};
use ferrofabric_contracts::peer::{Owner, SendDone};
use ferrofabric_contracts::types::SendOp;
use ferrofabric_protocol::Time;
use ferrofabric_protocol::credit::SendAdmission;
use ferrofabric_protocol::fragmentation::FragmentPlan;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{
    MAX_FIRST_HEADER_BYTES, MAX_HEADER_BYTES, MAX_NOTICE_BYTES, MAX_RTS_BYTES,
};

use super::super::RdmTransport;
use super::super::poster::{PostError, Poster, envelope};
use super::DataQueuePair;
use crate::gather::Readable;
use crate::lane::UdLane;
use crate::session::{ControlMessage, PacketPool, Pending, ResendKind, ResendPacket};

/// The result of numbering a message.
enum Stamped {
    /// Its packets have numbers.
    Whole,
    /// A request to send (RTS) has a number: an RC lane is to carry the message.
    Rts,
    /// No packet has a number: only an RC lane carries even the request to send.
    Outgrown,
}

impl RdmTransport {
    /// Sends a message to a peer with a UD lane for which no other message waits: at once, or later
    /// from the line.
    #[cold]
    pub(in super::super) fn send_datagrams(
        &mut self,
        session: SessionId,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        if let Some(lane) = self.lanes.ud(session).filter(|lane| lane.has_room()) {
            let fenced = op.flags.contains(Flags::FENCE) && lane.session.has_unfinished();
            if !fenced {
                let packets = &mut self.ud.packets;
                match stamp_message(lane, &mut self.poster, packets, op, iov, None) {
                    Err(PostError::Refused(errno, _)) => return Err(OpError::Failed(errno)),
                    Err(_) => {}
                    Ok(stamped) => {
                        let now = self.ud.now();
                        let sent = self.was_stamped(session, &stamped, iov.total_len(), now);
                        self.transmit(session, now);
                        self.set_deadline(session);
                        if sent {
                            return Ok(());
                        }
                    }
                }
            }
        }
        self.enqueue_if_room(at, op, iov)
    }

    /// Gives a lane its turn.
    pub(in super::super) fn run_ud_lane<O: Owner>(
        &mut self,
        session: SessionId,
        owner: &mut O,
    ) -> usize {
        let Some(lane) = self.lanes.ud(session) else {
            return 0;
        };
        lane.turn.begins();
        if !lane.head.gate.is_usable() {
            self.set_deadline(session);
            return 0;
        }
        if lane.session.outgrows(lane.packet_bytes) {
            lane.outgrown = true;
        }
        let now = self.ud.now();
        let mut done = self.stamp_control_messages(session);
        done += self.stamp_pulled(session, now, owner);
        done += self.stamp_pending(session, now, owner);
        done += self.transmit(session, now);
        done += self.acknowledge(session, now);
        self.set_deadline(session);
        if self.lanes.ud(session).is_some_and(|lane| lane.outgrown) {
            done += self.promote(session);
        }
        done
    }

    /// Gives numbers to the control messages.
    fn stamp_control_messages(&mut self, session: SessionId) -> usize {
        let Some(lane) = self.lanes.ud(session) else {
            return 0;
        };
        let mut done = 0;
        while lane.has_room() {
            let Some(control) = lane.session.control_messages.front().copied() else {
                break;
            };
            let Some(header) = lane.session.numbers.stamp() else {
                break;
            };
            lane.session.control_messages.pop_front();
            let mut bytes = [0; MAX_NOTICE_BYTES];
            let (len, kind) = match control {
                ControlMessage::Fin(op, status) => (
                    header.write_fin(op, status, &mut bytes),
                    ResendKind::Control,
                ),
                ControlMessage::Cts(grant) => {
                    (header.write_cts(&grant, &mut bytes), ResendKind::Control)
                }
                ControlMessage::Done(transfer) => {
                    let writing = lane.session.writes.owner(transfer);
                    let receive = writing.map_or(0, |writing| writing.grant.receive);
                    (
                        header.write_done(receive, &mut bytes),
                        ResendKind::Done(transfer),
                    )
                }
                ControlMessage::Pull { op, receive } => (
                    header.write_pull(op, receive, &mut bytes),
                    ResendKind::Control,
                ),
                ControlMessage::Unsent(receive) => (
                    header.write_unsent(receive, &mut bytes),
                    ResendKind::Control,
                ),
            };
            lane.session.resend_queue.push_back(ResendPacket {
                sequence: header.sequence,
                kind,
                bytes: self.ud.packets.copy(&bytes[..len]),
                rest: None,
            });
            done += 1;
        }
        done
    }

    /// Gives numbers to messages that wait.
    fn stamp_pending<O: Owner>(&mut self, session: SessionId, now: Time, owner: &mut O) -> usize {
        let mut done = 0;
        loop {
            let Some(lane) = self.lanes.ud(session) else {
                return done;
            };
            let peer = self.peers.at(lane.head.peer);
            let Some(pending) = peer.pending.front() else {
                return done;
            };
            let fenced = pending.op.flags.contains(Flags::FENCE) && lane.session.has_unfinished();
            if fenced || !lane.has_room() {
                return done;
            }
            let len = pending.len();
            let (poster, packets) = (&mut self.poster, &mut self.ud.packets);
            let stamped = pending
                .with_buffers(|op, iov, copy| stamp_message(lane, poster, packets, op, iov, copy));
            match stamped {
                Ok(stamped) => {
                    if !matches!(stamped, Stamped::Outgrown) {
                        peer.pending.pop_front();
                        done += 1;
                    }
                    if !self.was_stamped(session, &stamped, len, now) {
                        return done;
                    }
                }
                Err(PostError::Refused(errno, why)) => {
                    if let Some(pending) = peer.pending.pop_front() {
                        owner.fail_send(&pending.done(), errno, 0, why);
                    }
                    done += 1;
                }
                Err(PostError::RequestsFull) => {
                    let Some(pending) = peer.pending.pop_front() else {
                        return done;
                    };
                    if let Err(pending) = stamp_envelope(lane, poster, packets, pending) {
                        peer.pending.push_front(pending);
                        return done;
                    }
                    done += 1;
                }
                Err(PostError::LaneFull | PostError::PoolExhausted | PostError::Broken) => {
                    return done;
                }
            }
        }
    }

    /// Gives numbers to the messages that the peer has pulled.
    fn stamp_pulled<O: Owner>(&mut self, session: SessionId, now: Time, owner: &mut O) -> usize {
        let mut done = 0;
        loop {
            let Some(lane) = self.lanes.ud(session).filter(|lane| lane.has_room()) else {
                return done;
            };
            let Some((receive, pending)) = lane.session.envelopes.next_pulled() else {
                return done;
            };
            let len = pending.len();
            let (poster, packets) = (&mut self.poster, &mut self.ud.packets);
            let stamped = pending.with_buffers(|op, iov, copy| {
                stamp_answer(lane, poster, packets, (receive, op), iov, copy)
            });
            match stamped {
                Ok(stamped) => {
                    match stamped {
                        Stamped::Outgrown => lane.session.envelopes.put_back(receive, pending),
                        Stamped::Whole | Stamped::Rts => done += 1,
                    }
                    if !self.was_stamped(session, &stamped, len, now) {
                        return done;
                    }
                }
                Err(PostError::Refused(errno, why)) => {
                    (lane.session.control_messages).push_back(ControlMessage::Unsent(receive));
                    owner.fail_send(&pending.done(), errno, 0, why);
                    self.list(session);
                    done += 1;
                }
                Err(_) => {
                    lane.session.envelopes.put_back(receive, pending);
                    return done;
                }
            }
        }
    }

    /// Acts on the result of numbering a message. Returns `false` if the message waits for an RC
    /// lane.
    fn was_stamped(
        &mut self,
        session: SessionId,
        stamped: &Stamped,
        len: usize,
        now: Time,
    ) -> bool {
        match stamped {
            Stamped::Whole => self.count_message(session, len, now),
            // An RC lane will be needed: once the message is matched, the lane is made at any
            // price.
            Stamped::Rts if self.life.has_room() => self.outgrow(session),
            Stamped::Rts => {}
            Stamped::Outgrown => self.outgrow(session),
        }
        !matches!(stamped, Stamped::Outgrown)
    }

    /// Sends the packets that the window allows.
    fn transmit(&mut self, session: SessionId, now: Time) -> usize {
        let (Some(lane), Some(queue_pair)) = (self.lanes.ud(session), self.ud.queue_pair.as_mut())
        else {
            return 0;
        };
        let (mut done, mut refused) = (0, false);
        if lane.session.outgrows(lane.packet_bytes) {
            return 0;
        }
        while let Some(out) =
            (lane.window).next_packet(&mut self.ud.shared, &lane.session.numbers, now)
        {
            let oldest = lane.session.numbers.oldest_unconfirmed();
            let at = out.sequence.wrapping_sub(oldest) as usize;
            let prefix = lane.prefix(out.ack_at_once).to_bytes();
            let Some(packet) = lane.session.resend_queue.get(at) else {
                tracing::error!("packet {} of {:?} is not kept", out.sequence, lane.head.key);
                break;
            };
            if !queue_pair.send(&mut self.poster, &lane.route, &prefix, &packet.bytes) {
                lane.window.not_sent(&mut self.ud.shared, out);
                refused = true;
                break;
            }
            done += 1;
        }
        if refused {
            self.datagram_refused(session);
        }
        done
    }

    /// A datagram could not be posted: a resource that all lanes share was exhausted, or the queue
    /// pair has failed.
    #[cold]
    fn datagram_refused(&mut self, session: SessionId) {
        self.recover_data_queue_pair();
        if !self.ud.reviving {
            self.stall(session);
        }
    }

    /// Sends an acknowledgement alone, if one is due or credit has to be returned.
    fn acknowledge(&mut self, session: SessionId, now: Time) -> usize {
        let Some(lane) = self.lanes.ud(session) else {
            return 0;
        };
        if !lane.window.is_ack_due(now) && !lane.session.numbers.receive_credit.is_return_due() {
            return 0;
        }
        if let Some(queue_pair) = &mut self.ud.queue_pair {
            queue_pair.send_ack(&mut self.poster, lane);
        }
        1
    }

    /// Sends the last datagram of a lane: once the device has sent it, it uses no handle of the
    /// lane any more. The peer may have finished already.
    pub(super) fn send_last_datagram(&mut self, lane: &mut UdLane) {
        if let Some(queue_pair) = &mut self.ud.queue_pair {
            queue_pair.signal_next();
            queue_pair.send_ack(&mut self.poster, lane);
        }
    }
}

impl DataQueuePair {
    fn send_ack(&mut self, poster: &mut Poster, lane: &mut UdLane) {
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = (lane.session.numbers.stamp_ack()).write_ack(&mut bytes);
        let prefix = lane.prefix(false).to_bytes();
        // Dropped if there is no room, as on the wire: the sender repeats its packet.
        self.send(poster, &lane.route, &prefix, &bytes[..len]);
        poster.counters.sent.acks += 1;
    }
}

/// Gives all packets of a message their numbers, or none, and keeps the packets; or numbers a
/// request to send alone. `copy` is set if `iov` points to a copy of the message in this endpoint.
fn stamp_message(
    lane: &mut UdLane,
    poster: &mut Poster,
    packets: &mut PacketPool,
    op: &SendOp,
    iov: Readable<'_>,
    copy: Option<&[u8]>,
) -> Result<Stamped, PostError> {
    let len = iov.total_len();
    if !lane.session.numbers.may_stamp() {
        return Err(PostError::LaneFull);
    }
    let eager = len <= poster.tuning.eager_bytes && !op.flags.intersects(RECEIVER_LEVELS);
    let credit = &mut lane.session.numbers.send_credit;
    if !eager || credit.admit(len as u32) != SendAdmission::Eager {
        if lane.packet_bytes < MAX_RTS_BYTES {
            return Ok(Stamped::Outgrown);
        }
        let mut bytes = [0; MAX_RTS_BYTES];
        let (len, header) =
            poster.enter_rendezvous(&mut lane.session, op, iov, (copy, None), &mut bytes)?;
        lane.session.resend_queue.push_back(ResendPacket {
            sequence: header.sequence,
            kind: ResendKind::Control,
            bytes: packets.copy(&bytes[..len]),
            rest: None,
        });
        return Ok(Stamped::Rts);
    }
    poster.counters.sent.eager += 1;
    poster.counters.sent.bytes += len as u64;
    let envelope = envelope(op);
    let room = lane.packet_bytes - MAX_FIRST_HEADER_BYTES;
    let plan = FragmentPlan::new(len as u32, room as u32);
    for range in plan.ranges() {
        // Checked above, and the window is far larger than a message.
        let Some(header) = lane.session.numbers.stamp() else {
            break;
        };
        let (start, bytes) = (range.start as usize, range.len());
        let mut head = [0; MAX_FIRST_HEADER_BYTES];
        let mut plain = [0; MAX_HEADER_BYTES];
        let head_len = match (plan.packets(), start) {
            (1, _) => header.write_eager(&envelope, len as u32, &mut plain),
            (_, 0) => header.write_first(&envelope, len as u32, bytes as u32, &mut head),
            _ => header.write_fragment(range.start, bytes as u32, &mut plain),
        };
        if plan.packets() == 1 || start != 0 {
            head[..head_len].copy_from_slice(&plain[..head_len]);
        }
        let mut packet = packets.take(head_len + bytes);
        packet.extend_from_slice(&head[..head_len]);
        // SAFETY: `packet` has room for `bytes` behind the header, and all are written: `range`
        // lies within the message.
        unsafe {
            iov.gather(start, bytes, packet.as_mut_ptr().add(head_len));
            packet.set_len(head_len + bytes);
        }
        let kind = match range.end as usize == len {
            true => ResendKind::Message(SendDone::of(op, len)),
            false => ResendKind::Control,
        };
        lane.session.resend_queue.push_back(ResendPacket {
            sequence: header.sequence,
            kind,
            bytes: packet,
            rest: None,
        });
    }
    Ok(Stamped::Whole)
}

/// Gives the envelope of a message its number, and keeps the message until the peer pulls it.
fn stamp_envelope(
    lane: &mut UdLane,
    poster: &mut Poster,
    packets: &mut PacketPool,
    pending: Pending,
) -> Result<(), Pending> {
    let mut bytes = [0; MAX_NOTICE_BYTES];
    let (len, header) = poster.enter_waiting(&mut lane.session, pending, &mut bytes)?;
    lane.session.resend_queue.push_back(ResendPacket {
        sequence: header.sequence,
        kind: ResendKind::Control,
        bytes: packets.copy(&bytes[..len]),
        rest: None,
    });
    Ok(())
}

/// Gives a message that the peer has pulled its number, or the request to send of one that does not
/// fit into a packet.
fn stamp_answer(
    lane: &mut UdLane,
    poster: &mut Poster,
    packets: &mut PacketPool,
    (receive, op): (u64, &SendOp),
    iov: Readable<'_>,
    copy: Option<&[u8]>,
) -> Result<Stamped, PostError> {
    let len = iov.total_len();
    if !poster.fits_whole(op, len, lane.packet_bytes) {
        if lane.packet_bytes < MAX_RTS_BYTES {
            return Ok(Stamped::Outgrown);
        }
        let mut bytes = [0; MAX_RTS_BYTES];
        let pulled = (copy, Some(receive));
        let (len, header) =
            poster.enter_rendezvous(&mut lane.session, op, iov, pulled, &mut bytes)?;
        lane.session.resend_queue.push_back(ResendPacket {
            sequence: header.sequence,
            kind: ResendKind::Control,
            bytes: packets.copy(&bytes[..len]),
            rest: None,
        });
        return Ok(Stamped::Rts);
    }
    let header = lane.session.numbers.stamp().ok_or(PostError::LaneFull)?;
    poster.counters.sent.eager += 1;
    poster.counters.sent.bytes += len as u64;
    let mut head = [0; MAX_HEADER_BYTES];
    let head_len = header.write_pulled(receive, len as u32, &mut head);
    let mut packet = packets.take(head_len + len);
    packet.extend_from_slice(&head[..head_len]);
    // SAFETY: `packet` has room for `len` bytes behind the header, and all are written.
    unsafe {
        iov.gather(0, len, packet.as_mut_ptr().add(head_len));
        packet.set_len(head_len + len);
    }
    lane.session.resend_queue.push_back(ResendPacket {
        sequence: header.sequence,
        kind: ResendKind::Message(SendDone::of(op, len)),
        bytes: packet,
        rest: None,
    });
    Ok(Stamped::Whole)
}
