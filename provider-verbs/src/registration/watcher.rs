//! Finds memory of this process that is gone: unmapped, moved elsewhere, or its pages given up
//! (`MADV_DONTNEED`).
//!
//! A thread reads the events of userfaultfd(2). The kernel lets a thread that unmaps watched memory
//! go on once the event is *read*. So the reading thread announces an entry of its log before it
//! reads, and a look meanwhile finds that the log is incomplete. The reading thread takes no lock
//! and allocates nothing: an allocator may hold a lock of its own while it unmaps, and wait for the
//! reading thread.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::event_log::{LogEvent, LogReader, LogWriter, event_log};
use ferrofabric_system::forked::Birth;
use ferrofabric_system::threads;
use memmap2::{MmapMut, UncheckedAdvice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{SysconfVar, sysconf};

use super::mappings::Mappings;
use super::userfault::Userfault;

/// Huge pages are watched whole.
const HUGE_PAGES: [u64; 2] = [2 << 20, 1 << 30];

/// In the start of an entry: see [`UnmapEvent::goes_later`](super::userfault::UnmapEvent).
const GOES_LATER: u64 = 1;

/// The monitor of this process, while there are watchers.
static RUNNING: Mutex<Weak<Monitor>> = Mutex::new(Weak::new());

/// The state that watchers share: the thread and its log.
#[derive(Debug)]
struct Monitor {
    source: Arc<EventSource>,
    /// A reader at the beginning of the log; watchers start from it.
    follower: LogReader,
    thread: Option<JoinHandle<()>>,
    listening: Mutex<Listening>,
    /// The ranges watched since the start, from beginning to end, joined.
    watched: Mutex<BTreeMap<u64, u64>>,
    page: u64,
    mappings: Mappings,
    /// The process whose memory it is.
    birth: Birth,
}

#[derive(Debug)]
struct EventSource {
    userfault: Userfault,
    stop: EventFd,
    /// Raised for each report, while somebody listens.
    reported: EventFd,
    has_listeners: AtomicBool,
}

/// Those that want to be called after each report, by a thread that may wait and allocate.
#[derive(Debug, Default)]
struct Listening {
    listeners: Arc<Mutex<Vec<Weak<dyn ReportListener>>>>,
    thread: Option<JoinHandle<()>>,
}

/// A listener.
pub(super) trait ReportListener: Debug + Send + Sync {
    /// Something is in the log.
    fn reported(&self);
}

/// Memory that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unmapped {
    /// This range.
    Range(Range<u64>),
    /// This range, or in a moment: the thread that gives it up may not have done it yet.
    Soon(Range<u64>),
    /// So much memory that the log has no ranges any more.
    Much,
}

/// A user of the log: it watches memory and finds out which of it is gone.
#[derive(Debug)]
pub(super) struct Watcher {
    /// Present until the end.
    monitor: Option<Arc<Monitor>>,
    follower: LogReader,
}

impl Watcher {
    /// Starts a watcher, after a probe has shown that the kernel reports unmapped memory here.
    ///
    /// # Errors
    ///
    /// The kernel does not report it; the error says what is missing.
    pub(super) fn start() -> Result<Self> {
        let mut running = running();
        // A monitor of the parent process watches the parent's memory.
        let ours = |monitor: &Arc<Monitor>| monitor.birth.is_this_process();
        let monitor = match running.upgrade().filter(ours) {
            Some(monitor) => monitor,
            None => {
                let monitor = Monitor::start()?;
                monitor.prove()?;
                Arc::new(monitor)
            }
        };
        *running = Arc::downgrade(&monitor);
        Ok(Self {
            follower: monitor.follower(),
            monitor: Some(monitor),
        })
    }

