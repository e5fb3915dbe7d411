//! The objects that an endpoint lends to its transport: the queues, counters and address vector
//! that it is bound to.

use std::sync::Arc;

use slab::Slab;

use super::count::CounterValues;
use super::srx::SharedRx;
use crate::cq::CqQueue;
use ferrofabric_av::AvTable;
use ferrofabric_contracts::peer::{Owner, PeerAv, PeerCntr, PeerCq, PeerSrx, Routed, Transport};

/// The places of the objects that an endpoint is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) tx_cq: usize,
    pub(super) rx_cq: usize,
    pub(super) tx_cntr: usize,
    pub(super) rx_cntr: usize,
    pub(super) av: usize,
}

/// The owner's side of one endpoint, for the duration of a call.
pub(super) struct EndpointOwner<'a> {
    pub(super) srx: &'a mut SharedRx,
    pub(super) cqs: &'a mut Slab<CqQueue>,
    pub(super) cntrs: &'a mut Slab<CounterValues>,
    pub(super) avs: &'a Slab<Arc<AvTable>>,
    pub(super) binding: &'a Binding,
}

impl EndpointOwner<'_> {
    /// Starts the matches that the last call into the transport has deferred.
    #[inline]
    pub(super) fn start_deferred<T: Transport>(&mut self, transport: &mut Routed<T>) {
        if self.srx.has_deferred() {
            self.drain_deferred(transport);
        }
    }

    #[cold]
    fn drain_deferred<T: Transport>(&mut self, transport: &mut Routed<T>) {
        while let Some(deferred) = self.srx.take_deferred() {
            match deferred {
                super::srx::Deferred::Start(start) => {
                    // SAFETY: the poster of the receive vouched for its buffer until its
                    // completion.
                    unsafe { transport.start(start, self) };
                }
                super::srx::Deferred::Fail(mut error) => {
                    let src = self.av().reported_source(error.completion.src);
                    error.completion.src = src;
                    self.rx_cq().write_error(error);
                    self.rx_cntr().inc_error();
                }
            }
        }
    }
}

impl Owner for EndpointOwner<'_> {
    #[inline]
    fn srx(&mut self) -> &mut impl PeerSrx {
        &mut *self.srx
    }

    #[inline]
    fn tx_cq(&mut self) -> &mut impl PeerCq {
        &mut self.cqs[self.binding.tx_cq]
    }

    #[inline]
    fn rx_cq(&mut self) -> &mut impl PeerCq {
        &mut self.cqs[self.binding.rx_cq]
    }

    #[inline]
    fn tx_cntr(&mut self) -> &mut impl PeerCntr {
        &mut self.cntrs[self.binding.tx_cntr]
    }

    #[inline]
    fn rx_cntr(&mut self) -> &mut impl PeerCntr {
        &mut self.cntrs[self.binding.rx_cntr]
    }

    #[inline]
    fn av(&self) -> &impl PeerAv {
        &*self.avs[self.binding.av]
    }
}
