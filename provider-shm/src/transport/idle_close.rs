//! The idle close of links whose peers are not in the address vector. Once a link carries no
//! traffic and the other side agrees (`link/close.rs`), its segment is freed, and all that the
//! endpoint keeps of the peer. A peer that sends again connects again; that link stays for as long
//! as there is traffic, and for a while after that.

use std::collections::HashMap;
use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Owner, PeerSrx};
use ferrofabric_contracts::send_line::SendLine;
use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp};
use slab::Slab;

use super::ShmTransport;
use crate::link::{CloseMessage, ShmLink};
use crate::peers::PeerState;
use crate::pending::PendingSend;
use crate::ring::LinkViolation;
use crate::segment::ShmSegment;
use crate::service::ServiceCommand;

/// Looks without traffic after which we ask to close a link whose peer was removed; doubled each
/// time that the peer refuses, at most this number of times. There is a look each second.
const MAX_DOUBLINGS: u32 = 6;
/// An unknown source has connected in order to send, now and then: its link starts as if the peer
/// had refused this number of times.
const UNKNOWN_SOURCES_DOUBLINGS: u32 = 3;

/// The watched links, whose peers are not in the address vector, and which of them are idle.
#[derive(Default)]
pub(super) struct IdleCloser {
    /// The traffic seen of each link, by its key.
    watched: HashMap<usize, WatchedLink>,
    /// The service thread has been requested to report the time of the next look.
    look_is_requested: bool,
    /// The peers whose requests came before their link closed, and are not answered yet, by the
    /// source of these requests.
    unanswered: HashMap<FiAddr, UnansweredPeer>,
}

/// A peer that awaits replies, and has no link or another one.
struct UnansweredPeer {
    native: NativeAddr,
    /// The id of its endpoint.
    id: u64,
    requests: usize,
}

impl IdleCloser {
    /// Number of watched links.
    #[cfg(feature = "fuzzing")]
    pub(super) fn len(&self) -> usize {
        self.watched.len()
    }

    /// Notes that the next look is requested. Returns whether the caller has to request it.
    fn begin_look_request(&mut self) -> bool {
        !self.watched.is_empty() && !std::mem::replace(&mut self.look_is_requested, true)
    }

    /// A reply to such a peer is sent, or has failed.
    fn count_reply(&mut self, source: FiAddr) {
        if let Some(peer) = self.unanswered.get_mut(&source) {
            peer.requests -= 1;
            if peer.requests == 0 {
                self.unanswered.remove(&source);
            }
        }
    }

    /// Looks at all watched links. Returns the keys of those that had no traffic for long enough.
    fn look(&mut self, links: &Slab<Box<ShmLink>>) -> Vec<usize> {
        self.look_is_requested = false;
        self.watched.retain(|key, _| links.contains(*key));
        let mut idle = Vec::new();
        for (&key, watch) in &mut self.watched {
            let link = &links[key];
            let now = Some(link.traffic());
            watch.quiet = match now == watch.seen {
                true => watch.quiet + 1,
                false => 0,
            };
            watch.seen = now;
            let is_long_enough = watch.quiet >= 1 << link.refusals().min(MAX_DOUBLINGS);
            let is_closing = link.has_requested_close() || link.has_close_message();
            if is_long_enough && !is_closing && link.is_settled() {
                idle.push(key);
            }
        }
        idle
    }
}

#[derive(Default)]
struct WatchedLink {
    /// The traffic of both directions at the last look; `None` before the first look.
    seen: Option<(u32, u32)>,
    /// Looks in a row that found no new traffic.
    quiet: u32,
}

impl ShmTransport {
    /// The peer of a link was removed from the address vector.
    pub(super) fn watch_removed(&mut self, key: usize) {
        self.links[key].count_refusals_from(0);
        self.watch(key);
    }

    /// There is a link with a peer that is not in the address vector.
    pub(super) fn watch_unknown_source(&mut self, key: usize) {
        self.links[key].count_refusals_from(UNKNOWN_SOURCES_DOUBLINGS);
        self.watch(key);
    }

    fn watch(&mut self, key: usize) {
        self.idle_closer.watched.insert(key, WatchedLink::default());
        self.request_look();
    }

    fn request_look(&mut self) {
        if self.idle_closer.begin_look_request() {
            self.service.request(ServiceCommand::Look);
        }
    }

    /// A link has ended, or its peer was inserted.
    pub(super) fn unwatch(&mut self, key: usize) {
        self.idle_closer.watched.remove(&key);
    }

    /// Requests the close of the watched links that had no traffic for long enough.
    pub(super) fn close_quiet_links<O: Owner>(&mut self, owner: &mut O) {
        for key in self.idle_closer.look(&self.links) {
            if let Err(broken) = self.send_close(key, CloseMessage::Request) {
                self.fail_link(key, Errno::EPROTO, broken.0, owner);
            }
        }
        self.request_look();
    }

    /// Sends a close message; false if that is not possible now.
    fn send_close(&mut self, key: usize, what: CloseMessage) -> Result<bool, LinkViolation> {
        let link = &mut *self.links[key];
        let said = link.send_close(what, self.receiver.stats_mut())?;
        if said {
            // Sends must check whether they have to wait.
            self.peers.end_routes();
        }
        Ok(said)
    }

