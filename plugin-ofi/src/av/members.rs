//! The members of a set: distinct addresses in an order, in which their ranks are counted
//! (fi_av_set(3)).

use std::collections::HashSet;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

/// The members of a set. No address is there twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members(Vec<FiAddr>);

impl Members {
    /// All of them, by rank.
    pub(crate) fn all(&self) -> &[FiAddr] {
        &self.0
    }

    /// The rank of an address.
    pub(crate) fn rank(&self, addr: FiAddr) -> Option<usize> {
        self.0.iter().position(|&member| member == addr)
    }

    /// Whether all those of another set are here.
    pub(crate) fn contains_all(&self, other: &Self) -> bool {
        let here = self.lookup();
        other.0.iter().all(|addr| here.contains(addr))
    }

    /// Adds an address at the end.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is a member.
    pub(crate) fn insert(&mut self, addr: FiAddr) -> Result<(), Errno> {
        match self.rank(addr) {
            Some(_) => Err(Errno::EINVAL),
            None => {
                self.0.push(addr);
                Ok(())
            }
        }
    }

    /// Removes an address. The others keep their order.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is no member.
    pub(crate) fn remove(&mut self, addr: FiAddr) -> Result<(), Errno> {
        let rank = self.rank(addr).ok_or(Errno::EINVAL)?;
        self.0.remove(rank);
        Ok(())
    }

    /// Adds those of another set that are not here, at the end and in their order.
    pub(crate) fn unite(&mut self, other: &Self) {
        let here = self.lookup();
        (self.0).extend(other.0.iter().filter(|addr| !here.contains(addr)));
    }

    /// Keeps those that are in another set, too.
    pub(crate) fn intersect(&mut self, other: &Self) {
        let there = other.lookup();
        self.0.retain(|addr| there.contains(addr));
    }

    /// Keeps those that are not in another set.
    pub(crate) fn subtract(&mut self, other: &Self) {
        let there = other.lookup();
        self.0.retain(|addr| !there.contains(addr));
    }

    fn lookup(&self) -> HashSet<FiAddr> {
        self.0.iter().copied().collect()
    }
}

/// In order, without repetitions.
impl FromIterator<FiAddr> for Members {
    fn from_iter<I: IntoIterator<Item = FiAddr>>(addrs: I) -> Self {
        let mut seen = HashSet::new();
        Self(
            (addrs.into_iter())
                .filter(|&addr| seen.insert(addr))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A change of one of two sets.
    #[derive(Clone, Copy, Debug)]
    enum Change {
        Insert(u64),
        Remove(u64),
        Unite,
        Intersect,
        Subtract,
        Swap,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            6 => (0..12u64).prop_map(Change::Insert),
            2 => (0..12u64).prop_map(Change::Remove),
            1 => Just(Change::Unite),
            1 => Just(Change::Intersect),
            1 => Just(Change::Subtract),
            2 => Just(Change::Swap),
        ]
    }

    /// fi_av_set(3), word by word, on lists.
    fn on_lists(change: Change, one: &mut Vec<u64>, other: &mut Vec<u64>) -> bool {
        match change {
            Change::Insert(addr) if one.contains(&addr) => return false,
            Change::Insert(addr) => one.push(addr),
            Change::Remove(addr) => {
                let before = one.len();
                *one = one.iter().copied().filter(|&a| a != addr).collect();
                return one.len() < before;
            }
            Change::Unite => {
                for addr in other.iter() {
                    if !one.contains(addr) {
                        one.push(*addr);
                    }
                }
            }
            Change::Intersect => {
                *one = one.iter().copied().filter(|a| other.contains(a)).collect();
            }
            Change::Subtract => {
                *one = one.iter().copied().filter(|a| !other.contains(a)).collect();
            }
            Change::Swap => std::mem::swap(one, other),
        }
        true
    }

    fn on_sets(change: Change, one: &mut Members, other: &mut Members) -> bool {
        match change {
            Change::Insert(addr) => return one.insert(FiAddr(addr)).is_ok(),
            Change::Remove(addr) => return one.remove(FiAddr(addr)).is_ok(),
            Change::Unite => one.unite(other),
            Change::Intersect => one.intersect(other),
            Change::Subtract => one.subtract(other),
            Change::Swap => std::mem::swap(one, other),
        }
        true
    }

    proptest! {
        #[test]
        fn sets_are_as_lists_of_the_manual(changes in prop::collection::vec(change(), 0..60)) {
            let (mut one, mut other) = (Members::default(), Members::default());
            let (mut list, mut other_list) = (Vec::new(), Vec::new());
            for change in changes {
                let done = on_sets(change, &mut one, &mut other);
                prop_assert_eq!(done, on_lists(change, &mut list, &mut other_list));
                let addrs: Vec<u64> = one.0.iter().map(|addr| addr.0).collect();
                prop_assert_eq!(&addrs, &list);
                for (rank, &addr) in addrs.iter().enumerate() {
                    prop_assert_eq!(one.rank(FiAddr(addr)), Some(rank));
                }
            }
        }
    }

    #[test]
    fn repetitions_count_once() {
        let members: Members = [3, 1, 3, 2, 1].map(FiAddr).into_iter().collect();
        assert_eq!(members.0, [3, 1, 2].map(FiAddr));
    }
}
