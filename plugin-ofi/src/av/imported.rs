//! An address vector of another provider, whose addresses this one takes and reports.
//!
//! The contract (fi_peer(3), fi_av(3)):
//!
//! - The owner allocates the `fid_peer_av` and its operations. The context structure is read in the
//!   call that opens the vector, and so is the owner's `query`, for the number of addresses.
//! - The owner passes each insertion on with its own address (`FI_AV_USER_ID`). That is the address
//!   here, too: sends, directed receives, look-ups and removals take it, completions report it. A
//!   refused one is `FI_ADDR_NOTAVAIL` at return.
//! - No address of the owner stands for two endpoints, and no endpoint has two.
//! - One thread at a time inserts or removes. Sends wait for none of that.
//!
//! Behind it is a table of this provider's, whose addresses no other provider gets.

use std::collections::{BTreeSet, HashMap};
use std::sync::{PoisonError, RwLock};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Av;
use ferrofabric_system::locks::Mutex;

use crate::abi::{fi_av_attr, fi_ops_av_owner, fi_peer_av_context};
use crate::memory::check_size;

/// Parts of the table by which calls find addresses, each with a lock.
const PARTS: usize = 64;

/// The most addresses that an owner's number has room made for at once.
const MAX_EXPECTED: usize = 1 << 20;

/// An owner's address vector.
pub(crate) struct ImportedAv {
    /// Addresses of this provider, by the owner's.
    found: [RwLock<HashMap<FiAddr, FiAddr>>; PARTS],
    /// Addresses of the owner, by this provider's. The thread that changes the vector has it.
    owners: Mutex<HashMap<FiAddr, FiAddr>>,
}

impl ImportedAv {
    pub(super) fn new() -> Self {
        Self {
            found: std::array::from_fn(|_| RwLock::default()),
            owners: Mutex::default(),
        }
    }

    /// The address of this provider; `NOTAVAIL` if the owner has not inserted it.
    #[inline]
    pub(crate) fn find(&self, owners: FiAddr) -> FiAddr {
        let part = self.part(owners).read();
        let part = part.unwrap_or_else(PoisonError::into_inner);
        part.get(&owners).copied().unwrap_or(FiAddr::NOTAVAIL)
    }

    fn part(&self, owners: FiAddr) -> &RwLock<HashMap<FiAddr, FiAddr>> {
        // The golden ratio spreads indices as well as pointers.
        let spread = owners.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.found[(spread >> 58) as usize]
    }

    fn change<R>(
        &self,
        owners: FiAddr,
        change: impl FnOnce(&mut HashMap<FiAddr, FiAddr>) -> R,
    ) -> R {
        let part = self.part(owners).write();
        change(&mut part.unwrap_or_else(PoisonError::into_inner))
    }

    /// Inserts into the table behind it by `insert`, which reports each address by its number in
    /// the call, and passes the owner's address of that number on to `report`. Returns the number
    /// of insertions.
    ///
    /// # Errors
    ///
    /// That of `insert`. Of an address, to `report`: its own; `EINVAL`: the owner's address stands
    /// for another endpoint, the endpoint has another one, or it is `FI_ADDR_NOTAVAIL`.
    pub(super) fn insert(
        &self,
        av: &dyn Av,
        owners_of: &dyn Fn(usize) -> FiAddr,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
        insert: impl FnOnce(&mut dyn FnMut(usize, Result<FiAddr>)) -> Result<usize>,
    ) -> Result<usize> {
        let mut owners = self.owners.lock();
        let (mut inserted, mut unused) = (0, BTreeSet::new());
        let result = insert(&mut |i, one| {
            let one = one.and_then(|addr| {
                let of_owner = owners_of(i);
                let set_id = || av.set_user_id(addr, of_owner);
                let entered = self.enter(&mut owners, addr, of_owner, set_id);
                if entered.is_err() {
                    unused.insert(addr);
                }
                entered
            });
            inserted += usize::from(one.is_ok());
            report(i, one);
        });
        // New entries whose addresses were refused go again. The call may have had an endpoint
        // twice, with another address that was not.
        for addr in unused {
            if !owners.contains_key(&addr) {
                av.remove(addr)?;
            }
        }
        result.map(|_| inserted)
    }

