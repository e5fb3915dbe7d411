//! Whom the changes of a table concern (`docs/adr/0038`).
//!
//! Most concern nobody: no sender waits to be known, and nothing leads to an address that was never used. So who inserts or removes
//! takes the lock of the domain, with which transports work, only where there is somebody to tell.
//!
//! Transports say here what they are about to rely on, and look it up in the table after that. Who changes the table looks here
//! after that. With a fence between the two on both sides, one of them sees what the other has done.

use super::column::Column;
use super::table::{AvTable, Reserved, TakenOut};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::sync::{AtomicBool, Ordering, fence};

/// What transports rely on. They change it with their domain's lock held.
#[derive(Default)]
pub(super) struct Interest {
    /// A bit for each entry whose address they have got.
    used: Column,
    /// A bit found no room: they may have got any.
    any_used: AtomicBool,
    /// They know senders that are not in, or that were removed.
    strangers: AtomicBool,
}

impl Interest {
    /// Transports get the address in an entry. Whether that is new: then they look once more whether it is in.
    #[inline]
    fn begin_to_use(&self, entry: u32) -> bool {
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

    /// A send waits until an entry is resolved. Its endpoint hears of the removal of the entry.
    pub(super) fn note_send(&self, entry: u32) {
        self.begin_to_use(entry);
    }

    /// The address is no more, and they know: none of them gets another one from the entry meanwhile.
    fn end_use(&self, entry: u32) {
        let (word, bit) = place(entry);
        if let Some(bits) = self.used.there(word) {
            bits.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn is_used(&self, entry: u32) -> bool {
        let (word, bit) = place(entry);
        self.used.get(word) & bit != 0 || self.any_used.load(Ordering::Relaxed)
    }

    /// Transports know a sender that is not in. Whether it is the first: then they look once more whether it is in.
    fn begin_to_await(&self) -> bool {
        if self.strangers.load(Ordering::Relaxed) {
            return false;
        }
        self.strangers.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    }
}

fn place(entry: u32) -> (u32, u64) {
    (entry / u64::BITS, 1 << (entry % u64::BITS))
}

impl AvTable {
    /// What is at an address, for transports: they are told when it is removed.
    #[inline]
    pub(super) fn use_addr(&self, addr: FiAddr) -> Option<NativeAddr> {
        let (entry, name) = self.entry(addr)?;
        match self.interest.begin_to_use(entry) {
            false => Some(name),
            true => self.name(addr),
        }
    }

    /// The address of an endpoint, for transports: they are told when it is removed, or when it is there.
    pub(super) fn use_name(&self, name: &NativeAddr) -> FiAddr {
        loop {
            let mut addr = self.addr(name);
            if !addr.is_some() && self.interest.begin_to_await() {
                addr = self.addr(name);
            }
            let Some(entry) = self.model.entry(addr).filter(|_| addr.is_some()) else {
                self.unresolved.unknown_source();
                return FiAddr::NOTAVAIL;
            };
            if !self.interest.begin_to_use(entry) || self.name(addr).as_ref() == Some(name) {
                return addr;
            }
        }
    }

    /// A transport keeps account of all who are in: it is told of each that comes from now on.
    pub fn await_everybody(&self) {
        self.interest.begin_to_await();
    }

    /// Whether transports are to be told of addresses that were put in just now.
    pub fn is_awaited(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_shared() || self.interest.strangers.load(Ordering::Relaxed)
    }

    /// The transports know no sender any more that is not in; with their lock held.
    pub fn await_nobody(&self) {
        self.interest.strangers.store(false, Ordering::Relaxed);
    }

    /// Removes an address. Transports that may know it are told, with `lock` taken, before anybody gets its entry; and where its
    /// endpoint is in again, if another thread inserts it just now.
    ///
    /// # Errors
    ///
    /// As [`remove`](Self::remove); of `lock`.
    pub fn retract<G>(
        &self,
        addr: FiAddr,
        lock: impl FnOnce() -> Result<G>,
        tell: impl FnOnce(&mut G, FiAddr),
    ) -> Result<()> {
        if self.is_shared() {
            // They follow what anybody changes. The turn is over before the lock is taken
            // (`docs/adr/0045`).
            self.remove(addr)?;
            tell(&mut lock()?, FiAddr::NOTAVAIL);
            return Ok(());
        }
        let taken_out = self.take_out(addr, |entry| {
            fence(Ordering::SeqCst);
            self.interest.is_used(entry)
        })?;
        let TakenOut::Kept(kept, name) = taken_out else {
            return Ok(());
        };
        let mut guard = lock()?;
        // Whoever it was is a stranger now. Who inserts it from here on tells of it; who did before need not have.
        self.interest.begin_to_await();
        let again = name.map_or(FiAddr::NOTAVAIL, |name| self.addr(&name));
        tell(&mut guard, again);
        self.forget_id_of_removed(addr);
        if let Some(Reserved(entry)) = kept {
            self.interest.end_use(entry);
        }
        // No thread waits for the turn with the domain locked.
        drop(guard);
        self.release(kept);
        Ok(())
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread::{self, JoinHandle};

    use super::*;
    use crate::table::loom_tests::{insert, name, table};
    use ferrofabric_contracts::types::AvType;
    use ferrofabric_system::sync::{Mutex, MutexGuard, explore};

    /// What a transport knows, behind its domain's lock.
    #[derive(Default)]
    struct Transport {
        routes: Vec<(FiAddr, NativeAddr)>,
        stranger: bool,
    }

    /// Removes an address in another thread.
    fn remove_beside(
        table: &Arc<AvTable>,
        transport: &Arc<Mutex<Transport>>,
        addr: FiAddr,
    ) -> JoinHandle<()> {
        let (table, transport) = (Arc::clone(table), Arc::clone(transport));
        thread::spawn(move || {
            let tell = |transport: &mut MutexGuard<'_, Transport>, again: FiAddr| {
                let routes = &mut transport.routes;
                let at = routes.iter().position(|(known, _)| *known == addr);
                let gone = at.map(|at| routes.remove(at));
                if again.is_some() {
                    routes.extend(gone.map(|(_, name)| (again, name)));
                }
            };
            let told = table.retract(addr, || Ok(transport.lock()), tell);
            told.unwrap();
        })
    }

    /// A transport sends to an address while that is removed, and then to one that may have got its entry: no route leads to who was
    /// removed, and that to who came stays. Fails without either fence, and where the entry is free before the transport was told.
    #[test]
    fn no_route_leads_to_who_was_removed() {
        for av_type in [AvType::Map, AvType::Table] {
            explore(2, move || {
                let table = table(av_type);
                let transport = Arc::new(Mutex::new(Transport::default()));
                let first = insert(&table, 1);
                let removal = remove_beside(&table, &transport, first);
                let send = |addr| {
                    let mut transport = transport.lock();
                    let to = table.use_addr(addr);
                    transport.routes.extend(to.map(|name| (addr, name)));
                };
                send(first);
                let second = insert(&table, 2);
                send(second);
                removal.join().unwrap();
                assert_eq!(transport.lock().routes, [(second, name(2))]);
            });
        }
    }

    /// An endpoint that a transport knows is removed by one thread and inserted by another: the transport knows it where it is in the
    /// end. Fails where who removes does not look whether it is in again.
    #[test]
    fn who_comes_again_is_known() {
        explore(2, || {
            let table = table(AvType::Map);
            let transport = Arc::new(Mutex::new(Transport::default()));
            let first = insert(&table, 1);
            let name = table.use_addr(first).unwrap();
            transport.lock().routes.push((first, name));
            let removal = remove_beside(&table, &transport, first);
            let placed = table.insert(&name).unwrap();
            if placed.new && table.is_awaited() {
                let routes = &mut transport.lock().routes;
                routes.retain(|(addr, _)| *addr != placed.addr);
                routes.push((placed.addr, name));
            }
            removal.join().unwrap();
            let known = transport.lock().routes.clone();
            let there: Vec<_> = table.iter().collect();
            assert_eq!(known, there);
        });
    }

    /// A sender comes while it is inserted: it is known by its address in the end, whoever comes first. Fails without either fence.
    #[test]
    fn who_is_inserted_is_known() {
        explore(2, || {
            let table = table(AvType::Map);
            let transport = Arc::new(Mutex::new(Transport::default()));
            let (their_table, theirs) = (Arc::clone(&table), Arc::clone(&transport));
            let writer = thread::spawn(move || {
                insert(&their_table, 1);
                if their_table.is_awaited() {
                    theirs.lock().stranger = false;
                }
            });
            {
                let mut transport = transport.lock();
                transport.stranger = !table.use_name(&name(1)).is_some();
            }
            writer.join().unwrap();
            assert!(!transport.lock().stranger);
        });
    }

    /// A sender is found by its name while it is removed: the transport knows no address of it afterwards.
    #[test]
    fn who_is_found_is_told_of() {
        explore(2, || {
            let table = table(AvType::Table);
            let transport = Arc::new(Mutex::new(Transport::default()));
            let first = insert(&table, 1);
            let removal = remove_beside(&table, &transport, first);
            {
                let mut transport = transport.lock();
                let addr = table.use_name(&name(1));
                if addr.is_some() {
                    transport.routes.push((addr, name(1)));
                }
            }
            removal.join().unwrap();
            assert_eq!(transport.lock().routes, []);
        });
    }
}
