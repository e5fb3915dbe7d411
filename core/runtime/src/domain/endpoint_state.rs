//! The state of an endpoint within its domain, its opening and closing, and the endpoint's names.

use std::sync::Arc;

use slab::Slab;

use super::count::CounterValues;
use super::owner::{Binding, EndpointOwner};
use super::report::CounterReport;
use super::srx::SharedRx;
use super::unresolved_peer::UnresolvedSends;
use super::{Backend, Inner, Listening, NO_CNTR, OpenedTransport, Opening};
use crate::cq::CqQueue;
use crate::fabric::{Cntr, EndpointConfig};
use crate::rma::orders::Orders;
use ferrofabric_av::{AuthKeys, AvTable, HeldKey};
use ferrofabric_contracts::addr::{AddrFormat, Address, KeyedAddr, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::info::traffic_class;
use ferrofabric_contracts::peer::{Routed, Transport};
use ferrofabric_contracts::types::FiAddr;

/// The state of one endpoint.
pub(super) struct EndpointState<T: Transport> {
    // The transport is dropped first: it may still use the other fields.
    pub(super) transport: Routed<T>,
    pub(super) srx: SharedRx,
    pub(super) binding: Binding,
    unresolved: UnresolvedSends,
    report: Option<Box<CounterReport>>,
}

impl<T: Transport> EndpointState<T> {
    /// The transport, and the owner to drive it with.
    #[inline]
    pub(super) fn split<'a>(
        &'a mut self,
        cqs: &'a mut Slab<CqQueue>,
        cntrs: &'a mut Slab<CounterValues>,
        avs: &'a Slab<Arc<AvTable>>,
    ) -> (&'a mut Routed<T>, EndpointOwner<'a>) {
        let (_, transport, owner) = self.split_unresolved(cqs, cntrs, avs);
        (transport, owner)
    }

    /// The same, with the sends that wait for addresses.
    pub(super) fn split_unresolved<'a>(
        &'a mut self,
        cqs: &'a mut Slab<CqQueue>,
        cntrs: &'a mut Slab<CounterValues>,
        avs: &'a Slab<Arc<AvTable>>,
    ) -> (
        &'a mut UnresolvedSends,
        &'a mut Routed<T>,
        EndpointOwner<'a>,
    ) {
        let owner = EndpointOwner {
            srx: &mut self.srx,
            cqs,
            cntrs,
            avs,
            binding: &self.binding,
        };
        (&mut self.unresolved, &mut self.transport, owner)
    }

    /// Whether closing it loses no message.
    pub(super) fn is_drained(&self) -> bool {
        self.unresolved_sends() == 0
            && !self.srx.has_deferred()
            && self.srx.remote.shortcuts.is_empty()
            && self.transport.is_drained()
    }

    /// Whether closing it loses nothing that the application takes for sent.
    pub(super) fn is_delivered(&self) -> bool {
        let mut is_delivered = !self.transport.has_undelivered();
        self.report_own(&mut |_, _| is_delivered = false);
        is_delivered
    }

    /// Reports the peers for which there is something that the application takes for sent and that
    /// closing would lose, and how much, as [`Transport::report_undelivered`].
    pub(super) fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        self.report_own(report);
        self.transport.report_undelivered(report);
    }

    /// The same of what the transport does not have yet.
    fn report_own(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        self.unresolved.report_injected(report);
        self.srx.remote.report_injected(report);
    }

    /// The statistics of the transport, and of grants.
    pub(super) fn stats(&self) -> Vec<(&'static str, u64)> {
        let mut stats = Vec::new();
        self.transport
            .stats(&mut |name, value| stats.push((name, value)));
        self.srx
            .remote
            .report(&mut |name, value| stats.push((name, value)));
        stats
    }

    /// Number of sends that wait for addresses.
    pub(super) fn unresolved_sends(&self) -> usize {
        self.unresolved.len()
    }
}

impl<T: Transport> Drop for EndpointState<T> {
    fn drop(&mut self) {
        if let Some(report) = &self.report {
            report.write(&self.stats());
        }
    }
}

/// An endpoint that is part of its domain's state.
pub(super) struct Entered {
    pub(super) index: usize,
    pub(super) name: EndpointName,
    /// The keys that the endpoint was enabled with.
    pub(super) keys: Vec<HeldKey>,
}

/// The names of an endpoint.
pub(super) struct EndpointName {
    pub(super) native: NativeAddr,
    /// In the domain's format.
    pub(super) address: Address,
    /// Makes the endpoint reachable at a socket address.
    listening: Option<Box<dyn Listening>>,
}

