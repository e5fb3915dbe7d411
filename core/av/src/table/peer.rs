//! The look-ups that endpoints make in their address vector, and their subscriptions to its changes
//! (`docs/adr/0038`).

use super::{AvTable, RemovedEntry, Reserved};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::{FiAddr, is_key_source};
use ferrofabric_system::sync::{Ordering, fence};

impl PeerAv for AvTable {
    #[inline]
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr> {
        self.use_addr(addr)
    }

    #[inline]
    fn find(&self, name: &NativeAddr) -> FiAddr {
        self.use_name(name)
    }

    #[cold]
    fn each_on_node(&self, node: u64, report: &mut dyn FnMut(FiAddr, NativeAddr)) {
        // First: a writer that comes to an entry later notifies.
        self.subscriptions.subscribe_to_sources();
        for (addr, _) in self.iter().filter(|(_, name)| name.node == node) {
            if let Some(name) = self.use_addr(addr) {
                report(addr, name);
            }
        }
    }

    #[inline]
    fn reported(&self, addr: FiAddr) -> FiAddr {
        match self.ids.are_any() && addr.is_some() {
            false => addr,
            true => self.model.entry(addr).map_or(addr, |entry| {
                let is_of = |generation| self.model.addr(entry, generation) == addr;
                self.ids.of(entry, addr, is_of)
            }),
        }
    }

    #[cold]
    fn reported_source(&self, src: FiAddr) -> FiAddr {
        if src == FiAddr::UNSPEC {
            return FiAddr::NOTAVAIL;
        }
        if !is_key_source(src) {
            return self.reported(src);
        }
        let keys = self.auth_keys.as_ref();
        keys.and_then(|keys| keys.handle_of_source(src))
            .map_or(FiAddr::NOTAVAIL, |handle| self.reported_key(handle))
    }

    fn reported_key(&self, handle: FiAddr) -> FiAddr {
        match (self.has_user_ids(), &self.auth_keys) {
            (true, Some(keys)) => keys.user_id(handle).unwrap_or(FiAddr::NOTAVAIL),
            _ => handle,
        }
    }
}

impl AvTable {
    /// The endpoint at an address, for transports, which are notified of its removal.
    #[inline]
    pub(super) fn use_addr(&self, addr: FiAddr) -> Option<NativeAddr> {
        let (entry, name) = self.entry(addr)?;
        if self.unresolved.is_lost(&self.store, entry) {
            return None;
        }
        match self.subscriptions.subscribe(entry) {
            false => Some(name),
            true => self.name(addr),
        }
    }

    /// The address of an endpoint, for transports, which are notified of its removal, or of its
    /// insertion if it is not in.
    pub(super) fn use_name(&self, name: &NativeAddr) -> FiAddr {
        loop {
            let mut addr = self.addr(name);
            if !addr.is_some() && self.subscriptions.subscribe_to_sources() {
                addr = self.addr(name);
            }
            let entry = self.model.entry(addr).filter(|_| addr.is_some());
            let is_there = |entry: &u32| !self.unresolved.is_lost(&self.store, *entry);
            let Some(entry) = entry.filter(is_there) else {
                self.unresolved.unknown_source();
                return FiAddr::NOTAVAIL;
            };
            if !self.subscriptions.subscribe(entry) || self.name(addr).as_ref() == Some(name) {
                return addr;
            }
        }
    }

    /// A transport keeps account of all endpoints that are in: it is notified of each further one.
    pub fn subscribe_to_sources(&self) {
        self.subscriptions.subscribe_to_sources();
    }

    /// Whether transports are to be notified of addresses that were put in just now.
    pub fn is_awaited(&self) -> bool {
        self.subscriptions.has_source_subscription() || self.is_shared()
    }

    /// The transports know no sender any more that is not in; with their lock held.
    pub fn unsubscribe_from_sources(&self) {
        self.subscriptions.unsubscribe_from_sources();
    }

    /// Removes an address. Notifies transports that may know it, with `lock` taken, before the
    /// entry is free; also of the address at which its endpoint is in again, if another thread
    /// inserts it just now.
    ///
    /// # Errors
    ///
    /// As [`remove`](Self::remove); of `lock`.
    pub fn remove_and_notify<G>(
        &self,
        addr: FiAddr,
        lock: impl FnOnce() -> Result<G>,
        notify: impl FnOnce(&mut G, FiAddr),
    ) -> Result<()> {
        if self.is_shared() {
            // They follow what anybody changes. The turn is over before the lock is taken
            // (`docs/adr/0045`).
            self.remove(addr)?;
            notify(&mut lock()?, FiAddr::NOTAVAIL);
            return Ok(());
        }
        let removed = self.remove_entry(addr, |entry| {
            // After the address is out: see `PeerSubscriptions`.
            fence(Ordering::SeqCst);
            self.subscriptions.is_used(entry)
        })?;
        let RemovedEntry::Kept(kept, name) = removed else {
            return Ok(());
        };
        let mut guard = lock()?;
        // Its endpoint is an unknown source now. A thread that inserts it from here on notifies
        // transports; one that did so before need not have.
        self.subscriptions.subscribe_to_sources();
        let again = name.map_or(FiAddr::NOTAVAIL, |name| self.addr(&name));
        notify(&mut guard, again);
        self.forget_id_of_removed(addr);
        if let Some(Reserved(entry)) = kept {
            self.subscriptions.unsubscribe(entry);
        }
        // No thread waits for the turn with the domain locked.
        drop(guard);
        self.release(kept);
        Ok(())
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
