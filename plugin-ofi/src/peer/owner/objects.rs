//! The objects of one endpoint that C has pointers to, in blocks that are reused and never freed: a
//! callback that comes after the close of its endpoint finds memory that is still a block.

use std::cell::{RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_contracts::peer::{Start, Token};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::locks::Mutex;

use super::entries::{EntryChunks, EntrySlot};
use super::mailbox::{CallMailbox, SourceFn};
use super::sends::ForeignSends;
use crate::abi::{
    FI_CLASS_PEER_CNTR, FI_CLASS_PEER_CQ, FI_CLASS_SRX_CTX, fi_addr_t, fi_ops_cntr_owner,
    fi_ops_cq_owner, fi_ops_srx_owner, fi_peer_rx_entry, fid, fid_ep, fid_peer_cntr, fid_peer_cq,
    fid_peer_srx,
};
use crate::no_calls;

/// The objects, and all that belongs to them.
pub(super) struct ObjectBlock {
    pub(super) srx: UnsafeCell<fid_peer_srx>,
    pub(super) cq: UnsafeCell<fid_peer_cq>,
    /// Of peers' reads, and of their writes.
    pub(super) cntrs: UnsafeCell<[fid_peer_cntr; 2]>,
    pub(super) chunks: EntryChunks,
    pub(super) mailbox: CallMailbox,
    /// The owner's side. No borrow lasts while the owner or the C provider is called.
    pub(super) tables: RefCell<OwnerTables>,
    /// Callbacks that were refused.
    refused: AtomicU64,
    /// Callbacks that had no owner.
    pub(super) late: AtomicU64,
}

// SAFETY: `tables` is used by the thread alone that has the endpoint's `ForeignObjects`: in its
// methods, and in callbacks within its `enter`, which runs on that thread. The C structures are
// written when no C provider has them, but for `peer_ops`, which a C provider sets when it opens
// its objects. All else is for any thread.
unsafe impl Sync for ObjectBlock {}
// SAFETY: the pointers lead to the block itself, and to tables that live for ever.
unsafe impl Send for ObjectBlock {}

/// The functions of the objects.
#[derive(Clone, Copy)]
pub(super) struct OwnerFunctions {
    pub(super) srx: *mut fi_ops_srx_owner,
    pub(super) cq: *mut fi_ops_cq_owner,
    pub(super) cntr: *mut fi_ops_cntr_owner,
}

/// The owner's side of one endpoint.
#[derive(Default)]
pub(super) struct OwnerTables {
    /// The number of the transport.
    pub(super) transport: u32,
    /// It has room for all slots.
    free: Vec<&'static EntrySlot>,
    pub(super) sends: ForeignSends,
    /// The address of each number of a peer.
    sources: Vec<FiAddr>,
    /// Queued messages of unknown sources.
    pub(super) unknown: usize,
    /// Work that callbacks leave, since it calls into C.
    pub(super) due: Vec<DueCall>,
    /// Callbacks since the last look at this number.
    pub(super) calls: usize,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) unexpected: u64,
}

/// A call into C that is due.
pub(super) enum DueCall {
    Start(Start),
    Resolve(SourceFn),
}

impl OwnerTables {
    /// A slot for a new message. `None`: there are as many as contexts can number.
    #[inline]
    pub(super) fn take_slot(&mut self, chunks: &EntryChunks) -> Option<&'static EntrySlot> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        self.free.extend(chunks.grow()?.iter().rev());
        self.free.reserve(self.free.len() * 2);
        self.free.pop()
    }

    /// Takes a slot back, whose use is over.
    #[inline]
    pub(super) fn put_slot(&mut self, slot: &'static EntrySlot) {
        slot.end_use();
        self.free.push(slot);
    }

    /// The address of the peer of a number.
    #[inline]
    pub(super) fn source(&self, number: fi_addr_t) -> FiAddr {
        let known = usize::try_from(number)
            .ok()
            .and_then(|number| self.sources.get(number));
        known.copied().unwrap_or(FiAddr::NOTAVAIL)
    }

    /// Sets it. No vector has as many peers as 32 bits do not number.
    pub(super) fn set_source(&mut self, number: u64, src: FiAddr) {
        let Ok(number) = u32::try_from(number) else {
            return;
        };
        let number = number as usize;
        if number >= self.sources.len() {
            self.sources.resize(number + 1, FiAddr::NOTAVAIL);
        }
        self.sources[number] = src;
    }

    /// The token of a queued message.
    pub(super) fn token(&self, slot: &EntrySlot) -> Token {
        Token {
            transport: self.transport,
            value: slot.context().0,
        }
    }
}

