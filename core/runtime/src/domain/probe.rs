//! Receives that inquire about messages and do not wait for them: `FI_PEEK`, `FI_CLAIM` and
//! `FI_DISCARD` of fi_tagged(3), for untagged messages too.

use super::srx::SharedRx;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Completion, CqError, Piece, Start, Token};
use ferrofabric_contracts::types::{FiAddr, MsgKind, RecvOp};
use ferrofabric_matching as matching;
use ferrofabric_matching::ReceiveBuffers;

/// The purpose of a receive operation with such flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Returns whether a message is there, and its attributes (`FI_PEEK`).
    Peek,
    /// Also claims it (`FI_PEEK | FI_CLAIM`).
    PeekClaim,
    /// Also drops it (`FI_PEEK | FI_DISCARD`).
    PeekDiscard,
    /// Receives the claimed message (`FI_CLAIM`).
    Claimed,
    /// Drops the claimed message (`FI_CLAIM | FI_DISCARD`).
    DiscardClaimed,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// No message matches. One may have come meanwhile, unless the probe is for a claimed one.
    Missing,
    /// The message, which stays.
    Found(Arrived),
    /// The message, for its transport to drop.
    Dropped(Arrived, Token),
    /// The message, for its transport to deliver into the buffer.
    Delivered(Start),
}

impl Probe {
    /// The flags that make a receive a probe.
    pub(super) const FLAGS: Flags = Flags::PEEK.union(Flags::CLAIM).union(Flags::DISCARD);

    /// The probe with the flags of an operation.
    ///
    /// # Errors
    ///
    /// `EBADFLAGS`: a combination that fi_tagged(3) gives no meaning, or a probe that is a
    /// multi-receive too.
    pub(super) fn of(flags: Flags) -> Result<Self, OpError> {
        const PEEK: u64 = Flags::PEEK.bits();
        const CLAIM: u64 = Flags::CLAIM.bits();
        const DISCARD: u64 = Flags::DISCARD.bits();
        if flags.contains(Flags::MULTI_RECV) {
            return Err(OpError::Failed(Errno::EBADFLAGS));
        }
        match flags.intersection(Self::FLAGS).bits() {
            PEEK => Ok(Self::Peek),
            v if v == PEEK | CLAIM => Ok(Self::PeekClaim),
            v if v == PEEK | DISCARD => Ok(Self::PeekDiscard),
            CLAIM => Ok(Self::Claimed),
            v if v == CLAIM | DISCARD => Ok(Self::DiscardClaimed),
            _ => Err(OpError::Failed(Errno::EBADFLAGS)),
        }
    }

    /// Whether it looks among unclaimed messages, which progress may add to.
    pub(super) fn searches_unclaimed(self) -> bool {
        matches!(self, Self::Peek | Self::PeekClaim | Self::PeekDiscard)
    }
}

impl SharedRx {
    /// Looks for the message of a probe; `buf` is the buffer for a claimed one.
    pub(super) fn probe(&mut self, probe: Probe, op: &RecvOp, buf: ReceiveBuffers) -> Probed {
        let (src, tag, ignore) = Self::selector(op);
        let matcher = self.matcher(op.kind);
        let found = match probe {
            Probe::Peek => matcher.peek(src, tag, ignore),
            Probe::PeekClaim => matcher.claim(src, tag, ignore, op.context),
            Probe::PeekDiscard => matcher.discard(src, tag, ignore),
            Probe::Claimed | Probe::DiscardClaimed => matcher.take_claimed(op.context),
        };
        let Some(message) = found else {
            return Probed::Missing;
        };
        match probe {
            Probe::Peek | Probe::PeekClaim => Probed::Found(message.arrived),
            Probe::PeekDiscard | Probe::DiscardClaimed => {
                Probed::Dropped(message.arrived, message.token)
            }
            Probe::Claimed => {
                let matched = matching::MatchedReceive {
                    context: op.context,
                    buf,
                    flags: op.flags & Flags::COMPLETION,
                    desc: op.desc,
                    piece: Piece::NONE,
                };
                Probed::Delivered(Start {
                    kind: op.kind,
                    token: message.token,
                    arrived: message.arrived,
                    matched: self.matched_of(matched, message.arrived.len),
                })
            }
        }
    }
}

/// The completion of a probe that found a message: its attributes, and no buffer.
pub(super) fn found(op: &RecvOp, arrived: &Arrived, src: FiAddr) -> Completion {
    Completion {
        context: op.context,
        flags: op.kind.recv_flags() | arrived.flags,
        len: usize::try_from(arrived.len).unwrap_or(usize::MAX),
        buf: 0,
        data: arrived.data,
        tag: arrived.tag,
        src,
    }
}

/// The completion of a probe that found none.
pub(super) fn missing(probe: Probe, op: &RecvOp) -> CqError {
    CqError {
        completion: Completion {
            context: op.context,
            flags: op.kind.recv_flags(),
            len: 0,
            buf: 0,
            data: 0,
            tag: match op.kind {
                MsgKind::Tagged => op.tag,
                MsgKind::Msg | MsgKind::Remote(_) => 0,
            },
            src: op.src,
        },
        olen: 0,
        errno: Errno::ENOMSG,
        prov_errno: 0,
        why: match probe.searches_unclaimed() {
            true => "no message that matches is here",
            false => "no message is claimed with this context, or it is lost with its sender",
        },
        sender: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: PEER-8
    #[test]
    fn flags_that_mean_nothing_together_are_refused() {
        let (peek, claim, discard) = (Flags::PEEK, Flags::CLAIM, Flags::DISCARD);
        let good = [
            (peek, Probe::Peek),
            (peek | claim, Probe::PeekClaim),
            (peek | discard, Probe::PeekDiscard),
            (claim, Probe::Claimed),
            (claim | discard, Probe::DiscardClaimed),
        ];
        for (flags, probe) in good {
            assert_eq!(Probe::of(flags), Ok(probe));
            assert_eq!(Probe::of(flags | Flags::COMPLETION), Ok(probe));
            let multi = Probe::of(flags | Flags::MULTI_RECV);
            assert_eq!(multi, Err(OpError::Failed(Errno::EBADFLAGS)));
        }
        for flags in [discard, peek | claim | discard] {
            assert_eq!(Probe::of(flags), Err(OpError::Failed(Errno::EBADFLAGS)));
        }
    }

    #[test]
    fn the_flags_have_libfabrics_numbers() {
        assert_eq!(Probe::FLAGS.bits(), (1 << 19) | (1 << 58) | (1 << 59));
    }
}
