//! The receives that are posted: in the application's buffers, and in bounce buffers (slots).
//!
//! A registered buffer with room for any datagram is posted itself. All other receives use slots,
//! and no slot belongs to one of them: the datagram in the next slot goes to the oldest of these
//! receives, so that a canceled one leaves no gap. The order of receives is kept, except when a
//! canceled receive's slot serves a later one.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Matched, Piece};
use ferrofabric_contracts::types::{IoBuf, MrDesc, RecvOp, total_len};
use ferrofabric_matching::ReceiveBuffers;
use ferrofabric_verbs_sys::{ibv_sge, ibv_wc, ibv_wc_status};

use super::send_queue::SEND;
use super::{DgramConfig, MAX_BUFFERS, ReceiveMode};
use crate::mr::Access;
use crate::post::RecvRequest;
use crate::qp::UdQp;
use crate::registration::{MemoryRegion, Registry};
use crate::slots::SlotPool;

/// In a work request ID: a receive into an application's buffer, by its index. Without this bit the
/// ID is the number of a slot.
pub(super) const DIRECT: u64 = 1 << 62;

pub(super) const HEADER: usize = UdQp::HEADER_BYTES;

/// The receives that are posted.
pub(super) struct DgramReceives {
    /// The number of receives that may be posted.
    depth: usize,
    /// Bytes before the payload that the application leaves: the header's, or none.
    prefix: usize,
    /// Longest datagram in bytes.
    mtu: usize,
    receiving: ReceiveMode,
    slots: SlotPool,
    /// For buffers that the application has registered.
    registry: Arc<Registry>,
    /// By slot: whether it is posted for a datagram.
    slot_posted: Box<[bool]>,
    slots_posted: usize,
    /// Receives that use slots, from the oldest. Their number never exceeds that of posted slots,
    /// unless the queue pair accepts none at the moment.
    bounced: VecDeque<Bounced>,
    direct: Slab<Direct>,
}

/// A receive that uses a slot.
pub(super) struct Bounced {
    context: u64,
    flags: Flags,
    pub(super) buffers: ReceiveBuffers,
}

/// A receive whose own buffer is posted.
struct Direct {
    context: u64,
    flags: Flags,
    buf: IoBuf,
    /// The region that the buffer lies in.
    region: Arc<MemoryRegion>,
    /// The slot for the header, if the application has no room for it.
    header: Option<u32>,
    /// Canceled: it ends when the queue pair is reset.
    cancelled: bool,
}

impl DgramReceives {
    pub(super) fn new(
        config: &DgramConfig,
        mtu: usize,
        slots: SlotPool,
        registry: Arc<Registry>,
    ) -> Self {
        let depth = config.recv_depth;
        Self {
            depth,
            prefix: config.prefix,
            mtu,
            receiving: config.receiving,
            slots,
            registry,
            slot_posted: vec![false; depth].into(),
            slots_posted: 0,
            bounced: VecDeque::with_capacity(depth),
            direct: Slab::with_capacity(depth),
        }
    }

