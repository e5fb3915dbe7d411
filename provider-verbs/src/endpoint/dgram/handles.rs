//! The address handles of an endpoint, one for each path. Threads of their own make the handle when
//! a path is first used.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::pending_flag::PendingFlag;
use ferrofabric_system::wait::WaitSet;

use super::device_events::DeviceEvents;
use crate::ah::{Ah, PortPath};
use crate::connect::{AhCache, PathOutcome};
use crate::device::EventReader;
use crate::port::LocalPort;
use crate::qp::UdQp;

/// The end of the resolution of a path.
pub(super) enum PathResult {
    /// The path has a handle.
    Ready(PortPath),
    /// The path has no handle; the next send to it resolves it anew.
    Failed(PortPath, Error),
}

/// The handles, and a descriptor that wakes a thread that waits for one.
pub(super) struct Handles {
    // The endpoint keeps the sends that wait for a path. The cache keeps only the path itself.
    cache: AhCache<PortPath>,
    /// Paths of peers that were removed.
    retired: Vec<PortPath>,
    bell: Arc<Bell>,
    /// The events of the device, which ring the same bell.
    pub(super) events: DeviceEvents,
}

struct Bell {
    rung: PendingFlag,
    wake: EventFd,
}

impl Bell {
    fn ring(&self) {
        self.rung.raise();
        // A full counter wakes, too.
        let _ = self.wake.write(1);
    }
}

impl Handles {
    /// No handles yet, for a queue pair on this port.
    ///
    /// # Errors
    ///
    /// The system has no descriptor left.
    pub(super) fn open(
        qp: &UdQp,
        port: LocalPort,
        reader: &Arc<EventReader>,
        wait: &WaitSet,
    ) -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::new(Errno(e as i32), "create", "event descriptor"))?;
        wait.add(wake.as_fd())?;
        let bell = Arc::new(Bell {
            rung: PendingFlag::new(),
            wake,
        });
        let ring = {
            let bell = bell.clone();
            move || bell.ring()
        };
        let events = DeviceEvents::subscribe(reader, qp, port.number, ring.clone());
        Ok(Self {
            cache: AhCache::new(qp.pd(), port, Arc::new(ring)),
            retired: Vec::new(),
            bell,
            events,
        })
    }

    /// The handle of a path. `None`: a resolver makes it, and [`Handles::results`] reports it
    /// later.
    pub(super) fn of(&mut self, path: PortPath) -> Option<Arc<Ah>> {
        self.cache.handle(path)
    }

    /// Whether [`Handles::results`] would report a path, or there is an event. Costs one load.
    #[inline]
    pub(super) fn has_results(&self) -> bool {
        self.bell.rung.is_raised()
    }

    /// The paths whose resolution has ended since the last call.
    pub(super) fn results(&mut self) -> Vec<PathResult> {
        // The flag is cleared first: a result that arrives in between sets it again.
        self.bell.rung.lower();
        let _ = self.bell.wake.read();
        let mut results = Vec::new();
        while let Some((path, outcome)) = self.cache.resolved() {
            results.push(match outcome {
                PathOutcome::Ready(..) => PathResult::Ready(path),
                PathOutcome::Failed(error, _) => PathResult::Failed(path, error),
            });
        }
        results
    }

    /// The addresses of the port may have changed: all handles are made anew, from the port as it
    /// is now.
    pub(super) fn renew(&mut self, port: LocalPort) {
        self.cache.renew(port);
    }

    /// A peer at the end of this path was removed: its handle may go when no send uses it.
    pub(super) fn retire(&mut self, path: PortPath) {
        self.retired.push(path);
    }

    /// Whether [`Handles::release_retired`] has something to do.
    #[inline]
    pub(super) fn have_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// No send is under way: drops the handles that no peer uses any more.
    #[cold]
    pub(super) fn release_retired(&mut self) {
        for path in self.retired.drain(..) {
            self.cache.release_unused(&path);
        }
    }

    /// The number of handles that are ready.
    pub(super) fn len(&self) -> usize {
        self.cache.ready()
    }
}
