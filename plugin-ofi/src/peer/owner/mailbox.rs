//! The records of callbacks that have no owner: those of other threads, within another callback, or
//! outside of any call.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrofabric_system::locks::{Mutex, MutexGuard};

use super::entries::EntrySlot;
use crate::abi::{fi_addr_t, fi_peer_rx_entry};

/// The function by which a C provider reports the source of an entry's message.
pub(super) type SourceFn = unsafe extern "C" fn(*mut fi_peer_rx_entry) -> fi_addr_t;

/// A callback without an owner.
pub(super) enum LateCall {
    /// A message was queued.
    Queued(&'static EntrySlot),
    /// An operation has ended.
    Ended(EndedCall),
    /// An entry was freed.
    Freed(&'static EntrySlot),
    /// Sources may be available.
    Resolve(SourceFn),
}

/// The end of an operation, as a C provider reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedCall {
    pub(super) context: u64,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) data: u64,
    /// 0, or the error and the provider's own number for it.
    pub(super) errno: i32,
    pub(super) prov_errno: i32,
}

/// The callbacks of one endpoint that have no owner yet.
pub(super) struct CallMailbox {
    has_calls: AtomicBool,
    locked: Mutex<LateCalls>,
}

/// The calls, and the slots for them.
pub(super) struct LateCalls {
    /// In their order.
    pub(super) calls: Vec<LateCall>,
    /// Slots for messages that arrive so.
    pub(super) spare: Vec<&'static EntrySlot>,
    /// The endpoint is there.
    pub(super) is_open: bool,
}

impl CallMailbox {
    pub(super) const fn new() -> Self {
        Self {
            has_calls: AtomicBool::new(false),
            locked: Mutex::new(LateCalls {
                calls: Vec::new(),
                spare: Vec::new(),
                is_open: false,
            }),
        }
    }

    /// Whether there are calls: a relaxed look, for the thread that drives the endpoint. It sees
    /// the calls that came before its own in any order that threads agree on.
    #[inline]
    pub(super) fn has_calls(&self) -> bool {
        self.has_calls.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LateCalls> {
        self.locked.lock()
    }

    /// Leaves a call, with the lock.
    pub(super) fn leave(&self, locked: &mut LateCalls, call: LateCall) {
        locked.calls.push(call);
        self.has_calls.store(true, Ordering::Relaxed);
    }

    /// Takes the calls out.
    #[cold]
    pub(super) fn take(&self) -> Vec<LateCall> {
        let mut locked = self.lock();
        self.has_calls.store(false, Ordering::Relaxed);
        std::mem::take(&mut locked.calls)
    }
}
