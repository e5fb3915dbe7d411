//! Queue pairs and receive queues.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferrofabric_verbs_sys::{
    ibv_event_type, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_state as State,
    ibv_qp_type, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use crate::completion::FakeCompletion;
use crate::fault::PathView;
use crate::model::DeviceModel;
use crate::profile::HeldFate;
use crate::route::DatagramRoute;

/// A receive that is posted.
pub(crate) struct FakeReceive {
    pub(crate) wr_id: u64,
    pub(crate) entries: Vec<ibv_sge>,
}

/// A queue of receives, shared or of one queue pair.
#[derive(Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) context: usize,
    pub(crate) pd: usize,
    pub(crate) depth: usize,
    pub(crate) max_entries: usize,
    pub(crate) posted: VecDeque<FakeReceive>,
    /// There is one event when fewer receives than this number are posted; 0: no event.
    pub(crate) limit: usize,
}

/// A request of a send queue.
#[derive(Clone)]
pub(crate) struct FakeRequest {
    pub(crate) wr_id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) payload: RequestPayload,
    /// Immediate data, as it is on the wire.
    pub(crate) immediate: u32,
    pub(crate) remote: RequestTarget,
}

/// The data of a request, or the place for the data that it reads.
#[derive(Clone)]
pub(crate) enum RequestPayload {
    Inline(Vec<u8>),
    Entries(Vec<ibv_sge>),
}

/// Where a request goes, by its kind.
#[derive(Clone, Copy)]
pub(crate) enum RequestTarget {
    /// To the queue pair that ours is connected to.
    Peer,
    /// To memory of that one.
    Memory {
        addr: u64,
        key: u32,
        compare_add: u64,
        swap: u64,
    },
    /// To any queue pair.
    Datagram {
        qp: u32,
        qkey: u32,
        route: DatagramRoute,
    },
}

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) handle: usize,
    pub(crate) number: u32,
    pub(crate) kind: ibv_qp_type,
    pub(crate) context: usize,
    pub(crate) pd: usize,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    pub(crate) caps: ibv_qp_cap,
    pub(crate) signal_all: bool,
    pub(crate) state: State,
    /// The number of the one it is connected to.
    pub(crate) remote: u32,
    /// Of the path to that one.
    pub(crate) path: PathView,
    /// The MTU of that path, as `ibv_mtu` has it.
    pub(crate) mtu: u32,
    /// The access that peers have.
    pub(crate) access: u32,
    pub(crate) qkey: u32,
    pub(crate) receiver_not_ready_retries: u8,
    /// Requests that are not carried out yet.
    pub(crate) sends: VecDeque<FakeRequest>,
    pub(crate) receives: ReceiveQueue,
    /// Occupied slots of the send queue: a slot is free again when the application has taken the
    /// completion of its request, or of a later one.
    pub(crate) occupied: u32,
    /// Slots of requests that are over, since the last completion.
    pub(crate) silent: u32,
    /// The receive of a message that has begun and has not ended.
    pub(crate) held: Option<FakeReceive>,
    /// In error, it has taken all its shared receives at this time.
    pub(crate) takes_last_receive: Option<Instant>,
}

impl QueuePair {
    /// Whether peers reach it.
    pub(crate) fn listens(&self) -> bool {
        matches!(
            self.state,
            State::IBV_QPS_RTR | State::IBV_QPS_RTS | State::IBV_QPS_SQE
        )
    }

