//! Whether a peer still exists, with no descriptor kept for it. The name of its doorbell disappears
//! with its process, in whatever way that ends, and is visible from every PID namespace. A stopped
//! or busy process counts as alive.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno as Sys;
use nix::sys::socket::connect;

use crate::doorbell::{address, datagram_socket};

/// Checks whether endpoints exist, with one socket for all of them.
pub(crate) struct Liveness {
    socket: OwnedFd,
}

impl Liveness {
    pub(crate) fn new() -> nix::Result<Self> {
        Ok(Self {
            socket: datagram_socket()?,
        })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether the endpoint's doorbell exists. True if the check fails.
    pub(crate) fn exists(&self, id: u64) -> bool {
        let Ok(name) = address(id) else { return true };
        connect(self.socket.as_raw_fd(), &name) != Err(Sys::ECONNREFUSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doorbell::Doorbell;

    #[test]
    fn an_endpoint_exists_as_long_as_its_doorbell() {
        let liveness = Liveness::new().unwrap();
        assert!(!liveness.exists(0x1234_5678_9abc_def1));
        let bells: Vec<_> = (0..3)
            .map(|i| Doorbell::open(0x1234_5678_9abc_def0 + i).unwrap())
            .collect();
        for _ in 0..2 {
            for i in 0..3 {
                assert!(liveness.exists(0x1234_5678_9abc_def0 + i));
            }
            assert!(!liveness.exists(0x1234_5678_9abc_def3));
        }
        drop(bells);
        assert!(!liveness.exists(0x1234_5678_9abc_def1));
    }
}
