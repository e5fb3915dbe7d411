//! Receiving: each receive of the application is one of the queue pair's.
//!
//! A registered buffer with room for any datagram is posted itself. All others are served through a slot of ours, which
//! belongs to none of them: what comes in the next such slot goes to the oldest of them, so that one which is taken back
//! leaves no gap. The order of receives is kept but for those that a taken-back one's slot serves.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx, Piece};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, total_len};
use ferrofabric_matching::Buffers;
use ferrofabric_system::prefetch::prefetch;
use ferrofabric_verbs_sys::{ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_status};

use super::send::SEND;
use super::source::{Sender, Source, sender_gid};
use super::{DgramConfig, DgramTransport, MAX_BUFFERS, Receiving};
use crate::mr::Access;
use crate::post::RecvRequest;
use crate::qp::UdQp;
use crate::registration::{Region, Registry};
use crate::slots::SlotPool;

/// In a work request ID: a receive into an application's buffer, by its place. Else the ID is the number of a slot.
pub(super) const DIRECT: u64 = 1 << 62;

const HEADER: usize = UdQp::HEADER_BYTES;

/// The receives that are posted.
pub(super) struct Receives {
    /// How many there may be.
    depth: usize,
    /// Bytes before the payload that the application leaves: the header's, or none.
    prefix: usize,
    /// Longest datagram in bytes.
    mtu: usize,
    receiving: Receiving,
    slots: SlotPool,
    /// For buffers that the application has registered.
    registry: Arc<Registry>,
    /// By slot: whether it is posted for a datagram.
    slot_posted: Box<[bool]>,
    slots_posted: usize,
    /// Receives that are served through slots, from the oldest. Never more than there are slots posted, unless the queue pair
    /// takes none at the moment.
    bounced: VecDeque<Bounced>,
    direct: Slab<Direct>,
}

struct Bounced {
    context: u64,
    flags: Flags,
    buffers: Buffers,
}

struct Direct {
    context: u64,
    flags: Flags,
    buf: IoBuf,
    /// The region that the buffer lies in.
    region: Arc<Region>,
    /// Where the header goes that the application has no room for.
    header: Option<u32>,
    /// Taken back: it ends when the queue pair is reset.
    cancelled: bool,
}

/// What a completion says of a datagram.
struct Datagram {
    /// Bytes of payload.
    len: usize,
    data: u64,
    flags: Flags,
    sender: Sender,
    /// The LID that it came with.
    lid: u16,
}

