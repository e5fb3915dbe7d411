//! The receiving half: order out of disorder, within a bound, and when to acknowledge.

use std::collections::VecDeque;

use super::{DatagramLaneConfig, SharedLaneState};
use crate::Time;
use crate::session::{Accept, Session};
use crate::wire::datagram::{Ack, SPAN};

/// The decision on a packet that arrived. `T` is its receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketArrival<T> {
    /// It is the next one, and counts as taken. Call [`super::DatagramLane::next_held`] after it.
    Deliver(T),
    /// Packets before it are missing: the lane keeps it.
    Hold,
    /// The session does not need it, or not now: its buffer is free.
    Drop(T),
}

/// A packet that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldPacket<T> {
    /// It is the next one now, and counts as taken.
    Deliver(T),
    /// Another lane has brought it: its buffer is free.
    Drop(T),
}

#[derive(Clone, Debug)]
pub(super) struct PacketReceiver<T> {
    /// The number that the session expected at the last call.
    base: u32,
    /// Bit *i*: packet `base + i` is kept.
    held: u64,
    packets: VecDeque<Option<T>>,
    /// Numbered packets that came since the last acknowledgement.
    unacknowledged: u32,
    ack_at: Option<Time>,
    ack_now: bool,
}

impl<T> PacketReceiver<T> {
    pub(super) fn new(base: u32) -> Self {
        PacketReceiver {
            base,
            held: 0,
            packets: VecDeque::new(),
            unacknowledged: 0,
            ack_at: None,
            ack_now: false,
        }
    }

    #[inline]
    pub(super) fn arrive(
        &mut self,
        shared: &mut SharedLaneState,
        session: &mut Session,
        (sequence, ack_at_once): (u32, bool),
        packet: T,
        may_hold: bool,
        now: Time,
    ) -> PacketArrival<T> {
        if self.base == session.expected()
            && self.held & 1 == 0
            && session.accept(sequence) == Accept::Deliver
        {
            // A gap is closed by it, or goes on behind it: the sender is to know.
            self.count_arrival(&shared.config, ack_at_once || self.held != 0, now);
            self.advance();
            return PacketArrival::Deliver(packet);
        }
        self.out_of_order(
            shared,
            session,
            (sequence, ack_at_once),
            packet,
            may_hold,
            now,
        )
    }

    #[cold]
    fn out_of_order(
        &mut self,
        shared: &mut SharedLaneState,
        session: &Session,
        (sequence, ack_at_once): (u32, bool),
        packet: T,
        may_hold: bool,
        now: Time,
    ) -> PacketArrival<T> {
        let expected = session.expected();
        let ahead = sequence.wrapping_sub(expected);
        let at = sequence.wrapping_sub(self.base);
        if ahead > u32::MAX / 2 || at < SPAN && (self.held >> at) & 1 != 0 {
            shared.counters.duplicates += 1;
            self.count_arrival(&shared.config, true, now);
            return PacketArrival::Drop(packet);
        }
        // Numbers count from `base`. If another lane brings packets too, the session is already
        // beyond `base`. The owner's next call of [`PacketReceiver::next_held`] then frees room.
        if at >= SPAN || !may_hold {
            shared.counters.dropped += 1;
            if ack_at_once && at < SPAN {
                self.count_arrival(&shared.config, true, now);
            }
            return PacketArrival::Drop(packet);
        }
        let at = at as usize;
        if self.packets.len() <= at {
            self.packets.resize_with(at + 1, || None);
        }
        self.packets[at] = Some(packet);
        self.held |= 1 << at;
        self.count_arrival(&shared.config, true, now);
        PacketArrival::Hold
    }

    #[inline]
    pub(super) fn next_held(&mut self, session: &mut Session) -> Option<HeldPacket<T>> {
        if self.held == 0 {
            self.base = session.expected();
            return None;
        }
        self.next_out_of_order(session)
    }

    #[cold]
    fn next_out_of_order(&mut self, session: &mut Session) -> Option<HeldPacket<T>> {
        while self.base != session.expected() {
            if let Some(packet) = self.advance() {
                return Some(HeldPacket::Drop(packet));
            }
        }
        if self.held & 1 == 0 || session.accept(self.base) != Accept::Deliver {
            return None;
        }
        self.advance().map(HeldPacket::Deliver)
    }

    /// Takes the packet at `base` out, if it is kept, and goes on to the next number.
    #[inline]
    fn advance(&mut self) -> Option<T> {
        self.base = self.base.wrapping_add(1);
        self.held >>= 1;
        self.packets.pop_front().flatten()
    }

    /// The acknowledgement for a datagram that goes out now.
    #[inline]
    pub(super) fn ack(&mut self, session: &Session) -> Ack {
        self.unacknowledged = 0;
        self.ack_at = None;
        self.ack_now = false;
        let expected = session.expected();
        let behind = expected.wrapping_sub(self.base);
        Ack {
            expected,
            held: self.held.checked_shr(behind.saturating_add(1)).unwrap_or(0),
        }
    }

    #[inline]
    pub(super) fn is_ack_due(&self, now: Time) -> bool {
        self.ack_now || self.ack_at.is_some_and(|at| at <= now)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self.ack_now {
            true => Some(Time(0)),
            false => self.ack_at,
        }
    }

    /// Gives up all that is kept.
    pub(super) fn release(&mut self, session: &Session) -> impl Iterator<Item = T> + use<T> {
        self.held = 0;
        self.base = session.expected();
        std::mem::take(&mut self.packets).into_iter().flatten()
    }

    #[inline]
    fn count_arrival(&mut self, config: &DatagramLaneConfig, at_once: bool, now: Time) {
        self.unacknowledged += 1;
        if at_once || self.unacknowledged >= config.ack_every {
            self.ack_now = true;
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now + config.ack_delay);
        }
    }
}
