//! Queue pairs: the common part of reliable connections and datagrams.

mod rc;
mod ud;

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::cancel::Uncancelled;
use ferrofabric_verbs_sys::{
    self as sys, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap,
    ibv_qp_create_send_ops_flags as RawOps, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_wr,
};

use crate::cq::Cq;
use crate::device::{Quirks, clear_errno, failed, last_errno};
use crate::pd::Pd;
use crate::rejected::{Rejected, rejected};
use crate::srq::Srq;

pub use rc::{RcConnect, RcInit, RcQp, RcTimers};
pub use ud::{UdFailure, UdInit, UdQp};

bitflags::bitflags! {
    /// Operations that a queue pair is created for, for extended posting (`ibv_create_qp_ex(3)`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendOps: u64 {
        /// [`SendBatch::send`](crate::post::SendBatch::send).
        const SEND = RawOps::IBV_QP_EX_WITH_SEND.0 as u64;
        /// [`SendBatch::send_immediate`](crate::post::SendBatch::send_immediate).
        const SEND_IMMEDIATE = RawOps::IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;
        /// [`SendBatch::send_with_invalidate`](crate::post::SendBatch::send_with_invalidate).
        const SEND_INVALIDATE = RawOps::IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64;
        /// [`SendBatch::write`](crate::post::SendBatch::write).
        const WRITE = RawOps::IBV_QP_EX_WITH_RDMA_WRITE.0 as u64;
        /// [`SendBatch::write_immediate`](crate::post::SendBatch::write_immediate).
        const WRITE_IMMEDIATE = RawOps::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64;
        /// [`SendBatch::read`](crate::post::SendBatch::read).
        const READ = RawOps::IBV_QP_EX_WITH_RDMA_READ.0 as u64;
        /// [`SendBatch::compare_swap`](crate::post::SendBatch::compare_swap).
        const COMPARE_SWAP = RawOps::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64;
        /// [`SendBatch::fetch_add`](crate::post::SendBatch::fetch_add).
        const FETCH_ADD = RawOps::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64;
        /// [`SendBatch::bind_window`](crate::post::SendBatch::bind_window).
        const BIND_WINDOW = RawOps::IBV_QP_EX_WITH_BIND_MW.0 as u64;
        /// [`SendBatch::invalidate_local`](crate::post::SendBatch::invalidate_local).
        const INVALIDATE_LOCAL = RawOps::IBV_QP_EX_WITH_LOCAL_INV.0 as u64;
    }
}

/// The configuration of a queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// The completion queue of sends.
    pub send_cq: Arc<Cq>,
    /// The completion queue of receives; may be the same.
    pub recv_cq: Arc<Cq>,
    /// The queue that receives come from, in place of a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// The capacities of its queues.
    pub caps: QpCaps,
    /// All sends complete in the queue, flag or not.
    pub signal_all: bool,
    /// For extended posting of these operations, besides the legacy way.
    pub extended: Option<SendOps>,
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Sends in flight.
    pub send_depth: u32,
    /// Receives posted; nothing with a shared receive queue.
    pub recv_depth: u32,
    /// Scatter/gather entries of one send.
    pub send_entries: u32,
    /// Scatter/gather entries of one receive.
    pub recv_entries: u32,
    /// Longest inline payload, in bytes.
    pub inline_bytes: u32,
}

/// A queue pair. Its kinds, [`RcQp`] and [`UdQp`], dereference to it.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<ibv_qp>,
    extended: Option<NonNull<ibv_qp_ex>>,
    caps: QpCaps,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    /// [`Quirks::POSTS_BY_SYSTEM_CALL`].
    posts_by_system_call: bool,
}

