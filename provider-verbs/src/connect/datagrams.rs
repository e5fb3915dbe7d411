//! The UD queue pair of an endpoint, and the buffers behind it. The service thread alone uses it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferrofabric_contracts::error::{OpError, Result};
use ferrofabric_protocol::wire::control::CONTROL_BYTES;
use ferrofabric_verbs_sys::{ibv_sge, ibv_wc, ibv_wc_status};

use crate::ah::Ah;
use crate::cq::{CompChannel, Cq, CqConfig};
use crate::mr::Access;
use crate::pd::Pd;
use crate::post::{RecvRequest, SendFlags, SendRequest};
use crate::qp::{QpCaps, QpConfig, UdFailure, UdInit, UdQp};
use crate::slots::SlotPool;

/// Posted receives, at most. Of a burst of more handshakes some are lost, and their senders repeat
/// them.
const RECEIVES: u32 = 256;

/// Sends under way, at most; further ones are dropped, as on the wire.
const SENDS: u32 = 128;

const RECEIVE_BYTES: usize = UdQp::HEADER_BYTES + CONTROL_BYTES;

/// Completions taken in one poll.
const LOOK: usize = 32;

/// The number of polls that take everything in the completion queue, however many packets arrive
/// meanwhile.
pub(super) const LOOKS: u32 = (RECEIVES + SENDS).div_ceil(LOOK as u32);

/// Failures of the completion queue in a row, at most.
const QUEUE_FAILURES: u32 = 64;

/// High bit of a work request ID: a send.
const SEND: u64 = 1 << 63;

/// A datagram queue pair for control packets.
pub(crate) struct ControlQueuePair {
    // The queue pair goes first: the device uses the other fields.
    qp: UdQp,
    cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    receives: SlotPool,
    sends: SlotPool,
    /// Handles of sends under way, by slot.
    handles: Vec<Option<Arc<Ah>>>,
    init: UdInit,
    /// How much of the queue pair has failed: a send did, as happens while the link is down.
    failure: Option<UdFailure>,
    /// Packets that arrived before the queue pair failed.
    arrived: Vec<Vec<u8>>,
    /// Calls on the completion queue that have failed since the last success.
    queue_failures: u32,
    /// The completion queue could not be armed: no completion wakes the thread.
    unarmed: bool,
    /// The device, or the completion queue, is known to have failed for good.
    failed: bool,
}

impl ControlQueuePair {
    /// Creates the queue pair and makes it ready.
    ///
    /// # Errors
    ///
    /// When the device or the limit of locked memory has no room; the error names it.
    pub(crate) fn open(pd: &Arc<Pd>, init: &UdInit) -> Result<Self> {
        let context = pd.context();
        let longest_queue = context.limits().queue_depth;
        let (receive_depth, send_depth) = (RECEIVES.min(longest_queue), SENDS.min(longest_queue));
        let channel = CompChannel::create(context)?;
        let cq = Cq::create(
            context,
            &CqConfig {
                depth: receive_depth + send_depth,
                channel: Some(channel.clone()),
                vector: context.vector(),
                ..CqConfig::default()
            },
        )?;
        let slots = receive_depth as usize;
        let receives = SlotPool::create(pd, slots, RECEIVE_BYTES, Access::LOCAL_WRITE)?;
        let sends = SlotPool::create(pd, send_depth as usize, CONTROL_BYTES, Access::empty())?;
        let qp = UdQp::create(
            pd,
            &QpConfig {
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                srq: None,
                caps: QpCaps {
                    send_depth,
                    recv_depth: receive_depth,
                    send_entries: 1,
                    recv_entries: 1,
                    inline_bytes: 0,
                },
                signal_all: true,
                extended: None,
            },
        )?;
        qp.activate(init)?;
        let mut this = Self {
            qp,
            cq,
            channel,
            receives,
            sends,
            handles: vec![None; send_depth as usize],
            init: *init,
            failure: None,
            arrived: Vec::new(),
            queue_failures: 0,
            unarmed: false,
            failed: false,
        };
        this.post_all();
        Ok(this)
    }

    fn post_all(&mut self) {
        for slot in 0..self.receives.count() as u32 {
            self.post_receive(slot);
        }
    }