    /// Calls a listener after each report from now on, as long as it is there.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    pub(super) fn inform(&self, listener: Weak<dyn ReportListener>) -> Result<()> {
        match &self.monitor {
            Some(monitor) => monitor.inform(listener),
            None => Ok(()),
        }
    }

    /// Watches memory, shared or not, until this process unmaps it or gives its pages up. What other
    /// processes do with a file of which they have a descriptor is not reported. Returns `false` if
    /// that is not possible: the range is not mapped, the kernel does not report a file, or another
    /// process watches it.
    pub(super) fn watch_shared(&self, range: &Range<u64>) -> bool {
        (self.monitor.as_ref()).is_some_and(|monitor| monitor.watch_shared(range))
    }

    /// Watches memory until it is unmapped. Returns `false` if that is not possible: the range is
    /// not mapped, belongs to a file, is shared, or another process watches it.
    pub(super) fn watch(&self, range: Range<u64>) -> bool {
        (self.monitor.as_ref()).is_some_and(|monitor| monitor.watch(range))
    }

    /// A reader that finds out only whether some memory is gone.
    pub(super) fn follower(&self) -> LogReader {
        self.follower.clone()
    }

    /// Whether memory may be gone that [`catch_up`](Self::catch_up) has not reported yet.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.follower.is_behind()
    }

    /// Calls `report` for each range that is gone since the last call. Returns `false` and calls
    /// nothing while an entry is being logged.
    #[must_use]
    pub(super) fn catch_up(&mut self, report: impl FnMut(Unmapped)) -> bool {
        catch_up(&mut self.follower, report)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The next monitor starts when this one has ended: on some kernels this one's end would end
        // the watches of the next one, too.
        let _running = running();
        self.monitor = None;
    }
}

fn running() -> MutexGuard<'static, Weak<Monitor>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`Watcher::catch_up`].
#[must_use]
pub(super) fn catch_up(follower: &mut LogReader, mut report: impl FnMut(Unmapped)) -> bool {
    follower.read(|logged| match logged {
        // Ranges begin with a page.
        LogEvent::Entry([start, end]) if start & GOES_LATER != 0 => {
            report(Unmapped::Soon(start & !GOES_LATER..end));
        }
        LogEvent::Entry([start, end]) => report(Unmapped::Range(start..end)),
        LogEvent::Missed => report(Unmapped::Much),
    })
}

