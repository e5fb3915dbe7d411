//! An endpoint with its completion queue, its address vector and its domain, as every measurement
//! opens one, and waiting for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::peer::CqError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig};
use ferrofabric_shm::ShmProvider;

use crate::failure::{Failure, Result};
use crate::providers::Path;

/// Polls that find nothing before a wait looks at the clock.
const IDLE_POLLS: u32 = 1024;

/// The parts of an endpoint of its own domain.
pub(crate) struct BoundEndpoint {
    // The endpoint goes before the objects that it is bound to.
    pub(crate) endpoint: Arc<dyn Endpoint>,
    pub(crate) cq: Arc<dyn Cq>,
    pub(crate) av: Arc<dyn Av>,
    pub(crate) domain: Arc<dyn Domain>,
}

impl BoundEndpoint {
    /// Opens an endpoint on the best domain of a path.
    ///
    /// # Errors
    ///
    /// When the path has no domain here, or an object can not be opened.
    pub(crate) fn open(path: Path, threading: Threading) -> Result<Self> {
        Self::open_on(path.open(threading)?)
    }

    /// Opens an endpoint of a domain.
    ///
    /// # Errors
    ///
    /// If an object can not be opened.
    pub(crate) fn open_on(domain: Arc<dyn Domain>) -> Result<Self> {
        let av = domain.open_av(&AvAttr::default())?;
        let cq = domain.open_cq(&CqAttr::default())?;
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq))?;
        Ok(Self {
            endpoint,
            cq,
            av,
            domain,
        })
    }

    /// Its address, as bytes.
    pub(crate) fn address(&self) -> Vec<u8> {
        self.endpoint.name().to_bytes().to_vec()
    }

    /// The name of its domain.
    pub(crate) fn domain_name(&self) -> &str {
        &self.domain.info().domain.name
    }

    /// Inserts a peer. Returns its handle, and the transport between the two.
    ///
    /// # Errors
    ///
    /// When the bytes are no address.
    pub(crate) fn insert(&self, address: &[u8]) -> Result<(FiAddr, &'static str)> {
        let peer = self.av.insert(address)?;
        let theirs = self.av.lookup(peer)?;
        Ok((peer, carrier_between(&self.endpoint.name(), &theirs)))
    }

    /// The failure behind the error of a read of the completion queue; `name` names the operation.
    #[cold]
    pub(crate) fn failure(
        &self,
        error: OpError,
        name: impl Fn(&CqError) -> &'static str,
    ) -> Failure {
        if error != OpError::Failed(Errno::EAVAIL) {
            return error.into();
        }
        match self.cq.read_error() {
            Ok(Some(error)) => operation_failed(name(&error), &error),
            Ok(None) => Failure::new("an error that is not there"),
            Err(error) => error.into(),
        }
    }
}

fn operation_failed(name: &str, error: &CqError) -> Failure {
    let (errno, why) = (error.errno, error.why);
    let own = match error.prov_errno {
        0 => String::new(),
        n => format!(", the device's number for it {n}"),
    };
    Failure::new(format!("a {name} failed: {errno}: {why}{own}"))
}

/// The transport of messages between two addresses: `shm` or `verbs`.
fn carrier_between(a: &NativeAddr, b: &NativeAddr) -> &'static str {
    match a.shm.is_some() && b.shm.is_some() && a.node == b.node {
        true => "shm",
        false => "verbs",
    }
}

/// The transport of a domain's messages: `shm` or `verbs`.
pub(crate) fn carrier_of(domain: &dyn Domain) -> &'static str {
    match domain.info().domain.name.as_str() {
        ShmProvider::DOMAIN => "shm",
        _ => "verbs",
    }
}

/// A wait for a completion, that looks at the clock once in many polls.
#[derive(Default)]
pub(crate) struct Wait {
    idle: u32,
    since: Option<Instant>,
}

impl Wait {
    /// Counts a poll that found nothing. Returns whether to look at the clock: after a poll that
    /// slept, and after many others.
    #[inline]
    pub(crate) fn found_nothing(&mut self, has_slept: bool) -> bool {
        self.idle += 1;
        let is_due = has_slept || self.idle >= IDLE_POLLS;
        if is_due {
            self.idle = 0;
        }
        is_due
    }

    /// Whether the wait has taken longer than `patience`, from the first look at the clock on.
    #[cold]
    pub(crate) fn is_over(&mut self, patience: Duration) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() > patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_looks_at_the_clock_once_in_many_polls() {
        let mut wait = Wait::default();
        let looks = (0..3 * IDLE_POLLS).filter(|_| wait.found_nothing(false));
        assert_eq!(looks.count(), 3);
        assert!(wait.found_nothing(true));
        assert!(!wait.is_over(Duration::from_secs(3600)));
        assert!(wait.is_over(Duration::ZERO));
    }
}
