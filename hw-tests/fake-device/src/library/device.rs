//! Devices, their ports and events.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use ferrofabric_verbs_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_ah_attr, ibv_async_event,
    ibv_async_event__bindgen_ty_1 as Element, ibv_atomic_cap, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_device_attr_ex, ibv_event_type, ibv_fork_status, ibv_gid, ibv_gid_entry,
    ibv_gid_type, ibv_mtu, ibv_odp_general_caps, ibv_odp_transport_cap_bits, ibv_port_attr,
    ibv_port_state, ibv_query_device_ex_input, ibv_wc_status, verbs_context, verbs_context_of,
};

use super::{act, busy, make, missing, no, release, zeroed};
use crate::completion::{FakeContext, close, descriptor, take};
use crate::control::{ROUTER_LID, VECTORS};
use crate::data_path;
use crate::fork::wait_for_operations;
use crate::model::{DeviceModel, model, place};
use crate::profile::ProfileGid;
use crate::text;

/// The devices: names, and whether they are on Ethernet.
const DEVICES: [(&[u8], bool); 2] = [(b"fake_roce0", true), (b"fake_ib0", false)];

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    wait_for_operations();
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
    // SAFETY: a list that was handed out, as long as it was then. An opened device has a copy of
    // its own.
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
        let mut extended: verbs_context = zeroed();
        extended.sz = size_of::<verbs_context>();
        extended.query_device_ex = Some(query_device_ex);
        let context = &mut extended.context;
        // The mark of a context within an extended one.
        context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        context.device = place(copy);
        context.ops = data_path::ops();
        context.async_fd = fd;
        context.cmd_fd = -1;
        context.num_comp_vectors = VECTORS as c_int;
        let extended = place(extended);
        // SAFETY: just made.
        let handle = unsafe { &raw mut (*extended).context };
        let context = FakeContext {
            device: at,
            subnet: model.subnet,
            fd,
            events: Default::default(),
            unacknowledged: Vec::new(),
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
                if !context.unacknowledged.is_empty() {
                    model.misused("a device is closed with events not acknowledged".to_owned());
                }
                Ok(())
            }
            None => missing(model, "a context"),
        }
    });
    if closed == 0 {
        // SAFETY: opened here, within an extended context, and just taken out of the table.
        let extended = unsafe {
            release((*context).device);
            verbs_context_of(context)
        };
        release(extended);
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
            raw.element = match is_of_port(taken.kind) {
                true => Element {
                    port_num: taken.subject as c_int,
                },
                false => Element {
                    cq: taken.subject as *mut ibv_cq,
                },
            };
            context.unacknowledged.push(taken.subject);
            // SAFETY: the caller gave a place to write to.
            unsafe { event.write(raw) };
            return 0;
        }
    }
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that was taken; the kind says which member is set, and all are numbers or
    // addresses.
    let subject = unsafe {
        match is_of_port((*event).event_type) {
            true => (*event).element.port_num as usize,
            false => (*event).element.cq as usize,
        }
    };
    let mut model = model();
    let mut contexts = model.contexts.values_mut();
    let acknowledged = contexts.find_map(|context| {
        let at = (context.unacknowledged.iter()).position(|&taken| taken == subject)?;
        Some(context.unacknowledged.swap_remove(at))
    });
    if acknowledged.is_none() {
        model.misused("an event is acknowledged that was not taken".to_owned());
    }
}

/// Whether events of a kind are about a port, or the whole device, and not about an object.
fn is_of_port(kind: ibv_event_type) -> bool {
    matches!(
        kind,
        ibv_event_type::IBV_EVENT_PORT_ACTIVE
            | ibv_event_type::IBV_EVENT_PORT_ERR
            | ibv_event_type::IBV_EVENT_LID_CHANGE
            | ibv_event_type::IBV_EVENT_PKEY_CHANGE
            | ibv_event_type::IBV_EVENT_SM_CHANGE
            | ibv_event_type::IBV_EVENT_CLIENT_REREGISTER
            | ibv_event_type::IBV_EVENT_GID_CHANGE
            | ibv_event_type::IBV_EVENT_DEVICE_FATAL
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    _context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    act("ibv_query_device", |model| {
        // SAFETY: the caller gave a place to write to.
        unsafe { attributes.write(basic_attributes(model)) };
        Ok(())
    })
}

/// The slot of an extended context. The caller has room for all of this version's attributes. It
/// counts as `ibv_query_device` and fails with it, for a program calls the one that it finds.
unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    attributes: *mut ibv_device_attr_ex,
    _len: usize,
) -> c_int {
    act("ibv_query_device", |model| {
        let mut raw = ibv_device_attr_ex {
            orig_attr: basic_attributes(model),
            ..Default::default()
        };
        if model.profile().on_demand_paging {
            let caps = &mut raw.odp_caps;
            caps.general_caps = ibv_odp_general_caps::IBV_ODP_SUPPORT.0.into();
            caps.per_transport_caps.rc_odp_caps = (ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ
                | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE)
                .0;
        }
        // SAFETY: as the caller says.
        unsafe { attributes.write(raw) };
        Ok(())
    })
}

