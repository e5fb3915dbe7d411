//! One-sided operations that this side carries out by itself: the peer's board says where a region
//! lies, and the kernel copies (`docs/adr/0062`). Any doubt sends the operation as messages, and
//! the peer's answer to those counts. Where both ways are open, measurement
//! [chooses](self::choice).

mod choice;

use std::time::Instant;

use ferrofabric_contracts::types::{IoBuf, RmaKind, RmaOp, total_len};

use super::ShmLink;
use crate::board::{MAY_READ, MAY_WRITE, PeerBoard};
use crate::cma::{CopyOutcome, CopyWay};
use crate::config::Cma;
use crate::paths::MessagePath;
use crate::stats::CarriedOut;
use crate::status::{CLOSED, SLEEPS};
use choice::ShortcutChoice;

/// Largest operation in bytes: a copy holds the lock of the domain.
const MOST_BYTES: usize = 64 << 20;

/// Most operations that go as messages after one that could not be carried out.
const MOST_PAUSED: u32 = 1024;

/// The state of the operations that a side carries out by itself.
pub(super) struct LinkShortcuts {
    board: PeerBoard,
    /// The rights to the regions on it.
    rights: u64,
    pause: Pause,
    /// `None`: a copy wherever one is possible.
    choice: Option<ShortcutChoice>,
}

/// Operations that go as messages because an earlier one could not be carried out. Twice as many
/// each time.
#[derive(Default)]
struct Pause {
    left: u32,
    last: u32,
}

impl Pause {
    /// Whether the next operation goes as messages.
    fn takes_one(&mut self) -> bool {
        let takes = self.left != 0;
        self.left -= u32::from(takes);
        takes
    }

    fn begin(&mut self) {
        self.last = (self.last * 2).clamp(1, MOST_PAUSED);
        self.left = self.last;
    }
}

impl LinkShortcuts {
    pub(super) fn new((board, rights): (PeerBoard, u64), setting: Cma) -> Box<Self> {
        Box::new(Self {
            board,
            rights,
            pause: Pause::default(),
            choice: (setting == Cma::Auto).then(ShortcutChoice::default),
        })
    }

    /// The message with an id has got its answer.
    pub(super) fn answered(&mut self, id: u32) {
        if let Some(choice) = &mut self.choice {
            choice.answered(id, Instant::now);
        }
    }
}

impl ShmLink {
    /// Carries out an operation on a region of the peer. False: it has to go as messages.
    ///
    /// # Safety
    ///
    /// The buffers are valid: for reads if the operation is a write, for writes if it is a read.
    pub(crate) unsafe fn carry_out(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        counts: &mut CarriedOut,
    ) -> bool {
        let Some(shortcuts) = &mut self.shortcuts else {
            return false;
        };
        // Operations behind a fence wait with it.
        if !self.sender.has_no_pending() || self.close.has_requested() {
            return false;
        }
        let len = total_len(iov);
        let (way, right) = match op.kind {
            RmaKind::Read => (CopyWay::Read, MAY_READ),
            RmaKind::Write => (CopyWay::Write, MAY_WRITE),
        };
        if shortcuts.rights & right == 0 || len > MOST_BYTES || shortcuts.pause.takes_one() {
            return false;
        }
        let board = &mut shortcuts.board;
        let Some((entry, generation, region)) = board.find(op.key) else {
            return false;
        };
        let Some(addr) = region.part(op.place, len as u64, right) else {
            return false;
        };
        let peer = self.waker.peer_status();
        // A peer that sleeps would have to wake up for a message.
        if let (Some(choice), 0) = (&mut shortcuts.choice, peer.load() & SLEEPS) {
            let in_flight = self.sender.in_flight();
            let (id, on_their_way) = (in_flight.next_id(), in_flight.len());
            let path = match op.kind {
                RmaKind::Write => choice.choose(len, id, on_their_way, Instant::now),
                RmaKind::Read => choice.choose_for_read(len, Instant::now),
            };
            if path == MessagePath::Ring {
                return false;
            }
        }
        let is_still = || board.entry(entry).is_still(generation) && peer.load() & CLOSED == 0;
        let Some(_protection) = self.waker.own_hazard().protect(entry, is_still) else {
            return false;
        };
        let since = Instant::now();
        // SAFETY: the caller's contract.
        match unsafe { self.receiver.copy_memory(way, addr, iov, since) } {
            CopyOutcome::Complete => {}
            CopyOutcome::Missing => {
                shortcuts.pause.begin();
                return false;
            }
            CopyOutcome::Refused => {
                self.receiver.give_up_cma();
                self.shortcuts = None;
                return false;
            }
        }
        shortcuts.pause.last = 0;
        if let Some(choice) = &mut shortcuts.choice {
            choice.copied(len, since.elapsed());
        }
        match op.kind {
            RmaKind::Read => counts.read += 1,
            RmaKind::Write => counts.written += 1,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_get_longer_up_to_a_limit() {
        let mut pause = Pause::default();
        assert!(!pause.takes_one());
        for n in [1, 2, 4, 8] {
            pause.begin();
            let taken = std::iter::from_fn(|| pause.takes_one().then_some(())).count();
            assert_eq!(taken, n);
        }
        for _ in 0..20 {
            pause.begin();
        }
        assert_eq!(pause.left, MOST_PAUSED);
    }
}
