//! The calls behind libibverbs' inline functions, through `ibv_context.ops`.

use std::ffi::c_int;

use ferrofabric_verbs_sys::{
    ibv_context_ops, ibv_cq, ibv_qp, ibv_qp_state as State, ibv_qp_type, ibv_recv_wr,
    ibv_send_flags as Flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc, ibv_wr_opcode as Op,
};

use crate::completion::Armed;
use crate::gate;
use crate::memory::read;
use crate::model::{DeviceModel, model};
use crate::queue_pair::{FakeReceive, FakeRequest, ReceiveQueue, RequestPayload, RequestTarget};

/// The table.
pub(crate) fn ops() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_srq_recv: Some(post_srq_recv),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..Default::default()
    }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    gate::pass();
    let mut model = model();
    if let Err(errno) = model.enter("ibv_poll_cq") {
        return -errno.abs();
    }
    model.pass_time();
    model.flush_receives();
    model.flood(queue as usize, usize::try_from(num_entries).unwrap_or(0));
    let Some(cq) = model.completion_queues.get_mut(&(queue as usize)) else {
        model.misused("a completion queue that is not there is polled".to_owned());
        return -libc::EINVAL;
    };
    if cq.overrun {
        return -libc::EIO;
    }
    let count = cq
        .entries
        .len()
        .min(usize::try_from(num_entries).unwrap_or(0));
    let taken: Vec<_> = cq.entries.drain(..count).collect();
    for (at, entry) in taken.into_iter().enumerate() {
        // SAFETY: the caller has room for `num_entries`.
        unsafe { wc.add(at).write(entry.wc) };
        if let Some((number, slots)) = entry.reclaims {
            if let Some(qp) = model.queue_pairs.get_mut(&number) {
                qp.occupied = qp.occupied.saturating_sub(slots);
            }
        }
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let mut model = model();
    if let Err(errno) = model.enter("ibv_req_notify_cq") {
        return errno;
    }
    let Some(cq) = model.completion_queues.get_mut(&(queue as usize)) else {
        model.misused("a completion queue that is not there is armed".to_owned());
        return libc::EINVAL;
    };
    cq.armed = match solicited_only {
        0 => Armed::Any,
        _ if cq.armed == Armed::Any => Armed::Any,
        _ => Armed::Solicited,
    };
    0
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut model = model();
    let mut at = wr;
    let posted = (|| {
        model.enter("ibv_post_send")?;
        let number = model.number(qp as usize)?;
        while !at.is_null() {
            // SAFETY: the caller's list holds complete requests.
            let wr = unsafe { &*at };
            let request = model.accept(number, wr)?;
            if let Some(qp) = model.queue_pairs.get_mut(&number) {
                qp.occupied += 1;
                qp.sends.push_back(request);
            }
            at = wr.next;
        }
        Ok(())
    })();
    model.run_all();
    answer(posted, bad_wr, at)
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut model = model();
    let mut at = wr;
    let posted = (|| {
        model.enter("ibv_post_recv")?;
        let reads_entry = model.profile().empty_write_reads_entry;
        let number = model.number(qp as usize)?;
        let Some(qp) = model.queue_pairs.get_mut(&number) else {
            return Err(libc::EINVAL);
        };
        if qp.srq.is_some() || qp.state == State::IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        let flushes = qp.state == State::IBV_QPS_ERR;
        // SAFETY: the caller's promise.
        let posted = unsafe { fill(&mut qp.receives, &mut at, reads_entry) };
        if flushes {
            model.fail(number);
        }
        posted
    })();
    model.run_all();
    answer(posted, bad_wr, at)
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut model = model();
    let mut at = wr;
    let posted = (|| {
        model.enter("ibv_post_srq_recv")?;
        let reads_entry = model.profile().empty_write_reads_entry;
        let Some(queue) = model.shared_receive_queues.get_mut(&(srq as usize)) else {
            model.misused("a receive is posted to a queue that is not there".to_owned());
            return Err(libc::EINVAL);
        };
        // SAFETY: the caller's promise.
        unsafe { fill(queue, &mut at, reads_entry) }
    })();
    model.run_all();
    answer(posted, bad_wr, at)
}

fn answer<W>(posted: Result<(), i32>, bad_wr: *mut *mut W, at: *mut W) -> c_int {
    match posted {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the caller gave a place to write to.
            unsafe { *bad_wr = at };
            errno
        }
    }
}

/// Posts receives until one does not fit, at which `at` then stands. With `reads_entry`, a receive
/// without entries has the first of its list, as `irdma_uk_post_receive` makes it.
///
/// # Safety
///
/// `at` heads a list of complete requests.
unsafe fn fill(
    queue: &mut ReceiveQueue,
    at: &mut *mut ibv_recv_wr,
    reads_entry: bool,
) -> Result<(), i32> {
    while !at.is_null() {
        // SAFETY: the caller's promise.
        let wr = unsafe { &**at };
        let count = match reads_entry && wr.num_sge == 0 && !wr.sg_list.is_null() {
            true => 1,
            false => wr.num_sge,
        };
        // SAFETY: the caller's promise: complete requests.
        let entries = unsafe { entries(wr.sg_list, count) };
        if entries.len() > queue.max_entries {
            return Err(libc::EINVAL);
        }
        if queue.posted.len() >= queue.depth {
            return Err(libc::ENOMEM);
        }
        queue.posted.push_back(FakeReceive {
            wr_id: wr.wr_id,
            entries: entries.to_vec(),
        });
        *at = wr.next;
    }
    Ok(())
}

