//! The beginning and the end of links: handles the reports of the service thread, and completes or
//! fails the operations of a link that ends.

use std::sync::Arc;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{Owner, PeerAv, PeerSrx, SendDone};
use ferrofabric_contracts::requester::requester;

use super::ShmTransport;
use crate::config::Unreachable;
use crate::link::ShmLink;
use crate::peers::PeerState;
use crate::ring::SLOTS;
use crate::service::{NewLink, ServiceCommand, ServiceEvent};
use crate::status::{SLEEPS, WANTS_ROOM};

impl ShmTransport {
    pub(super) fn link_up<O: Owner>(&mut self, mut link: ShmLink, owner: &mut O) {
        let stats = self.receiver.stats_mut();
        stats.links += 1;
        let life = stats.links;
        let (id, addr) = (link.id(), owner.av().find(&link.native()));
        link.set_addr(addr);
        let before = self.peers.remove(id);
        if let Some(PeerState::Connecting(queue)) = before {
            link.take_over(queue);
        }
        if self.armed {
            link.own_status().sleep(SLEEPS | WANTS_ROOM);
        }
        let entry = self.links.vacant_entry();
        let key = entry.key();
        // No link has the number of one that had its place before.
        link.set_requester(requester(self.receiver.number(), key, life));
        entry.insert(Box::new(link));
        self.peers.set(id, PeerState::Up(key));
        self.poll_order.add(key);
        if addr.is_some() {
            self.peers.set_id(addr, id);
        } else {
            self.watch_unknown_source(key);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn take_events<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut did = 0;
        self.service.lower_flag();
        while let Some(event) = self.service.next_event() {
            did += 1;
            match event {
                ServiceEvent::Up(new) => self.new_link(new, owner),
                ServiceEvent::Gone(id, segment, said_so) => {
                    self.peer_gone(id, segment, said_so, owner)
                }
                ServiceEvent::Look => self.close_quiet_links(owner),
                ServiceEvent::Unreachable(id, errno, why) => self.give_up(id, errno, why, owner),
            }
        }
        did
    }

    pub(crate) fn new_link<O: Owner>(&mut self, new: NewLink, owner: &mut O) {
        if let Some(&mut PeerState::Up(key)) = self.peers.get_mut(new.id) {
            // The report of the old link's end was overtaken by the new link.
            self.drain(key, owner);
            self.end_link(key, Errno::ECONNRESET, "the peer has connected anew", owner);
        }
        let link = ShmLink::new(new, &self.shared, self.sizes);
        self.link_up(link, owner);
    }

    /// No link can be made with a peer.
    pub(super) fn give_up<O: Owner>(
        &mut self,
        id: u64,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let Some(PeerState::Connecting(queue)) = self.peers.get_mut(id) else {
            return;
        };
        // Answers to requests go by no other transport.
        let answers = queue.take(|send| !send.has_address());
        let queue: Vec<_> = queue.drain().collect();
        self.peers.remove(id);
        for answer in answers {
            owner.fail_send(&SendDone::of(&answer.op, 0), errno, 0, why);
        }
        // No send waits: the peer was removed.
        let Some(first) = queue.first() else { return };
        // A silent peer may answer later; one that does not exist never will.
        if errno == Errno::EHOSTUNREACH {
            self.peers.set_gone(id, errno, first.op.dest);
        }
        tracing::info!(peer = id, why, "no shared-memory link");
        match self.config.unreachable {
            Unreachable::HandBack => {
                self.unreachable.push_back((first.op.dest, queue));
            }
            Unreachable::Fail => {
                let peer = first.op.dest;
                for send in queue {
                    owner.fail_send(&SendDone::of(&send.op, 0), errno, 0, why);
                }
                if errno == Errno::EHOSTUNREACH {
                    owner.srx().fail_source(peer, errno, why, |_| false);
                    owner.peer_gone(peer);
                }
            }
        }
    }

    /// Takes the messages that a dead peer has left in its ring: no more than the ring holds, in
    /// case the peer still writes. If the last one is a close message, the link ended in order.
    pub(super) fn drain<O: Owner>(&mut self, key: usize, owner: &mut O) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        for _ in 0..SLOTS {
            let Some(seen) = link.peek() else { break };
            if self
                .receiver
                .take(key, link, &mut self.outbox, seen, owner)
                .is_err()
            {
                break;
            }
        }
        if (self.links.get(key))
            .is_some_and(|link| link.has_requested_close() && link.has_close_message())
        {
            self.answer_close(key, owner);
        }
    }

    /// Takes a link out. The caller handles its operations.
    pub(super) fn remove_link(&mut self, key: usize) -> Option<Box<ShmLink>> {
        let link = self.links.try_remove(key)?;
        self.unwatch(key);
        self.peers.end_routes();
        self.poll_order.remove(key);
        Some(link)
    }

    /// Ends the link to a peer that is gone: operations that wait for it fail, all other links go
    /// on.
    #[cold]
    #[inline(never)]
    pub(super) fn fail_link<O: Owner>(
        &mut self,
        key: usize,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let addr = self.links.get(key).map(|link| link.addr());
        self.end_link(key, errno, why, owner);
        if let Some(addr) = addr {
            owner.peer_gone(addr);
        }
    }

    /// Ends a link and all its operations.
    fn end_link<O: Owner>(&mut self, key: usize, errno: Errno, why: &'static str, owner: &mut O) {
        let Some(mut link) = self.remove_link(key) else {
            return;
        };
        tracing::info!(peer = %link.native(), why, "shared-memory link ended");
        self.receiver.stats_mut().links_failed += 1;
        if errno == Errno::EPROTO {
            let segment = Some(Arc::clone(link.segment()));
            self.service
                .request(ServiceCommand::Forget(link.id(), segment, false));
        }
        self.peers.set_gone(link.id(), errno, link.addr());
        let sends = link.take_unfinished(&mut self.outbox);
        let receives = self.receiver.take_unfinished(&mut link);
        self.receiver.detach_link(key, &link);
        let addr = link.addr();
        // Sets our `CLOSED` flag before the application regains memory that the peer may be
        // reading.
        drop(link);
        for done in sends {
            owner.fail_send(&done, errno, 0, why);
        }
        for (kind, matched, arrived) in receives {
            owner.fail_recv(kind, &matched, &arrived, errno, 0, why);
        }
        // Complete messages can still be received; the owner drops incomplete ones.
        let receiver = &self.receiver;
        let lost = |token| receiver.is_lost_with(token, key);
        owner.srx().fail_source(addr, errno, why, lost);
        self.receiver.forget_partial(key);
        self.lift_back_pressure();
    }

    /// Lifts the back-pressure of all links if there is room again for unexpected messages.
    #[inline]
    pub(super) fn lift_back_pressure(&mut self) {
        if self.receiver.take_relief() {
            for (_, link) in &mut self.links {
                self.receiver.update_back_pressure(link);
            }
        }
    }
}
