//! Shared receive queues and queue pairs.

use std::ffi::c_int;

use ferrofabric_verbs_sys::{
    ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_srq, ibv_srq_attr,
    ibv_srq_attr_mask as SrqMask, ibv_srq_init_attr,
};

use super::device::source;
use super::memory::context_of;
use super::{
    KEEP_ERRNO, act, act_slowly, busy, end, make, make_slowly, missing, release,
    spend_control_call, zeroed,
};
use crate::model::place;
use crate::queue_pair::{QueuePair, ReceiveQueue};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    make("ibv_create_srq", |model| {
        let context = context_of(model, pd)?;
        // SAFETY: the caller's attributes are complete.
        let attributes = unsafe { &mut *attributes };
        let (depth, entries) = (attributes.attr.max_wr, attributes.attr.max_sge);
        let profile = model.profile();
        if !profile.shared_receives {
            return Err(libc::EOPNOTSUPP);
        }
        if depth == 0 || depth > profile.requests || entries > profile.shared_entries {
            return Err(libc::EINVAL);
        }
        let mut srq: ibv_srq = zeroed();
        (srq.context, srq.pd, srq.srq_context) = (context, pd, attributes.srq_context);
        let handle = place(srq);
        let queue = ReceiveQueue {
            context: context as usize,
            pd: pd as usize,
            depth: depth as usize,
            max_entries: entries as usize,
            ..Default::default()
        };
        model.shared_receive_queues.insert(handle as usize, queue);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    act("ibv_modify_srq", |model| {
        let Some(queue) = model.shared_receive_queues.get_mut(&(srq as usize)) else {
            return missing(model, "a shared receive queue");
        };
        // SAFETY: the caller's attributes are complete for the mask.
        let attributes = unsafe { &*attributes };
        if mask as u32 & SrqMask::IBV_SRQ_LIMIT.0 != 0 {
            if attributes.srq_limit as usize > queue.depth {
                return Err(libc::EINVAL);
            }
            queue.limit = attributes.srq_limit as usize;
        }
        if mask as u32 & SrqMask::IBV_SRQ_MAX_WR.0 != 0 {
            if queue.posted.len() > attributes.max_wr as usize {
                return Err(libc::EINVAL);
            }
            queue.depth = attributes.max_wr as usize;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int {
    act("ibv_query_srq", |model| {
        let Some(queue) = model.shared_receive_queues.get(&(srq as usize)) else {
            return missing(model, "a shared receive queue");
        };
        let raw = ibv_srq_attr {
            max_wr: queue.depth as u32,
            max_sge: queue.max_entries as u32,
            srq_limit: queue.limit as u32,
        };
        // SAFETY: the caller gave a place to write to.
        unsafe { attributes.write(raw) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let freed = end("ibv_destroy_srq", srq as usize, |model| {
        let at = srq as usize;
        if model.queue_pairs.values().any(|qp| qp.srq == Some(at)) {
            return busy(model, "a shared receive queue");
        }
        let Some(queue) = model.shared_receive_queues.remove(&at) else {
            return missing(model, "a shared receive queue");
        };
        model.forget_events(queue.context, at);
        Ok(())
    });
    if freed == 0 {
        release(srq);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    make_slowly("ibv_create_qp", |model| {
        let context = context_of(model, pd)?;
        // SAFETY: the caller's attributes are complete.
        let attributes = unsafe { &mut *attributes };
        let mut caps = attributes.cap;
        let profile = model.profile();
        let queues = [attributes.send_cq as usize, attributes.recv_cq as usize];
        let fits = |requests: u32, entries: u32| {
            requests <= profile.requests && entries <= profile.entries
        };
        let has_kind = match attributes.qp_type {
            ibv_qp_type::IBV_QPT_RC => profile.connections,
            ibv_qp_type::IBV_QPT_UD => profile.datagrams,
            _ => false,
        };
        if !has_kind {
            return Err(libc::EOPNOTSUPP);
        }
        if !fits(caps.max_send_wr, caps.max_send_sge)
            || !fits(caps.max_recv_wr, caps.max_recv_sge)
            || queues
                .iter()
                .any(|at| !model.completion_queues.contains_key(at))
        {
            return Err(libc::EINVAL);
        }
        if model.queue_pairs.len() >= profile.queue_pairs as usize {
            return Err(libc::ENOMEM);
        }
        let granted = profile.grant_inline(caps.max_inline_data, caps.max_send_sge);
        caps.max_inline_data = match granted {
            Ok(granted) => granted,
            Err(Some(errno)) => return Err(errno),
            Err(None) => return Err(KEEP_ERRNO),
        };
        attributes.cap = caps;
        model.next_number += 1;
        // Numbers have 24 bits, and 0 and 1 are the subnet's own.
        let number = 0x11 + model.next_number % 0xff_0000;
        let mut qp: ibv_qp = zeroed();
        (qp.context, qp.pd, qp.qp_num) = (context, pd, number);
        (qp.send_cq, qp.recv_cq, qp.srq) = (attributes.send_cq, attributes.recv_cq, attributes.srq);
        (qp.qp_context, qp.qp_type) = (attributes.qp_context, attributes.qp_type);
        let handle = place(qp);
        let queue_pair = QueuePair {
            handle: handle as usize,
            number,
            kind: attributes.qp_type,
            context: context as usize,
            pd: pd as usize,
            send_cq: queues[0],
            recv_cq: queues[1],
            srq: (!attributes.srq.is_null()).then_some(attributes.srq as usize),
            caps,
            signal_all: attributes.sq_sig_all != 0,
            state: ibv_qp_state::IBV_QPS_RESET,
            remote: 0,
            path: Default::default(),
            mtu: 0,
            access: 0,
            qkey: 0,
            receiver_not_ready_retries: 0,
            sends: Default::default(),
            receives: ReceiveQueue {
                context: context as usize,
                pd: pd as usize,
                depth: caps.max_recv_wr as usize,
                max_entries: caps.max_recv_sge as usize,
                ..Default::default()
            },
            occupied: 0,
            silent: 0,
            held: None,
            takes_last_receive: None,
        };
        model.queue_pairs.insert(number, queue_pair);
        model.numbers.insert(handle as usize, number);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    act_slowly("ibv_modify_qp", |model| {
        let profile = model.profile();
        let Some(&number) = model.numbers.get(&(qp as usize)) else {
            return missing(model, "a queue pair");
        };
        let Some(context) = model.queue_pairs.get(&number).map(|qp| qp.context) else {
            return missing(model, "a queue pair");
        };
        // SAFETY: the caller's attributes are complete for the mask.
        let attributes = unsafe { &*attributes };
        let has_path = mask as u32 & Mask::IBV_QP_AV.0 != 0;
        if has_path {
            source(model, context as *mut ibv_context, &attributes.ah_attr)?;
        }
        let Some(queue_pair) = model.queue_pairs.get_mut(&number) else {
            return missing(model, "a queue pair");
        };
        let before = queue_pair.state;
        if has_path && profile.grh_required && attributes.ah_attr.is_global == 0 {
            return Err(libc::EINVAL);
        }
        if mask as u32 & Mask::IBV_QP_PKEY_INDEX.0 != 0 {
            let slot = usize::from(attributes.pkey_index);
            // No packet would leave, or arrive.
            if profile.partition_keys.get(slot).is_none_or(|key| *key == 0) {
                return Err(libc::EINVAL);
            }
        }
        queue_pair.modify(attributes, Mask(mask as u32))?;
        let state = queue_pair.state;
        match state {
            ibv_qp_state::IBV_QPS_ERR => {
                queue_pair.state = before;
                model.fail(number);
            }
            ibv_qp_state::IBV_QPS_RESET => model.forget_requests(number),
            _ => {}
        }
        // SAFETY: the handle is live.
        unsafe { (*qp).state = state };
        // Requests that waited for this queue pair to take a message need not wait any more.
        model.run_all();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    created: *mut ibv_qp_init_attr,
) -> c_int {
    act("ibv_query_qp", |model| {
        let number = model.numbers.get(&(qp as usize));
        let Some(queue_pair) = number.and_then(|number| model.queue_pairs.get(number)) else {
            return missing(model, "a queue pair");
        };
        let cap: ibv_qp_cap = queue_pair.caps;
        let raw = ibv_qp_attr {
            qp_state: queue_pair.state,
            cur_qp_state: queue_pair.state,
            dest_qp_num: queue_pair.remote,
            qp_access_flags: queue_pair.access,
            qkey: queue_pair.qkey,
            rnr_retry: queue_pair.receiver_not_ready_retries,
            cap,
            ..Default::default()
        };
        let init = ibv_qp_init_attr {
            cap,
            qp_type: queue_pair.kind,
            ..Default::default()
        };
        // SAFETY: the caller gave places to write to.
        unsafe {
            attributes.write(raw);
            created.write(init);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    spend_control_call();
    let freed = end("ibv_destroy_qp", qp as usize, |model| {
        let Some(number) = model.numbers.get(&(qp as usize)).copied() else {
            return missing(model, "a queue pair");
        };
        model.run_held(number);
        model.forget_requests(number);
        model.numbers.remove(&(qp as usize));
        if let Some(queue_pair) = model.queue_pairs.remove(&number) {
            model.forget_events(queue_pair.context, qp as usize);
        }
        model.run_all();
        Ok(())
    });
    if freed == 0 {
        release(qp);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}
