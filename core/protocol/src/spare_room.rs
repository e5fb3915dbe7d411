//! Maps that shrink again. A standard one keeps the room of the most entries that it ever had, and
//! twice that where entries come and go.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// A map with room for this number of entries or fewer gives none back.
const SOME: usize = 1024;

/// Gives back room of a map that is less than a quarter full. The map keeps room for twice its
/// entries, so the work is small beside that of the removals before.
pub fn give_back_room<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > SOME && map.len() < map.capacity() / 4 {
        map.shrink_to(2 * map.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_was_full_gives_its_room_back() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        for n in 0..99_000 {
            map.remove(&n);
            give_back_room(&mut map);
        }
        assert!(map.capacity() < 8_000, "{}", map.capacity());
        assert!((99_000..100_000).all(|n| map.get(&n) == Some(&n)));
    }
}
