//! Whether an endpoint on this node takes messages through a provider: sockets on abstract names
//! made of the provider's and the endpoint's.
//!
//! The name is there from before the endpoint's address is known to anybody until the endpoint
//! closes or its process ends, in whatever way that happens. A provider written in C reports
//! neither. An endpoint with another setting has no such socket, nor has one in another network
//! namespace, or in a process with another version of libfabric, whose memory has another layout.
//! In a child of fork that lives on, the name does so too.
//!
//! A second name says that there is room for one more peer. Each peer announces itself there before
//! it uses the provider, for `shm` counts senders, too, and confuses two beyond its limit.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::forked::Birth;

use super::name_of;
use crate::host::Host;

/// Peers that an endpoint takes: `shm` takes the 257th for another one. A peer that announces
/// itself is counted 0.1 s later, so some more may come.
const MOST_PEERS: usize = 160;

/// The presence of an endpoint of this process.
pub(super) struct Presence {
    #[expect(dead_code, reason = "its name is there while it is open")]
    here: UnixDatagram,
    /// `None`: there are as many peers as the provider can tell apart.
    room: Option<UnixDatagram>,
    /// The peers that the provider has or will have, with the number of their names there.
    peers: HashMap<u64, CountedPeer>,
    /// All of those names.
    names: usize,
}

/// A peer of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct CountedPeer {
    names: usize,
    has_announced: bool,
}

/// Looks for the presence of others.
pub(super) struct PresenceProbe {
    provider: &'static str,
    socket: UnixDatagram,
    birth: Birth,
}

/// The provider that has a file in /dev/shm for each endpoint.
pub(super) const SHM: &str = "shm";

/// Where its files are.
pub(super) const SHM_FILES: &str = "/dev/shm";

/// Whether an endpoint's file is this user's, so that each of the two may open that of the other.
fn is_ours(number: u64) -> bool {
    let path = Path::new(SHM_FILES).join(name_of(number));
    let file = OpenOptions::new().read(true).write(true).open(path);
    // SAFETY: it takes nothing and can not fail.
    let user = unsafe { libc::geteuid() };
    file.and_then(|file| file.metadata())
        .is_ok_and(|file| file.uid() == user)
}

fn address(what: &str, provider: &str, number: u64) -> std::io::Result<SocketAddr> {
    let version = Host::get().map_or(0, Host::version);
    let name = format!("ferrofabric.{number:016x}.{provider}.{version:x}.{what}");
    SocketAddr::from_abstract_name(name)
}

fn here(provider: &str, number: u64) -> std::io::Result<SocketAddr> {
    address("here", provider, number)
}

fn room(provider: &str, number: u64) -> std::io::Result<SocketAddr> {
    address("room", provider, number)
}

impl Presence {
    /// Shows that the endpoint with this number takes messages through a provider.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another endpoint has the number.
    pub(super) fn show(provider: &str, number: u64) -> Result<Self> {
        let bind = |name: std::io::Result<SocketAddr>| {
            let socket = name.and_then(|name| UnixDatagram::bind_addr(&name))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let failed = |e: std::io::Error| {
            Error::from_io(&e, "bind", format!("presence of {provider} {number:016x}"))
        };
        Ok(Self {
            here: bind(here(provider, number)).map_err(failed)?,
            room: Some(bind(room(provider, number)).map_err(failed)?),
            peers: HashMap::new(),
            names: 0,
        })
    }

    /// Counts the peers that have announced themselves, and lets in no more if there are many.
    pub(super) fn count(&mut self) {
        let mut number = [0; size_of::<u64>()];
        while let Some(Ok(len)) = self.room.as_ref().map(|room| room.recv(&mut number)) {
            if len == number.len() {
                let number = u64::from_ne_bytes(number);
                self.add(number, 1);
                self.peers.entry(number).or_default().has_announced = true;
            }
        }
    }

    /// The provider has a peer by so many names.
    pub(super) fn add(&mut self, number: u64, names: usize) {
        let known = self.peers.entry(number).or_default();
        self.names += names.saturating_sub(known.names);
        known.names = known.names.max(names);
        if self.is_full() {
            self.room = None;
        }
    }

    /// Whether there is no room for one more.
    pub(super) fn is_full(&self) -> bool {
        self.names >= MOST_PEERS
    }

    /// Whether a peer has announced itself.
    pub(super) fn has_announced(&self, number: u64) -> bool {
        self.peers
            .get(&number)
            .is_some_and(|known| known.has_announced)
    }
}

impl PresenceProbe {
    /// For endpoints that take messages through a provider.
    ///
    /// # Errors
    ///
    /// When there is no descriptor.
    pub(super) fn new(provider: &'static str) -> Result<Self> {
        let socket = UnixDatagram::unbound()
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(|e| Error::from_io(&e, "create", "socket that looks for local endpoints"))?;
        Ok(Self {
            provider,
            socket,
            birth: Birth::here(),
        })
    }

