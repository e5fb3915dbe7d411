//! Receiving: the sender of a datagram, and the receive that takes it.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched, Owner, PeerSrx};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp};
use ferrofabric_system::prefetch::prefetch;
use ferrofabric_verbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_status};

use super::receives::{CancelOutcome, DIRECT, HEADER};
use super::source::{DatagramSender, DatagramSource, sender_gid};
use super::{DgramTransport, ReceiveMode};

/// The description of a datagram in its completion.
struct ReceivedDatagram {
    /// Bytes of payload.
    len: usize,
    data: u64,
    flags: Flags,
    sender: DatagramSender,
    /// The LID of the sender's path.
    lid: u16,
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

    /// Finds the senders of all datagrams of a poll before any of them is handled, so that the
    /// waits for memory overlap.
    #[inline]
    pub(super) fn find_senders(&self, completions: &[ibv_wc], senders: &mut [DatagramSender]) {
        if completions.len() > 1 {
            for header in completions.iter().filter_map(|wc| self.receives.header(wc)) {
                prefetch(header);
            }
        }
        for (wc, sender) in completions.iter().zip(&mut *senders) {
            if let Some(header) = self.receives.header(wc) {
                // SAFETY: the device has written the header there and is done with it.
                let header = unsafe { header.read() };
                *sender = DatagramSender::at(source_of(wc, &header));
            }
        }
        self.sources.find_all(senders);
    }

    /// Handles the completion of a receive of the queue pair.
    #[inline]
    pub(super) fn received<O: Owner>(
        &mut self,
        wc: &ibv_wc,
        sender: &DatagramSender,
        owner: &mut O,
    ) {
        if wc.wr_id & DIRECT != 0 {
            self.received_direct(wc, sender, owner);
        } else {
            self.received_in_slot(wc, sender, owner);
        }
    }

