//! The receive entries of one endpoint, in memory that is reused and never freed.
//!
//! A slot is an entry as C has it, and the owner's record of its message. The states:
//!
//! ```text
//! Free → Matched → Reported → Free
//! Free → Unexpected → Queued → Matched → …
//!                       └→ Discarded → Free
//!        Unexpected → Left → Queued or Matched
//! ```
//!
//! The thread that drives the endpoint changes all of them, with one exception: a callback outside
//! of its calls takes a new slot to `Unexpected` and from there to `Left`, with the mailbox locked.
//! Such a slot becomes the driving thread's with the record in the mailbox.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched, Piece};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind};
use ferrofabric_system::locks::Mutex;
use libc::iovec;

use super::context::{MAX_SLOTS, OperationContext, next_generation};
use crate::abi::{FI_COMPLETION, fi_addr_t, fi_peer_rx_entry, fid_peer_srx};

/// Pieces of memory that an entry has at most: the receive's, and one for the rest of the message.
const PIECES: usize = 2;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum SlotState {
    /// Nobody has it.
    Free,
    /// It has a receive, and the C provider fills its memory.
    Matched,
    /// The end of its receive was reported. The C provider has yet to free it.
    Reported,
    /// Its message has no receive. The C provider has yet to queue it.
    Unexpected,
    /// The C provider has queued it outside of the calls of the thread that drives the endpoint.
    Left,
    /// Its message is in the owner's queue.
    Queued,
    /// The C provider drops its message.
    Discarded,
}

impl SlotState {
    fn of(number: u32) -> Self {
        let states = [
            Self::Free,
            Self::Matched,
            Self::Reported,
            Self::Unexpected,
            Self::Left,
            Self::Queued,
        ];
        (states.into_iter())
            .find(|state| *state as u32 == number)
            .unwrap_or(Self::Discarded)
    }
}

/// How the end of a receive goes to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReport {
    /// As the C provider says.
    Result,
    /// As this error: the message went to memory of ours, for the receive had none.
    Failed(Errno),
    /// Not at all: the message was dropped.
    Nothing,
}

/// The owner's record of the message of an entry.
pub(super) struct EntryMessage {
    pub(super) kind: MsgKind,
    pub(super) arrived: Arrived,
    /// The number of its sender at the C provider.
    pub(super) number: fi_addr_t,
    pub(super) matched: Matched,
    pub(super) report: EndReport,
    /// It is in the queue, and counted as one of an unknown source.
    pub(super) is_unknown: bool,
    /// For the bytes that the receive has no room for. Empty in a free slot.
    pub(super) sink: Vec<u8>,
}

/// An entry, and its message.
#[repr(C, align(64))]
pub(super) struct EntrySlot {
    /// Before libfabric 2.3 the entry begins here.
    links: UnsafeCell<[*mut c_void; 2]>,
    /// Since then it begins here.
    fields: UnsafeCell<fi_peer_rx_entry>,
    iov: UnsafeCell<[iovec; PIECES]>,
    /// NULL, each of them: `shm` copies them all the same.
    desc: UnsafeCell<[*mut c_void; PIECES]>,
    index: u32,
    state: AtomicU32,
    /// That of the present use.
    generation: AtomicU64,
    message: UnsafeCell<EntryMessage>,
}

// SAFETY: the entry is C's while C has it, and is read and written by copies. `message` is used by
// one thread at a time: by the one that drives the endpoint, and before a slot is `Left` by one
// that has the mailbox's lock. The states, whose stores release, hand it on.
unsafe impl Sync for EntrySlot {}
// SAFETY: its pointers lead to memory of the same slot.
unsafe impl Send for EntrySlot {}

const FIELDS_AT: usize = std::mem::offset_of!(EntrySlot, fields);

/// The fields of an entry that depend on its message.
pub(super) struct EntryFields {
    pub(super) srx: *mut fid_peer_srx,
    pub(super) kind: MsgKind,
    pub(super) number: fi_addr_t,
    pub(super) arrived: Arrived,
    /// C has queued it before, and has its own context in it.
    pub(super) was_queued: bool,
}

