//! One-sided operations that this side carries out by itself: the peer's board says where a region
//! lies. Memory that the peer lets others map is reached by loads and stores (`docs/adr/0067`), and
//! the kernel copies all other (`docs/adr/0062`). Any doubt sends the operation as messages, and
//! the peer's answer to those counts. Between the kernel and messages measurement
//! [chooses](self::choice).

mod choice;

use std::ptr::NonNull;
use std::time::Instant;

use ferrofabric_contracts::atomics::AtomicTarget;
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::peer::{MappedCall, Owner, PeerSrx};
use ferrofabric_contracts::region_window::{Elements, RegionAccess};
use ferrofabric_contracts::types::{IoBuf, MsgKind, RemoteKind, RmaKind, RmaOp, total_len};
use ferrofabric_system::shared_memory::MemoryBacking;

use super::ShmLink;
use super::mapped::{MappedMemories, MappedPart, copy_mapped};
use super::pause::Pause;
use super::receiver::LinkReceiver;
use crate::board::PeerBoard;
use crate::cma::{CopyOutcome, CopyWay};
use crate::config::Cma;
use crate::paths::MessagePath;
use crate::service::PeerRegions;
use crate::stats::CarriedOut;
use crate::status::{CLOSED, SLEEPS};
use crate::wire::{DELIVERED, EAGER, INLINE, PART_SHIFT};
use choice::{PartAnswer, ShortcutChoice};

/// Largest operation in bytes: a copy holds the lock of the domain.
const MOST_BYTES: usize = 64 << 20;

/// The state of the operations that a side carries out by itself.
pub(super) struct LinkShortcuts {
    board: PeerBoard,
    /// The rights to the regions on it.
    rights: Rights,
    /// Memory of the peer that is mapped.
    memories: MappedMemories,
    /// After a copy of the kernel that failed.
    pause: Pause,
    /// `None`: a copy wherever one is possible.
    choice: Option<ShortcutChoice>,
    /// The slots before this one were looked at.
    looked_until: u32,
}

/// A part of a region of the peer. It counts if its entry of the board
/// [is still](crate::board::BoardEntry::is_still) the same afterwards.
struct FoundPart {
    entry: usize,
    generation: u64,
    /// Its first byte, in the peer's process.
    addr: u64,
    /// That byte, if it lies in memory that peers may map.
    backing: Option<MemoryBacking>,
}

impl LinkShortcuts {
    pub(super) fn new(regions: PeerRegions, setting: Cma) -> Box<Self> {
        Box::new(Self {
            board: regions.board,
            rights: regions.rights,
            memories: MappedMemories::of(regions.pid),
            pause: Pause::default(),
            choice: (setting == Cma::Auto).then(ShortcutChoice::default),
            looked_until: 0,
        })
    }

    /// The part of a region that an operation needs, as the board shows it. Inlined, so that its
    /// words stay in registers.
    #[inline(always)]
    fn find(
        &mut self,
        key: u64,
        (place, len): (u64, usize),
        access: RegionAccess,
    ) -> Option<FoundPart> {
        if !self.rights.contains(access.rights) {
            return None;
        }
        let (entry, generation, region) = self.board.find(key)?;
        let addr = region.window.address_of(place, len as u64, access)?;
        Some(FoundPart {
            entry,
            generation,
            addr,
            backing: region.backing_at(addr),
        })
    }

    /// An answer has come. The slots that are taken: if that of the answer was the last one.
    fn answered(&mut self, answer: PartAnswer, taken: Option<u32>) {
        let was_seen = |taken: u32| self.looked_until.wrapping_sub(taken) as i32 >= 0;
        if let (Some(choice), false) = (&mut self.choice, taken.is_some_and(was_seen)) {
            choice.answered(answer, Instant::now);
        }
    }

