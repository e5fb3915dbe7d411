//! Prefetch of the lines of a large table that the next look-ups will probably need.
//!
//! Where keys are consecutive (tags that count up, peers in turn), the lines of the table are
//! consecutive too, before keys are hashed. A miss of a large table costs more than all the other
//! work of a match. A prefetch one group of keys ahead hides the miss.

use super::{GROUP_SHIFT, Seed};

/// Watches the keys of one kind of access.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ahead {
    words: [Word; 2],
    /// How often the words moved as expected, lately.
    confidence: u8,
}

/// One of a key's two words, without the bits that keys of one line differ in.
#[derive(Clone, Copy, Default)]
struct Word {
    last: u64,
    /// The last change.
    change: u64,
    /// The last change that came twice in a row.
    stride: u64,
    /// Moves of the other word since it moved.
    still: u8,
}

const MIN_CONFIDENCE: u8 = 2;
const MAX_CONFIDENCE: u8 = 4;

impl Word {
    /// Follows the word. Returns whether it moved as expected; also if it did not move.
    fn follow(&mut self, to: u64) -> bool {
        let change = to.wrapping_sub(self.last);
        if change == 0 {
            self.still = self.still.saturating_add(1);
            return true;
        }
        let expected = change == self.stride;
        if change == self.change {
            self.stride = change;
        }
        (self.last, self.change, self.still) = (to, change, 0);
        expected
    }

    /// Where it will be when both words have moved, at once or in turn.
    fn next(&self) -> u64 {
        match self.still {
            0 | 1 => self.last.wrapping_add(self.stride),
            _ => self.last,
        }
    }
}

impl Ahead {
    /// A key was looked up. Returns the hash of the line behind this one, or behind the next, when
    /// keys count.
    #[inline(always)]
    pub(crate) fn after(&mut self, seed: Seed, a: u64, b: u64) -> Option<u32> {
        let (a, b) = (a >> GROUP_SHIFT, b >> GROUP_SHIFT);
        if a == self.words[0].last && b == self.words[1].last {
            return None;
        }
        self.moved(seed, a, b)
    }

    #[inline(never)]
    fn moved(&mut self, seed: Seed, a: u64, b: u64) -> Option<u32> {
        let expected = self.words[0].follow(a) & self.words[1].follow(b);
        self.confidence = match expected {
            true => MAX_CONFIDENCE.min(self.confidence + 1),
            false => self.confidence.saturating_sub(1),
        };
        (self.confidence >= MIN_CONFIDENCE).then(|| {
            let [a, b] = [0, 1].map(|i| self.words[i].next() << GROUP_SHIFT);
            seed.hash(a, b)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of lines that were prefetched before their first key came.
    fn prefetched_share(keys: impl Iterator<Item = (u64, u64)>) -> f64 {
        let (seed, mut ahead) = (Seed::random(), Ahead::default());
        let line = |hash: u32| hash >> GROUP_SHIFT;
        let (mut predicted, mut last) = (Vec::new(), None);
        let (mut lines, mut hits) = (0, 0);
        for (a, b) in keys {
            let here = line(seed.hash(a, b));
            if last != Some(here) {
                lines += 1;
                hits += usize::from(predicted.contains(&here));
            }
            last = Some(here);
            predicted.extend(ahead.after(seed, a, b).map(line));
        }
        f64::from(hits as u32) / f64::from(lines)
    }

    #[test]
    fn consecutive_keys_are_prefetched() {
        assert!(prefetched_share((0..1000).map(|n| (5, n))) > 0.95);
        assert!(prefetched_share((0..1000).map(|n| (n, 77))) > 0.95);
        assert!(prefetched_share((0..1000).rev().map(|n| (n, n))) > 0.95);
        assert!(prefetched_share((0..1000).map(|n| (n + 3, n))) > 0.95);
        assert!(prefetched_share((0..1000).map(|n| (u64::MAX, n << 40))) > 0.95);
        assert!(prefetched_share((0..1000).map(|n| (n % 61, n))) > 0.8);
    }

    #[test]
    fn keys_in_no_order_cause_no_prefetch() {
        let (seed, mut ahead) = (Seed::random(), Ahead::default());
        let prefetches = (0..1000u64)
            .filter(|n| ahead.after(seed, 7, n * n * n * n).is_some())
            .count();
        assert!(prefetches < 10, "{prefetches}");
    }
}
