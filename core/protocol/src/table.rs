//! A dense table whose keys carry a generation, so that a key kept past its entry's life is caught.

use std::collections::VecDeque;

/// Key of a [`KeyedTable`] entry: index in the low 32 bits, generation (never 0) in the high 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// The key as a number, for wire formats and work request IDs.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The key that [`Key::to_bits`] gave, or any other number: a wrong one is caught by the table.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Key(bits)
    }

    /// Position in the table: dense, so that an array beside the table can be indexed by it.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    /// How many entries this position has held, modulo 2³².
    #[must_use]
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn new(index: u32, generation: u32) -> Self {
        Key((u64::from(generation) << 32) | u64::from(index))
    }
}

/// Entries by generational key, up to a limit. Freed positions are reused oldest first, so a stale
/// key stays caught for as long as possible.
#[derive(Clone, Debug)]
pub struct KeyedTable<T> {
    slots: Vec<TableSlot<T>>,
    free: VecDeque<u32>,
    limit: usize,
    len: usize,
    /// The generation of a new position.
    first_generation: u32,
}

#[derive(Clone, Debug)]
struct TableSlot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> KeyedTable<T> {
    /// An empty table of at most `limit` entries; takes no memory yet.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        KeyedTable {
            slots: Vec::new(),
            free: VecDeque::new(),
            limit: limit.min(u32::MAX as usize),
            len: 0,
            first_generation: 1,
        }
    }

    /// Puts `value` in.
    ///
    /// # Errors
    /// Gives `value` back when the table is full.
    pub fn insert(&mut self, value: T) -> Result<Key, T> {
        if self.len >= self.limit {
            return Err(value);
        }
        self.len += 1;
        if let Some(index) = self.free.pop_front() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Ok(Key::new(index, slot.generation));
        }
        let index = self.slots.len() as u32; // below `limit`, which fits
        self.slots.push(TableSlot {
            generation: self.first_generation,
            value: Some(value),
        });
        Ok(Key::new(index, self.first_generation))
    }

    /// Has it take another number of entries at most. Those that are there stay.
    pub fn change_limit(&mut self, limit: usize) {
        self.limit = limit.min(u32::MAX as usize);
    }

    /// Whether another entry would be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// The entry of `key`, unless it is gone.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.slots
            .get(key.index())
            .filter(|slot| slot.generation == key.generation())?
            .value
            .as_ref()
    }

    /// The entry of `key`, to change, unless it is gone.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots
            .get_mut(key.index())
            .filter(|slot| slot.generation == key.generation())?
            .value
            .as_mut()
    }

    /// Takes the entry of `key` out; its key is stale from now on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self
            .slots
            .get_mut(key.index())
            .filter(|slot| slot.generation == key.generation())?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push_back(key.index() as u32);
        self.len -= 1;
        Some(value)
    }

    /// Gives the memory of more than `positions` positions back if the table is empty. Keys of
    /// before stay stale.
    pub fn give_back_room(&mut self, positions: usize) {
        if self.len != 0 || self.slots.len() <= positions {
            return;
        }
        // A position's generation counts up as it is freed: no key of before has this one.
        let used = self.slots.iter().map(|slot| slot.generation);
        self.first_generation = used.max().unwrap_or(1);
        self.slots = Vec::new();
        self.free = VecDeque::new();
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, by position.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value
                .as_ref()
                .map(|value| (Key::new(index as u32, slot.generation), value))
        })
    }

    /// Takes all entries out, by position.
    pub fn drain(&mut self) -> Vec<(Key, T)> {
        let keys: Vec<Key> = self.iter().map(|(key, _)| key).collect();
        keys.into_iter()
            .filter_map(|key| self.remove(key).map(|value| (key, value)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_full_table_gives_the_value_back() {
        let mut table = KeyedTable::new(1);
        let key = table.insert('a').unwrap();
        assert_eq!(table.insert('b'), Err('b'));
        assert_eq!(table.remove(key), Some('a'));
        let again = table.insert('c').unwrap();
        assert_eq!(again.index(), key.index());
        assert_eq!((table.get(key), table.get(again)), (None, Some(&'c')));
    }

    proptest! {
        /// The table agrees with a map under any inserts and removes, and never finds a key that
        /// was removed.
        #[test]
        fn agrees_with_a_map(ops in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..200)) {
            let mut table = KeyedTable::new(16);
            let mut model: HashMap<Key, u8> = HashMap::new();
            let mut gone: Vec<Key> = Vec::new();
            for (insert, n) in ops {
                if insert {
                    match table.insert(n) {
                        Ok(key) => prop_assert!(model.insert(key, n).is_none() && !gone.contains(&key)),
                        Err(_) => prop_assert_eq!(model.len(), 16),
                    }
                } else if let Some(&key) = model.keys().nth(usize::from(n) % model.len().max(1)) {
                    prop_assert_eq!(table.remove(key), model.remove(&key));
                    gone.push(key);
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert!(gone.iter().all(|&key| table.get(key).is_none()));
                prop_assert!(model.iter().all(|(&key, v)| table.get(key) == Some(v)));
            }
        }

        /// A table that gave its memory back finds no key of before.
        #[test]
        fn keys_stay_stale_when_memory_is_given_back(rounds in proptest::collection::vec(1..20usize, 1..8)) {
            let mut table = KeyedTable::new(32);
            let mut gone: Vec<Key> = Vec::new();
            for count in rounds {
                let keys: Vec<Key> = (0..count).map(|n| table.insert(n).unwrap()).collect();
                prop_assert!(keys.iter().all(|key| !gone.contains(key)));
                table.give_back_room(0);
                prop_assert_eq!(table.len(), count);
                for (n, key) in keys.iter().enumerate() {
                    prop_assert_eq!(table.remove(*key), Some(n));
                }
                table.give_back_room(4);
                prop_assert!(table.slots.capacity() <= 4 || table.slots.len() <= 4);
                gone.extend(keys);
                prop_assert!(gone.iter().all(|&key| table.get(key).is_none()));
            }
        }

        #[test]
        fn any_number_as_key_is_safe(bits in any::<u64>()) {
            let mut table = KeyedTable::new(4);
            let key = table.insert(()).unwrap();
            let guess = Key::from_bits(bits);
            prop_assert_eq!(table.get_mut(guess).is_some(), guess == key);
        }
    }
}
