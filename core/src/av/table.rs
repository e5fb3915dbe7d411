//! One address vector's table: 64 address bytes and a generation for each entry, and a hash index for the way back.
//!
//! A MAP address is index and generation, so that the use of a removed one is caught; a TABLE address is the bare index,
//! lowest unused first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::addr::{NATIVE_LEN, NativeAddr};
use crate::error::{Errno, Error, Result};
use crate::peer::PeerAv;
use crate::types::FiAddr;

/// How `FiAddr` values are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AvType {
    /// Opaque values with a generation inside (`FI_AV_MAP`).
    #[default]
    Map,
    /// Indices from 0 (`FI_AV_TABLE`).
    Table,
}

/// What to open.
#[derive(Clone, Copy, Debug, Default)]
pub struct AvAttr {
    /// Type of the addresses.
    pub av_type: AvType,
    /// Number of addresses to make room for at once; more may be inserted.
    pub count: usize,
}

/// Indices take 32 bits of a MAP address, generations the 24 above; the highest 8 stay free for receive context bits.
const GENERATION_BITS: u32 = 24;

#[derive(Clone, Copy)]
struct Entry {
    name: [u8; NATIVE_LEN],
    /// Odd while the entry is in use.
    generation: u32,
}

/// The entries of one address vector. The domain's lock guards it.
pub struct AvTable {
    av_type: AvType,
    entries: Vec<Entry>,
    free: BinaryHeap<Reverse<u32>>,
    by_name: HashTable<u32>,
    hasher: RandomState,
}

impl AvTable {
    /// An empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is no memory for `attr.count` entries.
    pub fn new(attr: &AvAttr) -> Result<Self> {
        let mut entries = Vec::new();
        entries.try_reserve(attr.count).map_err(|_| {
            Error::new(
                Errno::ENOMEM,
                "open",
                format!("address vector of {} entries", attr.count),
            )
            .mend("count is a hint: a smaller one works, the table grows")
        })?;
        Ok(Self {
            av_type: attr.av_type,
            entries,
            free: BinaryHeap::new(),
            by_name: HashTable::new(),
            hasher: RandomState::new(),
        })
    }

    /// Number of addresses in the table.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Inserts an address, or finds it where it is already. Says also whether it is new.
    ///
    /// # Errors
    ///
    /// `EINVAL` for bytes that are no native address, `ENOSPC` when all 2³² indices are in use.
    pub fn insert(&mut self, name: &[u8]) -> Result<(FiAddr, bool)> {
        let addr = NativeAddr::from_bytes(name)
            .map_err(|why| Error::new(Errno::EINVAL, "insert", "address").mend(why.to_string()))?;
        let name = addr.to_bytes();
        let hash = self.hasher.hash_one(name);
        if let Some(&index) = self
            .by_name
            .find(hash, |&i| self.entries[i as usize].name == name)
        {
            return Ok((self.fi_addr(index), false));
        }
        let index = match self.free.pop() {
            Some(Reverse(index)) => index,
            None => u32::try_from(self.entries.len())
                .map_err(|_| Error::new(Errno::ENOSPC, "insert", "address"))?,
        };
        match self.entries.get_mut(index as usize) {
            Some(entry) => {
                entry.name = name;
                entry.generation += 1;
            }
            None => self.entries.push(Entry {
                name,
                generation: 1,
            }),
        }
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.by_name
            .insert_unique(hash, index, |&i| hasher.hash_one(entries[i as usize].name));
        Ok((self.fi_addr(index), true))
    }

    /// Removes an address; the entry's index is free again.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not in the table.
    pub fn remove(&mut self, addr: FiAddr) -> Result<()> {
        let index = self.index(addr).ok_or_else(|| {
            Error::new(Errno::EINVAL, "remove", format!("{addr:?}"))
                .mend("it is not in this address vector")
        })?;
        let name = self.entries[index as usize].name;
        let hash = self.hasher.hash_one(name);
        if let Ok(found) = self.by_name.find_entry(hash, |&i| i == index) {
            found.remove();
        }
        let entry = &mut self.entries[index as usize];
        entry.generation += 1;
        // An index whose generations are used up is never handed out again, so that no stale address becomes valid.
        if self.av_type == AvType::Table || entry.generation + 1 < 1 << GENERATION_BITS {
            self.free.push(Reverse(index));
        }
        Ok(())
    }

