//! Registrations of the application's memory for messages that move without a copy. The cache keeps
//! them from one message to the next if the kernel reports unmapped memory (userfaultfd(2)).
//! Elsewhere each message makes its own.

mod cache;
mod changes;
mod described;
mod mappings;
mod pages;
mod userfault;
mod watcher;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ferrofabric_contracts::config::{RegistrationCache, Settings};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_runtime::fabric::LostKeyReport;
use ferrofabric_system::event_log::LogReader;
use nix::unistd::{SysconfVar, sysconf};

use crate::device::{ForkSafety, fork_safety};
use crate::mr::{Access, Mr};
use crate::pd::{KeptRkey, Pd};
use cache::{Cache, CacheLimits, RegionRequest};
use changes::ApplicationRegions;
use described::{Again, Found, WantedMemory};
use pages::PageNumbers;
use watcher::{Unmapped, Watcher, page_bytes};

/// Whether the kernel reports unmapped memory to this process, as the cache needs it.
///
/// # Errors
///
/// It does not, for this reason.
pub(crate) fn probe_reports() -> Result<()> {
    Watcher::start().map(drop)
}

/// The registrations of a protection domain, for all its endpoints.
#[derive(Debug)]
pub(crate) struct Registry {
    pd: Arc<Pd>,
    keeping: CacheUse,
    /// The cached regions; made for the first message that needs a region.
    cached: OnceLock<Option<Mutex<RegionCache>>>,
    /// The regions that the application has registered.
    described: Arc<ApplicationRegions>,
    /// Whether memory whose pages may change is watched, and what watches it.
    watches: bool,
    watcher: OnceLock<Option<Watcher>>,
    counters: RegistrationCounters,
}

/// Whether registrations are cached, and how many.
#[derive(Clone, Copy, Debug)]
struct CacheUse {
    choice: RegistrationCache,
    limits: CacheLimits,
}

/// An endpoint's side of the registry.
#[derive(Debug)]
pub(crate) struct Registrations {
    registry: Arc<Registry>,
    /// Finds whether memory is gone since the last look, if there is a cache.
    follower: Option<LogReader>,
}

/// A region. It exists as long as an operation uses it, and longer if it is cached.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    mr: Mr,
    /// The numbers of its pages when it was registered, if they are verified.
    pages: Option<PageNumbers>,
}

/// A region that the application has registered, until it is dropped.
#[derive(Debug)]
pub(crate) struct DescribedRegion {
    /// Its place in the table.
    at: MrDesc,
    /// Requests of this side may name it.
    is_pinned: bool,
    registry: Arc<Registry>,
}

impl DescribedRegion {
    /// The descriptor for operations on its memory, if they may name it.
    pub(crate) fn desc(&self) -> MrDesc {
        match self.is_pinned {
            true => self.at,
            false => MrDesc::NONE,
        }
    }

    /// The key for peers. Memory whose pages have changed is registered anew for it; `None` if that
    /// is not possible.
    pub(crate) fn rkey(&self) -> Option<u32> {
        let registry = &self.registry;
        if matches!(registry.described.table.region(self.at), Found::Changed) {
            registry.register_again(self.at, Again::ForPeer);
        }
        self.present_rkey()
    }

    fn present_rkey(&self) -> Option<u32> {
        match self.registry.described.table.region(self.at) {
            Found::Region(region) => Some(region.rkey()),
            Found::Changed | Found::Begun | Found::Nothing => None,
        }
    }

    /// Keeps the key that peers have from other memory.
    pub(crate) fn keep_rkey(&self) -> Option<KeptRkey> {
        let rkey = self.present_rkey()?;
        Some(self.registry.pd.keep_key(rkey))
    }

    /// From now on `report` is called with each key that ends because the pages have changed.
    pub(crate) fn on_lost_key(&self, report: LostKeyReport) {
        self.registry.described.table.set_report(self.at, report);
    }

