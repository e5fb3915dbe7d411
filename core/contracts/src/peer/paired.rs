//! The pair of transports of an RDM endpoint: a far one for all peers, and a near one for the
//! processes of this node, which is the better transport to them.
//!
//! An address on this node goes to the near transport. If that is impossible (another network
//! namespace, another user, shared memory switched off at the other side), the near transport hands
//! its operations back, in order, and they go by the far one from then on. Both report to the same
//! owner, so a wildcard receive matches messages of either.
//!
//! The tokens of messages and the sources of requests have the number of their transport:
//! [`HandsBack::TRANSPORT`] for the near one, any other for the far one.

use std::ptr::NonNull;

use super::{MappedCall, Owner, PeerAv, SendDone, Shortcut, Start, Token, Transport};
use crate::addr::NativeAddr;
use crate::atomics::AtomicTarget;
use crate::error::{Errno, OpError, Result};
use crate::flags::Flags;
use crate::requester::transport_of;
use crate::routes::RouteTable;
use crate::types::{FiAddr, GrantedMemory, IoBuf, MsgKind, RmaOp, SendOp};

/// Either transport of a pair.
pub trait Reaches: Transport {
    /// The transport's name in logs.
    const NAME: &'static str;

    /// Whether the transport reaches this address, as far as the address says it. The near
    /// transport may find later that it does not ([`HandsBack`]).
    fn takes(&self, name: &NativeAddr) -> bool;
}

/// The far transport: it also sends what the near one has accepted and cannot send.
pub trait TakesOver: Reaches {
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
pub trait HandsBack: Reaches {
    /// An operation that was accepted and not sent.
    type Unsent: Unsent;
    /// The transport number in its tokens and in the sources of its requests
    /// ([`requester`](crate::requester)), unlike that of the far transport.
    const TRANSPORT: u32;
    /// Whether it carries parts of one-sided operations. If it does not, the far transport carries
    /// them to all peers.
    const CARRIES_PARTS: bool = true;

    /// Whether a route leads to a peer that the transport is linked with. A send by another route
    /// looks first whether the operations for the peer were handed back.
    fn is_current(&self, route: &Self::Route) -> bool;

    /// The operations for one peer that the transport accepted and does not send, in their order.
    /// `None`: there are none for any peer. A pair looks after each call to progress.
    fn handed_back(&mut self) -> Option<(FiAddr, Vec<Self::Unsent>)>;
}

/// An operation that was accepted and not sent.
///
/// # Safety
///
/// The buffers are those that came with the operation; or a copy that lives as long as `self`, and
/// then the operation has [`Flags::INJECT`].
pub unsafe trait Unsent {
    /// The operation.
    fn op(&self) -> &SendOp;

    /// Where the data lies.
    fn iov(&self) -> &[IoBuf];
}

/// The transport that carries the operations for a peer.
#[derive(Clone, Copy, Debug, Default)]
pub enum PairRoute<F, N> {
    /// Nothing was sent to the peer yet.
    #[default]
    Undecided,
    /// By the near transport, unless that has handed back its operations for the peer. By the far
    /// one what the near one does not carry.
    Near(N),
    /// By the far one, from now on.
    Far(F),
}

/// Calls to progress in a row that leave out the far transport, at most.
const MOST_LEFT_OUT: u8 = 8;

/// Both transports of an endpoint.
pub struct Paired<F, N> {
    far: F,
    near: Option<N>,
    /// Calls to progress since the last one that drove the far transport.
    left_out: u8,
    /// Addresses for which the near transport has handed back its operations.
    handed_back: RouteTable<()>,
}

impl<F: TakesOver, N: HandsBack> Paired<F, N> {
    /// Pairs the two. Without a near transport all operations go by the far one.
    pub fn new(far: F, near: Option<N>) -> Self {
        Self {
            far,
            near,
            left_out: 0,
            handed_back: RouteTable::default(),
        }
    }

    /// Decides which transport reaches an address.
    fn decide<O: Owner>(
        &self,
        addr: FiAddr,
        owner: &O,
    ) -> Result<PairRoute<F::Route, N::Route>, OpError> {
        let name = owner
            .av()
            .lookup(addr)
            .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        let near = self.near.as_ref();
        let is_near = near.is_some_and(|near| near.takes(&name));
        let (route, through) = match is_near && self.handed_back.get(addr).is_none() {
            true => (PairRoute::Near(N::Route::default()), N::NAME),
            false if self.far.takes(&name) => (PairRoute::Far(F::Route::default()), F::NAME),
            false => return Err(OpError::Failed(Errno::EHOSTUNREACH)),
        };
        tracing::info!("{addr:?} is reached through {through}");
        Ok(route)
    }

    /// Whether the near transport carries such an operation.
    #[inline(always)]
    fn is_for_near(op: &SendOp) -> bool {
        N::CARRIES_PARTS || !op.kind.is_part()
    }

    /// Sends to a peer without a route for the operation: nothing was sent to the peer, the near
    /// transport has no link with it, or does not carry the operation.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    #[cold]
    #[inline(never)]
    unsafe fn send_undecided<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut PairRoute<F::Route, N::Route>,
        owner: &mut O,
    ) -> Result<(), OpError> {
        let is_decided = match route {
            PairRoute::Undecided => false,
            PairRoute::Near(_) => self.handed_back.get(op.dest).is_none(),
            PairRoute::Far(_) => true,
        };
        if !is_decided {
            *route = self.decide(op.dest, owner)?;
        }
        match (route, &mut self.near) {
            // SAFETY: the caller's promise.
            (PairRoute::Far(route), _) => unsafe { self.far.send(op, iov, route, owner) },
            (PairRoute::Near(_), _) if !Self::is_for_near(op) => {
                // The route that is kept is that of messages.
                let mut route = F::Route::default();
                // SAFETY: the caller's promise.
                unsafe { self.far.send(op, iov, &mut route, owner) }
            }
            (PairRoute::Near(route), Some(near)) => {
                if !op.flags.contains(Flags::MORE) {
                    self.far.flush(owner);
                }
                // SAFETY: the caller's promise.
                unsafe { near.send(op, iov, route, owner) }
            }
            _ => Err(OpError::Failed(Errno::EHOSTUNREACH)),
        }
    }