    /// Handles a close message of the peer. Returns the number of steps taken.
    #[cold]
    pub(super) fn answer_close<O: Owner>(&mut self, key: usize, owner: &mut O) -> usize {
        self.try_answer_close(key, owner).unwrap_or_else(|broken| {
            self.fail_link(key, Errno::EPROTO, broken.0, owner);
            1
        })
    }

    fn try_answer_close<O: Owner>(
        &mut self,
        key: usize,
        owner: &mut O,
    ) -> Result<usize, LinkViolation> {
        let Some(link) = self.links.get_mut(key) else {
            return Ok(0);
        };
        if !link.has_close_message() {
            return Ok(0);
        }
        // Both sides have requested the close, or the peer has agreed.
        if link.has_requested_close() {
            if link.is_under_way() {
                return Err(LinkViolation("it left while messages were under way"));
            }
            self.close_idle(key, owner);
            return Ok(1);
        }
        let answer = match link.is_settled() {
            true => CloseMessage::Agree,
            false => CloseMessage::Refuse,
        };
        if !self.send_close(key, answer)? {
            return Ok(0);
        }
        if answer == CloseMessage::Agree {
            self.close_idle(key, owner);
        }
        Ok(1)
    }

    /// Ends a link in good order. Sends that wait for its peer go over the next link.
    fn close_idle<O: Owner>(&mut self, key: usize, owner: &mut O) {
        let Some(mut link) = self.remove_link(key) else {
            return;
        };
        tracing::info!(peer = %link.native(), "shared-memory link closed idle");
        self.receiver.stats_mut().links_left += 1;
        self.receiver.detach_link(key, &link);
        let (id, addr, native) = (link.id(), link.addr(), link.native());
        if link.requests() > 0 {
            let unanswered = UnansweredPeer {
                native,
                id,
                requests: link.requests(),
            };
            let source = link.requester();
            self.idle_closer.unanswered.insert(source, unanswered);
        }
        let (segment, pending) = (
            Arc::clone(link.segment()),
            std::mem::take(link.pending_mut()),
        );
        // Sets our `CLOSED` flag before a new connection begins.
        drop(link);
        // Receives from a peer in the address vector may wait for its messages, and must fail when
        // the peer is gone.
        let watch = pending.is_empty() && addr.is_some() && id != self.id;
        self.service
            .request(ServiceCommand::Forget(id, Some(segment), watch));
        match watch {
            true => self.peers.set(id, PeerState::IdleClosed(addr)),
            false => self.peers.remove(id),
        };
        if !pending.is_empty() {
            self.peers.set(id, PeerState::Connecting(pending));
            if let Err(OpError::Failed(errno)) = self.connect(id, native, owner) {
                self.give_up(id, errno, "no segment can be had", owner);
            }
        }
    }

    /// Sends a reply to a peer whose link was closed idle when its request had come: the peer has
    /// agreed to the close before it saw the reply. It gets the reply over another link.
    ///
    /// # Safety
    ///
    /// As for `Transport::send`.
    #[cold]
    pub(super) unsafe fn reply_after_close<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let peer = self.idle_closer.unanswered.get(&op.dest);
        let peer = peer.ok_or(OpError::Failed(Errno::ECONNRESET))?;
        let (id, native) = (peer.id, peer.native);
        if self.peers.needs_link(id) {
            self.peers
                .set(id, PeerState::Connecting(SendLine::default()));
            if let Err(error) = self.connect(id, native, owner) {
                self.peers.remove(id);
                return Err(error);
            }
        }
        let sent = match self.peers.get_mut(id) {
            Some(&mut PeerState::Up(key)) => {
                // SAFETY: the caller's contract.
                unsafe { self.send_long(key, op, iov, owner) }
            }
            Some(PeerState::Connecting(queue)) => {
                // As many wait at most as a peer has requests.
                // SAFETY: the caller's contract.
                queue.push(unsafe { PendingSend::new(op, iov) });
                Ok(())
            }
            _ => Err(OpError::Failed(Errno::ECONNRESET)),
        };
        if sent != Err(OpError::Again) {
            self.idle_closer.count_reply(op.dest);
        }
        sent
    }

    /// A peer has closed the link that has this segment, or is gone. Without a segment, a watched
    /// peer without a link is gone.
    pub(crate) fn peer_gone<O: Owner>(
        &mut self,
        id: u64,
        segment: Option<Arc<ShmSegment>>,
        said_so: bool,
        owner: &mut O,
    ) {
        let (errno, why) = match said_so {
            true => (Errno::ESHUTDOWN, "the peer closed its endpoint"),
            false => (Errno::ECONNRESET, "the peer's process is gone"),
        };
        match (self.peers.get_mut(id), segment) {
            (Some(&mut PeerState::Up(key)), Some(segment))
                if Arc::ptr_eq(self.links[key].segment(), &segment) =>
            {
                self.drain(key, owner);
                self.fail_link(key, errno, why, owner);
            }
            (Some(&mut PeerState::IdleClosed(addr)), None) => {
                self.peers.set_gone(id, errno, addr);
                owner.srx().fail_source(addr, errno, why, |_| false);
                owner.peer_gone(addr);
            }
            // The end of this link is known already.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