    #[inline]
    fn received_in_slot<O: Owner>(&mut self, wc: &ibv_wc, sender: &DatagramSender, owner: &mut O) {
        let slot = wc.wr_id as u32;
        if !self.receives.slot_back(slot) {
            return;
        }
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            self.receives.give_slot(slot);
            return self.slot_failed(wc.status);
        }
        if self.receives.receiving() == ReceiveMode::Matched {
            return self.received_matched(slot, wc, sender, owner);
        }
        let at = self.receives.slot(slot);
        if let Some(receive) = self.receives.pop_bounced() {
            let datagram = ReceivedDatagram::of(wc, sender);
            let shown = self.receives.prefix();
            let len = (shown + datagram.len).min(shown + self.receives.mtu());
            // The header is the prefix, if the application leaves room for one.
            let from = at.wrapping_add(HEADER - shown);
            // SAFETY: the slot has that many bytes from there on; the application vouches for its
            // buffers.
            unsafe { scatter(from, len, receive.buffers.segments()) };
            self.deliver(&receive.matched(), &datagram, owner);
        } else {
            // The receive of this slot was canceled.
            self.counters.dropped += 1;
        }
        self.receives.give_slot(slot);
    }

    /// Delivers the datagram in a slot to the matching receive of the owner, or drops it.
    fn received_matched<O: Owner>(
        &mut self,
        slot: u32,
        wc: &ibv_wc,
        sender: &DatagramSender,
        owner: &mut O,
    ) {
        let at = self.receives.slot(slot);
        let datagram = ReceivedDatagram::of(wc, sender);
        let arrived = Arrived {
            src: sender.addr,
            tag: 0,
            len: datagram.len.min(self.receives.mtu()) as u64,
            data: datagram.data,
            flags: datagram.flags,
        };
        match owner.srx().arrive(MsgKind::Msg, &arrived) {
            Some(receive) => {
                self.counters.received(datagram.len, sender.addr);
                // SAFETY: the slot has that many bytes behind the header; the application vouches
                // for its buffer.
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
        self.receives.give_slot(slot);
        if self.receives.post_slot(&self.qp).is_err() {
            self.recover();
        }
    }

    /// A slot came back without a datagram.
    #[cold]
    fn slot_failed(&mut self, status: ibv_wc_status) {
        if status == ibv_wc_status::IBV_WC_LOC_LEN_ERR {
            // Longer than the MTU: no valid datagram. Another slot takes its place in the queue.
            self.counters.dropped += 1;
            if self.receives.post_slot(&self.qp).is_ok() {
                return;
            }
        }
        self.recover();
    }

    #[inline]
    fn received_direct<O: Owner>(&mut self, wc: &ibv_wc, sender: &DatagramSender, owner: &mut O) {
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return self.direct_failed(wc.wr_id, wc.status, owner);
        }
        let Some(receive) = self.receives.take_direct(wc.wr_id) else {
            return;
        };
        let datagram = ReceivedDatagram::of(wc, sender);
        self.deliver(&receive, &datagram, owner);
    }

    #[cold]
    fn direct_failed<O: Owner>(&mut self, id: u64, status: ibv_wc_status, owner: &mut O) {
        match status {
            // The slot is posted again after the reset.
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => {}
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => {
                self.counters.dropped += 1;
                if self.receives.repeat_direct(&self.qp, id) {
                    return;
                }
            }
            _ => {
                if let Some(receive) = self.receives.take_direct(id) {
                    let text = self.qp.pd().context().status_text(status);
                    tracing::debug!("receive of {} failed: {text}", *self.qp);
                    self.fail_receive(
                        &receive,
                        Errno::EIO,
                        "the device could not write to the buffer: its registration may not allow it, or be gone",
                        owner,
                    );
                }
            }
        }
        self.recover();
    }

    #[inline]
    fn deliver<O: Owner>(&mut self, receive: &Matched, datagram: &ReceivedDatagram, owner: &mut O) {
        let src = datagram.sender.addr;
        self.counters.received(datagram.len, src);
        let arrived = Arrived {
            src,
            tag: 0,
            len: (self.receives.prefix() + datagram.len) as u64,
            data: datagram.data,
            flags: datagram.flags,
        };
        let prefix = self.receives.prefix();
        let sender = || self.sender(datagram);
        owner.complete_recv_behind(prefix, MsgKind::Msg, receive, &arrived, sender);
    }

    /// The sender of a datagram, as far as the datagram identifies it.
    fn sender(&self, datagram: &ReceivedDatagram) -> Option<NativeAddr> {
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

    /// Cancels a receive. Only a reset of the queue pair recalls a receive that the device has.
    pub(super) fn cancel<O: Owner>(&mut self, context: u64, owner: &mut O) -> Result<(), OpError> {
        match self.receives.cancel(context) {
            CancelOutcome::Over(receive) => {
                self.fail_receive(&receive, Errno::ECANCELED, CANCELLED, owner);
            }
            CancelOutcome::WithDevice => self.request_reset(false),
            CancelOutcome::NotThere => return Err(OpError::Failed(Errno::ENOENT)),
        }
        Ok(())
    }
}

pub(super) const CANCELLED: &str = "cancelled";

/// The source of a datagram, from its completion or from the header before it.
#[inline]
fn source_of(wc: &ibv_wc, header: &[u8; HEADER]) -> Option<DatagramSource> {
    match wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 {
        0 => Some(DatagramSource::Lid(wc.slid, wc.src_qp)),
        _ => sender_gid(header).map(|gid| DatagramSource::Gid(gid, wc.src_qp)),
    }
}

impl ReceivedDatagram {
    #[inline]
    fn of(wc: &ibv_wc, sender: &DatagramSender) -> Self {
        let (data, flags) = match wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 {
            0 => (0, Flags::empty()),
            _ => {
                // SAFETY: the flag says that it is immediate data; both are the same number of
                // plain bytes.
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

/// Copies `len` bytes into a list of buffers, as far as they have room.
///
/// # Safety
///
/// `from` has at least `len` bytes, and the buffers may be written.
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
    fn a_completion_gives_length_source_and_data() {
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
            let mut sender = DatagramSender::at(source_of(wc, header));
            sources.find_all(std::slice::from_mut(&mut sender));
            ReceivedDatagram::of(wc, &sender)
        };
        let mut header = [0; HEADER];
        let (grh, imm) = (ibv_wc_flags::IBV_WC_GRH.0, ibv_wc_flags::IBV_WC_WITH_IMM.0);
        let by_lid = of(&completion(45, imm, 0x1234_5678u32.to_be()), &header);
        assert_eq!((by_lid.len, by_lid.sender.addr), (5, FiAddr(9)));
        assert_eq!(
            (by_lid.data, by_lid.flags),
            (0x1234_5678, Flags::REMOTE_CQ_DATA)
        );
        // If there is a header, the LID is ignored.
        let unknown = of(&completion(40, grh, 7), &header);
        assert_eq!((unknown.len, unknown.sender.addr), (0, FiAddr::NOTAVAIL));
        assert_eq!((unknown.data, unknown.flags), (0, Flags::empty()));
        header[0] = 0x60;
        header[8..24].fill(3);
        let by_gid = of(&completion(4136, grh, 0), &header);
        assert_eq!((by_gid.len, by_gid.sender.addr), (4096, FiAddr(9)));
        // A completion shorter than a header has no payload.
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
