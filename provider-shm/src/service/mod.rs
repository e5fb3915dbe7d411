//! The service thread of a transport: makes links and notices when peers are gone, so that whoever
//! sends never waits for a connection, and a peer that does not answer holds nobody up. It sleeps
//! in epoll(7) and shares nothing with the transport but two channels and a flag.

#[cfg(test)]
mod clients;
pub(crate) mod frame;
mod handshake;
mod liveness;
mod server;
#[allow(unsafe_code, reason = "owns descriptors that the kernel hands out")]
mod socket;
mod users;
#[cfg(test)]
#[allow(unsafe_code, reason = "limits and filters of a process")]
mod wakes;

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::forked::Birth;
use ferrofabric_system::pending_flag::PendingFlag;
use ferrofabric_system::threads;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::cma::{CmaPeer, Cookie};
use crate::config::ShmConfig;
use crate::doorbell::Doorbell;
use crate::segment::{Segment, Side};

/// What the transport asks for.
pub(crate) enum Command {
    /// A link to this endpoint.
    Connect(NativeAddr),
    /// The link with the endpoint of this id and with this segment is of no use any more; `true`:
    /// it is still to be told when the endpoint is gone. Without a segment: that is not to be told
    /// any more, either.
    Forget(u64, Option<Arc<Segment>>, bool),
    /// A link with the endpoint of this id is not wanted any more, if there is none yet.
    Cancel(u64),
    /// Tell when it is time for another look at links whose peers were removed.
    Look,
    /// That is all.
    Stop,
}

/// What the service thread has found.
pub(crate) enum Event {
    /// A link is there.
    Up(NewLink),
    /// No link can be made with the endpoint of this id.
    Unreachable(u64, Errno, &'static str),
    /// The endpoint of this id has ended its link, which has this segment, or is gone; `true` when
    /// it said so. Without a segment: it was still to be told when it is gone.
    Gone(u64, Option<Arc<Segment>>, bool),
    /// Time for a look at links whose peers were removed.
    Look,
}

/// A link, ready to be used.
pub(crate) struct NewLink {
    /// The peer.
    pub(crate) native: NativeAddr,
    /// Its id.
    pub(crate) id: u64,
    /// What both have mapped.
    pub(crate) segment: Arc<Segment>,
    /// Our side of it.
    pub(crate) side: Side,
    /// Its memory, where we can read it.
    pub(crate) cma: Option<CmaPeer>,
    /// Whether we tell it where our messages lie, to be read.
    pub(crate) offers_cma: bool,
    /// Whether a sender needs a fence before it looks whether the peer sleeps.
    pub(crate) fence: bool,
}

/// What both threads have of the endpoint. In a child that has inherited it, it is nobody's.
pub(crate) struct Shared {
    birth: Birth,
    /// Proves to who reads our memory that it is ours.
    pub(crate) cookie: Cookie,
    /// Whether this process is registered for membarrier(2).
    pub(crate) registered: bool,
    /// Rings at peers, and is rung at.
    pub(crate) doorbell: Doorbell,
    /// Endpoints that are still to be rung at, and the service thread's event that says so.
    unrung: Mutex<HashSet<u64>>,
    wake: EventFd,
    /// Our full address.
    name: NativeAddr,
    /// There is an event.
    has_events: PendingFlag,
    /// The transport wants to be woken for events.
    sleeps: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        name: NativeAddr,
        cookie: Cookie,
        registered: bool,
        doorbell: Doorbell,
    ) -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags)
            .map_err(|e| Error::new(Errno(e as i32), "open", format!("events of {name}")))?;
        Ok(Self {
            birth: Birth::here(),
            cookie,
            registered,
            doorbell,
            unrung: Mutex::default(),
            wake,
            name,
            has_events: PendingFlag::new(),
            sleeps: AtomicBool::new(false),
        })
    }

    /// Whether this process has opened the endpoint, and not one that this process was forked from.
    pub(crate) fn is_ours(&self) -> bool {
        self.birth.is_this_process()
    }

    /// Rings at an endpoint that wants to be woken: now, or as soon as it is possible, by the
    /// service thread.
    #[cold]
    pub(crate) fn ring(&self, id: u64) {
        if self.is_ours() && !self.doorbell.ring(id) {
            self.unrung().insert(id);
            let _ = self.wake.write(1);
        }
    }

    fn unrung(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.unrung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transport is about to sleep. The sleeper's barrier and a look at the events must follow.
    pub(crate) fn goes_to_sleep(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
    }

    /// The transport is awake.
    pub(crate) fn wakes_up(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// There is an event: wakes the transport if it sleeps, and only then, for who is awake takes
    /// no rings.
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
}

/// The transport's hold on its service thread, which ends with it.
pub(crate) struct Service {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    events: Receiver<Event>,
    thread: Option<JoinHandle<()>>,
    /// Descriptors that the thread owns, or owns with us.
    descriptors: [RawFd; 5],
}

impl Service {
    /// Starts the thread of the endpoint `id`.
    pub(crate) fn start(id: u64, shared: Arc<Shared>, config: &ShmConfig) -> Result<Self> {
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

    /// Tells the thread something.
    pub(crate) fn tell(&self, command: Command) {
        if !self.shared.is_ours() {
            // The parent's thread would wake up for nothing.
            return;
        }
        // The thread lives as long as `self`; if it could not be told, it has ended, and so has the
        // process.
        let _ = self.commands.send(command);
        let _ = self.shared.wake.write(1);
    }

    /// Events that wait to be taken.
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
    pub(crate) fn next_event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Lowers the flag; events that come now raise it again.
    pub(crate) fn lower_flag(&self) {
        self.shared.has_events.lower();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if !self.shared.is_ours() {
            // A child has no such thread: there is nothing to wait for, or to let go. Objects of
            // the thread are never dropped here.
            std::mem::forget(thread);
            for descriptor in self.descriptors {
                let _ = nix::unistd::close(descriptor);
            }
            return;
        }
        self.tell(Command::Stop);
        let _ = thread.join();
    }
}