    /// Changes attributes; an errno when that is not to be had in this state.
    pub(crate) fn modify(&mut self, attr: &ibv_qp_attr, mask: Mask) -> Result<(), i32> {
        let has = |bit: Mask| mask.0 & bit.0 != 0;
        if has(Mask::IBV_QP_STATE) {
            let needed = match (self.state, attr.qp_state) {
                (_, State::IBV_QPS_ERR | State::IBV_QPS_RESET) => Mask::IBV_QP_STATE,
                (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
                    Mask::IBV_QP_PORT | Mask::IBV_QP_PKEY_INDEX
                }
                (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => match self.kind {
                    ibv_qp_type::IBV_QPT_RC => {
                        Mask::IBV_QP_AV
                            | Mask::IBV_QP_DEST_QPN
                            | Mask::IBV_QP_RQ_PSN
                            | Mask::IBV_QP_PATH_MTU
                    }
                    _ => Mask::IBV_QP_STATE,
                },
                (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => Mask::IBV_QP_SQ_PSN,
                // The kernel does not know the state, unless the caller says it.
                (State::IBV_QPS_SQE, State::IBV_QPS_RTS)
                    if attr.cur_qp_state == State::IBV_QPS_SQE =>
                {
                    Mask::IBV_QP_CUR_STATE
                }
                _ => return Err(libc::EINVAL),
            };
            if mask.0 & needed.0 != needed.0 {
                return Err(libc::EINVAL);
            }
            self.state = attr.qp_state;
        }
        if has(Mask::IBV_QP_DEST_QPN) {
            self.remote = attr.dest_qp_num;
        }
        if has(Mask::IBV_QP_AV) {
            self.path = PathView::of(&attr.ah_attr);
        }
        if has(Mask::IBV_QP_PATH_MTU) {
            self.mtu = attr.path_mtu.0;
        }
        if has(Mask::IBV_QP_ACCESS_FLAGS) {
            self.access = attr.qp_access_flags;
        }
        if has(Mask::IBV_QP_QKEY) {
            self.qkey = attr.qkey;
        }
        if has(Mask::IBV_QP_RNR_RETRY) {
            self.receiver_not_ready_retries = attr.rnr_retry;
        }
        Ok(())
    }
}

/// An empty completion.
pub(crate) fn completion(wr_id: u64, status: ibv_wc_status, qp: u32) -> ibv_wc {
    // SAFETY: all zeroes are a completion: it is made of plain numbers.
    let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
    wc.wr_id = wr_id;
    wc.status = status;
    wc.qp_num = qp;
    wc
}

impl DeviceModel {
    /// Ends a request of a send queue. A failure is always told of.
    pub(crate) fn end_request(
        &mut self,
        number: u32,
        request: &FakeRequest,
        status: ibv_wc_status,
        bytes: u32,
    ) {
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        qp.silent += 1;
        let failed = status != ibv_wc_status::IBV_WC_SUCCESS;
        if !(failed || request.signaled || qp.signal_all) {
            return;
        }
        let slots = std::mem::take(&mut qp.silent);
        let queue = qp.send_cq;
        let mut wc = completion(request.wr_id, status, number);
        wc.opcode = match request.opcode {
            ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                ibv_wc_opcode::IBV_WC_RDMA_WRITE
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
            _ => ibv_wc_opcode::IBV_WC_SEND,
        };
        wc.byte_len = bytes;
        wc.vendor_err = if failed { 0x5a } else { 0 };
        let entry = FakeCompletion {
            wc,
            reclaims: Some((number, slots)),
        };
        self.complete(queue, entry, false);
    }

    /// Moves a queue pair to the error state and flushes what is posted to it.
    pub(crate) fn fail(&mut self, number: u32) {
        let rules = self.profile().held_receive;
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        let fresh = qp.state != State::IBV_QPS_ERR;
        qp.state = State::IBV_QPS_ERR;
        let requests = std::mem::take(&mut qp.sends);
        if fresh {
            if rules.fate == HeldFate::Lost && qp.srq.is_some() {
                qp.held = None;
            }
            let waits = qp.held.is_some() && rules.after_us > 0;
            let wait = Duration::from_micros(if waits { rules.after_us } else { 0 });
            qp.takes_last_receive = Some(Instant::now() + wait);
            self.failing.insert(number);
            self.flush_receives();
        }
        for request in requests {
            self.end_request(number, &request, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
        }
        self.flush_own_receives(number);
    }

    /// Moves the send queue of a queue pair to error, and flushes what is posted to it.
    pub(crate) fn stop_sends(&mut self, number: u32) {
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        qp.state = State::IBV_QPS_SQE;
        for request in std::mem::take(&mut qp.sends) {
            self.end_request(number, &request, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
        }
    }

    /// Flushes the receives of a queue pair's own queue.
    fn flush_own_receives(&mut self, number: u32) {
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        let (queue, receives) = (qp.recv_cq, std::mem::take(&mut qp.receives.posted));
        for receive in receives {
            self.flush_receive(queue, number, receive.wr_id);
        }
    }

    fn flush_receive(&mut self, queue: usize, number: u32, wr_id: u64) {
        let entry = FakeCompletion {
            wc: completion(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, number),
            reclaims: None,
        };
        self.complete(queue, entry, false);
    }

    /// Flushes the receives that queue pairs in error hold in mid-message, if their time has come,
    /// and announces each queue pair that has taken its last shared receive.
    pub(crate) fn flush_receives(&mut self) {
        if self.failing.is_empty() {
            return;
        }
        let announces = self.profile().announces_last_receive;
        let now = Instant::now();
        for number in self.failing.clone() {
            let Some(qp) = self.queue_pairs.get_mut(&number) else {
                self.failing.remove(&number);
                continue;
            };
            if qp.takes_last_receive.is_some_and(|at| at > now) {
                continue;
            }
            self.failing.remove(&number);
            qp.takes_last_receive = None;
            let (queue, held) = (qp.recv_cq, qp.held.take());
            let (context, handle, is_shared) = (qp.context, qp.handle, qp.srq.is_some());
            if let Some(receive) = held {
                self.flush_receive(queue, number, receive.wr_id);
            }
            if is_shared && announces {
                let last = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;
                self.raise(context, last, handle);
            }
        }
    }

    /// Forgets what is posted to a queue pair that goes, or is reset.
    pub(crate) fn forget_requests(&mut self, number: u32) {
        let Some(qp) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        qp.sends.clear();
        qp.receives.posted.clear();
        (qp.occupied, qp.silent) = (0, 0);
        (qp.held, qp.takes_last_receive) = (None, None);
        let queues = [qp.send_cq, qp.recv_cq];
        self.failing.remove(&number);
        for queue in queues {
            if let Some(cq) = self.completion_queues.get_mut(&queue) {
                cq.entries.retain(|entry| entry.wc.qp_num != number);
            }
        }
    }
}