    /// Bytes of a slot: a header and the longest datagram.
    pub(super) fn slot_bytes(mtu: usize) -> usize {
        HEADER + mtu
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The buffers belong to the device, or to the endpoint, until the completion.
    ///
    /// # Errors
    ///
    /// As [`ferrofabric_contracts::peer::DatagramTransport::post_recv`].
    #[inline]
    pub(super) unsafe fn post(
        &mut self,
        qp: &UdQp,
        op: &RecvOp,
        iov: &[IoBuf],
    ) -> Result<(), OpError> {
        let first = iov.first().map_or(0, |buf| buf.len);
        if iov.len() > MAX_BUFFERS || first < self.prefix {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        if self.bounced.len() + self.direct.len() >= self.depth {
            return Err(OpError::Again);
        }
        // Canceled receives may have left their slots in the queue.
        let has_room = self.slots_posted + self.direct.len() < self.depth;
        if let &[buf] = iov {
            if !op.desc.is_none() && buf.len >= self.prefix + self.mtu && has_room {
                let region = self.registry.described(op.desc, buf, Access::LOCAL_WRITE);
                if let Some(region) = region {
                    // SAFETY: the caller's promise.
                    return unsafe { self.post_direct(qp, op, buf, region) };
                }
            }
        }
        if self.slots_posted <= self.bounced.len() {
            self.post_slot(qp)?;
        }
        self.bounced.push_back(Bounced {
            context: op.context,
            flags: op.flags,
            buffers: match iov {
                [] => ReceiveBuffers::One(IoBuf::EMPTY),
                &[one] => ReceiveBuffers::One(one),
                many => ReceiveBuffers::Many(many.into()),
            },
        });
        Ok(())
    }

    /// # Safety
    ///
    /// As [`DgramReceives::post`].
    unsafe fn post_direct(
        &mut self,
        qp: &UdQp,
        op: &RecvOp,
        buf: IoBuf,
        region: Arc<MemoryRegion>,
    ) -> Result<(), OpError> {
        let header = match self.prefix {
            0 => Some(self.slots.take().ok_or(OpError::Again)?),
            _ => None,
        };
        let at = self.direct.insert(Direct {
            context: op.context,
            flags: op.flags,
            buf,
            region,
            header,
            cancelled: false,
        });
        // SAFETY: the caller's promise; the slot is kept with the entry.
        let posted = unsafe { self.hand_over(qp, at) };
        if posted.is_err() {
            let entry = self.direct.remove(at);
            self.give_header(&entry);
        }
        posted
    }

    /// Posts an entered direct receive to the queue pair.
    ///
    /// # Safety
    ///
    /// The buffer of the entry is the device's until its completion.
    unsafe fn hand_over(&self, qp: &UdQp, at: usize) -> Result<(), OpError> {
        let entry = &self.direct[at];
        let id = DIRECT | at as u64;
        let room = u32::try_from(entry.buf.len).unwrap_or(u32::MAX);
        let buffer = sge(entry.buf.as_mut_ptr(), room, entry.region.lkey());
        match entry.header {
            Some(slot) => {
                let header = sge(self.slots.address(slot), HEADER as u32, self.slots.lkey());
                // SAFETY: the caller's promise; the slot belongs to this pool.
                unsafe { RecvRequest::new(id, [header, buffer]).post(qp) }
            }
            // SAFETY: the caller's promise.
            None => unsafe { RecvRequest::new(id, [buffer]).post(qp) },
        }
    }

    /// Posts a slot, for the receive that is the oldest when a datagram arrives.
    pub(super) fn post_slot(&mut self, qp: &UdQp) -> Result<(), OpError> {
        let slot = self.slots.take().ok_or(OpError::Again)?;
        let room = Self::slot_bytes(self.mtu) as u32;
        let entry = sge(self.slots.address(slot), room, self.slots.lkey());
        // SAFETY: the slot is the device's until the receive completes.
        let posted = unsafe { RecvRequest::new(u64::from(slot), [entry]).post(qp) };
        match posted {
            Ok(()) => {
                self.slot_posted[slot as usize] = true;
                self.slots_posted += 1;
            }
            Err(_) => self.slots.give(slot),
        }
        posted
    }

    /// A slot is no longer posted. Returns false if it was not posted.
    pub(super) fn slot_back(&mut self, slot: u32) -> bool {
        let posted = self.slot_posted.get_mut(slot as usize);
        let was = posted.is_some_and(|posted| std::mem::replace(posted, false));
        self.slots_posted -= usize::from(was);
        was
    }

    fn give_header(&mut self, entry: &Direct) {
        if let Some(slot) = entry.header {
            self.slots.give(slot);
        }
    }

    /// The address of the routing header of an arrived datagram; `None` if no datagram arrived.
    #[inline]
    pub(super) fn header(&self, wc: &ibv_wc) -> Option<*const [u8; HEADER]> {
        if wc.wr_id & SEND != 0 || wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return None;
        }
        let at = match wc.wr_id & DIRECT {
            0 => {
                let slot = wc.wr_id as u32;
                self.slot_posted
                    .get(slot as usize)
                    .filter(|posted| **posted)?;
                self.slots.address(slot)
            }
            _ => {
                let entry = self.direct.get((wc.wr_id & !DIRECT) as usize)?;
                match entry.header {
                    Some(slot) => self.slots.address(slot),
                    None => entry.buf.as_mut_ptr(),
                }
            }
        };
        Some(at.cast_const().cast())
    }

    /// The queue pair was reset: nothing is posted any more. Returns the receives that were
    /// canceled.
    pub(super) fn all_back(&mut self) -> Vec<Matched> {
        for slot in 0..self.slot_posted.len() as u32 {
            if self.slot_back(slot) {
                self.slots.give(slot);
            }
        }
        let cancelled: Vec<usize> = self
            .direct
            .iter()
            .filter_map(|(at, entry)| entry.cancelled.then_some(at))
            .collect();
        let taken = cancelled.into_iter().map(|at| {
            let entry = self.direct.remove(at);
            if let Some(slot) = entry.header {
                self.slots.give(slot);
            }
            entry.matched()
        });
        taken.collect()
    }

    /// Slots that have to be posted.
    fn slots_wanted(&self) -> usize {
        match self.receiving {
            ReceiveMode::Posted => self.bounced.len(),
            ReceiveMode::Matched => self.depth,
        }
    }

    /// Posts all receives that have to be posted, at first and after a reset.
    ///
    /// # Errors
    ///
    /// The device rejects a receive.
    pub(super) fn post_again(&mut self, qp: &UdQp) -> Result<(), OpError> {
        while self.slots_posted < self.slots_wanted() {
            self.post_slot(qp)?;
        }
        for (at, _) in &self.direct {
            // SAFETY: its caller gave the buffer until the completion, and it has not completed.
            unsafe { self.hand_over(qp, at)? };
        }
        Ok(())
    }

    /// Takes all receives out: the endpoint is dead.
    pub(super) fn take_all(&mut self) -> Vec<Matched> {
        let mut all: Vec<Matched> = self.bounced.drain(..).map(|b| b.matched()).collect();
        all.extend(self.direct.drain().map(|entry| entry.matched()));
        all
    }

    /// Bytes before the payload that the application leaves.
    #[inline]
    pub(super) fn prefix(&self) -> usize {
        self.prefix
    }

    /// Longest datagram in bytes.
    #[inline]
    pub(super) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Where the receives of the endpoint are kept.
    #[inline]
    pub(super) fn receiving(&self) -> ReceiveMode {
        self.receiving
    }

    /// The address of a slot.
    #[inline]
    pub(super) fn slot(&self, slot: u32) -> *mut u8 {
        self.slots.address(slot)
    }

    /// Gives back a slot that is not posted.
    #[inline]
    pub(super) fn give_slot(&mut self, slot: u32) {
        self.slots.give(slot);
    }

    /// Takes out the oldest receive that uses a slot.
    #[inline]
    pub(super) fn pop_bounced(&mut self) -> Option<Bounced> {
        self.bounced.pop_front()
    }

    /// Takes out the direct receive of a completion's ID, if there is one: it is over.
    #[inline]
    pub(super) fn take_direct(&mut self, id: u64) -> Option<Matched> {
        let entry = self.direct.try_remove((id & !DIRECT) as usize)?;
        self.give_header(&entry);
        Some(entry.matched())
    }

    /// Posts the direct receive of a completion's ID again, because no valid datagram came. Returns
    /// false if it does not exist, or the device does not accept it.
    pub(super) fn repeat_direct(&self, qp: &UdQp, id: u64) -> bool {
        let at = (id & !DIRECT) as usize;
        // SAFETY: it was posted with the promise that its buffer stays, and has not completed.
        self.direct.contains(at) && unsafe { self.hand_over(qp, at) }.is_ok()
    }

    /// Cancels a receive.
    pub(super) fn cancel(&mut self, context: u64) -> CancelOutcome {
        if let Some(at) = self.bounced.iter().position(|b| b.context == context) {
            let receive = self.bounced.remove(at);
            return receive.map_or(CancelOutcome::NotThere, |b| {
                CancelOutcome::Over(b.matched())
            });
        }
        let mut direct = self.direct.iter_mut();
        match direct.find(|(_, entry)| entry.context == context && !entry.cancelled) {
            Some((_, entry)) => {
                entry.cancelled = true;
                CancelOutcome::WithDevice
            }
            None => CancelOutcome::NotThere,
        }
    }
}

/// The result of canceling a receive.
pub(super) enum CancelOutcome {
    /// The receive is over.
    Over(Matched),
    /// The device has the receive: it is over when the queue pair is reset.
    WithDevice,
    /// There is no such receive.
    NotThere,
}

impl Bounced {
    /// The receive's description in its completion.
    #[inline]
    pub(super) fn matched(&self) -> Matched {
        matched(self.context, self.flags, &self.buffers)
    }
}

impl Direct {
    #[inline]
    fn matched(&self) -> Matched {
        matched(self.context, self.flags, &ReceiveBuffers::One(self.buf))
    }
}

/// A receive's description in its completion: its address, if the receive has one buffer.
fn matched(context: u64, flags: Flags, buffers: &ReceiveBuffers) -> Matched {
    let segments = buffers.segments();
    Matched {
        buf: IoBuf {
            addr: match segments {
                [one] => one.addr,
                _ => 0,
            },
            len: total_len(segments),
        },
        desc: MrDesc::NONE,
        context,
        flags,
        piece: Piece::NONE,
    }
}

#[inline]
fn sge(addr: *mut u8, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr: addr as u64,
        length,
        lkey,
    }
}
