//! The loop of the service thread: accepts clients, connects to peers, and finds links that ended.
//!
//! If two endpoints connect to each other at once, the endpoint with the lower id makes the link:
//! it answers the other's `HELLO` with `BUSY`, and the other drops its own attempt. Every attempt
//! can be repeated.

mod attempts;
mod listener;
mod rings;
mod sweep;

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use ferrofabric_contracts::error::Errno;
use ferrofabric_runtime::domain::MessageMover;
use nix::errno::Errno as Sys;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use slab::Slab;

use super::frame::{BUSY, OK, READY, REFUSED, WELCOME};
use super::handshake::{Connection, HandshakeFailure, HandshakeStage, REFUSES, Unmapped};
use super::users::Users;
use super::{EndpointShared, NewLink, ServiceCommand, ServiceEvent, socket};
use crate::config::ShmConfig;
use crate::segment::{SegmentSide, ShmSegment};
use crate::status::{CLOSED, DELIVERS};
use attempts::Attempt;
use listener::ClientListener;
use rings::PendingRings;
use sweep::Sweep;

const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// Clients whose handshake is under way at once; more wait in the listener's queue. Connections
/// that this endpoint makes do not count.
const CLIENTS: usize = 256;
/// Time that a client has for its first record while others wait for its place.
const PATIENCE: Duration = Duration::from_millis(50);
/// Time between two looks at a link whose peer was removed.
const LOOK: Duration = Duration::from_secs(1);

/// The state of a peer.
enum PeerConnection {
    /// We try to connect, over this connection if there is one now.
    Attempting(Attempt, Option<usize>),
    /// The peer has connected to us. Our own attempt, if there was one, waits for the result.
    Accepting(usize, Option<Attempt>),
    /// There is a link.
    Up(Arc<ShmSegment>, SegmentSide),
}

/// The state of the service thread.
pub(super) struct Server {
    id: u64,
    shared: Arc<EndpointShared>,
    config: ShmConfig,
    epoll: Epoll,
    listener: ClientListener,
    users: Users,
    rings: PendingRings,
    commands: Receiver<ServiceCommand>,
    events: Sender<ServiceEvent>,
    /// An entry is empty while its connection is handled.
    connections: Slab<Option<Connection>>,
    peers: HashMap<u64, PeerConnection>,
    sweep: Sweep,
    mover: MessageMover,
    nonce: u64,
    next_look: Option<Instant>,
}

impl Server {
    pub(super) fn new(
        id: u64,
        shared: Arc<EndpointShared>,
        config: ShmConfig,
        commands: Receiver<ServiceCommand>,
        events: Sender<ServiceEvent>,
    ) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let listener = ClientListener::open(id, &epoll, LISTENER)?;
        epoll.add(&shared.wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        Ok(Self {
            id,
            nonce: u64::from_le_bytes(shared.cookie[..8].try_into().unwrap_or_default()) ^ id,
            shared,
            epoll,
            listener,
            users: Users::new(),
            rings: PendingRings::default(),
            commands,
            events,
            connections: Slab::new(),
            peers: HashMap::new(),
            sweep: Sweep::new(config.sweep_interval)?,
            mover: MessageMover::default(),
            next_look: None,
            config,
        })
    }

    /// The descriptors that the thread owns while it runs.
    pub(super) fn descriptors(&self) -> [RawFd; 3] {
        let (listener, epoll) = (self.listener.descriptor(), self.epoll.0.as_raw_fd());
        [listener, epoll, self.sweep.descriptor()]
    }

