//! A domain with a deliberate fault, which a search for failing programs has to find.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{OpError, Result};
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::types::{IoBuf, RecvOp, SendOp, total_len};
use ferrofabric_runtime::fabric::{
    Av, Cntr, CntrAttr, Cq, CqAttr, Domain, Endpoint, EndpointConfig, Mr, MrAttr,
};

/// The fault of a [`FaultyDomain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainFault {
    /// Messages of a thousand bytes and more arrive with other CQ data.
    WrongData,
    /// A receive that is taken back ends the process.
    Abort,
}

impl DomainFault {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 2] =
        [("wrong data", Self::WrongData), ("abort", Self::Abort)];
}

/// A domain as another, but for the fault of its endpoints.
pub struct FaultyDomain {
    domain: Arc<dyn Domain>,
    fault: DomainFault,
}

impl FaultyDomain {
    /// Breaks a domain.
    pub fn new(domain: Arc<dyn Domain>, fault: DomainFault) -> Self {
        Self { domain, fault }
    }
}

impl Domain for FaultyDomain {
    fn info(&self) -> &Info {
        self.domain.info()
    }

    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn Cq>> {
        self.domain.open_cq(attr)
    }

    fn open_cntr(&self, attr: &CntrAttr) -> Result<Arc<dyn Cntr>> {
        self.domain.open_cntr(attr)
    }

    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn Av>> {
        self.domain.open_av(attr)
    }

    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        let endpoint = self.domain.open_endpoint(config)?;
        let fault = self.fault;
        Ok(Arc::new(BrokenEndpoint { endpoint, fault }))
    }

    unsafe fn register_region(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn Mr>> {
        // SAFETY: the caller meets the same conditions.
        unsafe { self.domain.register_region(attr) }
    }
}

struct BrokenEndpoint {
    endpoint: Arc<dyn Endpoint>,
    fault: DomainFault,
}

impl Endpoint for BrokenEndpoint {
    fn name(&self) -> NativeAddr {
        self.endpoint.name()
    }

    fn address(&self) -> Address {
        self.endpoint.address()
    }

    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> std::result::Result<(), OpError> {
        let spoil = self.fault == DomainFault::WrongData && total_len(iov) >= 1000;
        let op = SendOp {
            data: op.data ^ u64::from(spoil),
            ..*op
        };
        // SAFETY: the caller meets the same conditions.
        unsafe { self.endpoint.send(&op, iov) }
    }

    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> std::result::Result<(), OpError> {
        // SAFETY: the caller meets the same conditions.
        unsafe { self.endpoint.recv(op, iov) }
    }

    fn cancel(&self, context: u64) -> std::result::Result<(), OpError> {
        if self.fault == DomainFault::Abort {
            std::process::abort();
        }
        self.endpoint.cancel(context)
    }

    fn set_min_multi_recv(&self, bytes: usize) -> std::result::Result<(), OpError> {
        self.endpoint.set_min_multi_recv(bytes)
    }

    fn min_multi_recv(&self) -> std::result::Result<usize, OpError> {
        self.endpoint.min_multi_recv()
    }

    fn lose_undelivered(&self) {
        self.endpoint.lose_undelivered();
    }

    fn flush(&self, timeout: Option<Duration>) -> std::result::Result<(), OpError> {
        self.endpoint.flush(timeout)
    }

    fn stats(&self) -> std::result::Result<Vec<(&'static str, u64)>, OpError> {
        self.endpoint.stats()
    }
}
