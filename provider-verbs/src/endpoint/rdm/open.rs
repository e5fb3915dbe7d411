//! Opening an RDM endpoint.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::addr::{AuthKey, NativeAddr, VerbsAddr};
use ferrofabric_contracts::config::{LaneChoice, PeerTimeout};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_protocol::handshake::HandshakeConfig;
use ferrofabric_protocol::lane_policy;
use ferrofabric_protocol::lanes::{self, PeerLanes};
use ferrofabric_protocol::secrets::SecretSeed;
use ferrofabric_protocol::wire::control::{Keys, LaneLimits};
use ferrofabric_protocol::wire::data::MAX_RTS_BYTES;
use ferrofabric_system::clock::Clock;
use ferrofabric_system::random;
use ferrofabric_system::wait::WaitSet;

use super::RdmTransport;
use super::bounces::BounceBuffers;
use super::completions::Completions;
use super::endings::Endings;
use super::poster::Poster;
use super::recv::{ReceivePool, ReceivingQueuePair};
use super::ud::{DataQueuePair, UdShared};
use crate::connect::{ControlQueuePair, ServiceConfig, ServiceHandle, peer_key};
use crate::cq::{CompChannel, Cq, CqConfig};
use crate::device::{EventReader, InlineLimit, inline_limit};
use crate::lane::{LaneTable, ResumeSlots, TurnQueue};
use crate::mr::Access;
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::qp::{QpCaps, QpConfig, RcQp, UdInit, UdQp};
use crate::registration::Registrations;
use crate::session::{Grants, PeerTable, QUOTA_UNITS, RdmUnexpectedMessages};
use crate::srq::{Srq, SrqConfig};
use crate::tuning::Tuning;
use crate::workers::EndpointVerbs;

/// The configuration of an endpoint.
#[derive(Clone)]
pub(crate) struct RdmConfig {
    /// The port of the endpoint.
    pub(crate) port: LocalPort,
    /// The reader of the device's events.
    pub(crate) events: Arc<EventReader>,
    /// The sizes and limits that the endpoint uses.
    pub(crate) tuning: Tuning,
    /// The time limits for silent peers.
    pub(crate) timeouts: PeerTimeouts,
    /// The authorization key, which peers must have, too.
    pub(crate) auth_key: Option<AuthKey>,
    /// The clock of all its time limits.
    pub(crate) clock: Clock,
    /// The workers that carry out its control verbs.
    pub(crate) verbs: EndpointVerbs,
}

/// How long a peer that is reached by datagrams may be silent, unless a setting says otherwise. A
/// process that stopped for that long is lost, so the limit is much longer than the time in which
/// RC notices a dead peer.
const DATAGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limits for silent peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTimeouts {
    /// The limit for any peer.
    pub(crate) peer_timeout: PeerTimeout,
    /// The limit for a peer whose lane broke; `None`: for ever.
    pub(crate) reconnect_timeout: Option<Duration>,
}

/// The queues of an endpoint that all its lanes share.
struct Queues {
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    /// Of all lanes; `None`: each has its own receive queue.
    srq: Option<Arc<Srq>>,
}

impl Queues {
    fn create(pd: &Arc<Pd>, tuning: &Tuning) -> Result<Self> {
        let context = pd.context();
        let channel = CompChannel::create(context)?;
        let cq = Cq::create(
            context,
            &CqConfig {
                depth: (tuning.receives + tuning.sends.places) as u32,
                channel: Some(channel.clone()),
                vector: context.vector(),
                ..CqConfig::default()
            },
        )?;
        let config = SrqConfig {
            depth: (tuning.receives - tuning.datagram_receives) as u32,
            entries: 1,
        };
        let srq = match tuning.shares_receives {
            true => Some(Srq::create(pd, &config)?),
            false => None,
        };
        Ok(Self { channel, cq, srq })
    }

    /// The configuration of a lane's queue pair.
    fn queue_pair(&self, tuning: &Tuning, inline_bytes: u32) -> QpConfig {
        match &self.srq {
            None => self.receiving(tuning, inline_bytes, tuning.lane_receives),
            shared => QpConfig {
                srq: shared.clone(),
                ..self.receiving(tuning, inline_bytes, 0)
            },
        }
    }

