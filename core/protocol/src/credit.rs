//! Credits: how much eager data a sender may have at a receiver that has not consumed it.
//!
//! Both sides count up, in units, modulo 2³²; the counters only ever grow:
//!
//! ```text
//!   released as the sender knows it  ≤  released  ≤  arrived  ≤  sent        (all of one session)
//!   sent − released as the sender knows it  ≤  quota                        (the sender's rule)
//!   so: arrived − released, which the receiver holds, ≤ quota           (checked by the receiver)
//! ```
//!
//! A sender out of credit does not wait: it sends the message as a rendezvous request, and the
//! receiver always takes the envelope. So a message never waits for credit, and a full receiver
//! cannot deadlock. Requests that a receiver holds have a separate bound ([`open_requests`]): at that
//! bound a message waits at its sender, and only its envelope goes
//! ([`crate::envelopes`]). And credit comes back: a receiver
//! that has consumed everything owes less than a quarter of the quota
//! ([`ReceiveCredit::is_return_due`]), so the sender then has more than three quarters. Counters
//! rather than increments make repeated, lost and overtaken returns harmless.

use thiserror::Error;

/// Size of a credit unit in bytes.
pub(crate) const UNIT_BYTES: u32 = 64;

/// Largest quota in units (2 MiB − 64 B): half the range of the counter on the wire, so that the
/// receiver of a counter recognizes an old value.
pub(crate) const MAX_QUOTA_UNITS: u16 = 0x7fff;

/// The cost in units of an eager message of `bytes` bytes: its bytes, and one unit for its storage.
#[inline]
#[must_use]
pub fn cost_units(payload_bytes: u32) -> u32 {
    1 + payload_bytes.div_ceil(UNIT_BYTES)
}

/// Requests that a sender may have open at least, for any quota.
const LEAST_OPEN_REQUESTS: u16 = 64;

/// Number of rendezvous requests that a sender with this quota may have open: sent, and not yet
/// ended by a Fin or taken up by a Cts. Each costs its receiver about as much as a unit does, until
/// a receive matches it.
#[must_use]
pub fn open_requests(quota_units: u16) -> usize {
    usize::from(quota_units.clamp(LEAST_OPEN_REQUESTS, MAX_QUOTA_UNITS))
}

/// The peer broke the rules of credit; the session is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreditError {
    /// More eager data than the quota allows.
    #[error("the peer sent more than its quota")]
    OverQuota,
    /// More credit returned than was used.
    #[error("the peer returned credit that was not used")]
    OverReturned,
    /// More requests open than the quota allows.
    #[error("the peer sent more rendezvous requests than its quota")]
    OverRequested,
    /// More envelopes of waiting messages than a receiver keeps.
    #[error("the peer sent more envelopes of waiting messages than a receiver keeps")]
    OverEnveloped,
}

/// How a message may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAdmission {
    /// In the packet; the credit is taken.
    Eager,
    /// By rendezvous.
    Rendezvous,
}

/// The sender's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCredit {
    quota: u32,
    sent: u32,
    released: u32,
}

impl SendCredit {
    /// The start of a session with a peer that grants `quota_units`.
    #[must_use]
    pub fn new(quota_units: u16) -> Self {
        Self::begin_at(0, quota_units)
    }

    /// As [`SendCredit::new`], with counters that begin elsewhere.
    pub(super) fn begin_at(units: u32, quota_units: u16) -> Self {
        SendCredit {
            quota: u32::from(quota_units.min(MAX_QUOTA_UNITS)),
            sent: units,
            released: units,
        }
    }

    /// Takes credit for an eager message, if there is enough.
    #[inline]
    pub fn admit(&mut self, payload_bytes: u32) -> SendAdmission {
        let cost = cost_units(payload_bytes);
        if cost > self.available_units() {
            return SendAdmission::Rendezvous;
        }
        self.sent = self.sent.wrapping_add(cost);
        SendAdmission::Eager
    }