fn basic_attributes(model: &mut DeviceModel) -> ibv_device_attr {
    let profile = model.profile();
    ibv_device_attr {
        max_mr_size: u64::MAX,
        page_size_cap: 4096,
        vendor_id: profile.vendor_id,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: profile.queue_pairs as c_int,
        max_qp_wr: profile.requests as c_int,
        max_sge: profile.entries as c_int,
        max_sge_rd: profile.read_entries as c_int,
        max_cq: 1 << 16,
        max_cqe: profile.completions as c_int,
        max_mr: 1 << 20,
        max_pd: 1 << 16,
        max_qp_rd_atom: profile.reads_as_target as c_int,
        max_qp_init_rd_atom: profile.reads_as_initiator as c_int,
        max_res_rd_atom: 1 << 20,
        atomic_cap: match profile.atomics {
            true => ibv_atomic_cap::IBV_ATOMIC_HCA,
            false => ibv_atomic_cap::IBV_ATOMIC_NONE,
        },
        max_ah: 1 << 16,
        max_srq: if profile.shared_receives { 1 << 16 } else { 0 },
        max_srq_wr: match profile.shared_receives {
            true => profile.requests as c_int,
            false => 0,
        },
        max_srq_sge: match profile.shared_receives {
            true => profile.shared_entries as c_int,
            false => 0,
        },
        max_pkeys: profile.partition_keys.len() as u16,
        phys_port_cnt: 1,
        ..Default::default()
    }
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
            gid_tbl_len: gid_table(model, context)?.len() as c_int,
            max_msg_sz: model.profile().message_bytes,
            pkey_tbl_len: model.profile().partition_keys.len() as u16,
            lid: if ethernet { 0 } else { model.profile().lid },
            flags: u8::from(model.profile().grh_required),
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

pub(super) fn on_ethernet(model: &mut DeviceModel, context: *mut ibv_context) -> Result<bool, i32> {
    match model.contexts.get(&(context as usize)) {
        Some(context) => Ok(DEVICES[context.device].1),
        None => missing(model, "a context"),
    }
}

/// The GIDs of a context's port: on Ethernet those of the profile, else one of its InfiniBand
/// subnet.
fn gid_table(
    model: &mut DeviceModel,
    context: *mut ibv_context,
) -> Result<Vec<ibv_gid_entry>, i32> {
    let entry = |(gid_index, raw, gid_type, ndev_ifindex): (u32, [u8; 16], ibv_gid_type, u32)| {
        ibv_gid_entry {
            gid: ibv_gid { raw },
            gid_index,
            port_num: 1,
            gid_type: gid_type.0,
            ndev_ifindex,
        }
    };
    if on_ethernet(model, context)? {
        let of_profile = (0..).zip(&model.profile().gids).map(|(index, own)| {
            let kind = match own.routed {
                true => ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
                false => ibv_gid_type::IBV_GID_TYPE_ROCE_V1,
            };
            let interface = if own.elsewhere { ELSEWHERE } else { 0 };
            entry((index, own.gid.octets(), kind, interface))
        });
        return Ok(of_profile.collect());
    }
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&model.contexts[&(context as usize)].subnet);
    raw[8..].copy_from_slice(&INTERFACE);
    Ok(vec![entry((0, raw, ibv_gid_type::IBV_GID_TYPE_IB, 0))])
}

/// The number of an interface that this network namespace does not have.
const ELSEWHERE: u32 = 0x7fff_ffff;

/// The GID that a path leads from.
pub(super) fn source(
    model: &mut DeviceModel,
    context: *mut ibv_context,
    path: &ibv_ah_attr,
) -> Result<ibv_gid, i32> {
    let table = gid_table(model, context)?;
    let own = table.get(usize::from(path.grh.sgid_index));
    match own.filter(|entry| entry.ndev_ifindex != ELSEWHERE) {
        Some(entry) => Ok(entry.gid),
        None => Err(libc::EINVAL),
    }
}

/// The end of the GID on InfiniBand.
const INTERFACE: [u8; 8] = [0, 0, 0, 0, 0, 0, 0xfa, 0x4e];

/// Whether a path leads to the port, from one of the same subnet or of another one.
pub(super) fn reaches_port(
    model: &mut DeviceModel,
    context: *mut ibv_context,
    path: &ibv_ah_attr,
) -> Result<bool, i32> {
    let own = source(model, context, path)?;
    // SAFETY: all bits are fine in both views of the union.
    let (own, to) = unsafe { (own.raw, path.grh.dgid.raw) };
    if on_ethernet(model, context)? {
        let is_own = |gid: &ProfileGid| gid.gid.octets() == to;
        return Ok(path.is_global != 0 && model.profile().gids.iter().any(is_own));
    }
    let lid = model.profile().lid;
    Ok(match path.is_global {
        0 => path.dlid == lid,
        _ if to[8..] != INTERFACE => false,
        _ if to[..8] == own[..8] => path.dlid == lid,
        _ => path.dlid == ROUTER_LID,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    let queried = act("ibv_query_gid", |model| {
        let table = gid_table(model, context)?;
        let entry = usize::try_from(index).ok().and_then(|at| table.get(at));
        let (1, Some(entry)) = (port, entry) else {
            return Err(libc::EINVAL);
        };
        // SAFETY: the caller gave a place to write to.
        unsafe { into.write(entry.gid) };
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
    let mut count = 0;
    let queried = act("_ibv_query_gid_table", |model| {
        let table = gid_table(model, context)?;
        if entry_size != size_of::<ibv_gid_entry>() || max_entries < table.len() {
            return Err(libc::EINVAL);
        }
        count = table.len() as isize;
        // SAFETY: there is room for so many entries.
        unsafe { ptr::copy_nonoverlapping(table.as_ptr(), entries, table.len()) };
        Ok(())
    });
    match queried {
        0 => count,
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
    let queried = act("ibv_query_pkey", |model| {
        let keys = &model.profile().partition_keys;
        let key = usize::try_from(index).ok().and_then(|at| keys.get(at));
        let (1, Some(key)) = (port, key) else {
            return Err(libc::EINVAL);
        };
        // SAFETY: the caller gave a place to write to.
        unsafe { pkey.write(key.to_be()) };
        Ok(())
    });
    if queried == 0 { 0 } else { -1 }
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
