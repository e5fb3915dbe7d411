//! The insertion of the addresses of one call.
//!
//! It has the turn of writers until it is dropped or paused. Entries of addresses that failed stay
//! taken until then, so the index of an address follows from its number in the call.

use super::turn::WriterTurn;
use super::{AvTable, Placed, Reserved};
use crate::store::Placement;
use ferrofabric_contracts::addr::NATIVE_LEN;
use ferrofabric_contracts::error::Result;

/// The insertion of one call's addresses.
pub struct Insertion<'a> {
    pub(crate) table: &'a AvTable,
    /// Entries of addresses that failed. They are free again when the call is over, not before: so
    /// an application knows the indices of the others.
    pub(crate) holes: Vec<u32>,
    _turn: WriterTurn<'a>,
}

/// An insertion that lets others have their turn.
pub struct Paused<'a> {
    table: &'a AvTable,
    holes: Vec<u32>,
}

impl AvTable {
    /// Begins to insert the addresses of one call; nobody else inserts or removes before it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// `EACCES`: it was opened for reading only. Where processes share it, `ETIMEDOUT`: the process
    /// that has the turn changes nothing; `EPERM`: this process has inherited it.
    pub fn insertion(&self) -> Result<Insertion<'_>> {
        self.check_writable("insert into")?;
        Ok(Insertion {
            table: self,
            holes: Vec::new(),
            _turn: self.turn()?,
        })
    }
}

impl<'a> Insertion<'a> {
    /// Lets others insert and remove, until it goes on. Addresses that have failed so far keep
    /// their index.
    pub fn pause(mut self) -> Paused<'a> {
        Paused {
            table: self.table,
            holes: std::mem::take(&mut self.holes),
        }
    }

    /// Puts in the next address, or keeps its index free until the call is over where there is
    /// none.
    ///
    /// # Errors
    ///
    /// The error in `name`; `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn place(&mut self, name: Result<[u8; NATIVE_LEN]>) -> Result<Placed> {
        let store = &self.table.store;
        let name = match name {
            Ok(name) => name,
            Err(error) => {
                if self.table.is_indexed() {
                    self.holes.push(store.take()?);
                }
                return Err(error);
            }
        };
        self.place_in(name, None)
    }

    /// Puts an address in an entry that was reserved for it; that is free when the address was
    /// there already.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(crate) fn place_reserved(
        &mut self,
        name: [u8; NATIVE_LEN],
        reserved: Reserved,
    ) -> Result<Placed> {
        self.place_in(name, Some(reserved))
    }

    /// Leaves a reserved entry empty; it is free when the call is over.
    pub fn skip(&mut self, reserved: Reserved) {
        self.holes.push(reserved.0);
    }

    fn place_in(&mut self, name: [u8; NATIVE_LEN], reserved: Option<Reserved>) -> Result<Placed> {
        let (model, store) = (self.table.model, &self.table.store);
        let reserved = reserved.map(|Reserved(entry)| entry);
        let placed = store.place(&zerocopy::transmute!(name), reserved);
        let (entry, new) = match placed {
            Ok(Placement::New(entry)) => (entry, true),
            Ok(Placement::Found(entry)) => (entry, false),
            Err(error) => {
                self.holes.extend(reserved);
                return Err(error);
            }
        };
        if !new {
            self.holes.extend(reserved);
        }
        let addr = model.addr(entry, store.generation(entry));
        if new {
            self.table.list(entry, addr);
        }
        Ok(Placed { addr, new })
    }
}

impl Drop for Insertion<'_> {
    fn drop(&mut self) {
        for entry in self.holes.drain(..) {
            self.table.store.give_back(entry);
        }
    }
}

impl<'a> Paused<'a> {
    /// Goes on with the call.
    ///
    /// # Errors
    ///
    /// When the turn can not be had; the call is over then.
    pub fn resume(mut self) -> Result<Insertion<'a>> {
        Ok(Insertion {
            table: self.table,
            _turn: self.table.turn()?,
            holes: std::mem::take(&mut self.holes),
        })
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        let holes = std::mem::take(&mut self.holes);
        if !holes.is_empty() {
            self.table.release(holes.into_iter().map(Reserved));
        }
    }
}
