//! The service thread of a transport: makes links and notices when peers are gone, so that whoever sends never waits for a
//! connection, and a peer that does not answer holds nobody up. It sleeps in epoll(7) and shares nothing with the transport
//! but two channels and a flag.

#[cfg(test)]
mod clients;
pub(crate) mod frame;
mod handshake;
mod liveness;
mod server;
#[allow(unsafe_code, reason = "owns descriptors that the kernel hands out")]
mod socket;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::error::{Errno, Error, Result};
use ferrofabric_core::flag::Flag;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::cma::{CmaPeer, Cookie};
use crate::config::ShmConfig;
use crate::doorbell::Doorbell;
use crate::segment::{Segment, Side};

/// What the transport asks for.
pub(crate) enum Command {
    /// A link to this endpoint.
    Connect(NativeAddr),
    /// The link with the endpoint of this id and with this segment is of no use any more; `true`: it is still to be told when the
    /// endpoint is gone. Without a segment: that is not to be told any more, either.
    Forget(u64, Option<Arc<Segment>>, bool),
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
    /// The endpoint of this id has ended its link, which has this segment, or is gone; `true` when it said so. Without a segment: it
    /// was still to be told when it is gone.
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

/// What both threads have of the endpoint.
pub(crate) struct Shared {
    /// Proves to who reads our memory that it is ours.
    pub(crate) cookie: Cookie,
    /// Whether this process is registered for membarrier(2).
    pub(crate) registered: bool,
    /// Rings at peers, and is rung at.
    pub(crate) doorbell: Doorbell,
    /// Our full address.
    name: NativeAddr,
    /// There is an event.
    has_events: Flag,
}

impl Shared {
    pub(crate) fn new(
        name: NativeAddr,
        cookie: Cookie,
        registered: bool,
        doorbell: Doorbell,
    ) -> Self {
        Self {
            cookie,
            registered,
            doorbell,
            name,
            has_events: Flag::new(),
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
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts the thread of the endpoint `id`.
    pub(crate) fn start(id: u64, shared: Arc<Shared>, config: &ShmConfig) -> Result<Self> {
        let fail = |e: nix::errno::Errno| {
            Error::new(Errno(e as i32), "listen", format!("at endpoint {id:016x}"))
        };
        let wake =
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(fail)?;
        let wake = Arc::new(wake);
        let (commands, commanded) = crossbeam_channel::unbounded();
        let (found, events) = crossbeam_channel::unbounded();
        let server = server::Server::new(
            id,
            Arc::clone(&shared),
            config.clone(),
            Arc::clone(&wake),
            commanded,
            found,
        )
        .map_err(fail)?;
        let thread = std::thread::Builder::new()
            .name("ferro-shm".into())
            .stack_size(256 * 1024)
            .spawn(move || server.run())
            .map_err(|e| Error::from_io(&e, "start", "the service thread of shared memory"))?;
        Ok(Self {
            shared,
            commands,
            events,
            wake,
            thread: Some(thread),
        })
    }

    /// Tells the thread something.
    pub(crate) fn tell(&self, command: Command) {
        // The thread lives as long as `self`; if it could not be told, it has ended, and so has the process.
        let _ = self.commands.send(command);
        let _ = self.wake.write(1);
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
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