// SAFETY: libibverbs takes calls on a queue pair from any thread; the driver locks its queues.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    fn create(pd: &Arc<Pd>, config: &QpConfig, kind: ibv_qp_type) -> Result<Self> {
        Self::attempt(pd, config, kind).map_err(|errno| {
            let errno = match errno {
                0 => libc::EINVAL,
                errno => errno,
            };
            not_created(errno, pd, config, kind)
        })
    }

    /// As [`create`](Self::create), with the errno of a refusal; 0 where the driver sets none.
    fn attempt(
        pd: &Arc<Pd>,
        config: &QpConfig,
        kind: ibv_qp_type,
    ) -> std::result::Result<Self, i32> {
        if !same_device(pd, config) {
            return Err(libc::EXDEV);
        }
        let mut caps = ibv_qp_cap {
            max_send_wr: config.caps.send_depth,
            max_recv_wr: config.caps.recv_depth,
            max_send_sge: config.caps.send_entries,
            max_recv_sge: config.caps.recv_entries,
            max_inline_data: config.caps.inline_bytes,
        };
        clear_errno();
        let raw = match config.extended {
            None => create_legacy(pd, config, kind, &mut caps),
            Some(ops) => create_extended(pd, config, kind, &mut caps, ops),
        };
        let raw = raw.ok_or_else(last_errno)?;
        let mut this = Self {
            raw,
            extended: None,
            caps: QpCaps {
                send_depth: caps.max_send_wr,
                recv_depth: caps.max_recv_wr,
                send_entries: caps.max_send_sge,
                recv_entries: caps.max_recv_sge,
                inline_bytes: caps.max_inline_data,
            },
            pd: Arc::clone(pd),
            send_cq: Arc::clone(&config.send_cq),
            recv_cq: Arc::clone(&config.recv_cq),
            srq: config.srq.clone(),
            posts_by_system_call: (pd.context().quirks()).contains(Quirks::POSTS_BY_SYSTEM_CALL),
        };
        pd.context().last_receives().forget(this.number());
        if config.extended.is_some() {
            this.extended = pd
                .context()
                .verbs()
                .ibv_qp_to_qp_ex
                // SAFETY: a live queue pair, created with send operations.
                .and_then(|convert| NonNull::new(unsafe { convert(raw.as_ptr()) }));
            if this.extended.is_none() {
                return Err(libc::EOPNOTSUPP);
            }
        }
        Ok(this)
    }

    /// Its number, 24 bits, by which peers and completions name it.
    #[inline]
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// The sizes that the device gave: at least those that were requested.
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// Posts a list of sends ([`crate::post::SendRequest`] builds them).
    ///
    /// # Errors
    ///
    /// [`ferrofabric_contracts::error::OpError::Again`] when the queue is full. Requests before
    /// `rejected.first` were posted.
    ///
    /// # Safety
    ///
    /// `list` heads a list of complete requests, with memory and handles as
    /// [`crate::post::SendRequest::post`] wants them.
    #[inline]
    pub unsafe fn post_send(
        &self,
        list: *mut ibv_send_wr,
    ) -> std::result::Result<(), Rejected<ibv_send_wr>> {
        if self.posts_by_system_call {
            let _uncancelled = Uncancelled::begin();
            // SAFETY: the caller's promise.
            return unsafe { self.post_sends(list) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.post_sends(list) }
    }

    /// # Safety
    ///
    /// As [`post_send`](Self::post_send).
    #[inline]
    unsafe fn post_sends(
        &self,
        list: *mut ibv_send_wr,
    ) -> std::result::Result<(), Rejected<ibv_send_wr>> {
        let mut first = ptr::null_mut();
        // SAFETY: the queue pair is live; the rest is the caller's promise.
        match unsafe { sys::ibv_post_send(self.raw.as_ptr(), list, &raw mut first) } {
            0 => Ok(()),
            errno => Err(rejected(errno, first)),
        }
    }

    /// Posts a list of receives ([`crate::post::RecvRequest`] builds them).
    ///
    /// # Errors
    ///
    /// [`ferrofabric_contracts::error::OpError::Again`] when the queue is full, `EINVAL` with a
    /// shared receive queue. Requests before `rejected.first` were posted.
    ///
    /// # Safety
    ///
    /// `list` heads a list of complete requests, with memory as
    /// [`crate::post::RecvRequest::post`] wants it.
    #[inline]
    pub unsafe fn post_recv(
        &self,
        list: *mut ibv_recv_wr,
    ) -> std::result::Result<(), Rejected<ibv_recv_wr>> {
        if self.srq.is_some() {
            // Some drivers would write through a null pointer.
            return Err(rejected(libc::EINVAL, list));
        }
        let mut first = ptr::null_mut();
        // SAFETY: the queue pair is live; the rest is the caller's promise.
        match unsafe { sys::ibv_post_recv(self.raw.as_ptr(), list, &raw mut first) } {
            0 => Ok(()),
            errno => Err(rejected(errno, first)),
        }
    }

    /// Its handle for extended posting; `None` when it was not created for that.
    #[inline]
    pub(crate) fn extended(&self) -> Option<NonNull<ibv_qp_ex>> {
        self.extended
    }

    /// Whether the device has reported, since it went to error, that it has taken its last receive
    /// of a shared queue: all completions of its receives are in the completion queue.
    pub fn has_reached_last_receive(&self) -> bool {
        self.pd.context().last_receives().has(self.number())
    }

    /// Its state as the device has it.
    ///
    /// # Errors
    ///
    /// When the device is gone.
    pub fn state(&self) -> Result<ibv_qp_state> {
        let (mut attributes, mut created) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let verbs = self.pd.context().verbs();
        // SAFETY: the queue pair is live.
        let rc = unsafe {
            (verbs.ibv_query_qp)(
                self.as_ptr(),
                &raw mut attributes,
                Mask::IBV_QP_STATE.0 as i32,
                &raw mut created,
            )
        };
        match rc {
            0 => Ok(attributes.qp_state),
            errno => Err(failed(errno, "query", self.to_string())),
        }
    }

    /// Moves it to the error state: posted requests complete, flushed, and the queue pair sends and
    /// receives nothing more.
    ///
    /// # Errors
    ///
    /// When the device is gone.
    pub fn to_error(&self) -> Result<()> {
        self.modify(
            state(ibv_qp_state::IBV_QPS_ERR),
            Mask::IBV_QP_STATE,
            "move to error",
        )
    }

    /// Moves it to the reset state: its queues are empty, and posted requests never complete.
    ///
    /// # Errors
    ///
    /// When the device is gone.
    pub fn to_reset(&self) -> Result<()> {
        self.pd.context().last_receives().forget(self.number());
        self.modify(
            state(ibv_qp_state::IBV_QPS_RESET),
            Mask::IBV_QP_STATE,
            "move to reset",
        )
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: Mask, doing: &'static str) -> Result<()> {
        let verbs = self.pd.context().verbs();
        // SAFETY: the queue pair is live.
        match unsafe { (verbs.ibv_modify_qp)(self.as_ptr(), &raw mut attributes, mask.0 as i32) } {
            0 => Ok(()),
            errno => Err(failed(errno, doing, self.to_string())),
        }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The completion queue of its sends.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// The completion queue of its receives.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// The shared queue of its receives, if it has one.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// The raw queue pair. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.pd.context().is_own() {
            return;
        }
        self.pd.context().last_receives().forget(self.number());
        // SAFETY: destroyed once; asynchronous events are acknowledged as they are taken.
        let rc = unsafe { (self.pd.context().verbs().ibv_destroy_qp)(self.as_ptr()) };
        if rc != 0 {
            tracing::warn!("{}", failed(rc, "destroy", "queue pair"));
        }
    }
}

