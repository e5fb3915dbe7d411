//! Reliable connections.

use std::ops::Deref;
use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state, ibv_qp_type};

use super::{Qp, QpConfig, state};
use crate::ah::PortPath;
use crate::device::Mtu;
use crate::mr::Access;
use crate::pd::Pd;

/// A queue pair of the reliable connected kind: ordered, acknowledged, with one-sided operations.
#[derive(Debug)]
pub struct RcQp(Qp);

/// The attributes that an RC queue pair needs before it may receive.
#[derive(Clone, Copy, Debug)]
pub struct RcInit {
    /// This side's port.
    pub port: u8,
    /// This side's partition key, by its slot.
    pub pkey_index: u16,
    /// The rights of the peer through the queue pair: the `REMOTE_…` rights and `WINDOW_BIND`.
    pub access: Access,
}

/// The peer of a connection, and its attributes.
#[derive(Clone, Copy, Debug)]
pub struct RcConnect {
    /// The path to the peer's port.
    pub path: PortPath,
    /// Payload of a packet: at most the active MTU of both ports.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub remote_qp: u32,
    /// The first packet sequence number of the peer, 24 bits.
    pub remote_psn: u32,
    /// Reads and atomics of the peer to serve at once.
    pub reads_as_target: u8,
    /// How long the peer waits when this side has no receive posted, by the code of IBTA 1.5 table
    /// 45 (12: 0.64 ms).
    pub receiver_not_ready_code: u8,
}

/// Times and limits of retries.
#[derive(Clone, Copy, Debug)]
pub struct RcTimers {
    /// The first packet sequence number of this side, 24 bits.
    pub psn: u32,
    /// Wait for an acknowledgement for 4.096 µs · 2^this (14: 67 ms; 0: for ever).
    pub timeout_exponent: u8,
    /// Retries without an acknowledgement, at most 7.
    pub retries: u8,
    /// Retries to a peer with no receive posted; 7 is without end.
    pub receiver_not_ready_retries: u8,
    /// Reads and atomics of this side in flight at once; at most the peer's `reads_as_target`.
    pub reads_as_initiator: u8,
}

impl RcQp {
    /// Creates an RC queue pair, in the reset state.
    ///
    /// # Errors
    ///
    /// The configuration is beyond the device's limits, or the device has no room (at scale that is
    /// normal).
    pub fn create(pd: &Arc<Pd>, config: &QpConfig) -> Result<Self> {
        Qp::create(pd, config, ibv_qp_type::IBV_QPT_RC).map(Self)
    }

    /// The inline bytes of a queue pair that is made and dropped again.
    ///
    /// # Errors
    ///
    /// The errno of a refusal; 0 where the driver sets none.
    pub(crate) fn try_inline(pd: &Arc<Pd>, config: &QpConfig) -> std::result::Result<u32, i32> {
        let made = Qp::attempt(pd, config, ibv_qp_type::IBV_QPT_RC)?;
        Ok(made.caps().inline_bytes)
    }

    /// Reset → initialised: receives may be posted.
    ///
    /// # Errors
    ///
    /// When it is in another state, or port or P_Key do not exist.
    pub fn to_init(&self, init: &RcInit) -> Result<()> {
        let attributes = ibv_qp_attr {
            port_num: init.port,
            pkey_index: init.pkey_index,
            qp_access_flags: init.access.bits(),
            ..state(ibv_qp_state::IBV_QPS_INIT)
        };
        let what = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, what, "initialise")
    }

    /// Initialised → ready to receive from the peer. On RoCE it resolves the peer's hardware
    /// address and may wait for it.
    ///
    /// # Errors
    ///
    /// When it is in another state, or the path does not resolve.
    pub fn to_rtr(&self, peer: &RcConnect) -> Result<()> {
        let attributes = ibv_qp_attr {
            ah_attr: peer.path.to_raw(),
            path_mtu: peer.mtu.to_raw(),
            dest_qp_num: peer.remote_qp,
            rq_psn: peer.remote_psn,
            max_dest_rd_atomic: peer.reads_as_target,
            min_rnr_timer: peer.receiver_not_ready_code,
            ..state(ibv_qp_state::IBV_QPS_RTR)
        };
        let what = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, what, "make ready to receive")
    }

    /// Ready to receive → ready to send.
    ///
    /// # Errors
    ///
    /// When it is in another state.
    pub fn to_rts(&self, timers: &RcTimers) -> Result<()> {
        let attributes = ibv_qp_attr {
            sq_psn: timers.psn,
            timeout: timers.timeout_exponent,
            retry_cnt: timers.retries,
            rnr_retry: timers.receiver_not_ready_retries,
            max_rd_atomic: timers.reads_as_initiator,
            ..state(ibv_qp_state::IBV_QPS_RTS)
        };
        let what = Mask::IBV_QP_STATE
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, what, "make ready to send")
    }
}

impl Deref for RcQp {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.0
    }
}

impl std::fmt::Display for RcQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
