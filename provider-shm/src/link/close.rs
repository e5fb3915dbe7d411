//! The handshake that closes a link in good order.
//!
//! A side with nothing more to send requests the close. The other side agrees if it has nothing
//! more to send, either, or refuses. The requesting side starts no message until the answer,
//! and an agreeing side sends nothing more. So a side that has the other's last message has all
//! messages.

use ferrofabric_contracts::listed_enum;

use crate::ring::{LinkViolation, PublishedSlot};

listed_enum! {
    /// A message of one side about the end of the link.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum CloseMessage: u64 {
        /// The side has nothing more to send and requests the close.
        Request = 0,
        /// The side has nothing more to send, either; this is its last message.
        Agree = 1,
        /// The side has messages to send: the link stays.
        Refuse = 2,
    }
}

impl CloseMessage {
    /// Reads a slot of its kind.
    pub(crate) fn read(seen: PublishedSlot) -> Result<Self, LinkViolation> {
        let [number] = seen.words();
        Self::from_number(number).ok_or(LinkViolation("it sent an unknown close message"))
    }
}

/// The state of the handshake that closes a link.
#[derive(Default)]
pub(super) struct CloseHandshake {
    /// Our request is unanswered; until then no message is started.
    has_requested: bool,
    /// The peer's close message that waits to be handled.
    received: Option<CloseMessage>,
    /// Times that the peer refused to close the link, and the number from which the count began.
    refusals: u32,
}

impl CloseHandshake {
    #[inline(always)]
    pub(super) fn has_requested(&self) -> bool {
        self.has_requested
    }

    /// Whether a close message of the peer waits to be handled.
    #[inline(always)]
    pub(super) fn has_received(&self) -> bool {
        self.received.is_some()
    }

    pub(super) fn refusals(&self) -> u32 {
        self.refusals
    }

    pub(super) fn count_refusals_from(&mut self, refusals: u32) {
        self.refusals = refusals;
    }

    /// A close message of the peer has come. A refusal is handled at once, so the peer may request
    /// the close in its next slot; any other message must be handled first.
    pub(super) fn receive(&mut self, what: CloseMessage) -> Result<(), LinkViolation> {
        let in_order = match what {
            CloseMessage::Request => self.received.is_none(),
            CloseMessage::Agree | CloseMessage::Refuse => {
                self.has_requested && self.received.is_none()
            }
        };
        if !in_order {
            return Err(LinkViolation("it sent a close message out of turn"));
        }
        if what == CloseMessage::Refuse {
            self.has_requested = false;
            self.refusals += 1;
        } else {
            self.received = Some(what);
        }
        Ok(())
    }

    /// We have sent a close message: an answer completes the handling of the peer's message.
    pub(super) fn sent(&mut self, what: CloseMessage) {
        self.has_requested = what == CloseMessage::Request;
        if !self.has_requested {
            self.received = None;
        }
    }
}
