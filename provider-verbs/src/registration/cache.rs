//! Which registered memory is kept: regions by where they lie, none within another, the least recently used given up first.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::mr::Access;

/// What is kept at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// Regions.
    pub(crate) count: usize,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

/// Regions that are kept for those who want them next. They are those of `R`, which ends a registration when it is dropped.
#[derive(Debug)]
pub(super) struct Cache<R> {
    /// By where they begin. None lies within another, so that they end in the order in which they begin.
    kept: BTreeMap<u64, Kept<R>>,
    bytes: u64,
    limits: CacheLimits,
    uses: u64,
}

#[derive(Debug)]
struct Kept<R> {
    end: u64,
    access: Access,
    region: Arc<R>,
    /// When it was used last, in uses of any.
    used: u64,
}

/// What to register in place of a region that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) range: Range<u64>,
    pub(super) access: Access,
}

impl<R> Cache<R> {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self {
            kept: BTreeMap::new(),
            bytes: 0,
            limits,
            uses: 0,
        }
    }

    /// Number of regions.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of all of them; what lies in two counts twice.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A region that holds all of the range, with these rights at least.
    pub(super) fn find(&mut self, range: &Range<u64>, access: Access) -> Option<&Arc<R>> {
        let (_, kept) = self.kept.range_mut(..=range.start).next_back()?;
        // It ends last of all those that begin so early.
        if kept.end < range.end || !kept.access.contains(access) {
            return None;
        }
        self.uses += 1;
        kept.used = self.uses;
        Some(&kept.region)
    }

    /// What to register for a range that was not found, for it to be kept: with the rights of what lies within it, or whole what it
    /// lies in. `None` when there is no room for it.
    pub(super) fn wanted(&mut self, range: Range<u64>, access: Access) -> Option<Wanted> {
        let before = self.kept.range(..=range.start).next_back();
        let around = before.filter(|(_, kept)| kept.end >= range.end);
        let wanted = match around {
            Some((&start, kept)) => Wanted {
                range: start..kept.end,
                access: access | kept.access,
            },
            None => {
                let within = self.kept.range(range.clone());
                let within = within.filter(|(_, kept)| kept.end <= range.end);
                let access = within.fold(access, |all, (_, kept)| all | kept.access);
                Wanted { range, access }
            }
        };
        let bytes = wanted.range.end - wanted.range.start;
        while self.kept.len() >= self.limits.count || self.bytes + bytes > self.limits.bytes {
            if !self.give_up_oldest() {
                return None;
            }
        }
        Some(wanted)
    }

    /// Keeps a region as it was [wanted](Self::wanted), in place of those within it.
    pub(super) fn keep(&mut self, wanted: Wanted, region: Arc<R>) {
        let Wanted { range, access } = wanted;
        let within = self.kept.range(range.clone());
        let within = within.filter(|(_, kept)| kept.end <= range.end);
        for start in within.map(|(&start, _)| start).collect::<Vec<_>>() {
            self.remove(start);
        }
        self.uses += 1;
        self.bytes += range.end - range.start;
        let kept = Kept {
            end: range.end,
            access,
            region,
            used: self.uses,
        };
        self.kept.insert(range.start, kept);
    }

    /// Keeps nothing any more that reaches into a range. Who uses such a region has it until it is done.
    pub(super) fn forget_range(&mut self, range: &Range<u64>) {
        while let Some((&start, kept)) = self.kept.range(..range.end).next_back() {
            // Those before end before it, too.
            if kept.end <= range.start {
                return;
            }
            self.remove(start);
        }
    }

    /// Keeps this region no longer.
    pub(super) fn forget(&mut self, region: &Arc<R>) {
        let found = |(_, kept): &(&u64, &Kept<R>)| Arc::ptr_eq(&kept.region, region);
        let found = self.kept.iter().find(found).map(|(&start, _)| start);
        if let Some(start) = found {
            self.remove(start);
        }
    }

    /// Keeps nothing that is not in use.
    pub(super) fn give_up_idle(&mut self) {
        while self.give_up_oldest() {}
    }

    /// Keeps nothing any more.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.bytes = 0;
    }

    /// Gives up the region that was used least recently, of those that are not in use. `false` when all are.
    fn give_up_oldest(&mut self) -> bool {
        let idle = self.kept.iter();
        let idle = idle.filter(|(_, kept)| Arc::strong_count(&kept.region) == 1);
        let oldest = idle.min_by_key(|(_, kept)| kept.used);
        match oldest.map(|(&start, _)| start) {
            Some(start) => {
                self.remove(start);
                true
            }
            None => false,
        }
    }

    fn remove(&mut self, start: u64) {
        if let Some(kept) = self.kept.remove(&start) {
            self.bytes -= kept.end - start;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    const SPACE: u64 = 64;

    /// A registration: what it covers, and a count of all there are.
    #[derive(Debug)]
    struct Region {
        range: Range<u64>,
        access: Access,
        /// The memory's age at each of its places when it was registered.
        ages: Vec<u32>,
        live: Arc<AtomicUsize>,
    }

    impl Drop for Region {
        fn drop(&mut self) {
            self.live.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Use(Range<u64>, Access),
        Done(usize),
        Gone(Range<u64>),
        Spoilt(usize),
        GiveUp,
    }

    fn ranges() -> impl Strategy<Value = Range<u64>> {
        (0..SPACE, 1..=SPACE / 4).prop_map(|(start, len)| start..(start + len).min(SPACE))
    }

    fn steps() -> impl Strategy<Value = Step> {
        let access = prop_oneof![
            Just(Access::empty()),
            Just(Access::LOCAL_WRITE),
            Just(Access::REMOTE_READ),
            Just(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        ];
        prop_oneof![
            8 => (ranges(), access).prop_map(|(range, access)| Step::Use(range, access)),
            4 => (0..16usize).prop_map(Step::Done),
            2 => ranges().prop_map(Step::Gone),
            1 => (0..16usize).prop_map(Step::Spoilt),
            1 => Just(Step::GiveUp),
        ]
    }

    proptest! {
        /// Against memory whose every place is as old as the last unmapping there: a region that is handed out covers the range with the
        /// rights, and all its memory is what was registered. Limits hold, and what is neither kept nor used is not registered.
        #[test]
        fn a_region_is_of_the_memory_that_is_there(
            steps in prop::collection::vec(steps(), 1..120),
            count in 1..8usize,
            bytes in 8..2 * SPACE,
        ) {
            let limits = CacheLimits { count, bytes };
            let mut cache = Cache::new(limits);
            let live = Arc::new(AtomicUsize::new(0));
            let mut ages = [0u32; SPACE as usize];
            let mut used: Vec<Arc<Region>> = Vec::new();
            for step in steps {
                match step {
                    Step::Use(range, access) => {
                        let region = match cache.find(&range, access) {
                            Some(region) => Arc::clone(region),
                            None => {
                                let register = |wanted: &Wanted| {
                                    live.fetch_add(1, Ordering::Relaxed);
                                    let Range { start, end } = wanted.range;
                                    Arc::new(Region {
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
                                    None => register(&Wanted { range: range.clone(), access }),
                                }
                            }
                        };
                        prop_assert!(region.range.start <= range.start && range.end <= region.range.end);
                        prop_assert!(region.access.contains(access));
                        let Range { start, end } = region.range;
                        prop_assert_eq!(&region.ages[..], &ages[start as usize..end as usize]);
                        used.push(region);
                    }
                    Step::Done(which) if !used.is_empty() => {
                        used.swap_remove(which % used.len());
                    }
                    Step::Spoilt(which) if !used.is_empty() => {
                        cache.forget(&used[which % used.len()]);
                    }
                    Step::Done(_) | Step::Spoilt(_) => {}
                    Step::Gone(range) => {
                        ages[range.start as usize..range.end as usize].iter_mut().for_each(|age| *age += 1);
                        cache.forget_range(&range);
                    }
                    Step::GiveUp => cache.give_up_idle(),
                }
                let kept: Vec<_> = cache.kept.iter().map(|(start, kept)| (*start, kept.end)).collect();
                prop_assert!(kept.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{:?}", kept);
                prop_assert_eq!(kept.iter().map(|(start, end)| end - start).sum::<u64>(), cache.bytes());
                prop_assert!(cache.len() <= limits.count && cache.bytes() <= limits.bytes);
                let mut there: Vec<_> = cache.kept.values().map(|kept| Arc::as_ptr(&kept.region)).collect();
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

    /// Of regions that nobody uses the one goes that was used least recently; one in use never does.
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
