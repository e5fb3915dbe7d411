//! The socket where clients connect: accepted one by one, with a pause when there are too many.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::super::socket;

/// Time that clients wait when there are too many, or no descriptor for another one.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct ClientListener {
    socket: OwnedFd,
    /// The token of its epoll events.
    token: u64,
    /// The end of the pause, during a pause.
    resume_at: Option<Instant>,
}

impl ClientListener {
    /// Listens at the endpoint `id`.
    pub(super) fn open(id: u64, epoll: &Epoll, token: u64) -> nix::Result<Self> {
        let socket = socket::listen_at(id)?;
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        Ok(Self {
            socket,
            token,
            resume_at: None,
        })
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The next client.
    pub(super) fn accept(&self) -> nix::Result<OwnedFd> {
        socket::accept(&self.socket)
    }

    /// The end of the pause, during a pause.
    pub(super) fn resume_at(&self) -> Option<Instant> {
        self.resume_at
    }

    /// Begins a pause.
    pub(super) fn pause(&mut self, epoll: &Epoll) {
        self.listen_for(epoll, EpollFlags::empty());
        self.resume_at = Some(Instant::now() + PAUSE);
    }

    /// Ends the pause, if it is time.
    pub(super) fn resume(&mut self, epoll: &Epoll, now: Instant) {
        if self.resume_at.is_some_and(|at| at <= now) {
            self.listen_for(epoll, EpollFlags::EPOLLIN);
            self.resume_at = None;
        }
    }

    fn listen_for(&self, epoll: &Epoll, flags: EpollFlags) {
        let _ = epoll.modify(&self.socket, &mut EpollEvent::new(flags, self.token));
    }
}