    /// Whether the endpoint with this number is there and has room, and the memory of each of the
    /// two is open to the other. `false` if that can not be found out.
    pub(super) fn finds(&self, number: u64) -> bool {
        let has_room = self.birth.is_this_process()
            && room(self.provider, number)
                .and_then(|name| self.socket.connect_addr(&name))
                .is_ok();
        has_room && (self.provider != SHM || is_ours(number))
    }

    /// Announces an endpoint to the one with this number. Returns whether that has room. Where many
    /// announce themselves at once, it does not count some.
    pub(super) fn announce(&self, own: u64, number: u64) -> bool {
        let sent = room(self.provider, number)
            .and_then(|name| self.socket.send_to_addr(&own.to_ne_bytes(), &name));
        match sent {
            Ok(_) => self.birth.is_this_process(),
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// Whether the endpoint with this number is gone. `false` if that can not be found out.
    pub(super) fn misses(&self, number: u64) -> bool {
        let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
        here(self.provider, number)
            .and_then(|name| self.socket.connect_addr(&name))
            .is_err_and(refused)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use ferrofabric_contracts::error::Errno;

    use super::*;

    /// A number that no other test has.
    fn number(of: u64) -> u64 {
        0x7700_0000_0000_0000 | (u64::from(std::process::id()) << 16) | (of << 8)
    }

    #[test]
    fn an_endpoint_is_found_by_its_provider_and_number_while_it_is_there() {
        let number = number(1);
        let probe = PresenceProbe::new("near").unwrap();
        assert!(!probe.finds(number) && probe.misses(number));
        let presence = Presence::show("near", number).unwrap();
        for _ in 0..2 {
            assert!(probe.finds(number) && !probe.misses(number));
            assert!(!probe.finds(number | 1) && probe.misses(number | 1));
        }
        let other = PresenceProbe::new("other").unwrap();
        assert!(!other.finds(number));
        let again = Presence::show("near", number).err().unwrap();
        assert_eq!(again.errno(), Errno::EADDRINUSE);
        drop(presence);
        assert!(!probe.finds(number) && probe.misses(number));
    }

    #[test]
    fn a_peer_with_two_names_takes_the_room_of_two() {
        let mut presence = Presence::show("near", number(3)).unwrap();
        for peer in 0..MOST_PEERS as u64 / 2 {
            assert!(!presence.is_full());
            presence.add(peer, 1);
            presence.add(peer, 2);
        }
        assert!(presence.is_full());
    }

    #[test]
    fn an_endpoint_with_many_peers_is_there_and_has_no_room() {
        let number = number(2);
        let probe = PresenceProbe::new("near").unwrap();
        let mut presence = Presence::show("near", number).unwrap();
        for peer in 0..MOST_PEERS as u64 {
            // The second time it is not counted.
            assert!(probe.announce(peer, number) && probe.announce(peer, number));
            presence.count();
        }
        assert!(presence.has_announced(0) && !presence.has_announced(MOST_PEERS as u64));
        assert!(presence.is_full());
        assert!(!probe.finds(number) && !probe.announce(MOST_PEERS as u64, number));
        assert!(!probe.misses(number));
    }
}
