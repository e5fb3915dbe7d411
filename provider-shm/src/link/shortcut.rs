//! One-sided operations that this side carries out by itself: the peer's board says where a region
//! lies. Memory that the peer lets others map is reached by loads and stores (`docs/adr/0067`), and
//! the kernel copies all other (`docs/adr/0062`). Any doubt sends the operation as messages, and
//! the peer's answer to those counts. [`plan`] has the choice. Between the kernel and messages
//! measurement [chooses](self::choice).

mod choice;

use std::ptr::NonNull;
use std::time::Instant;

use ferrofabric_contracts::atomics::AtomicTarget;
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::peer::{MappedCall, Owner, PeerSrx};
use ferrofabric_contracts::region_window::{Elements, RegionAccess};
use ferrofabric_contracts::types::{IoBuf, MsgKind, RemoteKind, RmaKind, RmaOp, total_len};
use ferrofabric_runtime::rma::plan::{Behind, LinkMemory, Operation, Route, Way, plan};
use ferrofabric_system::shared_memory::MemoryBacking;

use super::ShmLink;
use super::mapped::{MappedMemories, copy_mapped};
use super::pause::Pause;
use super::receiver::LinkReceiver;
use super::sender::LinkSender;
use super::waker::PeerWaker;
use crate::board::PeerBoard;
use crate::cma::{CopyOutcome, CopyWay};
use crate::config::Cma;
use crate::hazard::Protection;
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

impl FoundPart {
    /// Keeps the region from its close until the result is dropped. `None`: the region or its owner
    /// is not there any more.
    #[inline]
    fn protect<'a>(&self, board: &PeerBoard, waker: &'a PeerWaker) -> Option<Protection<'a>> {
        let (entry, peer) = (board.entry(self.entry), waker.peer_status());
        let is_still = || entry.is_still(self.generation) && peer.load() & CLOSED == 0;
        waker.own_hazard().protect(self.entry, is_still)
    }
}

/// The bytes of an operation, as this process reaches them.
enum Reached<'a> {
    /// Messages to the peer wait in line. Later the bytes may be mapped here.
    NotReady { is_mappable: bool },
    /// The board does not show them to the operation, or not any more.
    Hidden,
    /// They are mapped here, from this byte on, and the region does not close meanwhile.
    Mapped(NonNull<u8>, Protection<'a>),
    /// They are not mapped here.
    NotMapped(FoundPart),
}

