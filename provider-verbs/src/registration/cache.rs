//! The cache of registered regions, in the order of their addresses. It evicts the least recently
//! used region first.
//!
//! A region that gives peers a right has exactly the range and the rights of the registration that
//! made it: its key opens no other byte, and gives no other right. All other regions serve this
//! side alone: each range within such a region shares it, and no such region lies within another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::mr::Access;

/// Limits of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// Regions.
    pub(crate) count: usize,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

/// The regions that the cache keeps for later operations. `R` is a region; dropping it ends its
/// registration.
#[derive(Debug)]
pub(super) struct Cache<R> {
    /// Regions for this side alone, by their start. None lies within another, so they end in the
    /// order in which they start.
    local: BTreeMap<u64, CachedRegion<R>>,
    /// Regions with rights of peers, by start, end and rights.
    remote: BTreeMap<(u64, u64, u32), CachedRegion<R>>,
    /// The length of the longest region in `remote`, or more.
    longest_remote: u64,
    bytes: u64,
    limits: CacheLimits,
    uses: u64,
}

#[derive(Debug)]
struct CachedRegion<R> {
    end: u64,
    access: Access,
    region: Arc<R>,
    /// The time of its last use, counted in uses of any region.
    used: u64,
}

/// The place of a region in the cache.
#[derive(Clone, Copy)]
enum At {
    Local(u64),
    Remote((u64, u64, u32)),
}

/// The range and rights to register when the cache has no region for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegionRequest {
    pub(super) range: Range<u64>,
    pub(super) access: Access,
}

impl RegionRequest {
    /// The key of the region in `remote`, if peers get a right.
    fn remote_key(&self) -> Option<(u64, u64, u32)> {
        (self.access.intersects(Access::OF_PEERS)).then_some((
            self.range.start,
            self.range.end,
            self.access.bits(),
        ))
    }
}

