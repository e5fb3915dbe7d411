//! Carries requests out, from one queue pair to another.

use ferrofabric_verbs_sys::{
    ibv_access_flags as Access, ibv_event_type, ibv_qp_state as State, ibv_qp_type, ibv_wc_flags,
    ibv_wc_opcode, ibv_wc_status as Status, ibv_wr_opcode as Op,
};

use crate::completion::FakeCompletion;
use crate::fault::{FaultEffect, FaultPoint};
use crate::memory::{self, read, room, write};
use crate::model::DeviceModel;
use crate::queue_pair::{
    FakeReceive, FakeRequest, QueuePair, RequestPayload, RequestTarget, completion,
};
use crate::route::{DatagramRoute, HEADER_BYTES};

/// `rnr_retry` that has no end.
const FOR_EVER: u8 = 7;

/// How it went with a request.
enum RequestOutcome {
    /// It is over, and moved so many bytes.
    Over(Status, u32),
    /// Its receiver is not ready.
    Wait,
}

/// A message on its way.
#[derive(Clone)]
pub(crate) struct WireMessage {
    from: u32,
    /// Of a datagram.
    route: Option<DatagramRoute>,
    bytes: Vec<u8>,
    immediate: Option<u32>,
    invalidates: Option<u32>,
    solicited: bool,
    /// Not a message's own receive, but that of a write with immediate data: so many bytes were
    /// written.
    written: Option<u32>,
}

/// Why a message was not taken.
pub(crate) enum Refusal {
    NotReady,
    /// The status of the sender's completion.
    Status(Status),
}

