//! The DGRAM endpoint over verbs: one UD queue pair, with receives of its own.
//!
//! The endpoint sends plain datagrams without a header of its own, so that any UD queue pair may be
//! the other side: libfabric's verbs provider, or a program that uses verbs itself. CQ data is the
//! immediate data. The path and the queue pair number identify the sender of a datagram; sends use
//! address handles that separate threads make.
//!
//! The endpoint reaches peers of this node through the device, too, which loops datagrams back. It
//! has no shared memory beside it: receives are posted to the device in order, where a second
//! transport could not take from them, and a datagram of at most an MTU would gain little. An
//! application that wants shared memory uses RDM endpoints.

mod device_events;
mod handles;
mod receive;
mod receives;
mod renew;
mod routes;
mod send;
mod send_queue;
mod source;
mod waiting;

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use ferrofabric_contracts::addr::{AuthKey, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::peer::{
    DatagramTransport, Owner, PEER_REMOVED, Start, Token, Transport,
};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::ibv_wc;

use crate::cq::{CompChannel, Cq, CqConfig};
use crate::device::{EventReader, device_queue_failed, inline_limit};
use crate::mr::Access;
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::qp::{QpCaps, QpConfig, UdInit, UdQp};
use crate::registration::Registry;
use crate::slots::SlotPool;

use handles::Handles;
use receives::DgramReceives;
use renew::Health;
use routes::DgramRoutes;
use send::Sends;
use send_queue::{DgramSendQueue, SEND};
use source::{DatagramSender, Sources};
use waiting::WaitingSends;

/// Room that `FI_MSG_PREFIX` requires before each buffer: the routing header's.
pub(crate) const PREFIX_BYTES: usize = UdQp::HEADER_BYTES;

/// Buffers of a message, at most.
pub(crate) const MAX_BUFFERS: usize = 4;

/// The Q_Key of the queue pairs: libfabric's verbs provider and rdma-core's examples use the same
/// one, so their datagrams are received, too.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// Completions taken in one poll.
const POLL: usize = 16;

/// The configuration of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DgramConfig {
    /// Sends that may be under way.
    pub(crate) send_depth: usize,
    /// Receives that may be posted.
    pub(crate) recv_depth: usize,
    /// Datagrams up to here travel in the work request itself, in bytes, where the device can.
    pub(crate) inline_bytes: usize,
    /// Bytes before the payload that the application leaves.
    pub(crate) prefix: usize,
    /// The authorization key, if the application has chosen one.
    pub(crate) key: Option<AuthKey>,
    /// Where the receives are kept.
    pub(crate) receiving: ReceiveMode,
}

/// The place where the receives of an endpoint are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveMode {
    /// Posted to the queue pair, in order.
    Posted,
    /// In the owner's queue, for several queue pairs: a datagram is matched with one of them, or
    /// lost.
    Matched,
}

impl DgramConfig {
    /// The Q_Key of datagrams to the queue pair.
    pub(crate) fn qkey(&self) -> u32 {
        self.key.map_or(QKEY, AuthKey::qkey)
    }
}

/// Bytes that an endpoint registers, and the kernel locks, for itself.
pub(crate) fn registered_bytes(send_depth: usize, recv_depth: usize, mtu: usize) -> usize {
    send_depth * mtu.next_multiple_of(64)
        + recv_depth * DgramReceives::slot_bytes(mtu).next_multiple_of(64)
}

/// Statistics of the endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct DgramCounters {
    messages_sent: u64,
    bytes_sent: u64,
    messages_received: u64,
    bytes_received: u64,
    unknown_senders: u64,
    dropped: u64,
    failed: u64,
    resets: u64,
}

impl DgramCounters {
    #[inline]
    fn sent(&mut self, len: usize) {
        self.messages_sent += 1;
        self.bytes_sent += len as u64;
    }

    #[inline]
    fn received(&mut self, len: usize, src: FiAddr) {
        self.messages_received += 1;
        self.bytes_received += len as u64;
        self.unknown_senders += u64::from(!src.is_some());
    }
}

/// The engine of a DGRAM endpoint.
pub(crate) struct DgramTransport {
    // The queue pair goes first: the device uses the other fields.
    qp: UdQp,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    sends: Sends,
    receives: DgramReceives,
    handles: Handles,
    routes: DgramRoutes,
    sources: Sources,
    port: LocalPort,
    init: UdInit,
    prefix: usize,
    health: Health,
    /// The queue pair is in the error state, until it is reset.
    flushing: bool,
    armed: bool,
    counters: DgramCounters,
}

