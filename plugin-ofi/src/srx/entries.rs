//! The receive entries of owners that this provider has, by numbers of its own.
//!
//! An owner passes nothing but an entry to a callback, and may pass one twice, one of another
//! provider, or one whose endpoint is closed. A number that is not here, or an entry with the
//! number of another one, is refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{FiAddr, MsgKind};
use ferrofabric_system::locks::Mutex;

use super::owner::{RxEntry, SrxOwner};

/// The endpoint that has claimed the message of an entry.
pub(super) trait MessageHolder: Send + Sync {
    /// Receives the message into the buffers of its entry.
    fn start(&self, kind: MsgKind, number: u64, entry: RxEntry);

    /// Drops the message. Its completion ends the entry.
    fn discard(&self, kind: MsgKind, number: u64);

    /// The source of the message, as completions report it.
    fn source_of(&self, kind: MsgKind, number: u64) -> FiAddr;
}

/// An entry, from the owner's answer until it is freed.
#[derive(Clone)]
pub(super) struct HeldEntry {
    pub(super) entry: RxEntry,
    pub(super) kind: MsgKind,
    pub(super) state: EntryState,
    pub(super) owner: SrxOwner,
    pub(super) holder: Weak<dyn MessageHolder>,
}

impl HeldEntry {
    /// Gives the entry back to its owner, if it has a receive: others are in the owner's queue, or
    /// back with the owner. It is to be removed first.
    pub(super) fn free(&self) {
        if matches!(self.state, EntryState::Started | EntryState::Failed(_)) {
            self.owner.free(self.entry);
        }
    }
}

/// The state of the message of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// It waits for a receive; the entry is in the owner's queue.
    Queued,
    /// It goes into the buffers of its receive.
    Started,
    /// It is dropped; the entry is the owner's.
    Discarded,
    /// It is dropped, since its receive can not have it.
    Failed(Errno),
}

/// All of this process. Numbers are never used again.
static ENTRIES: Mutex<EntryTable> = Mutex::new(EntryTable {
    last: 0,
    held: BTreeMap::new(),
});

struct EntryTable {
    last: u64,
    held: BTreeMap<u64, HeldEntry>,
}

/// A number for a message.
pub(super) fn new_number() -> u64 {
    let mut entries = ENTRIES.lock();
    entries.last += 1;
    entries.last
}

pub(super) fn hold(number: u64, held: HeldEntry) {
    ENTRIES.lock().held.insert(number, held);
}

/// The entry of a number, and its state.
pub(super) fn held(number: u64) -> Option<HeldEntry> {
    ENTRIES.lock().held.get(&number).cloned()
}

pub(super) fn remove(number: u64) -> Option<HeldEntry> {
    ENTRIES.lock().held.remove(&number)
}

/// The entries of an endpoint that is closed: all are removed.
pub(super) fn remove_of(holder: &dyn MessageHolder) -> Vec<HeldEntry> {
    let is_of = |held: &HeldEntry| std::ptr::addr_eq(held.holder.as_ptr(), holder);
    let mut entries = ENTRIES.lock();
    let numbers: Vec<u64> = (entries.held.iter())
        .filter_map(|(number, held)| is_of(held).then_some(*number))
        .collect();
    (numbers.iter())
        .filter_map(|number| entries.held.remove(number))
        .collect()
}

/// Changes the state of a queued entry, and returns its endpoint.
///
/// # Errors
///
/// `EINVAL`: the owner has no such entry in its queue, or its endpoint is closed.
pub(super) fn leave_queue(
    number: u64,
    entry: RxEntry,
    kind: MsgKind,
    state: EntryState,
) -> Result<Arc<dyn MessageHolder>, Errno> {
    let mut entries = ENTRIES.lock();
    let held = entries.held.get_mut(&number).ok_or(Errno::EINVAL)?;
    if (held.entry, held.kind, held.state) != (entry, kind, EntryState::Queued) {
        return Err(Errno::EINVAL);
    }
    let holder = held.holder.upgrade().ok_or(Errno::EINVAL)?;
    held.state = state;
    Ok(holder)
}

/// Sets the state of an entry that is here.
pub(super) fn set_state(number: u64, state: EntryState) {
    if let Some(held) = ENTRIES.lock().held.get_mut(&number) {
        held.state = state;
    }
}

/// The queued entries of an endpoint.
pub(super) fn queued_of(holder: &dyn MessageHolder) -> Vec<(u64, MsgKind)> {
    let of = |(number, held): (&u64, &HeldEntry)| {
        let is_queued = held.state == EntryState::Queued;
        let is_of = std::ptr::addr_eq(held.holder.as_ptr(), holder);
        (is_queued && is_of).then_some((*number, held.kind))
    };
    ENTRIES.lock().held.iter().filter_map(of).collect()
}
