//! Completion channels and completion queues.

use std::ffi::{c_int, c_uint, c_void};

use ferrofabric_verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use super::device::on_ethernet;
use super::{act, busy, end, make, missing, no, release, zeroed};
use crate::completion::{Armed, CompletionQueue, FakeChannel, close, descriptor, take};
use crate::control::VECTORS;
use crate::model::{model, place};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    make("ibv_create_comp_channel", |model| {
        on_ethernet(model, context)?;
        let fd = descriptor();
        if fd < 0 {
            return Err(libc::EMFILE);
        }
        let handle = place(ibv_comp_channel {
            context,
            fd,
            refcnt: 0,
        });
        let channel = FakeChannel {
            context: context as usize,
            fd,
            events: Default::default(),
        };
        model.channels.insert(handle as usize, channel);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let freed = act("ibv_destroy_comp_channel", |model| {
        let at = channel as usize;
        if model
            .completion_queues
            .values()
            .any(|cq| cq.channel == Some(at))
        {
            return busy(model, "a completion channel");
        }
        match model.channels.remove(&at) {
            Some(channel) => {
                close(channel.fd);
                Ok(())
            }
            None => missing(model, "a completion channel"),
        }
    });
    if freed == 0 {
        release(channel);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    make("ibv_create_cq", |model| {
        on_ethernet(model, context)?;
        let most = model.profile().completions as c_int;
        if !(1..=most).contains(&cqe) || !(0..VECTORS as c_int).contains(&comp_vector) {
            return Err(libc::EINVAL);
        }
        let mut cq: ibv_cq = zeroed();
        (cq.context, cq.channel, cq.cq_context, cq.cqe) = (context, channel, cq_context, cqe);
        let handle = place(cq);
        let queue = CompletionQueue {
            context: context as usize,
            channel: (!channel.is_null()).then_some(channel as usize),
            vector: comp_vector as u32,
            depth: cqe as usize,
            entries: Default::default(),
            armed: Armed::No,
            unacknowledged: 0,
            overrun: false,
        };
        model.completion_queues.insert(handle as usize, queue);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(queue: *mut ibv_cq, cqe: c_int) -> c_int {
    act("ibv_resize_cq", |model| {
        let most = model.profile().completions as c_int;
        let Some(cq) = model.completion_queues.get_mut(&(queue as usize)) else {
            return missing(model, "a completion queue");
        };
        if !(1..=most).contains(&cqe) || cq.entries.len() > cqe as usize {
            return Err(libc::EINVAL);
        }
        cq.depth = cqe as usize;
        // SAFETY: the handle is live.
        unsafe { (*queue).cqe = cqe };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    let freed = end("ibv_destroy_cq", queue as usize, |model| {
        let at = queue as usize;
        if model
            .queue_pairs
            .values()
            .any(|qp| qp.send_cq == at || qp.recv_cq == at)
        {
            return busy(model, "a completion queue");
        }
        let Some(cq) = model.completion_queues.remove(&at) else {
            return missing(model, "a completion queue");
        };
        if cq.unacknowledged != 0 {
            // The real call would wait for ever.
            model
                .misused("a completion queue is destroyed with events not acknowledged".to_owned());
        }
        if let Some(channel) = cq.channel.and_then(|at| model.channels.get_mut(&at)) {
            channel.events.retain(|&event| event != at);
        }
        model.forget_events(cq.context, at);
        Ok(())
    });
    if freed == 0 {
        release(queue);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let Some(fd) = model().channels.get(&(channel as usize)).map(|c| c.fd) else {
        no::<()>(libc::EINVAL);
        return -1;
    };
    while take(fd) {
        let mut model = model();
        let Some(channel) = model.channels.get_mut(&(channel as usize)) else {
            break;
        };
        let Some(at) = channel.events.pop_front() else {
            continue;
        };
        if let Some(queue) = model.completion_queues.get_mut(&at) {
            queue.unacknowledged += 1;
            let handle = at as *mut ibv_cq;
            // SAFETY: the handle is live; the caller gave places to write to.
            unsafe { (*cq, *cq_context) = (handle, (*handle).cq_context) };
            return 0;
        }
    }
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    let mut model = model();
    match model.completion_queues.get_mut(&(cq as usize)) {
        Some(queue) if queue.unacknowledged >= nevents => queue.unacknowledged -= nevents,
        _ => model.misused("events are acknowledged that were not taken".to_owned()),
    }
}
