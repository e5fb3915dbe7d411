//! Links that the transport wants: connections of this endpoint, repeated until one succeeds.

use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use nix::errno::Errno as Sys;

use super::super::handshake::{Connection, NO_DESCRIPTOR};
use super::super::{ServiceEvent, socket};
use super::{PeerConnection, Server};
use crate::config::Cma;

/// Peers that are connected to at once. More wait until one has answered, or was silent for long.
const PLACES: usize = 256;

/// Why a try failed, where nothing better is known.
const NO_CONNECTION: &str = "no connection to it can be made";

/// Time before the next attempt with a peer that refused a connection.
const RETRY: Duration = Duration::from_millis(5);

/// Time before the next attempt with a peer that accepts no connections.
const SILENT_RETRY: Duration = Duration::from_millis(50);

/// The attempt to make a link. It is repeated as long as the peer is silent, since the peer may be
/// stopped, and for a limited time while the peer refuses. The end of the peer's process ends it.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    target: NativeAddr,
    /// Set when the peer first refuses.
    deadline: Option<Instant>,
    pub(super) next_try: Instant,
    /// Why the last try made no link.
    pub(super) why: &'static str,
    /// Whether sends still wait for the link.
    is_wanted: bool,
}

impl Attempt {
    /// Whether the peer has refused for long enough.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|at| at <= now)
    }
}

impl Server {
    pub(super) fn connect(&mut self, target: NativeAddr) {
        let Some(id) = target.shm else { return };
        let now = Instant::now();
        let attempt = Attempt {
            target,
            deadline: None,
            next_try: now,
            why: NO_CONNECTION,
            is_wanted: true,
        };
        match self.peers.get_mut(&id) {
            // The link's event is on its way.
            Some(PeerConnection::Up(..)) => {}
            Some(PeerConnection::Attempting(attempt, _)) => attempt.is_wanted = true,
            Some(PeerConnection::Accepting(_, wanted)) => *wanted = Some(attempt),
            None => {
                self.sweep.unwatch(id);
                self.peers
                    .insert(id, PeerConnection::Attempting(attempt, None));
                self.try_connect(id);
            }
        }
    }

    /// Sends do not wait for a link any more. A link that the peer makes, or may have made already,
    /// is accepted all the same.
    pub(super) fn cancel(&mut self, id: u64) {
        match self.peers.get(&id) {
            Some(&PeerConnection::Attempting(attempt, own)) if self.has_offered(own) => {
                let unwanted = Attempt {
                    is_wanted: false,
                    ..attempt
                };
                self.peers
                    .insert(id, PeerConnection::Attempting(unwanted, own));
            }
            Some(&PeerConnection::Attempting(_, own)) => {
                if let Some(key) = own {
                    self.connections.try_remove(key);
                }
                self.peers.remove(&id);
            }
            Some(&PeerConnection::Accepting(key, _)) => {
                self.peers.insert(id, PeerConnection::Accepting(key, None));
            }
            _ => {}
        }
    }

    /// Whether the peer may use the link that this connection of ours offers.
    pub(super) fn has_offered(&self, own: Option<usize>) -> bool {
        let connection = own.and_then(|key| self.connections.get(key)?.as_ref());
        connection.is_some_and(Connection::has_given_segment)
    }

    pub(super) fn offers_cma(&self) -> bool {
        self.config.cma != Cma::Off
    }

    pub(super) fn try_connect(&mut self, id: u64) {
        let Some(&PeerConnection::Attempting(attempt, None)) = self.peers.get(&id) else {
            return;
        };
        if !self.has_place() {
            return self.retry(id, true);
        }
        let fd = match socket::connect_to(id) {
            Ok(fd) => fd,
            Err(Sys::ECONNREFUSED) => {
                return self.give_up(id, Errno::EHOSTUNREACH, "no such endpoint on this node");
            }
            Err(Sys::EACCES | Sys::EPERM) => {
                return self.give_up(id, Errno::EHOSTUNREACH, "connecting is not permitted");
            }
            // The peer's queue is full, and the peer accepts none.
            Err(Sys::EAGAIN) => return self.retry(id, true),
            Err(Sys::EMFILE | Sys::ENFILE) => return self.refused(id, NO_DESCRIPTOR, false),
            Err(_) => return self.retry(id, false),
        };
        let pid = match socket::credentials(&fd) {
            Ok(who) if self.users.is_own(who.uid()) => who.pid(),
            _ => return self.give_up(id, Errno::EHOSTUNREACH, "it belongs to another user"),
        };
        self.nonce = self
            .nonce
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        let hello = Connection::hello(
            fd,
            pid,
            attempt.target,
            self.nonce,
            &self.shared,
            self.offers_cma(),
        );
        match hello.map(|c| self.add_connection(c)) {
            Ok(Some(key)) => {
                self.peers
                    .insert(id, PeerConnection::Attempting(attempt, Some(key)));
            }
            _ => self.retry(id, false),
        }
    }

    /// Whether another peer may be connected to. At the limit, the attempt with the peer that was
    /// silent longest is dropped and repeated later, so that silent peers delay no others for long.
    fn has_place(&mut self) -> bool {
        let (mut ours, mut silent) = (0, None);
        for (key, connection) in &self.connections {
            let Some(connection) = connection.as_ref().filter(|c| !c.is_client()) else {
                continue;
            };
            ours += 1;
            if connection.was_silent() && !connection.has_given_segment() {
                silent = match silent {
                    Some((since, _, _)) if since <= connection.since() => silent,
                    _ => Some((connection.since(), key, connection.peer)),
                };
            }
        }
        if ours < PLACES {
            return true;
        }
        let Some((_, key, peer)) = silent else {
            return false;
        };
        self.connections.remove(key);
        if let Some(peer) = peer {
            self.retry(peer, true);
        }
        true
    }

    /// A connection was refused: tries again soon, unless there were too many.
    pub(super) fn refused(&mut self, id: u64, why: &'static str, was_silent: bool) {
        if let Some(PeerConnection::Attempting(attempt, _)) = self.peers.get_mut(&id) {
            attempt.why = why;
        }
        self.retry(id, was_silent);
    }

    /// Tries again soon: as long as the peer is silent, else until the deadline.
    pub(super) fn retry(&mut self, id: u64, was_silent: bool) {
        if let Some(PeerConnection::Attempting(attempt, connection)) = self.peers.get_mut(&id) {
            if !attempt.is_wanted {
                self.peers.remove(&id);
                return;
            }
            let now = Instant::now();
            *connection = None;
            (attempt.next_try, attempt.deadline) = match was_silent {
                true => (now + SILENT_RETRY, None),
                false => {
                    let deadline = now + self.config.connect_deadline;
                    (now + RETRY, attempt.deadline.or(Some(deadline)))
                }
            };
        }
    }

    pub(super) fn give_up(&mut self, id: u64, errno: Errno, why: &'static str) {
        self.peers.remove(&id);
        self.report(ServiceEvent::Unreachable(id, errno, why));
    }
}
