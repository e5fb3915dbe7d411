//! Entries whose endpoints are not resolved yet (`docs/adr/0042`, and for ranges `docs/adr/0036`).
//!
//! An unresolved entry is taken and has no native address. Its socket address lies in its slot
//! ([`Sockets`](super::sockets)) or in a range. Threads of the address vector resolve it, see
//! [`ResolverPool`](super::resolver_pool::ResolverPool); from then on it is an entry as any other.
//! An entry of a range is resolved from its first use on, all others from their insertion on.
//!
//! A *lost* entry is resolved, and its endpoint is gone (`docs/adr/0087`). It counts as unresolved:
//! its next use starts a resolution, which puts the endpoint that listens now in its place.
//!
//! This is the state. [`resolving`](super::resolving) works on it with the table that has it.

mod schedule;
mod unknown_sources;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(test)]
pub(crate) use schedule::SIDE_BY_SIDE;
pub(crate) use schedule::{LONGEST_PAUSE, Refound, ResolutionSchedule, ResolutionStage};
use unknown_sources::UnknownSourceEpoch;

use super::column::Column;
use super::storage::Storage;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::locks::{Condvar, Mutex};

/// Why an address that is in has no endpoint of its own yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// It has one since just now.
    Resolved,
    /// It is being resolved.
    Resolving(Resolution),
    /// Its resolution has failed. The next use starts another one.
    Failed(Errno),
    /// Its endpoint is in by this address, too.
    Same(FiAddr),
}

/// The resolution of an entry that a send waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The entry's generation once it is resolved.
    pub(super) generation: u32,
    /// Resolutions of the entry that have failed before.
    pub(super) round: u32,
}

/// The unresolved entries of a table.
#[derive(Default)]
pub(super) struct UnresolvedEntries {
    /// Whether anything ever was, or may be by another process.
    any: AtomicBool,
    /// Entries whose endpoints may be lost.
    lost: MarkedEntries,
    pub(super) state: Mutex<ResolutionSchedule>,
    pub(super) came: Condvar,
    /// Counts unknown sources, and entries that receives wait for and whose resolution failed.
    pub(super) source_epoch: UnknownSourceEpoch,
}

/// A set of entries that is read without a lock, and changed with the lock of the state.
#[derive(Default)]
struct MarkedEntries {
    any: AtomicBool,
    /// A bit for each entry.
    bits: Column,
    /// A bit found no room: each entry may be in.
    is_short: AtomicBool,
}

impl MarkedEntries {
    #[inline]
    fn has(&self, entry: u32) -> bool {
        self.any.load(Ordering::Relaxed)
            && (self.bits.get(entry / u64::BITS) & bit(entry) != 0
                || self.is_short.load(Ordering::Relaxed))
    }

    fn mark(&self, entry: u32) {
        match self.bits.make(entry / u64::BITS) {
            Ok(bits) => drop(bits.fetch_or(bit(entry), Ordering::Relaxed)),
            Err(_) => self.is_short.store(true, Ordering::Relaxed),
        }
        self.any.store(true, Ordering::Relaxed);
    }

    fn unmark(&self, entry: u32) {
        if let Some(bits) = self.bits.there(entry / u64::BITS) {
            bits.fetch_and(!bit(entry), Ordering::Relaxed);
        }
    }
}

fn bit(entry: u32) -> u64 {
    1 << (entry % u64::BITS)
}

impl UnresolvedEntries {
    /// Those of a table that processes share: others may put in unresolved entries.
    pub(super) fn of_shared() -> Self {
        Self {
            any: AtomicBool::new(true),
            ..Self::default()
        }
    }

    /// Another one comes, whatever it is.
    pub(super) fn begin(&self) {
        self.any.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether the endpoint in an entry is lost. A few loads where it is not.
    #[inline]
    pub(super) fn is_lost(&self, store: &Storage, entry: u32) -> bool {
        self.lost.has(entry) && self.state.lock().is_lost(store, entry)
    }

    /// The endpoint in an entry is lost.
    pub(super) fn lose(&self, state: &mut ResolutionSchedule, entry: u32, generation: u32) {
        state.lose(entry, generation);
        self.lost.mark(entry);
    }

    /// The endpoint in an entry is not lost any more.
    pub(super) fn forget_loss(&self, state: &mut ResolutionSchedule, entry: u32) {
        if state.lost.remove(&entry).is_some() {
            self.lost.unmark(entry);
        }
    }

    /// An entry is of this generation: the loss of an earlier address is no more.
    pub(super) fn forget_earlier_loss(&self, store: &Storage, entry: u32) {
        if self.lost.has(entry) {
            let mut state = self.state.lock();
            if !state.is_lost(store, entry) {
                self.forget_loss(&mut state, entry);
            }
        }
    }

    /// The socket address of an entry, if it is one of a range.
    pub(super) fn socket_of_range(&self, entry: u32) -> Option<SocketAddr> {
        self.any().then(|| self.state.lock().ranges.socket(entry))?
    }

    /// An entry was removed.
    pub(super) fn forget(&self, entry: u32) {
        if self.any() {
            let mut state = self.state.lock();
            state.ranges.remove(entry);
            state.end_search(entry);
            state.same.remove(&entry);
            state.forget_key(entry);
            self.forget_loss(&mut state, entry);
            // Entries that shared its endpoint are unresolved again.
            state.same.retain(|_, same| same.first != entry);
        }
    }

    /// A message came from an unknown source: it may be an endpoint whose resolution failed before
    /// it was there.
    #[cold]
    pub(super) fn unknown_source(&self) {
        if self.any() && self.source_epoch.advance() {
            self.restart_failed(&mut self.state.lock());
        }
    }

    pub(super) fn restart_failed(&self, state: &mut ResolutionSchedule) {
        let anew: Vec<_> = state.failed_awaited().collect();
        for entry in anew {
            state.restart(entry);
        }
        self.source_epoch.restart_failed();
        self.came.notify_one();
    }
}
