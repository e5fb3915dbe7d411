//! The routes to the addresses of an address vector.
//!
//! Every send names its destination by an [`FiAddr`]. The layers below need something for it:
//! the part of the endpoint that has the destination's authorization key, shared memory or a
//! device, the link or the peer. A [`RouteTable`] keeps all of that as one route. An endpoint
//! has one table, and looks into it once for a send:
//!
//! ```text
//!  send(dest) ──> RouteTable, of the endpoint ──> route of its transport, handed down:
//!
//!      keyed endpoint    { part, route of the part's transport }
//!      pair              near: route of shared memory │ far: route of verbs
//!      shared memory     { link, epoch }
//!      verbs, RDM        { peer, epoch }
//!      verbs, DGRAM      { way }
//! ```
//!
//! A transport makes no look-up of its own on the way of a send. Its owner hands it the route of
//! the destination by reference. A route that was never used is the default, which leads
//! nowhere, and the transport fills it in. The owner enters the route once a send went well, so
//! the table has no index that the address vector has not.
//!
//! **Key.** The low 32 bits of an address are the index of its entry in the address vector; the
//! bits above are the entry's generation (a MAP) or zero (a TABLE). The index is the place in
//! the table. The whole address is compared, so an address of an earlier generation is not
//! found. No address vector has the indices of [`FiAddr::NOTAVAIL`] and [`FiAddr::UNSPEC`].
//!
//! **How long a route is good.** The owner takes a route out when its address is removed from
//! the address vector, before the entry gets a new address. The link or peer behind the route
//! may end earlier: a link of shared memory goes idle and closes, and another link gets its
//! place. Therefore a route to a link or a peer bears a stamp, the [`Epoch`] in which it was
//! filled in. The transport begins a new epoch whenever a link ends. A route of an earlier epoch
//! leads nowhere, and the next send fills it in anew. A send pays one comparison for that, and
//! the transport need not find the routes to the link that ended.
//!
//! **Cost.** A look-up is a bound check, a load and a comparison. The table is as long as the
//! highest index that was sent to. It needs no lock of its own: the lock of the endpoint's
//! domain is held (`docs/adr/0053`).

use std::num::NonZeroU32;

use crate::types::FiAddr;

/// A route `R` for each address that has one.
#[derive(Debug)]
pub struct RouteTable<R> {
    /// By the low 32 bits of the address.
    entries: Vec<Entry<R>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<R> {
    /// [`FiAddr::NOTAVAIL`] where there is none.
    addr: FiAddr,
    route: R,
}

impl<R> Default for RouteTable<R> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

/// The entry of an address.
#[inline(always)]
fn index(addr: FiAddr) -> usize {
    addr.0 as u32 as usize
}

impl<R: Copy + Default> RouteTable<R> {
    /// Where an address leads.
    #[inline(always)]
    pub fn get(&self, addr: FiAddr) -> Option<R> {
        let entry = self.entries.get(index(addr))?;
        (entry.addr == addr).then_some(entry.route)
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, addr: FiAddr) -> Option<&mut R> {
        let entry = self.entries.get_mut(index(addr))?;
        (entry.addr == addr).then_some(&mut entry.route)
    }

    /// Has an address lead somewhere. It was found in the address vector: the table grows to its
    /// index. Returns the address that had the entry before, and where that led.
    #[cold]
    pub fn insert(&mut self, addr: FiAddr, route: R) -> Option<(FiAddr, R)> {
        debug_assert!(addr.is_some(), "no address leads there");
        let at = index(addr);
        if self.entries.len() <= at {
            let none = Entry {
                addr: FiAddr::NOTAVAIL,
                route: R::default(),
            };
            self.entries.resize(at + 1, none);
        }
        let before = std::mem::replace(&mut self.entries[at], Entry { addr, route });
        before.addr.is_some().then_some((before.addr, before.route))
    }

    /// An address leads nowhere from now on. Returns where it led.
    #[cold]
    pub fn remove(&mut self, addr: FiAddr) -> Option<R> {
        let entry = self.entries.get_mut(index(addr))?;
        if entry.addr != addr {
            return None;
        }
        entry.addr = FiAddr::NOTAVAIL;
        Some(std::mem::take(&mut entry.route))
    }