    /// Looks at the slots that have come and are not taken, for the application may not poll while
    /// it begins operations. Returns their number.
    fn look_ahead(&mut self, receiver: &LinkReceiver) -> usize {
        const REPLY: u8 = RemoteKind::Reply as u8;
        let taken = receiver.consumed();
        if taken.wrapping_sub(self.looked_until) as i32 > 0 {
            self.looked_until = taken;
        }
        let behind = self.looked_until.wrapping_sub(taken) as usize;
        let Some(choice) = self.choice.as_mut().filter(|choice| choice.looks()) else {
            return behind;
        };
        while let Some(slot) = receiver.peek_ahead(self.looked_until) {
            self.looked_until = self.looked_until.wrapping_add(1);
            let [word] = slot.words();
            let answer = match (slot.head.kind(), slot.head.flags() >> PART_SHIFT) {
                (DELIVERED, _) => PartAnswer::Delivered(word as u32),
                (INLINE | EAGER, REPLY) => PartAnswer::Reply(word),
                _ => continue,
            };
            choice.answered(answer, Instant::now);
        }
        self.looked_until.wrapping_sub(taken) as usize
    }
}

/// Events from which the choice between the kernel and messages learns.
impl ShmLink {
    fn choice(&mut self) -> Option<&mut ShortcutChoice> {
        self.shortcuts.as_mut()?.choice.as_mut()
    }

    /// A message has started that `DELIVERED` with this id answers.
    #[inline]
    pub(super) fn has_started(&mut self, kind: MsgKind, id: u32) {
        if let (true, Some(choice)) = (kind.is_part(), self.choice()) {
            choice.started(PartAnswer::Delivered(id));
        }
    }

    /// A message waits in line.
    pub(super) fn waits_in_line(&mut self) {
        if let Some(choice) = self.choice() {
            choice.waits_in_line();
        }
    }

    /// `DELIVERED` has come, in the last slot that was taken.
    #[inline]
    pub(super) fn has_delivered(&mut self, id: u32) {
        let taken = self.receiver.consumed();
        if let Some(shortcuts) = &mut self.shortcuts {
            shortcuts.answered(PartAnswer::Delivered(id), Some(taken));
        }
    }

    /// A reply has come, in the last slot that was taken or in several.
    pub(super) fn has_replied(&mut self, tag: u64, in_last_slot: bool) {
        let taken = in_last_slot.then(|| self.receiver.consumed());
        if let Some(shortcuts) = &mut self.shortcuts {
            shortcuts.answered(PartAnswer::Reply(tag), taken);
        }
    }
}

