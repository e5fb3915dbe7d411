//! What libibverbs exports. Calls that take a handle go by its address alone, so that one which is gone is an error.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ptr;

use ferrofabric_verbs_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_ah, ibv_ah_attr, ibv_async_event,
    ibv_async_event__bindgen_ty_1 as Element, ibv_atomic_cap, ibv_comp_channel, ibv_context,
    ibv_cq, ibv_device, ibv_device_attr, ibv_event_type, ibv_fork_status, ibv_gid, ibv_gid_entry,
    ibv_gid_type, ibv_grh, ibv_mr, ibv_mtu, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_srq, ibv_srq_attr, ibv_srq_attr_mask as SrqMask, ibv_srq_init_attr, ibv_wc, ibv_wc_status,
};

use crate::completion::{Armed, Channel, CompletionQueue, Context, close, descriptor, take};
use crate::memory::Region;
use crate::model::{Model, free, model, place};
use crate::queue_pair::{QueuePair, ReceiveQueue};
use crate::{data_path, text};

/// The devices: names, and whether they are on Ethernet.
const DEVICES: [(&[u8], bool); 2] = [(b"fake_roce0", true), (b"fake_ib0", false)];

const MAX_REQUESTS: c_int = 1 << 15;
const MAX_COMPLETIONS: c_int = 1 << 17;
const MAX_INLINE_BYTES: u32 = 512;
const MAX_ENTRIES: c_int = 16;
const PKEY: u16 = 0xffff;

/// Sets errno; null, for calls that return a handle.
fn no<T>(errno: i32) -> *mut T {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno.abs() };
    ptr::null_mut()
}

/// The body of a call that returns a handle: counts it, and answers failure with null and errno.
fn make<T>(call: &'static str, body: impl FnOnce(&mut Model) -> Result<*mut T, i32>) -> *mut T {
    let mut model = model();
    let made = model.enter(call).and_then(|()| body(&mut model));
    drop(model);
    made.unwrap_or_else(no)
}

/// The body of a call that returns 0 or an errno.
fn act(call: &'static str, body: impl FnOnce(&mut Model) -> Result<(), i32>) -> c_int {
    let mut model = model();
    let done = model.enter(call).and_then(|()| body(&mut model));
    done.err().unwrap_or(0)
}

