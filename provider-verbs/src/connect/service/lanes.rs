//! The service thread's part in making lanes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_protocol::PeerKey;
use ferrofabric_protocol::handshake::{ConnectLane, LaneError, LaneKey};

use super::{JoiningLane, Made, ServiceWorker};
use crate::connect::{ToEngine, UdDestination};
use crate::device::Mtu;
use crate::qp::{RcConnect, RcInit, RcQp, RcTimers};

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
    pub(super) fn make_datagram_lane(
        &mut self,
        lane: LaneKey,
    ) -> std::result::Result<u32, LaneError> {
        let number = (self.config.data_qpn).ok_or(LaneError::Fatal(Errno::EOPNOTSUPP.0))?;
        self.lanes.insert(lane, Made::Ud(None));
        Ok(number)
    }

    /// Gets the address handle of a UD lane, now or later.
    pub(super) fn connect_datagram_lane(&mut self, lane: LaneKey, peer: &PeerKey) {
        let joined = match self.control_route(peer) {
            None => Err(LaneError::Fatal(Errno::EHOSTUNREACH.0)),
            Some((path, _, qkey)) => match self.handles.handle(path) {
                Some(handle) => self.join(lane, UdDestination { handle, qkey }),
                None => return self.joining.push(JoiningLane { path, lane, qkey }),
            },
        };
        self.answer(|c, now, out| c.lane_connected(now, lane, joined, out));
    }

    /// A UD lane has its address handle, or another one.
    pub(super) fn join(
        &mut self,
        lane: LaneKey,
        destination: UdDestination,
    ) -> std::result::Result<(), LaneError> {
        match self.lanes.get_mut(&lane) {
            Some(Made::Ud(joined)) => {
                let before = joined.replace(destination.clone());
                if before.is_some() {
                    self.tell(ToEngine::NewPath { lane, destination });
                }
                Ok(())
            }
            _ => Err(LaneError::Fatal(Errno::ENOENT.0)),
        }
    }

    pub(super) fn make_lane(&mut self, lane: LaneKey) -> std::result::Result<u32, LaneError> {
        if self.rc_lanes >= self.config.max_lanes {
            return Err(LaneError::NoResources);
        }
        let make = || -> Result<RcQp> {
            let qp = RcQp::create(&self.config.pd, &self.config.lane)?;
            qp.to_init(&RcInit {
                port: self.config.port.number,
                pkey_index: self.config.port.pkey_index,
                access: self.config.access,
            })?;
            Ok(qp)
        };
        let qp = make().map_err(|e| lane_error(&e))?;
        let number = qp.number();
        let events = self
            .queues
            .subscribe_lane(&self.config.events, number, lane);
        let made = Made::Rc {
            qp: Arc::new(qp),
            _events: events,
        };
        self.lanes.insert(lane, made);
        self.rc_lanes += 1;
        self.inbox.queue_pairs.fetch_add(1, Ordering::Relaxed);
        Ok(number)
    }

    pub(super) fn connect_lane(&self, connect: &ConnectLane) -> std::result::Result<(), LaneError> {
        let Some(Made::Rc { qp, .. }) = self.lanes.get(&connect.lane) else {
            return Err(LaneError::Fatal(Errno::ENOENT.0));
        };
        let (path, ..) = self
            .control_route(&connect.peer)
            .ok_or(LaneError::Fatal(Errno::EHOSTUNREACH.0))?;
        let mtu = Mtu::from_code(connect.path_mtu).ok_or(LaneError::Fatal(Errno::EPROTO.0))?;
        qp.to_rtr(&RcConnect {
            path,
            mtu,
            remote_qp: connect.remote_qpn,
            remote_psn: connect.remote_psn,
            reads_as_target: connect.max_dest_rd_atomic,
            receiver_not_ready_code: RECEIVER_NOT_READY_CODE,
        })
        .and_then(|()| {
            qp.to_rts(&RcTimers {
                psn: connect.local_psn,
                timeout_exponent: TIMEOUT_EXPONENT,
                retries: RETRIES,
                receiver_not_ready_retries: RECEIVER_NOT_READY_RETRIES,
                reads_as_initiator: connect.max_rd_atomic,
            })
        })
        .map_err(|e| lane_error(&e))
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
