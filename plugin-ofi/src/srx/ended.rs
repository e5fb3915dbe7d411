//! The end of a message that another provider's receive took: the report for the owner's queue, and
//! the entry, which goes back after that.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};

use super::entries::{self, EntryState, HeldEntry};
use super::receives::ForeignReceives;

/// The end of such a message. Its entry goes back when this is dropped.
pub(crate) struct EndedReceive {
    held: HeldEntry,
    /// For the owner's queue.
    pub(crate) report: ReceiveReport,
}

/// The entry for the owner's queue.
pub(crate) enum ReceiveReport {
    /// The receive is for no completion.
    Nothing,
    Completion(Completion),
    Error(CqError),
}

impl EndedReceive {
    /// The end that a completion reports. `None`: the message was dropped, or its endpoint is
    /// closed.
    pub(crate) fn of(done: &Completion) -> Option<Self> {
        let held = ended(done.context)?;
        // SAFETY: the entry has a receive, and goes back when the result is dropped.
        let receive = unsafe { held.entry.receive() };
        let completion = Completion {
            context: receive.context,
            ..*done
        };
        let report = match held.state {
            EntryState::Failed(errno) => ReceiveReport::Error(refused(completion, errno)),
            _ if receive.reports || done.flags.contains(Flags::REMOTE_CQ_DATA) => {
                ReceiveReport::Completion(completion)
            }
            _ => ReceiveReport::Nothing,
        };
        Some(Self { held, report })
    }

    /// The end that an error reports. `None`: as of [`of`](Self::of).
    pub(crate) fn of_error(error: CqError) -> Option<Self> {
        let held = ended(error.completion.context)?;
        // SAFETY: as above.
        let receive = unsafe { held.entry.receive() };
        let completion = Completion {
            context: receive.context,
            ..error.completion
        };
        let report = match (held.state, error.errno) {
            (EntryState::Failed(errno), _) => refused(completion, errno),
            // The claim finds nothing.
            (_, Errno::ENOMSG) => CqError {
                completion: Completion {
                    tag: receive.tag,
                    ..completion
                },
                errno: Errno::ECONNRESET,
                why: "the message is lost with its sender",
                ..error
            },
            _ => CqError {
                completion,
                ..error
            },
        };
        Some(Self {
            held,
            report: ReceiveReport::Error(report),
        })
    }

    /// Whether the endpoint of the message is closed.
    pub(crate) fn is_closed(&self) -> bool {
        let holder = self.held.holder.upgrade();
        holder.is_none_or(|holder| !holder.is_open())
    }

    /// Whether it is a message of that endpoint.
    pub(crate) fn is_of(&self, receives: &ForeignReceives) -> bool {
        self.held.is_of(receives)
    }
}

impl Drop for EndedReceive {
    fn drop(&mut self) {
        self.held.free();
    }
}

/// The entry of a message that has ended, if it has a receive. It is not in the table any more.
fn ended(number: u64) -> Option<HeldEntry> {
    entries::remove(number).filter(HeldEntry::has_receive)
}

/// The error of a receive that could not have the message.
fn refused(completion: Completion, errno: Errno) -> CqError {
    CqError {
        completion: Completion {
            len: 0,
            ..completion
        },
        olen: 0,
        errno,
        prov_errno: 0,
        why: "the buffers of the receive were refused; the message is dropped",
        sender: None,
    }
}
