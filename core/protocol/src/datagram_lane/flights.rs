//! The packets that were sent on a lane and are not confirmed: by number, each with its state, and
//! counted by it.

use std::collections::VecDeque;

use crate::Time;

/// A packet that was sent on this lane and is not confirmed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) sent_at: Time,
    /// Number of its last transmission.
    pub(super) transmission: u64,
    pub(super) state: FlightState,
    pub(super) repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightState {
    UnderWay,
    /// It has arrived, and others before it have not.
    Held,
    Lost,
}

#[derive(Clone, Debug)]
pub(super) struct Flights {
    /// Number of the oldest one.
    base: u32,
    list: VecDeque<Flight>,
    under_way: u32,
    held: u32,
    lost: u32,
}

impl Flights {
    /// None so far; the first has this number.
    pub(super) fn new(base: u32) -> Self {
        Self {
            base,
            list: VecDeque::new(),
            under_way: 0,
            held: 0,
            lost: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.list.len() as u32
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[inline]
    pub(super) fn under_way(&self) -> u32 {
        self.under_way
    }

    #[inline]
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    #[inline]
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Number of the flight at a place.
    #[inline]
    pub(super) fn number(&self, at: usize) -> u32 {
        self.base.wrapping_add(at as u32)
    }

    /// Place of a number, far beyond all if it lies before them.
    #[inline]
    pub(super) fn place(&self, number: u32) -> usize {
        number.wrapping_sub(self.base) as usize
    }

    /// A packet is sent that was not sent before. Returns its number.
    #[inline]
    pub(super) fn send(&mut self, now: Time, transmission: u64) -> u32 {
        let number = self.number(self.list.len());
        self.under_way += 1;
        self.list.push_back(Flight {
            sent_at: now,
            transmission,
            state: FlightState::UnderWay,
            repeated: false,
        });
        number
    }

    /// A flight is sent again.
    pub(super) fn send_again(&mut self, at: usize, now: Time, transmission: u64) {
        if let Some(flight) = self.list.get_mut(at) {
            let before = std::mem::replace(
                flight,
                Flight {
                    sent_at: now,
                    transmission,
                    state: FlightState::UnderWay,
                    repeated: true,
                },
            );
            self.under_way += 1;
            self.uncount(before.state);
        }
    }

    /// A flight that is under way did not go out after all: it is lost, or was never sent. False:
    /// it is not under way.
    pub(super) fn not_sent(&mut self, at: usize, is_repeat: bool) -> bool {
        let Some(flight) = self.list.get_mut(at) else {
            return false;
        };
        if flight.state != FlightState::UnderWay {
            return false;
        }
        self.under_way -= 1;
        if is_repeat {
            flight.state = FlightState::Lost;
            self.lost += 1;
        } else {
            self.list.truncate(at);
        }
        true
    }

    /// Takes the oldest flight out, if its number is before `oldest`.
    #[inline]
    pub(super) fn take_before(&mut self, oldest: u32) -> Option<Flight> {
        if self.base == oldest {
            return None;
        }
        let Some(flight) = self.list.pop_front() else {
            self.base = oldest;
            return None;
        };
        self.base = self.base.wrapping_add(1);
        self.uncount(flight.state);
        Some(flight)
    }

    /// A flight has arrived that was not held, and others before it have not.
    pub(super) fn hold(&mut self, at: usize) {
        if let Some(flight) = self.list.get_mut(at) {
            let before = std::mem::replace(&mut flight.state, FlightState::Held);
            self.held += 1;
            self.uncount(before);
        }
    }

    /// Those of the flights under way are lost for which `is_lost` says so.
    pub(super) fn lose(&mut self, mut is_lost: impl FnMut(&Flight) -> bool) {
        for flight in &mut self.list {
            if flight.state == FlightState::UnderWay && is_lost(flight) {
                flight.state = FlightState::Lost;
                self.under_way -= 1;
                self.lost += 1;
            }
        }
    }

    /// Marks all packets that the receiver had held as lost.
    pub(super) fn forget_held(&mut self) {
        for flight in &mut self.list {
            if flight.state == FlightState::Held {
                flight.state = FlightState::Lost;
                self.held -= 1;
                self.lost += 1;
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Flight> {
        self.list.get(at)
    }

    pub(super) fn first_lost(&self) -> Option<usize> {
        self.list.iter().position(|f| f.state == FlightState::Lost)
    }

    pub(super) fn any_repeated(&self) -> bool {
        self.list.iter().any(|flight| flight.repeated)
    }

    /// Forgets all, and gives their memory back.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.base);
    }

    #[inline]
    fn uncount(&mut self, state: FlightState) {
        match state {
            FlightState::UnderWay => self.under_way -= 1,
            FlightState::Held => self.held -= 1,
            FlightState::Lost => self.lost -= 1,
        }
    }

    #[cfg(test)]
    pub(super) fn assert_counts(&self) {
        let count = |state| self.list.iter().filter(|f| f.state == state).count() as u32;
        assert_eq!(count(FlightState::UnderWay), self.under_way);
        assert_eq!(count(FlightState::Held), self.held);
        assert_eq!(count(FlightState::Lost), self.lost);
    }
}