    /// Runs until the transport stops it.
    pub(super) fn run(mut self) {
        let mut ready = [EpollEvent::empty(); 64];
        loop {
            let n = match self.epoll.wait(&mut ready, self.timeout()) {
                Ok(n) => n,
                Err(Sys::EINTR) => 0,
                Err(error) => {
                    tracing::error!(%error, "the service thread of shared memory can not wait");
                    return;
                }
            };
            for event in &ready[..n] {
                match event.data() {
                    WAKE => {
                        let _ = self.shared.wake.read();
                        self.rings.take_over(&self.shared);
                        if !self.handle_commands() {
                            return;
                        }
                    }
                    LISTENER => self.accept(),
                    key => self.serve_connection(key as usize),
                }
            }
            self.handle_deadlines();
        }
    }

    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let connections = self
            .connections
            .iter()
            .filter_map(|(_, c)| c.as_ref()?.deadline);
        let attempts = self.peers.values().filter_map(|peer| match peer {
            PeerConnection::Attempting(attempt, None) => Some(attempt.next_try),
            _ => None,
        });
        let sweep = self.swept().next().map(|_| self.sweep.next());
        match connections
            .chain(attempts)
            .chain(sweep)
            .chain(self.listener.resume_at())
            .chain(self.next_look)
            .chain(self.rings.retry_at())
            .min()
        {
            Some(next) => {
                let wait = next
                    .saturating_duration_since(now)
                    .as_micros()
                    .div_ceil(1000);
                EpollTimeout::from(u16::try_from(wait).unwrap_or(u16::MAX))
            }
            None => EpollTimeout::NONE,
        }
    }

    /// Handles the requests of the transport; false after [`ServiceCommand::Stop`].
    fn handle_commands(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                ServiceCommand::Stop => return false,
                ServiceCommand::Forget(id, segment, watch) => {
                    self.forget(id, segment.as_ref(), watch)
                }
                ServiceCommand::Cancel(id) => self.cancel(id),
                ServiceCommand::Look => self.next_look = Some(Instant::now() + LOOK),
                ServiceCommand::Connect(target) => self.connect(target),
            }
        }
        true
    }

    /// A link has ended; a new one may exist by now, or the sweep may have found its end, too.
    fn forget(&mut self, id: u64, segment: Option<&Arc<ShmSegment>>, watch: bool) {
        let Some(segment) = segment else {
            self.sweep.unwatch(id);
            return;
        };
        match self.peers.get(&id) {
            Some(PeerConnection::Up(current, _)) if Arc::ptr_eq(current, segment) => {
                self.peers.remove(&id);
            }
            Some(PeerConnection::Up(..)) => return,
            _ => {}
        }
        if watch {
            self.sweep.watch(id);
        }
    }

    fn report(&self, event: ServiceEvent) {
        // The transport ends this thread before it goes, so the channel is open.
        let _ = self.events.send(event);
        self.shared.has_event();
    }

    /// Adds a connection to the epoll set; `None` if that fails now.
    fn add_connection(&mut self, connection: Connection) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        self.epoll
            .add(
                &connection.fd,
                EpollEvent::new(EpollFlags::EPOLLIN, key as u64),
            )
            .ok()?;
        entry.insert(Some(connection));
        Some(key)
    }

    fn accept(&mut self) {
        let connections = self.connections.iter().filter_map(|(_, c)| c.as_ref());
        let mut clients = connections.filter(|c| c.is_client()).count();
        while clients < CLIENTS || self.drop_silent_client() {
            let fd = match self.listener.accept() {
                Ok(fd) => fd,
                Err(Sys::EAGAIN) => return,
                Err(Sys::EINTR | Sys::ECONNABORTED) => continue,
                // Out of descriptors: clients wait, and no loop is busy.
                Err(_) => break,
            };
            match socket::credentials(&fd) {
                Ok(who) if self.users.is_own(who.uid()) => {
                    let deadline = Instant::now() + self.config.accept_deadline;
                    let client = Connection::accepted(fd, who.pid(), deadline);
                    clients += usize::from(self.add_connection(client).is_some());
                    clients = clients.min(CLIENTS);
                }
                _ => tracing::warn!("refused a shared-memory connection of another user"),
            }
        }
        self.listener.pause(&self.epoll);
    }

    /// Makes room for a client: ends the connection of the one that has said nothing for the longest
    /// time, if that is not a short one. It may connect again.
    fn drop_silent_client(&mut self) -> bool {
        let clients = self.connections.iter().filter_map(|(key, connection)| {
            let connection = connection.as_ref().filter(|c| c.is_client())?;
            let is_silent = matches!(connection.stage, HandshakeStage::Hello);
            (is_silent && connection.since().elapsed() > PATIENCE)
                .then_some((connection.since(), key))
        });
        match clients.min() {
            Some((_, key)) => {
                self.connections.remove(key);
                true
            }
            None => false,
        }
    }

    /// A connection has a record to read, or has ended.
    fn serve_connection(&mut self, key: usize) {
        // It may have been closed earlier in the same round.
        let Some(mut connection) = self.connections.get_mut(key).and_then(Option::take) else {
            return;
        };
        let record = match socket::receive(&connection.fd) {
            Ok(record) => record,
            Err(Sys::EAGAIN | Sys::EINTR) => {
                self.connections[key] = Some(connection);
                return;
            }
            Err(_) => return self.closed(key, connection, &REFUSES),
        };
        let stage = std::mem::replace(&mut connection.stage, HandshakeStage::Hello);
        let next = match stage {
            HandshakeStage::Hello => self.hello(key, &mut connection, &record.bytes),
            HandshakeStage::Map(met) => {
                match connection.read_map(&record, met, &self.shared, self.offers_cma()) {
                    Ok(link) => {
                        self.connections.remove(key);
                        self.up(link);
                        connection.ready(&self.shared);
                        return;
                    }
                    Err(unmapped) => {
                        let verdict = match unmapped {
                            Unmapped::Busy => BUSY,
                            Unmapped::Refused => REFUSED,
                        };
                        connection.answer(READY, verdict, &self.shared, false);
                        Err(REFUSES)
                    }
                }
            }
            HandshakeStage::Welcome(target) => {
                connection.read_welcome(&record.bytes, &target, &self.shared, self.offers_cma())
            }
            HandshakeStage::Ready(mut link) => match connection.read_ready(&record, &mut link) {
                Ok(()) => {
                    self.connections.remove(key);
                    return self.up(*link);
                }
                Err(failure) => {
                    link.segment.status(SegmentSide::Initiator).close();
                    Err(failure)
                }
            },
        };
        match next {
            Ok(()) => self.connections[key] = Some(connection),
            Err(failure) => self.closed(key, connection, &failure),
        }
    }

    /// Acceptor: handles a `HELLO`.
    fn hello(
        &mut self,
        key: usize,
        c: &mut Connection,
        bytes: &[u8],
    ) -> Result<(), HandshakeFailure> {
        let met = c.read_hello(bytes, &self.shared).map_err(|()| REFUSES)?;
        let id = met.id();
        if id == self.id {
            return Err(REFUSES);
        }
        let wanted = match self.peers.get(&id) {
            // A link that the other side has closed does not prevent a new one.
            Some(PeerConnection::Up(segment, side))
                if segment.status(side.other()).load() & CLOSED == 0 =>
            {
                c.answer(WELCOME, BUSY, &self.shared, false);
                return Err(REFUSES);
            }
            Some(PeerConnection::Up(segment, _)) => {
                self.report(ServiceEvent::Gone(id, Some(Arc::clone(segment)), true));
                self.peers.remove(&id);
                None
            }
            // The peer may use the link that we offered by now, and this be an earlier `HELLO`.
            Some(PeerConnection::Attempting(_, own)) if self.id < id || self.has_offered(*own) => {
                c.answer(WELCOME, BUSY, &self.shared, false);
                return Err(REFUSES);
            }
            Some(&PeerConnection::Attempting(attempt, old)) => {
                self.replace_connection(id, old, Some(attempt))
            }
            Some(&PeerConnection::Accepting(old, wanted)) => {
                self.replace_connection(id, Some(old), wanted)
            }
            None => None,
        };
        if !c.answer(WELCOME, OK, &self.shared, self.offers_cma()) {
            return Err(REFUSES);
        }
        c.peer = Some(id);
        c.stage = HandshakeStage::Map(met);
        self.peers
            .insert(id, PeerConnection::Accepting(key, wanted));
        Ok(())
    }

    /// Drops the existing connection with a peer, for a new one that the peer makes. Returns our
    /// own `wanted` attempt, which goes on if the new connection fails.
    fn replace_connection(
        &mut self,
        id: u64,
        old: Option<usize>,
        wanted: Option<Attempt>,
    ) -> Option<Attempt> {
        // This comes first: the new connection may reuse the entry of the old one.
        self.resume_attempt(id, wanted);
        if let Some(old) = old {
            self.connections.try_remove(old);
        }
        wanted
    }

    /// There is no connection with a peer any more: our own attempt goes on if it waited for the
    /// result.
    fn resume_attempt(&mut self, id: u64, wanted: Option<Attempt>) {
        match wanted {
            Some(attempt) => {
                self.peers
                    .insert(id, PeerConnection::Attempting(attempt, None));
                self.retry(id, false);
            }
            None => {
                self.peers.remove(&id);
            }
        }
    }

    fn up(&mut self, link: NewLink) {
        tracing::info!(
            peer = %link.native,
            cma = link.cma.is_some(),
            fence = link.fence,
            "shared-memory link"
        );
        self.sweep.unwatch(link.id);
        self.peers.insert(
            link.id,
            PeerConnection::Up(Arc::clone(&link.segment), link.side),
        );
        self.sweep.postpone();
        self.report(ServiceEvent::Up(link));
    }

    /// A connection made no link. (Closing its descriptor takes it out of the epoll set.)
    fn closed(&mut self, key: usize, connection: Connection, failure: &HandshakeFailure) {
        self.connections.remove(key);
        if let HandshakeStage::Ready(link) = &connection.stage {
            link.segment.status(SegmentSide::Initiator).close();
        }
        let Some(id) = connection.peer else { return };
        match self.peers.get(&id) {
            Some(&PeerConnection::Attempting(_, Some(current))) if current == key => {
                match failure {
                    HandshakeFailure::Later(why) => {
                        self.refused(id, why, connection.was_silent());
                    }
                    HandshakeFailure::Never(why) => self.give_up(id, Errno::EHOSTUNREACH, why),
                }
            }
            Some(&PeerConnection::Accepting(current, wanted)) if current == key => {
                self.resume_attempt(id, wanted)
            }
            _ => {}
        }
    }

    /// Handles deadlines, retries and the sweep.
    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        let late: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, c)| {
                let deadline = c.as_ref().and_then(|c| c.deadline);
                deadline.is_some_and(|at| at <= now)
            })
            .map(|(key, _)| key)
            .collect();
        for key in late {
            if let Some(connection) = self.connections[key].take() {
                self.closed(key, connection, &REFUSES);
            }
        }
        self.listener.resume(&self.epoll, now);
        let due: Vec<(u64, Option<&'static str>)> = self
            .peers
            .iter()
            .filter_map(|(id, peer)| match peer {
                PeerConnection::Attempting(a, None) if a.is_over(now) => Some((*id, Some(a.why))),
                PeerConnection::Attempting(a, None) if a.next_try <= now => Some((*id, None)),
                _ => None,
            })
            .collect();
        for (id, over) in due {
            match over {
                Some(why) => self.give_up(id, Errno::ETIMEDOUT, why),
                None => self.try_connect(id),
            }
        }
        self.rings.retry(&self.shared, now);
        if self.next_look.is_some_and(|at| at <= now) {
            self.next_look = None;
            self.report(ServiceEvent::Look);
        }
        if self.sweep.is_due(now) {
            self.sweep_peers();
        }
    }

    /// The peers that the sweep checks.
    fn swept(&self) -> impl Iterator<Item = u64> {
        let up = (self.peers.iter()).filter(|(_, peer)| matches!(peer, PeerConnection::Up(..)));
        up.map(|(id, _)| *id).chain(self.sweep.watched())
    }

    /// Finds peers that have closed or died, and those that are about to close.
    fn sweep_peers(&mut self) {
        let ids: Vec<u64> = self.swept().collect();
        for id in self.sweep.choose(ids) {
            let link = match self.peers.get(&id) {
                Some(PeerConnection::Up(segment, side)) => Some((segment, *side)),
                _ => None,
            };
            let flags = || link.map_or(0, |(segment, side)| segment.status(side.other()).load());
            let closed = || flags() & CLOSED != 0;
            if flags() & DELIVERS != 0 && self.mover.start() {
                self.sweep.hurry();
            }
            // A peer that closes sets its flag before its doorbell disappears.
            if closed() || !self.sweep.exists(id) {
                let gone =
                    ServiceEvent::Gone(id, link.map(|(segment, _)| Arc::clone(segment)), closed());
                match link.is_some() {
                    true => drop(self.peers.remove(&id)),
                    false => self.sweep.unwatch(id),
                }
                self.report(gone);
            }
        }
    }
}