impl Reached<'_> {
    /// The route to them, where `not_mapped` says what else is possible.
    #[inline(always)]
    fn route(&self, not_mapped: impl FnOnce() -> LinkMemory) -> Route {
        match self {
            Self::NotReady { .. } => Route::NotReady,
            Self::Hidden => Route::Link(LinkMemory::Hidden),
            Self::Mapped(..) => Route::Link(LinkMemory::Mapped),
            Self::NotMapped(_) => Route::Link(not_mapped()),
        }
    }
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

    /// Reaches the bytes of an operation: its key, its place and its length.
    #[inline(always)]
    fn reach<'a>(
        &mut self,
        (key, place, len): (u64, u64, usize),
        access: RegionAccess,
        is_ready: bool,
        waker: &'a PeerWaker,
    ) -> Reached<'a> {
        let Some(part) = self.find(key, (place, len), access) else {
            return Reached::Hidden;
        };
        if !is_ready {
            let is_mappable = part.backing.is_some();
            return Reached::NotReady { is_mappable };
        }
        let Some(backing) = &part.backing else {
            return Reached::NotMapped(part);
        };
        let Some(protection) = part.protect(&self.board, waker) else {
            return Reached::Hidden;
        };
        match self.memories.find(backing, len) {
            Some(at) => Reached::Mapped(at, protection),
            None => Reached::NotMapped(part),
        }
    }

    /// Whether the kernel is to carry out an operation on memory that is not mapped, of this kind
    /// and length: it may, and messages are not faster. Apart from the mapped path, which needs the
    /// registers.
    #[inline(never)]
    fn kernel_is_chosen<O: Owner>(
        &mut self,
        chosen: (RmaKind, usize),
        (sender, receiver): (&mut LinkSender, &LinkReceiver),
        waker: &PeerWaker,
        owner: &mut O,
    ) -> bool {
        if !receiver.has_cma() || self.pause.takes_one() {
            return false;
        }
        let behind = self.look_ahead(receiver);
        // A peer that sleeps would have to wake up for a message.
        let (Some(choice), 0) = (&mut self.choice, waker.peer_status().load() & SLEEPS) else {
            return true;
        };
        let path = match chosen.0 {
            RmaKind::Write => {
                let on_their_way = sender.in_flight().len();
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
        path == MessagePath::Cma
    }

    /// Has the kernel carry out an operation on a part of a region. False: it could not.
    ///
    /// # Safety
    ///
    /// As [`ShmLink::carry_out`].
    #[inline(never)]
    unsafe fn copy_by_kernel(
        &mut self,
        (kind, iov): (RmaKind, &[IoBuf]),
        part: &FoundPart,
        receiver: &mut LinkReceiver,
        waker: &PeerWaker,
    ) -> bool {
        let Some(_protection) = part.protect(&self.board, waker) else {
            return false;
        };
        let way = match kind {
            RmaKind::Read => CopyWay::Read,
            RmaKind::Write => CopyWay::Write,
        };
        let since = Instant::now();
        // SAFETY: the caller's contract.
        match unsafe { receiver.copy_memory(way, part.addr, iov, since) } {
            CopyOutcome::Complete => {}
            CopyOutcome::Missing => {
                self.pause.begin();
                return false;
            }
            CopyOutcome::Refused => {
                receiver.give_up_cma();
                return false;
            }
        }
        self.pause.end();
        if let Some(choice) = &mut self.choice {
            choice.copied((kind, total_len(iov)), since.elapsed());
        }
        true
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
        let (is_ready, len) = (self.is_ready(), total_len(iov));
        let Self {
            sender,
            receiver,
            waker,
            shortcuts,
            ..
        } = self;
        // A peer without a board shows nothing.
        let Some(shortcuts) = shortcuts else {
            return false;
        };
        let bytes = (op.key, op.place, len);
        let reached = match (is_ready, len <= MOST_BYTES) {
            // Where the bytes are does not count.
            (false, _) => Reached::NotReady { is_mappable: false },
            (true, true) => shortcuts.reach(bytes, op.kind.right().into(), true, waker),
            (true, false) => Reached::Hidden,
        };
        let route = reached.route(|| {
            let choice = (op.kind, len);
            match shortcuts.kernel_is_chosen(choice, (sender, receiver), waker, owner) {
                true => LinkMemory::Copyable,
                false => LinkMemory::NotCopyable,
            }
        });
        let is_done = match (
            plan(Operation::of(op), Behind::Nothing, route).way(),
            reached,
        ) {
            (Way::Mapped, Reached::Mapped(at, _protection)) => {
                // SAFETY: the caller's contract, and the memory has as many bytes.
                unsafe { copy_mapped(op.kind, at, iov) };
                counts.mapped += 1;
                true
            }
            // SAFETY: the caller's contract.
            (Way::Kernel, Reached::NotMapped(part)) => unsafe {
                shortcuts.copy_by_kernel((op.kind, iov), &part, receiver, waker)
            },
            _ => false,
        };
        if is_done {
            counts.count(op.kind);
        }
        is_done
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
        let is_ready = self.is_ready();
        let Some(shortcuts) = &mut self.shortcuts else {
            return MappedCall::Impossible;
        };
        let access = RegionAccess {
            rights: target.rights,
            elements: Elements::of(Some(target.datatype)),
        };
        let bytes = (target.key, target.place, target.len);
        let reached = shortcuts.reach(bytes, access, is_ready, &self.waker);
        let route = reached.route(|| LinkMemory::NotCopyable);
        let operation = Operation::atomic(target.datatype);
        match (plan(operation, Behind::Nothing, route).way(), reached) {
            (Way::Mapped, Reached::Mapped(at, _protection))
                if at.addr().get() % target.datatype.alignment() == 0 =>
            {
                act(at);
                MappedCall::Made
            }
            (_, Reached::NotReady { is_mappable: true }) => MappedCall::InLine,
            _ => MappedCall::Impossible,
        }
    }

    /// Whether operations of now may be carried out now: those behind a fence wait with it.
    #[inline]
    fn is_ready(&self) -> bool {
        self.sender.has_no_pending() && !self.close.has_requested()
    }
}
