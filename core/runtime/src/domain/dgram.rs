//! DGRAM domains and their endpoint objects (fi_endpoint(3)): the transport holds the receives
//! itself, since datagrams match receives in the order of posting only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::endpoint::{OPTIONAL_FLAGS, ReceiveAttributes};
use super::endpoint_state::{EndpointName, Entered, enter};
use super::send_calls;
use super::{Backend, DomainOf, EndpointKind, Inner};
use crate::fabric::{Endpoint, EndpointConfig};
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{DatagramTransport, PeerAv, Transport};
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, SendOp};

/// A domain whose endpoints send and receive datagrams, over a provider's backend.
pub type DgramDomain<B> = DomainOf<B, Dgram>;

/// Endpoints whose transport holds the receives.
pub struct Dgram;

impl<B: Backend<Transport: DatagramTransport>> EndpointKind<B> for Dgram {
    fn open(domain: &Arc<Inner<B>>, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        let Entered { index, name, .. } = enter(domain, &config)?;
        let handle = DgramHandle {
            domain: domain.clone(),
            index,
            name,
            receives: ReceiveAttributes::of(&config),
            delivers: AtomicBool::new(true),
            _config: config,
        };
        announce_peers(domain, index)?;
        Ok(Arc::new(handle))
    }
}

struct DgramHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
    name: EndpointName,
    receives: Option<ReceiveAttributes>,
    /// Its close gives the device what the application takes for sent.
    delivers: AtomicBool,
    /// Keeps open the objects that the endpoint is bound to.
    _config: EndpointConfig,
}

/// Announces the peers of the address vector to a new transport. The transport identifies the
/// source of a datagram by path and queue pair, so it needs all peers, also those that were
/// inserted before it was opened.
pub(super) fn announce_peers<B: Backend>(domain: &Inner<B>, index: usize) -> Result<()> {
    let mut guard = domain.lock_to("open", "endpoint")?;
    let state = &mut *guard;
    let endpoint = &mut state.endpoints[index];
    let peers = &state.avs[endpoint.binding.av];
    peers.subscribe_to_sources();
    let (transport, mut owner) = endpoint.split(&mut state.cqs, &mut state.cntrs, &state.avs);
    for (addr, _) in peers.iter() {
        if let Some(name) = peers.lookup(addr) {
            transport.peer_inserted(addr, &name, &mut owner);
        }
    }
    Ok(())
}

/// Flags of a receive that is more than a buffer for one message.
pub(super) const SPECIAL: Flags = Flags::PEEK
    .union(Flags::CLAIM)
    .union(Flags::DISCARD)
    .union(Flags::MULTI_RECV);

/// Datagrams have no tags.
pub(super) fn check_kind(kind: MsgKind) -> Result<(), OpError> {
    match kind {
        MsgKind::Msg => Ok(()),
        MsgKind::Tagged | MsgKind::Remote(_) => Err(OpError::Failed(Errno::ENOSYS)),
    }
}

impl<B: Backend<Transport: DatagramTransport>> Endpoint for DgramHandle<B> {
    fn name(&self) -> NativeAddr {
        self.name.native
    }

    fn address(&self) -> Address {
        self.name.address
    }

    #[inline]
    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        check_kind(op.kind)?;
        // No report says whether a datagram arrived.
        if op.flags.intersects(OPTIONAL_FLAGS) {
            return send_calls::refuse(
                &self.domain,
                self.index,
                OpError::Failed(Errno::EOPNOTSUPP),
            );
        }
        // SAFETY: the caller keeps the buffers as the transport requires.
        unsafe { send_calls::send_checked(&self.domain, self.index, op, iov) }
    }

    #[inline]
    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        check_kind(op.kind)?;
        if op
            .flags
            .intersects(SPECIAL | Flags::AUTH_KEY | Flags::TRIGGER)
        {
            return Err(OpError::Failed(Errno::EBADFLAGS));
        }
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let adapted;
        let op = match self.receives {
            None => op,
            Some(receives) => {
                adapted = receives.adapt(op);
                &adapted
            }
        };
        // SAFETY: the caller keeps the buffers until the completion.
        unsafe { transport.post_recv(op, iov, &mut owner) }
    }

    fn cancel(&self, context: u64) -> Result<(), OpError> {
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let cancelled = transport.cancel_recv(context, &mut owner);
        // A sleeping thread may have to complete a cancellation that is still under way.
        self.domain.rearm(state, false);
        cancelled
    }

    fn set_min_multi_recv(&self, _bytes: usize) -> Result<(), OpError> {
        Err(OpError::Failed(Errno::EOPNOTSUPP))
    }

    fn min_multi_recv(&self) -> Result<usize, OpError> {
        Err(OpError::Failed(Errno::EOPNOTSUPP))
    }

    fn flush(&self, timeout: Option<Duration>) -> Result<(), OpError> {
        self.domain.wait_until_drained(self.index, timeout)
    }

    fn lose_undelivered(&self) {
        self.delivers.store(false, Ordering::Relaxed);
    }

    fn wait_for_capacity(
        &self,
        timeout: Option<Duration>,
        attempt: &mut dyn FnMut() -> bool,
    ) -> Result<(), OpError> {
        self.domain.wait_for_capacity(timeout, attempt)
    }

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        let state = self.domain.lock()?;
        Ok(state.endpoints[self.index].stats())
    }
}

impl<B: Backend> Drop for DgramHandle<B> {
    fn drop(&mut self) {
        self.name.stop_listening(self.domain.is_inherited());
        let delivers = self.delivers.load(Ordering::Relaxed);
        self.domain.close_endpoint(self.index, delivers);
    }
}
