//! The RDM endpoint over verbs: the engine that runs under the domain's lock.
//!
//! One shared receive queue and one completion queue serve all peers; a peer that is spoken to gets a lane (an RC queue
//! pair, made by the service thread). Small messages travel eagerly into the shared receive buffers, large ones as a
//! request upon which the receiver reads them, or the sender writes them. A lane that breaks is replaced, and the session
//! goes on.

mod complete;
mod dead_queue;
mod departing;
mod endings;
mod lane_ends;
mod lanes;
mod large;
mod parts;
mod receive;
mod resume;
mod send;
mod stalled;
mod taken;
mod ud;
mod waits;

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::config::{LaneChoice, PeerTimeout};
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::peer::{Owner, PeerAv, PeerSrx, Start, Token, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp};
use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::Config;
use ferrofabric_protocol::lane_policy::{self, LanePolicy};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::control::{Keys, Limits};
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::{ibv_wc, ibv_wc_status};

use crate::connect::{Datagrams, Service, ServiceConfig, ToService, peer_key};
use crate::cq::{CompChannel, Cq, CqConfig};
use crate::gather::Readable;
use crate::mr::Access;
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::post::SendChain;
use crate::qp::{QpCaps, QpConfig, UdInit};
use crate::registration::Registrations;
use crate::session::{Grants, Held, Lanes, Peers, QUOTA_UNITS, WrId};
use crate::slots::SlotPool;
use crate::srq::{Srq, SrqConfig};
use crate::tuning::Tuning;

use departing::Watch;
use endings::Endings;
use resume::Resuming;
use send::Poster;
use ud::{DataQueuePair, UdLanes};

/// Which transport of an endpoint a token belongs to: this one.
pub(crate) const TRANSPORT: u32 = 0;

/// Completions taken at a time.
const POLL: usize = 16;

/// Sends that wait for one peer's lane, at most; then the caller is told to try again.
const MAX_PENDING: usize = 1024;

/// What the endpoint has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) eager_sent: u64,
    /// Of those in several packets.
    pub(crate) sent_in_parts: u64,
    pub(crate) rendezvous_sent: u64,
    pub(crate) bytes_sent: u64,
    /// Reads and writes of large messages that were posted.
    pub(crate) chunks: u64,
    /// Of those under way. What is posted to the same lane now waits for no more.
    pub(crate) chunks_under_way: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_received: u64,
    pub(crate) packets_received: u64,
    pub(crate) dropped: u64,
    pub(crate) unexpected: u64,
    pub(crate) lanes_failed: u64,
    pub(crate) sessions_resumed: u64,
    pub(crate) packets_repeated: u64,
    pub(crate) ud_lanes: u64,
    pub(crate) promotions: u64,
    pub(crate) lanes_recycled: u64,
    /// Lanes given up because their peers were removed.
    pub(crate) lanes_left: u64,
    pub(crate) acks_sent: u64,
}

/// The engine of an RDM endpoint.
pub(crate) struct RdmTransport {
    // The service goes first, then lanes: with the last holder of a queue pair gone the device uses no more of what is sent on it.
    service: Service,
    lanes: Lanes,
    ud: UdLanes,
    /// Which peers have RC lanes.
    policy: LanePolicy,
    /// Since when somebody waits for an RC lane, and none was idle.
    wanted_room: Option<Time>,
    resuming: HashMap<SessionId, Resuming>,
    /// What ends once all that has come was taken.
    ending: Endings,
    /// Peers that were removed and have a lane, and what was seen of it.
    departing: HashMap<u32, Watch>,
    /// Looks at the completion queue that failed since the last that brought something.
    queue_failures: u32,
    srq: Arc<Srq>,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    receives: SlotPool,
    poster: Poster,
    peers: Peers,
    held: Held,
    grants: Grants,
    /// Lanes that have something to do.
    work: std::collections::VecDeque<SessionId>,
    /// Those that wait for what all lanes share.
    stalled: Vec<SessionId>,
    /// Receive buffers to be posted again.
    spent: Vec<u32>,
    /// So many are posted at a time, or more: a small part of all, of which lanes may hold some.
    post_from: usize,
    armed: bool,
    reconnect_timeout: Option<Duration>,
    #[cfg(feature = "fault-injection")]
    faults: crate::fault::Seen,
}

/// How long a peer that is reached by datagrams may be silent, unless that was set. A process that is stopped for so long does
/// not survive, so it is much longer than RC takes to notice that one died.
const DATAGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for peers that say nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For any peer.
    pub(crate) peer_timeout: PeerTimeout,
    /// For one whose lane broke; `None`: for ever.
    pub(crate) reconnect_timeout: Option<Duration>,
}

