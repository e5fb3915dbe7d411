//! A lane: both halves, under one session.

use super::SharedLaneState;
use super::receiver::{HeldPacket, PacketArrival, PacketReceiver};
use super::sender::{OutgoingPacket, PacketSender};
use crate::Time;
use crate::session::{Session, SessionError};
use crate::wire::datagram::Ack;

/// The UD lane of one session. `T` is where a packet that arrived lies, for those that the lane
/// keeps until the ones before them are there.
///
/// The owner keeps the packets that are not confirmed, by number, and gives the session and the
/// same [`SharedLaneState`] to each call. After any of them [`DatagramLane::deadline`] may be
/// another.
#[derive(Clone, Debug)]
pub struct DatagramLane<T> {
    sender: PacketSender,
    receiver: PacketReceiver<T>,
}

impl<T> DatagramLane<T> {
    /// The lane of a session: a new one, or one that was on another lane. `seed` spreads the probes
    /// in time.
    #[must_use]
    pub fn new(shared: &SharedLaneState, session: &Session, seed: u64) -> Self {
        DatagramLane {
            sender: PacketSender::new(&shared.config, session.oldest_unconfirmed(), seed),
            receiver: PacketReceiver::new(session.expected()),
        }
    }

    /// Whether a packet that is stamped now goes out at once. Packets may be stamped without; they
    /// wait here.
    #[inline]
    #[must_use]
    pub fn has_room(&self, session: &Session) -> bool {
        self.sender.has_room(session)
    }

    /// The next packet to send: one that was lost, the oldest one as a probe, or one that was
    /// stamped since. Call it until it gives none, after packets were stamped, after an
    /// acknowledgement, and after a deadline.
    #[inline]
    pub fn next_packet(
        &mut self,
        shared: &mut SharedLaneState,
        session: &Session,
        now: Time,
    ) -> Option<OutgoingPacket> {
        self.sender.next_packet(shared, session, now)
    }

    /// The packet that [`DatagramLane::next_packet`] gave last could not be posted (a full send
    /// queue): it comes again.
    pub fn not_sent(&mut self, shared: &mut SharedLaneState, outgoing: OutgoingPacket) {
        self.sender.not_sent(outgoing, shared);
    }

    /// Takes the acknowledgement of a datagram that arrived, old or new. Returns how many packets
    /// that confirms, from the oldest on.
    ///
    /// # Errors
    /// [`SessionError::Confirmation`] for packets that were never sent; nothing is changed.
    #[inline]
    pub fn on_ack(
        &mut self,
        shared: &mut SharedLaneState,
        session: &mut Session,
        ack: Ack,
        now: Time,
    ) -> Result<u32, SessionError> {
        self.sender.on_ack(shared, session, ack, now)
    }

    /// Judges a numbered packet that arrived, by its number and by its flag for an immediate
    /// acknowledgement. `may_hold` says whether the lane may keep the buffer of `packet` if the
    /// packet came too early.
    #[inline]
    pub fn arrive(
        &mut self,
        shared: &mut SharedLaneState,
        session: &mut Session,
        numbered: (u32, bool),
        packet: T,
        may_hold: bool,
        now: Time,
    ) -> PacketArrival<T> {
        self.receiver
            .arrive(shared, session, numbered, packet, may_hold, now)
    }

    /// The next held packet that the session expects now, or that it has by now from another lane.
    /// Call this until it returns none, after the session took a packet from any lane.
    #[inline]
    pub fn next_held(&mut self, session: &mut Session) -> Option<HeldPacket<T>> {
        self.receiver.next_held(session)
    }

    /// The acknowledgement for a datagram that is sure to go out now.
    #[inline]
    pub fn ack(&mut self, session: &Session) -> Ack {
        self.receiver.ack(session)
    }

    /// Whether an Ack packet should go out although nothing else does. Call this after all arrivals
    /// were handled and all replies were sent.
    #[inline]
    #[must_use]
    pub fn is_ack_due(&self, now: Time) -> bool {
        self.receiver.is_ack_due(now)
    }

    /// When to call [`DatagramLane::on_deadline`]; a time that is past for at once.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        match (self.sender.deadline(), self.receiver.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The deadline is reached. Afterwards there may be packets to send, or an Ack. Returns whether
    /// the owner should check that the peer still has the lane, because many probes in a row have
    /// no answer.
    pub fn on_deadline(&mut self, shared: &SharedLaneState, session: &Session, now: Time) -> bool {
        self.sender.on_deadline(&shared.config, session, now)
            && self.sender.probes > shared.config.suspect_after
    }

    /// The session sends on another lane from now on, and begins there with its unconfirmed
    /// packets. Arrivals and acknowledgements continue on this lane, because the peer may change
    /// lanes later and datagrams may be late.
    pub fn pause(&mut self) {
        self.sender.pause();
    }

    /// The session sends on this lane again, and begins with its unconfirmed packets.
    pub fn resume(&mut self) {
        self.sender.resume();
    }

    /// Whether the session sends on another lane.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn is_paused(&self) -> bool {
        self.sender.is_paused()
    }

    /// Gives back the packets that are kept: the session has ended, or room is short and the sender
    /// will repeat them.
    pub fn release(&mut self, session: &Session) -> impl Iterator<Item = T> + use<T> {
        self.receiver.release(session)
    }

    #[cfg(test)]
    pub(crate) fn window(&self) -> u32 {
        self.sender.window()
    }

    #[cfg(test)]
    pub(crate) fn assert_counts(&self, session: &Session) {
        self.sender.assert_counts(session);
    }
}
