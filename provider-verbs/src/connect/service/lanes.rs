//! The service thread's part in making lanes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, unbounded};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_protocol::handshake::{ConnectLane, LaneError, LaneKey};
use ferrofabric_protocol::wire::control::LaneKind;
use ferrofabric_system::wait::WaitSet;

use super::{JoiningCarrier, JoiningLane, LaneQueuePair, Made, ServiceWorker};
use crate::ah::{Ah, PortPath};
use crate::connect::{ToEngine, UdDestination};
use crate::device::{DeviceContext, Mtu, QueuePairShortage};
use crate::qp::{RcConnect, RcInit, RcQp, RcTimers};
use crate::workers::EndpointVerbs;

/// How long to wait for an acknowledgement on a lane: 4.096 µs · 2^16 = 268 ms.
const TIMEOUT_EXPONENT: u8 = 16;

/// Retries without an acknowledgement: a peer is given up 2 s after its last packet. (7 would be
/// without end on Soft-RoCE, as the standard has it only for receivers that are not ready.)
const RETRIES: u8 = 6;

/// A peer with no receive posted is retried for ever: it may only be slow, or stopped.
const RECEIVER_NOT_READY_RETRIES: u8 = 7;

/// How long a peer waits when this side has no receive posted: 0.64 ms.
const RECEIVER_NOT_READY_CODE: u8 = 12;

impl ServiceWorker {
    /// A UD lane takes no resource of the device.
    pub(super) fn make_datagram_lane(&mut self, lane: LaneKey) {
        let made = (self.config.data_qpn).ok_or(LaneError::Fatal(Errno::EOPNOTSUPP.0));
        if made.is_ok() {
            self.lanes.insert(lane, Made::Ud(None));
        }
        self.answer(|c, now, out| c.lane_made(now, lane, made, out));
    }

    /// Connects a lane as soon as its path has an address handle: now or later. A queue pair takes
    /// no handle, but the path that the handle has.
    pub(super) fn connect_lane(&mut self, connect: ConnectLane) {
        let lane = connect.lane;
        let Some((path, _, qkey)) = self.control_route(&connect.peer) else {
            let unreachable = Err(LaneError::Fatal(Errno::EHOSTUNREACH.0));
            return self.answer(|c, now, out| c.lane_connected(now, lane, unreachable, out));
        };
        let carrier = match connect.kind {
            LaneKind::Rc => JoiningCarrier::Rc(connect),
            LaneKind::Ud => JoiningCarrier::Ud(qkey),
        };
        let waiting = JoiningLane {
            path,
            lane,
            carrier,
        };
        match self.handles.handle(path) {
            None => self.joining.push(waiting),
            Some(handle) => {
                if let Some(connected) = self.connect_along(waiting, &handle) {
                    self.answer(|c, now, out| c.lane_connected(now, lane, connected, out));
                }
            }
        }
    }

    /// Connects a lane along the path of a handle. `None`: the outcome comes later.
    pub(super) fn connect_along(
        &mut self,
        waiting: JoiningLane,
        handle: &Arc<Ah>,
    ) -> Option<std::result::Result<(), LaneError>> {
        let JoiningLane {
            path,
            lane,
            carrier,
        } = waiting;
        match carrier {
            JoiningCarrier::Rc(connect) => self.connect_queue_pair(&connect, handle).err().map(Err),
            JoiningCarrier::Ud(qkey) => {
                let handle = Arc::clone(handle);
                Some(self.join(lane, path, UdDestination { handle, qkey }))
            }
        }
    }

    /// A UD lane has its address handle, or another one.
    fn join(
        &mut self,
        lane: LaneKey,
        path: PortPath,
        destination: UdDestination,
    ) -> std::result::Result<(), LaneError> {
        match self.lanes.get_mut(&lane) {
            Some(Made::Ud(joined)) => {
                let before = joined.replace((path, destination.clone()));
                if before.is_some() {
                    self.tell(ToEngine::NewPath { lane, destination });
                }
                Ok(())
            }
            _ => Err(LaneError::Fatal(Errno::ENOENT.0)),
        }
    }

    /// Has a worker make the queue pair of a lane.
    pub(super) fn make_lane(&mut self, lane: LaneKey) {
        if self.rc_lanes >= self.config.max_lanes {
            let none = Err(LaneError::NoResources);
            return self.answer(|c, now, out| c.lane_made(now, lane, none, out));
        }
        self.lanes.insert(lane, Made::Rc(None));
        self.rc_lanes += 1;
        let (pd, config) = (Arc::clone(&self.config.pd), self.config.lane.clone());
        let init = RcInit {
            port: self.config.port.number,
            pkey_index: self.config.port.pkey_index,
            access: self.config.access,
        };
        let make = move || -> Result<RcQp> {
            let qp = RcQp::create(&pd, &config)?;
            qp.to_init(&init)?;
            Ok(qp)
        };
        self.verbs
            .request(move || VerbOutcome::Made(lane, make().map(Arc::new)));
    }

