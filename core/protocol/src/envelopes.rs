//! Messages that wait at their sender, while the receiver keeps only their envelopes.
//!
//! A sender whose credit is used up and whose requests to send are all open ([`crate::credit`])
//! sends the envelope of a message, without its bytes and without a key to its memory. So a receive
//! finds the message whenever it was sent, and its memory is the sender's.
//!
//! ```text
//!   sender  [WaitingMessages]                receiver  [PulledMessages]
//!      insert → op   ──── Envelope{op, length} ►  count, unless a receive has matched
//!                                                 matched: uncount, pull → receive
//!      on_pull       ◄─── Pull{op, receive} ────
//!      next_pulled   ──── Pulled{receive, bytes} ► on_answer → T
//! ```
//!
//! The answer is a request to send (PulledRts) if the message does not fit into a packet, and then
//! the message is moved by rendezvous, or an Unsent if the sender cannot send it. A receiver that
//! needs none of the bytes sends a Fin in place of the Pull. An answer costs no credit, because a
//! receive has matched. Envelopes and answers are numbered packets of the session: they survive its
//! lanes, and come once.

use std::collections::VecDeque;

use crate::credit::CreditError;
use crate::rendezvous::StaleOp;
use crate::table::{Key, KeyedTable};

/// Envelopes of one sender without a matching receive that a receiver keeps.
pub const MAX_ENVELOPES: usize = 1 << 20;

/// The bit of an operation's number that distinguishes a waiting message from a request to send: an
/// index has 31 bits at most.
const WAITS: u64 = 1 << 31;

/// Positions of a table that an idle session keeps the memory of.
const KEPT_POSITIONS: usize = 1024;

/// What a waiting message is, as far as a sender counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingKind {
    /// A message whose end its application awaits.
    Plain,
    /// A message that its application takes for sent.
    TakenForSent,
    /// An answer to a request of the receiver.
    Answer,
}

/// The sender's messages of one session whose envelopes are at the receiver.
#[derive(Clone, Debug)]
pub struct WaitingMessages<T> {
    limit: usize,
    waiting: KeyedTable<T>,
    /// Those that the receiver has pulled, with the receiver's operation, in the order of the
    /// pulls.
    pulled: VecDeque<(u64, T)>,
    kind_of: fn(&T) -> WaitingKind,
    /// By kind.
    counts: [usize; 3],
}

impl<T> WaitingMessages<T> {
    /// No messages yet, and at most `limit`, or [`MAX_ENVELOPES`] if that is less.
    #[must_use]
    pub fn new(limit: usize, kind_of: fn(&T) -> WaitingKind) -> Self {
        let limit = limit.min(MAX_ENVELOPES);
        WaitingMessages {
            limit,
            waiting: KeyedTable::new(limit),
            pulled: VecDeque::new(),
            kind_of,
            counts: [0; 3],
        }
    }

    /// Whether this is the number of a waiting message, rather than of a request to send.
    #[must_use]
    pub fn is_op(op: u64) -> bool {
        op & WAITS != 0
    }

    /// Whether no other message can be entered now. Those that were pulled take room until they are
    /// sent.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// The number of messages of a kind.
    #[must_use]
    pub fn count(&self, kind: WaitingKind) -> usize {
        self.counts[kind as usize]
    }

    fn count_mut(&mut self, message: &T) -> &mut usize {
        &mut self.counts[(self.kind_of)(message) as usize]
    }

    /// Enters a message before its envelope goes out; returns its number.
    ///
    /// # Errors
    /// Gives `message` back while too many wait.
    pub fn insert(&mut self, message: T) -> Result<u64, T> {
        if self.is_full() {
            return Err(message);
        }
        let kind = (self.kind_of)(&message);
        let key = self.waiting.insert(message)?;
        self.counts[kind as usize] += 1;
        Ok(key.to_bits() | WAITS)
    }

    /// The receiver pulls a message: it is to be sent, with the name of the receiver's operation.
    ///
    /// # Errors
    /// [`StaleOp`]: the peer is broken or hostile.
    pub fn on_pull(&mut self, op: u64, receive: u64) -> Result<(), StaleOp> {
        let message = self.take(op)?;
        self.pulled.push_back((receive, message));
        Ok(())
    }

    /// The receiver needs no byte of a message: takes it out.
    ///
    /// # Errors
    /// [`StaleOp`]: the peer is broken or hostile.
    pub fn on_fin(&mut self, op: u64) -> Result<T, StaleOp> {
        let message = self.take(op)?;
        *self.count_mut(&message) -= 1;
        Ok(message)
    }

