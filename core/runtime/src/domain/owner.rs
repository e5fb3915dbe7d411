//! The objects that an endpoint lends to its transport: the queues, counters and address vector
//! that it is bound to.

use std::sync::Arc;

use slab::Slab;

use super::count::CounterValues;
use super::srx::{Deferred, SharedRx};
use crate::cq::CqQueue;
use crate::rma::as_initiator::read_order::EndedRead;
use ferrofabric_av::AvTable;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{
    Arrived, Matched, Owner, PeerAv, PeerCntr, PeerCq, PeerSrx, Routed, SendDone, ShortcutEnd,
    Transport,
};
use ferrofabric_contracts::requester::is_requester;
use ferrofabric_contracts::types::{FiAddr, RemoteKind, RmaKind};

/// The places of the objects that an endpoint is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) tx_cq: usize,
    pub(super) rx_cq: usize,
    pub(super) tx_cntr: usize,
    pub(super) rx_cntr: usize,
    /// Of reads and writes that this endpoint has begun, and of those that its peers have.
    pub(super) read_cntr: usize,
    pub(super) write_cntr: usize,
    pub(super) remote_read_cntr: usize,
    pub(super) remote_write_cntr: usize,
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
    /// The counter of operations that this endpoint has begun.
    pub(super) fn initiator_cntr(&mut self, kind: RmaKind) -> &mut CounterValues {
        let index = match kind {
            RmaKind::Read => self.binding.read_cntr,
            RmaKind::Write => self.binding.write_cntr,
        };
        &mut self.cntrs[index]
    }

    /// The counter of operations that peers have begun.
    pub(super) fn target_cntr(&mut self, kind: RmaKind) -> &mut CounterValues {
        let index = match kind {
            RmaKind::Read => self.binding.remote_read_cntr,
            RmaKind::Write => self.binding.remote_write_cntr,
        };
        &mut self.cntrs[index]
    }

    /// The counter of a region at a place.
    pub(super) fn region_cntr(&mut self, index: usize) -> &mut CounterValues {
        &mut self.cntrs[index]
    }

    /// Starts the matches that the last call into the transport has deferred.
    #[inline]
    pub(super) fn start_deferred<T: Transport>(&mut self, transport: &mut Routed<T>) {
        if self.srx.has_deferred() {
            self.drain_deferred(transport);
        }
    }

    #[cold]
    fn drain_deferred<T: Transport>(&mut self, transport: &mut Routed<T>) {
        let mut waits = false;
        while let Some(deferred) = self.srx.take_deferred() {
            match deferred {
                Deferred::Start(start) => {
                    // SAFETY: the poster of the receive vouched for its buffer until its
                    // completion.
                    unsafe { transport.start(start, self) };
                }
                Deferred::Fail(mut error) => {
                    let src = self.av().reported_source(error.completion.src);
                    error.completion.src = src;
                    let is_collective = error.completion.flags.contains(Flags::COLLECTIVE);
                    self.rx_cq().write_error(error);
                    if !is_collective {
                        self.rx_cntr().inc_error();
                    }
                }
                Deferred::FailRma(kind, error) => self.rma_failed(kind, error),
                Deferred::FailRead(place, EndedRead { op, outcome }) => {
                    self.end_read(place, &op, outcome);
                }
                Deferred::SendParts => waits = self.send_parts(transport),
                Deferred::PeerGone(addr) => {
                    let has_unknown_sources = transport.has_unknown_sources();
                    if self.avs[self.binding.av].note_lost(addr, has_unknown_sources) {
                        transport.peer_replaced(addr, self);
                    }
                }
            }
        }
        if waits {
            self.srx.defer(Deferred::SendParts);
        }
    }

    /// Sends the parts of one-sided operations that wait, as far as the transport takes them, and
    /// those of operations that go again. Returns whether some wait still.
    fn send_parts<T: Transport>(&mut self, transport: &mut Routed<T>) -> bool {
        if self.srx.remote.shortcuts.has_lost() {
            self.send_lost(transport);
        }
        let peers = self.srx.remote.outbox.peers();
        for &peer in &peers {
            let mut parts = self.srx.remote.outbox.take_of(peer);
            while let Some(part) = parts.front() {
                // SAFETY: a region that closes waits for its parts; other bytes are copied
                // (`INJECT`).
                match unsafe {
                    part.from.with_list(|list| match is_requester(peer) {
                        true => transport.reply(&part.op, list, self),
                        false => transport.send(&part.op, list, self),
                    })
                } {
                    Ok(()) => {}
                    Err(OpError::Again) => break,
                    Err(OpError::Failed(errno)) => {
                        let done = SendDone::of(&part.op, 0);
                        self.fail_send(&done, errno, 0, "the peer is not reached");
                    }
                }
                parts.pop_front();
            }
            self.srx.remote.outbox.put_back(peer, parts);
        }
        self.srx.remote.outbox.put_back_peers(peers);
        self.srx.remote.has_parts_to_send()
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

    #[cold]
    fn remote_part_sent(
        &mut self,
        kind: RemoteKind,
        done: &SendDone,
        failed: Option<(Errno, i32, &'static str)>,
    ) {
        self.part_sent(kind, done, failed);
    }

    #[cold]
    fn remote_part_came(
        &mut self,
        kind: RemoteKind,
        m: &Matched,
        a: &Arrived,
        failed: Option<(Errno, &'static str)>,
    ) {
        self.part_came(kind, m, a, failed);
    }

    #[cold]
    fn shortcut_over(&mut self, number: u64, end: ShortcutEnd) {
        self.end_shortcut(number, end);
    }

    #[cold]
    fn peer_gone(&mut self, addr: FiAddr) {
        if addr.is_some() && self.may_be_unresolved() {
            self.srx.defer(Deferred::PeerGone(addr));
        }
    }
}