    /// Registers the memory anew, for its pages may have changed.
    ///
    /// # Errors
    ///
    /// As [`Mr::register`].
    pub(crate) fn refresh(&self) -> Result<()> {
        let described = &self.registry.described;
        while !described.look() {
            std::thread::yield_now();
        }
        // Another thread that registers it may have begun before the pages changed.
        while matches!(described.table.region(self.at), Found::Begun) {
            std::thread::yield_now();
        }
        let lost = described.table.lose(self.at);
        if let Some(ended) = lost.map(|lost| described.end(lost)) {
            ended.report();
        }
        self.registry.register_again(self.at, Again::Refresh);
        match described.table.region(self.at) {
            // Another thread has begun since.
            Found::Region(_) | Found::Begun => Ok(()),
            Found::Changed | Found::Nothing => Err(Error::new(Errno::EFAULT, "refresh", "region")
                .mend("its memory can not be registered: peers reach it by messages")),
        }
    }
}

impl Drop for DescribedRegion {
    fn drop(&mut self) {
        // In a child after fork, the lock may be held by a thread that does not exist there.
        if self.registry.pd.context().is_own() {
            self.registry.described.table.remove(self.at);
        }
    }
}

#[derive(Debug)]
struct RegionCache {
    watcher: Watcher,
    cache: Cache<MemoryRegion>,
    verifies: bool,
}

/// Statistics of registrations and of the cache.
#[derive(Debug, Default)]
struct RegistrationCounters {
    made: AtomicU64,
    found: AtomicU64,
    gone: AtomicU64,
    stale: AtomicU64,
}

impl MemoryRegion {
    /// The key for requests of this side.
    pub(crate) fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        self.mr.rkey()
    }
}

impl Registrations {
    pub(crate) fn new(registry: &Arc<Registry>) -> Self {
        Self {
            registry: Arc::clone(registry),
            follower: None,
        }
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.registry.pd
    }

    /// A region that contains `len` bytes at `addr`, with these rights at least; if a right of
    /// peers is among them, a region of exactly these bytes with exactly these rights.
    ///
    /// # Errors
    ///
    /// As [`Mr::register`].
    ///
    /// # Safety
    ///
    /// As for [`Mr::register`], until the returned region is dropped.
    pub(crate) unsafe fn region(
        &mut self,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Arc<MemoryRegion>> {
        // SAFETY: the caller's promise.
        let region = unsafe { self.registry.region(addr, len, access) };
        if self.follower.is_none() {
            self.follower = self.registry.lock().map(|cached| cached.watcher.follower());
        }
        region
    }

    /// As [`Registrations::region`], of exactly these bytes and rights, and never cached.
    ///
    /// # Errors
    ///
    /// As [`Mr::register`].
    ///
    /// # Safety
    ///
    /// As for [`Mr::register`], until the returned region is dropped.
    pub(crate) unsafe fn region_once(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Arc<MemoryRegion>> {
        // SAFETY: the caller's promise.
        unsafe { self.registry.register_exactly(&exact(addr, len, access)) }
    }

    /// As [`Registry::described`].
    #[inline]
    pub(crate) fn described(
        &self,
        desc: MrDesc,
        buf: IoBuf,
        access: Access,
    ) -> Option<Arc<MemoryRegion>> {
        self.registry.described(desc, buf, access)
    }

    /// Removes a region from the cache: a peer may still write to it without being allowed to.
    pub(crate) fn forget(&self, region: &Arc<MemoryRegion>) {
        if let Some(mut cached) = self.registry.lock() {
            cached.cache.forget(region);
        }
    }

    /// Ends registrations of memory that is gone, so that its pages are free.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        if self.follower.as_ref().is_some_and(LogReader::is_behind) {
            self.forget_gone();
        }
        self.end_changed();
    }

    /// Ends registrations of the application whose pages have changed. While a report is being
    /// logged, this waits for it: the thread that logs it waits for nobody.
    #[inline]
    pub(crate) fn end_changed(&self) {
        while !self.registry.described.look() {
            std::thread::yield_now();
        }
    }

    #[cold]
    fn forget_gone(&mut self) {
        if let (Some(follower), Some(mut cached)) = (&mut self.follower, self.registry.lock()) {
            // If an entry is just being logged, the next look finds it.
            let _ = follower.read(|_| {});
            self.registry.catch_up(&mut cached);
        }
    }

    /// Reports the statistics of registrations and of the cache, by name.
    pub(crate) fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let RegistrationCounters {
            made,
            found,
            gone,
            stale,
        } = &self.registry.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        report("verbs_regions_made", count(made));
        report("verbs_regions_found", count(found));
        report("verbs_regions_gone", count(gone));
        report("verbs_regions_stale", count(stale));
        report("verbs_regions_changed", self.registry.described.changed());
        let cached = self.registry.lock();
        let (regions, bytes) =
            cached.map_or((0, 0), |cached| (cached.cache.len(), cached.cache.bytes()));
        report("verbs_regions_kept", regions as u64);
        report("verbs_region_bytes_kept", bytes);
    }
}

