//! The sending half: the packets under way, the next packet to send, and the lost ones.

use std::time::Duration;

use fastrand::Rng;

use super::congestion::Congestion;
use super::flights::{Flight, FlightState, Flights};
use super::loss::{Evidence, LossVerdict};
use super::{DatagramLaneConfig, SharedLaneState};
use crate::Time;
use crate::rtt::RttEstimator;
use crate::session::{Session, SessionError};
use crate::wire::datagram::{Ack, SPAN};

/// A numbered packet to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingPacket {
    /// Its number.
    pub sequence: u32,
    /// Whether the receiver should acknowledge at once:
    /// [`crate::wire::datagram::DatagramPrefix::ack_at_once`].
    pub ack_at_once: bool,
    /// Whether it was sent on this lane before.
    pub repeat: bool,
}

#[derive(Clone, Debug)]
pub(super) struct PacketSender {
    flights: Flights,
    /// Whether a flight may have been overtaken: only then they are looked through.
    gaps: bool,
    next_transmission: u64,
    last_sent: Time,
    congestion: Congestion,
    evidence: Evidence,
    rtt: RttEstimator,
    /// Of the packets that the acknowledgement at hand confirms: the last transmission, and its
    /// round trip if known.
    sample: Option<(u64, Option<Duration>)>,
    /// Time of the next probe, if no acknowledgement comes before.
    probe_at: Option<Time>,
    /// When the oldest overtaken packet is overdue.
    overdue_at: Option<Time>,
    /// Probes in a row that brought nothing.
    pub(super) probes: u32,
    probe: bool,
    paused: bool,
    rng: Rng,
}

impl PacketSender {
    pub(super) fn new(config: &DatagramLaneConfig, base: u32, seed: u64) -> Self {
        PacketSender {
            flights: Flights::new(base),
            gaps: false,
            next_transmission: 0,
            last_sent: Time(0),
            congestion: Congestion::new(config.initial_window, config.max_window.min(SPAN)),
            evidence: Evidence::new(),
            rtt: RttEstimator::new(
                config.initial_timeout,
                config.min_timeout,
                config.max_interval,
            ),
            sample: None,
            probe_at: None,
            overdue_at: None,
            probes: 0,
            probe: false,
            paused: false,
            rng: Rng::with_seed(seed),
        }
    }

    #[inline]
    pub(super) fn has_room(&self, session: &Session) -> bool {
        let unconfirmed = session.unconfirmed();
        !self.paused
            && unconfirmed < SPAN
            && unconfirmed.saturating_sub(self.flights.held()) < self.congestion.window()
    }

    /// Whether the window lets a packet out that was not sent before.
    #[inline]
    fn is_open(&self) -> bool {
        self.flights.under_way() < self.congestion.window() && self.flights.len() < SPAN
    }

    #[inline]
    pub(super) fn next_packet(
        &mut self,
        shared: &mut SharedLaneState,
        session: &Session,
        now: Time,
    ) -> Option<OutgoingPacket> {
        if self.paused {
            return None;
        }
        self.catch_up(session);
        if self.probe || self.flights.lost() > 0 {
            if let Some(outgoing) = self.repeat(shared, now) {
                return Some(outgoing);
            }
        }
        if self.flights.len() >= session.unconfirmed() || !self.is_open() {
            return None;
        }
        if self.flights.under_way() == 0 && now - self.last_sent > shared.config.max_interval {
            self.congestion.on_idle(shared.config.initial_window);
        }
        let transmission = self.launch(&shared.config, now);
        let sequence = self.flights.send(now, transmission);
        shared.counters.sent += 1;
        Some(OutgoingPacket {
            sequence,
            ack_at_once: !self.is_open(),
            repeat: false,
        })
    }