    /// All addresses that lead somewhere, in the order of their entries.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, R)> {
        let entries = self.entries.iter().filter(|entry| entry.addr.is_some());
        entries.map(|entry| (entry.addr, entry.route))
    }
}

/// The time of a transport from one end of a link or peer to the next. The default is the first
/// one.
///
/// There are 2^32 - 1 epochs. No route has a stamp of the last one, which does not end: each send
/// fills its route in anew then, and no route leads to a link that took the place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(NonZeroU32);

impl Default for Epoch {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

impl Epoch {
    /// Ends it and begins the next: no route that bears it is good any more.
    pub fn end(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// The stamp of a route that is filled in now. A route that was never used has none.
    #[inline]
    pub fn stamp(self) -> Option<Self> {
        (self.0 != NonZeroU32::MAX).then_some(self)
    }

    /// Whether a route with this stamp is still good.
    #[inline(always)]
    pub fn is_of(self, stamp: Option<Self>) -> bool {
        stamp == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_of_another_generation_is_not_found() {
        let mut routes = RouteTable::default();
        let [old, new] = [1, 2].map(|generation| FiAddr((generation << 32) | 3));
        assert_eq!(routes.insert(old, 7), None);
        assert_eq!((routes.get(old), routes.get(new)), (Some(7), None));
        assert_eq!(routes.remove(new), None);
        assert_eq!(routes.insert(new, 8), Some((old, 7)));
        assert_eq!((routes.get(old), routes.get(new)), (None, Some(8)));
    }

    #[test]
    fn what_is_no_address_leads_nowhere() {
        let mut routes = RouteTable::default();
        for none in [FiAddr::NOTAVAIL, FiAddr::UNSPEC] {
            assert_eq!(routes.get(none), None);
        }
        routes.insert(FiAddr(3), 1);
        routes.remove(FiAddr(3));
        for none in [FiAddr::NOTAVAIL, FiAddr::UNSPEC, FiAddr(0), FiAddr(3)] {
            assert_eq!((routes.get(none), routes.get_mut(none)), (None, None));
        }
    }

    #[test]
    fn an_epoch_that_has_ended_does_not_come_back() {
        let mut epoch = Epoch::default();
        assert!(
            !epoch.is_of(None),
            "the stamp of a route that was never used"
        );
        let first = epoch.stamp();
        assert!(epoch.is_of(first));
        epoch.end();
        let second = epoch.stamp();
        assert!(epoch.is_of(second) && !epoch.is_of(first));
        // The last one has no stamp.
        epoch = Epoch(NonZeroU32::MAX);
        epoch.end();
        assert!(!epoch.is_of(epoch.stamp()));
    }

    proptest! {
        /// A table does as a map that has one address at most of each entry.
        #[test]
        fn a_table_does_as_a_map(ops in prop::collection::vec((0u8..4, 0u64..3, 0u64..20, any::<u32>()), 0..200)) {
            let mut table = RouteTable::default();
            let mut model = BTreeMap::new();
            for (op, generation, index, route) in ops {
                let addr = FiAddr((generation << 32) | index);
                let there = model.get(&index).copied();
                let found = there.filter(|(at, _)| *at == addr).map(|(_, route)| route);
                match op {
                    0 => {
                        prop_assert_eq!(table.insert(addr, route), there);
                        model.insert(index, (addr, route));
                    }
                    1 => {
                        prop_assert_eq!(table.remove(addr), found);
                        if found.is_some() {
                            model.remove(&index);
                        }
                    }
                    2 => if let Some(at) = table.get_mut(addr) {
                        *at = route;
                        model.insert(index, (addr, route));
                    }
                    _ => prop_assert_eq!(table.get(addr), found),
                }
            }
            let all: Vec<_> = model.into_values().collect();
            prop_assert_eq!(table.iter().collect::<Vec<_>>(), all);
        }
    }
}