impl Monitor {
    fn start() -> Result<Self> {
        let cannot = |error: &dyn std::fmt::Display| {
            Error::new(Errno::ENOSYS, "watch", "memory that is unmapped").mend(format!(
                "{error}: userfaultfd(2) or /dev/userfaultfd has to be allowed"
            ))
        };
        let source = Arc::new(EventSource {
            userfault: Userfault::open().map_err(|error| cannot(&error))?,
            stop: EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| cannot(&error))?,
            reported: EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| cannot(&error))?,
            has_listeners: AtomicBool::new(false),
        });
        let mappings = Mappings::open().map_err(|error| cannot(&error))?;
        let (writer, follower) = event_log();
        let theirs = Arc::clone(&source);
        let named = std::thread::Builder::new().name("ferro-unmapped".to_owned());
        let thread = threads::spawn(named, move || follow(&theirs, writer))
            .map_err(|error| cannot(&error))?;
        Ok(Self {
            source,
            follower,
            thread: Some(thread),
            listening: Mutex::default(),
            watched: Mutex::default(),
            page: page_bytes(),
            mappings,
            birth: Birth::here(),
        })
    }

    fn inform(&self, listener: Weak<dyn ReportListener>) -> Result<()> {
        let mut listening = self
            .listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if listening.thread.is_none() {
            let (source, listeners) = (Arc::clone(&self.source), Arc::clone(&listening.listeners));
            let named = std::thread::Builder::new().name("ferro-changes".to_owned());
            let thread = threads::spawn(named, move || call_listeners(&source, &listeners))
                .map_err(|error| Error::from_io(&error, "start", "a thread for changed memory"))?;
            listening.thread = Some(thread);
        }
        let mut listeners = (listening.listeners.lock()).unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|one| one.strong_count() != 0);
        listeners.push(listener);
        self.source.has_listeners.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// A reader that starts at the present end of the log.
    fn follower(&self) -> LogReader {
        let mut follower = self.follower.clone();
        // An entry that is being logged now is read later, and does no harm.
        let _ = follower.read(|_| {});
        follower
    }

    fn watch(&self, range: Range<u64>) -> bool {
        // Buffers in shared memory come again and again: watching them each time would cost more
        // than registering them.
        if self.mappings.has_quick_answer() && !self.mappings.are_private(&range) {
            return false;
        }
        self.watch_pages(&range, |pages| self.mappings.are_private(pages))
    }

    fn watch_shared(&self, range: &Range<u64>) -> bool {
        // Of a range with holes, larger pages would be those of others.
        self.mappings.are_reported(range)
            && self.watch_pages(range, |pages| self.mappings.are_reported(pages))
    }

    /// Watches the pages of a range, if they are then what `are_fit` wants.
    fn watch_pages(&self, range: &Range<u64>, are_fit: impl Fn(&Range<u64>) -> bool) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        [self.page].into_iter().chain(HUGE_PAGES).any(|page| {
            let Some(end) = range.end.checked_next_multiple_of(page) else {
                return false;
            };
            let pages = range.start / page * page..end;
            if self.source.userfault.watch(pages.clone()).is_err() {
                return false;
            }
            // The mappings are read once the range is watched: if other memory replaces it, the
            // kernel reports that. What comes into a hole later is not watched.
            let is_fit = are_fit(&pages);
            match is_fit {
                true => note(&mut watched, pages),
                // The part of the range that could be watched is not watched either.
                false => self.unwatch(&watched, &pages),
            }
            is_fit
        })
    }

    /// Ends the watch of pages that must not be cached, except those that were watched before.
    fn unwatch(&self, watched: &BTreeMap<u64, u64>, pages: &Range<u64>) {
        let mut at = pages.start;
        let before = watched.range(..pages.end);
        for (&start, &end) in before.filter(|(_, end)| **end > pages.start) {
            if at < start {
                let _ = self.source.userfault.unwatch(at..start);
            }
            at = at.max(end);
        }
        if at < pages.end {
            let _ = self.source.userfault.unwatch(at..pages.end);
        }
    }

    /// Unmaps memory in two ways and checks that the kernel reports each.
    fn prove(&self) -> Result<()> {
        let page = self.page as usize;
        let unproved = |what: &'static str| {
            Error::new(Errno::ENOSYS, "watch", "memory that is unmapped")
                .mend(format!("the kernel did not report {what}"))
        };
        let mut follower = self.follower();
        let mut memory =
            MmapMut::map_anon(4 * page).map_err(|error| Error::from_io(&error, "map", "memory"))?;
        memory.fill(1);
        let at = memory.as_ptr() as u64;
        if !self.watch(at..at + memory.len() as u64) {
            return Err(unproved("any memory"));
        }
        // SAFETY: the page is this function's own, and nothing refers to its contents.
        unsafe { memory.unchecked_advise_range(UncheckedAdvice::DontNeed, page, page) }
            .map_err(|error| Error::from_io(&error, "give up", "memory"))?;
        let given_up = at + self.page;
        if !is_reported(&mut follower, &(given_up..given_up + self.page)) {
            return Err(unproved("pages that were given up"));
        }
        drop(memory);
        match is_reported(&mut follower, &(at..at + self.page)) {
            true => Ok(()),
            false => Err(unproved("pages that were unmapped")),
        }
    }

    /// Ends the kernel's reports: a child of this process may keep the descriptor open, and a
    /// thread that unmaps memory would wait for a read of its event.
    fn unwatch_all(&self) {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        // Mapping by mapping: the kernel rejects a whole range if it contains a file.
        for mapping in maps.lines().filter_map(mapping) {
            for (&start, &end) in watched.range(..mapping.end) {
                let (start, end) = (start.max(mapping.start), end.min(mapping.end));
                if start < end {
                    // The present mapping may never have been watched.
                    let _ = self.source.userfault.unwatch(start..end);
                }
            }
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // A child's copy has no thread, and its descriptor watches the parent's memory.
        if !self.birth.is_this_process() {
            std::mem::forget(self.thread.take());
            std::mem::forget(self.listening.get_mut().map(|it| it.thread.take()));
            return;
        }
        self.unwatch_all();
        // The counter is far from full.
        let _ = self.source.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let listening = self
            .listening
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = listening.thread.take() {
            // A listener may have ended the last watcher.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Whether the range is gone since the last time.
fn is_reported(follower: &mut LogReader, range: &Range<u64>) -> bool {
    let mut found = false;
    // The thread is between reading and logging for a moment only.
    while !catch_up(follower, |gone| match gone {
        Unmapped::Range(gone) | Unmapped::Soon(gone) => {
            found |= gone.start <= range.start && range.end <= gone.end
        }
        Unmapped::Much => found = true,
    }) {
        std::thread::yield_now();
    }
    found
}

fn note(watched: &mut BTreeMap<u64, u64>, pages: Range<u64>) {
    let (mut start, mut end) = (pages.start, pages.end);
    while let Some((&other, &other_end)) = watched.range(..=end).next_back() {
        if other_end < start {
            break;
        }
        watched.remove(&other);
        start = start.min(other);
        end = end.max(other_end);
    }
    watched.insert(start, end);
}

/// Logs unmapped memory until the stop signal.
fn follow(source: &EventSource, mut writer: LogWriter) {
    loop {
        let mut ready = [
            PollFd::new(source.userfault.as_fd(), PollFlags::POLLIN),
            PollFd::new(source.stop.as_fd(), PollFlags::POLLIN),
        ];
        // An interrupted poll finds nothing to read.
        let _ = poll(&mut ready, PollTimeout::NONE);
        let mut listing = writer.begin();
        source.userfault.read(|gone| {
            if let Some(to) = gone.moved_to {
                // Moved memory stays watched at its new address, where no watcher needs it. One that
                // has begun to watch it there since finds it in the log.
                let end = to.saturating_add(gone.range.end - gone.range.start);
                let _ = source.userfault.unwatch(to..end);
                listing.push([to, end]);
            }
            let mark = if gone.goes_later { GOES_LATER } else { 0 };
            listing.push([gone.range.start | mark, gone.range.end]);
        });
        drop(listing);
        if source.has_listeners.load(Ordering::SeqCst) {
            // The counter is far from full, and its reader takes all of it.
            let _ = source.reported.write(1);
        }
        if ready[1].any() == Some(true) {
            return;
        }
    }
}

/// Calls the listeners after each report, until the stop signal.
fn call_listeners(source: &EventSource, listeners: &Mutex<Vec<Weak<dyn ReportListener>>>) {
    loop {
        let mut ready = [
            PollFd::new(source.reported.as_fd(), PollFlags::POLLIN),
            PollFd::new(source.stop.as_fd(), PollFlags::POLLIN),
        ];
        // An interrupted poll finds nothing to call.
        let _ = poll(&mut ready, PollTimeout::NONE);
        if ready[1].any() == Some(true) {
            return;
        }
        if ready[0].any() == Some(true) {
            let _ = source.reported.read();
            let present: Vec<_> = {
                let listeners = listeners.lock().unwrap_or_else(PoisonError::into_inner);
                listeners.iter().filter_map(Weak::upgrade).collect()
            };
            present.iter().for_each(|listener| listener.reported());
        }
    }
}

fn mapping(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

/// Bytes of a page.
pub(super) fn page_bytes() -> u64 {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    bytes
        .and_then(|bytes| u64::try_from(bytes).ok())
        .unwrap_or(4096)
}

#[cfg(test)]
mod tests;