    /// Makes a queue pair that went to error work again, under its old number. Packets that have
    /// arrived are kept, since a reset would remove them; those under way are lost, as on the wire.
    /// An endpoint that only answers sends nothing until a packet arrives, so this must not wait
    /// for a send.
    #[cold]
    pub(super) fn revive(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for _ in 0..LOOKS {
            if !self.poll(|packet| arrived.push(packet.to_vec())) {
                break;
            }
        }
        self.arrived = arrived;
        if self.failure == Some(UdFailure::Sends) {
            match self.qp.resume_sends() {
                Ok(()) => return self.failure = None,
                Err(error) => tracing::warn!("{error}"),
            }
        }
        self.failure = Some(UdFailure::All);
        if let Err(error) = self.qp.to_reset() {
            return tracing::warn!("{error}");
        }
        // Some devices still report completions from before the reset.
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); LOOK];
        while self.cq.poll(&mut room).is_ok_and(|left| !left.is_empty()) {}
        for (slot, handle) in self.handles.iter_mut().enumerate() {
            if handle.take().is_some() {
                self.sends.give(slot as u32);
            }
        }
        match self.qp.activate(&self.init) {
            Ok(()) => {
                tracing::debug!("{} works again", self.qp);
                self.failure = None;
                self.post_all();
            }
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Whether the queue pair has gone to error, as far as is known.
    pub(super) fn is_broken(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether packets may arrive without a wake-up, so that the thread has to poll regularly.
    pub(super) fn is_to_be_watched(&self) -> bool {
        !self.is_dead() && (self.unarmed || self.queue_failures > 0)
    }

    /// Whether the completion queue failed for good: no packet arrives any more.
    pub(super) fn is_dead(&self) -> bool {
        self.failed || self.queue_failures >= QUEUE_FAILURES
    }

    /// The device, or the completion queue, has failed for good.
    #[cold]
    pub(super) fn fail_for_good(&mut self) {
        self.failed = true;
    }

    /// The completion queue, as events name it.
    pub(super) fn queue_id(&self) -> usize {
        self.cq.id()
    }

    #[cold]
    fn queue_failed(&mut self, error: OpError) {
        if self.queue_failures == 0 {
            tracing::error!("completion queue of {} failed: {error}", self.qp);
        }
        self.queue_failures = self.queue_failures.saturating_add(1);
        if self.queue_failures == QUEUE_FAILURES {
            tracing::error!("no lane can be made any more: close the endpoint and open it again");
        }
    }

    /// Number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Readable when a completion has come, once [`ControlQueuePair::arm`] has been called.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Arms the channel, so that the next completion wakes the thread. Completions from before the
    /// call cause no event: the caller receives once more after it.
    pub(super) fn arm(&mut self) {
        while matches!(self.channel.take_event(), Ok(Some(_))) {}
        let armed = self.cq.arm(false);
        if let (Err(error), false) = (armed, self.unarmed) {
            tracing::error!("completion queue of {} not armed: {error}", self.qp);
        }
        self.unarmed = armed.is_err();
    }

    /// Sends a packet, if there is room.
    pub(super) fn send(
        &mut self,
        handle: Arc<Ah>,
        qpn: u32,
        qkey: u32,
        bytes: &[u8; CONTROL_BYTES],
    ) {
        if self.is_broken() {
            self.revive();
        }
        let Some(slot) = self.sends.take() else {
            tracing::debug!("control packet dropped: the send queue is full");
            return;
        };
        let at = self.sends.address(slot);
        // SAFETY: the slot holds a packet, and belongs to this function until its send completes.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), CONTROL_BYTES) };
        let entry = ibv_sge {
            addr: at as u64,
            length: CONTROL_BYTES as u32,
            lkey: self.sends.lkey(),
        };
        let mut request = SendRequest::send(SEND | u64::from(slot), [entry])
            .to(&handle, qpn, qkey)
            .flags(SendFlags::SIGNALED);
        self.handles[slot as usize] = Some(handle);
        // SAFETY: slot and handle are kept until the completion.
        if let Err(error) = unsafe { request.post(&self.qp) } {
            tracing::debug!("control packet dropped: {error}");
            self.handles[slot as usize] = None;
            self.sends.give(slot);
        }
    }

    /// Takes up to [`LOOK`] completions, and passes each packet that has arrived to `take`. Returns
    /// false if there was none.
    pub(super) fn receive(&mut self, mut take: impl FnMut(&[u8])) -> bool {
        let arrived = std::mem::take(&mut self.arrived);
        arrived.iter().for_each(|packet| take(packet));
        self.poll(take) || !arrived.is_empty()
    }

    fn poll(&mut self, mut take: impl FnMut(&[u8])) -> bool {
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); LOOK];
        let cq = self.cq.clone();
        let completions = match cq.poll(&mut room) {
            Ok(completions) => completions,
            Err(error) => {
                self.queue_failed(error);
                return false;
            }
        };
        self.queue_failures = 0;
        for completion in completions {
            let slot = (completion.wr_id & !SEND) as u32;
            let failed = completion.status != ibv_wc_status::IBV_WC_SUCCESS;
            if failed && self.failure != Some(UdFailure::All) {
                tracing::debug!("{}: status {}", self.qp, completion.status.0);
                self.failure = self.qp.failure().or(self.failure);
            }
            if completion.wr_id & SEND != 0 {
                if let Some(handle) = self.handles.get_mut(slot as usize) {
                    if handle.take().is_some() {
                        self.sends.give(slot);
                    }
                }
                continue;
            }
            if !self.receives.has(slot) {
                continue;
            }
            if !failed {
                let length =
                    (completion.byte_len as usize).clamp(UdQp::HEADER_BYTES, RECEIVE_BYTES);
                let mut packet = [0; CONTROL_BYTES];
                let packet = &mut packet[..length - UdQp::HEADER_BYTES];
                let at = self.receives.address(slot);
                // SAFETY: the device has written the slot and is done with it.
                unsafe {
                    at.add(UdQp::HEADER_BYTES)
                        .copy_to_nonoverlapping(packet.as_mut_ptr(), packet.len());
                }
                take(packet);
            }
            // After a reset, all are posted.
            if self.failure != Some(UdFailure::All) {
                self.post_receive(slot);
            }
        }
        !completions.is_empty()
    }

    fn post_receive(&mut self, slot: u32) {
        let entry = ibv_sge {
            addr: self.receives.address(slot) as u64,
            length: RECEIVE_BYTES as u32,
            lkey: self.receives.lkey(),
        };
        // SAFETY: the slot is the device's until the receive completes.
        let posted = unsafe { RecvRequest::new(u64::from(slot), [entry]).post(&self.qp) };
        if let Err(error) = posted {
            // One receive less makes handshakes slower, not wrong.
            tracing::warn!("receive of the UD queue pair not posted: {error}");
        }
    }
}
