//! Shared receive queues: many queue pairs take their receives from one.

use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::{Error, OpError, Result};
use ferrofabric_verbs_sys::{
    self as sys, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};

use crate::device::{failed, last_errno};
use crate::pd::Pd;
use crate::rejected::{Rejected, rejected};

/// The configuration of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SrqConfig {
    /// Receives that it must hold.
    pub depth: u32,
    /// Scatter/gather entries of one receive.
    pub entries: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    raw: NonNull<ibv_srq>,
    granted: SrqConfig,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs takes calls on a shared receive queue from any thread; the driver locks it.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Creates one.
    ///
    /// # Errors
    ///
    /// When depth or entries are beyond the device's limits, or there is no room.
    pub fn create(pd: &Arc<Pd>, config: &SrqConfig) -> Result<Arc<Self>> {
        let mut attributes = ibv_srq_init_attr {
            attr: ibv_srq_attr {
                max_wr: config.depth,
                max_sge: config.entries,
                srq_limit: 0,
            },
            ..Default::default()
        };
        // SAFETY: the protection domain is live.
        let raw =
            unsafe { (pd.context().verbs().ibv_create_srq)(pd.as_ptr(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| not_created(last_errno(), pd, config))?;
        Ok(Arc::new(Self {
            raw,
            granted: SrqConfig {
                depth: attributes.attr.max_wr,
                entries: attributes.attr.max_sge,
            },
            pd: Arc::clone(pd),
        }))
    }

    /// Posts a list of receives ([`crate::post::RecvRequest`] builds them).
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when the queue is full. Receives before `rejected.first` were posted.
    ///
    /// # Safety
    ///
    /// `list` heads a list of complete requests; the memory that they name is registered and the
    /// device's to write until each completes.
    #[inline]
    pub unsafe fn post_recv(
        &self,
        list: *mut ibv_recv_wr,
    ) -> std::result::Result<(), Rejected<ibv_recv_wr>> {
        let mut first = std::ptr::null_mut();
        // SAFETY: the queue is live; the rest is the caller's promise.
        match unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), list, &raw mut first) } {
            0 => Ok(()),
            errno => Err(rejected(errno, first)),
        }
    }

    /// Requests the event `IBV_EVENT_SRQ_LIMIT_REACHED`, once, when fewer than `receives` receives
    /// are left; 0 cancels the request.
    ///
    /// # Errors
    ///
    /// When the device cannot, or the number is beyond the depth.
    pub fn arm_limit(&self, receives: u32) -> Result<()> {
        let attributes = ibv_srq_attr {
            srq_limit: receives,
            ..Default::default()
        };
        self.modify(
            attributes,
            ibv_srq_attr_mask::IBV_SRQ_LIMIT,
            "arm the limit of",
        )
    }

    /// Changes the depth. No other thread may post meanwhile.
    ///
    /// # Errors
    ///
    /// When the device cannot, or fewer fit than it holds.
    pub fn resize(&self, depth: u32) -> Result<()> {
        let attributes = ibv_srq_attr {
            max_wr: depth,
            ..Default::default()
        };
        self.modify(attributes, ibv_srq_attr_mask::IBV_SRQ_MAX_WR, "resize")
    }

    fn modify(
        &self,
        mut attributes: ibv_srq_attr,
        mask: ibv_srq_attr_mask,
        doing: &'static str,
    ) -> Result<()> {
        let verbs = self.pd.context().verbs();
        // SAFETY: the queue is live.
        let rc =
            unsafe { (verbs.ibv_modify_srq)(self.as_ptr(), &raw mut attributes, mask.0 as i32) };
        if rc != 0 {
            return Err(failed(rc, doing, self.to_string()));
        }
        Ok(())
    }

    /// Depth and entries that the device gave; at least those that were requested at creation.
    pub fn granted(&self) -> SrqConfig {
        self.granted
    }

    /// Identifies the queue in events of its device.
    pub fn id(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The raw queue. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if !self.pd.context().is_own() {
            return;
        }
        // SAFETY: destroyed once; its queue pairs held it and are gone.
        let rc = unsafe { (self.pd.context().verbs().ibv_destroy_srq)(self.as_ptr()) };
        if rc != 0 {
            tracing::warn!("{}", failed(rc, "destroy", self.to_string()));
        }
    }
}

impl std::fmt::Display for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "shared receive queue of {} receives on {}",
            self.granted.depth,
            self.pd.context().name()
        )
    }
}

#[cold]
fn not_created(errno: i32, pd: &Pd, config: &SrqConfig) -> Error {
    let (limits, name) = (pd.context().limits(), pd.context().name());
    let object = format!(
        "shared receive queue of {} receives with {} entries on {name}",
        config.depth, config.entries
    );
    failed(errno, "create", object).mend(format!(
        "the device takes up to {} receives with up to {} entries, in {} such queues",
        limits.shared_receive_depth, limits.shared_receive_entries, limits.shared_receive_queues
    ))
}

impl From<Rejected<ibv_recv_wr>> for OpError {
    fn from(rejected: Rejected<ibv_recv_wr>) -> Self {
        rejected.reason
    }
}