    #[cold]
    fn repeat(&mut self, shared: &mut SharedLaneState, now: Time) -> Option<OutgoingPacket> {
        let probe = std::mem::take(&mut self.probe);
        let at = match probe {
            true => 0,
            false if self.flights.under_way() >= self.congestion.window() => return None,
            false => self.flights.first_lost()?,
        };
        if self.flights.get(at)?.state == FlightState::Held {
            // The peer held the packet, and its acknowledgement no longer names it: the peer
            // changed lanes in between. Earlier acknowledgements of held packets then count no
            // more.
            self.flights.forget_held();
        }
        let transmission = self.launch(&shared.config, now);
        self.flights.send_again(at, now, transmission);
        self.gaps = true;
        shared.counters.sent += 1;
        shared.counters.repeated += 1;
        shared.counters.probes += u64::from(probe);
        Some(OutgoingPacket {
            sequence: self.flights.number(at),
            ack_at_once: true,
            repeat: true,
        })
    }

    fn launch(&mut self, config: &DatagramLaneConfig, now: Time) -> u64 {
        let transmission = self.next_transmission;
        self.next_transmission += 1;
        self.last_sent = now;
        self.await_answer(config, now);
        transmission
    }

    /// The packet that was given last did not go out: it comes again.
    pub(super) fn not_sent(&mut self, outgoing: OutgoingPacket, shared: &mut SharedLaneState) {
        let at = self.flights.place(outgoing.sequence);
        if self.flights.not_sent(at, outgoing.repeat) {
            shared.counters.sent -= 1;
            shared.counters.repeated -= u64::from(outgoing.repeat);
        }
    }

    /// Returns how many packets are newly confirmed.
    #[inline]
    pub(super) fn on_ack(
        &mut self,
        shared: &mut SharedLaneState,
        session: &mut Session,
        ack: Ack,
        now: Time,
    ) -> Result<u32, SessionError> {
        let confirmed = session.oldest_unconfirmed();
        let unconfirmed = session.unconfirmed();
        let ahead = |number: u32| number.wrapping_sub(confirmed) as i32;
        if ahead(ack.end()) > unconfirmed as i32 {
            return Err(SessionError::Confirmation {
                confirmed,
                next: confirmed.wrapping_add(unconfirmed),
                got: ack.end(),
            });
        }
        let newly = session.confirm(ack.expected)?;
        if self.paused {
            return Ok(newly);
        }
        self.sample = None;
        let limited = self.flights.under_way() * 2 >= self.congestion.window();
        let mut acked = 0;
        while let Some(flight) = self.flights.take_before(session.oldest_unconfirmed()) {
            acked += u32::from(self.flight_acked(flight, now, shared));
        }
        if ack.held != 0 {
            acked += self.mark_held(ack, now, shared);
        }
        if acked == 0 && newly == 0 {
            return Ok(0);
        }
        // Of the packets that the acknowledgement confirms, the one sent last gives the round trip,
        // because others may have waited for a lost acknowledgement. For a packet that was sent
        // twice the answered transmission is unclear, so it gives none.
        if let Some((_, Some(round_trip))) = self.sample.take() {
            self.rtt.sample(round_trip);
        }
        self.congestion.on_acked(acked, limited);
        self.probes = 0;
        self.probe = false;
        self.await_answer(&shared.config, now);
        if self.flights.is_empty() {
            self.probe_at = None;
        }
        if self.gaps {
            self.find_losses(now);
        }
        Ok(newly)
    }

    #[cold]
    fn mark_held(&mut self, ack: Ack, now: Time, shared: &mut SharedLaneState) -> u32 {
        let mut bits = ack.held;
        let mut acked = 0;
        while bits != 0 {
            let sequence = ack.expected.wrapping_add(1 + bits.trailing_zeros());
            bits &= bits - 1;
            let at = self.flights.place(sequence);
            let Some(&flight) = self.flights.get(at) else {
                continue;
            };
            if flight.state == FlightState::Held {
                continue;
            }
            acked += u32::from(self.flight_acked(flight, now, shared));
            self.flights.hold(at);
        }
        self.gaps = true;
        acked
    }

