//! The authorization keys of an address vector (fi_av(3), `FI_AV_AUTH_KEY`): each has a handle, an
//! ID that the application may give it, and endpoints that were enabled with it.
//!
//! An entry's key is part of the address that the table holds, so an address with two keys is two
//! entries. The address of an endpoint with several keys is kept here as it was inserted, for
//! look-ups.

use std::collections::HashMap;
use std::sync::Arc;

use ferrofabric_contracts::addr::{AuthKey, KeyedAddr, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::{FiAddr, key_number};
use ferrofabric_system::locks::Mutex;

/// Handles are of entries that no table has: these in the low 32 bits, above the number of the key;
/// a generation above.
const HANDLES: u64 = 0xffff_0000;
const NUMBER_BITS: u32 = 16;
const GENERATION_SHIFT: u32 = 32;
const GENERATIONS: u32 = 1 << 24;

// No handle has the number of "none" or of "any source".
const _: () = assert!((GENERATIONS as u64) << GENERATION_SHIFT < FiAddr::UNSPEC.0 >> 1);

/// The keys, of an address vector that has any.
#[derive(Default)]
pub struct AuthKeys {
    state: Mutex<KeyTable>,
}

#[derive(Default)]
struct KeyTable {
    slots: Vec<KeySlot>,
    inserted: HashMap<FiAddr, KeyedAddr>,
}

/// A place for a key.
#[derive(Default)]
struct KeySlot {
    generation: u32,
    entry: Option<KeyEntry>,
}

struct KeyEntry {
    key: AuthKey,
    /// The ID that completions report in place of the handle.
    user_id: Option<FiAddr>,
    /// Shared with the endpoints that have the key.
    used: Arc<()>,
}

/// A key that an endpoint was enabled with; while it is held, it stays.
#[derive(Clone, Debug)]
pub struct HeldKey {
    /// The key's handle.
    pub handle: FiAddr,
    /// The key.
    pub key: AuthKey,
    _used: Arc<()>,
}

impl HeldKey {
    /// The key's number among those of its address vector.
    pub fn number(&self) -> u32 {
        number_of(self.handle)
    }
}

/// The number of a key among those of its address vector.
pub fn number_of(handle: FiAddr) -> u32 {
    handle.0 as u32 & !(HANDLES as u32)
}

impl AuthKeys {
    /// Inserts a key, or finds it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the same key is there as another kind of member of its partition. `ENOSPC`: there
    /// are too many.
    pub fn insert(&self, key: AuthKey) -> Result<FiAddr> {
        let into = |errno| Error::new(errno, "insert into", "address vector an authorization key");
        let mut state = self.state.lock();
        let slots = &mut state.slots;
        let same = |slot: &KeySlot| slot.entry.as_ref().is_some_and(|e| e.key.admits(key));
        if let Some(at) = slots.iter().position(same) {
            return match slots[at].entry.as_ref().map(|entry| entry.key) {
                Some(there) if there == key => Ok(slots[at].handle(at)),
                _ => Err(into(Errno::EINVAL).mend(
                    "it has the same key with the other membership of the partition: one of them is enough",
                )),
            };
        }
        let free = |slot: &KeySlot| slot.entry.is_none() && slot.generation < GENERATIONS;
        let at = match slots.iter().position(free) {
            Some(at) => at,
            None if slots.len() >> NUMBER_BITS == 0 => {
                slots.push(KeySlot::default());
                slots.len() - 1
            }
            None => return Err(into(Errno::ENOSPC).mend("remove some")),
        };
        slots[at].entry = Some(KeyEntry {
            key,
            user_id: None,
            used: Arc::default(),
        });
        Ok(slots[at].handle(at))
    }

    /// Removes a key. Addresses that were inserted with it stay.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not there. `EBUSY`: an endpoint has it.
    pub fn remove(&self, handle: FiAddr) -> Result<()> {
        let mut state = self.state.lock();
        let slot = state
            .slot(handle)
            .ok_or_else(|| unknown("remove", handle))?;
        if slot
            .entry
            .as_ref()
            .is_some_and(|e| Arc::strong_count(&e.used) != 1)
        {
            return Err(Error::new(Errno::EBUSY, "remove", "authorization key")
                .mend("close the endpoints first that were enabled with it"));
        }
        slot.entry = None;
        slot.generation += 1;
        Ok(())
    }

    /// The key of a handle.
    pub fn key(&self, handle: FiAddr) -> Option<AuthKey> {
        let mut state = self.state.lock();
        state.slot(handle)?.entry.as_ref().map(|entry| entry.key)
    }

    /// The handle of the key by which receives are matched as by this source.
    pub(crate) fn handle_of_source(&self, src: FiAddr) -> Option<FiAddr> {
        let at = key_number(src)? as usize;
        let state = self.state.lock();
        state.slots.get(at).map(|slot| slot.handle(at))
    }

    /// The key that an entry's address has: as it was inserted, if it is still there.
    pub fn key_of(&self, name: &NativeAddr) -> Option<AuthKey> {
        let key = name.auth_key()?;
        let state = self.state.lock();
        let mut there = state.slots.iter().flat_map(|slot| &slot.entry);
        let found = there.find(|entry| entry.key.admits(key));
        Some(found.map_or(key, |entry| entry.key))
    }

    /// Gives a key an ID, which is reported in place of its handle.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such key.
    pub fn set_user_id(&self, handle: FiAddr, id: FiAddr) -> Result<()> {
        let mut state = self.state.lock();
        let slot = state.slot(handle);
        let entry = slot.and_then(|slot| slot.entry.as_mut());
        entry
            .ok_or_else(|| unknown("set the ID of", handle))?
            .user_id = Some(id);
        Ok(())
    }

    /// The ID that a key was given.
    pub fn user_id(&self, handle: FiAddr) -> Option<FiAddr> {
        let mut state = self.state.lock();
        state.slot(handle)?.entry.as_ref()?.user_id
    }

    /// All keys that are there now, for an endpoint that is being enabled.
    pub fn hold_all(&self) -> Vec<HeldKey> {
        let state = self.state.lock();
        let held = state.slots.iter().enumerate().filter_map(|(at, slot)| {
            let entry = slot.entry.as_ref()?;
            Some(HeldKey {
                handle: slot.handle(at),
                key: entry.key,
                _used: entry.used.clone(),
            })
        });
        held.collect()
    }

    /// Remembers what was inserted as `addr`.
    pub(crate) fn remember(&self, addr: FiAddr, inserted: KeyedAddr) {
        self.state.lock().inserted.insert(addr, inserted);
    }

    /// The address as it was inserted, unless that is just the table's.
    pub fn inserted(&self, addr: FiAddr) -> Option<KeyedAddr> {
        self.state.lock().inserted.get(&addr).copied()
    }

    /// `addr` is no more.
    pub(crate) fn forget(&self, addr: FiAddr) {
        self.state.lock().inserted.remove(&addr);
    }
}

impl KeyTable {
    fn slot(&mut self, handle: FiAddr) -> Option<&mut KeySlot> {
        let at = number_of(handle) as usize;
        let slot = self.slots.get_mut(at)?;
        (slot.entry.is_some() && slot.handle(at) == handle).then_some(slot)
    }
}

impl KeySlot {
    fn handle(&self, at: usize) -> FiAddr {
        FiAddr((u64::from(self.generation) << GENERATION_SHIFT) | HANDLES | at as u64)
    }
}

fn unknown(doing: &'static str, handle: FiAddr) -> Error {
    Error::new(Errno::EINVAL, doing, format!("{handle:?}"))
        .mend("it is no authorization key of this address vector")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(qkey: u32) -> AuthKey {
        AuthKey::new(0xffff, qkey).unwrap()
    }

    /// Covers: AV-21
    #[test]
    fn a_key_has_one_handle_which_is_no_address() {
        let keys = AuthKeys::default();
        let (one, two) = (keys.insert(key(1)).unwrap(), keys.insert(key(2)).unwrap());
        assert_ne!(one, two);
        assert_eq!(keys.insert(key(1)).unwrap(), one);
        assert_eq!((keys.key(one), keys.key(two)), (Some(key(1)), Some(key(2))));
        for addr in [0, 1, 1 << 32, u64::MAX] {
            assert_eq!(keys.key(FiAddr(addr)), None);
        }
        let limited = AuthKey::new(0x7fff, 1).unwrap();
        assert_eq!(keys.insert(limited).unwrap_err().errno(), Errno::EINVAL);
    }

    /// Covers: AV-21
    #[test]
    fn a_key_that_an_endpoint_has_stays() {
        let keys = AuthKeys::default();
        let one = keys.insert(key(1)).unwrap();
        let held = keys.hold_all();
        let later = keys.insert(key(2)).unwrap();
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].handle, held[0].key), (one, key(1)));
        assert_eq!(keys.remove(one).unwrap_err().errno(), Errno::EBUSY);
        keys.remove(later).unwrap();
        drop(held);
        keys.remove(one).unwrap();
        assert_eq!(keys.remove(one).unwrap_err().errno(), Errno::EINVAL);
        // The next key does not get its handle.
        let next = keys.insert(key(3)).unwrap();
        assert_ne!(next, one);
        assert_eq!((keys.key(one), keys.key(next)), (None, Some(key(3))));
    }

    #[test]
    fn an_id_is_a_keys_own() {
        let keys = AuthKeys::default();
        let one = keys.insert(key(1)).unwrap();
        assert_eq!(keys.user_id(one), None);
        keys.set_user_id(one, FiAddr(7)).unwrap();
        assert_eq!(keys.user_id(one), Some(FiAddr(7)));
        let nobody = keys.set_user_id(FiAddr(5), FiAddr(7));
        assert_eq!(nobody.unwrap_err().errno(), Errno::EINVAL);
    }
}
