//! Loss detection: of the packets that an acknowledgement does not name, some are lost and some are
//! only late.
//!
//! Each transmission has a number. After one has arrived, an earlier one that has not arrived
//! counts as lost once it is overdue. The limit is the usual round trip if the later one is ahead
//! by a margin, else a generous one. The margin begins at three, as in TCP, and grows with each
//! packet that a larger number of later ones has overtaken. The time limit grows with each packet
//! that was counted as lost and then arrived. So a network that reorders causes a few needless
//! repeats at the start, and none later.

use std::time::Duration;

use crate::Time;
use crate::rtt::RttEstimator;
use crate::wire::datagram::SPAN;

const MARGIN: u64 = 3;
const MAX_LATENESS_FACTOR: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// The latest transmission that is known to have arrived.
    newest: Option<u64>,
    margin: u64,
    /// By how much more than [`RttEstimator::late`] a packet may be late.
    lateness_factor: u32,
    fastest: Option<Duration>,
}

/// The result of [`Evidence::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossVerdict {
    /// Nothing that was sent after it has arrived.
    Open,
    /// It is lost unless it is acknowledged before that time.
    Wait(Time),
    Lost,
}

impl Evidence {
    pub(super) fn new() -> Self {
        Evidence {
            newest: None,
            margin: MARGIN,
            lateness_factor: 1,
            fastest: None,
        }
    }

    /// A transmission has arrived, for sure this one: the packet was sent but once.
    #[inline]
    pub(super) fn arrived(&mut self, number: u64, round_trip: Duration) {
        self.fastest = Some(self.fastest.map_or(round_trip, |f| f.min(round_trip)));
        match self.newest {
            Some(newest) if newest > number => self.overtaken_by(newest - number),
            _ => self.newest = Some(number),
        }
    }

    /// One of the transmissions of a packet has arrived, `since_last` after the last of them, which
    /// was `number`. `false` if that cannot have been the last: it was sent again in vain.
    pub(super) fn one_arrived(&mut self, number: u64, since_last: Duration) -> bool {
        if self.fastest.is_some_and(|fastest| since_last < fastest) {
            return false;
        }
        self.newest = self.newest.max(Some(number));
        true
    }

    /// A packet was taken for lost and was not.
    pub(super) fn mistaken(&mut self) {
        self.overtaken_by(self.margin * 2 - 1);
        self.lateness_factor = (self.lateness_factor * 2).min(MAX_LATENESS_FACTOR);
    }

    #[inline]
    pub(super) fn judge(
        &self,
        number: u64,
        sent_at: Time,
        now: Time,
        rtt: &RttEstimator,
    ) -> LossVerdict {
        let Some(newest) = self.newest.filter(|&newest| newest > number) else {
            return LossVerdict::Open;
        };
        let wait = match newest - number >= self.margin {
            true => rtt.usual(),
            false => rtt.late() * self.lateness_factor,
        };
        let overdue = sent_at + wait;
        match overdue <= now {
            true => LossVerdict::Lost,
            false => LossVerdict::Wait(overdue),
        }
    }

    fn overtaken_by(&mut self, others: u64) {
        self.margin = self.margin.max((others + 1).min(u64::from(SPAN)));
    }
}
