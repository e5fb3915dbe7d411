//! A shortage of queue pairs, announced to the endpoints of this machine that have the device.
//!
//! All processes of a machine share the device's queue pairs. An endpoint that gets none can give
//! up a lane of its own; if it has none, it depends on lanes of other endpoints, which know nothing
//! of it. So it announces the shortage. Each endpoint with lanes looks once a second, and gives up
//! the lane that it used least recently, as it does for a peer of its own.
//!
//! The announcement is a socket with an abstract name: it ends with its process, and nothing
//! remains in any file system. Processes see each other's within a network namespace.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use ferrofabric_protocol::Time;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};

use super::DeviceContext;

/// An announcement ends by itself after this time. An endpoint that still gets no queue pair tries
/// more often than that, and announces the shortage again.
const LASTS: Duration = Duration::from_secs(10);

/// The number of lanes that an endpoint gives at its first looks, before it gives fewer.
const GIVEN_AT_ONCE: u32 = 8;

/// Once a lane in 16 looks, an endpoint gives no fewer.
const MAX_DOUBLINGS: u32 = 4;

/// A device's shortage of queue pairs, as an endpoint announces it and looks for it.
pub(crate) struct QueuePairShortage {
    name: Option<UnixAddr>,
    /// The announcement of this endpoint, and the time of its last refusal.
    announced: Option<(OwnedFd, Time)>,
    /// Lanes that this endpoint has given since a look found no shortage.
    given: u32,
    /// Looks to come at which it gives none.
    skips: u32,
}

impl QueuePairShortage {
    /// Of a device. Nothing is announced.
    pub(crate) fn of(context: &DeviceContext) -> Self {
        // A device that the kernel does not list is in this process alone.
        let device = match context.facts().node_guid {
            Some(guid) => format!("{guid:016x}"),
            None => format!("{}.{}", context.name(), std::process::id()),
        };
        let name = format!("ferrofabric.{device}.short");
        Self {
            name: UnixAddr::new_abstract(name.as_bytes()).ok(),
            announced: None,
            given: 0,
            skips: 0,
        }
    }

    /// The device has refused a queue pair.
    pub(crate) fn announce(&mut self, now: Time) {
        if let Some((_, refused)) = &mut self.announced {
            *refused = now;
            return;
        }
        // A name that is taken is an announcement, too.
        let bound = datagram_socket().filter(|socket| {
            (self.name).is_some_and(|name| bind(socket.as_raw_fd(), &name).is_ok())
        });
        self.announced = bound.map(|socket| (socket, now));
    }

    /// The device has granted a queue pair.
    pub(crate) fn end(&mut self) {
        self.announced = None;
    }

    /// Ends an announcement whose endpoint needs no queue pair any more.
    pub(crate) fn expire(&mut self, now: Time) {
        self.announced
            .take_if(|(_, refused)| now - *refused >= LASTS);
    }

    /// Whether this endpoint announces a shortage.
    pub(crate) fn is_own(&self) -> bool {
        self.announced.is_some()
    }

    /// Looks for an announcement. Returns whether this endpoint is to give a lane: at each look at
    /// first, and at fewer the longer the shortage lasts. No lane of others ends refusals for want
    /// of lockable memory.
    pub(crate) fn takes_a_lane(&mut self) -> bool {
        if !self.is_announced() {
            (self.given, self.skips) = (0, 0);
            return false;
        }
        if let Some(skips) = self.skips.checked_sub(1) {
            self.skips = skips;
            return false;
        }
        self.given = self.given.saturating_add(1);
        self.skips = (1 << (self.given / GIVEN_AT_ONCE).min(MAX_DOUBLINGS)) - 1;
        true
    }

    /// Whether any endpoint announces a shortage.
    fn is_announced(&self) -> bool {
        let (Some(looking), Some(name)) = (datagram_socket(), self.name) else {
            return false;
        };
        connect(looking.as_raw_fd(), &name).is_ok()
    }
}

fn datagram_socket() -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Datagram, flags, None).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn shortage(device: &str) -> QueuePairShortage {
        let name = format!("ferrofabric.test.{device}.{}", std::process::id());
        QueuePairShortage {
            name: Some(UnixAddr::new_abstract(name.as_bytes()).unwrap()),
            announced: None,
            given: 0,
            skips: 0,
        }
    }

    #[test]
    fn others_see_an_announcement_until_its_end() {
        let [mut a, mut b, other] = ["same", "same", "other"].map(shortage);
        assert!(!a.is_announced() && !b.is_announced());
        a.announce(at(0));
        assert!(a.is_own() && !b.is_own());
        assert!(a.is_announced() && b.is_announced() && !other.is_announced());
        // One announcement is enough for two.
        b.announce(at(0));
        a.end();
        assert!(!b.is_own() && !b.is_announced());
        b.announce(at(1));
        drop(b);
        assert!(!a.is_announced());
    }

    #[test]
    fn an_announcement_ends_with_the_refusals() {
        let [mut a, b] = ["refusals", "refusals"].map(shortage);
        a.announce(at(0));
        a.announce(at(6));
        a.expire(at(15));
        assert!(b.is_announced());
        a.expire(at(16));
        assert!(!a.is_own() && !b.is_announced());
    }

    #[test]
    fn fewer_lanes_go_the_longer_a_shortage_lasts() {
        let [mut a, mut b] = ["long", "long"].map(shortage);
        let given =
            |b: &mut QueuePairShortage, looks| (0..looks).filter(|_| b.takes_a_lane()).count();
        for _ in 0..2 {
            assert_eq!(given(&mut b, 10), 0);
            a.announce(at(0));
            assert_eq!(given(&mut b, 8), 8);
            assert!(given(&mut b, 1000) < 100);
            assert_eq!(given(&mut b, 160), 10);
            a.end();
        }
    }
}
