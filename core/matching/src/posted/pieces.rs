//! The pieces of multi-receives that transports are filling: the buffer is in use until the last of
//! them is complete, which need not be the last that was handed out.

use slab::Slab;

use crate::{MultiReceiveState, WithdrawnReceive};
use ferrofabric_contracts::peer::Piece;

use super::PostedReceive;

/// The outcome of a multi-receive once none of its pieces is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MultiEnd {
    /// Nothing: it is posted still.
    No,
    /// All of its buffer was handed out.
    UsedUp,
    /// The rest of the buffer was taken back.
    TakenBack,
}

struct MultiReceive {
    out: usize,
    end: MultiEnd,
}

/// All multi-receives that are posted or in use.
#[derive(Default)]
pub(super) struct Pieces(Slab<MultiReceive>);

impl Pieces {
    /// Begins a multi-receive.
    pub(super) fn open(&mut self) -> Piece {
        let end = MultiEnd::No;
        Piece(self.0.insert(MultiReceive { out: 0, end }) as u32 + 1)
    }

    /// A transport gets a piece; `last` when nothing is left behind it.
    pub(super) fn hand_out(&mut self, of: Piece, last: bool) {
        if let Some(multi) = self.0.get_mut(slot(of)) {
            multi.out += 1;
            if last {
                multi.end = MultiEnd::UsedUp;
            }
        }
    }

    /// The rest of a receive was taken out of the queue.
    pub(super) fn take_back(&mut self, posted: PostedReceive, of: Piece) -> WithdrawnReceive {
        let mut busy = Piece::NONE;
        if let Some(multi) = self.0.get_mut(slot(of)) {
            multi.end = MultiEnd::TakenBack;
            match multi.out {
                0 => drop(self.0.remove(slot(of))),
                _ => busy = of,
            }
        }
        WithdrawnReceive { posted, busy }
    }

    /// A transport has completed a piece.
    pub(super) fn complete(&mut self, of: Piece) -> MultiReceiveState {
        let Some(multi) = self.0.get_mut(slot(of)) else {
            return MultiReceiveState::InUse;
        };
        multi.out = multi.out.saturating_sub(1);
        let (out, end) = (multi.out, multi.end);
        if out != 0 || end == MultiEnd::No {
            return MultiReceiveState::InUse;
        }
        self.0.remove(slot(of));
        match end {
            MultiEnd::TakenBack => MultiReceiveState::TakenBack,
            _ => MultiReceiveState::Released,
        }
    }
}

/// No slot for a receive of one message.
fn slot(of: Piece) -> usize {
    (of.0 as usize).wrapping_sub(1)
}
