//! Completions and flushes of the requests of lanes.

use ferrofabric_contracts::peer::{Owner, ShortcutEnd};
use ferrofabric_protocol::lanes::BROKEN;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_verbs_sys::ibv_wc_status;

use super::RdmTransport;
use super::lane_ends::lane_end_of;
use crate::lane::{LaneWqe, PacketBuffer, WqeKind, is_datagram};

impl RdmTransport {
    /// A request of a lane has completed, and so have all that were posted before it.
    #[inline]
    pub(super) fn sent<O: Owner>(
        &mut self,
        session: SessionId,
        number: u32,
        error: Option<ibv_wc_status>,
        owner: &mut O,
    ) {
        if let Some(status) = error {
            return self.request_failed(session, number, status, owner);
        }
        let Some(mut lane) = self.lanes.rc(session) else {
            return self.sent_elsewhere(session, number, None);
        };
        while let Some(wqe) = lane.queue.pop() {
            self.poster.outstanding -= 1;
            match wqe.packet {
                PacketBuffer::Nowhere => {}
                PacketBuffer::Record(record) => lane.queue.records.release(record),
                PacketBuffer::Resume(slot) => self.resume_slots.give(slot),
                PacketBuffer::Bounce { slot, .. } => self.poster.bounces.give(slot),
                PacketBuffer::Split { slot, .. } => {
                    self.poster.bounces.give(slot);
                    drop(lane.queue.described.pop_front());
                }
            }
            if let Some(sequence) = wqe.sequence {
                // These are this side's own numbers, in order: the call never fails.
                let _ = lane.session.numbers.confirm(sequence.wrapping_add(1));
            }
            let last = wqe.number == number;
            match wqe.kind {
                WqeKind::Message(done) => owner.complete_send(&done),
                WqeKind::Control | WqeKind::Marker => {}
                moved => {
                    self.moved(session, moved, owner);
                    let Some(still) = self.lanes.rc(session) else {
                        return;
                    };
                    lane = still;
                }
            }
            if last {
                break;
            }
        }
        if lane.is_busy() || !self.peers.at(lane.head.peer).pending.is_empty() {
            self.list(session);
        }
    }

    /// A chunk of a rendezvous message was moved, or its end was reported to the peer; or a request
    /// of a one-sided operation was carried out.
    #[inline(never)]
    fn moved<O: Owner>(&mut self, session: SessionId, what: WqeKind, owner: &mut O) {
        let Some(lane) = self.lanes.rc(session) else {
            return;
        };
        match what {
            WqeKind::Done(transfer) => {
                if let Some(writing) = lane.session.writes.remove(transfer) {
                    owner.complete_send(&writing.send.done);
                }
            }
            WqeKind::Read(chunk) => {
                self.poster.counters.sent.chunks_under_way -= 1;
                if lane.session.reads.on_chunk(chunk.transfer) {
                    self.was_read(session, chunk.transfer, owner);
                }
                self.run_reads(session);
            }
            WqeKind::Write(chunk) => {
                self.poster.counters.sent.chunks_under_way -= 1;
                lane.session.writes.on_chunk(chunk.transfer);
                self.run_writes(session);
            }
            WqeKind::OneSided => {
                // Its regions go before the application has its buffers back.
                let number = lane.queue.one_sided.pop_front().and_then(|one| one.number);
                if let Some(number) = number {
                    owner.shortcut_over(number, ShortcutEnd::Done);
                }
            }
            WqeKind::Message(_) | WqeKind::Control | WqeKind::Marker => {}
        }
    }

    /// A request that belongs to no lane has completed.
    #[cold]
    fn sent_elsewhere(&mut self, session: SessionId, number: u32, error: Option<ibv_wc_status>) {
        match (&mut self.ud.queue_pair, is_datagram(session)) {
            (Some(queue_pair), true) => {
                queue_pair.sent(&mut self.poster, number, error);
                if error.is_some() {
                    self.recover_data_queue_pair();
                }
            }
            _ => self.resume_sent(session, number),
        }
    }

    #[cold]
    fn request_failed<O: Owner>(
        &mut self,
        session: SessionId,
        number: u32,
        status: ibv_wc_status,
        owner: &mut O,
    ) {
        let Some(lane) = self.lanes.rc(session) else {
            if is_datagram(session) {
                return self.sent_elsewhere(session, number, Some(status));
            }
            return self.break_emptied_lane(session, BROKEN, owner);
        };
        if lane.head.gate.is_ending() {
            // The request was flushed. Once the last request of the lane is flushed, all are.
            let last = lane.queue.last().map(|wqe| (wqe.number, &wqe.kind));
            if matches!(last, Some((last, WqeKind::Marker)) if last == number) {
                self.drained(session, owner);
            }
            return;
        }
        tracing::debug!(
            "request {number} on {} failed: {}",
            **lane.qp,
            lane.qp.pd().context().status_text(status)
        );
        // All requests before it have completed; for the unsignaled ones this is the first report.
        if let Some(before) = lane.queue.before(number) {
            self.sent(session, before, None, owner);
        }
        if status == ibv_wc_status::IBV_WC_REM_ACCESS_ERR {
            self.one_sided_denied(session, number);
        }
        self.break_lane(session, lane_end_of(status));
    }
}

/// The queue entry of a posted request.
pub(super) fn entered(number: u32, kind: WqeKind) -> LaneWqe {
    LaneWqe {
        number,
        sequence: None,
        kind,
        packet: PacketBuffer::Nowhere,
    }
}