/// # Safety
///
/// `list` holds `count` entries, unless that is 0.
unsafe fn entries<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(list, count) },
        _ => &[],
    }
}

/// Whether `irdma_uk_rdma_write` and `irdma_uk_rdma_read` (rdma-core, `providers/irdma/uk.c`) would
/// fill the first fragment from a list in which no entry is announced: they look at the pointer
/// only. Sends look at the number, and immediate data is where the first fragment would be.
fn fills_from_first_entry(wr: &ibv_send_wr) -> bool {
    let is_one_sided = matches!(wr.opcode, Op::IBV_WR_RDMA_WRITE | Op::IBV_WR_RDMA_READ);
    let is_inline = wr.send_flags & Flags::IBV_SEND_INLINE.0 != 0;
    is_one_sided && !is_inline && wr.num_sge == 0 && !wr.sg_list.is_null()
}

impl DeviceModel {
    fn number(&mut self, handle: usize) -> Result<u32, i32> {
        let number = self.numbers.get(&handle).copied();
        if number.is_none() {
            self.misused("a request is posted to a queue pair that is not there".to_owned());
        }
        number.ok_or(libc::EINVAL)
    }

    /// Takes a request over, with a copy of what it sends inline; an errno when it does not fit.
    fn accept(&mut self, number: u32, wr: &ibv_send_wr) -> Result<FakeRequest, i32> {
        let profile = self.profile();
        let refuses_in_error = profile.refuses_posts_in_error;
        let Some(qp) = self.queue_pairs.get(&number) else {
            return Err(libc::EINVAL);
        };
        if !matches!(
            qp.state,
            State::IBV_QPS_RTS | State::IBV_QPS_SQD | State::IBV_QPS_SQE | State::IBV_QPS_ERR
        ) {
            return Err(libc::EINVAL);
        }
        if qp.state == State::IBV_QPS_ERR && refuses_in_error {
            return Err(libc::EINVAL);
        }
        if qp.occupied >= qp.caps.max_send_wr {
            return Err(libc::ENOMEM);
        }
        let count = match profile.empty_write_reads_entry && fills_from_first_entry(wr) {
            true => 1,
            false => wr.num_sge,
        };
        // SAFETY: the caller of the post promised complete requests. Where a request has no entries
        // and its list is not null, the driver reads what is there.
        let list = unsafe { entries(wr.sg_list, count) };
        let inline = wr.send_flags & Flags::IBV_SEND_INLINE.0 != 0;
        let too_long = inline && crate::memory::room(list) > qp.caps.max_inline_data as usize;
        if list.len() > qp.caps.max_send_sge as usize || too_long {
            return Err(libc::EINVAL);
        }
        let payload = match inline && !profile.inline.flag_is_ignored {
            true => {
                let mut bytes = Vec::new();
                for entry in list {
                    read(entry.addr, entry.length as usize, &mut bytes);
                }
                RequestPayload::Inline(bytes)
            }
            false => RequestPayload::Entries(list.to_vec()),
        };
        let datagrams = qp.kind == ibv_qp_type::IBV_QPT_UD;
        let route = match datagrams {
            true => {
                // SAFETY: of a request for datagrams, this member is set.
                let handle = unsafe { wr.wr.ud.ah } as usize;
                let Some(handle) = self.handles.get(&handle) else {
                    self.misused("a datagram names an address handle that is not there".to_owned());
                    return Err(libc::EINVAL);
                };
                Some(handle.route)
            }
            false => None,
        };
        // SAFETY: the operation says which member of each union is set; all are plain numbers.
        let (immediate, remote) = unsafe {
            let remote = match route {
                Some(route) => RequestTarget::Datagram {
                    qp: wr.wr.ud.remote_qpn,
                    qkey: wr.wr.ud.remote_qkey,
                    route,
                },
                None => match wr.opcode {
                    Op::IBV_WR_RDMA_READ
                    | Op::IBV_WR_RDMA_WRITE
                    | Op::IBV_WR_RDMA_WRITE_WITH_IMM => RequestTarget::Memory {
                        addr: wr.wr.rdma.remote_addr,
                        key: wr.wr.rdma.rkey,
                        compare_add: 0,
                        swap: 0,
                    },
                    Op::IBV_WR_ATOMIC_CMP_AND_SWP | Op::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                        RequestTarget::Memory {
                            addr: wr.wr.atomic.remote_addr,
                            key: wr.wr.atomic.rkey,
                            compare_add: wr.wr.atomic.compare_add,
                            swap: wr.wr.atomic.swap,
                        }
                    }
                    Op::IBV_WR_SEND | Op::IBV_WR_SEND_WITH_IMM | Op::IBV_WR_SEND_WITH_INV => {
                        RequestTarget::Peer
                    }
                    // Windows: this device has none.
                    _ => return Err(libc::EOPNOTSUPP),
                },
            };
            (wr.__bindgen_anon_1.imm_data, remote)
        };
        Ok(FakeRequest {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            signaled: wr.send_flags & Flags::IBV_SEND_SIGNALED.0 != 0,
            solicited: wr.send_flags & Flags::IBV_SEND_SOLICITED.0 != 0,
            payload,
            immediate,
            remote,
        })
    }
}