    /// Every address in the table, from the lowest index.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, NativeAddr)> + '_ {
        (0u32..).zip(&self.entries).filter_map(|(index, entry)| {
            let name = NativeAddr::from_bytes(&entry.name).ok()?;
            (entry.generation & 1 == 1).then(|| (self.fi_addr(index), name))
        })
    }

    fn fi_addr(&self, index: u32) -> FiAddr {
        match self.av_type {
            AvType::Table => FiAddr(index.into()),
            AvType::Map => {
                let generation = self.entries[index as usize].generation;
                FiAddr(u64::from(generation) << 32 | u64::from(index))
            }
        }
    }

    fn index(&self, addr: FiAddr) -> Option<u32> {
        let index = match self.av_type {
            AvType::Table => u32::try_from(addr.0).ok()?,
            AvType::Map => addr.0 as u32,
        };
        let entry = self.entries.get(index as usize)?;
        (entry.generation & 1 == 1 && self.fi_addr(index) == addr).then_some(index)
    }
}

impl PeerAv for AvTable {
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr> {
        let index = self.index(addr)?;
        NativeAddr::from_bytes(&self.entries[index as usize].name).ok()
    }

    fn find(&self, name: &NativeAddr) -> FiAddr {
        let name = name.to_bytes();
        let hash = self.hasher.hash_one(name);
        match self
            .by_name
            .find(hash, |&i| self.entries[i as usize].name == name)
        {
            Some(&index) => self.fi_addr(index),
            None => FiAddr::NOTAVAIL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn name(n: u8) -> NativeAddr {
        NativeAddr {
            incarnation: n.into(),
            node: 1,
            shm: Some(n.into()),
            verbs: None,
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u8),
        Remove(u8),
    }

    proptest! {
        /// Covers: AV-11, AV-17, AV-23
        #[test]
        fn a_table_does_as_a_plain_map(
            table in any::<bool>(),
            ops in proptest::collection::vec(
                prop_oneof![(0u8..20).prop_map(Op::Insert), (0u8..20).prop_map(Op::Remove)],
                0..300,
            ),
        ) {
            let av_type = if table { AvType::Table } else { AvType::Map };
            let mut av = AvTable::new(&AvAttr { av_type, count: 3 }).unwrap();
            let mut model: BTreeMap<u8, FiAddr> = BTreeMap::new();
            let mut stale: Vec<FiAddr> = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(n) => {
                        let lowest = (0u64..).find(|i| !model.values().any(|a| a.0 & 0xffff_ffff == *i));
                        let (addr, new) = av.insert(&name(n).to_bytes()).unwrap();
                        prop_assert_eq!(new, !model.contains_key(&n));
                        if new {
                            prop_assert_eq!(Some(addr.0 & 0xffff_ffff), lowest);
                            prop_assert!(table || !stale.contains(&addr));
                        }
                        prop_assert_eq!(*model.entry(n).or_insert(addr), addr);
                    }
                    Op::Remove(n) => match model.remove(&n) {
                        Some(addr) => {
                            av.remove(addr).unwrap();
                            stale.push(addr);
                            prop_assert_eq!(av.remove(addr).unwrap_err().errno(), Errno::EINVAL);
                        }
                        None => prop_assert_eq!(av.find(&name(n)), FiAddr::NOTAVAIL),
                    },
                }
                prop_assert_eq!(av.len(), model.len());
                for (n, addr) in &model {
                    prop_assert_eq!(av.lookup(*addr), Some(name(*n)));
                    prop_assert_eq!(av.find(&name(*n)), *addr);
                }
                let by_index = av.iter().map(|(addr, name)| (addr, name.incarnation as u8));
                prop_assert_eq!(
                    by_index.map(|(addr, n)| (n, addr)).collect::<BTreeMap<_, _>>(),
                    model.clone()
                );
                for addr in &stale {
                    prop_assert!(table || av.lookup(*addr).is_none());
                }
            }
        }
    }

    #[test]
    fn a_malformed_address_is_refused_with_the_reason() {
        let mut av = AvTable::new(&AvAttr::default()).unwrap();
        let e = av.insert(&[0; 10]).unwrap_err();
        assert_eq!(e.errno(), Errno::EINVAL);
        assert!(e.to_string().contains("64 bytes, this has 10"), "{e}");
        assert!(av.is_empty());
    }

    #[test]
    fn an_impossible_count_is_an_error() {
        let attr = AvAttr {
            count: usize::MAX / 2,
            ..AvAttr::default()
        };
        assert_eq!(AvTable::new(&attr).err().unwrap().errno(), Errno::ENOMEM);
    }
}