impl ObjectBlock {
    fn new() -> Self {
        Self {
            srx: UnsafeCell::default(),
            cq: UnsafeCell::default(),
            cntrs: UnsafeCell::new([fid_peer_cntr::default(); 2]),
            chunks: EntryChunks::new(),
            mailbox: CallMailbox::new(),
            tables: RefCell::default(),
            refused: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }
    }

    /// As contexts of C objects name it.
    #[inline]
    pub(super) fn address(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Counts a callback that was refused.
    #[cold]
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A block that no endpoint has, or a new one. It is closed.
    pub(super) fn take() -> &'static Self {
        let mut blocks = BLOCKS.lock();
        if let Some(block) = blocks.free.pop_front() {
            return block;
        }
        let block: &'static Self = Box::leak(Box::new(Self::new()));
        blocks.all.push(block);
        block
    }

    /// How many blocks there are.
    #[cfg(test)]
    pub(super) fn count() -> usize {
        BLOCKS.lock().all.len()
    }

    /// Fills the C structures. No C provider has them.
    pub(super) fn open(&'static self, transport: u32, link_bytes: usize, ops: OwnerFunctions) {
        let fid = |fclass| fid {
            fclass,
            context: self.address(),
            ops: no_calls::FID.as_ptr(),
        };
        // SAFETY: the block is this caller's, and no C provider has pointers that it still uses.
        unsafe {
            self.srx.get().write(fid_peer_srx {
                ep_fid: fid_ep {
                    fid: fid(FI_CLASS_SRX_CTX),
                    ops: no_calls::EP.as_ptr(),
                    cm: no_calls::CM.as_ptr(),
                    msg: no_calls::MSG.as_ptr(),
                    tagged: no_calls::TAGGED.as_ptr(),
                    rma: no_calls::RMA.as_ptr(),
                    atomic: no_calls::ATOMIC.as_ptr(),
                    collective: no_calls::COLLECTIVE.as_ptr(),
                },
                owner_ops: ops.srx,
                peer_ops: null_mut(),
            });
            self.cq.get().write(fid_peer_cq {
                fid: fid(FI_CLASS_PEER_CQ),
                owner_ops: ops.cq,
            });
            self.cntrs.get().write(
                [fid_peer_cntr {
                    fid: fid(FI_CLASS_PEER_CNTR),
                    owner_ops: ops.cntr,
                }; 2],
            );
        }
        self.chunks.set_link_bytes(link_bytes);
        self.refused.store(0, Ordering::Relaxed);
        self.late.store(0, Ordering::Relaxed);
        self.tables.borrow_mut().transport = transport;
        self.mailbox.lock().is_open = true;
    }

    /// Gives the block back. No C provider uses it any more.
    pub(super) fn give_back(&'static self) {
        self.close();
        // Behind the others: the block that was given back last is the last one to be used again.
        BLOCKS.lock().free.push_back(self);
    }

    /// Ends all uses. Callbacks are refused from now on.
    pub(super) fn close(&'static self) {
        let mut locked = self.mailbox.lock();
        locked.is_open = false;
        locked.calls.clear();
        locked.spare.clear();
        let mut tables = self.tables.borrow_mut();
        tables.free.clear();
        for slot in self.chunks.all() {
            // SAFETY: no thread has a slot: the mailbox is closed, and the caller drives the
            // endpoint.
            unsafe { slot.message().sink = Vec::new() };
            tables.put_slot(slot);
        }
        let mut sends = std::mem::take(&mut tables.sends);
        sends.clear();
        *tables = OwnerTables {
            free: std::mem::take(&mut tables.free),
            sends,
            ..OwnerTables::default()
        };
    }

    /// The block that a context of a C object names. The pointer may be any.
    #[cold]
    pub(super) fn at(context: *mut c_void) -> Option<&'static Self> {
        let blocks = BLOCKS.lock();
        let mut all = blocks.all.iter();
        all.find(|block| block.address() == context).copied()
    }

    /// The block of an entry, and the entry's slot. The pointer may be any.
    #[cold]
    pub(super) fn of_entry(
        entry: *const fi_peer_rx_entry,
    ) -> Option<(&'static Self, &'static EntrySlot)> {
        let blocks = BLOCKS.lock();
        let mut all = blocks.all.iter();
        all.find_map(|block| Some((*block, block.chunks.of(entry)?)))
    }
}

/// All blocks of this process.
struct BlockPool {
    all: Vec<&'static ObjectBlock>,
    free: VecDeque<&'static ObjectBlock>,
}

static BLOCKS: Mutex<BlockPool> = Mutex::new(BlockPool {
    all: Vec::new(),
    free: VecDeque::new(),
});