    /// The configuration of a queue pair with a queue of so many receives, or with none.
    fn receiving(&self, tuning: &Tuning, inline_bytes: u32, receives: usize) -> QpConfig {
        QpConfig {
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            caps: QpCaps {
                send_depth: tuning.sends.depth as u32,
                recv_depth: receives as u32,
                send_entries: tuning.send_entries as u32,
                recv_entries: u32::from(receives > 0),
                inline_bytes,
            },
            signal_all: false,
            extended: None,
        }
    }

    /// The inline limit of lanes.
    fn lane_inline_limit(&self, pd: &Arc<Pd>, tuning: &Tuning) -> InlineLimit {
        let known = &pd.context().inline_limits().rc;
        let found = inline_limit(known, tuning.inline_bytes as u32, |bytes| {
            let qp = RcQp::create(pd, &self.queue_pair(tuning, bytes))?;
            Ok(qp.caps().inline_bytes)
        });
        found.unwrap_or_else(|error| {
            // Lanes over datagrams may do; a lane of this kind fails with the reason.
            tracing::debug!("no queue pair of a lane can be made now: {error}");
            InlineLimit::NONE
        })
    }

    /// The queue pair for UD lanes. If the device makes none, there are no UD lanes.
    ///
    /// # Errors
    ///
    /// The settings allow only UD lanes, and the device has none.
    fn data_queue_pair(
        &self,
        pd: &Arc<Pd>,
        port: &LocalPort,
        tuning: &Tuning,
        qkey: u32,
    ) -> Result<Option<DataQueuePair>> {
        let init = ud_init(port, qkey);
        let known = &pd.context().inline_limits().ud;
        let config = |bytes| self.receiving(tuning, bytes, tuning.datagram_receives);
        let opened = inline_limit(known, tuning.inline_bytes as u32, |bytes| {
            let qp = UdQp::create(pd, &config(bytes))?;
            Ok(qp.caps().inline_bytes)
        })
        .and_then(|limit| DataQueuePair::open(pd, &config(limit.request), limit.usable, init));
        match opened {
            Ok(queue_pair) => Ok(Some(queue_pair)),
            Err(error) if tuning.lane == LaneChoice::Ud => Err(error),
            Err(error) => {
                tracing::warn!("no lanes over datagrams: {error}");
                Ok(None)
            }
        }
    }
}

impl RdmConfig {
    /// The configuration of the handshake: the properties that it sends to peers, and its time
    /// limits. Packets have room for `datagram_bytes` bytes here.
    fn handshake(
        &self,
        name: &NativeAddr,
        verbs: &VerbsAddr,
        receive_bytes: usize,
        datagrams: bool,
        seed: SecretSeed,
    ) -> HandshakeConfig {
        let (peer_timeout, datagram_timeout) = match self.timeouts.peer_timeout {
            PeerTimeout::Auto => (None, Some(DATAGRAM_TIMEOUT)),
            PeerTimeout::After(limit) => (limit.0, None),
        };
        let reads = self.tuning.rendezvous.reads_per_lane;
        HandshakeConfig {
            seed,
            shm_name: name.shm.unwrap_or(0),
            keys: Keys {
                p_key: verbs.pkey,
                q_key: self.auth_key.map(AuthKey::qkey),
            },
            limits: LaneLimits {
                quota_units: QUOTA_UNITS,
                receive_bytes: receive_bytes as u32,
                path_mtu: self.port.mtu.code(),
                rd_atomic_out: reads,
                rd_atomic_in: reads,
            },
            datagrams,
            peer_timeout,
            datagram_timeout,
            ..HandshakeConfig::default()
        }
    }
}

/// The life of lanes, none of which is up yet. A datagram takes `packet_bytes` bytes of a packet.
fn life_of_lanes(tuning: &Tuning, datagrams: bool, packet_bytes: usize) -> PeerLanes {
    PeerLanes::new(lanes::LanesConfig {
        choice: tuning.lane,
        datagrams,
        requests_fit_datagrams: packet_bytes >= MAX_RTS_BYTES,
        policy: lane_policy::LanePolicyConfig {
            max_lanes: tuning.max_lanes,
            ..lane_policy::LanePolicyConfig::default()
        },
    })
}

