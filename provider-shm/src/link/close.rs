//! How a link ends in good order: one side asks, as it has no more to say; the other one agrees, if
//! it has no more to say, either, or has it stay. Who asks announces no message until it is
//! answered, and who agrees says nothing more; so when a side has the other's last word, it has all
//! that was sent.

use ferrofabric_contracts::listed_enum;

use crate::ring::{Broken, Seen};

listed_enum! {
    /// A message of one side about the end of the link.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum CloseMessage: u64 {
        /// I have no more to say: shall we end it?
        Ask = 0,
        /// Neither have I; this is my last word.
        Agree = 1,
        /// I have: it stays.
        Stay = 2,
    }
}

impl CloseMessage {
    /// Reads a slot of its kind.
    pub(crate) fn read(seen: Seen) -> Result<Self, Broken> {
        let [number] = seen.words();
        Self::from_number(number).ok_or(Broken("it took leave in no known way"))
    }
}

/// How far the two sides are with the end of their link.
#[derive(Default)]
pub(super) struct CloseHandshake {
    /// We have asked for its end, and announce nothing until there is an answer.
    has_asked: bool,
    /// What the peer has said to its end, and was not dealt with.
    received: Option<CloseMessage>,
    /// Times that the peer had the link stay, and the number from which the count began.
    stays: u32,
}

impl CloseHandshake {
    #[inline(always)]
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked
    }

    /// Whether the peer waits for what comes of its message.
    #[inline(always)]
    pub(super) fn has_received(&self) -> bool {
        self.received.is_some()
    }

    pub(super) fn stays(&self) -> u32 {
        self.stays
    }

    pub(super) fn count_stays_from(&mut self, stays: u32) {
        self.stays = stays;
    }

    /// The peer has sent a message. That the link stays is over with this, so the peer may ask in
    /// its next slot; all else has to be dealt with.
    pub(super) fn receive(&mut self, what: CloseMessage) -> Result<(), Broken> {
        let in_order = match what {
            CloseMessage::Ask => self.received.is_none(),
            CloseMessage::Agree | CloseMessage::Stay => self.has_asked && self.received.is_none(),
        };
        if !in_order {
            return Err(Broken("it took leave out of turn"));
        }
        if what == CloseMessage::Stay {
            self.has_asked = false;
            self.stays += 1;
        } else {
            self.received = Some(what);
        }
        Ok(())
    }

    /// We have sent a message: an answer deals with what the peer has said.
    pub(super) fn sent(&mut self, what: CloseMessage) {
        self.has_asked = what == CloseMessage::Ask;
        if !self.has_asked {
            self.received = None;
        }
    }
}