    fn take(&mut self, op: u64) -> Result<T, StaleOp> {
        let stale = StaleOp(op);
        if !Self::is_op(op) {
            return Err(stale);
        }
        let message = self.waiting.remove(Key::from_bits(op & !WAITS));
        self.waiting.give_back_room(KEPT_POSITIONS);
        message.ok_or(stale)
    }

    /// The next pulled message, and the receiver's operation: it is sent now, or put back.
    pub fn next_pulled(&mut self) -> Option<(u64, T)> {
        let next = self.pulled.pop_front()?;
        if self.pulled.is_empty() {
            self.pulled.shrink_to(KEPT_POSITIONS);
        }
        *self.count_mut(&next.1) -= 1;
        Some(next)
    }

    /// A pulled message cannot be sent yet.
    pub fn put_back(&mut self, receive: u64, message: T) {
        *self.count_mut(&message) += 1;
        self.pulled.push_front((receive, message));
    }

    /// Whether pulled messages wait for their turn.
    #[must_use]
    pub fn has_pulled(&self) -> bool {
        !self.pulled.is_empty()
    }

    /// All messages.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let waiting = self.waiting.iter().map(|(_, message)| message);
        waiting.chain(self.pulled.iter().map(|(_, message)| message))
    }

    /// Takes out all messages: the session failed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.counts = [0; 3];
        let pulled = std::mem::take(&mut self.pulled).into_iter();
        let waiting = self.waiting.drain().into_iter();
        (waiting.map(|(_, message)| message)).chain(pulled.map(|(_, message)| message))
    }

    /// The number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.pulled.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.pulled.is_empty()
    }
}

/// The receiver's side of a session: the number of envelopes without a receive, and the receives
/// whose messages were pulled.
#[derive(Clone, Debug)]
pub struct PulledMessages<T> {
    envelopes: usize,
    receives: KeyedTable<T>,
}

impl<T> Default for PulledMessages<T> {
    fn default() -> Self {
        PulledMessages {
            envelopes: 0,
            // A sender has no more messages with an envelope.
            receives: KeyedTable::new(MAX_ENVELOPES),
        }
    }
}

impl<T> PulledMessages<T> {
    /// Counts an envelope without a matching receive.
    ///
    /// # Errors
    /// [`CreditError::OverEnveloped`]: the peer is broken or hostile.
    pub fn count(&mut self) -> Result<(), CreditError> {
        if self.envelopes >= MAX_ENVELOPES {
            return Err(CreditError::OverEnveloped);
        }
        self.envelopes += 1;
        Ok(())
    }

    /// A counted envelope was matched, or discarded.
    pub fn uncount(&mut self) {
        self.envelopes = self.envelopes.saturating_sub(1);
    }

    /// Enters a receive that has matched an envelope; returns the number for the Pull.
    ///
    /// # Errors
    /// Gives `receive` back beyond [`MAX_ENVELOPES`]: the peer is broken or hostile.
    pub fn pull(&mut self, receive: T) -> Result<u64, T> {
        self.receives.insert(receive).map(Key::to_bits)
    }

    /// The receive that an answer names, to be read.
    #[must_use]
    pub fn get(&self, receive: u64) -> Option<&T> {
        self.receives.get(Key::from_bits(receive))
    }

    /// Takes out the receive that an answer names; `None`: the peer is broken or hostile.
    pub fn on_answer(&mut self, receive: u64) -> Option<T> {
        let receive = self.receives.remove(Key::from_bits(receive));
        self.receives.give_back_room(KEPT_POSITIONS);
        receive
    }