impl RdmTransport {
    /// Opens an endpoint's datagram queue pair: its number is part of the endpoint's address.
    ///
    /// # Errors
    ///
    /// What the device or a limit does not allow; the error names it.
    pub(crate) fn open_datagrams(pd: &Arc<Pd>, port: &LocalPort, qkey: u32) -> Result<Datagrams> {
        Datagrams::open(
            pd,
            &UdInit {
                port: port.number,
                pkey_index: port.pkey_index,
                qkey,
                psn: 0,
            },
        )
    }

    /// Opens the rest of an endpoint, whose address is complete now.
    ///
    /// # Errors
    ///
    /// What the device or a limit does not allow; the error names it.
    pub(crate) fn open(
        registrations: Registrations,
        port: LocalPort,
        tuning: Tuning,
        datagrams: Datagrams,
        name: &NativeAddr,
        patience: Patience,
        wait: &WaitSet,
    ) -> Result<Self> {
        let verbs = name.verbs.ok_or_else(|| {
            Error::new(
                Errno::EINVAL,
                "open",
                "verbs endpoint with no verbs address",
            )
        })?;
        let pd = registrations.pd();
        let context = pd.context();
        let channel = CompChannel::create(context)?;
        let cq = Cq::create(
            context,
            &CqConfig {
                depth: (tuning.receives + tuning.send_places) as u32,
                channel: Some(channel.clone()),
                ..CqConfig::default()
            },
        )?;
        let srq = Srq::create(
            pd,
            &SrqConfig {
                depth: tuning.receives as u32,
                entries: 1,
            },
        )?;
        let slot_bytes = tuning.slot_bytes();
        let mut receives = SlotPool::create(pd, tuning.receives, slot_bytes, Access::LOCAL_WRITE)?;
        let bounces = SlotPool::create(pd, tuning.bounces, slot_bytes, Access::empty())?;
        let mut spent = Vec::with_capacity(tuning.receives);
        spent.extend(std::iter::from_fn(|| receives.take()));

        let queue_pair = data_queue_pair(pd, &port, &tuning, (&cq, &srq), verbs.qkey)?;
        let ud = UdLanes::new(queue_pair, port.mtu, receives.slot_bytes())?;
        wait.add(ud.fd())?;
        let (peer_timeout, datagram_timeout) = match patience.peer_timeout {
            PeerTimeout::Auto => (None, Some(DATAGRAM_TIMEOUT)),
            PeerTimeout::After(limit) => (limit.0, None),
        };
        let config = ServiceConfig {
            pd: pd.clone(),
            port,
            max_lanes: tuning.max_lanes,
            data_qpn: ud.queue_pair.as_ref().map(DataQueuePair::number),
            lane: QpConfig {
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: Some(srq.clone()),
                caps: QpCaps {
                    send_depth: tuning.send_depth as u32,
                    recv_depth: 0,
                    send_entries: 2,
                    recv_entries: 0,
                    inline_bytes: tuning.inline_bytes as u32,
                },
                signal_all: false,
                extended: None,
            },
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            handshake: Config {
                seed: crate::random::random(),
                shm_name: name.shm.unwrap_or(0),
                keys: Keys {
                    p_key: verbs.pkey,
                    q_key: verbs.qkey,
                },
                limits: Limits {
                    quota_units: QUOTA_UNITS,
                    receive_bytes: receives.slot_bytes() as u32,
                    path_mtu: port.mtu.code(),
                    rd_atomic_out: tuning.reads_per_lane,
                    rd_atomic_in: tuning.reads_per_lane,
                },
                datagrams: ud.queue_pair.is_some(),
                peer_timeout,
                datagram_timeout,
                ..Config::default()
            },
        };
        let service = Service::start(peer_key(name), datagrams, config)?;
        wait.add(channel.as_fd())?;
        wait.add(service.fd())?;
        let mut this = Self {
            lanes: Lanes::default(),
            ud,
            policy: LanePolicy::new(lane_policy::Config {
                max_lanes: tuning.max_lanes,
                ..lane_policy::Config::default()
            }),
            wanted_room: None,
            resuming: HashMap::new(),
            ending: Endings::new(cq.depth()),
            departing: HashMap::new(),
            queue_failures: 0,
            reconnect_timeout: patience.reconnect_timeout,
            #[cfg(feature = "fault-injection")]
            faults: crate::fault::Seen::default(),
            service,
            srq,
            cq,
            channel,
            receives,
            poster: Poster {
                bounces,
                tuning,
                mtu: port.mtu,
                chain: SendChain::new(),
                chain_of: SessionId(0),
                more_follow: false,
                outstanding: 0,
                counts_sends: false,
                counters: Counters::default(),
                registrations,
            },
            peers: Peers::default(),
            held: Held::default(),
            grants: Grants::default(),
            work: std::collections::VecDeque::new(),
            stalled: Vec::new(),
            spent,
            post_from: POLL.min(tuning.receives / 4),
            armed: false,
        };
        this.post_spent();
        Ok(this)
    }

