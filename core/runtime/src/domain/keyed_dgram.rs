//! DGRAM domains whose endpoints have the authorization keys of their address vectors. Several
//! queue pairs receive, so the domain holds the receives: a datagram goes to the oldest receive
//! that matches its source and its key, or is lost.

use std::sync::Arc;
use std::time::Duration;

use super::dgram::{SPECIAL, announce_peers, check_kind};
use super::endpoint::{self, EndpointHandle};
use super::{Backend, DomainOf, EndpointKind, Inner};
use crate::fabric::{Endpoint, EndpointConfig};
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::types::{IoBuf, RecvOp, SendOp};

/// A domain whose endpoints send and receive datagrams with keys, over a provider's backend. Its
/// transports take receives from their owner, and drop datagrams that match none.
pub type KeyedDgramDomain<B> = DomainOf<B, KeyedDgrams>;

/// Endpoints with the keys of their address vectors, whose receives are in the domain.
pub struct KeyedDgrams;

impl<B: Backend> EndpointKind<B> for KeyedDgrams {
    fn open(domain: &Arc<Inner<B>>, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        let handle = endpoint::open_handle(domain, config)?;
        announce_peers(domain, handle.index)?;
        Ok(Arc::new(KeyedDgram(handle)))
    }
}

struct KeyedDgram<B: Backend>(EndpointHandle<B>);

impl<B: Backend> Endpoint for KeyedDgram<B> {
    fn name(&self) -> NativeAddr {
        self.0.name()
    }

    fn address(&self) -> Address {
        self.0.address()
    }

    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        check_kind(op.kind)?;
        // SAFETY: the caller's contract.
        unsafe { self.0.send(op, iov) }
    }

    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        check_kind(op.kind)?;
        if op.flags.intersects(SPECIAL) {
            return Err(OpError::Failed(Errno::EBADFLAGS));
        }
        // SAFETY: the caller's contract.
        unsafe { self.0.recv(op, iov) }
    }

    fn cancel(&self, context: u64) -> Result<(), OpError> {
        self.0.cancel(context)
    }

    fn set_min_multi_recv(&self, _bytes: usize) -> Result<(), OpError> {
        Err(OpError::Failed(Errno::EOPNOTSUPP))
    }

    fn min_multi_recv(&self) -> Result<usize, OpError> {
        Err(OpError::Failed(Errno::EOPNOTSUPP))
    }

    fn lose_undelivered(&self) {
        self.0.lose_undelivered();
    }

    fn flush(&self, timeout: Option<Duration>) -> Result<(), OpError> {
        self.0.flush(timeout)
    }

    fn wait_for_capacity(
        &self,
        timeout: Option<Duration>,
        attempt: &mut dyn FnMut() -> bool,
    ) -> Result<(), OpError> {
        self.0.wait_for_capacity(timeout, attempt)
    }

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        self.0.stats()
    }
}