impl Receives {
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
    /// The buffers are the device's, or ours, until the completion.
    ///
    /// # Errors
    ///
    /// As [`ferrofabric_contracts::peer::DatagramTransport::post_recv`].
    #[inline]
    unsafe fn post(&mut self, qp: &UdQp, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let first = iov.first().map_or(0, |buf| buf.len);
        if iov.len() > MAX_BUFFERS || first < self.prefix {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        if self.bounced.len() + self.direct.len() >= self.depth {
            return Err(OpError::Again);
        }
        // Receives that were taken back may have left their slots in the queue.
        let has_room = self.slots_posted + self.direct.len() < self.depth;
        if let &[buf] = iov {
            if op.desc != 0 && buf.len >= self.prefix + self.mtu && has_room {
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
                [] => Buffers::One(IoBuf::EMPTY),
                &[one] => Buffers::One(one),
                many => Buffers::Many(many.into()),
            },
        });
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Receives::post`].
    unsafe fn post_direct(
        &mut self,
        qp: &UdQp,
        op: &RecvOp,
        buf: IoBuf,
        region: Arc<Region>,
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
                // SAFETY: the caller's promise; the slot is ours.
                unsafe { RecvRequest::new(id, [header, buffer]).post(qp) }
            }
            // SAFETY: the caller's promise.
            None => unsafe { RecvRequest::new(id, [buffer]).post(qp) },
        }
    }

    /// Posts a slot, for whatever receive is the oldest when something has come.
    fn post_slot(&mut self, qp: &UdQp) -> Result<(), OpError> {
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

    /// A slot is no longer posted. False: it was not.
    fn slot_back(&mut self, slot: u32) -> bool {
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

    /// Where the routing header of what has come lies; `None` where nothing has.
    #[inline]
    fn header(&self, wc: &ibv_wc) -> Option<*const [u8; HEADER]> {
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

    /// The queue pair was reset: nothing is posted any more. Says which receives were taken back.
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

    /// Slots that are to be posted.
    fn slots_wanted(&self) -> usize {
        match self.receiving {
            Receiving::Posted => self.bounced.len(),
            Receiving::Matched => self.depth,
        }
    }

    /// Posts everything that is to be posted, at first and after a reset.
    ///
    /// # Errors
    ///
    /// When the device takes it no more.
    pub(super) fn post_again(&mut self, qp: &UdQp) -> Result<(), OpError> {
        while self.slots_posted < self.slots_wanted() {
            self.post_slot(qp)?;
        }
        for (at, _) in &self.direct {
            // SAFETY: it was posted with that promise, and has not completed.
            unsafe { self.hand_over(qp, at)? };
        }
        Ok(())
    }

    /// Takes out every receive: the endpoint is dead.
    pub(super) fn take_all(&mut self) -> Vec<Matched> {
        let mut all: Vec<Matched> = self.bounced.drain(..).map(|b| b.matched()).collect();
        all.extend(self.direct.drain().map(|entry| entry.matched()));
        all
    }
}

impl Bounced {
    fn matched(&self) -> Matched {
        matched(self.context, self.flags, &self.buffers)
    }
}

impl Direct {
    fn matched(&self) -> Matched {
        matched(self.context, self.flags, &Buffers::One(self.buf))
    }
}

/// A receive as its completion tells of it: where it lies, if that is one place.
fn matched(context: u64, flags: Flags, buffers: &Buffers) -> Matched {
    let segments = buffers.segments();
    Matched {
        buf: IoBuf {
            addr: match segments {
                [one] => one.addr,
                _ => 0,
            },
            len: total_len(segments),
        },
        desc: 0,
        context,
        flags,
        piece: Piece::NONE,
    }
}

impl DgramTransport {
    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// As [`ferrofabric_contracts::peer::DatagramTransport::post_recv`].
    #[inline]
    pub(super) unsafe fn receive(&mut self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        self.check_usable()?;
        // SAFETY: the caller's promise.
        unsafe { self.receives.post(&self.qp, op, iov) }
    }

    /// Finds out who has sent what came at once, before any of it is handled: what that looks at is waited for together.
    #[inline]
    pub(super) fn find_senders(&self, completions: &[ibv_wc], senders: &mut [Sender]) {
        if completions.len() > 1 {
            for header in completions.iter().filter_map(|wc| self.receives.header(wc)) {
                prefetch(header);
            }
        }
        for (wc, sender) in completions.iter().zip(&mut *senders) {
            if let Some(header) = self.receives.header(wc) {
                // SAFETY: the device has written the header there and is done with it.
                let header = unsafe { header.read() };
                *sender = Sender::at(source_of(wc, &header));
            }
        }
        self.sources.find_all(senders);
    }

    /// A receive of the queue pair is over.
    #[inline]
    pub(super) fn received<O: Owner>(&mut self, wc: &ibv_wc, sender: &Sender, owner: &mut O) {
        if wc.wr_id & DIRECT != 0 {
            self.received_direct(wc, sender, owner);
        } else {
            self.received_in_slot(wc, sender, owner);
        }
    }

    #[inline]
    fn received_in_slot<O: Owner>(&mut self, wc: &ibv_wc, sender: &Sender, owner: &mut O) {
        let slot = wc.wr_id as u32;
        if !self.receives.slot_back(slot) {
            return;
        }
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            self.receives.slots.give(slot);
            return self.slot_failed(wc.status);
        }
        if self.receives.receiving == Receiving::Matched {
            return self.received_for_anybody(slot, wc, sender, owner);
        }
        let at = self.receives.slots.address(slot);
        if let Some(receive) = self.receives.bounced.pop_front() {
            let datagram = Datagram::of(wc, sender);
            let shown = self.receives.prefix;
            let len = (shown + datagram.len).min(shown + self.receives.mtu);
            // The header is the prefix, where the application has room for one.
            let from = at.wrapping_add(HEADER - shown);
            // SAFETY: so much lies in the slot from there on; the application vouches for its buffers.
            unsafe { scatter(from, len, receive.buffers.segments()) };
            self.deliver(&receive.matched(), &datagram, owner);
        } else {
            // Whoever it was posted for was taken back.
            self.counters.dropped += 1;
        }
        self.receives.slots.give(slot);
    }

    /// What came in a slot goes to the receive of the owner's that it matches, or is lost.
    fn received_for_anybody<O: Owner>(
        &mut self,
        slot: u32,
        wc: &ibv_wc,
        sender: &Sender,
        owner: &mut O,
    ) {
        let at = self.receives.slots.address(slot);
        let datagram = Datagram::of(wc, sender);
        let arrived = Arrived {
            src: sender.addr,
            tag: 0,
            len: datagram.len.min(self.receives.mtu) as u64,
            data: datagram.data,
            flags: datagram.flags,
        };
        match owner.srx().arrive(MsgKind::Msg, &arrived) {
            Some(receive) => {
                self.counters.received(datagram.len, sender.addr);
                // SAFETY: so much lies in the slot behind the header; the application vouches for its buffer.
                unsafe {
                    scatter(
                        at.wrapping_add(HEADER),
                        arrived.len as usize,
                        &[receive.buf],
                    )
                };
                owner.complete_recv(MsgKind::Msg, &receive, &arrived, || self.sender(&datagram));
            }
            None => self.counters.dropped += 1,
        }
        self.receives.slots.give(slot);
        if self.receives.post_slot(&self.qp).is_err() {
            self.want_renewal(true);
        }
    }

    /// A slot came back with nothing in it for anybody.
    #[cold]
    fn slot_failed(&mut self, status: ibv_wc_status) {
        if status == ibv_wc_status::IBV_WC_LOC_LEN_ERR {
            // Longer than the MTU: nobody's message. Its place in the queue is taken again.
            self.counters.dropped += 1;
            if self.receives.post_slot(&self.qp).is_ok() {
                return;
            }
        }
        self.want_renewal(true);
    }

    #[inline]
    fn received_direct<O: Owner>(&mut self, wc: &ibv_wc, sender: &Sender, owner: &mut O) {
        let at = (wc.wr_id & !DIRECT) as usize;
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return self.direct_failed(at, wc.status, owner);
        }
        let Some(entry) = self.receives.direct.try_remove(at) else {
            return;
        };
        self.receives.give_header(&entry);
        let datagram = Datagram::of(wc, sender);
        self.deliver(&entry.matched(), &datagram, owner);
    }

    #[cold]
    fn direct_failed<O: Owner>(&mut self, at: usize, status: ibv_wc_status, owner: &mut O) {
        match status {
            // It waits to be posted again.
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => {}
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => {
                self.counters.dropped += 1;
                let there = self.receives.direct.contains(at);
                // SAFETY: it was posted with the promise that its buffer stays, and has not completed.
                if there && unsafe { self.receives.hand_over(&self.qp, at) }.is_ok() {
                    return;
                }
            }
            _ => {
                if let Some(entry) = self.receives.direct.try_remove(at) {
                    self.receives.give_header(&entry);
                    let text = self.qp.pd().context().status_text(status);
                    tracing::debug!("receive of {} failed: {text}", *self.qp);
                    self.fail_receive(
                        &entry.matched(),
                        Errno::EIO,
                        "the device could not write to the buffer: its registration may not allow it, or be gone",
                        owner,
                    );
                }
            }
        }
        self.want_renewal(true);
    }

    #[inline]
    fn deliver<O: Owner>(&mut self, receive: &Matched, datagram: &Datagram, owner: &mut O) {
        let src = datagram.sender.addr;
        self.counters.received(datagram.len, src);
        let arrived = Arrived {
            src,
            tag: 0,
            len: (self.receives.prefix + datagram.len) as u64,
            data: datagram.data,
            flags: datagram.flags,
        };
        let prefix = self.receives.prefix;
        let sender = || self.sender(datagram);
        owner.complete_recv_behind(prefix, MsgKind::Msg, receive, &arrived, sender);
    }

    /// Who has sent a datagram, as far as that tells.
    fn sender(&self, datagram: &Datagram) -> Option<NativeAddr> {
        let own = self.port.address(self.qp.number(), self.init.qkey);
        let source = datagram.sender.source;
        source.map(|source| source.name(datagram.lid, &own))
    }

    pub(super) fn fail_receive<O: Owner>(
        &self,
        receive: &Matched,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        let nothing = Arrived {
            src: FiAddr::NOTAVAIL,
            tag: 0,
            len: 0,
            data: 0,
            flags: Flags::empty(),
        };
        owner.fail_recv(MsgKind::Msg, receive, &nothing, errno, 0, why);
    }

    /// Takes back a receive. What the device has can not be had back but by a reset of the queue pair.
    pub(super) fn take_back<O: Owner>(
        &mut self,
        context: u64,
        owner: &mut O,
    ) -> Result<(), OpError> {
        let receives = &mut self.receives;
        if let Some(at) = receives.bounced.iter().position(|b| b.context == context) {
            if let Some(receive) = receives.bounced.remove(at) {
                self.fail_receive(&receive.matched(), Errno::ECANCELED, CANCELLED, owner);
            }
            return Ok(());
        }
        let mut direct = receives.direct.iter_mut();
        let found = direct.find(|(_, entry)| entry.context == context && !entry.cancelled);
        let (_, entry) = found.ok_or(OpError::Failed(Errno::ENOENT))?;
        entry.cancelled = true;
        self.want_renewal(false);
        Ok(())
    }
}

pub(super) const CANCELLED: &str = "cancelled";

/// Where a datagram comes from, as its completion says, or the header before it.
#[inline]
fn source_of(wc: &ibv_wc, header: &[u8; HEADER]) -> Option<Source> {
    match wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 {
        0 => Some(Source::Lid(wc.slid, wc.src_qp)),
        _ => sender_gid(header).map(|gid| Source::Gid(gid, wc.src_qp)),
    }
}

impl Datagram {
    #[inline]
    fn of(wc: &ibv_wc, sender: &Sender) -> Self {
        let (data, flags) = match wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 {
            0 => (0, Flags::empty()),
            _ => {
                // SAFETY: the flag says that it is immediate data; both are the same number of plain bytes.
                let immediate = unsafe { wc.__bindgen_anon_1.imm_data };
                (u32::from_be(immediate).into(), Flags::REMOTE_CQ_DATA)
            }
        };
        Self {
            len: (wc.byte_len as usize).saturating_sub(HEADER),
            data,
            flags,
            sender: *sender,
            lid: wc.slid,
        }
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

/// Copies `len` bytes into a list of buffers, as far as they have room.
///
/// # Safety
///
/// There are so many bytes at `from`, and the buffers may be written.
#[inline]
unsafe fn scatter(from: *const u8, len: usize, to: &[IoBuf]) {
    let (mut from, mut left) = (from, len);
    for buf in to {
        let part = left.min(buf.len);
        // SAFETY: the caller's promise; no more than the buffer has room for.
        unsafe { buf.as_mut_ptr().copy_from_nonoverlapping(from, part) };
        from = from.wrapping_add(part);
        left -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::Sources;
    use super::*;
    use ferrofabric_contracts::addr::{GidKind, VerbsAddr};
    use proptest::prelude::*;

    fn completion(byte_len: u32, wc_flags: u32, immediate: u32) -> ibv_wc {
        let mut wc = ibv_wc {
            byte_len,
            wc_flags,
            src_qp: 17,
            slid: 5,
            ..Default::default()
        };
        wc.__bindgen_anon_1.imm_data = immediate;
        wc
    }

    /// Covers: AV-25
    #[test]
    fn a_completion_says_how_long_from_whom_and_with_what() {
        let mut sources = Sources::default();
        let peer = VerbsAddr {
            gid: [3; 16],
            gid_kind: GidKind::Ib,
            qpn: 17,
            qkey: 1,
            lid: 5,
            pkey: 0xffff,
            sl: 0,
            port: 1,
            mtu_bytes: 1024,
        };
        sources.insert(FiAddr(9), &peer);
        let of = |wc: &ibv_wc, header: &[u8; HEADER]| {
            let mut sender = Sender::at(source_of(wc, header));
            sources.find_all(std::slice::from_mut(&mut sender));
            Datagram::of(wc, &sender)
        };
        let mut header = [0; HEADER];
        let (grh, imm) = (ibv_wc_flags::IBV_WC_GRH.0, ibv_wc_flags::IBV_WC_WITH_IMM.0);
        let by_lid = of(&completion(45, imm, 0x1234_5678u32.to_be()), &header);
        assert_eq!((by_lid.len, by_lid.sender.addr), (5, FiAddr(9)));
        assert_eq!(
            (by_lid.data, by_lid.flags),
            (0x1234_5678, Flags::REMOTE_CQ_DATA)
        );
        // Where there is a header, the LID does not count.
        let unknown = of(&completion(40, grh, 7), &header);
        assert_eq!((unknown.len, unknown.sender.addr), (0, FiAddr::NOTAVAIL));
        assert_eq!((unknown.data, unknown.flags), (0, Flags::empty()));
        header[0] = 0x60;
        header[8..24].fill(3);
        let by_gid = of(&completion(4136, grh, 0), &header);
        assert_eq!((by_gid.len, by_gid.sender.addr), (4096, FiAddr(9)));
        // Less than a header is nothing.
        assert_eq!(of(&completion(3, grh, 0), &header).len, 0);
    }

    proptest! {
        #[test]
        fn buffers_are_filled_in_order_and_not_beyond(
            lens in prop::collection::vec(0usize..20, 0..5),
            message in prop::collection::vec(any::<u8>(), 0..90),
        ) {
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xee; *len + 1]).collect();
            let to: Vec<IoBuf> = memory
                .iter_mut()
                .zip(&lens)
                .map(|(m, len)| IoBuf::new(m.as_mut_ptr(), *len))
                .collect();
            // SAFETY: the memory has a byte more than each buffer.
            unsafe { scatter(message.as_ptr(), message.len(), &to) };
            let mut left = &message[..];
            for (m, len) in memory.iter().zip(&lens) {
                let (now, later) = left.split_at(left.len().min(*len));
                prop_assert_eq!(&m[..now.len()], now);
                prop_assert!(m[now.len()..].iter().all(|b| *b == 0xee));
                left = later;
            }
        }
    }
}
