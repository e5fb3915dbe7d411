//! One address vector's table: from an address of a peer to its `FiAddr` and back.
//!
//! A MAP address is index and generation, so that the use of a removed one is caught; a TABLE
//! address is the bare index, lowest unused first. Readers take no lock, insertions and removals
//! take turns among themselves.

mod insertion;
mod peer;
mod turn;

use std::cell::Cell;
use std::net::SocketAddr;

pub use insertion::{Insertion, Paused};
use zerocopy::IntoBytes;

use super::attr::{AddrModel, AvAttr};
use super::chunk::NameWords;
use super::head::HeadWord;
use super::ids::Ids;
use super::keys::AuthKeys;
use super::named::{self, NamedTable};
use super::sockets::Sockets;
use super::storage::Storage;
use super::store::Store;
use super::subscriptions::PeerSubscriptions;
use super::symmetric::Symmetric;
use super::unresolved::UnresolvedEntries;
use super::version::Busy;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_system::sync::{Mutex, Ordering};

/// The entries of one address vector, for any number of threads.
///
/// An address that was inserted keeps its `FiAddr` until it is removed, resolved or not. Look-ups
/// take no lock and see each entry whole. Insertions, removals and resolutions hold the turn of
/// writers, which for a named table is one for all processes. Calls through
/// [`PeerAv`](ferrofabric_contracts::peer::PeerAv) also subscribe a transport to changes.
pub struct AvTable {
    pub(super) model: AddrModel,
    // These go before the file does.
    pub(super) store: Storage,
    pub(super) sockets: Sockets,
    pub(super) unresolved: UnresolvedEntries,
    pub(super) subscriptions: PeerSubscriptions,
    map_addr: usize,
    writers: Mutex<()>,
    named: Option<NamedTable>,
    read_only: bool,
    ids: Ids,
    auth_keys: Option<AuthKeys>,
}

/// Where an address was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The destination of sends to it.
    pub addr: FiAddr,
    /// Whether it was not there before.
    pub new: bool,
}