/// A structure of C, all zeroes.
fn zeroed<T>() -> T {
    // SAFETY: only for structures of plain numbers, pointers, optional functions and locks, for which zeroes are fine.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Frees a handle that came from `place` here.
fn release<T>(handle: *mut T) {
    // SAFETY: each kind of object has one kind of handle, which leaves its table just before.
    unsafe { free(handle) };
}

fn busy(model: &mut Model, what: &str) -> Result<(), i32> {
    model.misused(format!("{what} is destroyed under what is built on it"));
    Err(libc::EBUSY)
}

fn missing<T>(model: &mut Model, what: &str) -> Result<T, i32> {
    model.misused(format!("{what} is used that is not there"));
    Err(libc::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    make("ibv_get_device_list", |_| {
        let mut list: Vec<*mut ibv_device> = DEVICES
            .iter()
            .map(|(name, _)| {
                let mut device: ibv_device = zeroed();
                for (to, from) in device.name.iter_mut().zip(*name) {
                    *to = *from as c_char;
                }
                place(device)
            })
            .collect();
        if !num_devices.is_null() {
            // SAFETY: the caller gave a place to write to.
            unsafe { *num_devices = list.len() as c_int };
        }
        list.push(ptr::null_mut());
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: a list that was handed out, as long as it was then. An opened device has a copy of its own.
    let list = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, DEVICES.len() + 1)) };
    for device in list.into_iter().filter(|device| !device.is_null()) {
        release(device);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the device is in a list that is not freed.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    make("ibv_open_device", |model| {
        // SAFETY: as above.
        let copy = unsafe { *device };
        let is = |name: &[u8]| {
            let own = copy.name.iter().map(|&c| c as u8);
            own.take_while(|&c| c != 0).eq(name.iter().copied())
        };
        let at = DEVICES.iter().position(|(name, _)| is(name));
        let at = at.ok_or(libc::ENODEV)?;
        let fd = descriptor();
        if fd < 0 {
            return Err(libc::EMFILE);
        }
        let mut context: ibv_context = zeroed();
        context.device = place(copy);
        context.ops = data_path::ops();
        context.async_fd = fd;
        context.cmd_fd = -1;
        context.num_comp_vectors = 1;
        let handle = place(context);
        let context = Context {
            device: at,
            fd,
            events: Default::default(),
        };
        model.contexts.insert(handle as usize, context);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let closed = act("ibv_close_device", |model| {
        let at = context as usize;
        let in_use = model.domains.values().any(|&of| of == at)
            || model.channels.values().any(|channel| channel.context == at)
            || model.completion_queues.values().any(|cq| cq.context == at);
        if in_use {
            return busy(model, "a context");
        }
        match model.contexts.remove(&at) {
            Some(context) => {
                close(context.fd);
                Ok(())
            }
            None => missing(model, "a context"),
        }
    });
    if closed == 0 {
        // SAFETY: opened here, and just taken out of the table.
        release(unsafe { (*context).device });
        release(context);
    }
    closed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let Some(fd) = model().contexts.get(&(context as usize)).map(|c| c.fd) else {
        no::<()>(libc::EINVAL);
        return -1;
    };
    // An event whose object went leaves its post behind.
    while take(fd) {
        let mut model = model();
        let Some(context) = model.contexts.get_mut(&(context as usize)) else {
            break;
        };
        if let Some(taken) = context.events.pop_front() {
            let mut raw: ibv_async_event = zeroed();
            raw.event_type = taken.kind;
            raw.element = match taken.kind {
                ibv_event_type::IBV_EVENT_PORT_ACTIVE | ibv_event_type::IBV_EVENT_PORT_ERR => {
                    Element {
                        port_num: taken.subject as c_int,
                    }
                }
                _ => Element {
                    cq: taken.subject as *mut ibv_cq,
                },
            };
            // SAFETY: the caller gave a place to write to.
            unsafe { event.write(raw) };
            return 0;
        }
    }
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    _context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    act("ibv_query_device", |_| {
        let raw = ibv_device_attr {
            max_mr_size: u64::MAX,
            page_size_cap: 4096,
            vendor_id: 0x0fa4e,
            vendor_part_id: 1,
            hw_ver: 1,
            max_qp: 1 << 16,
            max_qp_wr: MAX_REQUESTS,
            max_sge: MAX_ENTRIES,
            max_sge_rd: MAX_ENTRIES,
            max_cq: 1 << 16,
            max_cqe: MAX_COMPLETIONS,
            max_mr: 1 << 20,
            max_pd: 1 << 16,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_res_rd_atom: 1 << 20,
            atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA,
            max_ah: 1 << 16,
            max_srq: 1 << 16,
            max_srq_wr: MAX_REQUESTS,
            max_srq_sge: MAX_ENTRIES,
            max_pkeys: 1,
            phys_port_cnt: 1,
            ..Default::default()
        };
        // SAFETY: the caller gave a place to write to.
        unsafe { attributes.write(raw) };
        Ok(())
    })
}

/// The attributes of a port, as far as this oldest form of the call goes: up to `port_cap_flags2`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut c_void,
) -> c_int {
    act("ibv_query_port", |model| {
        let ethernet = on_ethernet(model, context)?;
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let raw = ibv_port_attr {
            state: ibv_port_state::IBV_PORT_ACTIVE,
            max_mtu: ibv_mtu::IBV_MTU_4096,
            active_mtu: ibv_mtu::IBV_MTU_4096,
            gid_tbl_len: 1,
            max_msg_sz: 1 << 30,
            pkey_tbl_len: 1,
            lid: if ethernet { 0 } else { LID },
            sm_lid: if ethernet { 0 } else { 1 },
            active_width: 2,
            active_speed: if ethernet { 32 } else { 16 },
            phys_state: 5,
            link_layer: match ethernet {
                true => IBV_LINK_LAYER_ETHERNET as u8,
                false => IBV_LINK_LAYER_INFINIBAND as u8,
            },
            ..Default::default()
        };
        let len = offset_of!(ibv_port_attr, port_cap_flags2);
        // SAFETY: the caller has room for the old structure, which is this one's beginning.
        unsafe { ptr::copy_nonoverlapping((&raw const raw).cast::<u8>(), attributes.cast(), len) };
        Ok(())
    })
}

const LID: u16 = 7;

fn on_ethernet(model: &mut Model, context: *mut ibv_context) -> Result<bool, i32> {
    match model.contexts.get(&(context as usize)) {
        Some(context) => Ok(DEVICES[context.device].1),
        None => missing(model, "a context"),
    }
}

/// The one GID of a port: 192.0.2.1 (an address of documentation, RFC 5737), or one of the default InfiniBand subnet.
fn gid(ethernet: bool) -> ibv_gid {
    let raw = match ethernet {
        true => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1],
        false => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfa, 0x4e],
    };
    ibv_gid { raw }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    let queried = act("ibv_query_gid", |model| {
        let ethernet = on_ethernet(model, context)?;
        if (port, index) != (1, 0) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gave a place to write to.
        unsafe { into.write(gid(ethernet)) };
        Ok(())
    });
    if queried == 0 { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    _flags: u32,
    entry_size: usize,
) -> isize {
    let queried = act("_ibv_query_gid_table", |model| {
        let ethernet = on_ethernet(model, context)?;
        if entry_size != size_of::<ibv_gid_entry>() || max_entries == 0 {
            return Err(libc::EINVAL);
        }
        let kind = match ethernet {
            true => ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
            false => ibv_gid_type::IBV_GID_TYPE_IB,
        };
        let entry = ibv_gid_entry {
            gid: gid(ethernet),
            gid_index: 0,
            port_num: 1,
            gid_type: kind.0,
            ndev_ifindex: 0,
        };
        // SAFETY: there is room for an entry.
        unsafe { entries.write(entry) };
        Ok(())
    });
    match queried {
        0 => 1,
        errno => -(errno as isize),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let queried = act("ibv_query_pkey", |_| {
        if (port, index) != (1, 0) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller gave a place to write to.
        unsafe { pkey.write(PKEY.to_be()) };
        Ok(())
    });
    if queried == 0 { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    make("ibv_alloc_pd", |model| {
        on_ethernet(model, context)?;
        let pd = place(ibv_pd { context, handle: 0 });
        model.domains.insert(pd as usize, context as usize);
        Ok(pd)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let freed = act("ibv_dealloc_pd", |model| {
        let at = pd as usize;
        let in_use = model.regions.values().any(|region| region.pd == at)
            || model.handles.values().any(|&of| of == at)
            || model.shared_receive_queues.values().any(|srq| srq.pd == at)
            || model.queue_pairs.values().any(|qp| qp.pd == at);
        if in_use {
            return busy(model, "a protection domain");
        }
        match model.domains.remove(&at) {
            Some(_) => Ok(()),
            None => missing(model, "a protection domain"),
        }
    });
    if freed == 0 {
        release(pd);
    }
    freed
}

fn context_of(model: &mut Model, pd: *mut ibv_pd) -> Result<*mut ibv_context, i32> {
    match model.domains.get(&(pd as usize)) {
        Some(&context) => Ok(context as *mut ibv_context),
        None => missing(model, "a protection domain"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    make("ibv_reg_mr", |model| {
        let context = context_of(model, pd)?;
        if length == 0 || (addr as u64).checked_add(length as u64).is_none() {
            return Err(libc::EINVAL);
        }
        model.next_key += 1;
        // Not small, so that a number that is no key is none.
        let key = 0x4b00_0000 | model.next_key;
        let handle = place(ibv_mr {
            context,
            pd,
            addr,
            length,
            handle: 0,
            lkey: key,
            rkey: key,
        });
        let region = Region {
            handle: handle as usize,
            pd: pd as usize,
            addr: addr as u64,
            len: length as u64,
            access: access as u32,
        };
        model.regions.insert(key, region);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let freed = act("ibv_dereg_mr", |model| {
        let at = model
            .regions
            .iter()
            .find(|(_, region)| region.handle == mr as usize);
        match at.map(|(&key, _)| key) {
            Some(key) => {
                model.regions.remove(&key);
                Ok(())
            }
            None => missing(model, "a memory region"),
        }
    });
    if freed == 0 {
        release(mr);
    }
    freed
}

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
        let channel = Channel {
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
        if !(1..=MAX_COMPLETIONS).contains(&cqe) || comp_vector != 0 {
            return Err(libc::EINVAL);
        }
        let mut cq: ibv_cq = zeroed();
        (cq.context, cq.channel, cq.cq_context, cq.cqe) = (context, channel, cq_context, cqe);
        let handle = place(cq);
        let queue = CompletionQueue {
            context: context as usize,
            channel: (!channel.is_null()).then_some(channel as usize),
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
        let Some(cq) = model.completion_queues.get_mut(&(queue as usize)) else {
            return missing(model, "a completion queue");
        };
        if !(1..=MAX_COMPLETIONS).contains(&cqe) || cq.entries.len() > cqe as usize {
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
    let freed = act("ibv_destroy_cq", |model| {
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
        if depth == 0 || depth > MAX_REQUESTS as u32 || entries > MAX_ENTRIES as u32 {
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
    let freed = act("ibv_destroy_srq", |model| {
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
    make("ibv_create_qp", |model| {
        let context = context_of(model, pd)?;
        // SAFETY: the caller's attributes are complete.
        let attributes = unsafe { &mut *attributes };
        let caps = attributes.cap;
        let queues = [attributes.send_cq as usize, attributes.recv_cq as usize];
        let fits = |requests: u32, entries: u32| {
            requests <= MAX_REQUESTS as u32 && entries <= MAX_ENTRIES as u32
        };
        let kinds = [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UD];
        if !kinds.contains(&attributes.qp_type)
            || !fits(caps.max_send_wr, caps.max_send_sge)
            || !fits(caps.max_recv_wr, caps.max_recv_sge)
            || caps.max_inline_data > MAX_INLINE_BYTES
            || queues
                .iter()
                .any(|at| !model.completion_queues.contains_key(at))
        {
            return Err(libc::EINVAL);
        }
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
    act("ibv_modify_qp", |model| {
        let Some(&number) = model.numbers.get(&(qp as usize)) else {
            return missing(model, "a queue pair");
        };
        let Some(queue_pair) = model.queue_pairs.get_mut(&number) else {
            return missing(model, "a queue pair");
        };
        let before = queue_pair.state;
        // SAFETY: the caller's attributes are complete for the mask.
        queue_pair.modify(unsafe { &*attributes }, Mask(mask as u32))?;
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
        // Whoever waited for this one to take a message need not any more.
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
    let freed = act("ibv_destroy_qp", |model| {
        let Some(number) = model.numbers.get(&(qp as usize)).copied() else {
            return missing(model, "a queue pair");
        };
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
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    make("ibv_create_ah", |model| {
        let context = context_of(model, pd)?;
        let ethernet = on_ethernet(model, context)?;
        // SAFETY: the caller's attributes are complete.
        let attributes = unsafe { &*attributes };
        let reached = match (attributes.is_global, ethernet) {
            (0, true) => false,
            (0, false) => attributes.dlid == LID,
            // SAFETY: all bits are fine in both views of the union.
            _ => unsafe { attributes.grh.dgid.raw == gid(ethernet).raw },
        };
        if attributes.port_num != 1 {
            return Err(libc::EINVAL);
        }
        if !reached {
            return Err(libc::ETIMEDOUT);
        }
        let handle = place(ibv_ah {
            context,
            pd,
            handle: 0,
        });
        model.handles.insert(handle as usize, pd as usize);
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    let freed = act("ibv_destroy_ah", |model| {
        match model.handles.remove(&(ah as usize)) {
            Some(_) => Ok(()),
            None => missing(model, "an address handle"),
        }
    });
    if freed == 0 {
        release(ah);
    }
    freed
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attributes: *mut ibv_ah_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    text::of_status(status).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_event_type_str(_kind: ibv_event_type) -> *const c_char {
    c"event of the fake device".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_port_state_str(_state: ibv_port_state) -> *const c_char {
    c"state of the fake device".as_ptr()
}
