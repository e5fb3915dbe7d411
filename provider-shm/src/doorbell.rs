//! Waking who sleeps: one datagram socket of an endpoint, on an abstract name that its address tells. What is in a
//! datagram does not matter; anybody may send one, and wakes somebody who finds nothing and sleeps on.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ferrofabric_core::error::{Errno, Error, Result};
use nix::errno::Errno as Sys;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, recv, sendto, socket,
};

/// An endpoint's doorbell.
#[derive(Debug)]
pub(crate) struct Doorbell {
    socket: OwnedFd,
}

/// Rings that are taken out at once: more than a socket's queue has by default.
const DRAIN: usize = 64;

impl Doorbell {
    /// Hangs up the doorbell of the endpoint `id`.
    pub(crate) fn open(id: u64) -> Result<Self> {
        let fail = |e: Sys| Error::new(Errno(e as i32), "open", format!("doorbell {id:016x}"));
        let socket = datagram_socket().map_err(fail)?;
        bind(socket.as_raw_fd(), &address(id).map_err(fail)?).map_err(fail)?;
        Ok(Self { socket })
    }

    /// Rings at the endpoint `id`. Whoever has a full queue is woken already; whoever is gone is noticed elsewhere.
    pub(crate) fn ring(&self, id: u64) {
        if let Ok(to) = address(id) {
            let _ = sendto(
                self.socket.as_raw_fd(),
                &[1],
                &to,
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            );
        }
    }

    /// Takes out what was rung.
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

/// A socket to ring with, or to find out who still has a doorbell.
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