impl AvTable {
    /// An empty table, of this process.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn new(attr: &AvAttr) -> Result<Self> {
        let private = AvAttr {
            name: None,
            ..attr.clone()
        };
        Self::open(&private, "")
    }

    /// An empty table; with a name, the one that the processes of this user share for a domain of
    /// that name.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is no memory for `attr.count` entries. `EINVAL` when the receive context
    /// bits leave too few for the rest, when a named one has addresses of another type, when one
    /// without a name is to be opened for reading only. `ENOENT`: that is not there. `EACCES`: it
    /// is another user's.
    pub fn open(attr: &AvAttr, domain: &str) -> Result<Self> {
        let av_type = attr.av_type.unwrap_or(AvType::Table);
        let mut model = AddrModel::new(av_type, attr.rx_ctx_bits)?;
        let mut map_addr = 0;
        let (named, store) = match &attr.name {
            None if attr.read_only => {
                return Err(Error::new(Errno::EINVAL, "open", "address vector to read")
                    .mend("only one with a name is there before it is opened"));
            }
            None if attr.symmetric => {
                let table = Symmetric::new(attr.count, av_type == AvType::Map)?;
                (None, Storage::Symmetric(Box::new(table)))
            }
            None => (None, Storage::Ordinary(Store::private(attr.count)?)),
            Some(name) => {
                let (named, store) = NamedTable::open(&named::NamedTableRequest {
                    domain,
                    name,
                    count: attr.count,
                    model,
                    map_addr: attr.map_addr as u64,
                    existing: attr.read_only,
                })?;
                let shared = |word| store.head().word(word).load(Ordering::Relaxed);
                model = AddrModel::from_number(shared(HeadWord::Model));
                map_addr = named.map_addr();
                let object = || format!("named address vector {name}");
                if attr.av_type.is_some_and(|asked| asked != model.av_type) {
                    return Err(Error::new(Errno::EINVAL, "open", object())
                        .mend(format!("it is of type {:?}", model.av_type)));
                }
                let free = model.free_bits();
                if attr.rx_ctx_bits > free {
                    return Err(Error::new(Errno::EINVAL, "open", object()).mend(format!(
                        "its addresses leave {free} bits for receive contexts"
                    )));
                }
                (Some(named), Storage::Ordinary(store))
            }
        };
        let shared = named.is_some();
        Ok(Self {
            model,
            store,
            sockets: Sockets::default(),
            unresolved: match shared {
                true => UnresolvedEntries::of_shared(),
                false => UnresolvedEntries::default(),
            },
            subscriptions: PeerSubscriptions::default(),
            map_addr,
            writers: Mutex::new(()),
            named,
            read_only: attr.read_only,
            ids: match shared || model.av_type == AvType::Map {
                true => Ids::by_generation(attr.user_ids),
                false => Ids::new(attr.user_ids),
            },
            auth_keys: None,
        })
    }

    /// With authorization keys (`FI_AV_AUTH_KEY`).
    #[must_use]
    pub fn with_auth_keys(mut self) -> Self {
        self.auth_keys = Some(AuthKeys::default());
        self
    }

    /// Its authorization keys, if it is one for keys.
    pub fn auth_keys(&self) -> Option<&AuthKeys> {
        self.auth_keys.as_ref()
    }

    /// Whether other processes have it, too.
    pub fn is_shared(&self) -> bool {
        self.named.is_some()
    }

    /// Where this process reads the addresses of a table with a name: an array of `fi_addr_t` by
    /// order of insertion, which goes with the table. 0 without a name.
    pub fn map_addr(&self) -> usize {
        self.map_addr
    }

    /// Number of changes of a shared table.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.store.changes()
    }

    pub(super) fn changed_since(&self, seen: u64) -> (u64, Vec<u32>) {
        self.store.changed_since(seen)
    }

    /// An entry's incarnation, and its address where one is in.
    pub(super) fn entry_now(&self, entry: u32) -> (u32, Option<(FiAddr, NativeAddr)>) {
        let Some((name, incarnation)) = self.store.read(entry) else {
            return (self.store.incarnation(entry) & !1, None);
        };
        let there = self.read_name(&name);
        (
            incarnation,
            there.map(|name| (self.model.addr(entry, incarnation), name)),
        )
    }

    pub(super) fn addr_of(&self, entry: u32, generation: u32) -> FiAddr {
        self.model.addr(entry, generation)
    }

    /// Type of its addresses.
    pub fn av_type(&self) -> AvType {
        self.model.av_type
    }

    /// Whether its addresses are indices (`FI_AV_TABLE`).
    pub(super) fn is_indexed(&self) -> bool {
        self.model.av_type == AvType::Table
    }

    /// Number of addresses in the table.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that the table takes for entries and index, in bytes, when all entries that there is
    /// room for are used.
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Inserts an address, or finds it where it is already.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn insert(&self, name: &NativeAddr) -> Result<Placed> {
        self.insertion()?.place(Ok(name.to_bytes()))
    }

    /// # Errors
    ///
    /// `EACCES`: it was opened for reading only.
    pub(super) fn check_writable(&self, doing: &'static str) -> Result<()> {
        match self.read_only {
            false => Ok(()),
            true => Err(Error::new(Errno::EACCES, doing, "address vector")
                .mend("it was opened for reading only")),
        }
    }

    /// Takes the `n` entries of a call whose addresses are put in later, so that calls get their
    /// indices in order.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn reserve(&self, n: usize) -> Result<Vec<Reserved>> {
        self.check_writable("insert into")?;
        let _turn = self.turn()?;
        let mut taken = Vec::new();
        for _ in 0..n {
            match self.store.take() {
                Ok(entry) => taken.push(Reserved(entry)),
                Err(error) => {
                    for Reserved(entry) in taken {
                        self.store.give_back(entry);
                    }
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }

    /// Gives entries back that were reserved: now, or where the turn can not be had, in the next
    /// turn of this process.
    pub fn release(&self, reserved: impl IntoIterator<Item = Reserved>) {
        let entries = reserved.into_iter().map(|Reserved(entry)| entry);
        match (self.turn(), &self.named) {
            (Ok(_turn), _) => entries.for_each(|entry| self.store.give_back(entry)),
            (Err(_), Some(named)) => named.leave(entries),
            (Err(_), None) => {}
        }
    }

    /// Removes an address; the entry is free again.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not in the table; `EACCES`: that was opened for reading only.
    pub fn remove(&self, addr: FiAddr) -> Result<()> {
        self.remove_entry(addr, |_| false).map(drop)
    }

    /// Removes an address; the entry is free again unless `is_kept` says otherwise of it, once the
    /// address is out.
    pub(super) fn remove_entry(
        &self,
        addr: FiAddr,
        is_kept: impl Fn(u32) -> bool,
    ) -> Result<RemovedEntry> {
        self.check_writable("remove from")?;
        let _turn = self.turn()?;
        let entry = self.holder(addr, "remove")?;
        let name = self.name(addr);
        let removed = Cell::new(RemovedEntry::Free);
        self.store.make_removable(entry)?;
        // Before `is_kept` looks: a send that waits for the entry from then on finds that it is no
        // more.
        self.sockets.forget(&self.store, entry);
        self.unresolved.forget(entry);
        self.store.clear(entry, |generation| {
            let is_reusable = self.model.is_reusable(generation);
            if is_kept(entry) {
                let entry = is_reusable.then_some(Reserved(entry));
                removed.set(RemovedEntry::Kept(entry, name));
                return false;
            }
            is_reusable
        });
        // Operations that are under way with a kept entry are still reported by its ID; with one of
        // a shared table they may be, until the transports have followed the change.
        if matches!(removed.get(), RemovedEntry::Free) && !self.is_shared() {
            self.forget_id_of_removed(addr);
        }
        self.list(entry, FiAddr::NOTAVAIL);
        if let Some(keys) = &self.auth_keys {
            keys.forget(addr);
        }
        Ok(removed.get())
    }

    /// An address was removed, and the transports know of it. In a map its ID stays for operations
    /// that go on, until its entry has an ID for another address. In a table the next address is
    /// the same index, and has none of its IDs.
    pub(super) fn forget_id_of_removed(&self, addr: FiAddr) {
        if let (AvType::Table, Some(entry)) = (self.model.av_type, self.model.entry(addr)) {
            self.ids.forget(entry);
        }
    }

    /// The entry of an address that is in, resolved or not.
    fn holder(&self, addr: FiAddr, doing: &'static str) -> Result<u32> {
        let found = self.entry(addr).map(|(entry, _)| entry);
        found
            .or_else(|| self.unresolved_entry(addr))
            .ok_or_else(|| {
                Error::new(Errno::EINVAL, doing, format!("{addr:?}"))
                    .mend("it is not in this address vector")
            })
    }

    /// Where an entry is, or will be when it is resolved.
    pub(super) fn addr_when_resolved(&self, entry: u32) -> FiAddr {
        self.model.addr(entry, self.store.generation(entry) | 1)
    }

    /// The socket address of an entry, resolved or not.
    pub(super) fn socket_of(&self, entry: u32) -> Option<SocketAddr> {
        let generation = self.store.generation(entry) | 1;
        let of_its_own = self.sockets.of(&self.store, entry, generation);
        of_its_own.or_else(|| self.unresolved.socket_of_range(entry))
    }

    /// The socket address that an endpoint was inserted by, if it was by one.
    pub fn socket(&self, addr: FiAddr) -> Option<SocketAddr> {
        let entry = self.model.entry(addr)?;
        let is_it = self.addr_when_resolved(entry) == addr;
        is_it.then(|| self.socket_of(entry))?
    }

    /// The entry of an address that is in and not resolved.
    pub(super) fn unresolved_entry(&self, addr: FiAddr) -> Option<u32> {
        let entry = self.model.entry(addr)?;
        self.socket(addr).map(|_| entry)
    }

    /// Whether completions report IDs for all addresses (`FI_AV_USER_ID` at opening).
    pub fn has_user_ids(&self) -> bool {
        self.ids.are_all()
    }

    /// Gives an address an ID, which completions report from now on.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the address is not in the table; `ENOMEM`.
    pub fn set_user_id(&self, addr: FiAddr, id: FiAddr) -> Result<()> {
        let entry = self.holder(addr, "set the ID of")?;
        self.ids.set(entry, self.store.generation(entry) | 1, id)
    }

    /// The same for an address that was just inserted; nothing where it was removed since.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn tag(&self, addr: FiAddr, id: FiAddr) -> Result<()> {
        match self.set_user_id(addr, id) {
            Err(error) if error.errno() == Errno::EINVAL => Ok(()),
            tagged => tagged,
        }
    }

    /// An entry of a shared table is of this generation: the ID and the loss of an earlier address
    /// are no more.
    pub fn forget_earlier(&self, entry: u32, generation: u32) {
        self.unresolved.forget_earlier_loss(&self.store, entry);
        if self.model.av_type == AvType::Table {
            self.ids.forget_before(entry, generation);
        }
    }

    /// Every address in the table, from the lowest index.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, NativeAddr)> + '_ {
        self.store
            .entries()
            .filter_map(|(entry, generation, name)| {
                let name = self.read_name(&name)?;
                Some((self.model.addr(entry, generation), name))
            })
    }

    /// The address that was inserted as `addr`; `None` when there is none (any more).
    #[inline]
    pub fn name(&self, addr: FiAddr) -> Option<NativeAddr> {
        Some(self.entry(addr)?.1)
    }

    /// The destination of sends to an endpoint, [`FiAddr::NOTAVAIL`] if it was not inserted.
    #[inline]
    pub fn addr(&self, name: &NativeAddr) -> FiAddr {
        let name = name.to_words();
        self.addr_found(&name, self.store.find(&name))
    }

    #[inline(always)]
    pub(super) fn entry(&self, addr: FiAddr) -> Option<(u32, NativeAddr)> {
        let entry = self.model.entry(addr)?;
        let (name, generation) = self.store.read(entry)?;
        let same = self.model.addr(entry, generation) == addr;
        Some((entry, self.read_name(&name).filter(|_| same)?))
    }

    /// The address in an entry. This process has checked its own.
    #[inline]
    pub(super) fn read_name(&self, name: &NameWords) -> Option<NativeAddr> {
        match self.named {
            None => NativeAddr::from_checked_words(name),
            Some(_) => Self::check_name(*name),
        }
    }

    /// The address that another process has put in an entry. A call, with words of its own: those
    /// of the other way stay in registers.
    #[inline(never)]
    fn check_name(name: NameWords) -> Option<NativeAddr> {
        NativeAddr::from_bytes(name.as_bytes()).ok()
    }

    /// The destination of sends to an endpoint after a search for it: its entry and that's
    /// generation were found, or writers were at work all the time.
    #[inline]
    pub(super) fn addr_found(
        &self,
        name: &NameWords,
        found: Result<Option<(u32, u32)>, Busy>,
    ) -> FiAddr {
        match found.unwrap_or_else(|Busy| self.find_beside_writers(name)) {
            Some((entry, generation)) => self.model.addr(entry, generation),
            None => FiAddr::NOTAVAIL,
        }
    }

    /// Writes an entry's address where other programs read it, of a table with a name.
    pub(super) fn list(&self, entry: u32, addr: FiAddr) {
        if let Some(named) = &self.named {
            named.list(entry, addr);
        }
    }
}

impl Drop for AvTable {
    /// The last chance for entries that could not be given back. Without it they are lost until the
    /// file goes.
    fn drop(&mut self) {
        if self.named.as_ref().is_some_and(NamedTable::has_left) {
            drop(self.try_turn());
        }
    }
}

/// The fate of the entry of an address that was removed.
#[derive(Clone, Copy, Debug)]
pub(super) enum RemovedEntry {
    /// It may be taken again, if any address may get it.
    Free,
    /// It is to be released first; `None`: no address may get it. With the address that was in it.
    Kept(Option<Reserved>, Option<NativeAddr>),
}

/// An entry that was taken and has no address yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved(pub(super) u32);

#[cfg(all(test, loom))]
pub(super) mod loom_tests;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod tests;