    /// Takes the credit field of a packet. An old value, overtaken by a newer one, changes nothing.
    ///
    /// # Errors
    /// [`CreditError::OverReturned`].
    #[inline]
    pub fn on_credit(&mut self, credit: u16) -> Result<(), CreditError> {
        let gained = credit.wrapping_sub(self.released as u16);
        if gained > MAX_QUOTA_UNITS {
            return Ok(());
        }
        if u32::from(gained) > self.outstanding_units() {
            return Err(CreditError::OverReturned);
        }
        self.released = self.released.wrapping_add(u32::from(gained));
        Ok(())
    }

    /// As [`SendCredit::on_credit`], for a lane that may bring old packets at any time: the counter
    /// in full.
    ///
    /// # Errors
    /// [`CreditError::OverReturned`].
    #[inline]
    pub fn on_count(&mut self, released: u32) -> Result<(), CreditError> {
        let gained = released.wrapping_sub(self.released);
        if gained > u32::MAX / 2 {
            return Ok(());
        }
        if gained > self.outstanding_units() {
            return Err(CreditError::OverReturned);
        }
        self.released = released;
        Ok(())
    }

    /// The peer grants another quota from here on, and has returned nothing yet. Says whether what
    /// was sent fits it; if not, nothing is changed.
    #[must_use]
    pub(super) fn change_quota(&mut self, quota_units: u16) -> bool {
        let quota = u32::from(quota_units.min(MAX_QUOTA_UNITS));
        let fits = self.outstanding_units() <= quota;
        if fits {
            self.quota = quota;
        }
        fits
    }

    /// Units that may be sent at once.
    #[must_use]
    pub fn available_units(&self) -> u32 {
        self.quota - self.outstanding_units()
    }

    fn outstanding_units(&self) -> u32 {
        self.sent.wrapping_sub(self.released)
    }
}

/// The receiver's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveCredit {
    quota: u32,
    arrived: u32,
    released: u32,
    published: u32,
    publish_again: bool,
}

impl ReceiveCredit {
    /// The start of a session with a peer that was granted `quota_units`.
    #[must_use]
    pub fn new(quota_units: u16) -> Self {
        Self::begin_at(0, quota_units)
    }

    /// As [`ReceiveCredit::new`], with counters that begin elsewhere.
    pub(super) fn begin_at(units: u32, quota_units: u16) -> Self {
        ReceiveCredit {
            quota: u32::from(quota_units.min(MAX_QUOTA_UNITS)),
            arrived: units,
            released: units,
            published: units,
            publish_again: false,
        }
    }

    /// The same counters with another quota, for a session in which nothing has arrived.
    pub(super) fn anew(&self, quota_units: u16) -> Self {
        debug_assert_eq!(self.held_units(), 0, "something has arrived");
        Self::begin_at(self.released, quota_units)
    }

    /// An eager message arrived (delivered in order, not a repeat).
    ///
    /// # Errors
    /// [`CreditError::OverQuota`]: nothing is counted.
    #[inline]
    pub fn take(&mut self, payload_bytes: u32) -> Result<(), CreditError> {
        let cost = cost_units(payload_bytes);
        if cost > self.quota - self.held_units() {
            return Err(CreditError::OverQuota);
        }
        self.arrived = self.arrived.wrapping_add(cost);
        Ok(())
    }

    /// An eager message that was taken has been consumed: copied to where it belongs, or discarded.
    #[inline]
    pub fn release(&mut self, payload_bytes: u32) {
        let cost = cost_units(payload_bytes);
        debug_assert!(cost <= self.held_units(), "released twice");
        self.released = self.released.wrapping_add(cost.min(self.held_units()));
    }

    /// The credit field for a packet that goes out now. Stamp it once the packet is sure to go.
    #[inline]
    pub fn field(&mut self) -> u16 {
        self.published = self.released;
        self.publish_again = false;
        self.released as u16
    }

