//! Datagrams.

use std::ops::Deref;
use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state, ibv_qp_type};

use super::{Qp, QpConfig, state};
use crate::pd::Pd;

/// A queue pair of the unreliable datagram kind: one reaches every peer, with messages of up to an
/// MTU.
#[derive(Debug)]
pub struct UdQp(Qp);

/// The attributes that a UD queue pair needs before it may be used.
#[derive(Clone, Copy, Debug)]
pub struct UdInit {
    /// This side's port.
    pub port: u8,
    /// This side's partition key, by its slot.
    pub pkey_index: u16,
    /// The Q_Key that senders must name; the device drops other datagrams.
    pub qkey: u32,
    /// Packet sequence number to start with, 24 bits.
    pub psn: u32,
}

/// How much of a UD queue pair has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdFailure {
    /// The send queue, which flushes all requests: receives go on.
    Sends,
    /// All of it: it neither sends nor receives.
    All,
}

impl UdQp {
    /// The routing header that stands before a received datagram, in bytes.
    pub const HEADER_BYTES: usize = 40;

    /// Creates a UD queue pair, in the reset state.
    ///
    /// # Errors
    ///
    /// The configuration is beyond the device's limits, or the device has no room.
    pub fn create(pd: &Arc<Pd>, config: &QpConfig) -> Result<Self> {
        Qp::create(pd, config, ibv_qp_type::IBV_QPT_UD).map(Self)
    }

    /// The inline bytes of a queue pair that is made and dropped again.
    ///
    /// # Errors
    ///
    /// The errno of a refusal; 0 where the driver sets none.
    pub(crate) fn try_inline(pd: &Arc<Pd>, config: &QpConfig) -> std::result::Result<u32, i32> {
        let made = Qp::attempt(pd, config, ibv_qp_type::IBV_QPT_UD)?;
        Ok(made.caps().inline_bytes)
    }

    /// Reset → initialised: receives may be posted.
    ///
    /// # Errors
    ///
    /// When it is in another state, or port or P_Key do not exist.
    pub fn to_init(&self, init: &UdInit) -> Result<()> {
        let attributes = ibv_qp_attr {
            port_num: init.port,
            pkey_index: init.pkey_index,
            qkey: init.qkey,
            ..state(ibv_qp_state::IBV_QPS_INIT)
        };
        let what =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PORT | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_QKEY;
        self.modify(attributes, what, "initialise")
    }

    /// Initialised → ready to receive.
    ///
    /// # Errors
    ///
    /// When it is in another state.
    pub fn to_rtr(&self) -> Result<()> {
        self.modify(
            state(ibv_qp_state::IBV_QPS_RTR),
            Mask::IBV_QP_STATE,
            "make ready to receive",
        )
    }

    /// Ready to receive → ready to send, from this packet sequence number on.
    ///
    /// # Errors
    ///
    /// When it is in another state.
    pub fn to_rts(&self, psn: u32) -> Result<()> {
        let attributes = ibv_qp_attr {
            sq_psn: psn,
            ..state(ibv_qp_state::IBV_QPS_RTS)
        };
        self.modify(
            attributes,
            Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN,
            "make ready to send",
        )
    }

    /// Whether it has failed, as far as the device says. After a local error a device may stop the
    /// send queue alone (IBTA 1.5 §10.3.1.6).
    pub fn failure(&self) -> Option<UdFailure> {
        match self.state() {
            Ok(ibv_qp_state::IBV_QPS_RTS) | Err(_) => None,
            Ok(ibv_qp_state::IBV_QPS_SQE) => Some(UdFailure::Sends),
            Ok(_) => Some(UdFailure::All),
        }
    }

    /// Send queue in error → ready to send. All requests must be flushed, and their completions
    /// taken.
    ///
    /// # Errors
    ///
    /// When it is in another state.
    pub fn resume_sends(&self) -> Result<()> {
        let attributes = ibv_qp_attr {
            // The kernel takes it for ready to send, as it was when the kernel last changed it.
            cur_qp_state: ibv_qp_state::IBV_QPS_SQE,
            ..state(ibv_qp_state::IBV_QPS_RTS)
        };
        let what = Mask::IBV_QP_STATE | Mask::IBV_QP_CUR_STATE;
        self.modify(attributes, what, "resume the sends of")
    }

    /// Reset → ready to send, in one go.
    ///
    /// # Errors
    ///
    /// As of the three steps.
    pub fn activate(&self, init: &UdInit) -> Result<()> {
        self.to_init(init)?;
        self.to_rtr()?;
        self.to_rts(init.psn)
    }
}

impl Deref for UdQp {
    type Target = Qp;

    fn deref(&self) -> &Qp {
        &self.0
    }
}

impl std::fmt::Display for UdQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
