//! The send queue of an endpoint: posted sends, and sends that are held back for more to follow.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ferrofabric_contracts::buffers::gather;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::{IoBuf, SendOp, total_len};
use ferrofabric_verbs_sys::ibv_sge;

use crate::ah::Ah;
use crate::gather::entry;
use crate::mr::Access;
use crate::post::{SendChain, SendFlags, SendRequest};
use crate::qp::UdQp;
use crate::registration::{MemoryRegion, Registry};
use crate::slots::SlotPool;

/// Largest inline send of several buffers, which is put together on the stack, in bytes.
const MAX_GATHERED_BYTES: usize = 512;

/// High bit of a work request ID: a send. The low half is its number.
pub(super) const SEND: u64 = 1 << 63;

/// The send queue.
pub(super) struct DgramSendQueue {
    /// Posted sends, in order.
    queue: VecDeque<DgramWqe>,
    /// The last posted sends, which are held back because more follow (fi_msg(3), `FI_MORE`).
    run: SendChain<1>,
    /// Held-back sends that the device then rejected.
    refused: Vec<(SendDone, Errno)>,
    depth: usize,
    next_number: u32,
    /// Requests posted since the last that was signalled.
    unsignaled: usize,
    bounces: SlotPool,
    /// Finds the regions of registered buffers.
    registry: Arc<Registry>,
    inline_bytes: usize,
    /// Sends without a completion for the application have to be signaled soon, too.
    counted: bool,
}

/// A posted send.
pub(super) struct DgramWqe {
    pub(super) number: u32,
    signaled: bool,
    pub(super) done: SendDone,
    /// The bounce buffer that it uses until it is over.
    slot: Option<u32>,
    _region: Option<Arc<MemoryRegion>>,
    /// The device uses it until the send is over.
    _handle: Arc<Ah>,
}

/// The memory that a request reads.
struct RequestMemory {
    sge: ibv_sge,
    /// The bounce buffer of the data.
    slot: Option<u32>,
    /// The application's region of the data.
    region: Option<Arc<MemoryRegion>>,
}

impl DgramSendQueue {
    /// Makes an empty queue.
    pub(super) fn new(
        depth: usize,
        bounces: SlotPool,
        registry: Arc<Registry>,
        inline_bytes: usize,
    ) -> Self {
        Self {
            queue: VecDeque::with_capacity(depth),
            run: SendChain::new(),
            refused: Vec::new(),
            depth,
            next_number: 0,
            unsignaled: 0,
            bounces,
            registry,
            inline_bytes: inline_bytes.min(MAX_GATHERED_BYTES),
            counted: false,
        }
    }

    /// Makes each send complete soon at the device: sends without a completion for the application
    /// are signaled, too.
    pub(super) fn count(&mut self) {
        self.counted = true;
    }

    /// Posts a message; with `MORE` the message may be held back.
    ///
    /// # Safety
    ///
    /// The buffers stay until the completion (with `INJECT`: until return).
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when the queue is full; else the device's error. Nothing was posted.
    #[inline]
    pub(super) unsafe fn post(
        &mut self,
        qp: &UdQp,
        handle: &Arc<Ah>,
        (qpn, qkey): (u32, u32),
        op: &SendOp,
        buffers: &[IoBuf],
    ) -> Result<(), OpError> {
        if self.queue.len() >= self.depth {
            return Err(OpError::Again);
        }
        let len = total_len(buffers);
        let number = self.next_number;
        // A quarter of the queue may be over before a signaled send reports it.
        let signaled = op.flags.contains(Flags::COMPLETION)
            || self.counted
            || (self.unsignaled + 1) * 4 >= self.depth;
        let mut flags = match signaled {
            true => SendFlags::SIGNALED,
            false => SendFlags::empty(),
        };
        let more = op.flags.contains(Flags::MORE);
        let fits_inline = len <= self.inline_bytes;
        if fits_inline {
            flags |= SendFlags::INLINE;
        }
        // The device reads held-back data only later.
        let outlives = !more || buffers.len() == 1 && !op.flags.contains(Flags::INJECT);
        let mut gathered = MaybeUninit::<[u8; MAX_GATHERED_BYTES]>::uninit();
        let in_place = fits_inline && outlives;
        // SAFETY: the caller's promise; a payload that fits inline fits in `gathered`.
        let source = unsafe { self.source(op, buffers, len, in_place, &mut gathered) };
        let RequestMemory { sge, slot, region } = source?;
        let mut request = SendRequest::send(SEND | u64::from(number), [sge])
            .to(handle, qpn, qkey)
            .flags(flags);
        if op.flags.contains(Flags::REMOTE_CQ_DATA) {
            request = request.immediate((op.data as u32).to_be());
        }
        let joins = more || !self.run.is_empty();
        if joins {
            self.join_run(qp, request);
        // SAFETY: inline data is copied at once; a slot and the handle are kept until the
        // completion, and the application keeps its buffer until then.
        } else if let Err(error) = unsafe { request.post(qp) } {
            if let Some(slot) = slot {
                self.bounces.give(slot);
            }
            return Err(error);
        }
        self.next_number = number.wrapping_add(1);
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.queue.push_back(DgramWqe {
            number,
            signaled,
            done: SendDone::of(op, len),
            slot,
            _region: region,
            _handle: handle.clone(),
        });
        if joins && !more {
            self.post_run(qp);
        }
        Ok(())
    }