    /// Has each send told of soon: the device is asked to signal those that want no completion, too.
    pub(crate) fn count_sends(&mut self) {
        self.poster.counts_sends = true;
    }

    /// Sends something that was already taken over: it is queued whatever waits before it.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    ///
    /// # Errors
    ///
    /// As [`Transport::send`], but never [`OpError::Again`].
    pub(crate) unsafe fn send_whatever_waits<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let peer = self.peer_for(op.dest, owner)?;
        // SAFETY: the caller's promise.
        self.enqueue(peer, op, unsafe { Readable::new(iov) })
    }

    #[inline]
    fn peer_for<O: Owner>(&mut self, dest: FiAddr, owner: &O) -> Result<u32, OpError> {
        if let Some(peer) = self.peers.routed(dest) {
            return Ok(peer);
        }
        let name = owner
            .av()
            .lookup(dest)
            .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        self.add_route(dest, &name)
    }

    #[inline]
    fn poll<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); POLL];
        let cq = Arc::as_ptr(&self.cq);
        // SAFETY: `self` holds the queue; only the count of holders is not touched, for this is polled all the time.
        let completions = match unsafe { (*cq).poll(&mut room) } {
            Ok(completions) => completions,
            Err(error) => return self.queue_failed(error, owner),
        };
        for completion in completions {
            let ok = completion.status == ibv_wc_status::IBV_WC_SUCCESS;
            match WrId::parse(completion.wr_id) {
                WrId::Receive(slot) if !self.receives.has(slot) => self.receive_of_nobody(slot),
                WrId::Receive(slot) if ok => {
                    self.received(slot, completion.byte_len, completion.qp_num, owner);
                }
                WrId::Receive(slot) => self.spent.push(slot),
                WrId::Send(session, number) => {
                    let status = (!ok).then_some(completion.status);
                    self.sent(session, number, status, owner);
                }
            }
        }
        if !completions.is_empty() {
            self.queue_failures = 0;
            self.armed = false;
            if self.spent.len() >= self.post_from {
                self.post_spent();
            }
        }
        completions.len()
    }

    /// A completion names a receive that was never posted.
    #[cold]
    fn receive_of_nobody(&mut self, slot: u32) {
        self.poster.counters.dropped += 1;
        tracing::warn!(
            "{} completed receive {slot}, which there is not",
            self.cq.context().name()
        );
    }

    /// What newcomers are granted may have changed.
    fn tell_grant(&mut self) {
        if let Some(quota_units) = self.grants.changed() {
            self.service.request(ToService::Grant(quota_units));
        }
    }
}

/// The queue pair for lanes of the UD kind. Not every device lets datagrams take from a shared receive queue: then there are
/// none.
///
/// # Errors
///
/// When nothing but such lanes is wanted.
fn data_queue_pair(
    pd: &Arc<Pd>,
    port: &LocalPort,
    tuning: &Tuning,
    queues: (&Arc<Cq>, &Arc<Srq>),
    qkey: u32,
) -> Result<Option<DataQueuePair>> {
    let init = UdInit {
        port: port.number,
        pkey_index: port.pkey_index,
        qkey,
        psn: 0,
    };
    let sizes = (tuning.send_depth, tuning.inline_bytes);
    match DataQueuePair::open(pd, queues, sizes, init) {
        Ok(queue_pair) => Ok(Some(queue_pair)),
        Err(error) if tuning.lane == LaneChoice::Ud => Err(error),
        Err(error) => {
            tracing::warn!("no lanes over datagrams: {error}");
            Ok(None)
        }
    }
}

impl Drop for RdmTransport {
    fn drop(&mut self) {
        if !self.cq.context().is_own() {
            return;
        }
        self.post_held_back();
        self.say_what_was_taken();
    }
}

