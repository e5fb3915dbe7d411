//! The workload of an address vector: addresses of a thousand nodes are inserted by one call and
//! looked up in an order that no cache can guess, and some are removed. Our side
//! and the program that drives others share it.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Nodes that the addresses are of.
pub(crate) const NODES: usize = 1000;

/// Look-ups at a stretch.
pub(crate) const STRETCH: usize = 200_000;

/// Look-ups of one call, where one does many.
pub(crate) const BATCH: usize = 64;

/// Such calls between two readings of the clock: the addresses of the calls stay in a cache, and
/// the clock takes next to nothing.
const BATCHES: usize = 8;

/// Addresses that are removed at most: in some address vectors each takes longer the more there
/// are.
pub(crate) const REMOVALS: usize = 1000;

/// An address vector whose addresses are indices; the address with index `i` holds `i` itself.
pub(crate) trait Vector {
    /// Why a call failed.
    type Error;
    /// Inserts all addresses, in order, by one call. The arguments of the call were made before.
    fn insert(&mut self) -> Result<(), Self::Error>;
    /// The address at an index, read from its bytes.
    fn lookup(&self, index: usize) -> Result<usize, Self::Error>;
    /// Removes the address at an index.
    fn remove(&mut self, index: usize) -> Result<(), Self::Error>;
}

/// Nanoseconds of each operation, and the memory of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) insert: f64,
    /// Look-ups none of which waits for another.
    pub(crate) lookup: f64,
    /// Look-ups each of which says what the next is of.
    pub(crate) dependent: f64,
    pub(crate) remove: f64,
    /// Memory that came with the insertion.
    pub(crate) bytes_per_entry: f64,
}

/// Inserts and looks up `n` addresses, and removes some.
pub(crate) fn measure<V: Vector>(vector: &mut V, n: usize) -> Result<Figures, V::Error> {
    let (before, start) = (resident_bytes(), Instant::now());
    vector.insert()?;
    let insert = start.elapsed().as_nanos() as f64 / n as f64;
    let bytes = resident_bytes().saturating_sub(before);
    let walk = Walk::over(n);
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let batched = batched(walk, |i| vector.lookup(i))?;
        rounds.push((batched, dependent(walk, |i| vector.lookup(i))?));
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let removals = n.min(REMOVALS);
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..removals {
        vector.remove(at)?;
        at = walk.after(at);
    }
    Ok(Figures {
        insert,
        lookup: middle(rounds.iter().map(|r| r.0).collect()),
        dependent: middle(rounds.iter().map(|r| r.1).collect()),
        remove: start.elapsed().as_nanos() as f64 / removals as f64,
        bytes_per_entry: bytes as f64 / n as f64,
    })
}

/// Nanoseconds of a look-up where the processor may do several at once.
pub(crate) fn batched<E>(
    walk: Walk,
    mut lookup: impl FnMut(usize) -> Result<usize, E>,
) -> Result<f64, E> {
    let (mut at, mut sum) = (0, 0);
    let start = Instant::now();
    for _ in 0..STRETCH {
        sum += lookup(at)?;
        at = walk.after(at);
    }
    black_box(sum);
    Ok(start.elapsed().as_nanos() as f64 / STRETCH as f64)
}

/// Nanoseconds of a look-up where one call does a batch of them. `wanted` makes the arguments of
/// the call while the clock stands.
pub(crate) fn at_once<T, E>(
    walk: Walk,
    wanted: impl Fn(usize) -> T,
    mut lookup_all: impl FnMut(&[T]) -> Result<usize, E>,
) -> Result<f64, E> {
    let (mut at, mut sum, mut took, mut done) = (0, 0, Duration::ZERO, 0);
    let mut batches = Vec::with_capacity(BATCH * BATCHES);
    while done < STRETCH {
        batches.clear();
        batches.extend((0..BATCH * BATCHES).map(|_| {
            let this = at;
            at = walk.after(at);
            wanted(this)
        }));
        let start = Instant::now();
        for batch in batches.chunks(BATCH) {
            sum += lookup_all(batch)?;
        }
        took += start.elapsed();
        done += batches.len();
    }
    black_box(sum);
    Ok(took.as_nanos() as f64 / done as f64)
}

/// Nanoseconds of a look-up that begins when the one before is over.
pub(crate) fn dependent<E>(
    walk: Walk,
    mut lookup: impl FnMut(usize) -> Result<usize, E>,
) -> Result<f64, E> {
    let mut at = 0;
    let start = Instant::now();
    for _ in 0..STRETCH {
        at = walk.after(lookup(at)?);
    }
    black_box(at);
    Ok(start.elapsed().as_nanos() as f64 / STRETCH as f64)
}

/// Visits each of `n` indices once before it comes round, in an order without a pattern; a step
/// takes no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    n: usize,
    mask: usize,
    shift: u32,
}

impl Walk {
    /// Over `n` indices, one at least.
    pub(crate) fn over(n: usize) -> Self {
        let bits = n.max(2).next_power_of_two().trailing_zeros();
        Self {
            n: n.max(1),
            mask: (1 << bits) - 1,
            shift: bits.div_ceil(2),
        }
    }

    /// The index after this one.
    #[inline]
    pub(crate) fn after(self, index: usize) -> usize {
        // A linear congruential generator of full period, and upper bits stirred into the lower
        // ones; both ways.
        let mut state = index ^ (index >> self.shift);
        loop {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f)
                & self.mask;
            let next = state ^ (state >> self.shift);
            if next < self.n {
                return next;
            }
        }
    }
}

/// Memory of this process that is there, in bytes.
pub(crate) fn resident_bytes() -> usize {
    // It walks the pages, where the counts of other files are late by some. Without those of
    // programs, which come as they are used.
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_each_index_once() {
        for n in [1, 2, 3, 1000, 1024, 100_000] {
            let (walk, mut seen, mut at) = (Walk::over(n), vec![false; n], 0);
            for _ in 0..n {
                assert!(!std::mem::replace(&mut seen[at], true), "{at} of {n}");
                at = walk.after(at);
            }
            assert_eq!(at, 0, "{n}");
        }
    }

    /// Addresses that are numbers.
    struct Numbers(Vec<Option<usize>>, usize);

    impl Vector for Numbers {
        type Error = ();

        fn insert(&mut self) -> Result<(), ()> {
            self.0 = (0..self.1).map(Some).collect();
            Ok(())
        }

        fn lookup(&self, index: usize) -> Result<usize, ()> {
            self.0[index].ok_or(())
        }

        fn remove(&mut self, index: usize) -> Result<(), ()> {
            self.0[index].take().map(drop).ok_or(())
        }
    }

    #[test]
    fn some_are_removed_of_what_was_inserted() {
        let mut numbers = Numbers(Vec::new(), 100_000);
        let figures = measure(&mut numbers, 100_000).unwrap();
        let removed = numbers.0.iter().filter(|one| one.is_none()).count();
        assert_eq!((numbers.0.len(), removed), (100_000, REMOVALS));
        assert!(figures.insert > 0.0 && figures.lookup > 0.0 && figures.remove > 0.0);
        assert!(figures.bytes_per_entry > 15.0, "{figures:?}");
    }
}
