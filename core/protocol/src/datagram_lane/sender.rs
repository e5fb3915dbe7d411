//! The sending half: what is under way, what is to be sent next, and what of it was lost.

use std::collections::VecDeque;
use std::time::Duration;

use super::congestion::Congestion;
use super::loss::{Evidence, Verdict};
use super::{Config, Shared};
use crate::Time;
use crate::rng::Rng;
use crate::rtt::RttEstimator;
use crate::session::{Session, SessionError};
use crate::wire::datagram::{Ack, SPAN};

/// A numbered packet to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its number.
    pub sequence: u32,
    /// Whether to ask for an acknowledgement at once: [`crate::wire::datagram::Prefix::asks`].
    pub asks: bool,
    /// Whether it was sent on this lane before.
    pub repeat: bool,
}

/// A packet that was sent on this lane and is not confirmed.
#[derive(Clone, Copy, Debug)]
struct Flight {
    sent_at: Time,
    /// Number of its last transmission.
    transmission: u64,
    state: State,
    repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    /// It has arrived, and others before it have not.
    Held,
    Lost,
}

#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// Number of the oldest flight.
    base: u32,
    flights: VecDeque<Flight>,
    under_way: u32,
    held: u32,
    lost: u32,
    /// Whether a flight may have been overtaken: only then they are looked through.
    gaps: bool,
    next_transmission: u64,
    last_sent: Time,
    congestion: Congestion,
    evidence: Evidence,
    rtt: RttEstimator,
    /// Of the packets that the acknowledgement at hand confirms: the last transmission, and its round trip if known.
    sample: Option<(u64, Option<Duration>)>,
    /// When the next probe is due: nothing has come for so long.
    probe_at: Option<Time>,
    /// When the oldest overtaken packet is overdue.
    overdue_at: Option<Time>,
    /// Probes in a row that brought nothing.
    pub(super) probes: u32,
    probe: bool,
    paused: bool,
    rng: Rng,
}

impl Sender {
    pub(super) fn new(config: &Config, base: u32, seed: u64) -> Self {
        Sender {
            base,
            flights: VecDeque::new(),
            under_way: 0,
            held: 0,
            lost: 0,
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
            rng: Rng::new(seed),
        }
    }

    #[inline]
    pub(super) fn has_room(&self, session: &Session) -> bool {
        let unconfirmed = session.unconfirmed();
        !self.paused
            && unconfirmed < SPAN
            && unconfirmed.saturating_sub(self.held) < self.congestion.window()
    }

    /// Whether the window lets a packet out that was not sent before.
    #[inline]
    fn is_open(&self) -> bool {
        self.under_way < self.congestion.window() && (self.flights.len() as u32) < SPAN
    }

    #[inline]
    pub(super) fn next_packet(
        &mut self,
        shared: &mut Shared,
        session: &Session,
        now: Time,
    ) -> Option<Outgoing> {
        if self.paused {
            return None;
        }
        self.catch_up(session);
        if self.probe || self.lost > 0 {
            if let Some(outgoing) = self.repeat(shared, now) {
                return Some(outgoing);
            }
        }
        if self.flights.len() as u32 >= session.unconfirmed() || !self.is_open() {
            return None;
        }
        if self.under_way == 0 && now - self.last_sent > shared.config.max_interval {
            self.congestion.on_idle(shared.config.initial_window);
        }
        let sequence = self.base.wrapping_add(self.flights.len() as u32);
        let transmission = self.launch(&shared.config, now);
        self.flights.push_back(Flight {
            sent_at: now,
            transmission,
            state: State::UnderWay,
            repeated: false,
        });
        shared.counters.sent += 1;
        Some(Outgoing {
            sequence,
            asks: !self.is_open(),
            repeat: false,
        })
    }

    #[cold]
    fn repeat(&mut self, shared: &mut Shared, now: Time) -> Option<Outgoing> {
        let probe = std::mem::take(&mut self.probe);
        let at = match probe {
            true => 0,
            false if self.under_way >= self.congestion.window() => return None,
            false => self.flights.iter().position(|f| f.state == State::Lost)?,
        };
        match self.flights.get(at)?.state {
            State::UnderWay => self.under_way -= 1,
            State::Lost => self.lost -= 1,
            // The peer had it and does not say so any more: it changed lanes in between. Nothing it said then counts.
            State::Held => {
                self.forget_held();
                self.lost -= 1;
            }
        }
        let transmission = self.launch(&shared.config, now);
        self.flights[at] = Flight {
            sent_at: now,
            transmission,
            state: State::UnderWay,
            repeated: true,
        };
        self.gaps = true;
        shared.counters.sent += 1;
        shared.counters.repeated += 1;
        shared.counters.probes += u64::from(probe);
        Some(Outgoing {
            sequence: self.base.wrapping_add(at as u32),
            asks: true,
            repeat: true,
        })
    }

    fn launch(&mut self, config: &Config, now: Time) -> u64 {
        let transmission = self.next_transmission;
        self.next_transmission += 1;
        self.under_way += 1;
        self.last_sent = now;
        self.await_answer(config, now);
        transmission
    }

    /// The packet that was given last did not go out: it comes again.
    pub(super) fn not_sent(&mut self, outgoing: Outgoing, shared: &mut Shared) {
        let at = outgoing.sequence.wrapping_sub(self.base) as usize;
        let Some(flight) = self.flights.get_mut(at) else {
            return;
        };
        if flight.state != State::UnderWay {
            return;
        }
        self.under_way -= 1;
        shared.counters.sent -= 1;
        if outgoing.repeat {
            flight.state = State::Lost;
            self.lost += 1;
            shared.counters.repeated -= 1;
        } else {
            self.flights.truncate(at);
        }
    }

