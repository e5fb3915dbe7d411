//! DGRAM domains whose endpoints have the authorization keys of their address vectors. Several
//! queue pairs receive, so receives lie with no device: what comes goes to the oldest that takes
//! its source and its key, or is lost.

use std::sync::Arc;

use super::dgram::{SPECIAL, check_kind, introduce};
use super::endpoint::{self, EndpointHandle};
use super::{Backend, Domain};
use crate::fabric::{self, CntrAttr, CqAttr, Endpoint, EndpointConfig, Mr};
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::types::{IoBuf, RecvOp, SendOp};

/// A domain whose endpoints send and receive datagrams with keys, over a provider's backend. Its
/// transports ask their owner for receives, and drop what none is there for.
pub struct KeyedDgramDomain<B: Backend>(Domain<B>);

impl<B: Backend> KeyedDgramDomain<B> {
    /// A domain whose calls are serialized as its info says.
    ///
    /// # Errors
    ///
    /// As [`Domain::open`].
    pub fn open(backend: B, settings: &Settings) -> Result<Self> {
        Domain::open(backend, settings).map(Self)
    }

    /// A domain that is not locked at all, for callers that serialize their calls themselves.
    ///
    /// # Safety
    ///
    /// As [`fabric::Provider::open_serialized`].
    ///
    /// # Errors
    ///
    /// As [`Domain::open`].
    pub unsafe fn open_serialized(backend: B, settings: &Settings) -> Result<Self> {
        // SAFETY: the caller promises the same.
        unsafe { Domain::open_serialized(backend, settings) }.map(Self)
    }
}

impl<B: Backend> fabric::Domain for KeyedDgramDomain<B> {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn fabric::Cq>> {
        self.0.open_cq(attr)
    }

    fn open_cntr(&self, attr: &CntrAttr) -> Result<Arc<dyn fabric::Cntr>> {
        self.0.open_cntr(attr)
    }

    fn open_av(&self, attr: &ferrofabric_av::AvAttr) -> Result<Arc<dyn fabric::Av>> {
        self.0.open_av(attr)
    }

    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        let handle = endpoint::open_handle(&self.0.0, config)?;
        introduce(&self.0.0, handle.index)?;
        Ok(Arc::new(KeyedDgram(handle)))
    }

    unsafe fn register(&self, buf: IoBuf, access: Flags) -> Result<Arc<dyn Mr>> {
        // SAFETY: the caller promises the same.
        unsafe { self.0.register(buf, access) }
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
        // SAFETY: the caller's promise.
        unsafe { self.0.send(op, iov) }
    }

    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        check_kind(op.kind)?;
        if op.flags.intersects(SPECIAL) {
            return Err(OpError::Failed(Errno::EBADFLAGS));
        }
        // SAFETY: the caller's promise.
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

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        self.0.stats()
    }
}