impl ShmLink {
    /// Carries out an operation on a region of the peer. False: it has to go as messages.
    ///
    /// # Safety
    ///
    /// The buffers are valid: for reads if the operation is a write, for writes if it is a read.
    pub(crate) unsafe fn carry_out<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        counts: &mut CarriedOut,
        owner: &mut O,
    ) -> bool {
        let len = total_len(iov);
        let access = op.kind.right().into();
        if !self.may_shortcut() || len > MOST_BYTES {
            return false;
        }
        let shortcuts = self.shortcuts.as_mut();
        let found = shortcuts.and_then(|s| s.find(op.key, (op.place, len), access));
        let Some(part) = found else {
            return false;
        };
        // SAFETY: the caller's contract, and the memory has as many bytes.
        let copy = |at| unsafe { copy_mapped(op.kind, at, iov) };
        match self.with_mapped_part(&part, len, copy) {
            MappedPart::Gone => return false,
            MappedPart::Is(()) => {
                counts.mapped += 1;
                counts.count(op.kind);
                return true;
            }
            MappedPart::IsNot => {}
        }
        // SAFETY: the caller's contract.
        let is_copied = unsafe { self.copy_by_kernel(op, iov, &part, owner) };
        if is_copied {
            counts.count(op.kind);
        }
        is_copied
    }

    /// Calls `act` with a part of a region of the peer, for an atomic operation, if that memory is
    /// mapped here, as [`Transport::with_mapped`] describes it.
    ///
    /// [`Transport::with_mapped`]: ferrofabric_contracts::peer::Transport::with_mapped
    pub(crate) fn with_mapped(
        &mut self,
        target: &AtomicTarget,
        act: impl FnOnce(NonNull<u8>),
    ) -> MappedCall {
        let access = RegionAccess {
            rights: target.rights,
            elements: Elements::of(Some(target.datatype)),
        };
        let shortcuts = self.shortcuts.as_mut();
        let found = shortcuts.and_then(|s| s.find(target.key, (target.place, target.len), access));
        let Some(part) = found else {
            return MappedCall::Impossible;
        };
        if !self.may_shortcut() {
            return match part.backing {
                Some(_) => MappedCall::InLine,
                None => MappedCall::Impossible,
            };
        }
        let alignment = target.datatype.alignment();
        let act_on_elements = |at: NonNull<u8>| {
            let is_aligned = at.addr().get() % alignment == 0;
            if is_aligned {
                act(at);
            }
            is_aligned
        };
        match self.with_mapped_part(&part, target.len, act_on_elements) {
            MappedPart::Is(true) => MappedCall::Made,
            _ => MappedCall::Impossible,
        }
    }

    /// Whether operations of now may be carried out now: those behind a fence wait with it.
    #[inline]
    fn may_shortcut(&self) -> bool {
        self.sender.has_no_pending() && !self.close.has_requested()
    }

    /// Calls `act` with a part of a region, if it is in memory that is mapped here, or can be. The
    /// region does not close meanwhile.
    #[inline]
    fn with_mapped_part<T>(
        &mut self,
        part: &FoundPart,
        len: usize,
        act: impl FnOnce(NonNull<u8>) -> T,
    ) -> MappedPart<T> {
        let (Some(shortcuts), Some(backing)) = (&mut self.shortcuts, &part.backing) else {
            return MappedPart::IsNot;
        };
        let entry = shortcuts.board.entry(part.entry);
        let peer = self.waker.peer_status();
        let is_still = || entry.is_still(part.generation) && peer.load() & CLOSED == 0;
        let Some(_protection) = self.waker.own_hazard().protect(part.entry, is_still) else {
            return MappedPart::Gone;
        };
        match shortcuts.memories.find(backing, len) {
            Some(at) => MappedPart::Is(act(at)),
            None => MappedPart::IsNot,
        }
    }

    /// Has the kernel carry out an operation on memory of the peer, at an address that an entry of
    /// its board gives. False: the operation has to go as messages.
    ///
    /// # Safety
    ///
    /// As [`carry_out`](Self::carry_out).
    #[inline(never)]
    unsafe fn copy_by_kernel<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        part: &FoundPart,
        owner: &mut O,
    ) -> bool {
        let Some(shortcuts) = &mut self.shortcuts else {
            return false;
        };
        if !self.receiver.has_cma() || shortcuts.pause.takes_one() {
            return false;
        }
        let behind = shortcuts.look_ahead(&self.receiver);
        let (len, peer) = (total_len(iov), self.waker.peer_status());
        // A peer that sleeps would have to wake up for a message.
        if let (Some(choice), 0) = (&mut shortcuts.choice, peer.load() & SLEEPS) {
            let chosen = (op.kind, len);
            let path = match op.kind {
                RmaKind::Write => {
                    let on_their_way = self.sender.in_flight().len();
                    choice.choose(chosen, on_their_way, behind, Instant::now)
                }
                RmaKind::Read => match owner.srx().next_request() {
                    Some(tag) => {
                        let path = choice.choose(chosen, 0, behind, Instant::now);
                        choice.started(PartAnswer::Reply(tag));
                        path
                    }
                    // The request could not go now.
                    None => MessagePath::Cma,
                },
            };
            if path == MessagePath::Ring {
                return false;
            }
        }
        let entry = shortcuts.board.entry(part.entry);
        let is_still = || entry.is_still(part.generation) && peer.load() & CLOSED == 0;
        let Some(_protection) = self.waker.own_hazard().protect(part.entry, is_still) else {
            return false;
        };
        let way = match op.kind {
            RmaKind::Read => CopyWay::Read,
            RmaKind::Write => CopyWay::Write,
        };
        let since = Instant::now();
        // SAFETY: the caller's contract.
        match unsafe { self.receiver.copy_memory(way, part.addr, iov, since) } {
            CopyOutcome::Complete => {}
            CopyOutcome::Missing => {
                shortcuts.pause.begin();
                return false;
            }
            CopyOutcome::Refused => {
                self.receiver.give_up_cma();
                return false;
            }
        }
        shortcuts.pause.end();
        if let Some(choice) = &mut shortcuts.choice {
            choice.copied((op.kind, len), since.elapsed());
        }
        true
    }
}
