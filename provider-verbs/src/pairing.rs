//! The pair that an RDM endpoint is: verbs as owner, shared memory as its peer for the processes of this node.
//!
//! An address on this node goes to shared memory. Where that can not be had (another network namespace, another user,
//! shared memory switched off at the other side) what was to go there is handed back, in its order, and goes by verbs from
//! then on. Both transports report to the same owner, so a wildcard receive matches either.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, PeerAv, SendDone, Start, Token, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp};
use ferrofabric_shm::{PendingSend, ShmTransport};

use crate::endpoint::rdm::{self, RdmTransport};

/// What tokens of the shared-memory transport carry.
pub(crate) const SHM_TRANSPORT: u32 = rdm::TRANSPORT + 1;

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Undecided,
    Shm,
    Verbs,
}

#[derive(Clone, Copy)]
struct Route {
    addr: FiAddr,
    path: Path,
}

const NO_ROUTE: Route = Route {
    addr: FiAddr::NOTAVAIL,
    path: Path::Undecided,
};

/// Both transports of an endpoint.
pub(crate) struct Paired {
    verbs: RdmTransport,
    shm: Option<ShmTransport>,
    node: u64,
    /// By the low 32 bits of an address.
    routes: Vec<Route>,
}

impl Paired {
    /// Pairs the two; `name` is the endpoint's full address.
    pub(crate) fn new(verbs: RdmTransport, shm: Option<ShmTransport>, name: &NativeAddr) -> Self {
        Self {
            verbs,
            shm,
            node: name.node,
            routes: Vec::new(),
        }
    }

    #[inline]
    fn path(&self, addr: FiAddr) -> Path {
        match self.routes.get(addr.0 as u32 as usize) {
            Some(route) if route.addr == addr => route.path,
            _ => Path::Undecided,
        }
    }

    #[cold]
    fn decide<O: Owner>(&mut self, addr: FiAddr, owner: &O) -> Result<Path, OpError> {
        let name = owner
            .av()
            .lookup(addr)
            .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        let local = self.shm.is_some() && name.shm.is_some() && name.node == self.node;
        let path = match (local, name.verbs) {
            (true, _) => Path::Shm,
            (false, Some(_)) => Path::Verbs,
            (false, None) => return Err(OpError::Failed(Errno::EHOSTUNREACH)),
        };
        self.set_path(addr, path);
        Ok(path)
    }

    fn set_path(&mut self, addr: FiAddr, path: Path) {
        let at = addr.0 as u32 as usize;
        if self.routes.len() <= at {
            self.routes.resize(at + 1, NO_ROUTE);
        }
        self.routes[at] = Route { addr, path };
        tracing::info!("{addr:?} is reached through {path:?}");
    }

    /// Sends by verbs what shared memory could not.
    #[cold]
    fn reroute<O: Owner>(&mut self, first: (FiAddr, Vec<PendingSend>), owner: &mut O) {
        let mut next = Some(first);
        while let Some((addr, sends)) = next {
            let has_verbs = owner
                .av()
                .lookup(addr)
                .is_some_and(|name| name.verbs.is_some());
            if has_verbs {
                self.set_path(addr, Path::Verbs);
            }
            for send in sends {
                // SAFETY: the sends were handed over with the promise that their buffers stay until completion; copies
                // live as long as `send`, and a send that keeps them has flag INJECT and copies again.
                let sent = unsafe { self.verbs.send_whatever_waits(&send.op, send.iov(), owner) };
                if let Err(error) = sent {
                    owner.fail_send(
                        &SendDone::of(&send.op, 0),
                        error.errno(),
                        0,
                        "the peer is on this node, and neither shared memory nor verbs reaches it",
                    );
                }
            }
            next = self.shm.as_mut().and_then(ShmTransport::take_unreachable);
        }
    }
}

impl Transport for Paired {
    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let path = match self.path(op.dest) {
            Path::Undecided => self.decide(op.dest, owner)?,
            path => path,
        };
        match (path, &mut self.shm) {
            (Path::Shm, Some(shm)) => {
                // A run of sends may go both ways.
                if !op.flags.contains(Flags::MORE) {
                    self.verbs.flush(owner);
                }
                // SAFETY: the caller's promise.
                unsafe { shm.send(op, iov, owner) }
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.verbs.send(op, iov, owner) },
        }
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        match (start.token.transport, &mut self.shm) {
            // SAFETY: the caller's promise.
            (SHM_TRANSPORT, Some(shm)) => unsafe { shm.start(start, owner) },
            // SAFETY: the caller's promise.
            _ => unsafe { self.verbs.start(start, owner) },
        }
    }

    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O) {
        match (token.transport, &mut self.shm) {
            (SHM_TRANSPORT, Some(shm)) => shm.discard(kind, token, owner),
            _ => self.verbs.discard(kind, token, owner),
        }
    }

    #[inline]
    fn flush<O: Owner>(&mut self, owner: &mut O) {
        self.verbs.flush(owner);
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        if let Some(shm) = &mut self.shm {
            done += shm.progress(owner);
            if let Some(first) = shm.take_unreachable() {
                self.reroute(first, owner);
            }
        }
        done + self.verbs.progress(owner)
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        if let Some(shm) = &mut self.shm {
            shm.peer_inserted(addr, name, owner);
        }
        self.verbs.peer_inserted(addr, name, owner);
    }

    fn has_strangers(&self) -> bool {
        self.shm.as_ref().is_some_and(Transport::has_strangers) || self.verbs.has_strangers()
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        if let Some(route) = self.routes.get_mut(addr.0 as u32 as usize) {
            if route.addr == addr {
                *route = NO_ROUTE;
            }
        }
        if let Some(shm) = &mut self.shm {
            shm.peer_removed(addr, owner);
        }
        self.verbs.peer_removed(addr, owner);
    }

    fn arm(&mut self) -> Result<bool> {
        let mut quiet = self.verbs.arm()?;
        if let Some(shm) = &mut self.shm {
            quiet &= shm.arm()?;
        }
        Ok(quiet)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        if let Some(shm) = &self.shm {
            Transport::stats(shm, report);
        }
        self.verbs.stats(report);
    }
}