    /// Sends by the far transport the operations that the near one could not send.
    #[cold]
    fn reroute<O: Owner>(&mut self, first: (FiAddr, Vec<N::Unsent>), owner: &mut O) {
        let mut next = Some(first);
        while let Some((addr, sends)) = next {
            let name = owner.av().lookup(addr);
            if name.is_some_and(|name| self.far.takes(&name)) {
                self.handed_back.insert(addr, ());
                tracing::info!("{addr:?} is reached through {}", F::NAME);
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
    type Route = PairRoute<F::Route, N::Route>;
    const INFORMED_OF_ALL: bool = F::INFORMED_OF_ALL || N::INFORMED_OF_ALL;

    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut Self::Route,
        owner: &mut O,
    ) -> Result<(), OpError> {
        match (route, &mut self.near) {
            // SAFETY: the caller's promise.
            (PairRoute::Far(route), _) => unsafe { self.far.send(op, iov, route, owner) },
            (PairRoute::Near(route), Some(near))
                if near.is_current(route) && Self::is_for_near(op) =>
            {
                // A run of sends may use both transports.
                if !op.flags.contains(Flags::MORE) {
                    self.far.flush(owner);
                }
                // SAFETY: the caller's promise.
                unsafe { near.send(op, iov, route, owner) }
            }
            // SAFETY: the caller's promise.
            (route, _) => unsafe { self.send_undecided(op, iov, route, owner) },
        }
    }

    unsafe fn reply<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        match &mut self.near {
            // SAFETY: the caller's promise.
            Some(near) if transport_of(op.dest) == N::TRANSPORT => unsafe {
                near.reply(op, iov, owner)
            },
            // SAFETY: the caller's promise.
            _ => unsafe { self.far.reply(op, iov, owner) },
        }
    }

    #[inline]
    unsafe fn shortcut<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        memory: Option<&GrantedMemory>,
        route: &mut Self::Route,
        owner: &mut O,
    ) -> Shortcut {
        match (route, &mut self.near) {
            // SAFETY: the caller's promise.
            (PairRoute::Far(route), _) => unsafe {
                self.far.shortcut(op, iov, memory, route, owner)
            },
            // SAFETY: the caller's promise.
            (PairRoute::Near(route), Some(near)) if near.is_current(route) => unsafe {
                near.shortcut(op, iov, memory, route, owner)
            },
            _ => Shortcut::Impossible,
        }
    }

    #[inline]
    fn with_mapped(
        &mut self,
        target: &AtomicTarget,
        route: &mut Self::Route,
        act: impl FnOnce(NonNull<u8>),
    ) -> MappedCall {
        match (route, &mut self.near) {
            (PairRoute::Near(route), Some(near)) if near.is_current(route) => {
                near.with_mapped(target, route, act)
            }
            _ => MappedCall::Impossible,
        }
    }

    fn cut_off<O: Owner>(&mut self, peer: FiAddr, owner: &mut O) -> bool {
        self.far.cut_off(peer, owner)
    }

    fn request_drive(&mut self, peer: FiAddr) {
        if let Some(near) = &mut self.near {
            near.request_drive(peer);
        }
        self.far.request_drive(peer);
    }

    fn end_parts<O: Owner>(&mut self, parts: &[u64], owner: &mut O) {
        if let Some(near) = &mut self.near {
            near.end_parts(parts, owner);
        }
        self.far.end_parts(parts, owner);
    }

    #[inline]
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

    fn drain<O: Owner>(&mut self, owner: &mut O) {
        if let Some(near) = &mut self.near {
            near.drain(owner);
        }
        self.far.drain(owner);
    }

    fn is_drained(&self) -> bool {
        self.near.as_ref().is_none_or(Transport::is_drained) && self.far.is_drained()
    }

    fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        if let Some(near) = &self.near {
            near.report_undelivered(report);
        }
        self.far.report_undelivered(report);
    }

    fn has_undelivered(&self) -> bool {
        self.near.as_ref().is_some_and(Transport::has_undelivered) || self.far.has_undelivered()
    }

    /// Where the near transport has moved something, the caller gets it at once: a look at a device
    /// takes as long as a short message of the near transport. The next call drives the far one.
    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        if let Some(near) = &mut self.near {
            done += near.progress(owner);
            if let Some(first) = near.handed_back() {
                self.reroute(first, owner);
            }
            if done > 0 && self.left_out < MOST_LEFT_OUT {
                self.left_out += 1;
                return done;
            }
        }
        self.left_out = 0;
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
        self.handed_back.remove(addr);
        if let Some(near) = &mut self.near {
            near.peer_removed(addr, owner);
        }
        self.far.peer_removed(addr, owner);
    }

    fn peer_replaced<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.handed_back.remove(addr);
        if let Some(near) = &mut self.near {
            near.peer_replaced(addr, owner);
        }
        self.far.peer_replaced(addr, owner);
    }

    fn arm(&mut self) -> Result<bool> {
        if self.left_out > 0 {
            // The far transport may have something there, for which no event comes any more.
            self.left_out = MOST_LEFT_OUT;
            return Ok(false);
        }
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
