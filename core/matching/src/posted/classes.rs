//! The classes of posted receives: those of one ignore mask, directed or not.

use crate::index::{Ahead, Index, Seed};
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::FiAddr;

/// Classes with a table of their own. An application that has receives with more different masks
/// than that posted at one time gets the others on a list that arrivals walk.
pub(super) const CLASSES_MAX: usize = 64;

pub(super) struct Class {
    pub(super) ignore: u64,
    pub(super) directed: bool,
    pub(super) index: Index,
    /// Prefetchers for the keys of later posts and of later matches.
    posting: Ahead,
    matching: Ahead,
}

impl Class {
    /// Source and tag as this class sees them.
    #[inline]
    pub(super) fn key(&self, src: FiAddr, tag: u64) -> (FiAddr, u64) {
        let src = if self.directed { src } else { FiAddr::UNSPEC };
        (src, tag & !self.ignore)
    }

    /// A receive with this key is posted. Prefetches the line of the key that will probably be
    /// posted later.
    #[inline]
    pub(super) fn expect_post(&mut self, seed: Seed, (src, tag): (FiAddr, u64)) {
        if self.index.is_deep() {
            if let Some(next) = self.posting.after(seed, src.0, tag) {
                self.index.prefetch(next);
            }
        }
    }

    /// A message matches. Prefetches the line of the key that will probably match later.
    #[inline]
    pub(super) fn expect_match(&mut self, seed: Seed, a: &Arrived) {
        if self.index.is_deep() {
            let (src, tag) = self.key(a.src, a.tag);
            if let Some(next) = self.matching.after(seed, src.0, tag) {
                self.index.prefetch(next);
            }
        }
    }
}

/// All of them, by number.
#[derive(Default)]
pub(super) struct MaskClasses {
    list: Vec<Class>,
    /// Bit n: `list[n]` holds receives.
    filled: u64,
    /// Class of the last post.
    recent: usize,
}

impl MaskClasses {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&Class> {
        self.list.get(number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut Class> {
        self.list.get_mut(number)
    }

    /// One that there is.
    #[inline]
    pub(super) fn at(&mut self, number: usize) -> &mut Class {
        &mut self.list[number]
    }

    /// The class that holds receives, if no other does; some number where none does.
    #[inline]
    pub(super) fn only_one(&self) -> Option<usize> {
        let is_one = self.filled & self.filled.wrapping_sub(1) == 0;
        is_one.then_some(self.filled.trailing_zeros() as usize)
    }

    /// Those that hold receives.
    #[inline]
    pub(super) fn all_filled(&self) -> impl Iterator<Item = (usize, &Class)> {
        let mut rest = self.filled;
        std::iter::from_fn(move || {
            let number = rest.trailing_zeros() as usize;
            let class = self.list.get(number).filter(|_| rest != 0)?;
            rest &= rest - 1;
            Some((number, class))
        })
    }

    /// A class has got a receive.
    #[inline]
    pub(super) fn filled(&mut self, number: usize) {
        self.filled |= 1 << number;
        self.recent = number;
    }

    /// A class has lost a receive, which may have been the last.
    #[inline]
    pub(super) fn emptied(&mut self, number: usize) {
        if self.list[number].index.is_empty() {
            self.filled &= !(1 << number);
        }
    }

    /// The class of a mask; [`CLASSES_MAX`] when there are too many in use.
    #[inline]
    pub(super) fn number_for(&mut self, ignore: u64, directed: bool) -> usize {
        match self.list.get(self.recent) {
            Some(c) if c.ignore == ignore && c.directed == directed => self.recent,
            _ => self.find_or_make(ignore, directed),
        }
    }

    #[inline(never)]
    fn find_or_make(&mut self, ignore: u64, directed: bool) -> usize {
        let same = |c: &Class| c.ignore == ignore && c.directed == directed;
        if let Some(number) = self.list.iter().position(same) {
            return number;
        }
        if self.list.len() < CLASSES_MAX {
            self.list.push(Class {
                ignore,
                directed,
                index: Index::default(),
                posting: Ahead::default(),
                matching: Ahead::default(),
            });
            return self.list.len() - 1;
        }
        match self.list.iter().position(|c| c.index.is_empty()) {
            Some(number) => {
                self.list[number].ignore = ignore;
                self.list[number].directed = directed;
                number
            }
            None => CLASSES_MAX,
        }
    }
}