/// Gives the data queue pair its receives.
fn open_receives(receives: &mut ReceivePool, data: Option<&DataQueuePair>, tuning: &Tuning) {
    if let Some(data) = data {
        let receiving = ReceivingQueuePair::Ud(Arc::downgrade(data.raw()));
        receives.open(data.number(), receiving, tuning.datagram_receives);
    }
}

fn ud_init(port: &LocalPort, qkey: u32) -> UdInit {
    UdInit {
        port: port.number,
        pkey_index: port.pkey_index,
        qkey,
        psn: 0,
    }
}

impl RdmTransport {
    /// Opens an endpoint's datagram queue pair: its number is part of the endpoint's address.
    ///
    /// # Errors
    ///
    /// The device or a limit does not allow it; the error names the cause.
    pub(crate) fn open_datagrams(
        pd: &Arc<Pd>,
        port: &LocalPort,
        qkey: u32,
    ) -> Result<ControlQueuePair> {
        ControlQueuePair::open(pd, &ud_init(port, qkey))
    }

    /// Opens the rest of an endpoint, whose address is complete now.
    ///
    /// # Errors
    ///
    /// The device or a limit does not allow it; the error names the cause.
    pub(crate) fn open(
        registrations: Registrations,
        datagrams: ControlQueuePair,
        name: &NativeAddr,
        config: &RdmConfig,
        wait: &WaitSet,
    ) -> Result<Self> {
        let verbs = name.verbs.ok_or_else(|| {
            Error::new(
                Errno::EINVAL,
                "open",
                "verbs endpoint with no verbs address",
            )
        })?;
        let RdmConfig {
            port,
            mut tuning,
            timeouts,
            ref clock,
            ref events,
            ..
        } = *config;
        let pd = registrations.pd();
        let queues = Queues::create(pd, &tuning)?;
        let queue_pair = queues.data_queue_pair(pd, &port, &tuning, verbs.qkey)?;
        let inline = queues.lane_inline_limit(pd, &tuning);
        tuning.inline_bytes = inline.usable as usize;
        let slot_bytes = tuning.slot_bytes();
        let bounces = BounceBuffers::create(pd, slot_bytes)?;
        let resume_slots = ResumeSlots::create(pd, &tuning)?;
        let mut receives = ReceivePool::create(pd, queues.srq.clone(), &tuning)?;
        open_receives(&mut receives, queue_pair.as_ref(), &tuning);
        let data_qpn = queue_pair.as_ref().map(DataQueuePair::number);
        let ud = UdShared::new(queue_pair, port.mtu, receives.slot_bytes(), clock.clone())?;
        wait.add(ud.fd())?;
        let life = life_of_lanes(&tuning, data_qpn.is_some(), ud.packet_bytes());
        let mut seed = SecretSeed::default();
        random::fill(&mut seed.0)?;
        let service_config = ServiceConfig {
            pd: pd.clone(),
            events: events.clone(),
            port,
            max_lanes: tuning.max_lanes,
            clock: clock.clone(),
            verbs: config.verbs.clone(),
            data_qpn,
            lane: queues.queue_pair(&tuning, inline.request),
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            handshake: config.handshake(
                name,
                &verbs,
                receives.slot_bytes(),
                data_qpn.is_some(),
                seed,
            ),
        };
        let service = ServiceHandle::start(peer_key(name), datagrams, service_config)?;
        let completions = Completions::new(queues.cq, queues.channel);
        wait.add(completions.fd())?;
        wait.add(service.fd())?;
        Ok(Self {
            lanes: LaneTable::default(),
            ud,
            life,
            resume_slots,
            reconnect_timeout: timeouts.reconnect_timeout,
            ending: Endings::new(completions.polls_that_empty_it()),
            #[cfg(feature = "fault-injection")]
            faults: crate::fault::SeenBreaks::default(),
            service,
            receives,
            completions,
            poster: Poster::new(bounces, tuning, port.mtu, registrations),
            peers: PeerTable::default(),
            unexpected: RdmUnexpectedMessages::default(),
            grants: Grants::default(),
            turns: TurnQueue::default(),
            drives_due: None,
        })
    }
}