    /// The memory that a request of `len` bytes reads. With `in_place` the device copies the data
    /// at once, so the request reads the buffer itself, or a copy of several buffers in `gathered`.
    /// Else it reads registered memory of the application, or a bounce buffer.
    ///
    /// # Safety
    ///
    /// As [`DgramSendQueue::post`]. If `in_place`, the message has no more bytes than `gathered`,
    /// and `gathered` stays in place until the request is posted.
    #[inline(always)]
    unsafe fn source(
        &mut self,
        op: &SendOp,
        buffers: &[IoBuf],
        len: usize,
        in_place: bool,
        gathered: &mut MaybeUninit<[u8; MAX_GATHERED_BYTES]>,
    ) -> Result<RequestMemory, OpError> {
        if in_place {
            let sge = match buffers {
                [one] => entry(one.addr as u64, len, 0),
                many => {
                    // SAFETY: the caller's promise.
                    unsafe { gather(many, 0, len, gathered.as_mut_ptr().cast()) };
                    entry(gathered.as_ptr() as u64, len, 0)
                }
            };
            return Ok(RequestMemory {
                sge,
                slot: None,
                region: None,
            });
        }
        if let ([one], false) = (buffers, op.flags.contains(Flags::INJECT)) {
            let region = self.registry.described(op.desc, *one, Access::empty());
            if let Some(region) = region {
                return Ok(RequestMemory {
                    sge: entry(one.addr as u64, len, region.lkey()),
                    slot: None,
                    region: Some(region),
                });
            }
        }
        let slot = self.bounces.take().ok_or(OpError::Again)?;
        let at = self.bounces.address(slot);
        // SAFETY: the caller's promise; a slot holds the longest message.
        unsafe { gather(buffers, 0, len, at) };
        Ok(RequestMemory {
            sge: entry(at as u64, len, self.bounces.lkey()),
            slot: Some(slot),
            region: None,
        })
    }

    /// Puts a request behind those that are held back.
    #[inline(never)]
    fn join_run(&mut self, qp: &UdQp, request: SendRequest<1>) {
        if self.run.is_full() {
            self.post_run(qp);
        }
        // The chain has only the last of them signalled.
        if !self.run.is_empty() && request.has_flags(SendFlags::SIGNALED) {
            if let Some(before) = self.queue.back_mut() {
                before.signaled = false;
            }
        }
        self.run.put(&request);
    }

    /// Posts the sends that are held back, with one doorbell.
    #[inline]
    pub(super) fn post_held_back(&mut self, qp: &UdQp) {
        if !self.run.is_empty() {
            self.post_run(qp);
        }
    }

    #[inline(never)]
    fn post_run(&mut self, qp: &UdQp) {
        let held = self.run.len();
        // SAFETY: inline data lies in a slot or in a buffer that the application keeps until the
        // completion; for the rest see `post`.
        if let Err((error, posted)) = unsafe { self.run.post(qp) } {
            let first = self.queue.len() - (held - posted);
            for wqe in self.queue.split_off(first) {
                if let Some(slot) = wqe.slot {
                    self.bounces.give(slot);
                }
                self.refused.push((wqe.done, error.errno()));
            }
        }
    }

    /// Takes out the oldest send, which is over.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<DgramWqe> {
        let wqe = self.queue.pop_front()?;
        if let Some(slot) = wqe.slot {
            self.bounces.give(slot);
        }
        Some(wqe)
    }

    /// Whether sends were held back that the device did not take.
    #[inline]
    pub(super) fn have_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether no send is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a signaled send is under way.
    pub(super) fn has_signaled(&self) -> bool {
        self.queue.iter().any(|wqe| wqe.signaled)
    }

    /// Takes out the sends that were held back and that the device then did not take.
    pub(super) fn take_refused(&mut self) -> Vec<(SendDone, Errno)> {
        std::mem::take(&mut self.refused)
    }

    /// Whether a send of this number is under way.
    #[inline]
    pub(super) fn has(&self, number: u32) -> bool {
        let first = self.queue.front().map_or(0, |wqe| wqe.number);
        (number.wrapping_sub(first) as usize) < self.queue.len()
    }

    /// Nothing is under way any more: the queue pair was reset.
    pub(super) fn restart(&mut self) {
        self.unsignaled = 0;
    }
}