    /// Enters the owner's address of one that was inserted. Returns it. `set_id` has completions
    /// report it.
    fn enter(
        &self,
        owners: &mut HashMap<FiAddr, FiAddr>,
        addr: FiAddr,
        owners_addr: FiAddr,
        set_id: impl FnOnce() -> Result<()>,
    ) -> Result<FiAddr> {
        let refused = |mend: &'static str| {
            let object = format!("{owners_addr:?} of the owner");
            Err(Error::new(Errno::EINVAL, "insert", object).mend(mend))
        };
        match owners.get(&addr) {
            Some(&entered) if entered == owners_addr => return Ok(owners_addr),
            Some(_) => return refused("the endpoint has another address of the owner"),
            None => {}
        }
        if !owners_addr.is_some() {
            return refused("it is FI_ADDR_NOTAVAIL");
        }
        if self.find(owners_addr) != FiAddr::NOTAVAIL {
            return refused("it stands for another endpoint: remove it first");
        }
        // First for sends: a completion may report it as soon as the entry has it.
        self.change(owners_addr, |found| found.insert(owners_addr, addr));
        match set_id() {
            Ok(()) => {
                owners.insert(addr, owners_addr);
                Ok(owners_addr)
            }
            Err(error) => {
                self.change(owners_addr, |found| found.remove(&owners_addr));
                Err(error)
            }
        }
    }

    /// Removes an address of the owner.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not there.
    pub(super) fn remove(&self, av: &dyn Av, owners_addr: FiAddr) -> Result<()> {
        let mut owners = self.owners.lock();
        // Before the entry is free for another endpoint.
        let Some(addr) = self.change(owners_addr, |found| found.remove(&owners_addr)) else {
            let object = format!("{owners_addr:?} of the owner");
            return Err(Error::new(Errno::EINVAL, "remove", object).mend("it is not there"));
        };
        let removed = av.remove(addr);
        match &removed {
            Ok(()) => owners.remove(&addr),
            Err(_) => self.change(owners_addr, |found| found.insert(owners_addr, addr)),
        };
        removed
    }
}

/// The number of addresses that the owner has, or expects.
///
/// # Errors
///
/// `EINVAL`: the context is too short, or has no address vector with both operations. The owner's.
///
/// # Safety
///
/// `context` is NULL, or a context as fi_peer(3) has it.
pub(super) unsafe fn expected_count(context: *const fi_peer_av_context) -> Result<usize, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        check_size(context)?;
        let owner = (*context).av;
        if owner.is_null() {
            return Err(Errno::EINVAL);
        }
        let ops: *const fi_ops_av_owner = (*owner).owner_ops;
        check_size(ops)?;
        let query = (*ops).query.ok_or(Errno::EINVAL)?;
        (*ops).ep_addr.ok_or(Errno::EINVAL)?;
        let mut attr = fi_av_attr::default();
        match query(owner, &raw mut attr) {
            0 => Ok(attr.count.min(MAX_EXPECTED)),
            error @ -4095..0 => Err(Errno(-error)),
            _ => Err(Errno::EINVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_find_an_address_before_completions_report_it() {
        let imported = ImportedAv::new();
        let (addr, of_owner) = (FiAddr(3), FiAddr(9));
        let mut owners = HashMap::new();
        let refused = imported.enter(&mut owners, addr, of_owner, || {
            assert_eq!(imported.find(of_owner), addr);
            Err(Error::new(Errno::EINVAL, "set", "an ID"))
        });
        assert!(refused.is_err() && owners.is_empty());
        assert_eq!(imported.find(of_owner), FiAddr::NOTAVAIL);
        let entered = imported.enter(&mut owners, addr, of_owner, || {
            assert_eq!(imported.find(of_owner), addr);
            Ok(())
        });
        assert_eq!(entered.ok(), Some(of_owner));
        assert_eq!(imported.find(of_owner), addr);
    }
}