    /// Has a worker connect the queue pair of a lane.
    fn connect_queue_pair(
        &self,
        connect: &ConnectLane,
        handle: &Ah,
    ) -> std::result::Result<(), LaneError> {
        let lane = connect.lane;
        let Some(Made::Rc(Some(made))) = self.lanes.get(&lane) else {
            return Err(LaneError::Fatal(Errno::ENOENT.0));
        };
        let of_ports = Mtu::from_code(connect.path_mtu).ok_or(LaneError::Fatal(Errno::EPROTO.0))?;
        let to_peer = RcConnect {
            path: *handle.path(),
            // Both ends ask for the path, and it is as narrow in both directions.
            mtu: handle.mtu().map_or(of_ports, |mtu| mtu.min(of_ports)),
            remote_qp: connect.remote_qpn,
            remote_psn: connect.remote_psn,
            reads_as_target: connect.max_dest_rd_atomic,
            receiver_not_ready_code: RECEIVER_NOT_READY_CODE,
        };
        let timers = RcTimers {
            psn: connect.local_psn,
            timeout_exponent: TIMEOUT_EXPONENT,
            retries: RETRIES,
            receiver_not_ready_retries: RECEIVER_NOT_READY_RETRIES,
            reads_as_initiator: connect.max_rd_atomic,
        };
        let qp = Arc::clone(&made.qp);
        self.verbs.request(move || {
            let connected = qp.to_rtr(&to_peer).and_then(|()| qp.to_rts(&timers));
            VerbOutcome::Connected(lane, connected)
        });
        Ok(())
    }

    /// A worker has carried out the verbs of a lane. The lane may have been released meanwhile.
    pub(super) fn verb_is_over(&mut self, outcome: VerbOutcome) {
        match outcome {
            VerbOutcome::Made(lane, made) => {
                let count = u64::from(made.is_ok());
                self.inbox.queue_pairs.fetch_add(count, Ordering::Relaxed);
                let made = match made {
                    Ok(qp) => {
                        let number = qp.number();
                        let Some(place) = self.lanes.get_mut(&lane) else {
                            return self.verbs.endpoint.destroy(qp);
                        };
                        let events = &self.config.events;
                        let _events = self.queues.subscribe_lane(events, number, lane);
                        *place = Made::Rc(Some(LaneQueuePair { qp, _events }));
                        Ok(number)
                    }
                    Err(error) => {
                        self.release_lane(lane);
                        Err(lane_error(&error))
                    }
                };
                match made {
                    Ok(_) => self.verbs.shortage.end(),
                    Err(LaneError::NoResources) => {
                        let now = self.now();
                        self.verbs.shortage.announce(now);
                    }
                    Err(LaneError::Fatal(_)) => {}
                }
                self.drive(|c, now, out| c.lane_made(now, lane, made, out));
            }
            VerbOutcome::Connected(lane, connected) => {
                let connected = connected.map_err(|error| lane_error(&error));
                self.drive(|c, now, out| c.lane_connected(now, lane, connected, out));
            }
        }
    }

    /// A queue pair goes with its last holder, which may be the engine.
    pub(super) fn release_lane(&mut self, lane: LaneKey) {
        if let Some(Made::Rc(made)) = self.lanes.remove(&lane) {
            self.rc_lanes -= 1;
            if let Some(made) = made {
                self.verbs.endpoint.destroy(made.qp);
            }
        }
    }

    /// The thread ends.
    pub(super) fn release_lanes(&mut self) {
        for (_, made) in self.lanes.drain() {
            if let Made::Rc(Some(made)) = made {
                self.verbs.endpoint.destroy(made.qp);
            }
        }
    }
}

/// The result of verbs that workers have carried out for a lane.
pub(super) enum VerbOutcome {
    /// Its queue pair was made and initialised.
    Made(LaneKey, Result<Arc<RcQp>>),
    /// Its queue pair was connected.
    Connected(LaneKey, Result<()>),
}

/// The verbs of the service thread, and their results.
pub(super) struct LaneVerbs {
    endpoint: EndpointVerbs,
    over: Sender<VerbOutcome>,
    outcomes: Receiver<VerbOutcome>,
    /// Wakes the service thread.
    wait: Arc<WaitSet>,
    /// The device has no queue pairs left.
    pub(super) shortage: QueuePairShortage,
}

impl LaneVerbs {
    pub(super) fn new(
        endpoint: &EndpointVerbs,
        wait: &Arc<WaitSet>,
        device: &DeviceContext,
    ) -> Self {
        let (over, outcomes) = unbounded();
        Self {
            endpoint: endpoint.clone(),
            over,
            outcomes,
            wait: Arc::clone(wait),
            shortage: QueuePairShortage::of(device),
        }
    }

    fn request(&self, verbs: impl FnOnce() -> VerbOutcome + Send + 'static) {
        let (over, wait) = (self.over.clone(), Arc::clone(&self.wait));
        self.endpoint.request(move || {
            // If the thread has ended, the queue pair ends here.
            let _ = over.send(verbs());
            wait.signal();
        });
    }

    /// The next result, if there is one.
    pub(super) fn outcome(&self) -> Option<VerbOutcome> {
        self.outcomes.try_recv().ok()
    }
}

/// Whether a failed verb may succeed later.
pub(super) fn lane_error(error: &Error) -> LaneError {
    tracing::debug!("{error}");
    match error.errno() {
        Errno::ENOMEM | Errno::EAGAIN | Errno::ENOSPC | Errno::ETIMEDOUT => LaneError::NoResources,
        errno => LaneError::Fatal(errno.0),
    }
}
