//! One address vector's table: from an address of a peer to its `FiAddr` and back.
//!
//! A MAP address is index and generation, so that the use of a removed one is caught; a TABLE address is the bare index,
//! lowest unused first. Readers take no lock, insertions and removals take turns among themselves.

use parking_lot::{Mutex, MutexGuard};

use super::attr::{AvAttr, AvType, Model};
use super::chunk::Name;
use super::store::Store;
use crate::addr::NativeAddr;
use crate::error::{Errno, Error, Result};
use crate::peer::PeerAv;
use crate::types::FiAddr;

/// The entries of one address vector, for any number of threads.
pub struct AvTable {
    model: Model,
    store: Store,
    writers: Mutex<()>,
}

/// Where an address was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What it is sent to.
    pub addr: FiAddr,
    /// Whether it was not there before.
    pub new: bool,
}

impl AvTable {
    /// An empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is no memory for `attr.count` entries; `EINVAL` when the receive context bits leave too few for
    /// the rest.
    pub fn new(attr: &AvAttr) -> Result<Self> {
        let av_type = attr.av_type.unwrap_or(AvType::Table);
        Ok(Self {
            model: Model::new(av_type, attr.rx_ctx_bits)?,
            store: Store::private(attr.count)?,
            writers: Mutex::new(()),
        })
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

    /// Memory that the table takes for entries and index, in bytes, when all entries that there is room for are used.
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

    /// Begins to insert the addresses of one call; nobody else inserts or removes before it is dropped.
    ///
    /// # Errors
    ///
    /// When the turn can not be had.
    pub fn insertion(&self) -> Result<Insertion<'_>> {
        Ok(Insertion {
            _turn: self.turn()?,
            table: self,
            holes: Vec::new(),
        })
    }

    /// Takes the `n` entries of a call whose addresses are put in later, so that calls get their indices in order.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn reserve(&self, n: usize) -> Result<Vec<Reserved>> {
        let _turn = self.turn()?;
        let mut taken = Vec::new();
        for _ in 0..n {
            match self.store.take() {
                Ok(entry) => {
                    self.store.settle();
                    taken.push(Reserved(entry));
                }
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

    /// Gives entries back that were reserved.
    ///
    /// # Errors
    ///
    /// When the turn can not be had.
    pub fn release(&self, reserved: impl IntoIterator<Item = Reserved>) -> Result<()> {
        let _turn = self.turn()?;
        for Reserved(entry) in reserved {
            self.store.give_back(entry);
        }
        Ok(())
    }

    /// Removes an address, and returns it; the entry is free again.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not in the table.
    pub fn remove(&self, addr: FiAddr) -> Result<NativeAddr> {
        let _turn = self.turn()?;
        let (entry, name) = self.entry(addr).ok_or_else(|| {
            Error::new(Errno::EINVAL, "remove", format!("{addr:?}"))
                .mend("it is not in this address vector")
        })?;
        self.store.clear(entry, |g| self.model.is_reusable(g));
        Ok(name)
    }

    /// Every address in the table, from the lowest index.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, NativeAddr)> + '_ {
        self.store
            .entries()
            .filter_map(|(entry, generation, name)| {
                let name = NativeAddr::from_bytes(&name).ok()?;
                Some((self.model.addr(entry, generation), name))
            })
    }

    #[inline]
    fn entry(&self, addr: FiAddr) -> Option<(u32, NativeAddr)> {
        let entry = self.model.entry(addr)?;
        let (name, generation) = self.store.read(entry)?;
        let same = self.model.addr(entry, generation) == addr;
        Some((entry, NativeAddr::from_bytes(&name).ok().filter(|_| same)?))
    }

    fn find_entry(&self, name: &Name) -> Option<u32> {
        match self.store.find(name) {
            Ok(found) => found,
            Err(_) => {
                let _turn = self.turn().ok()?;
                self.store.search(self.store.hash(name), name)
            }
        }
    }

    fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = self.writers.lock();
        if self.store.is_torn() {
            self.store.mend();
        }
        Ok(turn)
    }
}

/// An entry that was taken and has no address yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved(u32);

/// The insertion of one call's addresses.
pub struct Insertion<'a> {
    _turn: MutexGuard<'a, ()>,
    table: &'a AvTable,
    /// Entries of addresses that failed. They are free again when the call is over, not before: so an application knows the
    /// indices of the others.
    holes: Vec<u32>,
}

impl Insertion<'_> {
    /// Puts in the next address, or keeps its index free until the call is over where there is none.
    ///
    /// # Errors
    ///
    /// What was given; `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn place(&mut self, name: Result<Name>) -> Result<Placed> {
        let store = &self.table.store;
        let name = match name {
            Ok(name) => name,
            Err(error) => {
                if self.table.is_indexed() {
                    self.holes.push(store.take()?);
                    store.settle();
                }
                return Err(error);
            }
        };
        self.place_in(name, None)
    }

    /// Puts an address in an entry that was reserved for it; that is free when the address was there already.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn place_reserved(&mut self, name: Name, reserved: Reserved) -> Result<Placed> {
        self.place_in(name, Some(reserved))
    }

    /// Leaves a reserved entry empty; it is free when the call is over.
    pub fn skip(&mut self, reserved: Reserved) {
        self.holes.push(reserved.0);
    }

    fn place_in(&mut self, name: Name, reserved: Option<Reserved>) -> Result<Placed> {
        let (model, store) = (self.table.model, &self.table.store);
        let hash = store.hash(&name);
        if let Some(entry) = store.search(hash, &name) {
            self.holes.extend(reserved.map(|Reserved(entry)| entry));
            let addr = model.addr(entry, store.generation(entry));
            return Ok(Placed { addr, new: false });
        }
        let room = store.make_room();
        let entry = match (room, reserved) {
            (Ok(()), None) => store.take()?,
            (Ok(()), Some(Reserved(entry))) => entry,
            (Err(error), reserved) => {
                self.holes.extend(reserved.map(|Reserved(entry)| entry));
                return Err(error);
            }
        };
        store.put(entry, hash, &name);
        let addr = model.addr(entry, store.generation(entry));
        Ok(Placed { addr, new: true })
    }
}

impl Drop for Insertion<'_> {
    fn drop(&mut self) {
        for entry in self.holes.drain(..) {
            self.table.store.give_back(entry);
        }
    }
}

impl PeerAv for AvTable {
    #[inline]
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr> {
        Some(self.entry(addr)?.1)
    }

    #[inline]
    fn find(&self, name: &NativeAddr) -> FiAddr {
        let Some(entry) = self.find_entry(&name.to_bytes()) else {
            return FiAddr::NOTAVAIL;
        };
        // It may have been removed meanwhile.
        match self.store.generation(entry) {
            generation if generation & 1 == 1 => self.model.addr(entry, generation),
            _ => FiAddr::NOTAVAIL,
        }
    }
}

#[cfg(test)]
mod tests;