    /// Returns how many packets are newly confirmed.
    #[inline]
    pub(super) fn on_ack(
        &mut self,
        shared: &mut Shared,
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
        let limited = self.under_way * 2 >= self.congestion.window();
        let mut acked = 0;
        while self.base != session.oldest_unconfirmed() {
            let Some(flight) = self.flights.pop_front() else {
                self.base = session.oldest_unconfirmed();
                break;
            };
            self.base = self.base.wrapping_add(1);
            acked += u32::from(self.flight_acked(flight, now, shared));
        }
        if ack.held != 0 {
            acked += self.mark_held(ack, now, shared);
        }
        if acked == 0 && newly == 0 {
            return Ok(0);
        }
        // Of what it confirms, the packet sent last tells the round trip; others may have waited for a lost
        // acknowledgement. Of one sent twice nobody knows which was answered.
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
    fn mark_held(&mut self, ack: Ack, now: Time, shared: &mut Shared) -> u32 {
        let mut bits = ack.held;
        let mut acked = 0;
        while bits != 0 {
            let sequence = ack.expected.wrapping_add(1 + bits.trailing_zeros());
            bits &= bits - 1;
            let at = sequence.wrapping_sub(self.base) as usize; // far beyond if it lies before
            let Some(&flight) = self.flights.get(at) else {
                continue;
            };
            if flight.state == State::Held {
                continue;
            }
            acked += u32::from(self.flight_acked(flight, now, shared));
            self.flights[at].state = State::Held;
            self.held += 1;
        }
        self.gaps = true;
        acked
    }

    /// Takes a flight out of the counts; says whether that is news.
    #[inline]
    fn flight_acked(&mut self, flight: Flight, now: Time, shared: &mut Shared) -> bool {
        let round_trip = now - flight.sent_at;
        if self
            .sample
            .is_none_or(|(newest, _)| newest < flight.transmission)
        {
            let sample = (!flight.repeated).then_some(round_trip);
            self.sample = Some((flight.transmission, sample));
        }
        match flight.state {
            State::Held => {
                self.held -= 1;
                return false;
            }
            State::UnderWay if !flight.repeated => {
                self.under_way -= 1;
                self.evidence.arrived(flight.transmission, round_trip);
            }
            State::UnderWay => {
                self.under_way -= 1;
                if !self.evidence.one_arrived(flight.transmission, round_trip) {
                    self.was_needless(shared);
                }
            }
            State::Lost => {
                self.lost -= 1;
                self.was_needless(shared);
            }
        }
        true
    }

    #[cold]
    fn was_needless(&mut self, shared: &mut Shared) {
        shared.counters.needless += 1;
        self.evidence.mistaken();
        self.congestion.on_needless();
    }

    fn find_losses(&mut self, now: Time) {
        self.overdue_at = None;
        for flight in &mut self.flights {
            if flight.state != State::UnderWay {
                continue;
            }
            match self
                .evidence
                .judge(flight.transmission, flight.sent_at, now, &self.rtt)
            {
                Verdict::Open => {}
                Verdict::Wait(until) => {
                    self.overdue_at = Some(self.overdue_at.map_or(until, |at| at.min(until)));
                }
                Verdict::Lost => {
                    flight.state = State::Lost;
                    self.under_way -= 1;
                    self.lost += 1;
                    self.congestion
                        .on_loss(flight.transmission, self.next_transmission);
                }
            }
        }
        self.gaps = self.held > 0 || self.flights.iter().any(|flight| flight.repeated);
    }

    /// Sets the probe's timer anew.
    fn await_answer(&mut self, config: &Config, now: Time) {
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
    pub(super) fn on_deadline(&mut self, config: &Config, session: &Session, now: Time) -> bool {
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
        while self.base != session.oldest_unconfirmed() {
            let Some(flight) = self.flights.pop_front() else {
                self.base = session.oldest_unconfirmed();
                return;
            };
            self.base = self.base.wrapping_add(1);
            match flight.state {
                State::UnderWay => self.under_way -= 1,
                State::Held => self.held -= 1,
                State::Lost => self.lost -= 1,
            }
        }
    }

    fn forget_held(&mut self) {
        for flight in &mut self.flights {
            if flight.state == State::Held {
                flight.state = State::Lost;
                self.held -= 1;
                self.lost += 1;
            }
        }
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
        self.flights = VecDeque::new();
        (self.under_way, self.held, self.lost) = (0, 0, 0);
        (self.probe_at, self.overdue_at) = (None, None);
        (self.gaps, self.probe, self.probes) = (false, false, 0);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    #[cfg(test)]
    pub(super) fn window(&self) -> u32 {
        self.congestion.window()
    }

    #[cfg(test)]
    pub(super) fn assert_counts(&self, session: &Session) {
        let count = |state| self.flights.iter().filter(|f| f.state == state).count() as u32;
        assert_eq!(count(State::UnderWay), self.under_way);
        assert_eq!(count(State::Held), self.held);
        assert_eq!(count(State::Lost), self.lost);
        assert!(self.flights.len() as u32 <= SPAN.min(session.unconfirmed()));
        assert!(self.held == 0 || self.gaps);
        assert!(
            self.flights.is_empty() || self.probe_at.is_some(),
            "nothing would ever happen: {self:?}"
        );
    }
}