impl DgramTransport {
    /// Opens an endpoint; it receives from then on.
    ///
    /// # Errors
    ///
    /// The device or a limit does not allow it; the error names the cause.
    pub(crate) fn open(
        registry: &Arc<Registry>,
        port: LocalPort,
        config: &DgramConfig,
        events: &Arc<EventReader>,
        wait: &WaitSet,
    ) -> Result<Self> {
        let pd = registry.pd();
        let context = pd.context();
        let channel = CompChannel::create(context)?;
        let cq = Cq::create(
            context,
            &CqConfig {
                depth: (config.send_depth + config.recv_depth) as u32,
                channel: Some(channel.clone()),
                vector: context.vector(),
                ..CqConfig::default()
            },
        )?;
        let mtu = port.mtu.bytes();
        let bounces = SlotPool::create(pd, config.send_depth, mtu, Access::empty())?;
        let slot_bytes = DgramReceives::slot_bytes(mtu);
        let slots = SlotPool::create(pd, config.recv_depth, slot_bytes, Access::LOCAL_WRITE)?;
        let (qp, inline_bytes) = queue_pair(pd, &cq, config)?;
        let init = UdInit {
            port: port.number,
            pkey_index: port.pkey_index,
            qkey: config.qkey(),
            psn: 0,
        };
        qp.activate(&init)?;
        wait.add(channel.as_fd())?;
        let handles = Handles::open(&qp, port, events, wait)?;
        let mut this = Self {
            qp,
            cq,
            channel,
            sends: Sends {
                queue: DgramSendQueue::new(
                    config.send_depth,
                    bounces,
                    registry.clone(),
                    inline_bytes,
                ),
                waiting: WaitingSends::default(),
            },
            receives: DgramReceives::new(config, mtu, slots, registry.clone()),
            handles,
            // An endpoint with a key sends with that key alone.
            routes: DgramRoutes::new(config.key.map(AuthKey::qkey)),
            sources: Sources::default(),
            port,
            init,
            prefix: config.prefix,
            health: Health::Well,
            flushing: false,
            armed: false,
            counters: DgramCounters::default(),
        };
        this.receives
            .post_again(&this.qp)
            .map_err(|e| Error::new(e.errno(), "post", "receives"))?;
        Ok(this)
    }

    /// Number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Makes each send complete soon at the device: sends without a completion for the application
    /// are signaled, too.
    pub(crate) fn count_sends(&mut self) {
        self.sends.queue.count();
    }

    #[inline]
    fn poll<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); POLL];
        let cq = Arc::as_ptr(&self.cq);
        // SAFETY: `self` holds the queue. The reference count is not touched because the queue is
        // polled all the time.
        let completions = match unsafe { (*cq).poll(&mut room) } {
            Ok(completions) => completions,
            Err(error) => {
                self.queue_failed(error, owner);
                return 0;
            }
        };
        if completions.is_empty() {
            return 0;
        }
        self.armed = false;
        self.completed(completions, owner);
        completions.len()
    }

    /// Handles the completions of one poll, [`POLL`] at most.
    #[inline]
    fn completed<O: Owner>(&mut self, completions: &[ibv_wc], owner: &mut O) {
        let mut senders = [DatagramSender::UNKNOWN; POLL];
        let senders = &mut senders[..completions.len()];
        self.find_senders(completions, senders);
        for (completion, sender) in completions.iter().zip(senders) {
            if completion.wr_id & SEND != 0 {
                self.sent(completion.wr_id as u32, completion.status, owner);
            } else {
                self.received(completion, sender, owner);
            }
        }
    }

    #[cold]
    fn queue_failed<O: Owner>(&mut self, error: OpError, owner: &mut O) {
        if self.health != Health::Dead {
            tracing::error!("completion queue of {} failed: {error}", *self.qp);
            self.die(device_queue_failed(self.qp.pd().context().name()), owner);
        }
    }
}