    /// The receives whose messages were pulled.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.receives.iter().map(|(_, receive)| receive)
    }

    /// Takes out all receives: the session failed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.receives
            .drain()
            .into_iter()
            .map(|(_, receive)| receive)
    }

    /// Receives that wait for their messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.receives.len()
    }

    /// Whether there are neither envelopes nor receives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.envelopes == 0 && self.receives.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum EnvelopeStep {
        Send,
        /// The receiver pulls the message at this place of those that wait.
        Pull(usize),
        /// It needs no byte of that message.
        Fin(usize),
        Answer,
        AnswerLater,
        /// The receiver names the message at this place of those that do not wait any more.
        Stale(usize),
        /// Any number.
        Guess(u64),
    }

    fn step() -> impl Strategy<Value = EnvelopeStep> {
        prop_oneof![
            6 => Just(EnvelopeStep::Send),
            4 => any::<usize>().prop_map(EnvelopeStep::Pull),
            1 => any::<usize>().prop_map(EnvelopeStep::Fin),
            3 => Just(EnvelopeStep::Answer),
            1 => Just(EnvelopeStep::AnswerLater),
            1 => any::<usize>().prop_map(EnvelopeStep::Stale),
            1 => any::<u64>().prop_map(EnvelopeStep::Guess),
        ]
    }

    proptest! {
        /// Both sides against lists: each message is answered once, to the receive that pulled it
        /// and in the order of the pulls; a number that is not that of a waiting message, or of an
        /// unanswered receive, changes nothing.
        #[test]
        fn messages_are_as_in_lists(steps in proptest::collection::vec(step(), 0..300)) {
            const LIMIT: usize = 12;
            const KINDS: [WaitingKind; 3] =
                [WaitingKind::Plain, WaitingKind::TakenForSent, WaitingKind::Answer];
            let mut sender = WaitingMessages::new(LIMIT, |number: &usize| KINDS[number % 3]);
            let mut receiver = PulledMessages::default();
            let (mut waiting, mut gone) = (Vec::<(u64, usize)>::new(), Vec::new());
            let mut pulled = VecDeque::<(u64, usize)>::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    EnvelopeStep::Send => match sender.insert(number) {
                        Ok(op) => {
                            prop_assert!(WaitingMessages::<usize>::is_op(op) && !gone.contains(&op));
                            prop_assert_eq!(receiver.count(), Ok(()));
                            waiting.push((op, number));
                        }
                        Err(back) => {
                            let len = waiting.len() + pulled.len();
                            prop_assert_eq!((back, len), (number, LIMIT));
                        }
                    },
                    EnvelopeStep::Pull(at) if !waiting.is_empty() => {
                        let (op, message) = waiting.remove(at % waiting.len());
                        receiver.uncount();
                        let receive = receiver.pull(message).unwrap();
                        prop_assert_eq!(sender.on_pull(op, receive), Ok(()));
                        pulled.push_back((receive, message));
                        gone.push(op);
                    }
                    EnvelopeStep::Fin(at) if !waiting.is_empty() => {
                        let (op, message) = waiting.remove(at % waiting.len());
                        receiver.uncount();
                        prop_assert_eq!(sender.on_fin(op), Ok(message));
                        gone.push(op);
                    }
                    EnvelopeStep::Answer => {
                        let next = sender.next_pulled();
                        prop_assert_eq!(next, pulled.pop_front());
                        if let Some((receive, message)) = next {
                            prop_assert_eq!(receiver.get(receive), Some(&message));
                            prop_assert_eq!(receiver.on_answer(receive), Some(message));
                            prop_assert_eq!(receiver.on_answer(receive), None);
                        }
                    }
                    EnvelopeStep::AnswerLater => if let Some((receive, message)) = sender.next_pulled() {
                        sender.put_back(receive, message);
                    },
                    EnvelopeStep::Stale(at) if !gone.is_empty() => {
                        let op = gone[at % gone.len()];
                        prop_assert_eq!(sender.on_pull(op, 1), Err(StaleOp(op)));
                        prop_assert_eq!(sender.on_fin(op), Err(StaleOp(op)));
                    }
                    EnvelopeStep::Guess(op) if waiting.iter().all(|(of, _)| *of != op) => {
                        prop_assert_eq!(sender.on_pull(op, 1), Err(StaleOp(op)));
                    }
                    _ => {}
                }
                prop_assert_eq!(sender.len(), waiting.len() + pulled.len());
                prop_assert_eq!(sender.has_pulled(), !pulled.is_empty());
                prop_assert_eq!(sender.is_full(), sender.len() == LIMIT);
                let all = waiting.iter().chain(&pulled);
                let mut counts = [0; KINDS.len()];
                all.for_each(|(_, number)| counts[number % 3] += 1);
                prop_assert_eq!(KINDS.map(|kind| sender.count(kind)), counts);
                prop_assert_eq!(receiver.len(), pulled.len());
                prop_assert_eq!(receiver.is_empty(), waiting.is_empty() && pulled.is_empty());
            }
            let mut left: Vec<usize> = sender.drain().collect();
            let mut expected: Vec<usize> = waiting.iter().chain(&pulled).map(|one| one.1).collect();
            left.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
            prop_assert_eq!(receiver.drain().count(), pulled.len());
        }
    }

    /// A receiver keeps a million envelopes of a sender, and no more than the bound.
    #[test]
    fn a_sender_has_so_many_envelopes_and_no_more() {
        let mut receiver = PulledMessages::<()>::default();
        let mut sender = WaitingMessages::new(usize::MAX, |()| WaitingKind::TakenForSent);
        for _ in 0..MAX_ENVELOPES {
            assert!(sender.insert(()).is_ok());
            assert_eq!(receiver.count(), Ok(()));
        }
        assert!(MAX_ENVELOPES >= 1_000_000 && sender.is_full());
        assert_eq!(receiver.count(), Err(CreditError::OverEnveloped));
        receiver.uncount();
        assert_eq!(receiver.count(), Ok(()));
    }
}