impl DeviceModel {
    /// Holds requests of connections back, or carries out what was held.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
        if !held {
            self.run_all();
        }
    }

    /// Carries out what was held of a queue pair that is about to be destroyed: so late a device
    /// may still be at it.
    pub(crate) fn run_held(&mut self, number: u32) {
        let held = std::mem::take(&mut self.held);
        if held {
            self.run(number);
        }
        self.held = held;
    }

    /// Carries out what can be, on all queue pairs in turn, until nothing moves. A turn begins behind
    /// the queue pair that moved last, so that none takes all receives of a shared queue.
    pub(crate) fn run_all(&mut self) {
        loop {
            let mut busy: Vec<u32> = self
                .queue_pairs
                .values()
                .filter(|qp| !qp.sends.is_empty())
                .map(|qp| qp.number)
                .collect();
            let next = busy.partition_point(|number| *number <= self.moved_last);
            busy.rotate_left(next);
            let mut moved = false;
            for number in busy {
                if self.run(number) {
                    (moved, self.moved_last) = (true, number);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Carries out a queue pair's requests, in order, until one has to wait. Whether any was.
    pub(crate) fn run(&mut self, number: u32) -> bool {
        let mut moved = false;
        loop {
            let Some(qp) = self.queue_pairs.get_mut(&number) else {
                return moved;
            };
            if qp.state == State::IBV_QPS_ERR {
                moved |= !qp.sends.is_empty();
                self.fail(number);
                return moved;
            }
            if qp.state == State::IBV_QPS_SQE {
                moved |= !qp.sends.is_empty();
                self.stop_sends(number);
                return moved;
            }
            if self.held && qp.kind == ibv_qp_type::IBV_QPT_RC {
                return moved;
            }
            let Some(request) = qp.sends.pop_front() else {
                return moved;
            };
            match self.carry_out(number, &request) {
                RequestOutcome::Wait => {
                    if let Some(qp) = self.queue_pairs.get_mut(&number) {
                        qp.sends.push_front(request);
                    }
                    return moved;
                }
                RequestOutcome::Over(status, bytes) => {
                    moved = true;
                    self.end_request(number, &request, status, bytes);
                    if status != Status::IBV_WC_SUCCESS {
                        self.fail_connection(number, status);
                    }
                }
            }
        }
    }

    /// A request has failed: so has its queue pair, and the other side's if that had a part in it.
    fn fail_connection(&mut self, number: u32, status: Status) {
        let stops_sends = self.profile().datagram_failure_stops_sends;
        let Some(qp) = self.queue_pairs.get(&number) else {
            return;
        };
        let remote = qp.remote;
        if qp.kind == ibv_qp_type::IBV_QPT_UD && stops_sends {
            return self.stop_sends(number);
        }
        self.fail(number);
        let refused = matches!(
            status,
            Status::IBV_WC_REM_INV_REQ_ERR
                | Status::IBV_WC_REM_ACCESS_ERR
                | Status::IBV_WC_REM_OP_ERR
        );
        if let (true, Some(peer)) = (refused, self.queue_pairs.get(&remote)) {
            let kind = match status {
                Status::IBV_WC_REM_ACCESS_ERR => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
                _ => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
            };
            let (context, handle) = (peer.context, peer.handle);
            self.raise(context, kind, handle);
            self.fail(remote);
        }
    }

    fn carry_out(&mut self, number: u32, request: &FakeRequest) -> RequestOutcome {
        let point = match request.opcode {
            _ if matches!(request.remote, RequestTarget::Datagram { .. }) => FaultPoint::Datagram,
            Op::IBV_WR_RDMA_READ
            | Op::IBV_WR_ATOMIC_CMP_AND_SWP
            | Op::IBV_WR_ATOMIC_FETCH_AND_ADD => FaultPoint::Read,
            Op::IBV_WR_RDMA_WRITE | Op::IBV_WR_RDMA_WRITE_WITH_IMM => FaultPoint::Write,
            _ => FaultPoint::Send,
        };
        // A request that waits has been looked at before.
        let receiver_ready = point != FaultPoint::Send || self.receiver_ready(number);
        match receiver_ready.then(|| self.strike(point, number)).flatten() {
            Some(FaultEffect::Fail(status)) => return RequestOutcome::Over(status, 0),
            Some(FaultEffect::StopInside(status)) => {
                self.begin_message(number);
                return RequestOutcome::Over(status, 0);
            }
            Some(FaultEffect::Lose) => return RequestOutcome::Over(Status::IBV_WC_SUCCESS, 0),
            Some(FaultEffect::FailAfterwards(status)) => {
                return match self.perform(number, request) {
                    RequestOutcome::Over(Status::IBV_WC_SUCCESS, _) => {
                        RequestOutcome::Over(status, 0)
                    }
                    other => other,
                };
            }
            Some(other) => self.misused(format!(
                "the fault {other:?} does not go with {point:?}: it is ignored"
            )),
            None => {}
        }
        self.perform(number, request)
    }

    /// The first packet of a message has arrived, and no other will: the receiver's queue pair
    /// holds the receive that the message takes.
    fn begin_message(&mut self, number: u32) {
        let remote = self.queue_pairs.get(&number).map_or(0, |qp| qp.remote);
        if !self.connected(number, remote) {
            return;
        }
        let receive = self.next_receive(remote);
        if let Some(peer) = self.queue_pairs.get_mut(&remote) {
            peer.held = receive;
        }
    }

    fn receiver_ready(&self, number: u32) -> bool {
        let peer = self
            .queue_pairs
            .get(&number)
            .and_then(|qp| self.queue_pairs.get(&qp.remote));
        peer.is_none_or(|peer| match peer.srq {
            Some(srq) => self
                .shared_receive_queues
                .get(&srq)
                .is_some_and(|queue| !queue.posted.is_empty()),
            None => !peer.receives.posted.is_empty(),
        })
    }

    fn perform(&mut self, number: u32, request: &FakeRequest) -> RequestOutcome {
        let Some(qp) = self.queue_pairs.get(&number) else {
            return RequestOutcome::Over(Status::IBV_WC_FATAL_ERR, 0);
        };
        let (pd, remote, retries) = (qp.pd, qp.remote, qp.receiver_not_ready_retries);
        match request.remote {
            RequestTarget::Datagram { qp, qkey, route } => {
                self.datagram(number, pd, request, (qp, qkey, route))
            }
            _ if !self.connected(number, remote) => {
                RequestOutcome::Over(Status::IBV_WC_RETRY_EXC_ERR, 0)
            }
            RequestTarget::Memory { .. } => self.one_sided(number, remote, pd, request),
            RequestTarget::Peer => {
                let Some(mut bytes) = self.payload(pd, request) else {
                    return RequestOutcome::Over(Status::IBV_WC_LOC_PROT_ERR, 0);
                };
                if let Some(tamper) = self.tamper {
                    tamper(bytes.as_mut_ptr(), bytes.len());
                }
                let message = WireMessage {
                    from: number,
                    route: None,
                    bytes,
                    immediate: (request.opcode == Op::IBV_WR_SEND_WITH_IMM)
                        .then_some(request.immediate),
                    invalidates: (request.opcode == Op::IBV_WR_SEND_WITH_INV)
                        .then_some(request.immediate),
                    solicited: request.solicited,
                    written: None,
                };
                Self::over(self.deliver(remote, message), retries)
            }
        }
    }

    fn over(delivered: Result<(), Refusal>, retries: u8) -> RequestOutcome {
        match delivered {
            Ok(()) => RequestOutcome::Over(Status::IBV_WC_SUCCESS, 0),
            Err(Refusal::NotReady) if retries == FOR_EVER => RequestOutcome::Wait,
            Err(Refusal::NotReady) => RequestOutcome::Over(Status::IBV_WC_RNR_RETRY_EXC_ERR, 0),
            Err(Refusal::Status(status)) => RequestOutcome::Over(status, 0),
        }
    }

    /// Whether the other side answers: it is there, and connected to this one.
    fn connected(&self, number: u32, remote: u32) -> bool {
        self.queue_pairs
            .get(&remote)
            .is_some_and(|peer| peer.listens() && peer.remote == number)
    }

    fn payload(&self, pd: usize, request: &FakeRequest) -> Option<Vec<u8>> {
        match &request.payload {
            RequestPayload::Inline(bytes) => Some(bytes.clone()),
            RequestPayload::Entries(entries) => self.gather(pd, entries),
        }
    }

    fn datagram(
        &mut self,
        number: u32,
        pd: usize,
        request: &FakeRequest,
        (to, qkey, route): (u32, u32, DatagramRoute),
    ) -> RequestOutcome {
        let Some(payload) = self.payload(pd, request) else {
            return RequestOutcome::Over(Status::IBV_WC_LOC_PROT_ERR, 0);
        };
        let mut bytes = route.before().to_vec();
        bytes.extend_from_slice(&payload);
        let message = WireMessage {
            from: number,
            route: Some(route),
            bytes,
            immediate: (request.opcode == Op::IBV_WR_SEND_WITH_IMM).then_some(request.immediate),
            invalidates: None,
            solicited: request.solicited,
            written: None,
        };
        self.cross(to, qkey, message);
        RequestOutcome::Over(Status::IBV_WC_SUCCESS, 0)
    }

    /// Whether the peer of a queue pair reaches memory through it, by a key. If not, the peer's
    /// request ends with a remote access error.
    pub(crate) fn reaches(&self, qp: u32, key: u32, addr: u64, len: u64, right: Access) -> bool {
        self.queue_pairs.get(&qp).is_some_and(|qp| {
            qp.access & right.0 != 0 && (len == 0 || self.allowed(qp.pd, key, addr, len, right))
        })
    }

    fn one_sided(
        &mut self,
        number: u32,
        remote: u32,
        pd: usize,
        request: &FakeRequest,
    ) -> RequestOutcome {
        let RequestTarget::Memory {
            addr,
            key,
            compare_add,
            swap,
        } = request.remote
        else {
            return RequestOutcome::Over(Status::IBV_WC_LOC_QP_OP_ERR, 0);
        };
        let most = self.profile().message_bytes as usize;
        let Some(peer) = self.queue_pairs.get(&remote) else {
            return RequestOutcome::Over(Status::IBV_WC_RETRY_EXC_ERR, 0);
        };
        let peer = peer.number;
        let reach = |model: &Self, len: usize, access: Access| {
            model.reaches(peer, key, addr, len as u64, access)
        };
        let refused = RequestOutcome::Over(Status::IBV_WC_REM_ACCESS_ERR, 0);
        let done = |len: usize| RequestOutcome::Over(Status::IBV_WC_SUCCESS, len as u32);
        match (request.opcode, &request.payload) {
            (Op::IBV_WR_RDMA_READ, RequestPayload::Entries(entries)) => {
                let len = room(entries);
                if len > most {
                    return RequestOutcome::Over(Status::IBV_WC_LOC_LEN_ERR, 0);
                }
                if !reach(self, len, Access::IBV_ACCESS_REMOTE_READ) {
                    return refused;
                }
                let mut bytes = Vec::new();
                read(addr, len, &mut bytes);
                match self.scatter(pd, entries, &bytes) {
                    true => done(len),
                    false => RequestOutcome::Over(Status::IBV_WC_LOC_PROT_ERR, 0),
                }
            }
            (Op::IBV_WR_RDMA_WRITE | Op::IBV_WR_RDMA_WRITE_WITH_IMM, _) => {
                let Some(bytes) = self.payload(pd, request) else {
                    return RequestOutcome::Over(Status::IBV_WC_LOC_PROT_ERR, 0);
                };
                if bytes.len() > most {
                    return RequestOutcome::Over(Status::IBV_WC_LOC_LEN_ERR, 0);
                }
                if !reach(self, bytes.len(), Access::IBV_ACCESS_REMOTE_WRITE) {
                    return refused;
                }
                if request.opcode == Op::IBV_WR_RDMA_WRITE_WITH_IMM {
                    let message = WireMessage {
                        from: number,
                        route: None,
                        bytes: Vec::new(),
                        immediate: Some(request.immediate),
                        invalidates: None,
                        solicited: request.solicited,
                        written: Some(bytes.len() as u32),
                    };
                    let retries = self
                        .queue_pairs
                        .get(&number)
                        .map_or(FOR_EVER, |qp| qp.receiver_not_ready_retries);
                    match Self::over(self.deliver(remote, message), retries) {
                        RequestOutcome::Over(Status::IBV_WC_SUCCESS, _) => {}
                        other => return other,
                    }
                }
                write(addr, &bytes);
                done(0)
            }
            (
                Op::IBV_WR_ATOMIC_CMP_AND_SWP | Op::IBV_WR_ATOMIC_FETCH_AND_ADD,
                RequestPayload::Entries(entries),
            ) => {
                if addr % 8 != 0 {
                    return RequestOutcome::Over(Status::IBV_WC_REM_INV_REQ_ERR, 0);
                }
                if !reach(self, 8, Access::IBV_ACCESS_REMOTE_ATOMIC) {
                    return refused;
                }
                let mut bytes = Vec::new();
                read(addr, 8, &mut bytes);
                let before = u64::from_ne_bytes(bytes[..8].try_into().unwrap_or_default());
                let after = match request.opcode {
                    Op::IBV_WR_ATOMIC_FETCH_AND_ADD => before.wrapping_add(compare_add),
                    _ if before == compare_add => swap,
                    _ => before,
                };
                write(addr, &after.to_ne_bytes());
                match self.scatter(pd, entries, &bytes) {
                    true => done(8),
                    false => RequestOutcome::Over(Status::IBV_WC_LOC_PROT_ERR, 0),
                }
            }
            _ => RequestOutcome::Over(Status::IBV_WC_LOC_QP_OP_ERR, 0),
        }
    }

    /// Before a poll of a completion queue with fewer completions than the poll has room for:
    /// delivers the missing number of datagrams to the queue pair that is flooded.
    pub(crate) fn flood(&mut self, queue: usize, wanted: usize) {
        let to = self.flooded;
        let is_its = |qp: &QueuePair| qp.recv_cq == queue && qp.listens();
        while self.queue_pairs.get(&to).is_some_and(is_its)
            && (self.completion_queues.get(&queue)).is_some_and(|cq| cq.entries.len() < wanted)
        {
            let datagram = WireMessage {
                from: to,
                route: Some(DatagramRoute::Header([0; HEADER_BYTES])),
                bytes: vec![0; HEADER_BYTES],
                immediate: None,
                invalidates: None,
                solicited: false,
                written: None,
            };
            if self.deliver(to, datagram).is_err() {
                return;
            }
        }
    }

    /// Hands a message to a queue pair's next receive.
    pub(crate) fn deliver(&mut self, to: u32, mut message: WireMessage) -> Result<(), Refusal> {
        let receive = self.next_receive(to).ok_or(Refusal::NotReady)?;
        let Some(qp) = self.queue_pairs.get(&to) else {
            return Err(Refusal::NotReady);
        };
        let (queue, datagram) = (qp.recv_cq, qp.kind == ibv_qp_type::IBV_QPT_UD);
        let pd = match qp.srq {
            Some(srq) => self
                .shared_receive_queues
                .get(&srq)
                .map_or(qp.pd, |srq| srq.pd),
            None => qp.pd,
        };
        let point = match datagram {
            true => FaultPoint::DatagramReceive,
            false => FaultPoint::Receive,
        };
        let mut wc = completion(receive.wr_id, Status::IBV_WC_SUCCESS, to);
        wc.opcode = match message.written {
            Some(_) => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            None => ibv_wc_opcode::IBV_WC_RECV,
        };
        wc.byte_len = message.written.unwrap_or(message.bytes.len() as u32);
        if let Some(data) = message.immediate {
            wc.wc_flags |= ibv_wc_flags::IBV_WC_WITH_IMM.0;
            wc.__bindgen_anon_1.imm_data = data;
        }
        if let Some(key) = message.invalidates {
            wc.wc_flags |= ibv_wc_flags::IBV_WC_WITH_INV.0;
            wc.__bindgen_anon_1.invalidated_rkey = key;
        }
        if let Some(route) = message.route {
            wc.src_qp = message.from;
            match route {
                DatagramRoute::Header(_) => wc.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0,
                DatagramRoute::Lid(lid) => wc.slid = lid,
            }
        }
        match self.strike(point, to) {
            Some(FaultEffect::Fail(status)) => {
                wc.status = status;
                (wc.vendor_err, wc.byte_len) = (0x5a, 0);
                return self.refuse(to, queue, wc, Status::IBV_WC_REM_OP_ERR);
            }
            Some(FaultEffect::WrId(wr_id)) => wc.wr_id = wr_id,
            Some(FaultEffect::ByteLen(bytes)) => wc.byte_len = bytes,
            Some(FaultEffect::QpNum(number)) => wc.qp_num = number,
            Some(FaultEffect::Corrupt(at)) => {
                if let Some(byte) = message.bytes.get_mut(at as usize) {
                    *byte = !*byte;
                }
            }
            Some(other) => self.misused(format!(
                "the fault {other:?} does not go with {point:?}: it is ignored"
            )),
            None => {}
        }
        if message.bytes.len() > memory::room(&receive.entries) {
            wc.status = Status::IBV_WC_LOC_LEN_ERR;
            return self.refuse(to, queue, wc, Status::IBV_WC_REM_INV_REQ_ERR);
        }
        if !self.scatter(pd, &receive.entries, &message.bytes) {
            self.misused(format!(
                "a receive of queue pair {to:#x} names memory that it may not write"
            ));
            wc.status = Status::IBV_WC_LOC_PROT_ERR;
            return self.refuse(to, queue, wc, Status::IBV_WC_REM_OP_ERR);
        }
        let entry = FakeCompletion { wc, reclaims: None };
        self.complete(queue, entry, message.solicited);
        Ok(())
    }

    /// A receive has failed, and its queue pair with it.
    fn refuse(
        &mut self,
        to: u32,
        queue: usize,
        wc: ferrofabric_verbs_sys::ibv_wc,
        sender: Status,
    ) -> Result<(), Refusal> {
        self.complete(queue, FakeCompletion { wc, reclaims: None }, true);
        self.fail(to);
        Err(Refusal::Status(sender))
    }

    fn next_receive(&mut self, to: u32) -> Option<FakeReceive> {
        let qp = self.queue_pairs.get_mut(&to)?;
        let Some(srq) = qp.srq else {
            return qp.receives.posted.pop_front();
        };
        let queue = self.shared_receive_queues.get_mut(&srq)?;
        let receive = queue.posted.pop_front()?;
        if queue.posted.len() < queue.limit {
            queue.limit = 0;
            let context = queue.context;
            self.raise(context, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, srq);
        }
        Some(receive)
    }
}
