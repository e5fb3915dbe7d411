//! The peers of this process that a table's changes concern (`docs/adr/0038`), for the table and
//! its transports.
//!
//! Most changes concern nobody: no sender waits for its address, and no route leads to an address
//! that was never used. So a writer takes the lock of the domain, with which transports work, only
//! where there is a subscription.
//!
//! A transport first subscribes here, then looks the address up in the table. A writer first
//! changes the table, then looks for subscriptions here. With a fence between the two on both
//! sides, one of them sees the other's step.

use super::column::Column;
use ferrofabric_system::sync::{AtomicBool, Ordering, fence};

/// The subscriptions of transports. They change them with their domain's lock held.
#[derive(Default)]
pub(super) struct PeerSubscriptions {
    /// A bit for each entry whose address they have got.
    used: Column,
    /// A bit found no room: they may have got any.
    any_used: AtomicBool,
    /// They know senders that are not in, or that were removed.
    unknown_sources: AtomicBool,
}

impl PeerSubscriptions {
    /// Transports get the address in an entry. Whether that is new: then they look once more
    /// whether it is in.
    #[inline]
    pub(super) fn subscribe(&self, entry: u32) -> bool {
        let (word, bit) = place(entry);
        self.used.get(word) & bit == 0 && self.note_use(word, bit)
    }

    #[cold]
    fn note_use(&self, word: u32, bit: u64) -> bool {
        match self.used.make(word) {
            Ok(bits) => drop(bits.fetch_or(bit, Ordering::Relaxed)),
            Err(_) => self.any_used.store(true, Ordering::Relaxed),
        }
        fence(Ordering::SeqCst);
        true
    }

    /// A send waits until an entry is resolved. Its endpoint is notified of the removal of the
    /// entry.
    pub(super) fn subscribe_for_send(&self, entry: u32) {
        self.subscribe(entry);
    }

    /// The address is no more, and they know: none of them gets another one from the entry
    /// meanwhile.
    pub(super) fn unsubscribe(&self, entry: u32) {
        let (word, bit) = place(entry);
        if let Some(bits) = self.used.there(word) {
            bits.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    pub(super) fn is_used(&self, entry: u32) -> bool {
        let (word, bit) = place(entry);
        self.used.get(word) & bit != 0 || self.any_used.load(Ordering::Relaxed)
    }

    /// Transports know a sender that is not in. Whether it is the first: then they look once more
    /// whether it is in.
    pub(super) fn subscribe_to_sources(&self) -> bool {
        if self.unknown_sources.load(Ordering::Relaxed) {
            return false;
        }
        self.unknown_sources.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }

    /// Whether transports are to be notified of addresses that were put in just now.
    pub(super) fn has_source_subscription(&self) -> bool {
        fence(Ordering::SeqCst);
        self.unknown_sources.load(Ordering::Relaxed)
    }

    /// The transports know no sender any more that is not in.
    pub(super) fn unsubscribe_from_sources(&self) {
        self.unknown_sources.store(false, Ordering::Relaxed);
    }
}

fn place(entry: u32) -> (u32, u64) {
    (entry / u64::BITS, 1 << (entry % u64::BITS))
}
