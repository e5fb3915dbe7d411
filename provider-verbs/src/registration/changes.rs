//! Memory that the application has registered, and whose pages may change while it is.
//!
//! A device keeps the pages that memory had when it was registered. Where they are unmapped or given
//! up, the registration ends as soon as the kernel's report is read, by the next call into the
//! domain or by the thread that waits for reports, whichever comes first. From then on the device
//! refuses requests of peers by the old key, and the memory is registered anew when somebody wants
//! to use it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferrofabric_runtime::fabric::LostKeyReport;
use ferrofabric_system::event_log::LogReader;

use super::described::{Described, LostRegion};
use super::watcher::{ReportListener, Watcher, catch_up};
use crate::pd::{KeptRkey, Pd};

/// The regions of a protection domain that the application has registered.
#[derive(Debug)]
pub(super) struct ApplicationRegions {
    pub(super) table: Described,
    pd: Arc<Pd>,
    /// The reports, since memory is watched.
    reports: OnceLock<ReportsRead>,
    /// Registrations that have ended because their pages changed.
    changed: AtomicU64,
}

/// A key that has ended, and whom to inform of that.
pub(super) struct EndedKey {
    report: Option<Arc<LostKeyReport>>,
    key: KeptRkey,
}

impl EndedKey {
    /// Informs. No lock of this module is held: it may end the last use of a domain.
    pub(super) fn report(self) {
        if let Some(report) = self.report {
            report(Box::new(self.key));
        }
    }
}

#[derive(Debug)]
struct ReportsRead {
    /// A reader that stays at the start.
    log: LogReader,
    reader: Mutex<LogReader>,
    /// How far it has read, and acted on what it read.
    read_to: AtomicU64,
}

impl ApplicationRegions {
    pub(super) fn new(pd: &Arc<Pd>) -> Self {
        Self {
            table: Described::default(),
            pd: Arc::clone(pd),
            reports: OnceLock::new(),
            changed: AtomicU64::new(0),
        }
    }

    /// From now on the reports of this watcher count.
    pub(super) fn follow(&self, watcher: &Watcher) {
        let log = watcher.follower();
        self.reports.get_or_init(|| ReportsRead {
            read_to: AtomicU64::new(log.position()),
            reader: Mutex::new(log.clone()),
            log,
        });
    }

    /// Registrations that have ended because their pages changed.
    pub(super) fn changed(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// Acts on the reports since the last call. Returns `false` while one comes whose memory is not
    /// known yet.
    #[inline]
    pub(super) fn look(&self) -> bool {
        match self.reports.get() {
            Some(reports) if reports.are_behind() => self.act(reports),
            _ => true,
        }
    }

    #[cold]
    fn act(&self, reports: &ReportsRead) -> bool {
        let mut reader = reports
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        if !catch_up(&mut reader, |range| gone.push(range)) {
            return false;
        }
        let lost = self.table.lose_changed(&gone);
        let ended: Vec<_> = lost.into_iter().map(|lost| self.end(lost)).collect();
        // From now on others rely on it that nothing is registered of what is gone.
        reports.read_to.store(reader.position(), Ordering::Release);
        drop(reader);
        ended.into_iter().for_each(EndedKey::report);
        true
    }

    /// Ends a registration whose pages have changed.
    #[must_use]
    pub(super) fn end(&self, lost: LostRegion) -> EndedKey {
        self.changed.fetch_add(1, Ordering::Relaxed);
        EndedKey {
            report: lost.report,
            // Before the device may give it to other memory.
            key: self.pd.keep_key(lost.region.rkey()),
        }
    }
}

impl ReportsRead {
    #[inline]
    fn are_behind(&self) -> bool {
        let read_to = self.read_to.load(Ordering::Acquire);
        self.log.has_entries_since(read_to)
    }
}

impl ReportListener for ApplicationRegions {
    fn reported(&self) {
        // An entry that is being logged is followed by another call.
        let _ = self.look();
    }
}
