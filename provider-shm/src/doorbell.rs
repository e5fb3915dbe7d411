//! The doorbell of an endpoint, which wakes it from its sleep: one datagram socket on an abstract
//! name that contains the endpoint's id.
//!
//! The content of a datagram does not matter. Any process may send one; the endpoint then wakes,
//! finds nothing and sleeps on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ferrofabric_contracts::error::{Errno, Error, Result};
use nix::errno::Errno as Sys;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, recv, sendto, socket,
};

/// An endpoint's doorbell.
#[derive(Debug)]
pub(crate) struct Doorbell {
    socket: OwnedFd,
}

/// Datagrams that one read takes out: more than a socket's queue has by default.
const DRAIN: usize = 64;

impl Doorbell {
    /// Opens the doorbell of the endpoint `id`.
    pub(crate) fn open(id: u64) -> Result<Self> {
        let fail = |e: Sys| Error::new(Errno(e as i32), "open", format!("doorbell {id:016x}"));
        let socket = datagram_socket().map_err(fail)?;
        bind(socket.as_raw_fd(), &address(id).map_err(fail)?).map_err(fail)?;
        Ok(Self { socket })
    }

    /// Rings the doorbell of the endpoint `id`. False: the ring failed now, and the caller tries
    /// again later. An endpoint whose queue is full is awake already; the sweep notices one that
    /// is gone.
    #[must_use]
    pub(crate) fn ring(&self, id: u64) -> bool {
        let Ok(to) = address(id) else { return true };
        match ring_from(&self.socket, &to) {
            Err(Sys::EAGAIN) => ring_from_new_socket(&to),
            rung => !lacks_resources(rung),
        }
    }

    /// Takes all datagrams out.
    pub(crate) fn drain(&self) {
        let mut byte = [0];
        for _ in 0..DRAIN {
            match recv(
                self.socket.as_raw_fd(),
                &mut byte,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC,
            ) {
                Ok(_) | Err(Sys::EINTR) => {}
                Err(_) => break,
            }
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn ring_from(socket: &OwnedFd, to: &UnixAddr) -> nix::Result<()> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendto(socket.as_raw_fd(), &[1], to, flags).map(drop)
}

/// Rings once more, from a new socket. Datagrams count against the buffer of the socket that sent
/// them until the receiver takes them. If that buffer was full, after some 270 datagrams, this ring
/// succeeds, and the datagram stays when its socket is closed. If the receiver's queue was full,
/// this ring fails too, and is not needed.
#[cold]
fn ring_from_new_socket(to: &UnixAddr) -> bool {
    let rung = datagram_socket().and_then(|socket| ring_from(&socket, to));
    !lacks_resources(rung)
}

/// Whether a ring failed for lack of memory or descriptors, which may pass.
fn lacks_resources(done: nix::Result<()>) -> bool {
    use Sys::{EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(done, Err(ENOBUFS | ENOMEM | EMFILE | ENFILE | EINTR))
}

/// A socket to ring with, or to find out whether a doorbell still exists.
pub(crate) fn datagram_socket() -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Unix,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )
}

/// The doorbell's name.
pub(crate) fn address(id: u64) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("ferrofabric.{id:016x}.bell").as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn bells(kind: u64, n: u64) -> Vec<(u64, Doorbell)> {
        let of_ours = (kind << 48) | (u64::from(std::process::id()) << 16);
        let ids = (0..n).map(|i| of_ours | i);
        ids.map(|id| (id, Doorbell::open(id).unwrap())).collect()
    }

    fn is_rung(bell: &Doorbell) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        recv(bell.socket.as_raw_fd(), &mut [0], flags).is_ok()
    }

    /// Datagrams that no endpoint has taken yet use up a socket's buffer: the next sleeper is woken
    /// all the same.
    #[test]
    fn one_endpoint_rings_many() {
        let (sleepers, own) = (bells(1, 400), bells(2, 1));
        for (id, _) in &sleepers {
            assert!(own[0].1.ring(*id));
        }
        let unheard = sleepers.iter().filter(|(_, bell)| !is_rung(bell));
        assert_eq!(unheard.count(), 0, "of 400 hear nothing");
    }

    /// An endpoint with a full queue that never takes its datagrams does not hinder other rings.
    #[test]
    fn a_full_doorbell_hinders_no_other_ring() {
        let (deaf, sleepers, own) = (bells(3, 1), bells(4, 300), bells(5, 1));
        for (id, _) in &sleepers {
            for _ in 0..DRAIN {
                assert!(own[0].1.ring(deaf[0].0));
            }
            assert!(own[0].1.ring(*id));
        }
        assert!(sleepers.iter().all(|(_, bell)| is_rung(bell)));
        deaf[0].1.drain();
        assert!(!is_rung(&deaf[0].1), "more than its queue has");
        assert!(own[0].1.ring(deaf[0].0));
        assert!(is_rung(&deaf[0].1));
    }
}
