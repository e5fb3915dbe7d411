//! A transport with the routes that its owner keeps for it.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{MappedCall, Owner, Shortcut, Transport};
use crate::atomics::AtomicTarget;
use crate::error::OpError;
use crate::routes::RouteTable;
use crate::types::{FiAddr, GrantedMemory, IoBuf, RmaOp, SendOp};

/// A transport, with the routes to the addresses that were sent to. An owner drives it through
/// this.
pub struct Routed<T: Transport> {
    transport: T,
    routes: RouteTable<T::Route>,
}

impl<T: Transport> Routed<T> {
    /// A transport that was not sent to.
    pub fn new(transport: T) -> Self {
        Self {
            transport,
            routes: RouteTable::default(),
        }
    }

    /// Sends a message, as [`Transport::send`].
    ///
    /// # Safety
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    #[inline(always)]
    pub unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        match self.routes.get_mut(op.dest) {
            // SAFETY: the caller's promise.
            Some(route) => unsafe { self.transport.send(op, iov, route, owner) },
            // SAFETY: the caller's promise.
            None => unsafe { self.send_first(op, iov, owner) },
        }
    }

    /// Sends to an address that has no route yet.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    #[cold]
    #[inline(never)]
    unsafe fn send_first<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let mut route = T::Route::default();
        // SAFETY: the caller's promise.
        unsafe { self.transport.send(op, iov, &mut route, owner)? };
        self.routes.insert(op.dest, route);
        Ok(())
    }

    /// Carries out a one-sided operation, as [`Transport::shortcut`]. To an address that has no
    /// route yet there is no shortcut: the first operation finds the route.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub unsafe fn shortcut<O: Owner>(
        &mut self,
        op: &RmaOp,
        iov: &[IoBuf],
        memory: Option<&GrantedMemory>,
        owner: &mut O,
    ) -> Shortcut {
        match self.routes.get_mut(op.dest) {
            // SAFETY: the caller's promise.
            Some(route) => unsafe { self.transport.shortcut(op, iov, memory, route, owner) },
            None => Shortcut::Impossible,
        }
    }

    /// Calls `act` with a part of a peer's region that is mapped, as [`Transport::with_mapped`].
    #[inline]
    pub fn with_mapped(
        &mut self,
        target: &AtomicTarget,
        act: impl FnOnce(NonNull<u8>),
    ) -> MappedCall {
        match self.routes.get_mut(target.dest) {
            Some(route) => self.transport.with_mapped(target, route, act),
            None => MappedCall::Impossible,
        }
    }

    /// An address was removed from the address vector, as [`Transport::peer_removed`].
    pub fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.routes.remove(addr);
        self.transport.peer_removed(addr, owner);
    }

    /// Whether an operation was sent to an address, which leads to the same endpoint since then.
    pub fn has_route(&mut self, addr: FiAddr) -> bool {
        self.routes.get_mut(addr).is_some()
    }

    /// Another endpoint comes in place of the one at an address, as [`Transport::peer_replaced`].
    pub fn peer_replaced<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.routes.remove(addr);
        self.transport.peer_replaced(addr, owner);
    }
}

impl<T: Transport> Deref for Routed<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.transport
    }
}

impl<T: Transport> DerefMut for Routed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.transport
    }
}
