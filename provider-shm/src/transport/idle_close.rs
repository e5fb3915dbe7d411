//! Links whose peers are not in the address vector: the segment goes once nothing happens in it and
//! the other side agrees (`link/close.rs`), and with it all that we keep of the peer. Whoever has
//! something to say next connects anew, and keeps its link as long as it talks, and for a while
//! after that.

use std::collections::HashMap;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Owner, PeerAv, PeerSrx};
use slab::Slab;

use super::ShmTransport;
use crate::link::{CloseMessage, Link};
use crate::peers::Peer;
use crate::ring::Broken;
use crate::segment::Segment;
use crate::service::Command;

/// Looks without anything new after which we ask for the end of a link whose peer was removed,
/// doubled each time that the peer has it stay, so many times at most. There is a look each second.
const MAX_DOUBLINGS: u32 = 6;
/// Who connects and is not in the address vector has something to say, now and then: as if its link
/// had stayed so many times.
const UNKNOWN_SOURCES_DOUBLINGS: u32 = 3;

/// The links of unknown sources, and which of them are idle.
#[derive(Default)]
pub(super) struct IdleCloser {
    /// By key, what was seen of them.
    watched: HashMap<usize, Watch>,
    /// The service thread tells when it is time for the next look.
    look_is_due: bool,
}

impl IdleCloser {
    /// How many links are watched.
    #[cfg(feature = "fuzzing")]
    pub(super) fn len(&self) -> usize {
        self.watched.len()
    }

    /// Whether the service thread has to be asked for the next look.
    fn lacks_look(&mut self) -> bool {
        !self.watched.is_empty() && !std::mem::replace(&mut self.look_is_due, true)
    }

    /// Looks at all links that are watched. Returns the keys of those on which nothing has happened
    /// for long enough.
    fn look(&mut self, links: &Slab<Box<Link>>) -> Vec<usize> {
        self.look_is_due = false;
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
            let is_long_enough = watch.quiet >= 1 << link.stays().min(MAX_DOUBLINGS);
            let is_closing = link.has_asked_to_close() || link.has_close_message();
            if is_long_enough && !is_closing && link.is_settled() {
                idle.push(key);
            }
        }
        idle
    }
}

#[derive(Default)]
struct Watch {
    /// What had gone either way; `None`: nobody has looked.
    seen: Option<(u32, u32)>,
    /// Looks in a row that found no more.
    quiet: u32,
}

impl ShmTransport {
    /// The peer of a link was removed from the address vector.
    pub(super) fn watch_removed(&mut self, key: usize) {
        self.links[key].count_stays_from(0);
        self.watch(key);
    }

    /// A link is there with a peer that is not in the address vector.
    pub(super) fn watch_unknown_source(&mut self, key: usize) {
        self.links[key].count_stays_from(UNKNOWN_SOURCES_DOUBLINGS);
        self.watch(key);
    }

    fn watch(&mut self, key: usize) {
        self.idle_closer.watched.insert(key, Watch::default());
        self.look_later();
    }

    fn look_later(&mut self) {
        if self.idle_closer.lacks_look() {
            self.service.tell(Command::Look);
        }
    }

    /// A link is no more, or its peer was inserted.
    pub(super) fn unwatch(&mut self, key: usize) {
        self.idle_closer.watched.remove(&key);
    }

    /// Asks for the end of the links of unknown sources on which nothing has happened for long
    /// enough.
    pub(super) fn look<O: Owner>(&mut self, owner: &mut O) {
        for key in self.idle_closer.look(&self.links) {
            if let Err(broken) = self.say(key, CloseMessage::Ask) {
                self.fail_link(key, Errno::EPROTO, broken.0, owner);
            }
        }
        self.look_later();
    }

    /// Says something about the end of a link; false if that is not possible now.
    fn say(&mut self, key: usize, what: CloseMessage) -> Result<bool, Broken> {
        let link = &mut *self.links[key];
        let said = link.send_close(what, self.receiver.stats_mut())?;
        if said {
            // Sends are to look whether they have to wait.
            self.peers.end_routes();
        }
        Ok(said)
    }

    /// The peer has said something about the end of a link. Returns how many things were done.
    #[cold]
    pub(super) fn answer_close<O: Owner>(&mut self, key: usize, owner: &mut O) -> usize {
        self.try_answer_close(key, owner).unwrap_or_else(|broken| {
            self.fail_link(key, Errno::EPROTO, broken.0, owner);
            1
        })
    }

    fn try_answer_close<O: Owner>(&mut self, key: usize, owner: &mut O) -> Result<usize, Broken> {
        let Some(link) = self.links.get_mut(key) else {
            return Ok(0);
        };
        if !link.has_close_message() {
            return Ok(0);
        }
        // Both have asked, or the peer has agreed.
        if link.has_asked_to_close() {
            if link.is_under_way() {
                return Err(Broken("it left while messages were under way"));
            }
            self.part(key, owner);
            return Ok(1);
        }
        let answer = match link.is_settled() {
            true => CloseMessage::Agree,
            false => CloseMessage::Stay,
        };
        if !self.say(key, answer)? {
            return Ok(0);
        }
        if answer == CloseMessage::Agree {
            self.part(key, owner);
        }
        Ok(1)
    }

    /// Ends a link in good order. What waits for its peer goes over the next one.
    fn part<O: Owner>(&mut self, key: usize, owner: &mut O) {
        let Some(mut link) = self.remove_link(key) else {
            return;
        };
        tracing::info!(peer = %link.native(), "shared-memory link given back");
        self.receiver.stats_mut().links_left += 1;
        self.receiver.outlives(key, &link);
        let (id, addr, native) = (link.id(), link.addr(), link.native());
        let (segment, pending) = (
            Arc::clone(link.segment()),
            std::mem::take(link.pending_mut()),
        );
        // Says that we are through with it, before anybody connects anew.
        drop(link);
        // Who has the peer in its address vector may wait for its messages, and is to hear when it
        // is gone.
        let watch = pending.is_empty() && addr.is_some() && id != self.id;
        self.service.tell(Command::Forget(id, Some(segment), watch));
        match watch {
            true => self.peers.set(id, Peer::Left(Box::new(native))),
            false => self.peers.remove(id),
        };
        if !pending.is_empty() {
            self.peers.set(id, Peer::Connecting(pending));
            if let Err(OpError::Failed(errno)) = self.connect(id, native, owner) {
                self.give_up(id, errno, "no segment can be had", owner);
            }
        }
    }

    /// A peer has ended the link that has this segment, or is gone; without one, it is gone with
    /// which there was a link until neither side had more to say.
    pub(crate) fn gone<O: Owner>(
        &mut self,
        id: u64,
        segment: Option<Arc<Segment>>,
        said_so: bool,
        owner: &mut O,
    ) {
        let (errno, why) = match said_so {
            true => (Errno::ESHUTDOWN, "the peer closed its endpoint"),
            false => (Errno::ECONNRESET, "the peer's process is gone"),
        };
        match (self.peers.get_mut(id), segment) {
            (Some(&mut Peer::Up(key)), Some(segment))
                if Arc::ptr_eq(self.links[key].segment(), &segment) =>
            {
                self.drain(key, owner);
                self.fail_link(key, errno, why, owner);
            }
            (Some(Peer::Left(native)), None) => {
                let addr = owner.av().find(native);
                self.peers.set_gone(id, errno, addr);
                if addr.is_some() {
                    owner.srx().fail_source(addr, errno, why, |_| false);
                }
            }
            // The end of a link that is known of.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
