//! Receiving on lanes of the UD kind.

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::Time;
use ferrofabric_protocol::datagram_lane::{HeldPacket, PacketArrival};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{DataPacket, Header, MAX_NOTICE_BYTES};
use ferrofabric_protocol::wire::datagram::{self, DatagramPrefix, PREFIX_BYTES};

use super::super::RdmTransport;
use super::super::recv::take_credit;
use super::HELD_PART;
use crate::qp::UdQp;

impl RdmTransport {
    /// A datagram has arrived in a slot, behind room for a routing header.
    #[cold]
    pub(in super::super) fn on_datagram<O: Owner>(&mut self, slot: u32, bytes: u32, owner: &mut O) {
        self.poster.counters.received.packets += 1;
        let Ok((prefix, header, packet)) = datagram::parse(self.datagram(slot, bytes)) else {
            self.receives.give_back(slot);
            return self.drop_datagram("it is no datagram of a lane");
        };
        let session = header.session;
        if self.lanes.ud(session).is_none() && self.service.has_messages() {
            // The lane may be up while its message has not been read yet.
            self.take_messages(owner);
        }
        let now = self.ud.now();
        let Some(lane) = self.lanes.ud(session) else {
            if !self.on_resume_datagram(&prefix, &header, &packet, owner) {
                self.drop_datagram("its session does not exist");
            }
            self.receives.give_back(slot);
            return;
        };
        if lane.head.gate.is_ending() || lane.route.cookie != prefix.cookie {
            self.receives.give_back(slot);
            return self.drop_datagram("its lane is over");
        }
        if !lane.head.gate.peer_is_up() {
            self.packet_came(session, owner);
        }
        self.list(session);
        if !self.acknowledged(session, &prefix, now, owner) {
            self.receives.give_back(slot);
            return;
        }
        match packet {
            DataPacket::Resume(held) => {
                self.receives.give_back(slot);
                self.resume_again(session, held.name);
            }
            _ if packet.is_numbered() => {
                self.on_numbered(
                    session,
                    (header.sequence, prefix.ack_at_once),
                    (slot, bytes),
                    now,
                    owner,
                );
            }
            _ => self.receives.give_back(slot),
        }
    }

    /// The datagram in a slot; its completion gives the length.
    fn datagram(&self, slot: u32, bytes: u32) -> &'static [u8] {
        let len = (bytes as usize).clamp(UdQp::HEADER_BYTES, self.receives.slot_bytes())
            - UdQp::HEADER_BYTES;
        let at = self.receives.address(slot).wrapping_add(UdQp::HEADER_BYTES);
        // SAFETY: the device has written the slot and does not use it until it is posted again,
        // which the callers do once they no longer use the returned slice; no peer can reach the
        // slot.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// Processes the acknowledgements and the credit in a datagram. Returns `false` if the peer
    /// broke the protocol.
    fn acknowledged<O: Owner>(
        &mut self,
        session: SessionId,
        prefix: &DatagramPrefix,
        now: Time,
        owner: &mut O,
    ) -> bool {
        let Some(lane) = self.lanes.ud(session) else {
            return false;
        };
        let numbers = &mut lane.session.numbers;
        if let Err(why) = numbers.send_credit.on_count(prefix.credit) {
            self.break_protocol(session, &why);
            return false;
        }
        match (lane.window).on_ack(&mut self.ud.shared, numbers, prefix.ack, now) {
            Ok(0) => true,
            Ok(count) => {
                (lane.session).confirm_arrived(count, &mut self.ud.packets, owner);
                true
            }
            Err(why) => {
                self.break_protocol(session, &why);
                false
            }
        }
    }

    /// Handles a numbered packet: delivers it and the packets that waited for it, or keeps or drops
    /// it.
    fn on_numbered<O: Owner>(
        &mut self,
        session: SessionId,
        numbered: (u32, bool),
        (slot, bytes): (u32, u32),
        now: Time,
        owner: &mut O,
    ) {
        let may_hold = self.ud.held_slots < self.poster.tuning.datagram_receives / HELD_PART;
        let Some(lane) = self.lanes.ud(session) else {
            return self.receives.give_back(slot);
        };
        let arrival = lane.window.arrive(
            &mut self.ud.shared,
            &mut lane.session.numbers,
            numbered,
            (slot, bytes),
            may_hold,
            now,
        );
        match arrival {
            PacketArrival::Deliver((slot, bytes)) => {
                self.deliver_datagram(session, slot, bytes, owner);
                self.deliver_unexpected(session, owner);
            }
            PacketArrival::Hold => {
                self.ud.held_slots += 1;
                self.receives.hold(slot);
            }
            PacketArrival::Drop((slot, _)) => self.receives.give_back(slot),
        }
    }

    fn deliver_unexpected<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        loop {
            let Some(lane) = self
                .lanes
                .ud(session)
                .filter(|lane| !lane.head.gate.is_ending())
            else {
                return;
            };
            let Some(held) = lane.window.next_held(&mut lane.session.numbers) else {
                return;
            };
            self.ud.held_slots -= 1;
            match held {
                HeldPacket::Deliver((slot, bytes)) => {
                    self.deliver_datagram(session, slot, bytes, owner);
                }
                HeldPacket::Drop((slot, _)) => self.receives.give_back(slot),
            }
        }
    }

    /// The packet in a slot is the next of its session.
    fn deliver_datagram<O: Owner>(
        &mut self,
        session: SessionId,
        slot: u32,
        bytes: u32,
        owner: &mut O,
    ) {
        // The packet was parsed when it arrived.
        let packet = self.datagram(slot, bytes).get(PREFIX_BYTES..);
        if let (Some(Ok((_, packet))), Some(lane)) =
            (packet.map(DataPacket::parse), self.lanes.ud(session))
        {
            let from = (lane.head.peer, lane.session.numbers.name());
            match take_credit(&mut lane.session, &packet) {
                Ok(()) => self.take_packet(session, from, packet, owner),
                Err(why) => self.break_protocol(session, &*why),
            }
        }
        self.receives.give_back(slot);
    }

    /// The peer requests the Resume again: it has not received it.
    fn resume_again(&mut self, session: SessionId, name: u64) {
        let (Some(lane), Some(queue_pair)) = (self.lanes.ud(session), self.ud.queue_pair.as_mut())
        else {
            return;
        };
        tracing::debug!(
            "the peer of {:?} resumes session {name:#x} once more",
            lane.head.key
        );
        let header = Header {
            session: lane.session.numbers.remote,
            sequence: lane.session.numbers.expected(),
            credit: 0,
        };
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = header.write_resume(&lane.session.numbers.held(), &mut bytes);
        let prefix = lane.prefix(false).to_bytes();
        queue_pair.send(&mut self.poster, &lane.route, &prefix, &bytes[..len]);
    }

    #[cold]
    fn drop_datagram(&mut self, why: &'static str) {
        self.poster.counters.received.dropped += 1;
        tracing::debug!("datagram dropped: {why}");
    }
}