impl Transport for RdmTransport {
    #[inline]
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        let peer = self.peer_for(op.dest, owner)?;
        // SAFETY: the caller's promise.
        self.send_to(peer, op, unsafe { Readable::new(iov) })
    }

    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O) {
        self.post_held_back();
        self.start_held(start, owner);
    }

    fn discard<O: Owner>(&mut self, _kind: MsgKind, token: Token, _owner: &mut O) {
        self.discard_held(token);
    }

    #[inline]
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize {
        #[cfg(feature = "fault-injection")]
        if self.faults.take() {
            for lane in self.lanes.iter_mut() {
                let _ = lane.qp.to_error();
            }
        }
        self.post_held_back();
        let mut done = 0;
        if self.service.has_messages() {
            done += self.take_messages(owner);
        }
        let ending = self.ending.len();
        let polled = self.poll(owner);
        done += polled;
        if polled > 0 && !self.stalled.is_empty() {
            self.go_on_stalled();
        }
        if ending > 0 && self.has_polled() && self.ending.looked(ending, polled) {
            done += self.end_resuming(owner);
        }
        if self.ud.wait_for_time() {
            done += self.run_deadlines(owner);
        }
        if !self.work.is_empty() {
            done += self.run_work(owner);
        }
        if self.peers.are_to_be_sorted() {
            self.sort_peers();
        }
        self.poster.registrations.tidy();
        done
    }

    fn flush<O: Owner>(&mut self, _owner: &mut O) {
        self.post_held_back();
    }

    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O) {
        let Some(peer) = self.peers.find(&peer_key(name)) else {
            return;
        };
        self.peers.route(addr, name);
        let held = &self.held;
        owner.srx().resolve(addr, |token| {
            token.transport == TRANSPORT
                && held.message(token.value).is_some_and(|m| m.peer == peer)
        });
    }

    fn has_strangers(&self) -> bool {
        self.peers.has_strangers()
    }

    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        if let Some(peer) = self.peers.unroute(addr) {
            self.fail_pending(
                peer,
                |op| op.dest == addr,
                Errno::ECANCELED,
                "the peer was removed from the address vector",
                owner,
            );
            if !self.peers.at(peer).is_routed() {
                self.depart(peer);
            }
        }
        owner.srx().forget_source(addr);
        if self.peers.are_to_be_sorted() {
            self.sort_peers();
        }
    }

    fn arm(&mut self) -> Result<bool> {
        self.service.hush();
        self.post_held_back();
        if self.service.has_messages() || !self.work.is_empty() || !self.ending.is_empty() {
            return Ok(false);
        }
        if !self.ud.arm()? {
            return Ok(false);
        }
        if self.armed {
            return Ok(true);
        }
        while self.channel.take_event()?.is_some() {}
        self.cq
            .arm(false)
            .map_err(|e| Error::new(e.errno(), "arm", "completion queue"))?;
        // What came before does not wake: the caller looks once more, then asks again.
        self.armed = true;
        Ok(false)
    }

    fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.poster.counters;
        report("verbs_messages_sent", c.eager_sent + c.rendezvous_sent);
        report("verbs_bytes_sent", c.bytes_sent);
        report("verbs_messages_received", c.messages_received);
        report("verbs_bytes_received", c.bytes_received);
        report("verbs_sent_eager", c.eager_sent);
        report("verbs_sent_in_parts", c.sent_in_parts);
        report("verbs_sent_rendezvous", c.rendezvous_sent);
        report("verbs_chunks", c.chunks);
        report("verbs_chunks_under_way", c.chunks_under_way);
        self.poster.registrations.report(report);
        report("verbs_packets_received", c.packets_received);
        report("verbs_receive_buffers", self.receives.count() as u64);
        report("verbs_packets_dropped", c.dropped);
        report("verbs_unexpected", c.unexpected);
        report("verbs_unexpected_now", self.held.len() as u64);
        report("verbs_units_granted", u64::from(self.grants.in_use()));
        report("verbs_lanes_failed", c.lanes_failed);
        let sessions = self.lanes.count() + self.ud.lanes.count() + self.peers.parked();
        report("verbs_sessions_now", sessions as u64);
        report("verbs_peers_now", self.peers.count() as u64);
        self.report_waits(report);
        report("verbs_sessions_resumed", c.sessions_resumed);
        report("verbs_packets_repeated", c.packets_repeated);
        report("verbs_queue_pairs_made", self.service.queue_pairs());
        report("verbs_lanes_recycled", c.lanes_recycled);
        report("verbs_lanes_left", c.lanes_left);
        report("verbs_ud_lanes", c.ud_lanes);
        report("verbs_ud_promotions", c.promotions);
        let datagrams = self.datagram_counters();
        report("verbs_datagrams_sent", datagrams.sent + c.acks_sent);
        report("verbs_datagrams_repeated", datagrams.repeated);
    }
}
