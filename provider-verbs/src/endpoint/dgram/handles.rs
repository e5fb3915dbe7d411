//! The address handles of an endpoint: one for each path, made by threads of their own when a path
//! is first used.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::pending_flag::PendingFlag;
use ferrofabric_system::wait::WaitSet;

use crate::ah::{Ah, Path};
use crate::connect::{AhCache, Outcome};
use crate::pd::Pd;

/// The end of the resolution of a path.
pub(super) enum News {
    /// It has a handle.
    Ready(Path),
    /// It has none, and will be tried anew by the next who asks.
    Failed(Path, Error),
}

/// The handles, and a descriptor that wakes whoever waits for one.
pub(super) struct Handles {
    // The endpoint keeps the sends that wait for a path. The cache keeps only the path itself.
    cache: AhCache<Path>,
    /// Paths of peers that were removed.
    retired: Vec<Path>,
    bell: Arc<Bell>,
}

struct Bell {
    rung: PendingFlag,
    wake: EventFd,
}

impl Handles {
    /// No handles yet.
    ///
    /// # Errors
    ///
    /// When a descriptor can not be had.
    pub(super) fn open(pd: &Arc<Pd>, wait: &WaitSet) -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::new(Errno(e as i32), "create", "event descriptor"))?;
        wait.add(wake.as_fd())?;
        let bell = Arc::new(Bell {
            rung: PendingFlag::new(),
            wake,
        });
        let ring = {
            let bell = bell.clone();
            Arc::new(move || {
                bell.rung.raise();
                // Full is rung, too.
                let _ = bell.wake.write(1);
            })
        };
        Ok(Self {
            cache: AhCache::new(pd, ring),
            retired: Vec::new(),
            bell,
        })
    }

    /// The handle of a path; `None`: it is being made, and [`Handles::news`] will tell.
    pub(super) fn of(&mut self, path: Path) -> Option<Arc<Ah>> {
        self.cache.handle(path)
    }

    /// Whether [`Handles::news`] has something. Costs a load.
    #[inline]
    pub(super) fn have_news(&self) -> bool {
        self.bell.rung.is_raised()
    }

    /// The paths whose resolution has ended since the last call.
    pub(super) fn news(&mut self) -> Vec<News> {
        // First: what comes in between raises it again.
        self.bell.rung.lower();
        let _ = self.bell.wake.read();
        let mut news = Vec::new();
        while let Some((path, outcome)) = self.cache.resolved() {
            news.push(match outcome {
                Outcome::Ready(..) => News::Ready(path),
                Outcome::Failed(error, _) => News::Failed(path, error),
            });
        }
        news
    }

    /// A peer at the end of this path was removed: its handle may go when nothing is under way
    /// through it.
    pub(super) fn retire(&mut self, path: Path) {
        self.retired.push(path);
    }

    /// Whether [`Handles::release_retired`] has something to do.
    #[inline]
    pub(super) fn have_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Nothing is under way: lets the handles go that no peer has any more.
    #[cold]
    pub(super) fn release_retired(&mut self) {
        for path in self.retired.drain(..) {
            self.cache.release_unused(&path);
        }
    }

    /// Handles that are there.
    pub(super) fn len(&self) -> usize {
        self.cache.ready()
    }
}