impl std::fmt::Display for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "queue pair {:#x} on {}",
            self.number(),
            self.pd.context().name()
        )
    }
}

fn create_legacy(
    pd: &Pd,
    config: &QpConfig,
    kind: ibv_qp_type,
    caps: &mut ibv_qp_cap,
) -> Option<NonNull<ibv_qp>> {
    let mut attributes = ibv_qp_init_attr {
        send_cq: config.send_cq.as_ptr(),
        recv_cq: config.recv_cq.as_ptr(),
        srq: srq_of(config),
        cap: *caps,
        qp_type: kind,
        sq_sig_all: i32::from(config.signal_all),
        ..Default::default()
    };
    // SAFETY: protection domain and queues are live, and the queue pair will hold them.
    let raw = unsafe { (pd.context().verbs().ibv_create_qp)(pd.as_ptr(), &raw mut attributes) };
    *caps = attributes.cap;
    NonNull::new(raw)
}

fn create_extended(
    pd: &Pd,
    config: &QpConfig,
    kind: ibv_qp_type,
    caps: &mut ibv_qp_cap,
    ops: SendOps,
) -> Option<NonNull<ibv_qp>> {
    let comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
        | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let mut attributes = ibv_qp_init_attr_ex {
        send_cq: config.send_cq.as_ptr(),
        recv_cq: config.recv_cq.as_ptr(),
        srq: srq_of(config),
        cap: *caps,
        qp_type: kind,
        sq_sig_all: i32::from(config.signal_all),
        comp_mask: comp_mask.0,
        pd: pd.as_ptr(),
        send_ops_flags: ops.bits(),
        ..Default::default()
    };
    let context = pd.context();
    // SAFETY: as above; all fields that the mask names are set.
    let raw = unsafe {
        context
            .verbs()
            .create_qp_ex(context.as_ptr(), &raw mut attributes)
    };
    *caps = attributes.cap;
    NonNull::new(raw)
}

fn same_device(pd: &Pd, config: &QpConfig) -> bool {
    let here = |context| Arc::ptr_eq(pd.context(), context);
    here(config.send_cq.context())
        && here(config.recv_cq.context())
        && config
            .srq
            .as_ref()
            .is_none_or(|srq| here(srq.pd().context()))
}

fn srq_of(config: &QpConfig) -> *mut sys::ibv_srq {
    config
        .srq
        .as_ref()
        .map_or(ptr::null_mut(), |srq| srq.as_ptr())
}

fn state(state: ibv_qp_state) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: state,
        ..Default::default()
    }
}

#[cold]
fn not_created(errno: i32, pd: &Pd, config: &QpConfig, kind: ibv_qp_type) -> Error {
    let (limits, caps) = (pd.context().limits(), &config.caps);
    let kind = match kind {
        ibv_qp_type::IBV_QPT_RC => "RC",
        ibv_qp_type::IBV_QPT_UD => "UD",
        _ => "other",
    };
    let object = format!(
        "{kind} queue pair on {} ({} sends of {} entries, {} receives of {}, {} bytes inline)",
        pd.context().name(),
        caps.send_depth,
        caps.send_entries,
        caps.recv_depth,
        caps.recv_entries,
        caps.inline_bytes
    );
    let error = failed(errno, "create", object);
    match errno {
        libc::EINVAL => error.mend(format!(
            "the device takes up to {} requests of {} entries; its limit of inline bytes is not known beforehand",
            limits.queue_depth, limits.entries
        )),
        libc::ENOMEM => error.mend(format!(
            "the device allows {} queue pairs in all; request fewer, or shorter queues",
            limits.queue_pairs
        )),
        libc::EXDEV => error.mend("its queues were made on another opening of a device: use one context for all"),
        libc::EOPNOTSUPP if config.extended.is_some() => {
            error.mend("the device has no extended posting for these operations: create it without")
        }
        _ => error,
    }
}
