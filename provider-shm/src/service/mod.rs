//! The service thread of a transport: makes links and notices dead peers. So a send never waits
//! inside a call for a connection, and a silent peer delays no other peer. The thread sleeps in
//! epoll(7) and shares nothing with the transport but two channels and a flag.

#[cfg(test)]
mod clients;
pub(crate) mod frame;
mod handshake;
mod server;
#[allow(unsafe_code, reason = "owns descriptors that the kernel hands out")]
mod socket;
mod users;
#[cfg(test)]
#[allow(unsafe_code, reason = "limits and filters of a process")]
mod wakes;

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Rights;
use ferrofabric_system::forked::Birth;
use ferrofabric_system::pending_flag::PendingFlag;
use ferrofabric_system::threads;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::board::PeerBoard;
use crate::cma::{CmaPeer, Cookie};
use crate::config::{ShmConfig, ShownRegions};
use crate::doorbell::Doorbell;
use crate::regions::BoardWatch;
use crate::segment::{SegmentSide, ShmSegment};

/// A request of the transport.
pub(crate) enum ServiceCommand {
    /// Make a link to this endpoint.
    Connect(NativeAddr),
    /// The link with the endpoint of this id and with this segment has ended; `true`: report when
    /// the endpoint is gone. Without a segment: that report is not needed any more, either.
    Forget(u64, Option<Arc<ShmSegment>>, bool),
    /// No link with the endpoint of this id is wanted any more, if there is none yet.
    Cancel(u64),
    /// Report when it is time for another look at links whose peers were removed.
    Look,
    /// End the thread.
    Stop,
}