impl Registry {
    /// The protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Makes the registry of this protection domain. It has a cache if the settings and the kernel
    /// allow it.
    ///
    /// # Errors
    ///
    /// The settings require a cache, and the kernel does not allow it.
    pub(crate) fn new(pd: &Arc<Pd>, settings: &Settings) -> Result<Self> {
        let this = Self {
            pd: Arc::clone(pd),
            keeping: CacheUse {
                choice: settings.mr_cache,
                limits: CacheLimits {
                    count: settings.mr_cache_count as usize,
                    bytes: settings.mr_cache_bytes.0.unwrap_or_else(fair_share),
                },
            },
            cached: OnceLock::new(),
            described: Arc::new(ApplicationRegions::new(pd)),
            watches: settings.mr_watch,
            watcher: OnceLock::new(),
            counters: RegistrationCounters::default(),
        };
        if matches!(
            settings.mr_cache,
            RegistrationCache::On | RegistrationCache::Verify
        ) {
            let cached = this.keeping.begin()?;
            this.cached.get_or_init(|| Some(cached));
        }
        Ok(this)
    }

    /// Registers memory for the application. `None`: the kernel does not report changes of pages that
    /// may change, so no device is to keep them.
    ///
    /// # Errors
    ///
    /// As [`Mr::register`].
    ///
    /// # Safety
    ///
    /// As [`Mr::register`], until the region is dropped, except that pages which may change need not
    /// stay.
    pub(crate) unsafe fn describe(
        self: &Arc<Self>,
        buf: IoBuf,
        access: Access,
        may_change: bool,
    ) -> Result<Option<DescribedRegion>> {
        let wanted = WantedMemory {
            buf,
            access,
            may_change: may_change && self.watches,
        };
        let at = self.described.table.enter(wanted);
        // SAFETY: the caller's promise.
        match unsafe { self.register_described(at, &wanted) } {
            Ok(Some(is_pinned)) => Ok(Some(DescribedRegion {
                at,
                is_pinned,
                registry: Arc::clone(self),
            })),
            other => {
                self.described.table.remove(at);
                other.map(|_| None)
            }
        }
    }