    /// A flight has arrived; says whether that is news.
    #[inline]
    fn flight_acked(&mut self, flight: Flight, now: Time, shared: &mut SharedLaneState) -> bool {
        let round_trip = now - flight.sent_at;
        if self
            .sample
            .is_none_or(|(newest, _)| newest < flight.transmission)
        {
            let sample = (!flight.repeated).then_some(round_trip);
            self.sample = Some((flight.transmission, sample));
        }
        match flight.state {
            FlightState::Held => return false,
            FlightState::UnderWay if !flight.repeated => {
                self.evidence.arrived(flight.transmission, round_trip);
            }
            FlightState::UnderWay => {
                if !self.evidence.one_arrived(flight.transmission, round_trip) {
                    self.was_needless(shared);
                }
            }
            FlightState::Lost => self.was_needless(shared),
        }
        true
    }

    #[cold]
    fn was_needless(&mut self, shared: &mut SharedLaneState) {
        shared.counters.needless += 1;
        self.evidence.mistaken();
        self.congestion.on_needless();
    }

    fn find_losses(&mut self, now: Time) {
        let mut overdue_at: Option<Time> = None;
        let Self {
            flights,
            evidence,
            congestion,
            rtt,
            ..
        } = self;
        flights.lose(|flight| {
            match evidence.judge(flight.transmission, flight.sent_at, now, rtt) {
                LossVerdict::Open => false,
                LossVerdict::Wait(until) => {
                    overdue_at = Some(overdue_at.map_or(until, |at| at.min(until)));
                    false
                }
                LossVerdict::Lost => {
                    congestion.on_loss(flight.transmission, self.next_transmission);
                    true
                }
            }
        });
        self.overdue_at = overdue_at;
        self.gaps = self.flights.held() > 0 || self.flights.any_repeated();
    }

    /// Sets the probe's timer anew.
    fn await_answer(&mut self, config: &DatagramLaneConfig, now: Time) {
        let wait = self.rtt.timeout() + config.ack_delay;
        let wait = match self.probes {
            0 => wait,
            probes => self.rtt.backoff(wait, probes, &mut self.rng),
        };
        self.probe_at = Some(now + wait);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match (self.probe_at, self.overdue_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Handles what is due. Says whether a probe is to be sent.
    pub(super) fn on_deadline(
        &mut self,
        config: &DatagramLaneConfig,
        session: &Session,
        now: Time,
    ) -> bool {
        self.catch_up(session);
        if self.overdue_at.is_some_and(|at| at <= now) {
            self.find_losses(now);
        }
        if self.probe_at.is_none_or(|at| at > now) {
            return false;
        }
        if self.flights.is_empty() {
            self.probe_at = None;
            return false;
        }
        self.probes = self.probes.saturating_add(1);
        if self.probes > 1 {
            self.congestion.on_silence(self.next_transmission);
        }
        self.probe = true;
        self.await_answer(config, now);
        true
    }

    /// Drops the flights that another lane has confirmed.
    #[inline]
    fn catch_up(&mut self, session: &Session) {
        let oldest = session.oldest_unconfirmed();
        while self.flights.take_before(oldest).is_some() {}
    }

    pub(super) fn pause(&mut self) {
        self.paused = true;
        self.forget_flights();
    }

    /// Where to begin is found by `catch_up`.
    pub(super) fn resume(&mut self) {
        self.paused = false;
    }

    fn forget_flights(&mut self) {
        self.flights.forget();
        (self.probe_at, self.overdue_at) = (None, None);
        (self.gaps, self.probe, self.probes) = (false, false, 0);
    }

    #[cfg(test)]
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    #[cfg(test)]
    pub(super) fn window(&self) -> u32 {
        self.congestion.window()
    }

    #[cfg(test)]
    pub(super) fn assert_counts(&self, session: &Session) {
        self.flights.assert_counts();
        assert!(self.flights.len() <= SPAN.min(session.unconfirmed()));
        assert!(self.flights.held() == 0 || self.gaps);
        assert!(
            self.flights.is_empty() || self.probe_at.is_some(),
            "nothing would ever happen: {self:?}"
        );
    }
}