/// A report of the service thread.
pub(crate) enum ServiceEvent {
    /// A link is ready.
    Up(NewLink),
    /// No link can be made with the endpoint of this id.
    Unreachable(u64, Errno, &'static str),
    /// The endpoint of this id has closed its link, which has this segment, or is gone; `true` if
    /// it closed in good order. Without a segment: a peer without a link, which was watched, is
    /// gone.
    Gone(u64, Option<Arc<ShmSegment>>, bool),
    /// Time for a look at links whose peers were removed.
    Look,
}

/// A link, ready to be used.
pub(crate) struct NewLink {
    /// The peer.
    pub(crate) native: NativeAddr,
    /// Its id.
    pub(crate) id: u64,
    /// The memory that both sides have mapped.
    pub(crate) segment: Arc<ShmSegment>,
    /// Our side of it.
    pub(crate) side: SegmentSide,
    /// Its memory, if we can read it.
    pub(crate) cma: Option<CmaPeer>,
    /// Whether we send it the addresses of our messages, so that it can read them.
    pub(crate) offers_cma: bool,
    /// Whether a sender needs a fence before it reads whether the peer sleeps.
    pub(crate) fence: bool,
    /// The regions of the peer that we may reach by ourselves.
    pub(crate) regions: Option<PeerRegions>,
    /// The end of the link, for the regions that the peer may reach.
    pub(crate) watch: Option<BoardWatch>,
}

/// The regions of a peer that this side may reach by itself.
pub(crate) struct PeerRegions {
    pub(crate) board: PeerBoard,
    /// The rights to them.
    pub(crate) rights: Rights,
    /// The process that has them; 0 if it can not be seen from here.
    pub(crate) pid: i32,
}

/// The state of the endpoint that both threads use. A child process that inherits it must not use
/// it.
pub(crate) struct EndpointShared {
    birth: Birth,
    /// Proves to a reader of our memory that the memory is ours.
    pub(crate) cookie: Cookie,
    /// Whether this process is registered for membarrier(2).
    pub(crate) registered: bool,
    /// Rings the doorbells of peers, and receives theirs.
    pub(crate) doorbell: Doorbell,
    /// Endpoints whose doorbell could not be rung yet, and the event that wakes the service thread
    /// for them.
    pending_rings: Mutex<HashSet<u64>>,
    wake: EventFd,
    /// Our full address.
    name: NativeAddr,
    /// Raised when there is an event.
    has_events: PendingFlag,
    /// The transport wants to be woken for events.
    sleeps: AtomicBool,
    /// The regions that peers may reach by themselves.
    shown: Option<ShownRegions>,
}

impl EndpointShared {
    pub(crate) fn new(
        name: NativeAddr,
        cookie: Cookie,
        registered: bool,
        doorbell: Doorbell,
        shown: Option<ShownRegions>,
    ) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags)
            .map_err(|e| Error::new(Errno(e as i32), "open", format!("events of {name}")))?;
        Ok(Self {
            birth: Birth::here(),
            cookie,
            registered,
            doorbell,
            pending_rings: Mutex::default(),
            wake,
            name,
            has_events: PendingFlag::new(),
            sleeps: AtomicBool::new(false),
            shown,
        })
    }

    /// Whether this process has opened the endpoint, and not a process that it was forked from.
    pub(crate) fn is_ours(&self) -> bool {
        self.birth.is_this_process()
    }

    /// Rings the doorbell of a sleeping endpoint: now, or as soon as possible, by the service
    /// thread.
    #[cold]
    pub(crate) fn ring(&self, id: u64) {
        if self.is_ours() && !self.doorbell.ring(id) {
            self.pending_rings().insert(id);
            let _ = self.wake.write(1);
        }
    }

    fn pending_rings(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.pending_rings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The transport is about to sleep. The sleeper's barrier and a look at the events must follow.
    pub(crate) fn goes_to_sleep(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
    }

    /// The transport is awake.
    pub(crate) fn wakes_up(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// There is an event: wakes the transport if it sleeps, and only then, since a transport that
    /// is awake does not drain its doorbell.
    fn has_event(&self) {
        self.has_events.raise();
        // The other half is in the sleeper's barrier: either the sleeper sees the event, or this
        // sees the sleeper.
        fence(Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.ring(self.name.shm.unwrap_or_default());
        }
    }

    /// Our full address.
    pub(crate) fn name(&self) -> NativeAddr {
        self.name
    }

    /// The descriptor of the board for peers, and the flag for their rights.
    fn shown(&self) -> Option<(BorrowedFd<'_>, u32)> {
        let ShownRegions { board, rights } = self.shown.as_ref()?;
        let mut flags = 0;
        for (right, flag) in [
            (Rights::READ, frame::SHOWS_READ),
            (Rights::WRITE, frame::SHOWS_WRITE),
        ] {
            if rights.contains(right) {
                flags |= flag;
            }
        }
        (flags != 0).then_some(())?;
        Some((board.fd()?, flags))
    }

    /// Has the close of regions look at a segment, from now until the link's end, if its peer may
    /// reach regions by itself.
    fn watch(&self, segment: &Arc<ShmSegment>, side: SegmentSide, peer: u64) -> Option<BoardWatch> {
        self.shown()?;
        let own = self.name.shm.unwrap_or_default();
        let shown = self.shown.as_ref()?;
        Some(shown.board.watch(segment, side, (own, peer)))
    }
}

/// The transport's handle of its service thread, which ends with it.
pub(crate) struct ServiceThread {
    shared: Arc<EndpointShared>,
    commands: Sender<ServiceCommand>,
    events: Receiver<ServiceEvent>,
    thread: Option<JoinHandle<()>>,
    /// Descriptors that the thread owns, alone or with the transport.
    descriptors: [RawFd; 5],
}

impl ServiceThread {
    /// Starts the thread of the endpoint `id`.
    pub(crate) fn start(id: u64, shared: Arc<EndpointShared>, config: &ShmConfig) -> Result<Self> {
        let fail = |e: nix::errno::Errno| {
            Error::new(Errno(e as i32), "listen", format!("at endpoint {id:016x}"))
        };
        let (commands, commanded) = crossbeam_channel::unbounded();
        let (found, events) = crossbeam_channel::unbounded();
        let server = server::Server::new(id, Arc::clone(&shared), config.clone(), commanded, found)
            .map_err(fail)?;
        let [listener, epoll, liveness] = server.descriptors();
        let bell = shared.doorbell.as_fd().as_raw_fd();
        let descriptors = [
            listener,
            epoll,
            liveness,
            bell,
            shared.wake.as_fd().as_raw_fd(),
        ];
        let named = std::thread::Builder::new()
            .name("ferro-shm".into())
            .stack_size(256 * 1024);
        let thread = threads::spawn(named, move || server.run())
            .map_err(|e| Error::from_io(&e, "start", "the service thread of shared memory"))?;
        Ok(Self {
            shared,
            commands,
            events,
            thread: Some(thread),
            descriptors,
        })
    }

    /// Sends a request to the thread.
    pub(crate) fn request(&self, command: ServiceCommand) {
        if !self.shared.is_ours() {
            // The parent's thread would wake up for nothing.
            return;
        }
        // The thread lives as long as `self`; if the channel is closed, the thread has ended, and
        // so has the process.
        let _ = self.commands.send(command);
        let _ = self.shared.wake.write(1);
    }

    /// Number of events that wait to be taken.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.events.len()
    }

    /// Whether there may be events.
    #[inline(always)]
    pub(crate) fn has_events(&self) -> bool {
        self.shared.has_events.is_raised()
    }

    /// The next event.
    pub(crate) fn next_event(&self) -> Option<ServiceEvent> {
        self.events.try_recv().ok()
    }

    /// Lowers the flag; events that come now raise it again.
    pub(crate) fn lower_flag(&self) {
        self.shared.has_events.lower();
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if !self.shared.is_ours() {
            // A child process has no such thread: it must neither wait for the thread nor free it.
            // Objects of the thread are never dropped here.
            std::mem::forget(thread);
            for descriptor in self.descriptors {
                let _ = nix::unistd::close(descriptor);
            }
            return;
        }
        self.request(ServiceCommand::Stop);
        let _ = thread.join();
    }
}