impl EntrySlot {
    fn new(index: usize) -> Self {
        Self {
            links: UnsafeCell::new([null_mut(); 2]),
            fields: UnsafeCell::default(),
            iov: UnsafeCell::new([NO_MEMORY; PIECES]),
            desc: UnsafeCell::new([null_mut(); PIECES]),
            index: index as u32,
            state: AtomicU32::new(SlotState::Free as u32),
            generation: AtomicU64::new(1),
            message: UnsafeCell::new(EntryMessage::NONE),
        }
    }

    #[inline]
    pub(super) fn state(&self) -> SlotState {
        SlotState::of(self.state.load(Ordering::Acquire))
    }

    /// For the thread that drives the endpoint.
    #[inline]
    pub(super) fn set_state(&self, state: SlotState) {
        self.state.store(state as u32, Ordering::Release);
    }

    #[inline]
    pub(super) fn is(&self, state: SlotState) -> bool {
        self.state.load(Ordering::Acquire) == state as u32
    }

    /// Takes the slot out of `Unexpected`; false: it is in another state.
    pub(super) fn leave_unexpected(&self, to: SlotState) -> bool {
        let from = SlotState::Unexpected as u32;
        (self.state)
            .compare_exchange(from, to as u32, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// The context of its present use.
    #[inline]
    pub(super) fn context(&self) -> OperationContext {
        let generation = self.generation.load(Ordering::Relaxed);
        OperationContext::of_receive(generation, self.index as usize)
    }

    /// Ends its use: its context is never valid again.
    #[inline]
    pub(super) fn end_use(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        (self.generation).store(next_generation(generation), Ordering::Relaxed);
        self.set_state(SlotState::Free);
    }

    /// Its message.
    ///
    /// # Safety
    ///
    /// The caller drives the endpoint, and the slot is neither free nor one that another thread
    /// may have as `Unexpected`; or the caller has taken the slot and handed it to nobody. No other
    /// reference to the message is used meanwhile.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller has it for itself")]
    pub(super) unsafe fn message(&self) -> &mut EntryMessage {
        // SAFETY: as the caller says.
        unsafe { &mut *self.message.get() }
    }

    /// The entry, as C has it.
    #[inline]
    pub(super) fn entry(&'static self, link_bytes: usize) -> *mut fi_peer_rx_entry {
        let start = std::ptr::from_ref(self).cast_mut();
        start.wrapping_byte_add(FIELDS_AT - link_bytes).cast()
    }

    /// Fills the entry for a message that has no receive. It has no memory.
    ///
    /// # Safety
    ///
    /// C does not have the entry.
    pub(super) unsafe fn fill_unexpected(&'static self, of: &EntryFields) {
        // SAFETY: as the caller says.
        unsafe {
            self.iov.get().write([NO_MEMORY; PIECES]);
            self.fill(of, 0);
        }
    }

    /// Fills the entry for a receive into memory.
    ///
    /// # Safety
    ///
    /// C does not use the entry.
    #[inline]
    pub(super) unsafe fn fill_matched(&'static self, of: &EntryFields, to: IoBuf) {
        // SAFETY: as the caller says.
        unsafe {
            self.iov.get().cast::<iovec>().write(piece(to));
            self.fill(of, 1);
        }
    }

    /// As [`fill_matched`](Self::fill_matched), with memory for the rest of the message.
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn fill_truncated(&'static self, of: &EntryFields, to: IoBuf, rest: IoBuf) {
        // SAFETY: as the caller says.
        unsafe {
            match to.len {
                0 => self.fill_matched(of, rest),
                _ => {
                    self.iov.get().write([piece(to), piece(rest)]);
                    self.fill(of, 2);
                }
            }
        }
    }

    /// # Safety
    ///
    /// C does not use the entry, and that many pieces are filled in.
    #[inline]
    unsafe fn fill(&'static self, of: &EntryFields, count: usize) {
        let mut flags = (of.kind.recv_flags() | of.arrived.flags).bits();
        let mut context = null_mut();
        if count != 0 {
            flags |= FI_COMPLETION;
            context = self.context().0 as usize as *mut c_void;
        }
        // SAFETY: as the caller says.
        unsafe {
            self.desc.get().write([null_mut(); PIECES]);
            self.fields.get().write(fi_peer_rx_entry {
                srx: of.srx,
                addr: of.number,
                msg_size: of.arrived.len as usize,
                tag: of.arrived.tag,
                cq_data: of.arrived.data,
                flags,
                context,
                count,
                desc: self.desc.get().cast(),
                peer_context: match of.was_queued {
                    true => (*self.fields.get()).peer_context,
                    false => null_mut(),
                },
                owner_context: null_mut(),
                iov: self.iov.get().cast(),
            });
        }
    }

    /// The CQ data that C has written down in the entry of an unexpected message.
    pub(super) fn cq_data(&self) -> Option<u64> {
        let fields = self.fields.get();
        // SAFETY: both are numbers, whatever C has written.
        let (flags, data) = unsafe {
            (
                (&raw const (*fields).flags).read_volatile(),
                (&raw const (*fields).cq_data).read_volatile(),
            )
        };
        (flags & Flags::REMOTE_CQ_DATA.bits() != 0).then_some(data)
    }
}

const NO_MEMORY: iovec = iovec {
    iov_base: null_mut(),
    iov_len: 0,
};

#[inline]
fn piece(of: IoBuf) -> iovec {
    iovec {
        iov_base: of.as_mut_ptr().cast(),
        iov_len: of.len,
    }
}

impl EntryMessage {
    const NONE: Self = Self {
        kind: MsgKind::Msg,
        arrived: Arrived {
            src: FiAddr::NOTAVAIL,
            tag: 0,
            len: 0,
            data: 0,
            flags: Flags::empty(),
        },
        number: fi_addr_t::MAX,
        matched: NO_RECEIVE,
        report: EndReport::Nothing,
        is_unknown: false,
        sink: Vec::new(),
    };
}

/// In place of a receive.
pub(super) const NO_RECEIVE: Matched = Matched {
    buf: IoBuf::EMPTY,
    desc: MrDesc::NONE,
    context: 0,
    flags: Flags::empty(),
    piece: Piece::NONE,
};

/// Slots of the first chunk. Each further one has twice as many.
const FIRST: usize = 64;

/// Chunks that there are at most.
const CHUNKS: usize = (MAX_SLOTS / FIRST).ilog2() as usize;

const fn slots_of_chunk(chunk: usize) -> usize {
    FIRST << chunk
}

/// The slots of one endpoint, in chunks that are never freed.
pub(super) struct EntryChunks {
    chunks: [AtomicPtr<EntrySlot>; CHUNKS],
    /// How many there are.
    grown: Mutex<usize>,
    /// Bytes of an entry ahead of its fields.
    link_bytes: AtomicUsize,
}

impl EntryChunks {
    pub(super) const fn new() -> Self {
        Self {
            chunks: [const { AtomicPtr::new(null_mut()) }; CHUNKS],
            grown: Mutex::new(0),
            link_bytes: AtomicUsize::new(0),
        }
    }

    /// Sets the layout of entries. C has none.
    pub(super) fn set_link_bytes(&self, bytes: usize) {
        self.link_bytes.store(bytes, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn link_bytes(&self) -> usize {
        self.link_bytes.load(Ordering::Relaxed)
    }

    /// New slots, the caller's. `None`: there are as many as contexts can number.
    #[cold]
    pub(super) fn grow(&self) -> Option<&'static [EntrySlot]> {
        let mut grown = self.grown.lock();
        let chunk = self.chunks.get(*grown)?;
        let first = first_of_chunk(*grown);
        let slots: Vec<_> = (first..first + slots_of_chunk(*grown))
            .map(EntrySlot::new)
            .collect();
        let slots = Box::leak(slots.into_boxed_slice());
        chunk.store(slots.as_mut_ptr(), Ordering::Release);
        *grown += 1;
        // The pointer that is stored is the one by which the slots are reached from now on.
        let at = chunk.load(Ordering::Relaxed);
        // SAFETY: the slots were leaked.
        Some(unsafe { std::slice::from_raw_parts(at, slots_of_chunk(*grown - 1)) })
    }

    /// The slots of a chunk.
    #[inline]
    fn chunk(&self, chunk: usize) -> &'static [EntrySlot] {
        let at = self.chunks[chunk].load(Ordering::Acquire);
        match at.is_null() {
            true => &[],
            // SAFETY: `grow` has leaked that many.
            false => unsafe { std::slice::from_raw_parts(at, slots_of_chunk(chunk)) },
        }
    }

    /// The slot of a place.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> Option<&'static EntrySlot> {
        if index < FIRST {
            return self.chunk(0).get(index);
        }
        let chunk = (index / FIRST + 1).ilog2() as usize;
        if chunk >= CHUNKS {
            return None;
        }
        self.chunk(chunk).get(index - first_of_chunk(chunk))
    }

    /// The slot in the use that a context is of.
    #[inline]
    pub(super) fn slot_of(&self, context: OperationContext) -> Option<&'static EntrySlot> {
        self.slot(context.index())
            .filter(|slot| slot.context() == context)
    }