impl<R> Cache<R> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self {
            local: BTreeMap::new(),
            remote: BTreeMap::new(),
            longest_remote: 0,
            bytes: 0,
            limits,
            uses: 0,
        }
    }

    /// Number of regions.
    pub(super) fn len(&self) -> usize {
        self.local.len() + self.remote.len()
    }

    /// Bytes of all regions; a byte in two regions counts twice.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A region that holds all of the range, with these rights at least; if any of them is a right
    /// of peers, with exactly these rights to exactly this range.
    pub(super) fn find(&mut self, range: &Range<u64>, access: Access) -> Option<&Arc<R>> {
        let cached = if access.intersects(Access::OF_PEERS) {
            self.remote
                .get_mut(&(range.start, range.end, access.bits()))?
        } else {
            let (_, cached) = self.local.range_mut(..=range.start).next_back()?;
            // Of all regions that start at or before the range, this one ends last.
            if cached.end < range.end || !cached.access.contains(access) {
                return None;
            }
            cached
        };
        self.uses += 1;
        cached.used = self.uses;
        Some(&cached.region)
    }

    /// The range and rights to register for a range that the cache does not have, so that the cache
    /// can keep the region. If peers get a right: exactly the requested range and rights. Else the
    /// range is joined with cached ranges within it or around it, and has their rights, too. `None`
    /// when the cache has no room for it.
    pub(super) fn wanted(&mut self, range: Range<u64>, access: Access) -> Option<RegionRequest> {
        let wanted = match access.intersects(Access::OF_PEERS) {
            true => RegionRequest { range, access },
            false => self.joined(range, access),
        };
        let bytes = wanted.range.end - wanted.range.start;
        while self.len() >= self.limits.count || self.bytes + bytes > self.limits.bytes {
            if !self.give_up_oldest() {
                return None;
            }
        }
        Some(wanted)
    }

    /// A region for this side, joined with the cached regions in its range.
    fn joined(&self, range: Range<u64>, access: Access) -> RegionRequest {
        let before = self.local.range(..=range.start).next_back();
        let around = before.filter(|(_, cached)| cached.end >= range.end);
        match around {
            Some((&start, cached)) => RegionRequest {
                range: start..cached.end,
                access: access | cached.access,
            },
            None => {
                let within = self.local.range(range.clone());
                let within = within.filter(|(_, cached)| cached.end <= range.end);
                let access = within.fold(access, |all, (_, cached)| all | cached.access);
                RegionRequest { range, access }
            }
        }
    }

    /// Puts a region into the cache, as [wanted](Self::wanted), in place of the regions within it.
    pub(super) fn keep(&mut self, wanted: RegionRequest, region: Arc<R>) {
        let remote = wanted.remote_key();
        let RegionRequest { range, access } = wanted;
        self.uses += 1;
        let cached = CachedRegion {
            end: range.end,
            access,
            region,
            used: self.uses,
        };
        let bytes = range.end - range.start;
        self.bytes += bytes;
        if let Some(key) = remote {
            self.longest_remote = self.longest_remote.max(bytes);
            if self.remote.insert(key, cached).is_some() {
                self.bytes -= bytes;
            }
            return;
        }
        let within = self.local.range(range.clone());
        let within = within.filter(|(_, cached)| cached.end <= range.end);
        for start in within.map(|(&start, _)| start).collect::<Vec<_>>() {
            self.remove(At::Local(start));
        }
        self.local.insert(range.start, cached);
    }

    /// Removes each region that reaches into a range. A user of such a region has it until its
    /// operation is over.
    pub(super) fn forget_range(&mut self, range: &Range<u64>) {
        while let Some((&start, cached)) = self.local.range(..range.end).next_back() {
            // All regions before this one end before it, too.
            if cached.end <= range.start {
                break;
            }
            self.remove(At::Local(start));
        }
        // A region that begins earlier ends before the range.
        let first = range.start.saturating_sub(self.longest_remote);
        let near = self.remote.range((first, 0, 0)..(range.end, 0, 0));
        let reaching = near.filter(|((_, end, _), _)| *end > range.start);
        for key in reaching.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remove(At::Remote(key));
        }
    }

    /// Removes this region.
    pub(super) fn forget(&mut self, region: &Arc<R>) {
        let found = (self.all()).find(|(_, cached)| Arc::ptr_eq(&cached.region, region));
        if let Some(at) = found.map(|(at, _)| at) {
            self.remove(at);
        }
    }

    /// Removes all regions that no operation uses.
    pub(super) fn give_up_idle(&mut self) {
        while self.give_up_oldest() {}
    }

    /// Removes all regions.
    pub(super) fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
        self.longest_remote = 0;
        self.bytes = 0;
    }

    fn all(&self) -> impl Iterator<Item = (At, &CachedRegion<R>)> {
        let local = self
            .local
            .iter()
            .map(|(&at, cached)| (At::Local(at), cached));
        let remote = self
            .remote
            .iter()
            .map(|(&at, cached)| (At::Remote(at), cached));
        local.chain(remote)
    }

    /// Removes the least recently used of the regions that no operation uses. Returns `false` if
    /// all are in use.
    fn give_up_oldest(&mut self) -> bool {
        let idle = self.all();
        let idle = idle.filter(|(_, cached)| Arc::strong_count(&cached.region) == 1);
        let oldest = idle.min_by_key(|(_, cached)| cached.used).map(|(at, _)| at);
        match oldest {
            Some(at) => {
                self.remove(at);
                true
            }
            None => false,
        }
    }

    fn remove(&mut self, at: At) {
        let (start, removed) = match at {
            At::Local(start) => (start, self.local.remove(&start)),
            At::Remote(key) => (key.0, self.remote.remove(&key)),
        };
        if let Some(cached) = removed {
            self.bytes -= cached.end - start;
        }
        if self.remote.is_empty() {
            self.longest_remote = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    const SPACE: u64 = 64;

    /// A registration: its range and rights, and a count of all registrations.
    #[derive(Debug)]
    struct TestRegion {
        range: Range<u64>,
        access: Access,
        /// The age of each page when the region was registered.
        ages: Vec<u32>,
        live: Arc<AtomicUsize>,
    }

    impl Drop for TestRegion {
        fn drop(&mut self) {
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[derive(Clone, Debug)]
    enum CacheStep {
        Use(Range<u64>, Access),
        Done(usize),
        Gone(Range<u64>),
        Spoilt(usize),
        GiveUp,
    }

    fn ranges() -> impl Strategy<Value = Range<u64>> {
        (0..SPACE, 1..=SPACE / 4).prop_map(|(start, len)| start..(start + len).min(SPACE))
    }

    fn steps() -> impl Strategy<Value = CacheStep> {
        let access = prop_oneof![
            Just(Access::empty()),
            Just(Access::LOCAL_WRITE),
            Just(Access::REMOTE_READ),
            Just(Access::LOCAL_WRITE | Access::REMOTE_READ),
            Just(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        ];
        prop_oneof![
            8 => (ranges(), access).prop_map(|(range, access)| CacheStep::Use(range, access)),
            4 => (0..16usize).prop_map(CacheStep::Done),
            2 => ranges().prop_map(CacheStep::Gone),
            1 => (0..16usize).prop_map(CacheStep::Spoilt),
            1 => Just(CacheStep::GiveUp),
        ]
    }

    proptest! {
        /// Against a model in which each page has the age of its last unmapping: a region that the
        /// cache hands out covers the range with the rights, exactly those and no other byte where
        /// peers get one, and all its memory is the memory that was registered. Limits hold, and a
        /// region that is neither cached nor used is not registered.
        #[test]
        fn a_region_covers_its_registered_memory(
            steps in prop::collection::vec(steps(), 1..120),
            count in 1..8usize,
            bytes in 8..2 * SPACE,
        ) {
            let limits = CacheLimits { count, bytes };
            let mut cache = Cache::new(limits);
            let live = Arc::new(AtomicUsize::new(0));
            let mut ages = [0u32; SPACE as usize];
            let mut used: Vec<Arc<TestRegion>> = Vec::new();
            for step in steps {
                match step {
                    CacheStep::Use(range, access) => {
                        let region = match cache.find(&range, access) {
                            Some(region) => Arc::clone(region),
                            None => {
                                let register = |wanted: &RegionRequest| {
                                    live.fetch_add(1, Ordering::Relaxed);
                                    let Range { start, end } = wanted.range;
                                    Arc::new(TestRegion {
                                        range: wanted.range.clone(),
                                        access: wanted.access,
                                        ages: ages[start as usize..end as usize].to_vec(),
                                        live: Arc::clone(&live),
                                    })
                                };
                                match cache.wanted(range.clone(), access) {
                                    Some(wanted) => {
                                        let region = register(&wanted);
                                        cache.keep(wanted, Arc::clone(&region));
                                        prop_assert!(cache.find(&range, access).is_some());
                                        region
                                    }
                                    None => register(&RegionRequest { range: range.clone(), access }),
                                }
                            }
                        };
                        prop_assert!(region.range.start <= range.start && range.end <= region.range.end);
                        prop_assert!(region.access.contains(access));
                        if access.intersects(Access::OF_PEERS) {
                            prop_assert_eq!((&region.range, region.access), (&range, access));
                        } else {
                            prop_assert!(!region.access.intersects(Access::OF_PEERS), "{:?}", region.access);
                        }
                        let Range { start, end } = region.range;
                        prop_assert_eq!(&region.ages[..], &ages[start as usize..end as usize]);
                        used.push(region);
                    }
                    CacheStep::Done(which) if !used.is_empty() => {
                        used.swap_remove(which % used.len());
                    }
                    CacheStep::Spoilt(which) if !used.is_empty() => {
                        cache.forget(&used[which % used.len()]);
                    }
                    CacheStep::Done(_) | CacheStep::Spoilt(_) => {}
                    CacheStep::Gone(range) => {
                        ages[range.start as usize..range.end as usize].iter_mut().for_each(|age| *age += 1);
                        cache.forget_range(&range);
                    }
                    CacheStep::GiveUp => cache.give_up_idle(),
                }
                let cached: Vec<_> = cache.local.iter().map(|(start, cached)| (*start, cached.end)).collect();
                prop_assert!(cached.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{:?}", cached);
                let remote = cache.remote.keys().map(|(start, end, _)| (*start, *end));
                let all = cached.into_iter().chain(remote);
                prop_assert_eq!(all.map(|(start, end)| end - start).sum::<u64>(), cache.bytes());
                prop_assert!(cache.len() <= limits.count && cache.bytes() <= limits.bytes);
                let mut there: Vec<_> = cache.all().map(|(_, cached)| Arc::as_ptr(&cached.region)).collect();
                there.extend(used.iter().map(Arc::as_ptr));
                there.sort_unstable();
                there.dedup();
                prop_assert_eq!(there.len(), live.load(Ordering::Relaxed));
            }
            used.clear();
            cache.give_up_idle();
            prop_assert_eq!((cache.len(), cache.bytes(), live.load(Ordering::Relaxed)), (0, 0, 0));
        }
    }

    /// A request for a part of a cached region with a right of peers gets a region of that part
    /// with those rights alone: a peer's key opens no more memory than its owner asked for. Regions
    /// without such a right may be shared.
    #[test]
    fn a_right_of_peers_covers_exactly_the_request() {
        const PEERS: [Access; 4] = [
            Access::REMOTE_READ,
            Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
            Access::LOCAL_WRITE.union(Access::REMOTE_ATOMIC),
            Access::LOCAL_WRITE
                .union(Access::REMOTE_WRITE)
                .union(Access::REMOTE_READ),
        ];
        const OWN: [Access; 2] = [Access::empty(), Access::LOCAL_WRITE];
        let limits = CacheLimits {
            count: 100,
            bytes: 1 << 20,
        };
        // The range and the rights of the region that the cache finds, or that is registered and
        // cached.
        let give = |cache: &mut Cache<(Range<u64>, Access)>, range: Range<u64>, access| {
            if let Some(region) = cache.find(&range, access) {
                return (**region).clone();
            }
            let wanted = cache.wanted(range, access).unwrap();
            let region = (wanted.range.clone(), wanted.access);
            cache.keep(wanted, Arc::new(region.clone()));
            region
        };
        let (whole, part) = (0..64 << 10, 4096..4352);
        for cached in PEERS.into_iter().chain(OWN) {
            for asked in PEERS {
                let mut cache = Cache::new(limits);
                give(&mut cache, whole.clone(), cached);
                let given = give(&mut cache, part.clone(), asked);
                assert_eq!(
                    given,
                    (part.clone(), asked),
                    "where {cached:?} is kept around it"
                );
                let again = give(&mut cache, part.clone(), asked);
                assert_eq!((again, cache.len()), (given, 2), "{asked:?} once more");
                // A cached region around the range, too.
                let given = give(&mut cache, 4000..5000, asked);
                assert_eq!(given, (4000..5000, asked), "around what is kept");
            }
            for asked in OWN {
                let mut cache = Cache::new(limits);
                give(&mut cache, whole.clone(), cached);
                let (range, access) = give(&mut cache, part.clone(), asked);
                assert!(range.start <= part.start && part.end <= range.end);
                assert!(
                    !access.intersects(Access::OF_PEERS),
                    "{cached:?}, {asked:?}: {access:?}"
                );
            }
        }
    }

    /// The least recently used region goes first, of those that no operation uses; a region in use
    /// never goes.
    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::new(CacheLimits {
            count: 2,
            bytes: 100,
        });
        let hold = |cache: &mut Cache<u64>, start: u64| {
            let wanted = cache.wanted(start..start + 10, Access::empty())?;
            let region = Arc::new(start);
            cache.keep(wanted, Arc::clone(&region));
            Some(region)
        };
        drop(hold(&mut cache, 0));
        drop(hold(&mut cache, 10));
        assert!(cache.find(&(0..10), Access::empty()).is_some());
        let held = hold(&mut cache, 20);
        assert!(held.is_some());
        assert!(cache.find(&(10..20), Access::empty()).is_none());
        let first = cache.find(&(0..10), Access::empty()).map(Arc::clone);
        assert!(first.is_some());
        assert!(hold(&mut cache, 30).is_none());
        drop(held);
        assert!(hold(&mut cache, 30).is_some());
        assert!(cache.find(&(20..30), Access::empty()).is_none());
    }
}
