//! How a link ends in good order: one side asks, as it has no more to say; the other one agrees, if it has no more to say, either,
//! or has it stay. Who asks announces no message until it is answered, and who agrees says nothing more; so when a side has
//! the other's last word, it has all that was sent.

use ferrofabric_contracts::listed_enum;

use super::Link;
use crate::ring::{Broken, Head, Seen};
use crate::wire::FAREWELL;

listed_enum! {
    /// A message of one side about the end of the link.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Farewell: u64 {
        /// I have no more to say: shall we end it?
        Ask = 0,
        /// Neither have I; this is my last word.
        Agree = 1,
        /// I have: it stays.
        Stay = 2,
    }
}

impl Farewell {
    /// Reads a slot of its kind.
    pub(crate) fn read(seen: Seen) -> Result<Self, Broken> {
        let [number] = seen.words();
        Self::from_number(number).ok_or(Broken("it took leave in no known way"))
    }
}

impl Link {
    /// Whether messages are announced in either direction and not yet there.
    pub(crate) fn is_under_way(&self) -> bool {
        !(self.control.is_empty()
            && self.outgoing.is_empty()
            && self.reading.is_empty()
            && self.incoming.is_empty())
    }

    /// Whether it could end: nothing is under way, nothing waits to be sent, and no message waits for a receive. (The quota of
    /// those is the link's.)
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_under_way() && self.pending.is_empty() && self.held.messages == 0
    }

    /// Slots that were sent and taken: something has happened when they are others.
    pub(crate) fn traffic(&self) -> (u32, u32) {
        (self.tx.published(), self.rx.consumed())
    }

    /// The peer has said something about the end. That the link stays is over with this, so the peer may ask in its next slot;
    /// all else `push` answers.
    pub(crate) fn hears(&mut self, what: Farewell) -> Result<(), Broken> {
        let in_order = match what {
            Farewell::Ask => self.heard.is_none(),
            Farewell::Agree | Farewell::Stay => self.asked && self.heard.is_none(),
        };
        if !in_order {
            return Err(Broken("it took leave out of turn"));
        }
        if what == Farewell::Stay {
            self.asked = false;
            self.stays += 1;
        } else {
            self.heard = Some(what);
        }
        self.busy = true;
        Ok(())
    }

    /// Says something about the end; false if there is no slot for it now.
    pub(crate) fn say_farewell(&mut self, what: Farewell) -> Result<bool, Broken> {
        if !self.tx.has_slot(0) {
            self.tx.refresh()?;
            if !self.tx.has_slot(0) {
                return Ok(false);
            }
        }
        self.tx.publish(Head::new(FAREWELL, 0, 0), |body| {
            // SAFETY: a body has this word.
            unsafe { *body = what as u64 };
        });
        Ok(true)
    }
}