/// Makes the queue pair of an endpoint, with as much inline data as the device takes. Returns the
/// queue pair and the bytes that may travel inline.
fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>, config: &DgramConfig) -> Result<(UdQp, usize)> {
    let create = |inline_bytes| {
        UdQp::create(
            pd,
            &QpConfig {
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                caps: QpCaps {
                    send_depth: config.send_depth as u32,
                    recv_depth: config.recv_depth as u32,
                    send_entries: 1,
                    recv_entries: 2,
                    inline_bytes,
                },
                signal_all: false,
                extended: None,
            },
        )
    };
    let known = &pd.context().inline_limits().ud;
    let limit = inline_limit(known, config.inline_bytes as u32, |bytes| {
        Ok(create(bytes)?.caps().inline_bytes)
    })?;
    Ok((create(limit.request)?, limit.usable as usize))
}

impl Drop for DgramTransport {
    fn drop(&mut self) {
        if !self.qp.pd().context().is_own() {
            return;
        }
        self.sends.queue.post_held_back(&self.qp);
    }
}

impl Transport for DgramTransport {
    /// The index of the peer's route. It is valid until the address is removed.
    type Route = Option<u32>;

    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut Option<u32>,
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe { self.send_message(op, iov, route, owner) }
    }

    unsafe fn start<O: Owner>(&mut self, _start: Start, _owner: &mut O) {
        // The endpoint never queues an operation with the owner.
    }

    fn discard<O: Owner>(&mut self, _kind: MsgKind, _token: Token, _owner: &mut O) {
        // As above.
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        self.sends.queue.post_held_back(&self.qp);
        let mut done = self.poll(owner);
        if self.sends.queue.have_refused() {
            done += self.fail_refused(owner);
        }
        if self.health != Health::Well {
            done += self.renew(owner);
        }
        if self.handles.has_results() {
            done += self.take_results(owner);
        }
        if self.sends.waiting.has_ready() && self.health == Health::Well {
            done += self.send_ready(owner);
        }
        if self.handles.have_retired() && self.sends.queue.is_idle() {
            self.handles.release_retired();
        }
        done
    }

    fn flush<O: Owner>(&mut self, _owner: &mut O) {
        self.sends.queue.post_held_back(&self.qp);
    }

    /// The device acknowledges no datagram: each is with the device, or was refused.
    fn is_drained(&self) -> bool {
        self.sends.waiting.is_empty() && !self.sends.queue.have_refused()
    }

    fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        let refused = usize::from(self.sends.queue.have_refused());
        match self.sends.waiting.len() + refused {
            0 => {}
            some => report(FiAddr::NOTAVAIL, some),
        }
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, _owner: &mut O) {
        if let Some(peer) = &name.verbs {
            self.sources.insert(addr, peer);
        }
    }

    /// A source is unknown until a datagram arrives from it.
    fn has_unknown_sources(&self) -> bool {
        true
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.sources.remove(addr);
        let why = PEER_REMOVED;
        self.fail_waiting(|op| op.dest == addr, Errno::ECANCELED, why, owner);
        if let Some(route) = self.routes.remove(addr) {
            self.handles.retire(route.path);
        }
    }

    fn arm(&mut self) -> Result<bool> {
        self.sends.queue.post_held_back(&self.qp);
        let idle = match self.health {
            Health::Well => {
                !self.sends.waiting.has_ready()
                    && !self.sends.queue.have_refused()
                    && !self.handles.has_results()
            }
            Health::SendsFailed | Health::ToBeReset => false,
            Health::Dead => return Ok(true),
        };
        if !idle {
            return Ok(false);
        }
        if self.armed {
            return Ok(true);
        }
        while self.channel.take_event()?.is_some() {}
        self.cq
            .arm(false)
            .map_err(|e| Error::new(e.errno(), "arm", "completion queue"))?;
        // Earlier completions do not wake: the caller polls once more, then calls again.
        self.armed = true;
        Ok(false)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.counters;
        report("dgram_messages_sent", c.messages_sent);
        report("dgram_bytes_sent", c.bytes_sent);
        report("dgram_messages_received", c.messages_received);
        report("dgram_bytes_received", c.bytes_received);
        report("dgram_unknown_senders", c.unknown_senders);
        report("dgram_dropped", c.dropped);
        report("dgram_sends_failed", c.failed);
        report("dgram_resets", c.resets);
        report("dgram_handles_now", self.handles.len() as u64);
        self.handles.events.report(report);
    }
}

impl DatagramTransport for DgramTransport {
    #[inline]
    unsafe fn post_recv<O: Owner>(
        &mut self,
        op: &RecvOp,
        iov: &[IoBuf],
        _owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe { self.receive(op, iov) }
    }

    fn cancel_recv<O: Owner>(
        &mut self,
        context: u64,
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        self.cancel(context, owner)
    }
}