    /// The counter in full, for a packet that goes out now on a lane that may bring it late. Stamp
    /// it once the packet is sure to go.
    #[inline]
    pub fn count(&mut self) -> u32 {
        self.field();
        self.released
    }

    /// The counter in full, for a packet that may get lost: reading it does not count as telling
    /// the peer.
    #[must_use]
    pub fn released_units(&self) -> u32 {
        self.released
    }

    /// Whether a Credit packet should go out although nothing else does.
    #[inline]
    #[must_use]
    pub fn is_return_due(&self) -> bool {
        self.publish_again || self.released.wrapping_sub(self.published) >= (self.quota / 4).max(1)
    }

    /// The lane broke: the peer may not have received the last published counter.
    pub(crate) fn on_lane_change(&mut self) {
        self.publish_again = true;
    }

    /// Units that the peer was granted.
    #[must_use]
    pub fn quota_units(&self) -> u16 {
        self.quota as u16
    }

    /// Units that have arrived and are not consumed.
    #[must_use]
    pub fn held_units(&self) -> u32 {
        self.arrived.wrapping_sub(self.released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum CreditStep {
        Send(u32),
        Arrive,
        Consume(usize),
        Return,
        CreditArrives,
        CreditLost,
        CreditRepeats,
    }

    fn step() -> impl Strategy<Value = CreditStep> {
        prop_oneof![
            4 => (0..3000u32).prop_map(CreditStep::Send),
            4 => Just(CreditStep::Arrive),
            4 => any::<usize>().prop_map(CreditStep::Consume),
            2 => Just(CreditStep::Return),
            2 => Just(CreditStep::CreditArrives),
            1 => Just(CreditStep::CreditLost),
            1 => Just(CreditStep::CreditRepeats),
        ]
    }

    proptest! {
        /// The invariant of the module's head, under any order of sending, arriving, consuming and
        /// (lossy, repeated) returning; and at the end, with all consumed and one return, three
        /// quarters are there.
        #[test]
        fn held_never_exceeds_the_quota_and_credit_comes_back(
            quota in 64u16..400,
            start in prop_oneof![Just(0u32), any::<u32>()],
            steps in proptest::collection::vec(step(), 0..400),
        ) {
            // Any point of the counters' circle is as good as zero.
            let mut send = SendCredit::begin_at(start, quota);
            let mut receive = ReceiveCredit::begin_at(start, quota);
            let mut wire = VecDeque::new();
            let mut held: Vec<u32> = Vec::new();
            let mut credits = VecDeque::new();
            let mut last = start as u16;
            for step in steps {
                match step {
                    CreditStep::Send(bytes) => if send.admit(bytes) == SendAdmission::Eager { wire.push_back(bytes) },
                    CreditStep::Arrive => if let Some(bytes) = wire.pop_front() {
                        prop_assert_eq!(receive.take(bytes), Ok(()));
                        held.push(bytes);
                    },
                    CreditStep::Consume(which) => if !held.is_empty() {
                        receive.release(held.swap_remove(which % held.len()));
                    },
                    CreditStep::Return => credits.push_back(receive.field()),
                    CreditStep::CreditArrives => if let Some(credit) = credits.pop_front() {
                        prop_assert_eq!(send.on_credit(credit), Ok(()));
                        last = credit;
                    },
                    CreditStep::CreditLost => { credits.pop_front(); }
                    CreditStep::CreditRepeats => prop_assert_eq!(send.on_credit(last), Ok(())),
                }
                let units: u32 = held.iter().map(|&bytes| cost_units(bytes)).sum();
                prop_assert_eq!(receive.held_units(), units);
                prop_assert!(units <= u32::from(quota));
            }
            while let Some(bytes) = wire.pop_front() {
                receive.take(bytes).unwrap();
                receive.release(bytes);
            }
            held.drain(..).for_each(|bytes| receive.release(bytes));
            for credit in credits {
                send.on_credit(credit).unwrap();
            }
            receive.on_lane_change(); // returns may have been lost above
            prop_assert!(receive.is_return_due());
            send.on_credit(receive.field()).unwrap();
            prop_assert_eq!(send.available_units(), u32::from(quota));
        }

        /// With no loss, a receiver that consumes at once and speaks only when it owes never
        /// starves the sender.
        #[test]
        fn a_prompt_receiver_keeps_three_quarters_available(
            quota in 64u16..400,
            sizes in proptest::collection::vec(0..600u32, 0..300),
        ) {
            let (mut send, mut receive) = (SendCredit::new(quota), ReceiveCredit::new(quota));
            for bytes in sizes {
                prop_assert_eq!(send.admit(bytes), SendAdmission::Eager);
                receive.take(bytes).unwrap();
                receive.release(bytes);
                if receive.is_return_due() {
                    send.on_credit(receive.field()).unwrap();
                }
                prop_assert!(send.available_units() > u32::from(quota) * 3 / 4);
            }
        }

        /// For every value that a hostile peer puts into the field, the sender stays within its
        /// quota and gains no unit that it did not use.
        #[test]
        fn hostile_returns_are_caught(quota in 0u16.., ops in proptest::collection::vec(any::<(bool, u16)>(), 0..200)) {
            let mut send = SendCredit::new(quota);
            for (is_send, n) in ops {
                let before = send.available_units();
                if is_send {
                    let _ = send.admit(u32::from(n));
                    prop_assert!(send.available_units() <= before);
                } else {
                    let _ = send.on_credit(n);
                    let _ = send.on_count(u32::from(n) << (n % 17));
                    prop_assert!(send.available_units() <= u32::from(quota.min(MAX_QUOTA_UNITS)));
                }
            }
        }
    }

    #[test]
    fn a_return_that_was_overtaken_changes_nothing() {
        let (mut send, mut receive) = (SendCredit::new(100), ReceiveCredit::new(100));
        let mut returns = Vec::new();
        for _ in 0..3 {
            assert_eq!(send.admit(64 * 9), SendAdmission::Eager);
            receive.take(64 * 9).unwrap();
            receive.release(64 * 9);
            returns.push(receive.field());
        }
        for credit in returns.into_iter().rev() {
            assert_eq!(send.on_credit(credit), Ok(()));
            assert_eq!(send.available_units(), 100);
        }
    }

    /// On a lane that delivers late, 2¹⁶ units later or more: the short form would take the value
    /// for a new one.
    #[test]
    fn a_count_from_long_ago_changes_nothing() {
        let (mut send, mut receive) = (SendCredit::new(0x7fff), ReceiveCredit::new(0x7fff));
        let late = receive.count();
        for _ in 0..40 {
            assert_eq!(send.admit(64 * 999), SendAdmission::Eager);
            receive.take(64 * 999).unwrap();
            receive.release(64 * 999);
            assert_eq!(send.on_count(receive.count()), Ok(()));
        }
        assert_eq!(send.admit(64 * 9), SendAdmission::Eager);
        assert_eq!(send.on_count(late), Ok(()));
        assert_eq!(send.available_units(), 0x7fff - 10);
        assert_eq!(
            send.clone().on_credit(late as u16),
            Err(CreditError::OverReturned)
        );
        assert_eq!(send.on_count(40_011), Err(CreditError::OverReturned));
    }

    #[test]
    fn breaking_the_rules_is_an_error() {
        let mut receive = ReceiveCredit::new(10);
        receive.take(64 * 8).unwrap();
        assert_eq!(receive.take(64), Err(CreditError::OverQuota));
        receive.take(0).unwrap();

        let mut send = SendCredit::new(10);
        assert_eq!(send.admit(64), SendAdmission::Eager);
        assert_eq!(send.on_credit(3), Err(CreditError::OverReturned));
        assert_eq!(send.admit(64 * 9), SendAdmission::Rendezvous);
    }
}