impl EndpointName {
    fn new(
        native: NativeAddr,
        keyed: Option<KeyedAddr>,
        listening: Option<Box<dyn Listening>>,
        format: AddrFormat,
    ) -> Self {
        let socket = listening
            .as_ref()
            .and_then(|listening| Address::of_socket(listening.at(), format));
        Self {
            native,
            address: keyed
                .map(Address::Keyed)
                .or(socket)
                .or_else(|| Address::of_endpoint(native, format))
                .unwrap_or(Address::Native(native)),
            listening,
        }
    }

    /// The endpoint is about to close. An inherited listener belongs to the parent process.
    pub(super) fn stop_listening(&mut self, is_inherited: bool) {
        let listening = self.listening.take();
        if is_inherited {
            std::mem::forget(listening);
        }
    }
}

/// The place of a counter, if one is bound.
fn own_cntr<B: Backend>(
    domain: &Inner<B>,
    cntr: Option<&Arc<dyn Cntr>>,
    what: &str,
) -> Result<usize> {
    cntr.map_or(Ok(NO_CNTR), |cntr| domain.own(cntr.id(), what))
}

/// The rights of peers to operations that no counter of the endpoint counts.
fn unseen_rights(config: &EndpointConfig) -> Rights {
    let mut rights = config.remote_rights;
    if config.remote_read_cntr.is_some() {
        rights -= Rights::READ;
    }
    if config.remote_write_cntr.is_some() {
        rights -= Rights::WRITE;
    }
    rights
}

/// Opens an endpoint's transport, and adds it to the state of the domain.
pub(super) fn enter<B: Backend>(
    domain: &Arc<Inner<B>>,
    config: &EndpointConfig,
) -> Result<Entered> {
    let binding = Binding {
        tx_cq: domain.own(config.tx_cq.id(), "completion queue for sends")?,
        rx_cq: domain.own(config.rx_cq.id(), "completion queue for receives")?,
        tx_cntr: own_cntr(domain, config.tx_cntr.as_ref(), "counter for sends")?,
        rx_cntr: own_cntr(domain, config.rx_cntr.as_ref(), "counter for receives")?,
        read_cntr: own_cntr(domain, config.read_cntr.as_ref(), "counter of reads")?,
        write_cntr: own_cntr(domain, config.write_cntr.as_ref(), "counter of writes")?,
        remote_read_cntr: own_cntr(
            domain,
            config.remote_read_cntr.as_ref(),
            "counter of peers' reads",
        )?,
        remote_write_cntr: own_cntr(
            domain,
            config.remote_write_cntr.as_ref(),
            "counter of peers' writes",
        )?,
        av: domain.own(config.av.id(), "address vector")?,
    };
    let table = domain.lock_to("open", "endpoint")?.avs[binding.av].clone();
    let keys = table
        .auth_keys()
        .map(AuthKeys::hold_all)
        .unwrap_or_default();
    let info = domain.backend.info();
    let OpenedTransport {
        transport,
        name,
        keyed,
    } = domain.backend.open_transport(&Opening {
        wait: &domain.wait,
        counts_sends: binding.tx_cntr != NO_CNTR,
        auth_key: config.auth_key,
        tclass: traffic_class::grant("tclass", config.tx.tclass, info.domain.tclass)
            .map_err(|why| Error::new(Errno::EINVAL, "open", "endpoint").mend(why.to_string()))?,
        keys: &keys,
        unseen_rights: unseen_rights(config),
    })?;
    let source = info.src_addr.as_ref().and_then(Address::socket);
    let listening = match config.source.or(source) {
        Some(at) => Some(domain.backend.listen(at, &name)?),
        None => None,
    };
    let report = domain
        .stats
        .as_ref()
        .map(|folder| Box::new(CounterReport::new(folder, &info.domain.name, &name)));
    let mut srx = SharedRx::new(domain.regions.clone(), config.remote_rights);
    srx.remote.orders = Orders::of(config.tx.msg_order);
    if !keys.is_empty() {
        srx.match_keys();
    }
    let mut state = domain.lock_to("open", "endpoint")?;
    let index = state.endpoints.insert(EndpointState {
        transport: Routed::new(transport),
        srx,
        binding,
        unresolved: UnresolvedSends::default(),
        report,
    });
    if B::Transport::INFORMED_OF_ALL {
        state.inform_of_all(index, name.node);
    }
    // Threads that sleep already must be woken by this endpoint, too.
    domain.rearm(&mut state, false);
    drop(state);
    let name = EndpointName::new(name, keyed, listening, info.addr_format);
    Ok(Entered { index, name, keys })
}