    /// The slot of an entry. The entry itself is not read, so it may be any pointer.
    #[inline]
    pub(super) fn of(&self, entry: *const fi_peer_rx_entry) -> Option<&'static EntrySlot> {
        let at = entry.addr().wrapping_sub(FIELDS_AT - self.link_bytes());
        for chunk in 0..CHUNKS {
            let slots = self.chunk(chunk);
            if slots.is_empty() {
                return None;
            }
            let offset = at.wrapping_sub(slots.as_ptr().addr());
            if offset < size_of_val(slots) {
                let is_start = offset % size_of::<EntrySlot>() == 0;
                return slots
                    .get(offset / size_of::<EntrySlot>())
                    .filter(|_| is_start);
            }
        }
        None
    }

    /// All slots.
    pub(super) fn all(&self) -> impl Iterator<Item = &'static EntrySlot> {
        (0..CHUNKS).flat_map(|chunk| self.chunk(chunk))
    }
}

#[inline]
const fn first_of_chunk(chunk: usize) -> usize {
    FIRST * ((1 << chunk) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_by_place_and_by_entry() {
        for link_bytes in [0, 16] {
            let chunks = EntryChunks::new();
            chunks.set_link_bytes(link_bytes);
            assert!(chunks.slot(0).is_none() && chunks.all().next().is_none());
            let mut made = 0;
            for _ in 0..3 {
                for slot in chunks.grow().unwrap() {
                    let entry = slot.entry(link_bytes);
                    assert!(std::ptr::eq(chunks.slot(made).unwrap(), slot));
                    assert!(std::ptr::eq(chunks.of(entry).unwrap(), slot));
                    assert_eq!(slot.context().index(), made);
                    let start = std::ptr::from_ref(slot).addr();
                    assert_eq!(entry.addr() - start, FIELDS_AT - link_bytes);
                    for wild in [1, 8, 16, size_of::<EntrySlot>() - 8] {
                        assert!(chunks.of(entry.wrapping_byte_add(wild)).is_none());
                    }
                    made += 1;
                }
            }
            assert_eq!((made, chunks.all().count()), (64 + 128 + 256, made));
            assert!(chunks.slot(made).is_none());
            assert!(chunks.slot(MAX_SLOTS - 1).is_none());
            assert!(chunks.of(null_mut()).is_none());
        }
    }

    #[test]
    fn a_use_that_is_over_has_no_slot() {
        let chunks = EntryChunks::new();
        let slot = &chunks.grow().unwrap()[5];
        let first = slot.context();
        assert!(chunks.slot_of(first).is_some());
        slot.end_use();
        assert!(chunks.slot_of(first).is_none());
        assert!(chunks.slot_of(slot.context()).is_some());
    }

    #[test]
    fn each_state_has_its_number() {
        use SlotState::*;
        for state in [Free, Matched, Reported, Unexpected, Left, Queued, Discarded] {
            assert_eq!(SlotState::of(state as u32), state);
        }
    }
}