    /// Registers memory of the table. Returns whether it is pinned; `None` as
    /// [`describe`](Self::describe).
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn register_described(&self, at: MrDesc, wanted: &WantedMemory) -> Result<Option<bool>> {
        let WantedMemory {
            buf,
            access,
            may_change,
        } = *wanted;
        // Watched before it is registered, so that no change stays unnoticed.
        let stays = !may_change || self.watch(buf);
        // SAFETY: the caller's promise.
        let pinned = unsafe { Mr::register(&self.pd, buf.as_mut_ptr(), buf.len, access) };
        let is_unreported = pinned.is_ok() && !stays;
        let (mr, is_pinned) = match pinned {
            Ok(mr) if stays => (mr, true),
            other => {
                let why = match other {
                    Ok(_) => Error::new(Errno::EFAULT, "watch", "memory"),
                    Err(error) => error,
                };
                // SAFETY: as above.
                match unsafe { self.register_unpinned(buf, access, why) } {
                    Ok(mr) => (mr, false),
                    Err(_) if is_unreported => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        let region = Arc::new(MemoryRegion { mr, pages: None });
        // If its pages have changed meanwhile, the next use registers it.
        self.described.table.end(at, region, is_pinned);
        Ok(Some(is_pinned))
    }

    /// Registers memory of the table another time, if it is not registered and may be.
    #[cold]
    fn register_again(&self, at: MrDesc, again: Again) {
        let Some(wanted) = self.described.table.begin_again(at, again) else {
            return;
        };
        // SAFETY: the memory is the application's until it closes the region, and what it has
        // unmapped of it is refused.
        let made = unsafe { self.register_described(at, &wanted) };
        if !matches!(made, Ok(Some(_))) {
            self.described.table.refuse(at);
            tracing::debug!("memory whose pages have changed is not registered: {made:?}");
        }
    }

    /// Watches memory whose pages may change. Returns whether the kernel reports it.
    fn watch(&self, buf: IoBuf) -> bool {
        let watcher = self.watcher.get_or_init(|| {
            let watcher = Watcher::start().and_then(|watcher| {
                self.described.follow(&watcher);
                let listener: Weak<ApplicationRegions> = Arc::downgrade(&self.described);
                watcher.inform(listener)?;
                Ok(watcher)
            });
            watcher
                .map_err(|error| tracing::warn!("devices of peers reach no region: {error}"))
                .ok()
        });
        let start = buf.addr as u64;
        let range = start..start.saturating_add(buf.len as u64);
        (watcher.as_ref()).is_some_and(|watcher| watcher.watch_shared(&range))
    }

    /// Registers memory that can not be pinned, for peers alone, where the device pages it in on
    /// demand: more than may be locked, memory that is not there yet, or memory whose pages change
    /// without a report. This side's requests do not name it, for a device may do less on its own
    /// demand than on that of peers.
    ///
    /// # Errors
    ///
    /// The error given, where this does not help.
    ///
    /// # Safety
    ///
    /// As [`describe`](Self::describe).
    unsafe fn register_unpinned(&self, buf: IoBuf, access: Access, why: Error) -> Result<Mr> {
        let helps = matches!(why.errno(), Errno::ENOMEM | Errno::EAGAIN | Errno::EFAULT);
        let has_paging = self.pd.context().limits().on_demand_paging;
        if !(helps && has_paging && access.intersects(Access::OF_PEERS)) {
            return Err(why);
        }
        let access = access | Access::ON_DEMAND;
        // SAFETY: the caller's promise.
        unsafe { Mr::register(&self.pd, buf.as_mut_ptr(), buf.len, access) }.map_err(|_| why)
    }

    /// The region of a descriptor, if the descriptor counts for that buffer and an operation that
    /// needs these rights. The region stays registered as long as the returned value exists, even
    /// if the application closes it.
    #[inline]
    pub(crate) fn described(
        &self,
        desc: MrDesc,
        buf: IoBuf,
        access: Access,
    ) -> Option<Arc<MemoryRegion>> {
        if desc.is_none() || !self.described.look() {
            return None;
        }
        match self.described.table.get(desc, buf, access) {
            Found::Region(region) => Some(region),
            Found::Changed => self.described_again(desc, buf, access),
            Found::Begun | Found::Nothing => None,
        }
    }

    #[cold]
    fn described_again(
        &self,
        desc: MrDesc,
        buf: IoBuf,
        access: Access,
    ) -> Option<Arc<MemoryRegion>> {
        self.register_again(desc, Again::ForRequest);
        match self.described.table.get(desc, buf, access) {
            Found::Region(region) => Some(region),
            Found::Changed | Found::Begun | Found::Nothing => None,
        }
    }

    /// # Safety
    ///
    /// As [`Registrations::region`].
    unsafe fn region(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Arc<MemoryRegion>> {
        self.cached
            .get_or_init(|| self.keeping.begin_if_possible(&self.pd));
        let exact = exact(addr, len, access);
        if let Some(mut cached) = self.lock() {
            // SAFETY: the caller's promise.
            if let Some(region) = unsafe { self.cached_region(&mut cached, &exact) } {
                return Ok(region);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.register_exactly(&exact) }
    }

    /// # Safety
    ///
    /// As [`Mr::register`].
    unsafe fn register_exactly(&self, exact: &RegionRequest) -> Result<Arc<MemoryRegion>> {
        // SAFETY: the caller's promise.
        unsafe { self.register(exact, false) }.or_else(|error| {
            match (error.errno(), self.lock()) {
                (Errno::ENOMEM | Errno::EAGAIN, Some(mut cached)) => {
                    // The cached regions count towards the same limit.
                    cached.cache.give_up_idle();
                    // SAFETY: the caller's promise.
                    unsafe { self.register(exact, false) }
                }
                _ => Err(error),
            }
        })
    }

    /// A region that is in the cache, or is from now on; `None` if that is impossible.
    ///
    /// # Safety
    ///
    /// As [`region`](Self::region).
    unsafe fn cached_region(
        &self,
        cached: &mut RegionCache,
        exact: &RegionRequest,
    ) -> Option<Arc<MemoryRegion>> {
        if !self.catch_up(cached) {
            return None;
        }
        if let Some(region) = cached.cache.find(&exact.range, exact.access) {
            let region = Arc::clone(region);
            if self.is_current(&region) {
                self.counters.found.fetch_add(1, Ordering::Relaxed);
                return Some(region);
            }
            cached.cache.forget(&region);
        }
        let wanted = cached.cache.wanted(exact.range.clone(), exact.access)?;
        // Watched before it is registered: if it is unmapped in between, the next look finds that.
        // Memory whose pages another process can take away unnoticed is not watched, and so not
        // cached.
        if !cached.watcher.watch(wanted.range.clone()) {
            return None;
        }
        // SAFETY: by the contract the caller's range is mapped. The cached memory around it was
        // mapped at the last look; if it is unmapped now, the device keeps its pages, which nobody
        // else has, and the cache removes the region at the next look.
        let region = unsafe { self.register(&wanted, cached.verifies) }.ok()?;
        cached.cache.keep(wanted, Arc::clone(&region));
        Some(region)
    }

    /// # Safety
    ///
    /// As [`Mr::register`].
    unsafe fn register(&self, wanted: &RegionRequest, verifies: bool) -> Result<Arc<MemoryRegion>> {
        let Range { start, end } = wanted.range;
        let (addr, len) = (start as *mut u8, (end - start) as usize);
        // SAFETY: the caller's promise.
        let mr = unsafe { Mr::register(&self.pd, addr, len, wanted.access) }?;
        self.counters.made.fetch_add(1, Ordering::Relaxed);
        let pages = verifies.then(|| PageNumbers::of(wanted.range.clone()));
        Ok(Arc::new(MemoryRegion { mr, pages }))
    }

    fn lock(&self) -> Option<MutexGuard<'_, RegionCache>> {
        let cached = self.cached.get()?.as_ref()?;
        Some(cached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes the regions whose memory is gone. Returns `false` while some memory is being
    /// unmapped and the log does not say which.
    fn catch_up(&self, cached: &mut RegionCache) -> bool {
        let RegionCache { watcher, cache, .. } = cached;
        if !watcher.is_behind() {
            return true;
        }
        let before = cache.len();
        let complete = watcher.catch_up(|gone| match gone {
            Unmapped::Range(range) | Unmapped::Soon(range) => cache.forget_range(&range),
            Unmapped::Much => cache.clear(),
        });
        let gone = before - cache.len();
        self.counters.gone.fetch_add(gone as u64, Ordering::Relaxed);
        complete
    }

    /// Whether a region still has the pages that were registered, if that is verified.
    fn is_current(&self, region: &MemoryRegion) -> bool {
        let current = region.pages.as_ref().is_none_or(PageNumbers::are_there);
        if !current {
            self.counters.stale.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                "{} bytes at {:p} were unmapped without a report; set FERRO_MR_CACHE=off and report this",
                region.mr.len(),
                region.mr.addr()
            );
        }
        current
    }
}

fn exact(addr: *mut u8, len: usize, access: Access) -> RegionRequest {
    let start = addr as u64;
    RegionRequest {
        range: start..start.saturating_add(len as u64),
        access,
    }
}

impl CacheUse {
    fn begin(&self) -> Result<Mutex<RegionCache>> {
        Ok(Mutex::new(RegionCache {
            watcher: Watcher::start()?,
            cache: Cache::new(self.limits),
            verifies: self.choice == RegistrationCache::Verify,
        }))
    }

    fn begin_if_possible(&self, pd: &Pd) -> Option<Mutex<RegionCache>> {
        // A cached region would lose its memory in a fork just as a region in use does.
        let is_allowed = self.choice != RegistrationCache::Off
            && fork_safety(&pd.context().verbs()) == ForkSafety::CopyOnFork;
        let cached = is_allowed.then(|| self.begin())?;
        cached
            .map_err(|error| {
                tracing::info!("memory is registered anew for each large message: {error}");
            })
            .ok()
    }
}

/// The memory that a process may keep registered if the machine runs one such process for each
/// processor: half of a process's share of the machine's memory.
fn fair_share() -> u64 {
    let ask = |what| {
        sysconf(what)
            .ok()
            .flatten()
            .and_then(|n| u64::try_from(n).ok())
    };
    let pages = ask(SysconfVar::_PHYS_PAGES).unwrap_or(0);
    let processors = ask(SysconfVar::_NPROCESSORS_ONLN).unwrap_or(1).max(1);
    (pages * page_bytes() / processors / 2).max(64 << 20)
}
