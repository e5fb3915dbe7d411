//! The pair that an RDM endpoint is: a transport for all peers as owner, and as its peer one for
//! the processes of this node, which is the better way to them.
//!
//! An address on this node goes to the near transport. Where that can not be had (another network
//! namespace, another user, shared memory switched off at the other side) what was to go there is
//! handed back, in its order, and goes by the far one from then on. Both report to the same owner,
//! so a wildcard receive matches either.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, PeerAv, SendDone, Start, Token, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp};

/// Either transport of a pair.
pub(crate) trait Reaches: Transport {
    /// Its name in logs.
    const NAME: &'static str;

    /// Whether it takes what goes to this address.
    fn takes(&self, name: &NativeAddr) -> bool;
}

/// The far transport: it also sends what the near one has accepted and cannot send.
pub(crate) trait TakesOver: Reaches {
    /// Sends an operation that was accepted before: it is queued whatever waits before it.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    ///
    /// # Errors
    ///
    /// As [`Transport::send`], but never [`OpError::Again`].
    unsafe fn take_over<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError>;
}

/// The near transport: it returns the operations that it has accepted and cannot send.
pub(crate) trait HandsBack: Reaches {
    /// Such an operation.
    type Unsent: Unsent;
    /// What its tokens carry, and none of the far transport's.
    const TRANSPORT: u32;

    /// The operations for one peer, in their order, if there are any.
    fn handed_back(&mut self) -> Option<(FiAddr, Vec<Self::Unsent>)>;
}

/// An operation that was accepted and not sent.
///
/// # Safety
///
/// The buffers are those that came with the operation; or a copy that lives as long as `self`, and
/// then the operation has [`Flags::INJECT`].
pub(crate) unsafe trait Unsent {
    /// The operation.
    fn op(&self) -> &SendOp;

    /// Where the data lies.
    fn iov(&self) -> &[IoBuf];
}

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Undecided,
    Near,
    Far,
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
pub(crate) struct Paired<F, N> {
    far: F,
    near: Option<N>,
    /// By the low 32 bits of an address.
    routes: Vec<Route>,
}

impl<F: TakesOver, N: HandsBack> Paired<F, N> {
    /// Pairs the two.
    pub(crate) fn new(far: F, near: Option<N>) -> Self {
        Self {
            far,
            near,
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
        let is_near = self.near.as_ref().is_some_and(|near| near.takes(&name));
        let path = match is_near {
            true => Path::Near,
            false if self.far.takes(&name) => Path::Far,
            false => return Err(OpError::Failed(Errno::EHOSTUNREACH)),
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
        let through = match path {
            Path::Undecided => return,
            Path::Near => N::NAME,
            Path::Far => F::NAME,
        };
        tracing::info!("{addr:?} is reached through {through}");
    }

    /// Sends by the far transport what the near one could not.
    #[cold]
    fn reroute<O: Owner>(&mut self, first: (FiAddr, Vec<N::Unsent>), owner: &mut O) {
        let mut next = Some(first);
        while let Some((addr, sends)) = next {
            let name = owner.av().lookup(addr);
            if name.is_some_and(|name| self.far.takes(&name)) {
                self.set_path(addr, Path::Far);
            }
            for send in sends {
                // SAFETY: the sends were handed over with the promise that their buffers stay until
                // completion; copies live as long as `send`, and a send that keeps them has flag
                // INJECT and copies again.
                let sent = unsafe { self.far.take_over(send.op(), send.iov(), owner) };
                if let Err(error) = sent {
                    owner.fail_send(
                        &SendDone::of(send.op(), 0),
                        error.errno(),
                        0,
                        "the peer is on this node, and neither shared memory nor verbs reaches it",
                    );
                }
            }
            next = self.near.as_mut().and_then(N::handed_back);
        }
    }
}

impl<F: TakesOver, N: HandsBack> Transport for Paired<F, N> {
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
        match (path, &mut self.near) {
            (Path::Near, Some(near)) => {
                // A run of sends may go both ways.
                if !op.flags.contains(Flags::MORE) {
                    self.far.flush(owner);
                }
                // SAFETY: the caller's promise.
                unsafe { near.send(op, iov, owner) }
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.far.send(op, iov, owner) },
        }
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        match (start.token.transport, &mut self.near) {
            // SAFETY: the caller's promise.
            (transport, Some(near)) if transport == N::TRANSPORT => unsafe {
                near.start(start, owner)
            },
            // SAFETY: the caller's promise.
            _ => unsafe { self.far.start(start, owner) },
        }
    }

    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O) {
        match (token.transport, &mut self.near) {
            (transport, Some(near)) if transport == N::TRANSPORT => {
                near.discard(kind, token, owner)
            }
            _ => self.far.discard(kind, token, owner),
        }
    }

    #[inline]
    fn flush<O: Owner>(&mut self, owner: &mut O) {
        self.far.flush(owner);
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        if let Some(near) = &mut self.near {
            done += near.progress(owner);
            if let Some(first) = near.handed_back() {
                self.reroute(first, owner);
            }
        }
        done + self.far.progress(owner)
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        if let Some(near) = &mut self.near {
            near.peer_inserted(addr, name, owner);
        }
        self.far.peer_inserted(addr, name, owner);
    }

    fn has_unknown_sources(&self) -> bool {
        self.near
            .as_ref()
            .is_some_and(Transport::has_unknown_sources)
            || self.far.has_unknown_sources()
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        if let Some(route) = self.routes.get_mut(addr.0 as u32 as usize) {
            if route.addr == addr {
                *route = NO_ROUTE;
            }
        }
        if let Some(near) = &mut self.near {
            near.peer_removed(addr, owner);
        }
        self.far.peer_removed(addr, owner);
    }

    fn arm(&mut self) -> Result<bool> {
        let mut quiet = self.far.arm()?;
        if let Some(near) = &mut self.near {
            quiet &= near.arm()?;
        }
        Ok(quiet)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        if let Some(near) = &self.near {
            Transport::stats(near, report);
        }
        self.far.stats(report);
    }
}
