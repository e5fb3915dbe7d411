//! The receive entries of owners that this provider has, by numbers of its own.
//!
//! An owner passes nothing but an entry to a callback, and may pass one twice, one of another
//! provider, or one whose endpoint is closed. A number that is not here, or an entry with the
//! number of another one, is refused. So is an entry for a message that is another message's until
//! it is given back: it would be given back twice, and used after the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{FiAddr, MsgKind};
use ferrofabric_system::locks::Mutex;

use super::SrxObject;
use super::owner::RxEntry;
use crate::fid::SharedObject;

/// The endpoint that has claimed the message of an entry.
pub(super) trait MessageHolder: Send + Sync {
    /// Receives the message into the buffers of its entry.
    fn start(&self, kind: MsgKind, number: u64, entry: RxEntry);

    /// Drops the message. Its completion ends the entry.
    fn discard(&self, kind: MsgKind, number: u64);

    /// The source of the message, as completions report it; `None`: it is lost.
    fn source_of(&self, kind: MsgKind, number: u64) -> Option<FiAddr>;

    fn is_open(&self) -> bool;
}

/// An entry from the owner's answer until its end.
#[derive(Clone)]
pub(super) struct HeldEntry {
    pub(super) entry: RxEntry,
    pub(super) kind: MsgKind,
    pub(super) state: EntryState,
    /// Keeps the context open.
    pub(super) srx: SharedObject<SrxObject>,
    pub(super) holder: Weak<dyn MessageHolder>,
}

/// The state of the message of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// It waits for a receive; the entry is in the owner's queue.
    Queued,
    /// It goes into the buffers of its receive.
    Started,
    /// It is dropped, and the entry is the owner's, which may have freed it.
    Discarded,
    /// It is dropped, since its receive can not have it.
    Failed(Errno),
}

impl HeldEntry {
    /// Whether the entry has a receive, so that it is this provider's.
    pub(super) fn has_receive(&self) -> bool {
        matches!(self.state, EntryState::Started | EntryState::Failed(_))
    }

    /// Gives the entry back. It is not in the table any more, and has a receive.
    pub(super) fn free(&self) {
        ENTRIES.lock().with_receive.remove(&self.entry);
        self.srx.owner.free(self.entry);
    }

    /// Whether it is a message of that endpoint.
    pub(super) fn is_of(&self, holder: &dyn MessageHolder) -> bool {
        std::ptr::addr_eq(self.holder.as_ptr(), holder)
    }
}

/// All of this process.
static ENTRIES: Mutex<HeldEntries> = Mutex::new(HeldEntries {
    by_number: BTreeMap::new(),
    with_receive: BTreeSet::new(),
});

struct HeldEntries {
    by_number: BTreeMap<u64, HeldEntry>,
    /// Entries that have a receive, until they are given back.
    with_receive: BTreeSet<RxEntry>,
}

/// A number for a message, which no other one has had.
pub(super) fn new_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Enters an entry that the owner has handed out.
///
/// # Errors
///
/// `EINVAL`: it is that of another message, and not given back yet.
pub(super) fn hold(number: u64, held: HeldEntry) -> Result<(), Errno> {
    let mut entries = ENTRIES.lock();
    let is_free = match held.has_receive() {
        true => entries.with_receive.insert(held.entry),
        false => !entries.with_receive.contains(&held.entry),
    };
    if !is_free {
        return Err(Errno::EINVAL);
    }
    entries.by_number.insert(number, held);
    Ok(())
}

/// The entry of a number, and its state.
pub(super) fn held(number: u64) -> Option<HeldEntry> {
    ENTRIES.lock().by_number.get(&number).cloned()
}

pub(super) fn remove(number: u64) -> Option<HeldEntry> {
    ENTRIES.lock().by_number.remove(&number)
}

/// Removes an entry that is still in the queue. Returns whether it was.
pub(super) fn remove_queued(number: u64) -> bool {
    let by_number = &mut ENTRIES.lock().by_number;
    let is_queued = |held: &HeldEntry| held.state == EntryState::Queued;
    by_number.get(&number).is_some_and(is_queued) && by_number.remove(&number).is_some()
}

/// Removes the entries of an endpoint that is closed, and returns those with a receive.
pub(super) fn remove_of(holder: &dyn MessageHolder) -> Vec<HeldEntry> {
    let entries = &mut ENTRIES.lock().by_number;
    let numbers: Vec<u64> = (entries.iter())
        .filter_map(|(number, held)| held.is_of(holder).then_some(*number))
        .collect();
    (numbers.iter())
        .filter_map(|number| entries.remove(number))
        .filter(HeldEntry::has_receive)
        .collect()
}

/// Changes the state of a queued entry, and returns its endpoint.
///
/// # Errors
///
/// `EINVAL`: the owner has no such entry in its queue, it has the receive of another message, or
/// its endpoint is closed.
pub(super) fn leave_queue(
    number: u64,
    entry: RxEntry,
    kind: MsgKind,
    state: EntryState,
) -> Result<Arc<dyn MessageHolder>, Errno> {
    let HeldEntries {
        by_number,
        with_receive,
    } = &mut *ENTRIES.lock();
    let held = by_number.get_mut(&number).ok_or(Errno::EINVAL)?;
    if (held.entry, held.kind, held.state) != (entry, kind, EntryState::Queued) {
        return Err(Errno::EINVAL);
    }
    let holder = held.holder.upgrade().ok_or(Errno::EINVAL)?;
    if state == EntryState::Started && !with_receive.insert(entry) {
        return Err(Errno::EINVAL);
    }
    held.state = state;
    Ok(holder)
}

/// Sets the state of an entry that is here.
pub(super) fn set_state(number: u64, state: EntryState) {
    if let Some(held) = ENTRIES.lock().by_number.get_mut(&number) {
        held.state = state;
    }
}

/// Whether the owner has the entry of a message in its queue.
pub(super) fn is_queued(number: u64) -> bool {
    let entries = ENTRIES.lock();
    (entries.by_number.get(&number)).is_some_and(|held| held.state == EntryState::Queued)
}
